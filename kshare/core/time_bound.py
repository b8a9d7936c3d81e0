"""The bound in event time of a batch (``maxTimeAhead``).

Spark has one watermark for a query: what one range or partition has read makes the records late
that another one has not read yet. So what counts is what a batch *leaves behind*: of each partition
a record is known from which on all that is left is no older, and the batch reads nothing that is
more than the option's time later than the oldest of these.

Guarantees: a function of the arguments. The record that is due next in some partition is not later
than the bound, so reading goes on whatever the timestamps are. A timestamp in the future counts as
now, so that it is read when all others are; a record without a timestamp (-1) counts nowhere.
Cost: linear in the partitions.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kshare.core.byte_bound import WindowEnds
from kshare.core.hashing import HashRange, without
from kshare.core.progress import Progress, TopicPartition

__all__ = ["PartitionTimes", "StampedOffset", "surely_read", "time_bound"]

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


def surely_read(
    reached: Progress,
    end: int,
    limits: Iterable[tuple[HashRange, int]],
    parked: frozenset[int],
    ends: WindowEnds | None = None,
) -> int:
    """The offset below which a batch with record limits reads all that it may read.

    No offset has two records: so a range with a limit of ``n`` comes to ``n`` offsets beyond its
    position at least.

    Args:
        reached: How far the partition is.
        end: Below which offset it is read.
        limits: Its ranges, and the number of records that each may read.
        parked: The hashes of parked keys.
        ends: Below which offset each range is read, if not ``end``.
    """
    sure = end
    for hashes, records in limits:
        parts = without((hashes,), parked)
        if parts:
            at = reached.position_of(parts)
            sure = min(sure, at + records, end if ends is None else ends.end(at))
    return max(sure, reached.stable)
