"""Where a slice ended, and the sample of its keys.

What a reader still wants, against a model that keeps every offset by itself.
"""

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kshare.core.hashing import key_hash
from kshare.core.offsets import Bounds, from_pairs, union
from kshare.core.slice_end import (
    HOT_KEYS_MAX,
    KEY_BYTES_MAX,
    SAMPLE_MAX,
    Cursor,
    HotKey,
    KeySample,
    RecordLimit,
    SliceEnd,
)

OFFSETS = st.integers(0, 60)


@st.composite
def sets(draw: st.DrawFn) -> Bounds:
    """Sets of offsets, not empty."""
    cuts = sorted(draw(st.sets(OFFSETS, min_size=2, max_size=10)))
    kept = draw(st.lists(st.sampled_from(list(pairwise(cuts))), min_size=1, unique=True))
    return union(kept)


class Model:
    """Sets of offsets."""

    def __init__(self, wanted: Bounds) -> None:
        parts = zip(wanted[::2], wanted[1::2], strict=True)
        self.undelivered = {offset for part in parts for offset in range(*part)}
        self.unfetched = set(self.undelivered)

    def fetch_to(self, offset: int) -> None:
        self.unfetched = {each for each in self.unfetched if each >= offset}

    def deliver_to(self, offset: int) -> None:
        self.fetch_to(offset)
        self.undelivered = {each for each in self.undelivered if each >= offset}

    def rewind(self) -> None:
        self.unfetched = set(self.undelivered)

    def finish(self) -> None:
        self.deliver_to(1000)


STEPS = st.one_of(
    st.tuples(st.sampled_from(["fetch_to", "deliver_to"]), OFFSETS),
    st.tuples(st.sampled_from(["rewind", "rewind", "finish"]), st.none()),
)


@given(sets(), st.lists(STEPS, max_size=12))
def test_a_cursor_is_two_sets_of_offsets(
    wanted: Bounds, steps: list[tuple[str, int | None]]
) -> None:
    cursor, model = Cursor(wanted), Model(wanted)
    assert cursor.end == wanted[-1]
    for name, offset in steps:
        arguments = () if offset is None else (offset,)
        cursor = getattr(cursor, name)(*arguments)
        getattr(model, name)(*arguments)
        assert cursor.next_offset == min(model.unfetched, default=None)
        assert cursor.is_done == (not model.undelivered)
        assert cursor.delivered <= cursor.fetched


@given(sets(), st.lists(STEPS, max_size=5), OFFSETS)
def test_steps_are_values_and_never_go_back(
    wanted: Bounds, steps: list[tuple[str, int | None]], offset: int
) -> None:
    cursor = Cursor(wanted)
    for name, to in steps:
        cursor = getattr(cursor, name)(*(() if to is None else (to,)))
    before = (cursor.delivered, cursor.fetched)
    moves: list[Callable[[], Cursor]] = [
        lambda: cursor.fetch_to(offset),
        lambda: cursor.deliver_to(offset),
        cursor.finish,
    ]
    for move in moves:
        after = move()
        assert after.delivered >= cursor.delivered
        assert after.fetched >= cursor.fetched
        assert (cursor.delivered, cursor.fetched) == before
    assert cursor.deliver_to(offset).deliver_to(offset) == cursor.deliver_to(offset)
    assert cursor.rewind().rewind() == cursor.rewind()
    assert cursor.finish().next_offset is None
    assert cursor.finish().rewind().next_offset is None


def test_ranges_may_be_those_of_any_set() -> None:
    cursor = Cursor(from_pairs([3, 120, 250], [9, 121, 260]))
    seen = []
    while (offset := cursor.next_offset) is not None:
        seen.append(offset)
        cursor = cursor.deliver_to(offset + 4)
    assert seen == [3, 7, 120, 250, 254, 258]


# -- the limit ------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_is_at_least_one(limit: int) -> None:
    with pytest.raises(ValueError, match=f"max_records is {limit}; wanted at least 1"):
        RecordLimit(limit)


@given(st.none() | st.integers(1, 50), st.lists(st.integers(0, 9), max_size=20))
def test_the_limit_is_reached_by_the_record_that_fills_it(
    most: int | None, sizes: list[int]
) -> None:
    limit, offset, end = RecordLimit(most), 0, None
    for size in sizes:
        left = limit.records_left
        taken = size if left is None else min(size, left)
        offset += taken
        limit = limit.deliver(taken, offset)
        if end is None and most is not None and offset == most:
            end = offset
        assert limit.records == offset
        assert limit.end == end
        assert limit.is_reached == (limit.records == most)
    assert RecordLimit(most).records_left == most


@given(st.integers(1, 100), st.integers(0, 100), st.integers(1, 1000), st.integers(0, 1000))
def test_what_was_seen_says_whether_a_response_is_likely_to_be_the_last(
    most: int, delivered: int, seen: int, coming: int
) -> None:
    delivered = min(delivered, most - 1, seen)
    limit = RecordLimit(most).deliver(delivered, 7).see(seen, seen)
    expected = delivered + coming * delivered / seen
    assert limit.is_likely_within(coming) == (expected >= most)
    assert not RecordLimit(None).deliver(delivered, 7).see(seen, seen).is_likely_within(coming)


@given(st.integers(1, 100), st.integers(0, 200))
def test_with_nothing_seen_every_record_may_be_wanted(most: int, coming: int) -> None:
    assert RecordLimit(most).is_likely_within(coming) == (coming >= most)
    assert RecordLimit(most).offsets_needed(coming) == coming


@given(st.integers(2, 100), st.integers(1, 100), st.integers(1, 10), st.integers(0, 5000))
def test_the_offsets_that_are_needed(most: int, delivered: int, gap: int, left: int) -> None:
    """Of offsets that hold a record each ``gap``, as many as the missing records take."""
    delivered = min(delivered, most - 1)
    limit = RecordLimit(most).deliver(delivered, 7).see(delivered, delivered * gap)
    assert limit.offsets_needed(left) == pytest.approx(min(left, (most - delivered) * gap))
    assert RecordLimit(None).deliver(delivered, 7).offsets_needed(left) == left


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
