"""Counters of a running processor, its line of progress, and a warning of a blocked loop.

Cost: 0.3 us a call, nothing for a record; a line of progress is linear in the lanes.
"""

import asyncio
import logging
import sys
import threading
import time
import traceback
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Final

from kshare.core.listing import counted
from kshare.core.progress import TopicPartition
from kshare.dead_letters.record import Outcome, Record, Status
from kshare.processing.core.scheduler import Scheduler

__all__ = [
    "BOUNDS",
    "LoopWatch",
    "Measures",
    "Progress",
    "Running",
    "innermost_call",
    "progress_line",
]

_log = logging.getLogger("kshare.processing")
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the buckets of latencies, in seconds; the last bucket has none."""
_LOOK_SECONDS: Final = 0.1
_QUIET_SECONDS: Final = 60.0
_FAILED: Final = (Status.DEAD_LETTERED, Status.PARKED)
_ENGINE: Final = "kshare.processing.engine"


@dataclass(slots=True)
class Measures:
    """Counters of one processor.

    Attributes:
        outcomes: Number of records by what became of them.
        failures: Number of calls that have failed.
        failed_endings: How often a dead letter could not be written, or a key not be parked.
        seconds: Time that calls took, in all.
        buckets: Number of calls by how long they took, see :data:`BOUNDS`.
        read: Number of records that were read.
        last_failed: The last record that is a dead letter, or whose key was parked; None if none.
    """

    outcomes: Counter[Status] = field(default_factory=Counter)
    failures: int = 0
    failed_endings: int = 0
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    read: int = 0
    last_failed: Outcome | None = None

    def called(self, seconds: float, *, is_failure: bool = False) -> None:
        """A call has ended."""
        self.seconds += seconds
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
        self.failures += is_failure

    def count(self, outcomes: Iterable[Outcome]) -> None:
        """Records have outcomes."""
        listed = list(outcomes)
        statuses = [outcome.status for outcome in listed]
        done = statuses.count(Status.DONE)  # by identity: to hash a status takes longer
        self.outcomes[Status.DONE] += done
        if done < len(statuses):
            self.outcomes.update(status for status in statuses if status is not Status.DONE)
            failed = [each for each in listed if each.status in _FAILED]
            self.last_failed = failed[-1] if failed else self.last_failed

    @property
    def calls(self) -> int:
        """Number of calls."""
        return sum(self.buckets)


@dataclass(frozen=True, slots=True)
class Running:
    """A processor that runs over a consumer, for its metrics.

    Attributes:
        group: Id of the group.
        member: Id of the consumer in it.
        scheduler: What it holds: only to be read.
        measures: What it has done.
    """

    group: str
    member: str
    scheduler: Scheduler
    measures: Measures


class Progress:
    """Logs how a processor goes on; nothing while it has nothing to do. For an event loop's thread.

    Records that have failed for good are a warning, at the end and once a minute.

    Args:
        running: The processor.
    """

    seconds = 10.0
    """Time between two lines."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._loop = asyncio.get_running_loop()
        self._ended = 0
        self._failed = Counter[Status]()  # as it was said last
        self._failed_at = -_QUIET_SECONDS
        self._timer = self._loop.call_later(self.seconds, self._log_line)

    def close(self) -> None:
        """Log no more."""
        self._timer.cancel()
        self._warn_of_failed()

    def _log_line(self) -> None:
        ended = self._running.measures.outcomes.total()
        if _log.isEnabledFor(logging.INFO):
            rate = (ended - self._ended) / self.seconds
            if rate or self._running.scheduler.firsts():
                _log.info("%s", progress_line(self._running, rate, time.time()))
        self._ended = ended
        if self._loop.time() - self._failed_at >= _QUIET_SECONDS:
            self._warn_of_failed()
        self._timer = self._loop.call_later(self.seconds, self._log_line)

    def _warn_of_failed(self) -> None:
        """Say how many records have failed for good since that was said last, if any has."""
        measures = self._running.measures
        now = Counter({status: measures.outcomes[status] for status in _FAILED})
        new, last = now - self._failed, measures.last_failed
        if last is None or not new:
            return
        self._failed, self._failed_at = now, self._loop.time()
        dead, parked = new[Status.DEAD_LETTERED], new[Status.PARKED]
        _log.warning(
            "group %s: %s failed for good (%s, %s of parked keys); the last one is %s offset %d%s",
            self._running.group,
            counted(dead + parked, "record"),
            counted(dead, "dead letter"),
            f"{parked:,}",
            last.record.topic_partition,
            last.record.offset,
            "" if last.error is None else f", {type(last.error).__name__}",
        )


