import pickle
from collections.abc import Iterable, Sequence
from itertools import pairwise

import mmh3
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import (
    HASH_SPACE,
    WHOLE,
    HashRange,
    common,
    complement,
    key_hash,
    merged,
    minus,
    span,
    split,
    without,
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
    assert span([HashRange(3, 5), HashRange(8, 9)]) == HashRange(3, 9)
    assert HashRange.each([8, 3]) == (HashRange(3, 4), HashRange(8, 9))
    assert HashRange.each(iter(())) == ()
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


small_ranges = st.sets(st.integers(0, 20), max_size=8).map(
    lambda cuts: [
        HashRange(lo, hi) for lo, hi in zip(sorted(cuts)[::2], sorted(cuts)[1::2], strict=False)
    ]
)


@given(small_ranges, st.lists(st.integers(0, 20)))
def test_without(hashes: list[HashRange], points: list[int]) -> None:
    left = without(hashes, points)
    wanted = {n for part in hashes for n in range(part.lo, part.hi)} - set(points)
    assert [n for part in left for n in range(part.lo, part.hi)] == sorted(wanted)


def test_without_a_hash_in_the_middle() -> None:
    assert without([HashRange(5, 9)], [7]) == (HashRange(5, 7), HashRange(8, 9))


@given(small_ranges)
def test_complement(hashes: list[HashRange]) -> None:
    others = complement(hashes[::-1])
    tiling = sorted([*hashes, *others])
    assert (tiling[0].lo, tiling[-1].hi) == (0, HASH_SPACE)
    assert all(one.hi == two.lo for one, two in pairwise(tiling))
    assert complement(complement([WHOLE])) == (WHOLE,)


overlapping = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 6)).map(lambda r: HashRange(r[0], r[0] + r[1])),
    max_size=6,
)


def hashes_of(parts: Iterable[HashRange]) -> set[int]:
    return {hashed for part in parts for hashed in range(part.lo, part.hi)}


def is_merged(parts: Sequence[HashRange]) -> bool:
    return all(one.hi < two.lo for one, two in pairwise(parts))


@given(overlapping)
def test_merged(hashes: list[HashRange]) -> None:
    parts = merged(hashes)
    assert hashes_of(parts) == hashes_of(hashes)
    assert is_merged(parts)


@given(small_ranges, small_ranges)
def test_common(hashes: list[HashRange], others: list[HashRange]) -> None:
    both = common(hashes, others)
    assert hashes_of(both) == hashes_of(hashes) & hashes_of(others)
    assert list(both) == sorted(both)


@given(overlapping, overlapping)
def test_minus(hashes: list[HashRange], taken: list[HashRange]) -> None:
    left = minus(hashes, taken)
    assert hashes_of(left) == hashes_of(hashes) - hashes_of(taken)
    assert is_merged(left)
