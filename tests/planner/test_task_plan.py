"""From slices to tasks: fetch groups, of batch queries and of streams."""

from typing import Any

from kshare.core.tasks import PlannedSlice
from kshare.planner import StreamPlanner, plan_batch
from kshare.wire.sharing import chunks
from tests.support.fake_logs import FakeCluster, batch, planner

Logs = dict[tuple[str, int], tuple[int, int]]
LOGS: Logs = {("t", 0): (0, 9_000), ("t", 1): (5, 8_000)}


def slices(given: dict[str, str], logs: Logs = LOGS) -> list[PlannedSlice]:
    """What the tasks of a batch query read."""
    tasks = plan_batch(batch(**given), FakeCluster(logs))
    return [planned for task in tasks for planned in task.slices]


def slices_of(planner: StreamPlanner, start: Any, end: Any) -> list[PlannedSlice]:
    return [planned for task in planner.tasks(start, end) for planned in task.slices]


def test_the_ranges_of_a_batch_query() -> None:
    tasks = slices({"keyRanges": "3"})
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
    again = slices({"keyRanges": "3"})
    assert again[0].fetch_group != tasks[0].fetch_group  # another run


def test_who_reads_alone_has_none() -> None:
    alone: list[dict[str, str]] = [
        {},
        {"minPartitions": "8", "splitBy": "offset"},
        {"keyRanges": "3", "max.bytes.key.range.results": "0"},
        {"keyRanges": "3", "maxBytesKeyRangeResults": "0"},
    ]
    for options in alone:
        tasks = slices(options)
        assert [task.fetch_group for task in tasks] == [None] * len(tasks)


def test_a_stream_names_its_batches_and_frees_what_is_left(monkeypatch: Any) -> None:
    freed: list[str] = []
    monkeypatch.setattr(chunks, "forget_query", freed.append)
    cluster = FakeCluster({("t", 0): (0, 9_000)})
    made = planner(cluster, keyRanges="2", startingOffsets="earliest")
    starts = made.initial_offsets()
    first = made.latest_offsets(starts, 5_000)
    second = made.latest_offsets(first, 5_000)
    found = [*slices_of(made, starts, first), *slices_of(made, first, second)]
    groups = [planned.fetch_group for planned in found if planned.fetch_group is not None]
    assert len(groups) == len(found) == 4
    assert len({group.query for group in groups}) == 1
    assert [group.batch for group in groups] == [groups[0].batch] * 2 + [groups[2].batch] * 2
    assert groups[0].batch != groups[2].batch
    made.close()
    assert freed == [groups[0].query]


def test_a_stream_without_fetch_groups_frees_nothing(monkeypatch: Any) -> None:
    monkeypatch.setattr(chunks, "forget_query", None)
    made = planner(FakeCluster({("t", 0): (0, 90)}), startingOffsets="earliest")
    starts = made.initial_offsets()
    (planned,) = slices_of(made, starts, made.latest_offsets(starts, None))
    assert planned.fetch_group is None
    made.close()


def test_small_batches_do_not_share() -> None:
    """To look for a chunk takes as long as to fetch one record."""
    small = {("t", 0): (0, 499), ("t", 1): (0, 500)}
    tasks = slices({"keyRanges": "2"}, small)
    shared = {(task.slice.partition, task.fetch_group is not None) for task in tasks}
    assert shared == {(0, False), (1, True)}
