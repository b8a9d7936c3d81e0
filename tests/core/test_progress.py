"""Progress against plain sets of (offset, cell), and the reference texts' examples by name."""

import pickle
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import HASH_SPACE, WHOLE, HashRange
from kshare.core.offsets import OffsetRange, from_pairs
from kshare.core.progress import Progress, Rectangle, Slice, Stripe, TopicPartition
from kshare.core.region import Region, canonical, stripes
from tests.support.cells import (
    CELLS,
    END,
    EVERYTHING,
    Cells,
    cells_of,
    done,
    hash_ranges,
    of_stripes,
    pieces,
    progresses,
    tally,
    within,
)

HALF = HASH_SPACE // 2
LOW, HIGH = HashRange(0, HALF), HashRange(HALF, HASH_SPACE)
stables = st.integers(0, END)


def ic(*ranges: tuple[int, int]) -> list[Rectangle]:
    """Individual commits as the reference texts write them, both ends included."""
    return [Rectangle(OffsetRange(first, last + 1), WHOLE) for first, last in ranges]


def below(offset: int) -> Cells:
    return {cell for cell in EVERYTHING if cell[0] < offset}


def check(progress: Progress) -> None:
    """What its docstring promises."""
    if progress.is_level:
        assert progress.stripes == ()
        return
    assert (progress.stripes[0].hashes.lo, progress.stripes[-1].hashes.hi) == (0, HASH_SPACE)
    for one, two in pairwise(progress.stripes):
        assert one.hashes.hi == two.hashes.lo
        assert one.bounds != two.bounds
    assert all(progress.stable <= s.bounds[0] for s in progress.stripes if s.bounds)
    assert any(not s.bounds or s.bounds[0] > progress.stable for s in progress.stripes)
    assert any(s.bounds for s in progress.stripes)


# -- laws ----------------------------------------------------------------------------------------


@given(stables, pieces())
def test_a_commit_is_a_union(stable: int, given_: list[Rectangle]) -> None:
    reached = Progress.at(stable).commit(given_)
    check(reached)
    assert done(reached) == below(stable) | cells_of(given_)


@given(stables, pieces(8), st.integers(0, 99))
def test_order_and_repetition_of_commits_change_nothing(
    stable: int, given_: list[Rectangle], seed: int
) -> None:
    chance = random.Random(seed)
    again = chance.sample(given_, len(given_)) + [p for p in given_ if chance.random() < 0.5]
    one_by_one = Progress.at(stable)
    for piece in again:
        one_by_one = one_by_one.commit([piece])
    assert one_by_one == Progress.of(stable, given_)
    assert hash(one_by_one) == hash(Progress.of(stable, given_))


@given(progresses(), pieces(), stables)
def test_the_stable_offset_never_goes_back(
    progress: Progress, given_: list[Rectangle], offset: int
) -> None:
    assert progress.commit(given_).stable >= progress.stable
    assert progress.advance(offset).stable >= max(progress.stable, offset)
    assert progress.commit(given_).front >= progress.front


@given(progresses())
def test_the_stable_offset_is_the_highest_below_which_all_is_processed(progress: Progress) -> None:
    whole = done(progress)
    assert below(progress.stable) <= whole
    assert progress.stable >= END or not below(progress.stable + 1) <= whole


@given(progresses(), progresses())
def test_equal_sets_compare_equal(one: Progress, other: Progress) -> None:
    assert (one == other) == (done(one) == done(other))
    rebuilt = Progress.of(
        one.stable,
        [Rectangle(OffsetRange(n, n + 1), CELLS[c]) for n, c in done(one) if n >= one.stable],
    )
    assert rebuilt == one


@given(stables, pieces())
def test_the_constructor_is_canonical_too(stable: int, given_: list[Rectangle]) -> None:
    """Or two that are one set would compare unequal."""
    layers = [layer for piece in given_ for layer in stripes([piece])]
    made = Progress(stable, tuple(layers))
    check(made)
    assert made == Progress.of(stable, given_) == Progress.of_stripes(stable, layers)
    assert replace(made, stable=made.stable) == made
    with pytest.raises(ValueError, match="not an offset: -1"):
        Progress(-1, made.stripes)


