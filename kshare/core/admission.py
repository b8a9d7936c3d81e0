"""Admission: how far a batch may read, by offsets and event time; and the wait for more.

- **Offsets** (``maxOffsetsPerTrigger``, ``minOffsetsPerTrigger``): the numbers are those of Spark's
  kafka source. No end is before its front or beyond its top, and a partition with something to read
  gets at least one offset.
- **Event time** (``maxTimeAhead``): Spark has one watermark for a query, so what one range or
  partition has read makes the records late that another one has not read yet. What counts is what a
  batch *leaves behind*: of each partition a record is known from which on all that is left is no
  older, and the batch reads nothing that is more than the option's time later than the oldest of
  these. The record that is due next in some partition is not later than the bound, so reading goes
  on whatever the timestamps are. A timestamp in the future counts as now; a record without a
  timestamp (-1) counts nowhere. A batch that reads whatever comes (``realTime``) may leave all that
  is pending: it ends when now is the option's time after the oldest of that.

A function of the arguments. Cost: linear in partitions.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from kshare.core.hashing import HashRange, KeyRanges
from kshare.core.progress import Progress, TopicPartition

__all__ = [
    "PartitionTimes",
    "StampedOffset",
    "admit",
    "open_milliseconds",
    "should_wait",
    "surely_read",
    "time_bound",
]

_Partition = TypeVar("_Partition")


def admit(
    front: Mapping[_Partition, int], top: Mapping[_Partition, int], max_offsets: int | None
) -> dict[_Partition, int]:
    """The end of each partition in a batch with ``maxOffsetsPerTrigger``.

    ``KafkaMicroBatchStream.rateLimit`` of Apache Spark 4.2: the limit is shared in proportion to
    what each partition has, in floating point, rounded down; but up where it is less than one, so
    that small partitions do not starve. With more such partitions than offsets to share, the batch
    is larger than the limit.

    Args:
        front: The offset where each partition stands.
        top: The offset up to which each could be read.
        max_offsets: Maximum number of offsets of all partitions together; None for none.

    Returns:
        The ends, of the partitions of ``top`` and in their order. A partition whose top is not
        beyond its front ends there.
    """
    backlog = {tp: end - front[tp] for tp, end in top.items() if tp in front and end > front[tp]}
    total = float(sum(backlog.values()))
    if max_offsets is None or not backlog:
        return dict(top)
    ends = {}
    for tp, end in top.items():
        size = backlog.get(tp)
        if size is None:
            ends[tp] = end
            continue
        share = max_offsets * (size / total)
        ends[tp] = min(end, front[tp] + (math.ceil(share) if share < 1 else int(share)))
    return ends


def should_wait(
    positions: Mapping[_Partition, int],
    available: Mapping[_Partition, int],
    *,
    min_offsets: int,
    max_delay_seconds: float,
    seconds_since_batch: float | None,
) -> bool:
    """True if a trigger should wait until there is more to read (``minOffsetsPerTrigger``).

    ``KafkaMicroBatchStream.delayBatch`` of Apache Spark 4.2.

    Args:
        positions: Where each partition stands; one that is not in it stands at 0.
        available: The end of each partition.
        min_offsets: Number of offsets to wait for, in all partitions together.
        max_delay_seconds: Maximum time to wait (``maxTriggerDelay``).
        seconds_since_batch: Time since the last trigger that did not wait; None if there was none,
            and then this one does not wait.
    """
    if seconds_since_batch is None or seconds_since_batch >= max_delay_seconds:
        return False
    return sum(end - positions.get(tp, 0) for tp, end in available.items()) < min_offsets


_STEPS = 4


@dataclass(frozen=True, slots=True)
class StampedOffset:
    """A record's place and time.

    Attributes:
        offset: Its offset.
        timestamp_ms: Its timestamp, milliseconds since 1970; below 0 if it has none.
    """

    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class PartitionTimes:
    """Two pending records of a partition.

    Attributes:
        next: The first one; None if there is none.
        left: The first one that a batch may leave pending; None if it leaves none.
    """

    next: StampedOffset | None
    left: StampedOffset | None

    @property
    def left_since_ms(self) -> int | None:
        """The time from which on records are left behind; None if none with a time is.

        Records that come after a later one are late whatever is done: so times only rise.
        """
        if self.left is None:
            return None
        known = [at.timestamp_ms for at in (self.next, self.left) if at is not None]
        return max((ms for ms in known if ms >= 0), default=None)


def time_bound(
    times: Mapping[TopicPartition, PartitionTimes], *, max_ahead_ms: int, now_ms: int
) -> int | None:
    """The latest timestamp that a batch may read.

    It moves in steps of a quarter of ``max_ahead_ms``, so that ranges which wait at the bound get
    batches that are worth a task, and not the few records by which the slowest one went on.

    Args:
        times: The records that are due in each partition, and that it may leave behind.
        max_ahead_ms: Maximum distance from the oldest record that is left; at least 1.
        now_ms: The time, milliseconds since 1970.

    Returns:
        Milliseconds since 1970; None if there is no bound.
    """
    levels = [each.left_since_ms for each in times.values() if each.left_since_ms is not None]
    if not levels:
        return None
    bound = min(levels) + max_ahead_ms
    return None if bound >= now_ms else bound - bound % max(max_ahead_ms // _STEPS, 1)


def open_milliseconds(
    pending: Iterable[StampedOffset | None], *, wanted_ms: int, max_ahead_ms: int, now_ms: int
) -> int:
    """How long a batch may read whatever comes.

    It may leave everything that is pending, and read what is as late as the time when it ends. What
    comes meanwhile is no older than now.

    Args:
        pending: The first pending record of each partition; None where there is none.
        wanted_ms: How long it would read; at least 1.
        max_ahead_ms: Maximum distance from the oldest record that is left; at least 1.
        now_ms: The time, milliseconds since 1970.

    Returns:
        Milliseconds; 0 if they were so few that a batch is better which ends where logs end now,
        as it leaves nothing behind.
    """
    known = [at.timestamp_ms for at in pending if at is not None and at.timestamp_ms >= 0]
    left = min([now_ms, *known]) + max_ahead_ms - now_ms
    least = max(min(wanted_ms, max_ahead_ms // _STEPS), 1)
    return min(wanted_ms, left) if left >= least else 0


def surely_read(
    reached: Progress,
    end: int,
    limits: Iterable[tuple[HashRange, int]],
    parked: KeyRanges,
) -> int:
    """The offset below which a batch with record limits reads all that it may read.

    No offset has two records: so a range with a limit of ``n`` comes to ``n`` offsets beyond its
    position at least.

    Args:
        reached: How far the partition is.
        end: Below which offset it is read.
        limits: Its ranges, and the number of records that each may read.
        parked: The hashes of parked keys.
    """
    sure = end
    for hashes, records in limits:
        parts = KeyRanges([hashes]) - parked
        if parts:
            sure = min(sure, reached.position_of(parts) + records)
    return max(sure, reached.stable)
