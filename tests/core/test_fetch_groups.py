"""Which tasks read the same offsets, and that planners tell them."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kshare.core.fetch_groups import GROUP_MAX, fetch_groups
from kshare.core.offsets import OffsetRange
from kshare.planner import plan_batch
from kshare.wire.sharing import chunks
from tests.planner.test_stream import FakeCluster, batch, planner

RANGES = st.tuples(st.integers(0, 40), st.integers(1, 20)).map(lambda p: (p[0], p[0] + p[1]))


@given(st.lists(RANGES, max_size=12))
def test_tasks_are_a_group_if_two_read_an_offset(parts: list[tuple[int, int]]):
    found = fetch_groups("q", "b", [OffsetRange(*part) for part in parts])
    overlap = any(max(a[0], b[0]) < min(a[1], b[1]) for i, a in enumerate(parts) for b in parts[:i])
    if not overlap:
        assert found == [None] * len(parts)
        return
    for number, group in enumerate(found):
        assert group is not None
        assert (group.member, group.size) == (number, len(parts))
        read = [(start, end) for start, end, count in group.ranges for _ in range(count)]
        assert read == parts


def test_groups_have_a_limit():
    found = fetch_groups("q", "b", [OffsetRange(0, 9)] * (2 * GROUP_MAX + 1))
    assert [group and (group.number, group.member) for group in found] == [
        *((number, member) for number in (0, 1) for member in range(GROUP_MAX)),
        None,
    ]
    assert found[0] is not None
    assert found[0].ranges == ((0, 9, GROUP_MAX),)


LOGS = {("t", 0): (0, 9_000), ("t", 1): (5, 8_000)}


def test_the_ranges_of_a_batch_query():
    tasks = plan_batch(batch(keyRanges="3"), FakeCluster(LOGS))  # type: ignore[arg-type]
    known = [
        (t.slice.partition, t.fetch_group.member, t.fetch_group.ranges)
        for t in tasks
        if t.fetch_group
    ]
    assert sorted(known) == [
        *((0, number, ((0, 9_000, 3),)) for number in range(3)),
        *((1, number, ((5, 8_000, 3),)) for number in range(3)),
    ]
    assert len({task.fetch_group.query for task in tasks if task.fetch_group}) == 1
    again = plan_batch(batch(keyRanges="3"), FakeCluster(LOGS))  # type: ignore[arg-type]
    assert again[0].fetch_group != tasks[0].fetch_group  # another run


def test_who_reads_alone_has_none():
    alone: list[dict[str, str]] = [
        {},
        {"minPartitions": "8", "splitBy": "offset"},
        {"keyRanges": "3", "max.bytes.key.range.results": "0"},
        {"keyRanges": "3", "maxBytesKeyRangeResults": "0"},
    ]
    for options in alone:
        tasks = plan_batch(batch(**options), FakeCluster(LOGS))  # type: ignore[arg-type]
        assert [task.fetch_group for task in tasks] == [None] * len(tasks)


def test_a_stream_names_its_batches_and_frees_what_is_left(monkeypatch: Any):
    freed: list[str] = []
    monkeypatch.setattr(chunks, "forget_query", freed.append)
    cluster = FakeCluster({("t", 0): (0, 9_000)})
    made = planner(cluster, keyRanges="2", startingOffsets="earliest")
    starts = made.initial_offsets()
    first = made.latest_offsets(starts, 5_000)
    second = made.latest_offsets(first, 5_000)
    found = [*made.tasks(starts, first), *made.tasks(first, second)]
    groups = [task.fetch_group for task in found if task.fetch_group is not None]
    assert len(groups) == len(found) == 4
    assert len({group.query for group in groups}) == 1
    assert [group.batch for group in groups] == [groups[0].batch] * 2 + [groups[2].batch] * 2
    assert groups[0].batch != groups[2].batch
    made.close()
    assert freed == [groups[0].query]


def test_a_stream_without_fetch_groups_frees_nothing(monkeypatch: Any):
    monkeypatch.setattr(chunks, "forget_query", None)
    made = planner(FakeCluster({("t", 0): (0, 90)}), startingOffsets="earliest")
    starts = made.initial_offsets()
    (task,) = made.tasks(starts, made.latest_offsets(starts, None))
    assert task.fetch_group is None
    made.close()


def test_small_batches_do_not_share():
    """To look for a chunk takes as long as to fetch one record."""
    small = {("t", 0): (0, 499), ("t", 1): (0, 500)}
    tasks = plan_batch(batch(keyRanges="2"), FakeCluster(small))  # type: ignore[arg-type]
    shared = {(task.slice.partition, task.fetch_group is not None) for task in tasks}
    assert shared == {(0, False), (1, True)}
