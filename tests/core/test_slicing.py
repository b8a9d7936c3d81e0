"""Plans against plain sets of (offset, cell), Spark's numbers, and assignors that break laws."""

import math
import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.assignment import RANGE_ASSIGNORS, lag_weighted, round_robin
from kshare.core.hashing import ALL_HASHES, HASH_SPACE, WHOLE, HashRange, split
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Slice, TopicPartition
from kshare.core.region import Rectangle
from kshare.core.slicing import (
    PartitionLoad,
    RangeAssignor,
    RangeObservation,
    RangeRequest,
    check_plan,
    plan_by_key,
    plan_by_offset,
    plan_ranges,
)
from kshare.errors import PlanError
from tests.support.cells import CELLS, CUTS, END, cells_of, pieces, progresses, tally

HALF = HASH_SPACE // 2
LOW, HIGH = HashRange(0, HALF), HashRange(HALF, HASH_SPACE)
T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


def at_cuts(seed: int) -> RangeAssignor:
    """An assignor whose ranges begin and end at some of the cuts, in any order."""

    def assign(request: RangeRequest) -> dict[TopicPartition, list[HashRange]]:
        chance = random.Random(seed)
        answer = {}
        for load in request.loads:
            inner = [cut for cut in CUTS[1:-1] if chance.random() < 0.5]
            ranges = [HashRange(lo, hi) for lo, hi in pairwise([0, *inner, HASH_SPACE])]
            answer[load.topic_partition] = chance.sample(ranges, len(ranges))
        return answer

    return assign


def answering(*ranges: HashRange) -> RangeAssignor:
    """An assignor with one answer for everyone."""
    return lambda request: {load.topic_partition: ranges for load in request.loads}


def level(place: TopicPartition, start: int, end: int, **more: Any) -> PartitionLoad:
    return PartitionLoad(*place, Progress.at(start).pending(end), **more)


def by_partition(slices: Sequence[Slice]) -> dict[TopicPartition, list[Slice]]:
    found: dict[TopicPartition, list[Slice]] = {}
    for slice_ in slices:
        found.setdefault(TopicPartition(slice_.topic, slice_.partition), []).append(slice_)
    return found


def check_tiles(loads: Sequence[PartitionLoad], slices: Sequence[Slice]) -> None:
    """The law, with plain sets."""
    planned = by_partition(slices)
    for load in loads:
        read = [piece for s in planned.pop(load.topic_partition, []) for piece in s.rectangles]
        assert tally(read) == sorted(cells_of(load.pending))
    assert not planned


def loads_of(*, allowed: bool = False) -> st.SearchStrategy[list[PartitionLoad]]:
    """Loads of several partitions, uneven ones too."""

    @st.composite
    def one(draw: st.DrawFn) -> tuple[tuple[Any, ...], tuple[HashRange, ...] | None]:
        progress = draw(progresses())
        end = draw(st.integers(0, END))
        if not allowed or draw(st.booleans()):
            return progress.pending(end), None
        chosen = sorted(draw(st.sets(st.integers(0, len(CELLS) - 1), min_size=1)))
        ranges = tuple(CELLS[cell] for cell in chosen)
        return progress.pending_of(end, ranges), ranges

    return st.dictionaries(st.sampled_from([T0, T1, T2, TopicPartition("a", 7)]), one()).map(
        lambda found: [PartitionLoad(*place, *parts) for place, parts in found.items()]
    )


# -- laws ----------------------------------------------------------------------------------------


@given(loads_of(allowed=True), st.integers(0, 99))
def test_slices_by_key_tile_the_pending_set(loads: list[PartitionLoad], seed: int) -> None:
    slices = plan_by_key(loads, at_cuts(seed), min_tasks=None, key_ranges=None)
    check_tiles(loads, slices)
    check_plan(loads, slices)


@given(loads_of(), st.none() | st.integers(1, 40))
def test_slices_by_offset_tile_the_pending_set(
    loads: list[PartitionLoad], min_tasks: int | None
) -> None:
    slices = plan_by_offset(loads, min_tasks=min_tasks)
    check_tiles(loads, slices)
    check_plan(loads, slices)


@given(
    loads_of(),
    st.sampled_from(sorted(RANGE_ASSIGNORS)),
    st.none() | st.integers(1, 20),
    st.none() | st.integers(1, 5),
)
def test_the_built_in_assignors_plan_without_a_fault(
    loads: list[PartitionLoad], name: str, min_tasks: int | None, key_ranges: int | None
) -> None:
    assignor = RANGE_ASSIGNORS[name]
    slices = plan_by_key(loads, assignor, min_tasks=min_tasks, key_ranges=key_ranges)
    check_plan(loads, slices)
    backwards = plan_by_key(loads[::-1], assignor, min_tasks=min_tasks, key_ranges=key_ranges)
    assert backwards == slices


