"""The oracle of the algebra: plain sets of (offset, cell), a cell being a stretch of key hashes."""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise

from hypothesis import strategies as st

from kshare.core.hashing import HASH_SPACE, HashRange
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress
from kshare.core.region import Rectangle, Stripe

CUTS = (0, 1, 2, 1 << 61, 1 << 62, HASH_SPACE - 1, HASH_SPACE)
"""Where cells begin and end; nothing in these tests is cut elsewhere."""

CELLS = tuple(HashRange(lo, hi) for lo, hi in pairwise(CUTS))
END = 12
"""Offsets in these tests are below it."""

Cells = set[tuple[int, int]]

EVERYTHING: Cells = {(offset, cell) for offset in range(END) for cell in range(len(CELLS))}


def cells_of(pieces: Iterable[Rectangle]) -> Cells:
    """What rectangles hold."""
    return {cell for piece in pieces for cell in _cells(piece)}


def tally(pieces: Iterable[Rectangle]) -> list[tuple[int, int]]:
    """What rectangles hold, twice what two of them hold, ascending."""
    return sorted(cell for piece in pieces for cell in _cells(piece))


def done(progress: Progress) -> Cells:
    """What a progress has processed, of offsets below ``END``."""
    return cells_of(progress.individual_commits) | {
        cell for cell in EVERYTHING if cell[0] < progress.stable
    }


def of_stripes(stripes: Iterable[Stripe]) -> Cells:
    return {
        (offset, cell)
        for stripe in stripes
        for start, end in zip(stripe.bounds[::2], stripe.bounds[1::2], strict=True)
        for offset in range(start, end)
        for cell in within(stripe.hashes)
    }


def within(hashes: HashRange) -> Sequence[int]:
    """The cells of a range, which must begin and end at cuts."""
    return range(CUTS.index(hashes.lo), CUTS.index(hashes.hi))


def _cells(piece: Rectangle) -> list[tuple[int, int]]:
    offsets = range(piece.offsets.start, piece.offsets.end)
    return [(offset, cell) for offset in offsets for cell in within(piece.hashes)]


# Strategies are made once: one that is made for each example is looked over for each.


@cache
def offset_ranges() -> st.SearchStrategy[OffsetRange]:
    pairs = st.tuples(st.integers(0, END), st.integers(0, END)).filter(lambda p: p[0] != p[1])
    return pairs.map(lambda pair: OffsetRange(min(pair), max(pair)))


@cache
def hash_ranges() -> st.SearchStrategy[HashRange]:
    pairs = st.tuples(st.sampled_from(CUTS), st.sampled_from(CUTS)).filter(lambda p: p[0] != p[1])
    return pairs.map(lambda pair: HashRange(min(pair), max(pair)))


@cache
def pieces(max_size: int = 6, min_size: int = 0) -> st.SearchStrategy[list[Rectangle]]:
    one = st.builds(Rectangle, offset_ranges(), hash_ranges())
    return st.lists(one, min_size=min_size, max_size=max_size)


@cache
def progresses() -> st.SearchStrategy[Progress]:
    return st.builds(Progress.of, st.integers(0, END), pieces())
