"""From slices to tasks: fetch groups, of batch queries and of streams.

Pending work as slices.

minPartitions=auto: as many ranges as there are slots; a change has to last.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import WHOLE, HashRange
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Slice, TopicPartition
from kshare.core.region import Rectangle
from kshare.core.slice_end import SliceEnd
from kshare.core.slicing import RangeRequest
from kshare.core.tasks import PlannedSlice, Task, Ticket
from kshare.query.feedback.messages import Executor
from kshare.query.planner import StreamPlanner, plan_batch
from kshare.query.planner.task_plan import SlotCount, TaskSlots, packed
from kshare.ranges import round_robin
from kshare.read.sharing import chunks
from tests.support.fake_logs import FakeCluster, NothingParked, batch, planner, stream
from tests.support.planner import Feedback, Log, Query

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


@pytest.mark.parametrize("most", [1, 2])
def test_ranges_that_one_task_reads_have_no_siblings(most: int) -> None:
    """Each task has whole partitions."""
    tasks = plan_batch(batch(keyRanges="8", maxTasks=str(most)), FakeCluster(LOGS))
    assert len(tasks) == most
    assert {planned.fetch_group for task in tasks for planned in task.slices} == {None}


def test_a_task_is_one_member_however_many_ranges_it_reads() -> None:
    logs: Logs = {("t", 0): (0, 9_000)}
    tasks = plan_batch(batch(keyRanges="8", maxTasks="3"), FakeCluster(logs))
    assert sorted(len(task.slices) for task in tasks) == [2, 3, 3]
    for number, task in enumerate(tasks):
        (group,) = {planned.fetch_group for planned in task.slices}
        assert group is not None
        assert (group.member, group.ranges) == (number, ((0, 9_000, 3),))


def test_tasks_whose_offsets_alternate_share_none() -> None:
    """Cut by offset and packed, each task reads offsets between those of others."""
    options = batch(splitBy="offset", minPartitions="9", maxTasks="2")
    tasks = plan_batch(options, FakeCluster({("t", 0): (0, 9_000)}))
    read = [[planned.slice.offsets for planned in task.slices] for task in tasks]
    assert len(read) == 2
    assert max(part[0].start for part in read) < min(part[-1].end for part in read)
    assert {planned.fetch_group for task in tasks for planned in task.slices} == {None}


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


TICKET = Ticket("h", 1, b"", "b", 0)


def batch_of(due: Sequence[bool], name: str = "b") -> list[PlannedSlice]:
    """A batch with a slice for each partition; some of them are due to be measured."""
    return [
        PlannedSlice(
            Slice("t", number, (Rectangle(OffsetRange(0, 20), WHOLE),)),
            ticket=replace(TICKET, batch=name, number=number, hold=hold),
        )
        for number, hold in enumerate(due)
    ]


def measured(tasks: Iterable[Task]) -> list[int]:
    """The partitions whose tasks are measured."""
    each = [planned for task in tasks for planned in task.slices]
    return [one.slice.partition for one in each if one.ticket is not None and one.ticket.hold]


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 12), st.text(max_size=3))
def test_a_number_is_a_maximum(due: list[bool], most: int, name: str) -> None:
    planned, options = batch_of(due, name), batch(maxTasks=str(most))
    tasks = packed(options, planned)
    assert len(tasks) == min(most, len(due))
    each = [one for task in tasks for one in task.slices]
    assert sorted(one.slice.partition for one in each) == [*range(len(due))]
    alone = [task.slices[0].slice.partition for task in tasks if len(task.slices) == 1]
    held = measured(tasks)
    assert set(held) <= set(alone)
    room = most if len(due) <= most else most // 2
    assert len(held) == min(sum(due), room)
    assert all(due[number] for number in held)
    assert packed(options, planned) == tasks
    # Nothing else of what is read changes: the others report, too.
    for one in each:
        before = planned[one.slice.partition]
        assert one.ticket is not None
        assert before.ticket is not None
        assert replace(one, ticket=replace(one.ticket, hold=before.ticket.hold)) == before


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_auto_measures_all_that_are_due(due: list[bool]) -> None:
    tasks = packed(batch(maxTasks="auto"), batch_of(due))
    assert sorted(measured(tasks)) == [number for number, hold in enumerate(due) if hold]
    held = {number for task in tasks if len(task.slices) > 1 for number in measured([task])}
    assert not held


def test_slices_of_unknown_speed_are_measured_first() -> None:
    known: set[int] = set()

    def speed(planned: PlannedSlice) -> float | None:
        return 0.1 if planned.slice.partition in known else None

    for number in range(15):
        tasks = packed(batch(maxTasks="4"), batch_of([True] * 30, str(number)), speed)
        assert known.isdisjoint(measured(tasks))
        known |= {*measured(tasks)}
    assert len(known) == 30


def test_each_slice_has_its_turn() -> None:
    """Also if another one is always due, or only in every other batch."""
    counts = Counter(
        number
        for name in range(900)
        for number in measured(
            packed(
                batch(maxTasks="3"),
                batch_of([n == 0 or (n - name) % 2 == 1 for n in range(9)], str(name)),
                lambda _: 0.1,
            )
        )
    )
    assert sorted(counts) == [*range(9)]
    assert min(counts.values()) > 40


def test_the_first_batch_of_a_stream_keeps_to_the_number() -> None:
    for most in (1, 2, 7):
        tasks = reporting({"maxTasks": str(most), "targetTaskDuration": "10s"})
        assert len(tasks) == most
        assert all(all(task) for task in tasks)
    assert len(reporting({"maxTasks": "auto", "targetTaskDuration": "10s"})) == 30


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


def own_assignor(request: RangeRequest) -> dict[TopicPartition, tuple[HashRange, ...]]:
    return {tp: tuple(parts) for tp, parts in round_robin(request).items()}


@pytest.mark.parametrize(
    "limit",
    [
        {"maxRecordsPerTask": "5"},
        {"rangeAssignor": "adaptive"},
        {"rangeAssignor": f"{__name__}.own_assignor"},  # it may look at what was observed
    ],
)
def test_a_packed_task_reports_each_slice_if_something_depends_on_it(limit: dict[str, str]) -> None:
    tasks = reporting({"minPartitions": "auto", "maxTasks": "4", **limit})
    assert len(tasks) == 4
    assert all(all(task) for task in tasks)


def test_a_range_of_one_key_is_not_cut() -> None:
    """rangeAssignor=adaptive gives a hot key a range of its own, and no key is ever cut."""
    log, rng = Log(), random.Random(1)
    query = Query(log, keyRanges="4", rangeAssignor="adaptive", maxRecordsPerPartition="100")
    for _ in range(3):
        log.grow(rng.choice([b"hot", b"hot", b"k%d" % rng.randrange(1000)]) for _ in range(2000))
        widths = [planned.slice.hashes.width for planned in query.trigger()]
    assert 1 in widths
    query.check_all()


def slots_after(*seen: int) -> int | None:
    return reduce(SlotCount.see, seen, SlotCount()).slots


@pytest.mark.parametrize(
    ("seen", "slots"),
    [
        ((), None),
        ((0, 0), None),
        ((4,), 4),
        ((4, 8, 8), 4),
        ((4, 8, 8, 8), 8),
        ((4, 8, 8, 4, 8), 4),
        ((4, 8, 8, 6, 8, 8), 4),
        ((4, 8, 0, 8, 0, 8), 8),
        ((4, 2, 2, 2), 2),
    ],
)
def test_a_change_counts_when_it_has_lasted(seen: tuple[int, ...], slots: int | None) -> None:
    assert slots_after(*seen) == slots


@given(st.lists(st.integers(0, 3)))
def test_the_number_is_one_that_was_seen(seen: list[int]) -> None:
    slots = slots_after(*seen)
    assert slots is None or slots in seen
    assert (slots is None) == (not any(seen))


def executors_counted(batches: list[tuple[int, set[str]]], known: set[str]) -> list[int | None]:
    """The slots after each of some batches, given by its tasks and by who ran them.

    A number is given often enough to count; each executor has one slot.
    """
    slots, counts = TaskSlots(), []
    for tasks, ran in batches:
        slots.start_batch(tasks)
        slots.observe(ran)
        slots.finish_batch(dict.fromkeys(known, 1))
        counts.append(slots.slots)
    return counts


ALL = {"1@a", "2@b", "3@c"}
SOME = {"1@a"}


def test_an_executor_without_a_task_in_three_batches_does_not_count() -> None:
    # Two batches without the others, three with the smaller number.
    gone = [(3, ALL), *[(3, SOME)] * 6]
    assert executors_counted(gone, ALL) == [3, 3, 3, 3, 3, 1, 1]
    # It comes back before the third, and they begin anew.
    back = [(3, ALL), *[(3, SOME), (3, SOME), (3, ALL)] * 4]
    assert executors_counted(back, ALL) == [3] * 13


def test_batches_without_reports_say_nothing_of_who_is_gone() -> None:
    lost: list[tuple[int, set[str]]] = [(3, ALL), *[(3, set[str]())] * 9]
    assert executors_counted(lost, ALL) == [3] * 10


def test_batches_with_fewer_tasks_than_slots_say_nothing_of_who_is_gone() -> None:
    """As with maxTasks: an executor without a task may just not have been needed."""
    assert executors_counted([(3, ALL), *[(2, SOME)] * 9], ALL) == [3] * 10


def test_an_executor_that_is_not_known_does_not_count() -> None:
    assert executors_counted([(1, SOME), *[(3, ALL)] * 3], {"1@a", "2@b"}) == [1, 1, 1, 2]


def test_an_executor_that_is_replaced_counts_once() -> None:
    others = {"1@a", "2@b", "4@d"}
    assert executors_counted([(3, ALL), *[(3, others)] * 9], ALL | others) == [3] * 10


class Located(Feedback):
    """Every task runs on one of some executors, in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.hosts = ["1@a"]

    def executors(self, batch: str) -> dict[int, Executor]:
        return {n: Executor(self.hosts[n % len(self.hosts)], 2) for n in range(20)}

    def reports(self, batch: str, *, wait_seconds: float = 0.0) -> dict[int, SliceEnd]:
        return {}


def ranges_of_batches(made: StreamPlanner, cluster: FakeCluster) -> Iterator[int]:
    """How many tasks each of some batches has."""
    start, partition = made.initial_offsets(), TopicPartition("t", 0)
    while True:
        first, end = cluster.logs[partition]
        cluster.logs[partition] = (first, end + 1_000)
        after = made.latest_offsets(start, None)
        yield len(made.tasks(start, after))
        start = after


def test_ranges_follow_the_executors() -> None:
    feedback, cluster = Located(), FakeCluster({("t", 0): (0, 1_000)})
    options = stream(minPartitions="auto", startingOffsets="earliest")
    made = StreamPlanner(options, cluster, parking=NothingParked(), feedback=feedback)
    counts = ranges_of_batches(made, cluster)
    assert list(islice(counts, 5)) == [1, 1, 2, 2, 2]
    feedback.hosts += ["2@b", "3@c"]
    # Two tasks show two executors, and then four tasks show the third.
    assert list(islice(counts, 9)) == [2, 2, 2, 4, 4, 4, 4, 6, 6]
    # All but one have gone.
    feedback.hosts = feedback.hosts[:1]
    assert list(islice(counts, 8)) == [6, 6, 6, 6, 6, 2, 2, 2]