@given(loads_of(), st.integers(0, 99))
def test_a_key_is_in_one_slice(loads: list[PartitionLoad], seed: int) -> None:
    slices = plan_by_key(loads, at_cuts(seed), min_tasks=None, key_ranges=None)
    for planned in by_partition(slices).values():
        seen: set[int] = set()
        for slice_ in planned:
            cells = {cell for _, cell in cells_of(slice_.rectangles)}
            assert not cells & seen
            seen |= cells


@given(loads_of(), st.integers(1, 40))
def test_planning_by_offset_is_deterministic_and_in_order(
    loads: list[PartitionLoad], min_tasks: int
) -> None:
    slices = plan_by_offset(loads, min_tasks=min_tasks)
    assert plan_by_offset(loads[::-1], min_tasks=min_tasks) == slices
    order = [(s.topic, s.partition, s.offsets.start) for s in slices]
    assert order == sorted(order)


@given(loads_of(), st.integers(0, 99), st.data())
def test_check_plan_finds_any_fault(loads: list[PartitionLoad], seed: int, data: Any) -> None:
    """Each change that makes another multiset of a plan is a fault, and no other is."""
    slices = list(plan_by_key(loads, at_cuts(seed), min_tasks=None, key_ranges=None))
    more = st.builds(
        lambda tp, found: Slice(tp.topic, tp.partition, tuple(found)),
        st.sampled_from([T0, T1]),
        pieces(2, min_size=1),
    )
    kept = data.draw(st.lists(st.sampled_from(slices), max_size=6)) if slices else []
    plan = data.draw(st.sampled_from([slices, slices[1:], [*slices, *kept], kept]))
    if data.draw(st.booleans()):
        plan = [*plan, data.draw(more)]
    try:
        check_tiles(loads, plan)
    except AssertionError:
        with pytest.raises(PlanError):
            check_plan(loads, plan)
    else:
        check_plan(loads, plan)


# -- Spark's numbers -----------------------------------------------------------------------------


def get_ranges(sizes: Sequence[int], wanted: int | None) -> list[list[int]]:
    """The sizes of ``KafkaOffsetRangeCalculator.getRanges`` of Apache Spark 4.2, by partition."""
    if wanted is None or len(sizes) >= wanted:
        return [[size] for size in sizes]

    def part_count(size: int, total: int, least: int) -> int:
        return max(math.floor(size / total * least + 0.5), 1)

    small = [part_count(size, sum(sizes), wanted) == 1 for size in sizes]
    rest = sum(size for size, is_small in zip(sizes, small, strict=True) if not is_small)
    found = []
    for size, is_small in zip(sizes, small, strict=True):
        parts = 1 if is_small else part_count(size, rest, max(wanted - sum(small), 1))
        remaining, cut = size, []
        for part in range(parts):
            cut.append(remaining // (parts - part))
            remaining -= cut[-1]
        found.append([size for size in cut if size])
    return found


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=8), st.none() | st.integers(1, 60))
def test_the_cuts_are_those_of_spark(sizes: list[int], wanted: int | None) -> None:
    loads = [level(TopicPartition("t", n), 5, 5 + size) for n, size in enumerate(sizes)]
    slices = plan_by_offset(loads, min_tasks=wanted)
    found = [[len(s.offsets) for s in part] for part in by_partition(slices).values()]
    assert found == get_ranges(sizes, wanted)


@pytest.mark.parametrize(
    ("sizes", "wanted", "cuts"),
    [
        ([100, 100], None, [[100], [100]]),
        ([100, 100], 2, [[100], [100]]),
        ([5], 3, [[1, 2, 2]]),
        ([1, 1], 6, [[1], [1]]),  # no more parts than offsets
        ([1, 100, 1], 6, [[1], [25, 25, 25, 25], [1]]),
        ([5, 20], 3, [[5], [10, 10]]),
    ],
)
def test_examples_of_spark(sizes: list[int], wanted: int | None, cuts: list[list[int]]) -> None:
    assert get_ranges(sizes, wanted) == cuts
    loads = [level(TopicPartition("t", n), 0, size) for n, size in enumerate(sizes)]
    slices = plan_by_offset(loads, min_tasks=wanted)
    assert [[len(s.offsets) for s in p] for p in by_partition(slices).values()] == cuts


