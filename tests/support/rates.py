"""Ranges and speeds for the tests of rates."""

from itertools import pairwise

from hypothesis import strategies as st

from kshare.core.hashing import HASH_SPACE, WHOLE, HashRange, split
from kshare.core.range_speed import RangeSpeed

A, B = split(WHOLE, 2)
A1, A2 = split(A, 2)
TARGET = 10.0

times = st.floats(0, 1e6) | st.sampled_from([0.0, 1e-12])
counts = st.integers(1, 2**40)


@st.composite
def tilings(draw: st.DrawFn) -> list[HashRange]:
    cuts = sorted(draw(st.sets(st.integers(1, 15), max_size=6)))
    bounds = [0, *(cut << 59 for cut in cuts), HASH_SPACE]
    return [HashRange(lo, hi) for lo, hi in pairwise(bounds)]


@st.composite
def known(draw: st.DrawFn) -> tuple[RangeSpeed, ...]:
    ranges = [hashes for hashes in draw(tilings()) if draw(st.booleans())]
    return tuple(RangeSpeed(h, draw(counts), draw(st.none() | times)) for h in ranges)