@given(progresses())
def test_the_processed_part_is_one_set(progress: Progress) -> None:
    region = progress.region
    assert of_stripes(region.tiling) == done(progress)
    assert Progress.of_stripes(0, region.stripes) == progress
    assert Region.of(region.stripes) == region


@given(progresses(), stables)
def test_advance_is_a_commit_of_all_hashes(progress: Progress, offset: int) -> None:
    advanced = progress.advance(offset)
    check(advanced)
    assert done(advanced) == done(progress) | below(offset)


@given(progresses(), stables, hash_ranges())
def test_pending_is_what_is_not_processed(progress: Progress, end: int, hashes: HashRange) -> None:
    asked = {cell for cell in below(end) if cell[1] in within(hashes)}
    assert tally(progress.pending(end, hashes)) == sorted(asked - done(progress))
    assert tally(progress.pending(end)) == sorted(below(end) - done(progress))


@given(progresses(), stables, st.sets(st.integers(0, len(CELLS) - 1)))
def test_pending_of_several_ranges(progress: Progress, end: int, chosen: set[int]) -> None:
    hashes = [CELLS[cell] for cell in sorted(chosen)]
    asked = {cell for cell in below(end) if cell[1] in chosen}
    found = progress.pending_of(end, hashes)
    assert tally(found) == sorted(asked - done(progress))
    joined = progress.pending_of(end, [WHOLE]) if len(chosen) == len(CELLS) else found
    assert joined == found


@given(progresses(), stables)
def test_commits_of_what_is_pending_level_it(progress: Progress, end: int) -> None:
    top = max(end, progress.front)
    assert progress.commit(progress.pending(top)) == Progress.at(top)


@given(progresses(), progresses())
def test_minus(one: Progress, other: Progress) -> None:
    assert tally(one.minus(other)) == sorted(done(one) - done(other))
    assert one.minus(one) == ()
    assert other.commit(one.minus(other)) == other.commit(one.individual_commits).advance(
        one.stable
    )


@given(progresses(), progresses())
def test_union(one: Progress, other: Progress) -> None:
    assert done(one.union(other)) == done(one) | done(other)
    assert one.union(other) == other.union(one)
    assert one.union(other) == other.commit(one.minus(other))


@given(progresses(), st.sets(st.integers(0, len(CELLS) - 1), min_size=1))
def test_within(progress: Progress, chosen: set[int]) -> None:
    part = progress.within([CELLS[cell] for cell in sorted(chosen)])
    assert done(part) == {each for each in done(progress) if each[1] in chosen}
    assert progress.within([WHOLE]) == progress


@given(progresses(), hash_ranges())
def test_position(progress: Progress, hashes: HashRange) -> None:
    missing = [n for n, cell in EVERYTHING - done(progress) if cell in within(hashes)]
    assert progress.position(hashes) == min(missing, default=END)
    assert progress.position() == progress.stable


@given(progresses())
def test_front_and_gaps(progress: Progress) -> None:
    assert progress.front == max((n + 1 for n, _ in done(progress)), default=0)
    assert progress.gaps == sum(len(stripe.bounds) for stripe in progress.stripes) / 2
    assert bool(progress.gaps) != progress.is_level


@given(stables, pieces())
def test_of_stripes_takes_overlapping_layers(stable: int, given_: list[Rectangle]) -> None:
    assert Progress.of_stripes(stable, stripes(given_)) == Progress.of(stable, given_)


# -- many stripes, many hash ranges --------------------------------------------------------------

COLUMNS = 64
WIDTH = HASH_SPACE // COLUMNS
HEIGHTS = ((), (3, 4), (4, 6), (3, 4, 5, 6))


@st.composite
def many_stripes(draw: st.DrawFn) -> Progress:
    """About 24 stripes, cut at even columns."""
    rows = draw(st.lists(st.sampled_from(HEIGHTS), min_size=32, max_size=32))
    layers = [Stripe(columns(2 * i, 2 * i + 2), row) for i, row in enumerate(rows)]
    return Progress.of_stripes(3, layers)