def test_an_uneven_partition_is_cut_by_offset_from_its_first_to_its_last() -> None:
    reached = Progress.of(0, [Rectangle(OffsetRange(0, 10), LOW)])
    load = PartitionLoad(*T0, reached.pending(20))
    slices = plan_by_offset([load], min_tasks=2)
    assert [s.rectangles for s in slices] == [
        (Rectangle(OffsetRange(0, 10), HIGH),),
        (Rectangle(OffsetRange(10, 20), WHOLE),),
    ]


def test_a_part_without_pending_work_is_no_slice() -> None:
    first, last = (Rectangle(OffsetRange(at, at + 1), WHOLE) for at in (0, 99))
    slices = plan_by_offset([PartitionLoad(*T0, (first, last))], min_tasks=4)
    assert [s.rectangles for s in slices] == [(first,), (last,)]


# -- ranges --------------------------------------------------------------------------------------


def test_ranges_that_the_user_made_win() -> None:
    asked: list[RangeRequest] = []

    def assign(request: RangeRequest) -> Mapping[TopicPartition, Sequence[HashRange]]:
        asked.append(request)
        return round_robin(request)

    mine = (HashRange(5, 7), HashRange(9, HALF))
    loads = [
        level(T2, 0, 5),
        PartitionLoad(*T0, Progress.at(0).pending_of(9, mine), fixed_ranges=mine),
        level(T1, 3, 3),
    ]
    ranges = plan_ranges(loads, assign, min_tasks=6, key_ranges=3)
    assert ranges == {T0: mine, T2: split(WHOLE, 4)}
    assert list(ranges) == [T0, T2]
    assert asked == [RangeRequest((loads[0],), min_tasks=4, key_ranges=3)]


def test_an_assignor_that_is_not_needed_is_not_asked() -> None:
    def never(_: RangeRequest) -> Any:
        raise AssertionError

    assert plan_ranges([level(T0, 5, 5)], never, min_tasks=3, key_ranges=None) == {}
    load = level(T0, 0, 5, fixed_ranges=(LOW, HIGH))
    slices = plan_by_key([load], never, min_tasks=1, key_ranges=8)
    assert [s.hashes for s in slices] == [LOW, HIGH]


def test_what_the_assignor_is_asked_without_wishes() -> None:
    def assign(request: RangeRequest) -> dict[TopicPartition, tuple[HashRange, ...]]:
        assert (request.min_tasks, request.key_ranges) == (0, 1)
        assert [load.topic_partition for load in request.loads] == [T0, T1]
        return dict.fromkeys([T0, T1], (HIGH, LOW))

    ranges = plan_ranges(
        [level(T1, 0, 5), level(T0, 0, 5)], assign, min_tasks=None, key_ranges=None
    )
    assert ranges == {T0: (LOW, HIGH), T1: (LOW, HIGH)}


def test_a_range_without_pending_work_has_no_slice() -> None:
    reached = Progress.of(0, [Rectangle(OffsetRange(0, 10), LOW)])
    load = PartitionLoad(*T0, reached.pending(10))
    (slice_,) = plan_by_key([load], answering(LOW, HIGH), min_tasks=None, key_ranges=None)
    assert slice_ == Slice("t", 0, (Rectangle(OffsetRange(0, 10), HIGH),))


def test_a_partition_in_two_loads_is_refused() -> None:
    loads = [level(T0, 0, 5), level(T1, 0, 5), level(T0, 5, 9)]
    with pytest.raises(ValueError, match="t-0 is in two loads"):
        plan_by_key(loads, round_robin, min_tasks=None, key_ranges=None)
    with pytest.raises(ValueError, match="t-0 is in two loads"):
        plan_by_offset(loads, min_tasks=None)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (None, "must return a mapping of partitions to hash ranges, and returned None"),
        ([], "must return a mapping"),
        ({T0: ALL_HASHES}, "the plan of t-1 cannot be used: the range assignor gave it no ranges"),
        ({T0: ALL_HASHES, T1: ALL_HASHES, T2: ALL_HASHES}, "partition=2.*was not asked about"),
        ({T0: ALL_HASHES, T1: ()}, rf"t-1 .*no range of .* has the hashes \[0,{HASH_SPACE}\)"),
        ({T0: (LOW,), T1: ALL_HASHES}, rf"t-0 .*no range .* hashes \[{HALF},{HASH_SPACE}\)"),
        ({T0: (HIGH,), T1: ALL_HASHES}, rf"t-0 .*no range .* the hashes \[0,{HALF}\)"),
        (
            {T0: ALL_HASHES, T1: (HashRange(0, 7), HashRange(9, HASH_SPACE))},
            r"t-1 .*no range of the range assignor has the hashes \[7,9\)",
        ),
        (
            {T0: ALL_HASHES, T1: (HashRange(0, 9), HashRange(7, HASH_SPACE))},
            r"t-1 .*two ranges of the range assignor have the hashes \[7,9\)",
        ),
        ({T0: (LOW, WHOLE), T1: ALL_HASHES}, rf"t-0 .*two ranges .* hashes \[0,{HALF}\)"),
        ({T0: 5, T1: ALL_HASHES}, "t-0 .*wanted hash ranges of the range assignor, found 5"),
        ({T0: ((0, HASH_SPACE),), T1: ALL_HASHES}, "t-0 .*wanted hash ranges"),
    ],
)
def test_what_an_assignor_must_not_answer(answer: Any, fault: str) -> None:
    loads = [level(T0, 0, 5), level(T1, 0, 5)]
    with pytest.raises(PlanError, match=fault):
        plan_ranges(loads, lambda _: answer, min_tasks=None, key_ranges=None)


