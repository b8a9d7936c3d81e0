"""From the range that is furthest behind to the keys that wait in it.

Cost: reads the keys of at most :data:`RECORDS_MAX` records, from :data:`OFFSETS_MAX` offsets.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kshare.core.hashing import HashRange
from kshare.core.offsets import since
from kshare.core.progress import Slice
from kshare.core.region import Stripe
from kshare.core.slice_end import SliceEnd
from kshare.monitor.status import PartitionStatus, RangeStatus, Status
from kshare.options import SourceOptions
from kshare.wire.reader.read_slice import read_slice

__all__ = ["SlowestRange", "slowest_range", "waiting_keys"]

RECORDS_MAX: Final = 1_000
"""Maximum number of records that are looked at."""

OFFSETS_MAX: Final = 200_000
"""Maximum number of offsets that they come from."""

_KEYS_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class SlowestRange:
    """The keys of the next pending records of a range.

    Attributes:
        partition: The partition.
        range: The range.
        end: Records below this offset were looked at.
        records: Number of records that were looked at.
        keys: The keys of most of them with their number of records, most first; None for no key.
    """

    partition: PartitionStatus
    range: RangeStatus
    end: int
    records: int
    keys: tuple[tuple[bytes | None, int], ...]


def slowest_range(status: Status) -> tuple[PartitionStatus, RangeStatus] | None:
    """The range that is furthest behind the others of its partition; None if all are level.

    A hash that stays behind alone is one, too, unless it is known to be that of a parked key.
    """
    behind = [
        (partition.done.front - range_.position, partition, range_)
        for partition in status.partitions
        if partition.log is not None
        for range_ in (*partition.ranges, *_alone(status, partition))
        if partition.done.front > range_.position
    ]
    if not behind:
        return None
    _, partition, range_ = max(behind, key=lambda one: one[0])
    return partition, range_


def _alone(status: Status, partition: PartitionStatus) -> Iterator[RangeStatus]:
    tp = partition.topic_partition
    for key in status.parked:
        if key.topic == tp.topic and key.key is None and tp.partition in key.positions:
            hashes = (HashRange.of(key.hash),)
            yield RangeStatus(hashes, key.positions[tp.partition], lag=None, limit=None)


def waiting_keys(
    partition: PartitionStatus, range_: RangeStatus, options: SourceOptions
) -> SlowestRange:
    """Read the next pending records of a range, and count their keys.

    Args:
        partition: The partition; its log is known.
        range_: The range.
        options: How Kafka is reached; ``columns`` holds ``key``.

    Raises:
        KafkaError: The broker did not answer.
    """
    assert partition.log is not None
    first, log_end = partition.log
    start = max(range_.position, first)
    end = min(start + OFFSETS_MAX, log_end)
    pending = [
        Stripe(stripe.hashes, bounds)
        for stripe in partition.done.pending_stripes(end, range_.hashes)
        if (bounds := since(stripe.bounds, start))
    ]
    if not pending:
        return SlowestRange(partition, range_, start, 0, ())
    ends: list[SliceEnd] = []
    slice_ = Slice(*partition.topic_partition, stripes=pending)
    batches = read_slice(slice_, options, max_records=RECORDS_MAX, on_end=ends.append)
    counts = Counter(key for batch in batches for key in batch.column("key").to_pylist())
    keys = tuple(counts.most_common(_KEYS_MAX))
    return SlowestRange(partition, range_, ends[0].end, counts.total(), keys)
