"""Sets of offsets against plain sets.

Sets of offsets as bytes: there and back, and what no set is written as.
"""

import pickle
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.offsets import (
    OFFSET_MAX,
    Bounds,
    OffsetRange,
    complement,
    from_pairs,
    intersect,
    length,
    pack,
    since,
    subtract,
    union,
    unpack,
    within,
)

END = 20
sets = st.sets(st.integers(0, END - 1))
pairs = st.lists(
    st.tuples(st.integers(0, END - 2), st.integers(1, 6)).map(
        lambda pair: (pair[0], min(sum(pair), END))
    )
)


def bounds_of(wanted: set[int]) -> Bounds:
    """The canonical bounds of a set, the slow way."""
    return tuple(n for n in range(END + 1) if (n in wanted) != (n - 1 in wanted))


def set_of(bounds: Bounds) -> set[int]:
    assert isinstance(bounds, tuple)
    assert len(bounds) % 2 == 0
    assert all(one < two for one, two in pairwise(bounds))
    return {n for lo, hi in zip(bounds[::2], bounds[1::2], strict=True) for n in range(lo, hi)}


@given(pairs)
def test_from_pairs_is_the_union_of_the_ranges(given_: list[tuple[int, int]]) -> None:
    wanted = {n for lo, hi in given_ for n in range(lo, hi)}
    assert from_pairs([lo for lo, _ in given_], [hi for _, hi in given_]) == bounds_of(wanted)


@given(st.lists(sets, max_size=4))
def test_union(several: list[set[int]]) -> None:
    assert union(map(bounds_of, several)) == bounds_of(set().union(*several))


@given(sets, sets, sets)
def test_subtract_where_both_begin_alike(same: set[int], one: set[int], other: set[int]) -> None:
    one, other = ({n + END for n in each} | same for each in (one, other))
    bounds, taken = (
        tuple(n for n in range(2 * END + 1) if (n in each) != (n - 1 in each))
        for each in (one, other)
    )
    left = one - other
    wanted = tuple(n for n in range(2 * END + 1) if (n in left) != (n - 1 in left))
    assert subtract(bounds, taken) == wanted


def test_subtract_what_only_lies_around_and_between() -> None:
    assert subtract((2, 3, 6, 7), (0, 1, 8, 9)) == (2, 3, 6, 7)


@given(sets, sets)
def test_intersect_and_subtract(one: set[int], other: set[int]) -> None:
    assert intersect(bounds_of(one), bounds_of(other)) == bounds_of(one & other)
    assert subtract(bounds_of(one), bounds_of(other)) == bounds_of(one - other)


@given(sets, st.integers(0, END), st.integers(0, END))
def test_complement(some: set[int], start: int, end: int) -> None:
    wanted = set(range(start, end)) - some
    assert complement(bounds_of(some), start, end) == bounds_of(wanted)


@given(sets, st.integers(0, END))
def test_since(some: set[int], offset: int) -> None:
    assert since(bounds_of(some), offset) == bounds_of({n for n in some if n >= offset})


@given(sets, st.integers(0, END), st.integers(0, END))
def test_within(some: set[int], start: int, end: int) -> None:
    assert within(bounds_of(some), start, end) == bounds_of({n for n in some if start <= n < end})


@given(sets)
def test_length(some: set[int]) -> None:
    assert set_of(bounds_of(some)) == some
    assert length(bounds_of(some)) == len(some)


@given(st.sets(st.integers(0, 2**63 - 1), max_size=20), st.sets(st.integers(0, 2**63 - 1)))
def test_the_laws_hold_for_large_offsets(one: set[int], other: set[int]) -> None:
    first = from_pairs(one, [n + 1 for n in one])
    second = from_pairs(other, [n + 1 for n in other])
    both = from_pairs(one | other, [n + 1 for n in one | other])
    assert union([first, second]) == union([second, first]) == both
    assert union([subtract(first, second), intersect(first, second)]) == first
    assert length(first) + length(second) == length(both) + length(intersect(first, second))


def test_ranges_that_touch_are_one() -> None:
    assert from_pairs([5, 3], [7, 5]) == (3, 7)
    assert union([(3, 5), (5, 7)]) == (3, 7)


def test_offset_ranges() -> None:
    offsets = OffsetRange(3, 5)
    assert str(offsets) == "[3,5)"
    assert len(offsets) == 2
    assert [n for n in range(8) if n in offsets] == [3, 4]
    assert OffsetRange(2, 9) < offsets < OffsetRange(3, 6)
    assert pickle.loads(pickle.dumps(offsets)) == offsets
    assert len(OffsetRange(0, 2**63 - 1)) == 2**63 - 1


@pytest.mark.parametrize(("start", "end"), [(-1, 3), (3, 3), (4, 3)])
def test_what_is_no_offset_range(start: int, end: int) -> None:
    with pytest.raises(ValueError, match=rf"not an offset range: \[{start},{end}\); wanted 0 <="):
        OffsetRange(start, end)


BASE = 1_000
steps = st.one_of(st.integers(1, 5), st.integers(1, 127), st.integers(128, 1 << 40))


@st.composite
def bounds_sets(draw: st.DrawFn) -> Bounds:
    """A set of offsets that is not empty, from ``BASE`` on."""
    at = BASE + draw(st.integers(0, 300))
    bounds = [at]
    for step in draw(st.lists(steps, min_size=1, max_size=9).filter(lambda some: len(some) % 2)):
        at += step
        bounds.append(at)
    return tuple(bounds)


@given(bounds_sets())
def test_there_and_back(bounds: Bounds) -> None:
    assert from_pairs(bounds[::2], bounds[1::2]) == bounds
    assert unpack(pack(bounds, BASE), BASE) == bounds


@given(bounds_sets(), bounds_sets())
def test_one_set_has_one_text(one: Bounds, other: Bounds) -> None:
    assert (pack(one, BASE) == pack(other, BASE)) == (one == other)


def test_a_short_gap_costs_two_bytes() -> None:
    bounds = tuple(range(BASE, BASE + 2_000))
    assert len(pack(bounds, BASE)) == len(bounds)


def test_nothing_is_no_bytes() -> None:
    assert pack((), BASE) == b""


@pytest.mark.parametrize(
    ("packed", "text"),
    [
        (b"", "starts and ends in pairs, found 0"),
        (b"\x01", "starts and ends in pairs, found 1"),
        (b"\x01\x00", "ascending offsets"),
        (b"\x01\x80", "whole numbers"),
        (b"\x01\x80\x00", "as few bytes as they need"),
        (b"\x01" + b"\x80" * 9 + b"\x01", "at most 9 bytes"),
        (b"\x00" + b"\xff" * 8 + b"\x7f", "offsets up to"),
    ],
)
def test_what_is_not_a_set(packed: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        unpack(packed, BASE)


def test_the_highest_offset() -> None:
    bounds = (0, OFFSET_MAX)
    assert unpack(pack(bounds, 0), 0) == bounds
