import pickle
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import mmh3
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kshare
from kshare.core.hashing import (
    ALL_HASHES,
    HASH_SPACE,
    NO_HASHES,
    WHOLE,
    HashRange,
    KeyRanges,
    in_both,
    key_hash,
    split,
)

HASHES = st.integers(0, HASH_SPACE)


@st.composite
def hash_ranges(draw: st.DrawFn) -> HashRange:
    lo, hi = sorted(draw(st.lists(HASHES, min_size=2, max_size=2, unique=True)))
    return HashRange(lo, hi)


@given(st.binary(max_size=100), st.integers(0, 2**63 - 1))
def test_key_hash_is_the_first_half_of_murmur3_shifted(key: bytes, offset: int) -> None:
    first = int.from_bytes(mmh3.hash_bytes(key, 0, x64arch=True)[:8], "little")
    assert key_hash(key, offset) == first >> 1
    assert key_hash(key, offset) in WHOLE


@pytest.mark.parametrize(
    ("key", "offset", "hashed"),
    [
        (b"", 5, 0),
        (b"abc", 5, 13012657714217449575 >> 1),
        (b"The quick brown fox jumps over the lazy dog", 0, 0xE34BBC7BBC071B6C >> 1),
        (None, 0, key_hash(bytes(8), 1)),
        (None, 258, key_hash(b"\x02\x01\0\0\0\0\0\0", 1)),
    ],
)
def test_key_hash_examples(key: bytes | None, offset: int, hashed: int) -> None:
    assert key_hash(key, offset) == hashed