@st.composite
def many_ranges(draw: st.DrawFn) -> list[HashRange]:
    """About 20 disjoint hash ranges, ascending, cut at any column; some are adjacent."""
    cut = draw(st.lists(st.booleans(), min_size=COLUMNS - 1, max_size=COLUMNS - 1))
    cuts = [0, *(at + 1 for at, is_cut in enumerate(cut) if is_cut), COLUMNS]
    parts = [columns(lo, hi) for lo, hi in pairwise(cuts)]
    asked = draw(st.lists(st.sampled_from((True, False, True)), min_size=COLUMNS, max_size=COLUMNS))
    return [part for part, is_asked in zip(parts, asked, strict=False) if is_asked] or parts


def columns(lo: int, hi: int) -> HashRange:
    return HashRange(lo * WIDTH, hi * WIDTH)


def by_column(given_: Sequence[Rectangle]) -> list[tuple[int, int]]:
    """What rectangles hold, as (offset, column), twice what two of them hold, ascending."""
    return sorted(
        (offset, column)
        for piece in given_
        for offset in range(piece.offsets.start, piece.offsets.end)
        for column in range(piece.hashes.lo // WIDTH, piece.hashes.hi // WIDTH)
    )


@given(many_stripes(), many_ranges(), st.integers(0, 8))
def test_of_many_stripes_and_ranges(progress: Progress, hashes: list[HashRange], end: int) -> None:
    asked = [c for part in hashes for c in range(part.lo // WIDTH, part.hi // WIDTH)]
    held = set(by_column(progress.individual_commits))
    missing = [
        (offset, column)
        for offset in range(progress.stable, 9)
        for column in asked
        if (offset, column) not in held
    ]
    found = progress.pending_of(end, hashes)
    assert by_column(found) == [cell for cell in missing if cell[0] < end]
    assert found == canonical(found)
    assert found == canonical(p for part in hashes for p in progress.pending(end, part))
    assert progress.position_of(hashes) == missing[0][0]
    assert progress.position_of(hashes) == min(map(progress.position, hashes))


class Counted(int):
    """A bound of a hash range, that counts how often any of them is compared."""

    compared: ClassVar[int] = 0
    __hash__ = int.__hash__

    def __lt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) < int(other)

    def __le__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) <= int(other)

    def __gt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) > int(other)

    def __ge__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) >= int(other)

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return isinstance(other, int) and int(self) == int(other)


