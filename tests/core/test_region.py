"""One set in three forms, against plain sets of (offset, cell)."""

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import ALL_HASHES, HASH_SPACE, WHOLE, HashRange, KeyRanges
from kshare.core.offsets import OffsetRange
from kshare.core.region import (
    EMPTY,
    Rectangle,
    Region,
    Stripe,
    canonical,
    clip,
    hull,
    overlay,
    rectangles,
    stripes,
    sweep,
    tile,
)
from tests.support.cells import (
    CELLS,
    CUTS,
    END,
    EVERYTHING,
    Cells,
    cells_of,
    hash_ranges,
    of_stripes,
    pieces,
    tally,
    within,
)

HALF = HASH_SPACE // 2
LOW, HIGH = HashRange(0, HALF), HashRange(HALF, HASH_SPACE)


def shredded(some: Cells, seed: int) -> list[Rectangle]:
    """A rectangle for each cell, in any order, some of them twice."""
    chance = random.Random(seed)
    whole = sorted(some)
    shuffled = chance.sample(whole, len(whole)) + [cell for cell in whole if chance.random() < 0.3]
    return [Rectangle(OffsetRange(at, at + 1), CELLS[cell]) for at, cell in shuffled]


@given(pieces())
def test_rectangles_hold_the_same_and_overlap_nowhere(given_: list[Rectangle]) -> None:
    found = canonical(given_)
    assert tally(found) == sorted(cells_of(given_))
    order = [(p.offsets.start, p.offsets.end, p.hashes.lo) for p in found]
    assert order == sorted(order)


@given(pieces(), st.integers(0, 99))
def test_one_tuple_for_one_set(given_: list[Rectangle], seed: int) -> None:
    found = canonical(given_)
    assert canonical(shredded(cells_of(given_), seed)) == found
    assert canonical(found) == found


@given(pieces())
def test_rectangles_with_the_same_offsets_do_not_touch(given_: list[Rectangle]) -> None:
    for one, two in pairwise(canonical(given_)):
        assert one.offsets != two.offsets or one.hashes.hi < two.hashes.lo


@given(pieces(), st.integers(0, END))
def test_stripes(given_: list[Rectangle], start: int) -> None:
    layers = stripes(given_, start)
    assert of_stripes(layers) == {cell for cell in cells_of(given_) if cell[0] >= start}
    assert len({layer.hashes for layer in layers}) == len(layers)
    assert all(layer.bounds for layer in layers)


@given(pieces())
def test_overlay_tiles_the_hash_space(given_: list[Rectangle]) -> None:
    tiling = overlay(stripes(given_))
    assert of_stripes(tiling) == cells_of(given_)
    assert (tiling[0].hashes.lo, tiling[-1].hashes.hi) == (0, HASH_SPACE)
    for one, two in pairwise(tiling):
        assert one.hashes.hi == two.hashes.lo
        assert one.bounds != two.bounds
    assert cells_of(rectangles(tiling)) == cells_of(given_)


@given(pieces(), hash_ranges())
def test_clip(given_: list[Rectangle], hashes: HashRange) -> None:
    expected = {cell for cell in cells_of(given_) if cell[1] in within(hashes)}
    assert cells_of(clip(given_, KeyRanges([hashes]))) == expected
    around = ALL_HASHES - [hashes]
    assert cells_of(clip(given_, around)) == cells_of(given_) - expected


@given(pieces(min_size=1))
def test_hull(given_: list[Rectangle]) -> None:
    touched = {offset for offset, _ in cells_of(given_)}
    assert hull(given_) == OffsetRange(min(touched), max(touched) + 1)


