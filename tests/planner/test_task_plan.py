"""From slices to tasks: fetch groups, of batch queries and of streams."""

from dataclasses import replace
from typing import Any

import pytest

from kshare.core.tasks import PlannedSlice, Ticket
from kshare.planner import StreamPlanner, plan_batch
from kshare.planner.task_plan import packed
from kshare.wire.sharing import chunks
from tests.support.fake_logs import FakeCluster, NothingParked, batch, planner, stream
from tests.support.planner import Feedback

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


# -- maxTasks --------------------------------------------------------------------------------------

MANY: Logs = {("t", number): (0, 20 + number) for number in range(30)}


def numbers_of(given: dict[str, str], logs: Logs = MANY) -> list[list[int]]:
    """The partitions that each task of a batch query reads."""
    tasks = plan_batch(batch(**given), FakeCluster(logs))
    return [[planned.slice.partition for planned in task.slices] for task in tasks]


def test_without_max_tasks_each_slice_has_a_task() -> None:
    assert numbers_of({}) == [[number] for number in range(30)]


@pytest.mark.parametrize("most", [1, 2, 7, 29, 30, 40])
def test_no_more_tasks_than_max_tasks(most: int) -> None:
    tasks = numbers_of({"maxTasks": str(most)})
    assert len(tasks) == min(most, 30)
    assert sorted(number for task in tasks for number in task) == [*range(30)]


def test_the_rows_do_not_depend_on_max_tasks() -> None:
    given = {"keyRanges": "3"}
    plain = {planned.slice for planned in slices(given, MANY)}
    assert {planned.slice for planned in slices({**given, "maxTasks": "4"}, MANY)} == plain


def test_auto_packs_what_is_small() -> None:
    logs: Logs = {**MANY, ("t", 30): (0, 50_000)}
    tasks = numbers_of({"maxTasks": "auto"}, logs)
    assert [30] in tasks
    assert len(tasks) == 3  # about 1,000 records, 0.1 ms each, in two tasks; and the large one
    assert sorted(number for task in tasks for number in task) == [*range(31)]


def test_a_stream_packs_by_what_it_knows_of_the_speed() -> None:
    options = batch(maxTasks="auto")
    planned = [PlannedSlice(each.slice) for each in slices({}, MANY)]
    assert len(packed(options, planned, lambda _: 1e-6)) == 1
    assert len(packed(options, planned, lambda _: 1.0)) == 30
    assert len(packed(options, planned, lambda _: None)) == len(packed(options, planned))


def test_what_is_measured_has_a_task_of_its_own() -> None:
    ticket = Ticket("h", 1, b"", "b", 0, hold=True)
    planned = [PlannedSlice(each.slice) for each in slices({}, MANY)]
    planned[3] = replace(planned[3], ticket=ticket)
    tasks = packed(batch(maxTasks="2"), planned)
    assert [len(task.slices) for task in tasks] == [1, 29]
    assert tasks[0].slices == (planned[3],)


def reporting(given: dict[str, str], logs: Logs = MANY) -> list[list[bool]]:
    """Which slices of each task of a stream's first batch report."""
    options = stream(startingOffsets="earliest", **given)
    made = StreamPlanner(options, FakeCluster(logs), parking=NothingParked(), feedback=Feedback())
    start = made.initial_offsets()
    tasks = made.tasks(start, made.latest_offsets(start, None))
    return [[planned.ticket is not None for planned in task.slices] for task in tasks]


@pytest.mark.parametrize("given", [{"minPartitions": "auto"}, {"keyRanges": "3"}])
def test_a_packed_task_says_once_where_it_runs(given: dict[str, str]) -> None:
    tasks = reporting({**given, "maxTasks": "4"})
    assert len(tasks) == 4
    assert all(task == [True] + [False] * (len(task) - 1) for task in tasks)
    assert all(task == [True] for task in reporting(given))


@pytest.mark.parametrize("limit", [{"maxRecordsPerTask": "5"}, {"rangeAssignor": "adaptive"}])
def test_a_packed_task_reports_each_slice_if_something_depends_on_it(limit: dict[str, str]) -> None:
    tasks = reporting({"minPartitions": "auto", "maxTasks": "4", **limit})
    assert len(tasks) == 4
    assert all(all(task) for task in tasks)
