"""A line of progress at INFO, from time to time, while a processor runs.

Cost: nothing for a record; a line is linear in the lanes.
"""

import asyncio
import logging
import time
from collections.abc import Iterable
from contextlib import suppress

from kshare.core.progress import TopicPartition
from kshare.processing.core.outcome import Status
from kshare.processing.core.record import Record
from kshare.processing.measures import Running

__all__ = ["Progress", "progress_line"]

_log = logging.getLogger("kshare.processing")


class Progress:
    """Logs how a processor goes on; nothing while it has nothing to do. For an event loop's thread.

    Args:
        running: The processor.
    """

    seconds = 10.0
    """Time between two lines."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._loop = asyncio.get_running_loop()
        self._ended = 0
        self._timer = self._loop.call_later(self.seconds, self._tell)

    def close(self) -> None:
        """Tell no more."""
        self._timer.cancel()

    def _tell(self) -> None:
        ended = self._running.measures.outcomes.total()
        if _log.isEnabledFor(logging.INFO):
            rate = (ended - self._ended) / self.seconds
            if rate or self._running.scheduler.firsts():
                _log.info("%s", progress_line(self._running, rate, time.time()))
        self._ended = ended
        self._timer = self._loop.call_later(self.seconds, self._tell)


def progress_line(running: Running, rate: float, now: float) -> str:
    """How a processor goes on, for people.

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
