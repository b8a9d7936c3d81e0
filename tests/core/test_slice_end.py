"""Where a slice ended, and the sample of its keys."""

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kshare.core.hashing import key_hash
from kshare.core.slice_end import (
    HOT_KEYS_MAX,
    KEY_BYTES_MAX,
    SAMPLE_MAX,
    HotKey,
    KeySample,
    SliceEnd,
)


def test_the_time_of_a_reader_is_not_that_of_its_task() -> None:
    assert SliceEnd(9, 2).task_seconds is None
    assert SliceEnd(9, 2, seconds=1.5).task_seconds is None
    assert SliceEnd(9, 2, seconds=1.5, held=True).task_seconds == 1.5


def sample_of(*sizes: int) -> tuple[int, ...]:
    """The sample of rows without keys, which come in batches of these sizes."""
    sample, first = KeySample(), 0
    for size in sizes:
        asked: list[int] = []

        def key_at(row: int, first: int = first, asked: list[int] = asked) -> tuple[None, int]:
            asked.append(row)
            return None, first + row

        sample.add(size, key_at)
        assert all(0 <= row < size for row in asked)
        assert len(asked) <= SAMPLE_MAX
        first += size
    return sample.hashes


@pytest.mark.parametrize("rows", [1, 255, 256, 257, 1000, 5000])
def test_a_sample_is_of_the_delivered_records(rows: int) -> None:
    every = {key_hash(None, row): row for row in range(rows)}
    found = sorted(every[hashed] for hashed in sample_of(rows))
    stride = next(1 << n for n in range(20) if rows <= SAMPLE_MAX << n)
    full = list(range(rows // stride))  # of the last stride there may be none
    assert [row // stride for row in found][: len(full)] == full
    assert len(full) <= len(found) <= len(full) + 1
    assert min(rows, SAMPLE_MAX // 2) <= len(found) <= SAMPLE_MAX


@given(st.lists(st.integers(1, 9) | st.integers(1, 5_000), min_size=1, max_size=60))
@example([1] * 3_000)
@example([100_000, 1, 200_000])
def test_how_rows_are_cut_into_batches_does_not_matter(sizes: list[int]) -> None:
    assert sample_of(*sizes) == sample_of(sum(sizes))


def turn_of(first: int) -> Callable[[int], tuple[bytes, int]]:
    return lambda row: (b"%d" % ((first + row) % 8), first + row)


def test_a_sample_sees_the_weight_of_keys_that_come_in_turn() -> None:
    sample = KeySample()
    for first in range(0, 64_000, 640):
        sample.add(640, turn_of(first))
    counts = [sample.hashes.count(key_hash(b"%d" % key, 0)) for key in range(8)]
    assert sum(counts) == len(sample.hashes)
    assert min(counts) > len(sample.hashes) // 16


def keys_of(*keys: bytes | None) -> tuple[HotKey, ...]:
    sample = KeySample()
    sample.add(len(keys), lambda row: (keys[row], row))
    return sample.hot_keys


def test_keys_that_stand_out_are_named_the_most_frequent_first() -> None:
    rare = [b"r%d" % n for n in range(40)]
    named = keys_of(*[b"b"] * 10, *[b"a"] * 40, *[b"c"] * 10, *[b"d"] * 9, *rare)
    assert named == (HotKey(b"a", 40 / 109), HotKey(b"b", 10 / 109), HotKey(b"c", 10 / 109))
    assert len(named) == HOT_KEYS_MAX
    assert keys_of(b"alone") == (HotKey(b"alone", 1.0),)
    assert keys_of(*rare) == ()


def test_what_is_no_key_or_a_long_one_counts_and_is_not_named() -> None:
    long = b"x" * KEY_BYTES_MAX
    assert keys_of(None, None, long + b"x", long) == (HotKey(long, 0.25),)
    assert keys_of() == ()


@given(st.lists(st.sampled_from([b"a", b"b", b"c", None]), min_size=1, max_size=SAMPLE_MAX))
def test_shares_are_those_of_a_sample_that_holds_all(keys: list[bytes | None]) -> None:
    for hot in keys_of(*keys):
        assert hot.share == keys.count(hot.key) / len(keys)


def test_a_long_slice_names_its_key_too() -> None:
    sample = KeySample()
    for _ in range(100):
        sample.add(1_000, lambda row: (b"hot" if row % 4 else b"%d" % row, row))
    (hot,) = sample.hot_keys
    assert hot.key == b"hot"
    assert 0.65 < hot.share < 0.85
