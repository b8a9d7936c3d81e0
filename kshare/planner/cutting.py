"""Pending work as slices: ``splitBy``, the range assignor, ``maxRecordsPerPartition``.

Guarantees: the slices tile the pending work. With ``maxRecordsPerPartition``, cut by offset, no
slice spans more offsets than that, exactly as in Spark's kafka source. Cut by key hash, ranges are
made narrower until a slice's share of the partition's offsets is no more than that: keys do not
spread evenly, a key is never cut, and every such slice scans the whole offset range.
Cost: linear in the slices.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from kshare.core.hashing import split
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Slice
from kshare.core.region import Rectangle, hull
from kshare.core.slicing import PartitionLoad, check_plan, plan_by_key, plan_by_offset, plan_ranges
from kshare.options import SourceOptions
from kshare.ranges import load_range_assignor

__all__ = ["slice_pending"]

_RANGES_MAX = 1 << 16


def slice_pending(options: SourceOptions, loads: Sequence[PartitionLoad]) -> tuple[Slice, ...]:
    """Cut pending work into slices.

    Raises:
        PlanError: The slices do not tile the work; only a range assignor of the user's can do that.
    """
    most = options.max_records_per_partition
    work = [load for load in loads if load.pending]
    if most is None or not work:
        return _cut(options, loads)
    if options.split_by == "offset":
        slices = _by_offset(work, most, options.min_partitions)
        check_plan(loads, slices)
        return slices
    ranges = plan_ranges(
        work,
        load_range_assignor(options.range_assignor),
        min_tasks=options.min_partitions,
        key_ranges=options.key_ranges,
    )
    narrowed = []
    for load in work:
        parts = ranges[load.topic_partition]
        wanted = min(math.ceil(load.size / most), _RANGES_MAX)
        if load.fixed_ranges is None and wanted > len(parts):
            pieces = math.ceil(wanted / len(parts))
            parts = tuple(piece for part in parts for piece in split(part, min(pieces, part.width)))
        narrowed.append(replace(load, fixed_ranges=parts))
    return _cut(options, narrowed)


def _cut(options: SourceOptions, loads: Sequence[PartitionLoad]) -> tuple[Slice, ...]:
    """Cut pending work without ``maxRecordsPerPartition``."""
    if options.split_by == "offset":
        slices = plan_by_offset(loads, min_tasks=options.min_partitions)
    else:
        slices = plan_by_key(
            loads,
            load_range_assignor(options.range_assignor),
            min_tasks=options.min_partitions,
            key_ranges=options.key_ranges,
        )
    check_plan(loads, slices)
    return slices


def _by_offset(
    loads: Sequence[PartitionLoad], most: int, min_tasks: int | None
) -> tuple[Slice, ...]:
    """``KafkaOffsetRangeCalculator.getRanges`` of Apache Spark 4.2.

    Each range is divided into parts of no more than ``most`` offsets. ``minPartitions`` divides
    these parts further; each is numbered as a partition of its own.
    """
    whole: list[PartitionLoad] = []
    parts: list[PartitionLoad] = []
    for load in sorted(loads, key=lambda load: load.topic_partition):
        offsets = hull(load.pending)
        for part in _divided(offsets, math.ceil(len(offsets) / most)):
            pending = tuple(
                Rectangle(shared, piece.hashes)
                for piece in load.pending
                if (shared := _shared(piece.offsets, part)) is not None
            )
            if pending:
                parts.append(PartitionLoad("", len(parts), pending))
                whole.append(load)
    return tuple(
        Slice(whole[piece.partition].topic, whole[piece.partition].partition, piece.rectangles)
        for piece in plan_by_offset(parts, min_tasks=min_tasks)
    )


def _divided(offsets: OffsetRange, parts: int) -> list[OffsetRange]:
    """Parts of a range; the last ones take what does not divide evenly, as in Spark."""
    start, remaining, divided = offsets.start, len(offsets), []
    for part in range(parts):
        size = remaining // (parts - part)
        remaining -= size
        divided.append(OffsetRange(start, start + size))
        start += size
    return divided


def _shared(first: OffsetRange, second: OffsetRange) -> OffsetRange | None:
    start, end = max(first.start, second.start), min(first.end, second.end)
    return OffsetRange(start, end) if start < end else None
