"""Where batches begin and end: laws, by sets of (offset, cell)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.batch import (
    advanced,
    batch_ends,
    begin,
    implied_starts,
    is_idle,
    limit_ranges,
    limited_slices,
    needs_earliest,
    progress_after,
    slices_below,
    start_of,
    start_with_gaps,
    surely_read_whole,
    unwritten_starts,
    with_gaps,
    written_starts,
)
from kshare.core.checkpoint import BatchOffsets, RangeLimit, decode, encode
from kshare.core.hashing import ALL_HASHES, NO_HASHES, WHOLE, HashRange, KeyRanges
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle, Slice, TopicPartition
from kshare.core.tasks import PlannedSlice
from kshare.errors import CheckpointError
from tests.support.cells import CELLS, CUTS, END, Cells, cells_of, done, progresses, tally, within

T0, T1, T2 = (TopicPartition("t", n) for n in range(3))
SINGLE = (0, 1, CUTS[-2])
"""The hashes that are a cell of their own: these may be parked."""


@dataclass(frozen=True)
class Selected:
    """What a query reads: some ranges, without parked hashes."""

    ranges: tuple[HashRange, ...] = ALL_HASHES
    points: KeyRanges = NO_HASHES

    def readable(self, partition: TopicPartition, /) -> KeyRanges:
        return KeyRanges(self.ranges) - self.points

    def parked(self, partition: TopicPartition, /) -> KeyRanges:
        return self.points

    def unassigned(self, partition: TopicPartition, /) -> KeyRanges:
        return ALL_HASHES - self.ranges

    @property
    def cells(self) -> set[int]:
        """The cells that are readable."""
        return {cell for part in self.readable(T0) for cell in within(part)}


tilings = st.sets(st.sampled_from(CUTS[1:-1])).map(
    lambda cuts: tuple(
        HashRange(lo, hi)
        for lo, hi in zip([0, *sorted(cuts)], [*sorted(cuts), CUTS[-1]], strict=True)
    )
)


@st.composite
def selections(draw: st.DrawFn) -> Selected:
    ranges = tuple(part for part in draw(tilings) if draw(st.integers(0, 3))) or ALL_HASHES
    return Selected(ranges, KeyRanges.of_hashes(draw(st.frozensets(st.sampled_from(SINGLE)))))


def below(end: int, cells: set[int]) -> Cells:
    """All of some cells below an offset."""
    return {(offset, cell) for offset in range(end) for cell in cells}


# -- where it begins -----------------------------------------------------------------------------


@given(st.dictionaries(st.sampled_from([T0, T1, T2]), progresses()))
def test_a_start_with_gaps_is_written_down_by_a_batch_that_reads_nothing(
    starts: dict[TopicPartition, Progress],
) -> None:
    start = start_with_gaps(starts)
    assert start.started == {tp: progress.stable for tp, progress in starts.items()}
    if all(progress.is_level for progress in starts.values()):
        assert not start.progress  # as of any other start
        assert not start.limits
        assert not unwritten_starts(start, starts)
        return
    assert decode(encode(start)) == start
    assert unwritten_starts(start, starts) == starts
    # Batch 0 goes by what is known after the start, and says it in its own dict.
    batch = decode(encode(with_gaps(BatchOffsets({}, started=start.started), starts)))
    assert batch.progress == starts
    assert limited_slices(batch) == []
    assert not unwritten_starts(
        BatchOffsets(starts), starts
    )  # the next one has nothing more to say


offsets = st.dictionaries(st.sampled_from([T0, T1, T2]), st.integers(0, END))


@given(
    st.dictionaries(st.sampled_from([T0, T1, T2]), progresses()),
    offsets,
    offsets,
    st.fixed_dictionaries({tp: st.integers(0, END) for tp in (T0, T1, T2)}),
)
def test_every_partition_begins_somewhere_and_what_is_lost_is_told(
    reached: Mapping[TopicPartition, Progress],
    started: Mapping[TopicPartition, int],
    available: Mapping[TopicPartition, int],
    first: Mapping[TopicPartition, int],
) -> None:
    before = BatchOffsets(reached, started)
    asked = needs_earliest(before, reached, available)
    earliest = {tp: first[tp] for tp in asked}
    batch = begin(before, reached, available, earliest)
    assert batch.progress.keys() == available.keys()
    known = reached.keys() or started.keys()
    assert batch.new == {tp: first[tp] for tp in available if tp not in known}
    was_started = {} if reached else {tp: at for tp, at in started.items() if tp in available}
    assert batch.started == {**was_started, **batch.new}
    lost = {loss.partition for loss in batch.losses}
    for tp, progress in batch.progress.items():
        begun = reached[tp] if tp in reached else Progress(batch.started[tp])
        assert progress == begun or tp in lost
        if not begun.is_level and tp not in lost:
            assert not progress.pending(first[tp])
    assert known - available.keys() <= lost
    assert {tp for tp, offset in batch.new.items() if offset > 0} <= lost


def test_the_first_batch_carries_its_start() -> None:
    before = BatchOffsets({}, {T0: 5})
    assert needs_earliest(before, {}, [T0, T1]) == [T1]
    batch = begin(before, {}, {T0: 9, T1: 3}, {T1: 0})
    assert batch.progress == {T0: Progress(5), T1: Progress(0)}
    assert (batch.started, batch.new, batch.losses) == ({T0: 5, T1: 0}, {T1: 0}, ())


def test_later_batches_carry_only_what_is_new() -> None:
    before = BatchOffsets({T0: Progress(5)}, {T0: 2})
    batch = begin(before, {T0: Progress(5)}, {T0: 9, T1: 3}, {T1: 1})
    assert (batch.started, batch.new) == ({T1: 1}, {T1: 1})
    (loss,) = batch.losses
    assert loss.partition == T1


def never(partition: TopicPartition, offset: int) -> bool:
    return False


def always(partition: TopicPartition, offset: int) -> bool:
    return True


def test_where_a_partition_starts() -> None:
    before = BatchOffsets({T0: Progress(3)}, {T2: 8})
    reached = {T0: Progress(5), T1: Progress(1)}
    after = BatchOffsets({T0: Progress(9), T1: Progress(9)}, {T1: 4})
    assert start_of(T0, before, reached, after, {}, is_certain=never) == Progress(5)
    assert start_of(T1, before, reached, after, {}, is_certain=never) == Progress(4)
    assert start_of(T2, before, reached, after, {}, is_certain=always) == Progress(8)
    for start, is_certain in ((before, never), (BatchOffsets({}), always)):
        with pytest.raises(CheckpointError, match="planned by another source"):
            start_of(T2, start, {}, after, {}, is_certain=is_certain)


def test_a_partition_that_is_new_in_a_batch_of_sparks_source() -> None:
    before = BatchOffsets({T0: Progress(3)})
    after = BatchOffsets({tp: Progress(9) for tp in (T0, T1, T2)})
    assert implied_starts(before, before.progress, after) == [T1, T2]
    at = start_of(T1, before, before.progress, after, {T1: 2, T2: 0}, is_certain=never)
    assert at == Progress(2)
    # Of other batches, dicts and options say it.
    assert implied_starts(BatchOffsets({}, {T0: 3}), {}, after) == []
    said = BatchOffsets(after.progress, {T1: 0}, {T2: (RangeLimit(ALL_HASHES, 9, 1),)})
    assert implied_starts(before, before.progress, said) == []


# -- where it ends -------------------------------------------------------------------------------


@given(
    progresses(),
    st.integers(0, END),
    selections(),
    st.none() | st.integers(1, 2 * END),
    st.none() | st.integers(1, END),
    st.integers(1, 4),
)
def test_an_end_is_within_its_bounds(
    reached: Progress,
    available: int,
    selected: Selected,
    most: int | None,
    ahead: int | None,
    gaps: int,
) -> None:
    end = batch_ends(
        {T0: reached},
        {T0: available},
        selected,
        max_offsets=most,
        max_ahead=ahead,
        max_gaps=gaps,
    )[T0]
    readable = selected.readable(T0)
    assert reached.stable <= end <= max(available, reached.stable)
    if most is not None:
        assert end <= max(reached.front + most, reached.stable)
    slowest = reached.position_of(readable) if readable else reached.stable
    if ahead is not None:
        assert end <= max(slowest + ahead, reached.stable)
    behind = not reached.is_level and reached.pending_of(reached.front, readable)
    if reached.gaps >= gaps and behind:
        assert end <= reached.front
    if most is None and ahead is None and not (reached.gaps >= gaps and behind):
        assert end == max(available, reached.stable)


@pytest.mark.parametrize(
    ("reached", "selected", "end"),
    [
        (Progress.at(2), Selected(), 4),  # level: 2 ahead of the stable offset
        (Progress.of(2, [Rectangle(OffsetRange(4, 6), CELLS[0])]), Selected(), 4),
        (Progress.of(2, [Rectangle(OffsetRange(2, 3), WHOLE)]), Selected(), 5),
        # What lags is not readable: it stops nobody.
        (Progress.of(2, [Rectangle(OffsetRange(2, 6), CELLS[0])]), Selected((CELLS[0],)), 8),
        (Progress.of(2, [Rectangle(OffsetRange(2, 6), CELLS[1])]), Selected((CELLS[0],)), 4),
        (
            Progress.of(2, [Rectangle(OffsetRange(2, 6), CELLS[1])]),
            Selected((CELLS[0],), KeyRanges.of_hashes([0])),
            4,
        ),
    ],
)
def test_how_far_ahead_of_the_slowest_range(
    reached: Progress, selected: Selected, end: int
) -> None:
    ends = batch_ends(
        {T0: reached}, {T0: END}, selected, max_offsets=None, max_ahead=2, max_gaps=100
    )
    assert ends == {T0: end}


def test_with_too_many_gaps_the_ranges_that_lag_go_first() -> None:
    reached = Progress.of(2, [Rectangle(OffsetRange(2, 6), CELLS[0])])
    ends = [
        batch_ends(
            {T0: reached}, {T0: END}, Selected(), max_offsets=None, max_ahead=None, max_gaps=most
        )
        for most in (1, 2)
    ]
    assert ends == [{T0: 6}, {T0: END}]


@given(progresses(), st.integers(0, END), selections())
def test_a_batch_without_limits_reads_all_but_parked_keys(
    reached: Progress, end: int, selected: Selected
) -> None:
    after = advanced({T0: reached}, {T0: end}, selected)[T0]
    parked = {cell for part in selected.points for cell in within(part)}
    read = below(end, set(range(len(CELLS))) - parked)
    unassigned = {cell for part in selected.unassigned(T0) for cell in within(part)}
    assert done(after) == done(reached) | read | below(end, unassigned)


@given(progresses(), st.integers(0, END), selections(), tilings, st.data())
def test_limits_tile_what_is_pending_and_say_it_completely(
    reached: Progress,
    end: int,
    selected: Selected,
    ranges: Sequence[HashRange],
    data: st.DataObject,
) -> None:
    parts = [(part, data.draw(st.integers(1, 9))) for part in ranges]
    limited = limit_ranges(T0, reached, end, parts, selected.points)
    planned = [planned for _, planned in limited]
    pieces = [piece for each in planned for piece in each.slice.rectangles]
    readable = {cell for part in KeyRanges(ranges) - selected.points for cell in within(part)}
    assert cells_of(pieces) == below(end, readable) - done(reached)
    assert len(tally(pieces)) == len(cells_of(pieces))  # nothing is read twice
    limits = tuple(limit for limit, _ in limited)
    offsets = BatchOffsets({T0: reached}, limits={T0: limits} if limits else {})
    assert limited_slices(decode(encode(offsets))) == planned  # planned again as it was
    # Cut at any offset, they are what limits that end there would be.
    ends = {each.slice: data.draw(st.integers(0, each.slice.offsets.end)) for each in planned}
    lower = [
        replace(limit, end=ends[each.slice]) for limit, each in zip(limits, planned, strict=True)
    ]
    cut = limited_slices(BatchOffsets({T0: reached}, limits={T0: tuple(lower)}))
    assert slices_below(planned, ends) == [PlannedSlice(each.slice) for each in cut]


@given(progresses(), st.integers(0, END), selections(), tilings, st.data())
def test_what_tasks_have_read_is_processed_and_nothing_else(
    reached: Progress,
    end: int,
    selected: Selected,
    ranges: Sequence[HashRange],
    data: st.DataObject,
) -> None:
    assigned = [(part, 1) for part in ranges if part in tuple(selected.ranges)]
    limited = limit_ranges(T0, reached, end, assigned, selected.points)
    read = [
        (slice_, data.draw(st.integers(slice_.offsets.start, slice_.offsets.end)))
        for slice_ in (planned.slice for _, planned in limited)
    ]
    after = progress_after({T0: reached}, read, selected.unassigned)
    expected = done(reached)
    for slice_, stopped in read:
        expected |= {cell for cell in cells_of(slice_.rectangles) if cell[0] < stopped}
    if read:
        top = max(slice_.offsets.end for slice_, _ in read)
        unassigned = {cell for part in selected.unassigned(T0) for cell in within(part)}
        assert done(after[T0]) == expected | below(top, unassigned)
    else:
        assert after == {}


def test_a_batch_with_limits_that_end_nothing_reads_what_one_without_does() -> None:
    reached = Progress.of(2, [Rectangle(OffsetRange(4, 6), CELLS[0])])
    selected = Selected(points=KeyRanges.of_hashes([1]))
    limited = limit_ranges(T0, reached, END, [(WHOLE, 1000)], selected.points)
    read = [(planned.slice, planned.slice.offsets.end) for _, planned in limited]
    after = progress_after({T0: reached}, read, selected.unassigned)
    assert after == advanced({T0: reached}, {T0: END}, selected)


def test_a_range_of_parked_keys_alone_has_no_limit() -> None:
    parked = KeyRanges.of_hashes([0])
    rest = ALL_HASHES - parked
    ranges = [(CELLS[0], 5), *((part, 5) for part in rest)]
    limited = limit_ranges(T0, Progress.at(0), END, ranges, parked)
    assert [limit.hashes for limit, _ in limited] == [(part,) for part in rest]


def test_a_piece_that_a_task_did_not_reach_is_pending() -> None:
    reached = Progress.of(0, [Rectangle(OffsetRange(2, 4), WHOLE)])
    ((_, planned),) = limit_ranges(T0, reached, END, [(WHOLE, 1000)], NO_HASHES)
    assert progress_after({T0: reached}, [(planned.slice, 1)], lambda _: NO_HASHES) == {
        T0: Progress.of(1, [Rectangle(OffsetRange(2, 4), WHOLE)])
    }


@given(progresses(), st.integers(0, END), st.booleans())
def test_a_start_is_said_if_another_planner_could_find_another_one(
    after: Progress, offset: int, is_first: bool
) -> None:
    reached = {} if is_first else {T1: Progress.at(3)}
    said = written_starts({T0: offset}, reached, {T0: after})
    is_found = offset == 0 and after.is_level and not is_first
    assert said == ({} if is_found else {T0: offset})


@given(progresses(), progresses())
def test_a_batch_is_idle_if_it_reads_nothing_and_nothing_is_to_be_written(
    reached: Progress, after: Progress
) -> None:
    """Of the last batch, the ends of its limits are: they have to be found in the log."""
    offsets = BatchOffsets({T0: after})
    limit = RangeLimit(KeyRanges(ALL_HASHES), END, 1)
    assert is_idle({T0: reached}, (), offsets) == (reached == after)
    assert not is_idle({T0: reached, T1: reached}, (), offsets)
    assert not is_idle({T0: after}, (), BatchOffsets({T0: after}, limits={T0: (limit,)}))
    planned = PlannedSlice(Slice(*T0, (Rectangle(OffsetRange(0, 1), WHOLE),)), 1)
    assert not is_idle({T0: after}, [planned], offsets)


@given(st.integers(1, END), st.none() | st.integers(1, 2 * END))
def test_a_slice_with_no_more_offsets_than_records_is_read_whole(
    count: int, records: int | None
) -> None:
    slice_ = Slice(*T0, (Rectangle(OffsetRange(5, 5 + count), WHOLE),))
    whole = surely_read_whole(PlannedSlice(slice_, records))
    assert whole == (records is None or count <= records)
