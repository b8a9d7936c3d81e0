"""How much work the key ranges are that a consumer owns: records, time, offsets, a sample of keys.

::

    a call returns records --- the caller works on them ---> the next call        (implicit mode)
              |<------------ busy: shared out by records ------->|

    handed out --- something of a partition is not acknowledged ---> all is        (explicit mode)
              |<------------------------ busy ---------------------->|

What is honest about the time. In implicit mode a record is processed when the next call begins, so
all time between two calls counts as work on what the first one returned: also time in which the
caller does something else. In explicit mode several records are in work at once, and the time is
that in which there was one, as far as it is seen: the time between two calls counts for what the
first one returned, other time if something is not acknowledged at its begin (and only by half if
all is at its end). So it is what a partition takes if it is never idle, and the times of several
partitions overlap. With transactions no time is measured: a commit waits for other members, and
records are counted instead.

Cost: a look at the clock for each call that does not find its records ready, never one for each
record; 256 key hashes for each partition and window, and a few for each time that it doubles.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Final

from kshare.core.hashing import KeyRanges
from kshare.core.progress import TopicPartition
from kshare.core.slice_end import KeySample
from kshare.group.config.table import ConsumerConfig
from kshare.group.core.delivery import Delivery
from kshare.group.message import Chunk
from kshare.group.protocol.membership.report import MemberReport, bounded, by_range

__all__ = ["LoadMeter", "meter_of"]

_LOOK_SECONDS: Final = 1.0
_LOOK_SECONDS_EXPLICIT: Final = 0.02
_AGE_MIN: Final = 5.0
_LOCK_SECONDS: Final = 0.1


@dataclass(slots=True)
class _Window:
    """The load of some key hashes in one stretch of time.

    Attributes:
        start: When it began.
        position: The position then.
        records: Number of records that were handed out.
        seconds: How long they took.
        sample: Hashes of their keys.
    """

    start: float
    position: int
    records: int = 0
    seconds: float = 0.0
    sample: KeySample = field(default_factory=KeySample)


@dataclass(slots=True)
class _Busy:
    """Explicit mode: the time in which something is in work.

    Attributes:
        is_on: Whether something was not acknowledged when it was looked at last.
        counted_until: Time before this is counted.
    """

    is_on: bool = False
    counted_until: float = float("-inf")

    def count(self, since: float, now: float) -> float:
        """Seconds of work that are not counted yet; from now on they are."""
        seconds = max(now - max(since, self.counted_until), 0.0)
        self.counted_until = now
        return seconds


@dataclass(slots=True)
class _Work:
    """Records that calls have returned: they are in work until the next call begins.

    Attributes:
        returned: The partition of what the last call returned and is not counted yet; None if none.
        returned_at: When it returned.
        counted: Number of records of each partition.
    """

    returned: TopicPartition | None = None
    returned_at: float = 0.0
    counted: dict[TopicPartition, int] = field(default_factory=dict)

    def end(self) -> dict[TopicPartition, float]:
        """It is worked on no longer; the part that each partition had of it."""
        counted, self.counted = self.counted, {}
        total = sum(counted.values())
        return {partition: count / total for partition, count in counted.items()}


@dataclass(slots=True)
class _Meter:
    """Measures the load of the key hashes of one partition.

    Attributes:
        hashes: The key hashes.
        delivery: What hands them out.
        handed_out: Number of records that it had handed out when it was looked at last; those that
            went back since, as a call was cancelled, are counted once.
        position: Up to where they were returned then.
        lag: Number of offsets from there to the end; None if it is not known.
        busy: The time in which something of it is in work.
        window: What is observed now.
        chunk: What is handed out of it; None before the first one.
        row: Number of its rows that are counted.
        before: The window before; None if there is none.
    """

    hashes: KeyRanges
    delivery: Delivery
    handed_out: int
    position: int
    window: _Window
    chunk: Chunk | None = None
    row: int = 0
    lag: int | None = None
    busy: _Busy = field(default_factory=_Busy)
    before: _Window | None = None


class LoadMeter:
    """Measures the load of what a consumer owns, lately: in one to two windows of time.

    For the thread that polls, but for :meth:`report`. What is observed of a partition is forgotten
    when its hashes change.

    Args:
        said: What is reported beside loads.
        window: Length of a window, in seconds.
        explicit: Whether records are acknowledged one by one.
        is_timed: Whether time is measured.
        now: Source of time.
    """

    def __init__(
        self,
        said: MemberReport,
        window: float,
        *,
        explicit: bool,
        is_timed: bool,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._window = window
        self._explicit = explicit
        self._is_timed = is_timed
        self._now = now
        self._lock = Lock()
        self._last = said
        self._meters: dict[TopicPartition, _Meter] = {}
        self._work = _Work()
        self._looked_at = float("-inf")

    # -- what the thread that polls does -----------------------------------------------------

    def called(self, *, continues: bool) -> None:
        """A call begins: what the calls before it returned is worked on no longer.

        Args:
            continues: Whether the same call has returned records already.
        """
        work = self._work
        if work.returned is not None:
            with self._lock:
                self._count_records(work.returned)
            work.returned = None
        if continues or not work.counted:
            return
        now = self._now()
        with self._lock:
            for partition, part in work.end().items():
                meter = self._meters.get(partition)
                if meter is None:
                    continue
                if self._explicit:
                    since = self._looked_at if meter.busy.is_on else work.returned_at
                    meter.window.seconds += meter.busy.count(since, now)
                else:
                    meter.window.seconds += (now - work.returned_at) * part

    def _count_records(self, partition: TopicPartition) -> None:
        """Count what was handed out of a partition since it was looked at last."""
        meter = self._meters.get(partition)
        count = 0 if meter is None else meter.delivery.handed_out - meter.handed_out
        if meter is None or count <= 0:
            return
        meter.handed_out += count
        meter.window.records += count
        counted = self._work.counted
        counted[partition] = counted.get(partition, 0) + count
        chunk, first = meter.chunk, meter.row
        if chunk is not None and chunk.has_keys:
            keys, offsets = chunk.batch.column("key"), chunk.offsets
            meter.row = min(first + count, len(offsets))
            meter.window.sample.add(
                meter.row - first,
                lambda row: (keys[first + row].as_py(), int(offsets[first + row])),
            )

    def returned(self, partition: TopicPartition | None) -> None:
        """A call returns records of a partition; None if it has waited for more and got none."""
        self._work.returned, self._work.returned_at = partition, self._now()

    def begun(self, chunk: Chunk) -> None:
        """The records of a chunk are handed out next."""
        with self._lock:
            meter = self._meters.get(chunk.topic_partition)
            if meter is not None:
                meter.chunk, meter.row = chunk, 0

    def look(
        self,
        deliveries: Mapping[TopicPartition, Delivery],
        end: Callable[[TopicPartition], int | None],
    ) -> None:
        """See now and then how far partitions are, and which are owned at all.

        Args:
            deliveries: What is handed out of the partitions that have started.
            end: The end of a partition, as of the last fetch; None if it is not known.
        """
        now = self._now()
        passed = now - self._looked_at
        if passed < (_LOOK_SECONDS_EXPLICIT if self._explicit else _LOOK_SECONDS):
            if deliveries.keys() == self._meters.keys():
                return
            passed = 0.0
        self._looked_at = now
        with self._lock:
            for partition in self._meters.keys() - deliveries.keys():
                del self._meters[partition]
            for partition, delivery in deliveries.items():
                meter = self._look_at(partition, delivery, now)
                is_busy = self._explicit and delivery.has_unacknowledged
                if meter.busy.is_on:
                    share = 1.0 if is_busy else 0.5
                    meter.window.seconds += meter.busy.count(now - passed, now) * share
                meter.busy.is_on = is_busy
                known = end(partition)
                meter.lag = None if known is None else max(known - meter.position, 0)

    def _look_at(self, partition: TopicPartition, delivery: Delivery, now: float) -> _Meter:
        # What a call has only collected may go back: that is no seek.
        position, meter = delivery.returned, self._meters.get(partition)
        if meter is None or meter.hashes != delivery.owned or position < meter.position:
            meter = _Meter(
                delivery.owned, delivery, delivery.handed_out, position, _Window(now, position)
            )
            self._meters[partition] = meter
        if meter.delivery is not delivery:  # of the same hashes: their claim is another one
            meter.delivery, meter.handed_out, meter.chunk = delivery, 0, None
        meter.position = position
        if now - meter.window.start >= self._window:
            meter.before, meter.window = meter.window, _Window(now, position)
        return meter

    # -- what is reported --------------------------------------------------------------------

    def report(self) -> MemberReport:
        """What the member reports now. From any thread.

        Loads are those of partitions that were observed for a while; without that they are left
        out. The last report is repeated if a signal handler has interrupted who observes, and waits
        for a lock that is held here.
        """
        if self._lock.acquire(timeout=_LOCK_SECONDS):
            try:
                self._last = self._report()
            finally:
                self._lock.release()
        return self._last

    def _report(self) -> MemberReport:
        now, age_min = self._now(), min(_AGE_MIN, self._window / 2)
        loads, lags, spans = [], [], {}
        for partition, meter in sorted(self._meters.items()):
            if meter.lag is not None:
                lags.append((partition, meter.lag))
            windows = [each for each in (meter.before, meter.window) if each is not None]
            if now - windows[0].start < age_min:
                continue
            seconds = sum(each.seconds for each in windows) if self._is_timed else None
            observed = by_range(
                meter.hashes,
                sum(each.records for each in windows),
                meter.position - windows[0].position,
                seconds,
                _sample(windows),
            )
            loads.append((partition, observed))
            spans[partition] = round(now - windows[0].start, 1)
        said = bounded(tuple(loads))
        return replace(
            self._last,
            loads=said,
            lags=tuple(lags),
            spans=tuple(spans[partition] for partition, _ in said),
        )


def _sample(windows: list[_Window]) -> list[int]:
    """Key hashes of some windows, of each as many as it has of the records."""
    samples = [(each.sample.hashes, each.records) for each in windows if each.records]
    rate = min((len(hashes) / records for hashes, records in samples), default=0.0)
    sample: list[int] = []
    for hashes, records in samples:
        count = min(round(rate * records), len(hashes))
        sample += [hashes[(2 * i + 1) * len(hashes) // (2 * count)] for i in range(count)]
    return sample


def meter_of(config: ConsumerConfig) -> LoadMeter | None:
    """What measures the load of a consumer; None if no assignor looks at it.

    Its windows are half as long as the time after which the leader looks again.
    """
    if not config.measures_load:
        return None
    return LoadMeter(
        config.report,
        config.probing_interval_ms / 2000,
        explicit=config.explicit,
        is_timed=config.transactional_id is None,
    )