def test_plain_tuples_are_partitions_too() -> None:
    ranges = plan_ranges(
        [level(T0, 0, 5)],
        lambda _: {("t", 0): [WHOLE]},  # type: ignore[dict-item]
        min_tasks=None,
        key_ranges=None,
    )
    assert ranges == {T0: ALL_HASHES}


# -- faults of plans -----------------------------------------------------------------------------


def slice_of(place: TopicPartition, start: int, end: int, hashes: HashRange = WHOLE) -> Slice:
    return Slice(*place, (Rectangle(OffsetRange(start, end), hashes),))


@pytest.mark.parametrize(
    ("slices", "fault"),
    [
        (
            [],
            r"t-0 .*offsets \[10,20\) x hashes \[0,9223372036854775808\) are pending, but no task",
        ),
        ([slice_of(T0, 10, 20, LOW)], rf"t-0 .*hashes \[{HALF},{HASH_SPACE}\) are pending"),
        ([slice_of(T0, 10, 15), slice_of(T0, 16, 20)], r"t-0 .*offsets \[15,16\) .* are pending"),
        ([slice_of(T0, 10, 21)], r"t-0 .*offsets \[20,21\) .*are read, but they are not pending"),
        ([slice_of(T0, 10, 16), slice_of(T0, 15, 20)], r"offsets \[15,16\) .*read by two tasks"),
        (
            [slice_of(T0, 10, 20, LOW), slice_of(T0, 10, 20, HIGH), slice_of(T0, 12, 13, LOW)],
            rf"t-0 .*offsets \[12,13\) x hashes \[0,{HALF}\) are read by two tasks",
        ),
        ([slice_of(T0, 10, 20), slice_of(T1, 3, 4)], r"t-1 .*offsets \[3,4\) .*nothing of it is"),
    ],
)
def test_check_plan_names_the_fault(slices: list[Slice], fault: str) -> None:
    with pytest.raises(PlanError, match=fault):
        check_plan([level(T0, 10, 20), level(T2, 5, 5)], slices)


# -- loads ---------------------------------------------------------------------------------------


@given(progresses(), st.integers(0, END))
def test_the_size_of_a_load(progress: Progress, end: int) -> None:
    load = PartitionLoad("t", 0, progress.pending(end))
    assert load.size == len({offset for offset, _ in cells_of(load.pending)})
    widths = [CELLS[cell].width for _, cell in cells_of(load.pending)]
    assert load.area == sum(widths)


@given(pieces())
def test_a_load_is_one_value_for_one_set(given_: list[Rectangle]) -> None:
    load = PartitionLoad("t", 0, tuple(given_))
    assert len(given_) == 1 or load == PartitionLoad("t", 0, (*reversed(given_), *given_))
    assert load.topic_partition == T0


def test_more_is_pending_where_more_ranges_are() -> None:
    loads = [level(T0, 0, 10), level(T1, 0, 1000)]
    ranges = plan_ranges(loads, lag_weighted, min_tasks=10, key_ranges=None)
    assert (len(ranges[T0]), len(ranges[T1])) == (1, 9)


def test_observations_reach_the_assignor() -> None:
    seen = RangeObservation(WHOLE, 5, 9, 1.5, (3, 3))

    def assign(request: RangeRequest) -> dict[TopicPartition, tuple[HashRange, ...]]:
        assert request.loads[0].observed == (seen,)
        return {T0: ALL_HASHES}

    assert plan_ranges([level(T0, 0, 5, observed=(seen,))], assign, min_tasks=1, key_ranges=1)