def test_records_without_a_key_spread_evenly() -> None:
    counts = [0] * 8
    for offset in range(8000):
        counts[key_hash(None, offset) * 8 // HASH_SPACE] += 1
    assert all(850 < count < 1150 for count in counts)


@pytest.mark.parametrize(("lo", "hi"), [(-1, 5), (5, 5), (6, 5), (0, HASH_SPACE + 1)])
def test_what_is_no_hash_range(lo: int, hi: int) -> None:
    with pytest.raises(ValueError, match=rf"not a hash range: \[{lo},{hi}\); wanted 0 <= lo"):
        HashRange(lo, hi)


@given(hash_ranges(), hash_ranges(), HASHES)
def test_intersect(one: HashRange, other: HashRange, point: int) -> None:
    shared = one.intersect(other)
    assert shared == other.intersect(one)
    for hash_ in (point, one.lo, one.hi - 1, one.hi, other.lo, other.hi - 1, other.hi):
        assert (shared is not None and hash_ in shared) == (hash_ in one and hash_ in other)


def test_hash_ranges() -> None:
    assert str(HashRange(3, 5)) == "[3,5)"
    assert HashRange(3, 5).width == 2
    assert WHOLE.is_whole
    assert not HashRange(0, 5).is_whole
    assert not HashRange(5, HASH_SPACE).is_whole
    assert pickle.loads(pickle.dumps(WHOLE)) == WHOLE


def test_a_range_as_percent() -> None:
    half = HASH_SPACE // 2
    assert WHOLE.as_percent() == "0.00 % to 100.00 %"
    assert HashRange(half // 2, half).as_percent() == "25.00 % to 50.00 %"
    assert HashRange(half, half + HASH_SPACE // 10**6).as_percent() == "50.000000 % to 50.000100 %"
    assert HashRange(5, 6).as_percent() == "hash 5"


@given(hash_ranges(), st.integers(1, 50))
def test_ranges_that_tile_others_have_texts_of_their_own(hashes: HashRange, parts: int) -> None:
    found = split(hashes, min(parts, hashes.width))
    assert len({each.as_percent() for each in found}) == len(found)


@given(hash_ranges(), st.integers(1, 50))
def test_split_tiles_a_range_evenly(hashes: HashRange, parts: int) -> None:
    parts = min(parts, hashes.width)
    found = split(hashes, parts)
    assert len(found) == parts
    assert (found[0].lo, found[-1].hi) == (hashes.lo, hashes.hi)
    assert all(one.hi == two.lo for one, two in pairwise(found))
    assert max(part.width for part in found) - min(part.width for part in found) <= 1


@pytest.mark.parametrize("parts", [0, 4])
def test_a_range_has_no_more_parts_than_hashes(parts: int) -> None:
    with pytest.raises(ValueError, match=rf"cannot cut \[5,8\) into {parts} parts"):
        split(HashRange(5, 8), parts)


SPACE = 20
"""Laws are looked at where hashes are few; the space goes on behind them."""

few_ranges = st.lists(
    st.tuples(st.integers(0, SPACE - 6), st.integers(1, 6)).map(
        lambda pair: HashRange(pair[0], pair[0] + pair[1])
    ),
    max_size=6,
)
some_hashes = few_ranges.map(KeyRanges)


def hashes_of(parts: Iterable[HashRange]) -> set[int]:
    """The twin of key ranges: the hashes one by one."""
    return {hashed for part in parts for hashed in range(part.lo, min(part.hi, SPACE))}


def is_canonical(hashes: KeyRanges) -> bool:
    return type(hashes) is KeyRanges and all(one.hi < two.lo for one, two in pairwise(hashes))


@given(few_ranges)
def test_key_ranges_are_the_union_of_ranges_in_any_order(ranges: list[HashRange]) -> None:
    hashes = KeyRanges(ranges)
    assert is_canonical(hashes)
    assert hashes_of(hashes) == hashes_of(ranges)
    assert hashes == KeyRanges(ranges[::-1]) == KeyRanges(tuple(hashes)) == tuple(hashes)
    assert hash(hashes) == hash(tuple(hashes))
    assert KeyRanges(hashes) is hashes
    assert is_canonical(pickle.loads(pickle.dumps(hashes)))
    assert pickle.loads(pickle.dumps(hashes)) == hashes


@given(some_hashes, some_hashes)
def test_key_ranges_are_sets(one: KeyRanges, two: KeyRanges) -> None:
    both, either, left = one & two, one | two, one - two
    assert hashes_of(both) == hashes_of(one) & hashes_of(two)
    assert hashes_of(either) == hashes_of(one) | hashes_of(two)
    assert hashes_of(left) == hashes_of(one) - hashes_of(two)
    assert all(map(is_canonical, (both, either, left)))
    assert one.isdisjoint(two) == (not both)
    assert (ALL_HASHES - one) & (ALL_HASHES - two) == ALL_HASHES - either
    assert one - tuple(two) == left
    assert one & list(two) == both
    assert one | iter(two) == either


@given(some_hashes, some_hashes, st.integers(0, 3))
def test_what_is_in_two_lists_is_in_common_pieces(
    one: KeyRanges, two: KeyRanges, parts: int
) -> None:
    """Also where neighbours touch, as parts of an end and stripes do."""
    ours = [(cut, cut.lo) for part in one for cut in split(part, min(part.width, parts + 1))]
    theirs = [(part, part.hi) for part in two]
    wanted = [
        (both, low, high)
        for mine, low in ours
        for other, high in theirs
        if (both := mine.intersect(other)) is not None
    ]
    assert list(in_both(ours, theirs)) == wanted
    assert list(in_both(theirs, ours)) == [(both, high, low) for both, low, high in wanted]


@given(some_hashes, st.sets(st.integers(0, SPACE)))
def test_single_hashes_of_key_ranges(hashes: KeyRanges, points: set[int]) -> None:
    assert hashes_of(KeyRanges.of_hashes(points)) == points - {SPACE}
    assert is_canonical(KeyRanges.of_hashes(points))
    assert {at for at in range(SPACE) if hashes.holds(at)} == hashes_of(hashes)


@given(some_hashes, st.integers(0, SPACE - 1), st.integers(1, 6))
def test_what_overlaps_a_range(hashes: KeyRanges, lo: int, wide: int) -> None:
    sought = HashRange(lo, lo + wide)
    wanted = [part for part in hashes if part.intersect(sought) is not None]
    assert list(hashes.overlapping(sought)) == wanted


@given(some_hashes)
def test_what_key_ranges_say_of_themselves(hashes: KeyRanges) -> None:
    assert hashes.width == len(hashes_of(hashes))
    assert (ALL_HASHES - hashes).width == HASH_SPACE - hashes.width
    assert hashes.pairs == [[part.lo, part.hi] for part in hashes]
    assert KeyRanges.checked(iter(hashes)) == hashes
    assert not hashes.is_all
    assert (hashes | (ALL_HASHES - hashes)).is_all
    if hashes:
        at = hashes_of(hashes)
        assert hashes.span == HashRange(min(at), max(at) + 1)


def test_examples_of_key_ranges() -> None:
    assert KeyRanges([HashRange(5, 9)]) - KeyRanges.of_hashes([7]) == (
        HashRange(5, 7),
        HashRange(8, 9),
    )
    assert KeyRanges(split(WHOLE, 3)) == ALL_HASHES
    assert ALL_HASHES - ALL_HASHES == NO_HASHES


@pytest.mark.parametrize("sought", [5, HashRange(5, 9)])
def test_what_is_in_a_set_is_asked_in_no_other_way(sought: Any) -> None:
    with pytest.raises(TypeError):
        assert sought in KeyRanges([HashRange(5, 9)])


@pytest.mark.parametrize("ranges", [[(5, 9), (0, 3)], [(0, 5), (5, 9)], [(0, 5), (4, 9)]])
def test_ranges_that_are_no_set_as_they_stand(ranges: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="wanted ascending hash ranges with gaps between them"):
        KeyRanges.checked(HashRange(lo, hi) for lo, hi in ranges)


@given(st.integers(1, 300))
def test_the_hash_ranges_of_processes_tile_all_hashes(number: int) -> None:
    parts = kshare.hash_ranges(number)
    assert len(parts) == number
    assert KeyRanges(parts) == ALL_HASHES
    assert parts == split(WHOLE, number)


@pytest.mark.parametrize("number", [0, -1, HASH_SPACE + 1])
def test_there_is_at_least_one_hash_range(number: int) -> None:
    with pytest.raises(ValueError, match=f"found {number} hash ranges; wanted at least 1"):
        kshare.hash_ranges(number)
