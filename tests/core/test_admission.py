"""How far a batch goes; the numbers are those of Spark's kafka source.

How far in event time a batch may read, against plain Python.
"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.admission import (
    PartitionTimes,
    StampedOffset,
    admit,
    open_milliseconds,
    should_wait,
    surely_read,
    time_bound,
)
from kshare.core.hashing import NO_HASHES, WHOLE, KeyRanges, split
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle, TopicPartition

LONG_MAX = 2**63 - 1
backlogs = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)).map(lambda p: (min(p), max(p))),
)
small = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda p: (min(p), max(p))),
)


def rate_limit(limit: int, start: dict[str, int], until: dict[str, int]) -> dict[str, int]:
    """The numbers of ``KafkaMicroBatchStream.rateLimit``, with doubles as Java has them."""
    sizes = {place: end - start[place] for place, end in until.items() if end > start[place]}
    total = float(sum(sizes.values()))
    if total < 1:
        return until
    ends = dict(until)
    for place, size in sizes.items():
        prorate = float(limit) * (float(size) / total)
        whole = math.ceil(prorate) if prorate < 1 else math.floor(prorate)
        ends[place] = min(until[place], start[place] + whole, LONG_MAX)
    return ends


def parts(backlog: dict[str, tuple[int, int]]) -> tuple[dict[str, int], dict[str, int]]:
    return {p: a for p, (a, _) in backlog.items()}, {p: b for p, (_, b) in backlog.items()}


@given(backlogs, st.integers(1, LONG_MAX))
def test_as_spark_shares_it(backlog: dict[str, tuple[int, int]], limit: int) -> None:
    front, top = parts(backlog)
    assert admit(front, top, limit) == rate_limit(limit, front, top)


@given(small, st.integers(1, 60))
def test_nobody_starves_and_nobody_goes_too_far(
    backlog: dict[str, tuple[int, int]], limit: int
) -> None:
    front, top = parts(backlog)
    ends = admit(front, top, limit)
    assert list(ends) == list(top)
    for place, end in ends.items():
        assert front[place] <= end <= top[place]
        assert end > front[place] or front[place] == top[place]
    below_one = sum(
        0 < (top[p] - front[p]) * limit < sum(top.values()) - sum(front.values()) for p in top
    )
    assert sum(ends.values()) - sum(front.values()) <= limit + below_one


@given(small)
def test_no_limit(backlog: dict[str, tuple[int, int]]) -> None:
    front, top = parts(backlog)
    assert admit(front, top, None) == top


@pytest.mark.parametrize(
    ("sizes", "limit", "wanted"),
    [
        ({"a": 100, "b": 100}, 10, {"a": 5, "b": 5}),
        ({"a": 10, "b": 30}, 10, {"a": 2, "b": 7}),  # rounded down: 9 in all
        ({"a": 1, "b": 1000}, 10, {"a": 1, "b": 9}),  # but not to nothing
        ({"a": 3, "b": 3, "c": 3}, 1, {"a": 1, "b": 1, "c": 1}),
        ({"a": 3, "b": 0}, 10, {"a": 3, "b": 0}),
        ({"a": 0, "b": 0}, 10, {"a": 0, "b": 0}),
        ({}, 10, {}),
    ],
)
def test_examples(sizes: dict[str, int], limit: int, wanted: dict[str, int]) -> None:
    front = dict.fromkeys(sizes, 50)
    ends = admit(front, {place: 50 + size for place, size in sizes.items()}, limit)
    assert {place: end - 50 for place, end in ends.items()} == wanted


def test_a_top_before_its_front_stays() -> None:
    assert admit({"a": 50, "b": 0}, {"a": 40, "b": 10}, 4) == {"a": 40, "b": 4}


@pytest.mark.parametrize(
    ("new", "seconds", "waits"),
    [
        (9, 5.0, True),
        (10, 5.0, False),
        (9, 60.0, False),  # it has waited long enough
        (9, 59.9, True),
        (0, None, False),  # the first trigger never waits
    ],
)
def test_should_wait(new: int, seconds: float | None, waits: bool) -> None:
    positions = {"a": 100, "b": 100, "gone": 7}
    available = {"a": 100 + new // 2, "b": 100 + new - new // 2}
    found = should_wait(
        positions, available, min_offsets=10, max_delay_seconds=60.0, seconds_since_batch=seconds
    )
    assert found is waits


def test_a_partition_without_a_position_counts_from_0() -> None:
    wait = {"min_offsets": 10, "max_delay_seconds": 60.0, "seconds_since_batch": 1.0}
    assert should_wait({}, {"a": 9}, **wait)  # type: ignore[arg-type]
    assert not should_wait({}, {"a": 10}, **wait)  # type: ignore[arg-type]


stamps = st.integers(-1, 1000)
records = st.lists(stamps, max_size=12)
A, B, C = (TopicPartition("t", number) for number in range(3))


def times(*found: tuple[int | None, int | None]) -> dict[TopicPartition, PartitionTimes]:
    """Partitions by the times of the next record, and of the first that is left."""
    return {
        TopicPartition("t", number): PartitionTimes(
            *(None if ms is None else StampedOffset(number, ms) for ms in pair)
        )
        for number, pair in enumerate(found)
    }


def left_from(pending: list[int], read: int) -> PartitionTimes:
    """A partition with records of these times, of which so many are surely read."""
    at = [StampedOffset(offset, ms) for offset, ms in enumerate(pending)]
    return PartitionTimes(at[0] if at else None, at[read] if read < len(at) else None)


@given(
    st.lists(st.tuples(records, st.integers(0, 12)), min_size=1, max_size=3),
    st.integers(1, 300),
    st.integers(0, 1200),
)
def test_reading_goes_on_and_stays_near_what_is_left(
    partitions: list[tuple[list[int], int]], ahead: int, now: int
) -> None:
    found = {
        TopicPartition("t", number): left_from(pending, read)
        for number, (pending, read) in enumerate(partitions)
    }
    bound = time_bound(found, max_ahead_ms=ahead, now_ms=now)
    # The twin: the time of what is left rises only, and what has none is nowhere.
    left = []
    for pending, read in partitions:
        if read < len(pending):
            seen = [ms for ms in (pending[0], pending[read]) if ms >= 0]
            left += [max(seen)] if seen else []
    if not left or min(left) + ahead >= now:
        assert bound is None
        return
    assert bound is not None
    assert min(left) + ahead * 3 / 4 <= bound <= min(left) + ahead
    due = [each.next.timestamp_ms for each in found.values() if each.next and each.left]
    assert any(ms <= bound for ms in due)


@given(
    st.lists(st.none() | stamps, max_size=4),
    st.integers(1, 300),
    st.integers(1, 300),
    st.integers(0, 1200),
)
def test_a_batch_that_reads_whatever_comes_stays_near_what_it_may_leave(
    first: list[int | None], wanted: int, ahead: int, now: int
) -> None:
    pending = [None if ms is None else StampedOffset(9, ms) for ms in first]
    found = open_milliseconds(pending, wanted_ms=wanted, max_ahead_ms=ahead, now_ms=now)
    assert 0 <= found <= wanted
    # The twin: it may leave all that is pending, and what comes until it ends.
    left = [ms for ms in first if ms is not None and ms >= 0] + [now]
    latest = now + found
    if found:
        assert latest - min(left) <= ahead
    else:
        assert now + min(wanted, ahead // 4) > min(left) + ahead or now >= min(left) + ahead
    if min(left) == now:
        assert found == min(wanted, ahead)  # what is up to date reads on


def test_it_moves_in_quarters() -> None:
    bounds = {
        time_bound(times((ms, ms)), max_ahead_ms=400, now_ms=10_000) for ms in range(1000, 1200)
    }
    assert bounds == {1400, 1500}


def test_the_oldest_record_that_is_left_counts() -> None:
    found = times((100, 900), (300, 500), (50, None))
    assert time_bound(found, max_ahead_ms=4, now_ms=10_000) == 504


def test_a_record_behind_a_later_one_counts_as_late_as_that() -> None:
    assert time_bound(times((900, 100)), max_ahead_ms=4, now_ms=10_000) == 904


def test_there_is_no_bound_where_nothing_is_left_or_nothing_has_a_time() -> None:
    for found in ({}, times((5, None)), times((-1, -1)), times((None, None))):
        assert time_bound(found, max_ahead_ms=4, now_ms=10_000) is None


def test_there_is_no_bound_once_all_that_is_left_is_of_now_or_later() -> None:
    assert time_bound(times((996, 996)), max_ahead_ms=4, now_ms=1000) is None
    assert time_bound(times((995, 995)), max_ahead_ms=4, now_ms=1000) == 999
    assert time_bound(times((5000, 5000)), max_ahead_ms=4, now_ms=1000) is None


RANGES = split(WHOLE, 3)


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=40),
    st.tuples(*[st.integers(0, 15)] * 3),
    st.tuples(*[st.integers(1, 9)] * 3),
    st.integers(0, 40),
)
def test_what_is_surely_read_is_read(
    owners: list[int], positions: tuple[int, int, int], limits: tuple[int, int, int], end: int
) -> None:
    """A log by the range of each record; each range reads so many from its position on."""
    done = [
        Rectangle(OffsetRange(0, position), hashes)
        for hashes, position in zip(RANGES, positions, strict=True)
        if position
    ]
    reached = Progress.of(0, done)
    end = max(min(end, len(owners)), reached.stable)
    sure = surely_read(reached, end, zip(RANGES, limits, strict=True), NO_HASHES)
    read = set()
    for number, (position, limit) in enumerate(zip(positions, limits, strict=True)):
        pending = [at for at in range(position, end) if at < len(owners) and owners[at] == number]
        read |= set(pending[:limit])
    below = range(min(sure, len(owners)))
    assert all(at in read or at < positions[owners[at]] for at in below)
    assert reached.stable <= sure <= end
    slowest = min(zip(positions, limits, strict=True))
    assert sure > slowest[0] or sure == end


def test_parked_keys_and_ranges_that_hold_nothing_else_do_not_count() -> None:
    low, middle, _ = RANGES
    reached = Progress.of(0, [Rectangle(OffsetRange(0, 50), middle)])
    parked = KeyRanges.of_hashes([low.lo])
    assert surely_read(reached, 90, [(middle, 7)], parked) == 57
    point = type(low)(low.lo, low.lo + 1)
    assert surely_read(reached, 90, [(point, 7)], parked) == 90
    assert surely_read(reached, 90, [], parked) == 90
