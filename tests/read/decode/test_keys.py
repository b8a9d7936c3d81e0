"""Reading only some keys: what comes is what all records hold of these."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import HASH_SPACE, WHOLE, HashRange, key_hash, split
from kshare.read.decode.records import Decoder
from tests.support.batches import CODECS, Rec, batch_of, numbered
from tests.support.collisions import key_of
from tests.support.decoding import decode, indexed, slice_of

# All end with the same byte: it is looked at first.
COLLIDING = [key for key in (key_of(7 << 40, other) for other in range(2_000)) if key[-1] == 1][:4]
SOME = [b"", b"\0", b"a", b"b", b"ab", b"bb", b"a" * 16, b"b" * 17, b"\xff" * 40, *COLLIDING]
KEYS = st.sampled_from(SOME) | st.binary(max_size=20)


@given(st.integers(0, HASH_SPACE - 1), st.integers(0, (1 << 64) - 1))
def test_keys_that_collide(hash_: int, other: int) -> None:
    key = key_of(hash_, other)
    assert key_hash(key, 0) == hash_
    assert key_of(hash_, other ^ 1) != key
    assert len(COLLIDING) == 4


@given(
    keys=st.lists(KEYS, min_size=1, max_size=8),
    records=st.lists(st.none() | KEYS, max_size=12),
    codec=st.sampled_from(CODECS),
    hashes=st.sampled_from([WHOLE, *split(WHOLE, 2), HashRange(7 << 40, (7 << 40) + 1)]),
    limit=st.integers(1, 6),
)
def test_only_wanted_keys_come(
    keys: list[bytes],
    records: list[bytes | None],
    codec: str,
    hashes: HashRange,
    limit: int,
) -> None:
    """By their bytes, and of these the hash ranges of the slice; a count agrees."""
    batch = batch_of(numbered([Rec(key, b"v") for key in records]), base=5, codec=codec)
    slice_ = slice_of(hashes=hashes)
    expected = [
        (5 + delta, key)
        for delta, key in enumerate(records)
        if key is not None and key in keys and key_hash(key, 0) in hashes
    ]
    rows = decode(batch, slice_=slice_, keys=keys)
    assert [(row["offset"], row["key"]) for row in rows] == expected
    values = decode(batch, slice_=slice_, keys=keys, columns=["value"])
    assert len(values) == len(expected)
    count, end = Decoder(slice_, keys=keys).count(indexed([batch]), (), limit)
    assert count == min(limit, len(expected))
    assert end == (expected[count - 1][0] + 1 if count else 0)


def test_of_keys_with_one_hash_only_the_wanted_comes() -> None:
    records = numbered([Rec(key, b"v") for key in COLLIDING])
    for key in COLLIDING:
        assert [row["key"] for row in decode(batch_of(records), keys=[key])] == [key]
    two = COLLIDING[1:3]
    assert [row["key"] for row in decode(batch_of(records), keys=two)] == two


def test_no_keys_are_no_choice() -> None:
    with pytest.raises(ValueError, match="no key"):
        Decoder(slice_of(), keys=[])