@given(st.lists(st.sampled_from([(), (1, 2), (3, 4)]), min_size=1, max_size=len(CUTS) - 1))
def test_tile_merges_neighbours_that_are_alike(layers: list[tuple[int, ...]]) -> None:
    cut = [(CUTS[i], CUTS[i + 1], bounds) for i, bounds in enumerate(layers)]
    tiling = tile(cut)
    assert tiling[0].hashes.lo == 0
    assert tiling[-1].hashes.hi == CUTS[len(layers)]
    assert all(one.bounds != two.bounds for one, two in pairwise(tiling))
    assert of_stripes(tiling) == of_stripes([Stripe(HashRange(a, b), c) for a, b, c in cut])


def region(some: list[Rectangle]) -> Region:
    return Region.of(stripes(some))


def shown(some: Region) -> Cells:
    return of_stripes(some.tiling)


@given(pieces(), pieces())
def test_regions_are_sets(some: list[Rectangle], others: list[Rectangle]) -> None:
    one, two, cells, more = region(some), region(others), cells_of(some), cells_of(others)
    assert shown(one | two) == cells | more
    assert shown(one & two) == cells & more
    assert shown(one - two) == cells - more
    assert (one == two) == (cells == more)
    assert bool(one) == bool(cells)
    assert one - (one - two) == one & two
    assert of_stripes(one.stripes) == cells
    assert all(stripe.bounds for stripe in one.stripes)


@given(pieces(), st.integers(0, 99))
def test_one_region_for_one_set(some: list[Rectangle], seed: int) -> None:
    assert region(shredded(cells_of(some), seed)) == region(some)
    assert region(some) == Region.of(overlay(stripes(some)))


@given(pieces())
def test_a_region_says_what_is_in_it(some: list[Rectangle]) -> None:
    one, cells = region(some), cells_of(some)
    assert {at for at in EVERYTHING if (at[0], CELLS[at[1]].hi - 1) in one} == cells
    assert {at for at in EVERYTHING if (at[0], CELLS[at[1]].lo) in one} == cells
    assert one.end == max([offset + 1 for offset, _ in cells], default=0)


@given(pieces(), st.sets(st.integers(0, len(CELLS) - 1)), st.integers(0, END))
def test_what_is_missing_first(some: list[Rectangle], of: set[int], start: int) -> None:
    hashes, cells = KeyRanges(CELLS[cell] for cell in of), cells_of(some)
    missing = [at for at in range(start, END) if any((at, cell) not in cells for cell in of)]
    # Beyond the end of these tests, all is missing.
    assert region(some).first_missing(hashes, start) == (min([*missing, END]) if of else None)


@given(st.sets(st.integers(0, len(CELLS) - 1)), st.sampled_from([(), (1, 3, 5, 6)]))
def test_a_product_has_each_offset_of_each_hash(of: set[int], bounds: tuple[int, ...]) -> None:
    found = Region.product(KeyRanges(CELLS[cell] for cell in of), bounds)
    assert shown(found) == {(at, cell) for at in (1, 2, 5) for cell in of if bounds}
    assert found == Region.of(found.stripes)


def test_pieces_that_share_their_offsets() -> None:
    apart = KeyRanges([CELLS[0], CELLS[2]])
    left = Region.product(apart, (1, 3)) - Region.product(ALL_HASHES, (2, 4))
    assert left == Region.product(apart, (1, 2))


def test_nothing_is_nothing() -> None:
    assert canonical([]) == ()
    assert tile([]) == ()
    assert Region.of([]) == Region() == EMPTY
    assert overlay([]) == (Stripe(WHOLE, ()),)
    assert list(sweep([], 3, 5)) == [(3, 5, ())]


def test_examples() -> None:
    low, high = Rectangle(OffsetRange(1, 5), LOW), Rectangle(OffsetRange(3, 8), HIGH)
    assert canonical([high, low]) == (low, high)
    assert canonical([low, Rectangle(OffsetRange(1, 5), HIGH)]) == (
        Rectangle(OffsetRange(1, 5), WHOLE),
    )
    assert str(low) == f"offsets [1,5) x hashes [0,{HALF})"
    assert (low.area, high.area) == (4 * HALF, 5 * HALF)