def progress_line(running: Running, rate: float, now: float) -> str:
    """Return a line that tells people how a processor goes on.

    Args:
        running: The processor.
        rate: Number of records a second that had their outcome lately.
        now: The time, in seconds since 1970.
    """
    figures, outcomes = running.scheduler.figures(), running.measures.outcomes
    line = (
        f"group {running.group}: {rate:,.0f} records/s, {figures.calls:,} in flight, "
        f"{figures.records:,} held of {figures.lanes:,} keys, {figures.waiting:,} retrying, "
        f"{outcomes[Status.DEAD_LETTERED]:,} dead-lettered, {outcomes[Status.PARKED]:,} parked"
    )
    oldest = _oldest(running.scheduler.firsts())
    if oldest is None:
        return line
    record, timestamp = oldest
    line += f", oldest held: {record.topic_partition} offset {record.offset}"
    if timestamp < 0:
        return line
    return f"{line}, {max(now - timestamp / 1000, 0.0):,.0f} s after it was produced"


def _oldest(records: Iterable[Record]) -> tuple[Record, int] | None:
    """Of the first record of each partition, the oldest, and its timestamp; -1 without one."""
    firsts: dict[TopicPartition, Record] = {}
    for record in records:
        first = firsts.get(record.topic_partition)
        if first is None or record.offset < first.offset:
            firsts[record.topic_partition] = record
    dated = [(_timestamp(record), record) for record in firsts.values()]
    known = [each for each in dated if each[0] >= 0] or dated
    if not known:
        return None
    timestamp, record = min(known, key=lambda each: each[0])
    return record, timestamp


def _timestamp(record: Record) -> int:
    with suppress(ValueError):  # the column is not read
        return record.timestamp
    return -1


class LoopWatch:
    """Looks, from a thread of its own, whether an event loop goes on; made in the loop's thread.

    Args:
        loop: The loop.
        handler: Name of the handler, for the warning.
        most_seconds: For so long a turn of the loop may take without a warning.
        quiet_until: Until when a handler is not named again, by its name; for those who watch the
            same loop one after the other.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handler: str,
        most_seconds: float = 0.5,
        quiet_until: dict[str, float] | None = None,
    ) -> None:
        self._loop = loop
        self._handler = handler
        self._most = most_seconds
        self._quiet_until = {} if quiet_until is None else quiet_until
        self._ident = threading.get_ident()
        self._closed = threading.Event()
        self._seen = time.monotonic()
        self._call: FrameType | None = None
        self._thread = threading.Thread(target=self._run, name="kshare loop watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._closed.set()
        self._thread.join()

    def _beat(self) -> None:
        self._seen, self._call = time.monotonic(), None

    def _run(self) -> None:
        while not self._closed.wait(_LOOK_SECONDS):
            now = time.monotonic()
            late, is_quiet = now - self._seen, now <= self._quiet_until.get(self._handler, 0.0)
            if late > self._most and not is_quiet and self._warn(late):
                self._quiet_until[self._handler] = time.monotonic() + _QUIET_SECONDS
            try:
                self._loop.call_soon_threadsafe(self._beat)
            except RuntimeError:  # closed
                return

    def _warn(self, seconds: float) -> bool:
        """Name what blocks the loop; False if no handler does, or it is not sure yet."""
        frame = sys._current_frames().get(self._ident)  # noqa: SLF001 - there is no other way
        before, self._call = self._call, _call_in(frame)
        # On a busy machine a turn of many short calls takes as long: it has to be the same call.
        if frame is None or self._call is None or self._call is not before:
            return False
        self._call = None
        _log.warning(
            "%s blocks the event loop for %.1f s already, in %s: all other keys wait; "
            "await what takes long, or make the handler a plain function, which runs in a thread",
            self._handler,
            seconds,
            innermost_call(frame),
        )
        return True


def innermost_call(frame: FrameType) -> str:
    """The file, the line and the function that a frame is in."""
    where = traceback.extract_stack(frame)[-1]
    return f"{where.filename}:{where.lineno} ({where.name})"


def _call_in(frame: FrameType | None) -> FrameType | None:
    """The handler's frame in a stack; None if none is called."""
    called = None
    while frame is not None:
        if frame.f_globals.get("__name__") == _ENGINE:
            return called
        called, frame = frame, frame.f_back
    return None
