"""How far a batch goes; the numbers are those of Spark's kafka source.

How far in event time a batch may read, against plain Python.

``maxBytesPerTrigger``: what a batch may read, against a log as a list of record batches.
"""

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.admission import (
    KnownSizes,
    PartitionTimes,
    Reach,
    StampedOffset,
    Window,
    WindowEnds,
    admit,
    share_bytes,
    should_wait,
    surely_read,
    time_bound,
    windows_of,
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


T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@dataclass
class Logs:
    """Record batches of partitions: the offset after each, and its size."""

    batches: dict[TopicPartition, list[tuple[int, int]]]
    known: bool = True
    asked: list[Window] = field(default_factory=list)

    def prepare(self, shares: object, /) -> None:
        pass

    def reach(self, window: Window, most: int, /) -> Reach:
        self.asked.append(window)
        end, size = window.start, 0
        for after, each in self.batches[window.partition]:
            if after <= window.start:
                continue
            if size + each > most:
                return Reach(end, size, each)
            end, size = min(after, window.end), size + each
            if end == window.end:
                break
        return Reach(window.end, size, None)

    def per_offset(self, partition: TopicPartition, /) -> float | None:
        batches = self.batches[partition]
        return sum(size for _, size in batches) / batches[-1][0] if self.known else None

    def size(self, partition: TopicPartition, start: int, end: int) -> int:
        """The bytes that a reader of these offsets fetches."""
        found, before = 0, 0
        for after, each in self.batches[partition]:
            found += each if after > start and before < end else 0
            before = after
        return found


batch_lists = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 500)), min_size=1, max_size=30)


