"""Sets of offsets as bytes: there and back, and what no set is written as."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.offsets import Bounds, from_pairs
from kshare.core.packed_bounds import OFFSET_MAX, pack, unpack

BASE = 1_000
steps = st.one_of(st.integers(1, 5), st.integers(1, 127), st.integers(128, 1 << 40))


@st.composite
def sets(draw: st.DrawFn) -> Bounds:
    """A set of offsets that is not empty, from ``BASE`` on."""
    at = BASE + draw(st.integers(0, 300))
    bounds = [at]
    for step in draw(st.lists(steps, min_size=1, max_size=9).filter(lambda some: len(some) % 2)):
        at += step
        bounds.append(at)
    return tuple(bounds)


@given(sets())
def test_there_and_back(bounds: Bounds) -> None:
    assert from_pairs(bounds[::2], bounds[1::2]) == bounds
    assert unpack(pack(bounds, BASE), BASE) == bounds


@given(sets(), sets())
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