def comparisons(ask: Callable[[Progress, list[HashRange]], object], keys: int) -> int:
    """How often bounds are compared if so many keys are parked, and all others are asked about."""
    cuts = [0, *(HASH_SPACE * i // keys + k for i in range(1, keys) for k in (0, 1)), HASH_SPACE]
    ranges = [HashRange(Counted(lo), Counted(hi)) for lo, hi in pairwise(cuts)]
    tiling = [Stripe(part, () if i % 2 else (3, 5)) for i, part in enumerate(ranges)]
    asked = [HashRange(Counted(part.lo), Counted(part.hi)) for part in ranges[::2]]
    progress = Progress(3, tuple(tiling))
    Counted.compared = 0
    ask(progress, asked)
    return Counted.compared


@pytest.mark.parametrize(
    "ask",
    [
        lambda progress, hashes: progress.pending_of(9, hashes),
        lambda progress, hashes: progress.position_of(hashes),
    ],
    ids=["pending_of", "position_of"],
)
def test_four_times_the_parked_keys_take_four_times_the_steps(
    ask: Callable[[Progress, list[HashRange]], object],
) -> None:
    few, many = comparisons(ask, 100), comparisons(ask, 400)
    assert few > 100
    assert many < 5 * few


def test_the_position_of_one_key_looks_at_few_of_many_stripes() -> None:
    def ask(progress: Progress, hashes: list[HashRange]) -> object:
        return progress.position(hashes[-1])

    assert comparisons(ask, 1000) < 30


# -- the reference texts -------------------------------------------------------------------------


def test_reference_individual_commits_that_touch_are_merged() -> None:
    """IC [45-47] and [50-50]; with [48-49] they are [45-50]."""
    before = Progress.of(40, ic((45, 47), (50, 50)))
    assert before.individual_commits == tuple(ic((45, 47), (50, 50)))
    assert before.commit(ic((48, 49))).individual_commits == tuple(ic((45, 50)))


def test_reference_the_stable_offset_moves_past_individual_commits() -> None:
    """Stable 42, IC [45-47]: with [43-44] the stable offset is 47."""
    before = Progress.of(43, ic((45, 47)))  # the text's stable offset is the last one processed
    assert before.commit(ic((43, 44))) == Progress.at(48)


def test_reference_gaps_are_amended() -> None:
    """Stable 40, IC [43-45] and [48-49]: of 41 to 50 are fetched [41-42], [46-47] and [50-50]."""
    before = Progress.of(41, ic((43, 45), (48, 49)))
    assert before.pending(51) == tuple(ic((41, 42), (46, 47), (50, 50)))
    assert before.commit(before.pending(51)) == Progress.at(51)


# -- examples ------------------------------------------------------------------------------------


def test_ranges_at_different_offsets() -> None:
    ahead = Progress.of(10, [Rectangle(OffsetRange(10, 20), LOW)])
    assert ahead.stripes == (Stripe(LOW, (10, 20)), Stripe(HIGH, ()))
    assert (ahead.stable, ahead.front, ahead.gaps) == (10, 20, 1)
    assert (ahead.position(LOW), ahead.position(HIGH)) == (20, 10)
    assert ahead.pending(30) == (
        Rectangle(OffsetRange(10, 30), HIGH),
        Rectangle(OffsetRange(20, 30), LOW),
    )
    assert ahead.commit([Rectangle(OffsetRange(10, 20), HIGH)]) == Progress.at(20)


def test_a_negative_offset_is_refused() -> None:
    with pytest.raises(ValueError, match="not an offset: -1"):
        Progress.at(-1)


def test_topic_partitions_sort_and_show() -> None:
    assert TopicPartition("t", 9) < TopicPartition("t", 10) < TopicPartition("u", 0)
    assert str(TopicPartition("a-b", 3)) == "a-b-3"


@given(progresses())
def test_pickled(progress: Progress) -> None:
    assert pickle.loads(pickle.dumps(progress)) == progress


# -- slices --------------------------------------------------------------------------------------


@given(pieces(min_size=1))
def test_a_slice_is_one_value_for_one_set(given_: list[Rectangle]) -> None:
    slice_ = Slice("t", 0, tuple(given_))
    again = Slice("t", 0, (*reversed(given_), given_[0]))
    assert tally(slice_.rectangles) == sorted(cells_of(given_)) or len(given_) == 1
    assert len(given_) == 1 or slice_ == again
    assert of_stripes(slice_.stripes) == cells_of(given_)
    assert all(one.hashes.hi <= two.hashes.lo for one, two in pairwise(slice_.stripes))
    assert Slice("t", 0, stripes=stripes(given_)) == slice_
    touched = cells_of(given_)
    assert slice_.bounds == from_pairs(*zip(*((n, n + 1) for n, _ in touched), strict=True))
    assert slice_.offsets.start == min(n for n, _ in touched)
    assert slice_.offsets.end == max(n for n, _ in touched) + 1
    assert slice_.hashes == HashRange(
        CELLS[min(c for _, c in touched)].lo, CELLS[max(c for _, c in touched)].hi
    )
    assert pickle.loads(pickle.dumps(slice_)) == slice_


def test_a_slice_of_one_rectangle() -> None:
    slice_ = Slice("t", 0, (Rectangle(OffsetRange(3, 5), LOW),))
    assert slice_.stripes == (Stripe(LOW, (3, 5)),)
    assert slice_.rectangles == (Rectangle(OffsetRange(3, 5), LOW),)


def test_a_slice_holds_something() -> None:
    with pytest.raises(ValueError, match="a slice of t-0 without a rectangle"):
        Slice("t", 0, ())
