"""``maxBytesPerTrigger``: what a batch may read, against a log as a list of record batches."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.byte_bound import (
    KnownSizes,
    Reach,
    Window,
    WindowEnds,
    share_bytes,
    windows_of,
)
from kshare.core.progress import TopicPartition

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
