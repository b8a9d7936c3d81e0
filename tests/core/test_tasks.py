"""What is sent to the executors.

Which tasks read the same offsets.

Packing: every slice in one task, tasks of about equal work, partitions together.
"""

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import WHOLE, split
from kshare.core.offsets import OffsetRange, from_pairs
from kshare.core.progress import Slice
from kshare.core.region import Rectangle
from kshare.core.tasks import (
    GROUP_MAX,
    SMALL_SECONDS,
    FetchGroup,
    PlannedSlice,
    Task,
    Ticket,
    TicketId,
    fetch_groups,
    pack,
    pack_small,
    records_of,
)

SLICE = Slice("t", 3, (Rectangle(OffsetRange(0, 9), WHOLE),))
TICKET = Ticket("planner", 4711, b"k" * 32, "batch", 5, hold=True)


def test_a_task_travels() -> None:
    group = FetchGroup("query", "batch", 0, 1, ((0, 9, 2),))
    task = Task((PlannedSlice(SLICE, 7, TICKET, group), PlannedSlice(SLICE)))
    assert pickle.loads(pickle.dumps(task)) == task


def test_a_ticket_shows_no_secret() -> None:
    assert TICKET.id == TicketId("batch", 5)
    for text in (repr(TICKET), str(TICKET), repr(PlannedSlice(SLICE, ticket=TICKET))):
        assert "kkkk" not in text
        assert TICKET.key.hex() not in text


RANGES = st.tuples(st.integers(0, 40), st.integers(1, 20)).map(lambda p: (p[0], p[0] + p[1]))


@given(st.lists(st.lists(RANGES, min_size=1, max_size=3), max_size=8))
def test_tasks_are_a_group_if_two_read_an_offset(tasks: list[list[tuple[int, int]]]) -> None:
    sets = [from_pairs(*zip(*ranges, strict=True)) for ranges in tasks]
    found = fetch_groups("q", "b", sets)
    read = [{n for start, end in ranges for n in range(start, end)} for ranges in tasks]
    parts = [(min(each), max(each) + 1) for each in read]
    if not any(one & other for i, one in enumerate(read) for other in read[:i]):
        assert found == [None] * len(parts)
        return
    for number, group in enumerate(found):
        assert group is not None
        assert (group.member, group.size) == (number, len(parts))
        assert group.end == parts[number][1]
        assert [part[:2] for part in group.ranges for _ in range(part[2])] == parts


def test_groups_have_a_limit() -> None:
    found = fetch_groups("q", "b", [(0, 9)] * (2 * GROUP_MAX + 1))
    assert [group and (group.number, group.member) for group in found] == [
        *((number, member) for number in (0, 1) for member in range(GROUP_MAX)),
        None,
    ]
    assert found[0] is not None
    assert found[0].ranges == ((0, 9, GROUP_MAX),)
    with pytest.raises(ValueError, match="has no member 256"):
        _ = replace(found[0], member=GROUP_MAX).end


QUARTERS = split(WHOLE, 4)
weights = st.floats(0.001, 50.0)


def slice_of(partition: int, part: int = 0, offsets: int = 100, parts: int = 4) -> Slice:
    hashes = split(WHOLE, parts)[part]
    return Slice("t", partition, (Rectangle(OffsetRange(0, offsets), hashes),))


@st.composite
def work(draw: st.DrawFn) -> tuple[list[Slice], list[float]]:
    """Slices of some partitions, and what each weighs."""
    names = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), unique=True))
    return [slice_of(*name) for name in names], draw(
        st.lists(weights, min_size=len(names), max_size=len(names))
    )


@given(work(), st.integers(1, 9))
def test_each_slice_is_in_one_task(given_: tuple[list[Slice], list[float]], tasks: int) -> None:
    slices, each = given_
    packed = pack(slices, each, tasks)
    assert sorted(number for numbers in packed for number in numbers) == [*range(len(slices))]
    assert len(packed) == min(tasks, len(packed))
    assert len(packed) <= tasks
    assert all(packed)
    assert [*packed] == sorted(packed)
    assert pack(slices, each, tasks) == packed


@given(work(), st.integers(1, 9))
def test_no_task_has_much_more_than_its_share(
    given_: tuple[list[Slice], list[float]], tasks: int
) -> None:
    """Greedily, the fullest task was the emptiest before its last item, which is no more than a
    share, or a single slice."""
    slices, each = given_
    share = sum(each) / tasks
    for numbers in pack(slices, each, tasks):
        load = sum(each[number] for number in numbers)
        assert load <= share + max(share, *(each[number] for number in numbers)) + 1e-9


@given(st.integers(1, 40), st.integers(1, 9))
def test_equal_slices_are_dealt_evenly(count: int, tasks: int) -> None:
    packed = pack([slice_of(number) for number in range(count)], [1.0] * count, tasks)
    sizes = [len(numbers) for numbers in packed]
    assert max(sizes) - min(sizes) <= 1
    assert len(packed) == min(count, tasks)


def test_a_partitions_slices_stay_together() -> None:
    slices = [slice_of(partition, part) for part in range(4) for partition in range(4)]
    packed = pack(slices, [1.0] * 16, 4)
    assert [{slices[number].partition for number in numbers} for numbers in packed] == [
        {0},
        {1},
        {2},
        {3},
    ]


def test_a_partition_that_is_too_much_is_divided() -> None:
    slices = [slice_of(0, part) for part in range(4)] + [slice_of(1)]
    packed = pack(slices, [1.0, 1.0, 1.0, 1.0, 0.5], 2)
    assert sorted(map(len, packed)) == [2, 3]


@given(work())
def test_small_slices_are_put_together_and_no_others(
    given_: tuple[list[Slice], list[float]],
) -> None:
    slices, each = given_
    seconds = [weight / 100 for weight in each]
    packed = pack_small(slices, seconds)
    assert sorted(number for numbers in packed for number in numbers) == [*range(len(slices))]
    for numbers in packed:
        if len(numbers) > 1:
            assert all(seconds[number] <= SMALL_SECONDS for number in numbers)
    small = sum(each_ for each_ in seconds if each_ <= SMALL_SECONDS)
    tasks = [n for n in packed if all(seconds[number] <= SMALL_SECONDS for number in n)]
    assert len(tasks) <= small / SMALL_SECONDS + 1


def test_records_of_a_slice() -> None:
    assert records_of(slice_of(0, offsets=400)) == 100
    assert records_of(slice_of(0, offsets=400), max_records=7) == 7
    assert records_of(slice_of(0, offsets=1)) == 1