def log_of(steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found, at = [], 0
    for offsets, size in steps:
        at += offsets
        found.append((at, size))
    return found


@st.composite
def cases(draw: st.DrawFn) -> tuple[Logs, list[Window]]:
    """Logs, and windows that begin where record batches do."""
    lists = draw(st.lists(batch_lists, min_size=1, max_size=4))
    logs = Logs(
        {TopicPartition("t", n): log_of(steps) for n, steps in enumerate(lists)},
        known=draw(st.booleans()),
    )
    windows = []
    for tp, batches in logs.batches.items():
        starts = [0, *(end for end, _ in batches[:-1])]
        positions = draw(st.sets(st.sampled_from(starts), min_size=1, max_size=4))
        windows += windows_of(tp, positions, batches[-1][0])
    return logs, windows


@given(cases(), st.integers(1, 5_000), st.integers(0, 9))
def test_no_more_bytes_than_the_limit_or_one_record_batch(
    case: tuple[Logs, list[Window]], most: int, turn: int
) -> None:
    logs, windows = case
    found = share_bytes(windows, most, logs, turn=turn)
    spans = [(w, found[w.partition].end(w.start)) for w in windows]
    read = [logs.size(w.partition, w.start, min(end, w.end)) for w, end in spans]
    first = windows[turn % len(windows)]
    one = logs.reach(first, 0).following
    assert one is not None
    assert sum(read) <= max(most, one)
    assert found[first.partition].end(first.start) > first.start  # it was its turn
    assert all(end >= w.start for w, end in spans)


@given(cases(), st.integers(1, 5_000))
def test_what_the_limit_has_left_is_used(case: tuple[Logs, list[Window]], most: int) -> None:
    logs, windows = case
    found = share_bytes(windows, most, logs)
    read = sum(
        logs.size(w.partition, w.start, min(found[w.partition].end(w.start), w.end))
        for w in windows
    )
    for window in windows:
        end = found[window.partition].end(window.start)
        rest = logs.reach(window._replace(start=max(min(end, window.end), window.start)), 0)
        assert rest.following is None or end >= window.end or read + rest.following > most


def test_partitions_get_bytes_by_what_they_have() -> None:
    logs = Logs(
        {T0: [(10 * n, 100) for n in range(1, 301)], T1: [(10 * n, 100) for n in range(1, 101)]}
    )
    windows = [Window(T0, 0, 3000), Window(T1, 0, 1000)]
    found = share_bytes(windows, 4_000, logs)
    assert found == {T0: WindowEnds((0,), (300,)), T1: WindowEnds((0,), (100,))}


def test_a_range_that_lags_does_not_take_what_the_others_need() -> None:
    """It stands at 0, the others at 900: each window gets half of the bytes."""
    logs = Logs({T0: [(10 * n, 100) for n in range(1, 201)]})
    found = share_bytes(windows_of(T0, [900, 0, 900], 2000), 2_000, logs)[T0]
    assert (found.end(0), found.end(900)) == (100, 1000)


def test_a_range_that_comes_to_where_others_stand_goes_on_with_them() -> None:
    logs = Logs({T0: [(10 * n, 100) for n in range(1, 201)]})
    found = share_bytes(windows_of(T0, [0, 30], 2000), 2_000, logs)[T0]
    assert (found.end(0), found.end(30)) == (200, 200)


def test_large_record_batches_have_their_turn() -> None:
    logs = Logs({T0: [(n, 10) for n in range(1, 101)], T1: [(1, 5_000)]})
    windows = [Window(T0, 0, 100), Window(T1, 0, 1)]
    ends = [share_bytes(windows, 100, logs, turn=turn)[T1].end(0) for turn in range(2)]
    assert ends == [0, 1]
    assert share_bytes(windows, 100, logs, turn=1)[T0].end(0) == 0


def test_nothing_to_read() -> None:
    assert share_bytes([], 100, Logs({})) == {}
    assert windows_of(T0, [10, 12], 10) == []
    assert WindowEnds((5,), (9,)).end(3) == 3


# -- what is known of a log ------------------------------------------------------------------------


@given(
    batch_lists,
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 2_000)), max_size=8),
    st.data(),
)
def test_what_is_known_is_what_the_log_says(
    steps: list[tuple[int, int]], looks: list[tuple[int, int]], data: st.DataObject
) -> None:
    batches = log_of(steps)
    end = batches[-1][0]
    known, logs = KnownSizes(), Logs({T0: batches})
    floor = 0
    for at, most in looks:
        start = max(at % end, floor)
        while (found := known.reach(start, end, most)) is None:
            frm, size = known.known_from(start)
            assert size == (logs.size(T0, start, frm) if frm > start else 0)
            count = data.draw(st.integers(1, 5))
            known.add(frm, [each for each in batches if each[0] > frm][:count])
        assert found == logs.reach(Window(T0, start, end), most)
        if data.draw(st.booleans()):
            floor = start
            known.forget(floor)


def test_record_batches_that_are_others_by_now_are_forgotten() -> None:
    known = KnownSizes()
    known.add(25, [(30, 7), (40, 7)])
    known.add(0, [(10, 5), (28, 5)])  # compacted meanwhile: one ends amid the other
    assert known.known_from(0) == (28, 10)
    assert known.reach(25, 40, 100) is None


def test_a_log_that_goes_back_is_another_one() -> None:
    known = KnownSizes()
    known.add(100, [(110, 50)])
    known.forget(105)
    assert known.reach(105, 110, 50) == Reach(110, 50, None)
    assert known.per_offset == 5.0
    known.forget(3)
    assert known.known_from(105) == (105, 0)


@pytest.mark.parametrize(("most", "end"), [(0, 3), (9, 3), (10, 10), (29, 10), (30, 20)])
def test_a_record_batch_that_begins_before_counts_whole(most: int, end: int) -> None:
    known = KnownSizes()
    known.add(0, [(10, 10), (20, 20), (30, 1_000)])
    found = known.reach(3, 30, most)
    assert found is not None
    assert found.end == end


def test_what_is_known_is_not_added_again() -> None:
    known = KnownSizes()
    known.add(0, [(10, 20)])
    known.add(0, [(10, 20), (20, 30)])
    known.add(20, [])
    assert known.known_from(0) == (20, 50)
    assert known.per_offset == 3.0
