"""Slicing: the pending work of a batch, cut into what tasks read.

Guarantees: the slices of a plan tile the pending work exactly, with no gap and no overlap, whatever
the assignor answered and however the ranges were cut before.
Cost: linear in the slices and their rectangles.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from typing import NoReturn, TypeAlias

from kshare.core.hashing import HASH_SPACE, HashRange, in_both
from kshare.core.offsets import OffsetRange, from_pairs, length
from kshare.core.progress import Progress, Slice, TopicPartition
from kshare.core.region import Rectangle, Stripe, canonical, hull, overlay, stripes
from kshare.core.showing import shown
from kshare.core.slice_end import HotKey
from kshare.errors import PlanError

__all__ = [
    "PartitionLoad",
    "RangeAssignor",
    "RangeObservation",
    "RangeRequest",
    "check_plan",
    "clip_offsets",
    "divided",
    "plan_by_key",
    "plan_by_offset",
    "plan_ranges",
]


@dataclass(frozen=True, slots=True)
class RangeObservation:
    """The report of the last task that read a range.

    Attributes:
        hashes: The range.
        records: Number of its records that the task delivered.
        offsets: Number of offsets of the log that they came from: end minus begin.
        seconds: How long the task took; None if that was not measured.
        sample: Key hashes of evenly spaced records, ascending; a key may occur several times.
        limit: Maximum number of records that the task could deliver; None for none.
        hot_keys: The keys of most of the sample, most frequent first.
    """

    hashes: HashRange
    records: int
    offsets: int
    seconds: float | None = None
    sample: tuple[int, ...] = ()
    limit: int | None = None
    hot_keys: tuple[HotKey, ...] = ()

    @property
    def is_full(self) -> bool:
        """True if the limit has ended the task."""
        return self.limit is not None and self.records >= self.limit


@dataclass(frozen=True, slots=True)
class PartitionLoad:
    """The pending work of one partition.

    Attributes:
        topic: Name of the topic.
        partition: Number of the partition.
        pending: What to read; made canonical, as in a :class:`~kshare.core.progress.Slice`. Empty
            if there is nothing.
        fixed_ranges: The hash ranges that the partition is cut into, disjoint and ascending, as
            the user says or as it was cut before. No assignor changes them, and they hold all that
            is pending. None if an assignor chooses.
        observed: What is known of its ranges from the batches before, ascending; a hint.
    """

    topic: str
    partition: int
    pending: tuple[Rectangle, ...]
    fixed_ranges: tuple[HashRange, ...] | None = None
    observed: tuple[RangeObservation, ...] = ()

    def __post_init__(self) -> None:
        if len(self.pending) > 1:
            object.__setattr__(self, "pending", canonical(self.pending))

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """Number of offsets with something pending: no fewer than the pending records."""
        if len(self.pending) == 1:
            return len(self.pending[0].offsets)
        offsets = [piece.offsets for piece in self.pending]
        return length(from_pairs([o.start for o in offsets], [o.end for o in offsets]))

    @property
    def area(self) -> int:
        """Number of pending (offset, key hash): in proportion to the records, if keys spread."""
        return sum(piece.area for piece in self.pending)


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """The question to a range assignor.

    Attributes:
        loads: The partitions that need ranges, ascending; each has pending work.
        min_tasks: Minimum number of ranges of all partitions together; 0 for none.
        key_ranges: Minimum number of ranges of each partition; at least 1.
    """

    loads: tuple[PartitionLoad, ...]
    min_tasks: int = 0
    key_ranges: int = 1


RangeAssignor: TypeAlias = Callable[[RangeRequest], Mapping[TopicPartition, Sequence[HashRange]]]
"""A pure function: for each partition of the request, ranges that tile the whole hash space."""


# -- planning ------------------------------------------------------------------------------------


def plan_ranges(
    loads: Sequence[PartitionLoad],
    assignor: RangeAssignor,
    *,
    min_tasks: int | None,
    key_ranges: int | None,
) -> dict[TopicPartition, tuple[HashRange, ...]]:
    """The hash ranges that each partition is cut into.

    Args:
        loads: The partitions, in any order; those without pending work get no ranges.
        assignor: Chooses the ranges of the partitions that the user has not cut.
        min_tasks: Minimum number of ranges in all, including those that the user made.
        key_ranges: Minimum number of ranges of each partition that the user has not cut.

    Returns:
        By partition, ascending; ranges ascending and disjoint. They are those that the user made,
        or tile the whole hash space.

    Raises:
        PlanError: The assignor's ranges are not such.
        ValueError: A partition is in two loads.
    """
    work = _sorted(loads)
    free = tuple(load for load in work if load.fixed_ranges is None)
    fixed = sum(len(load.fixed_ranges) for load in work if load.fixed_ranges is not None)
    answer: Mapping[TopicPartition, Sequence[HashRange]] = {}
    if free:
        answer = assignor(RangeRequest(free, max((min_tasks or 0) - fixed, 0), key_ranges or 1))
        _check_partitions(answer, free)
    ranges = {}
    checked: Sequence[HashRange] = ()  # mostly the same ranges for many partitions
    tiling: tuple[HashRange, ...] = ()
    for load in work:
        tp = load.topic_partition
        if load.fixed_ranges is not None:
            ranges[tp] = load.fixed_ranges
            continue
        if answer[tp] is not checked:
            tiling = _checked_tiling(tp, answer[tp])
            checked = answer[tp]
        ranges[tp] = tiling
    return ranges


def plan_by_key(
    loads: Sequence[PartitionLoad],
    assignor: RangeAssignor,
    *,
    min_tasks: int | None,
    key_ranges: int | None,
) -> tuple[Slice, ...]:
    """Slices of whole keys: what is pending of each hash range, see :func:`plan_ranges`.

    Returns:
        Slices ascending by partition, then by hash; none for a range without pending work.

    Raises:
        PlanError: The assignor's answer cannot be used.
        ValueError: A partition is in two loads.
    """
    ranges = plan_ranges(loads, assignor, min_tasks=min_tasks, key_ranges=key_ranges)
    slices = []
    for load in _sorted(loads):
        layers: Sequence[Stripe] = stripes(load.pending)
        if len(layers) > 1:
            layers = overlay(layers)  # ascending, disjoint
        parts = in_both(
            [(layer.hashes, layer.bounds) for layer in layers],
            [(hashes, hashes) for hashes in ranges[load.topic_partition]],
        )
        for _, of_range in groupby(parts, key=itemgetter(2)):
            cut = [Stripe(shared, bounds) for shared, bounds, _ in of_range if bounds]
            if cut:
                slices.append(Slice(load.topic, load.partition, stripes=cut))
    return tuple(slices)


def plan_by_offset(loads: Sequence[PartitionLoad], *, min_tasks: int | None) -> tuple[Slice, ...]:
    """Slices of offset ranges: Spark's own cut, which does not keep the order of keys.

    ``KafkaOffsetRangeCalculator.getRanges`` of Apache Spark 4.2: with more tasks wanted than there
    are partitions, those with much to read are divided, in proportion and rounded, so that there
    are about ``min_tasks``. The last parts take what does not divide evenly.

    Args:
        loads: The partitions, in any order.
        min_tasks: Minimum number of slices; None for one each.

    Returns:
        Slices ascending by partition, then by offset; none for a part without pending work.

    Raises:
        ValueError: A partition is in two loads.
    """
    work = _sorted(loads)
    whole = [hull(load.pending) for load in work]
    parts = _part_counts([len(offsets) for offsets in whole], min_tasks)
    slices = []
    for load, offsets, count in zip(work, whole, parts, strict=True):
        for part in divided(offsets, count):
            pieces = clip_offsets(load.pending, part)
            if pieces:
                slices.append(Slice(load.topic, load.partition, pieces))
    return tuple(slices)


def divided(offsets: OffsetRange, parts: int) -> list[OffsetRange]:
    """Parts of a range; the last ones take what does not divide evenly, and none is empty."""
    start, remaining, found = offsets.start, len(offsets), []
    for part in range(parts):
        size = remaining // (parts - part)
        if size:
            found.append(OffsetRange(start, start + size))
        start, remaining = start + size, remaining - size
    return found


def clip_offsets(pieces: Sequence[Rectangle], offsets: OffsetRange) -> tuple[Rectangle, ...]:
    """The part of some rectangles that is of some offsets."""
    return tuple(
        Rectangle(OffsetRange(first, last), piece.hashes)
        for piece in pieces
        if (first := max(piece.offsets.start, offsets.start))
        < (last := min(piece.offsets.end, offsets.end))
    )


def _sorted(loads: Sequence[PartitionLoad]) -> list[PartitionLoad]:
    """The loads with pending work, ascending."""
    work = sorted(
        (load for load in loads if load.pending), key=lambda load: (load.topic, load.partition)
    )
    for one, two in pairwise(work):
        if one.partition == two.partition and one.topic == two.topic:
            raise ValueError(f"{one.topic_partition} is in two loads")
    return work


def _part_counts(sizes: Sequence[int], min_tasks: int | None) -> list[int]:
    """Into how many parts each of some ranges is divided."""
    if min_tasks is None or len(sizes) >= min_tasks:
        return [1] * len(sizes)
    total = sum(sizes)
    small = [_part_count(size, total, min_tasks) == 1 for size in sizes]
    rest = sum(size for size, is_small in zip(sizes, small, strict=True) if not is_small)
    wanted = max(min_tasks - sum(small), 1)
    return [
        1 if is_small else _part_count(size, rest, wanted)
        for size, is_small in zip(sizes, small, strict=True)
    ]


def _part_count(size: int, total: int, parts: int) -> int:
    return max(math.floor(size / total * parts + 0.5), 1)  # Java rounds a half up


# -- checking ------------------------------------------------------------------------------------


def check_plan(loads: Sequence[PartitionLoad], slices: Sequence[Slice]) -> None:
    """Check that slices tile pending work.

    Raises:
        PlanError: They do not. The text names a partition, and what of it is missing, read twice,
            or not pending.
    """
    planned: defaultdict[tuple[str, int], list[Slice]] = defaultdict(list)
    for slice_ in slices:
        planned[slice_.topic, slice_.partition].append(slice_)
    for load in loads:
        _check_tiles(load, planned.pop((load.topic, load.partition), []))
    for (topic, partition), surplus in planned.items():
        _refuse(
            TopicPartition(topic, partition),
            f"{surplus[0].rectangles[0]} are read, but nothing of it is pending",
        )


def _check_tiles(load: PartitionLoad, slices: Sequence[Slice]) -> None:
    if len(load.pending) == 1 and _are_stacked(slices, load.pending[0]):
        return
    pieces = [piece for slice_ in slices for piece in slice_.rectangles]
    # Within a slice nothing overlaps. So if the union is what is pending, and the areas add up to
    # no more than that, then nothing overlaps between slices.
    if canonical(pieces) == load.pending and sum(piece.area for piece in pieces) == load.area:
        return
    tp = load.topic_partition
    wanted, given = Progress.of(0, load.pending), Progress.of(0, pieces)
    for piece in wanted.minus(given)[:1]:
        _refuse(tp, f"{piece} are pending, but no task reads them")
    for piece in given.minus(wanted)[:1]:
        _refuse(tp, f"{piece} are read, but they are not pending")
    _refuse(tp, f"{_read_twice(slices)[0]} are read by two tasks")


def _read_twice(slices: Sequence[Slice]) -> list[Rectangle]:
    """The overlap of any two of some slices."""
    before = Progress.at(0)
    twice: list[Rectangle] = []
    for slice_ in slices:
        after = before.commit(slice_.rectangles)
        new = Progress.of(0, after.minus(before))
        twice += Progress.of(0, slice_.rectangles).minus(new)
        before = after
    return twice


def _are_stacked(slices: Sequence[Slice], whole: Rectangle) -> bool:
    """True if slices, in their order, are stacked to a rectangle. This is the fast path."""
    lo, bounds = whole.hashes.lo, (whole.offsets.start, whole.offsets.end)
    for slice_ in slices:
        for stripe in slice_.stripes:
            if stripe.hashes.lo != lo or stripe.bounds != bounds:
                return False
            lo = stripe.hashes.hi
    return lo == whole.hashes.hi


def _check_partitions(
    answer: Mapping[TopicPartition, Sequence[HashRange]], loads: Sequence[PartitionLoad]
) -> None:
    """Check that an assignor has answered for the partitions that it was asked about."""
    if not isinstance(answer, Mapping):
        raise PlanError(
            "the range assignor must return a mapping of partitions to hash ranges, and returned "
            f"{_shown(answer)}"
        )
    asked = {load.topic_partition for load in loads}
    missing = sorted(asked - answer.keys())
    if missing:
        _refuse(missing[0], "the range assignor gave it no ranges")
    surplus = [tp for tp in answer if tp not in asked]
    if surplus:
        raise PlanError(
            f"the range assignor gave ranges to {_shown(surplus[0])}, which it was not asked about"
        )


def _checked_tiling(tp: TopicPartition, ranges: Sequence[HashRange]) -> tuple[HashRange, ...]:
    """Check that ranges tile the hash space, and sort them."""
    if not isinstance(ranges, Sequence) or not all(isinstance(one, HashRange) for one in ranges):
        _refuse(tp, f"wanted hash ranges of the range assignor, found {_shown(ranges)}")
    tiling = tuple(sorted(ranges))
    done = 0
    for hashes in tiling:
        if hashes.lo > done:
            _refuse(tp, f"no range of the range assignor has the hashes [{done},{hashes.lo})")
        if hashes.lo < done:
            both = min(done, hashes.hi)
            _refuse(tp, f"two ranges of the range assignor have the hashes [{hashes.lo},{both})")
        done = hashes.hi
    if done < HASH_SPACE:
        _refuse(tp, f"no range of the range assignor has the hashes [{done},{HASH_SPACE})")
    return tiling


def _refuse(tp: TopicPartition, what: str) -> NoReturn:
    raise PlanError(f"the plan of {tp} cannot be used: {what}")


def _shown(value: object) -> str:
    return shown(value, 100)
