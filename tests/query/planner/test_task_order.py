"""The order of a batch's tasks: a permutation, whatever the assignor does; siblings together."""

import logging
import pickle
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.assignment import (
    ApplicationState,
    AssignmentError,
    KafkaStreamsAssignment,
    TaskAssignment,
    TaskAssignor,
    TaskId,
)
from kshare.core.hashing import WHOLE, split
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Rectangle, Slice
from kshare.core.tasks import PlannedSlice, Task
from kshare.errors import OptionsError, TaskAssignmentException
from kshare.options import SourceOptions, parse_options
from kshare.query.feedback.messages import Executor
from kshare.query.planner import task_groups
from kshare.query.planner.task_groups import TaskGroups
from kshare.query.planner.task_order import TaskOrder, by_rounds
from tests.support.clock import Clock


def options(**more: str) -> SourceOptions:
    given = {"kafka.bootstrap.servers": "localhost:9", "subscribe": "t", **more}
    return parse_options(given, streaming=True).options


def tasks(partitions: int, ranges: int) -> tuple[Task, ...]:
    return tuple(
        Task((PlannedSlice(Slice("t", partition, (Rectangle(OffsetRange(0, 9), hashes),))),))
        for partition in range(partitions)
        for hashes in split(WHOLE, ranges)
    )


def known(order: TaskOrder, planned: Sequence[Task], executors: dict[str, int]) -> None:
    """Each executor has run some task; the first ones their turns last."""
    names, slices = list(executors), slices_of(planned)
    for n in reversed(range(max(len(slices), len(names)))):
        name = names[n % len(names)]
        piece = slices[n % len(slices)]
        order.observe(slices, {piece.slice: Executor(name, executors[name])})


def slices_of(planned: Sequence[Task]) -> list[PlannedSlice]:
    return [piece for task in planned for piece in task.slices]


def partition_of(task: Task) -> int:
    return task.slices[0].slice.partition


def dealt(planned: Sequence[Task], slots: Sequence[int]) -> list[list[Task]]:
    """What each executor gets, as ``TaskSchedulerImpl.resourceOffers`` deals a stage out."""
    waiting = list(planned)
    got: list[list[Task]] = [[] for _ in slots]
    free = list(slots)
    while waiting and any(free):
        for executor in range(len(slots)):
            if waiting and free[executor]:
                got[executor].append(waiting.pop(0))
                free[executor] -= 1
    return got


def test_both_halves_of_a_partition_on_one_executor() -> None:
    """The reference's example: 2 partitions, 2 instances of 2 threads."""
    order, planned = TaskOrder(options()), tasks(2, 2)
    known(order, planned, {"1@a": 2, "2@a": 2})
    got = dealt(order.order(planned), [2, 2])
    assert [{partition_of(task) for task in one} for one in got] == [{0}, {1}]


@given(st.integers(1, 6), st.integers(1, 5), st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_an_order_is_a_permutation_and_keeps_siblings_together(
    partitions: int, ranges: int, slots: list[int]
) -> None:
    order, planned = TaskOrder(options()), tasks(partitions, ranges)
    known(order, planned, {f"{n}@host": count for n, count in enumerate(slots)})
    ordered = order.order(planned)
    assert Counter(ordered) == Counter(planned)
    if len(planned) == sum(slots) and len(set(slots)) == 1:
        pairs = sum(len({partition_of(t) for t in one}) for one in dealt(ordered, slots))
        # A partition is split only where the executors' slots do not fit.
        assert pairs <= partitions + len(slots) - 1


def test_rounds() -> None:
    assert by_rounds([([0, 1], 2), ([2, 3], 2)]) == [0, 2, 1, 3]
    assert by_rounds([([0, 1, 4], 2), ([2, 3, 5], 1)]) == [0, 2, 1, 4, 3, 5]
    assert by_rounds([([], 2), ([1], 1)]) == [1]
    assert by_rounds([]) == []


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), max_size=6))
def test_rounds_have_each_task_once(shape: list[tuple[int, int]]) -> None:
    numbers = iter(range(100))
    placed = [([next(numbers) for _ in range(count)], slots) for count, slots in shape]
    assert sorted(by_rounds(placed)) == sorted(n for some, _ in placed for n in some)


def test_one_executor_needs_no_order() -> None:
    order, planned = TaskOrder(options()), tasks(2, 2)
    assert order.order(planned) == planned
    known(order, planned, {"driver@a": 0})
    assert order.order(planned) == planned


def test_tasks_cut_by_offset_stay_as_they_are() -> None:
    """Two of a partition have no names of their own, by which they could be placed."""
    planned = tuple(
        Task((PlannedSlice(Slice("t", 0, (Rectangle(OffsetRange(n, n + 9), WHOLE),))),))
        for n in (9, 0)
    )
    order = TaskOrder(options())
    known(order, planned, {"1@a": 1, "2@a": 1})
    assert order.order(planned) == planned


class Recorder(TaskAssignor):
    """Answers with what a test says, and counts."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.asked = answer, 0
        self.told: list[AssignmentError] = []
        self.unpicklable: object = None
        self.configured = 0

    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        self.asked += 1
        self.state = application_state
        found: TaskAssignment = self.answer(application_state)
        return found

    def on_assignment_computed(self, assignment: Any, subscription: Any, error: Any) -> None:
        self.told.append(error)
        self.sent = {name: each.active_tasks for name, each in assignment.assignments.items()}

    def configure(self, configs: Any) -> None:
        self.configs = dict(configs)
        self.configured += 1


def all_on_first(state: ApplicationState) -> TaskAssignment:
    first, *others = state.states
    return TaskAssignment(
        (
            KafkaStreamsAssignment(first, frozenset(state.all_tasks)),
            *(KafkaStreamsAssignment(other) for other in others),
        )
    )


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder(all_on_first)
    monkeypatch.setitem(sys.modules, "an_assignor", SimpleNamespace(made=made))
    return made


def placed_by(recorder: Recorder, planned: Sequence[Task]) -> TaskOrder:
    given = {"taskAssignor": "an_assignor.made", "taskAssignor.secret": "hunter22"}
    order = TaskOrder(options(**given))
    known(order, planned, {"1@a": 1, "2@a": 1})
    return order


def test_the_options_reach_an_assignor(recorder: Recorder) -> None:
    given = {"taskAssignor": "an_assignor:made", "taskAssignor.Wanted": "x", "keyRanges": "2"}
    order, planned = TaskOrder(options(**given)), tasks(2, 2)
    known(order, planned, {"1@a": 3, "2@a": 1})
    order.order(planned)
    assert recorder.configs == {"wanted": "x"}
    assert {str(p): s.num_processing_threads for p, s in recorder.state.states.items()} == {
        "1@a": 3,
        "2@a": 1,
    }
    assert [str(task).partition("-")[0] for task in recorder.state.all_tasks] == [
        "0_0", "0_0", "0_1", "0_1",
    ]  # fmt: skip
    before = [len(state.previous_active_tasks) for state in recorder.state.states.values()]
    assert before == [2, 2]
    assert recorder.told == [AssignmentError.NONE]


@pytest.mark.parametrize("path", ["made", "make"])
def test_an_assignor_is_made_and_configured_once(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """What is made when options are checked is what plans: an instance, or what a function made."""
    made: list[Recorder] = []

    def make() -> Recorder:
        made.append(recorder)
        return recorder

    monkeypatch.setattr(sys.modules["an_assignor"], "make", make, raising=False)
    planned = tasks(2, 2)
    order = TaskOrder(options(taskAssignor=f"an_assignor.{path}"))
    known(order, planned, {"1@a": 1, "2@a": 1})
    order.order(planned)
    assert (recorder.asked, recorder.configured) == (1, 1)
    assert len(made) == (path == "make")


def test_options_for_another_process_come_without_the_assignor(recorder: Recorder) -> None:
    """It need not be picklable, and tasks have no use for it; a planner there makes its own."""
    recorder.unpicklable = lambda: None
    given = options(**{"taskAssignor": "an_assignor.made", "taskAssignor.Wanted": "x"})
    sent = pickle.dumps(given)
    assert b"Recorder" not in sent
    got = pickle.loads(sent)
    assert (got, hash(got), repr(got)) == (given, hash(given), repr(given))
    planned = tasks(2, 2)
    order = TaskOrder(got)
    known(order, planned, {"1@a": 1, "2@a": 1})
    order.order(planned)
    assert (recorder.asked, recorder.configured, recorder.configs) == (1, 2, {"wanted": "x"})


def test_a_plan_that_did_not_change_is_not_computed_again(recorder: Recorder) -> None:
    planned = tasks(3, 2)
    order = placed_by(recorder, planned)
    first = order.order(planned)
    assert order.order(planned) == first
    assert recorder.asked == 1
    order.order(tasks(3, 3))
    assert recorder.asked == 2
    order.observe(slices_of(planned)[:1], {planned[0].slices[0].slice: Executor("3@b", 1)})
    order.order(tasks(3, 3))
    assert recorder.asked == 3


def raises(error: Exception) -> Any:
    def answer(_: ApplicationState) -> TaskAssignment:
        raise error

    return answer


def unknown_process(state: ApplicationState) -> TaskAssignment:
    answer = all_on_first(state)
    return TaskAssignment(
        (*answer.assignment, KafkaStreamsAssignment(type(next(iter(state.states)))("no")))
    )


def all_twice_and_unknown(state: ApplicationState) -> TaskAssignment:
    """The second fault is not the one that validation finds."""
    first, *others = all_on_first(state).assignment
    tasks = first.active | {TaskId(0, 99)}
    return TaskAssignment((first, *(replace(other, active=tasks) for other in others)))


@pytest.mark.parametrize(
    ("answer", "said", "told"),
    [
        (raises(TaskAssignmentException("not now")), "cannot answer", []),
        (raises(ZeroDivisionError("oh")), "failed: ZeroDivisionError", []),
        (lambda _: "nonsense", "failed", []),
        (raises(ValueError("as hunter22")), "ValueError (its text holds the value of", []),
        (lambda s: TaskAssignment(all_on_first(s).assignment[:1]), "MISSING_PROCESS_ID", [
            AssignmentError.MISSING_PROCESS_ID
        ]),
        (unknown_process, "UNKNOWN_PROCESS_ID", [AssignmentError.UNKNOWN_PROCESS_ID]),
        (all_twice_and_unknown, "ACTIVE_TASK_ASSIGNED_MULTIPLE_TIMES", [
            AssignmentError.ACTIVE_TASK_ASSIGNED_MULTIPLE_TIMES
        ]),
    ],
)  # fmt: skip
def test_a_faulty_assignor_loses_nothing(
    recorder: Recorder, caplog: pytest.LogCaptureFixture, answer: Any, said: str, told: list[Any]
) -> None:
    """It is asked again at once, once; the last assignment stays; then at the next batch."""
    planned = tasks(2, 2)
    order = placed_by(recorder, planned)
    before = order.order(planned)
    recorder.answer, recorder.asked = answer, 0
    recorder.told.clear()
    more = tasks(3, 2)
    with caplog.at_level(logging.WARNING, "kshare.planner"):
        after = order.order(more)
    assert Counter(after) == Counter(more)
    kept = [task for task in after if task in before]
    assert kept == [task for task in before if task in more]
    assert recorder.asked == 2
    assert recorder.told == told * 2
    if told:  # what stays, as far as it is still there
        assert {name: set(had) for name, had in recorder.sent.items()} == {
            "1@a": set(recorder.state.all_tasks) - {TaskId(0, 2, part) for part in split(WHOLE, 2)},
            "2@a": set(),
        }
    assert said in caplog.text
    assert "hunter22" not in caplog.text
    assert "an_assignor.made" in caplog.text
    recorder.answer = all_on_first
    order.order(more)
    assert recorder.asked == 3


def test_entries_of_one_executor_count_together(
    recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    """And the assignor is told what is done."""

    def one_by_one(state: ApplicationState) -> TaskAssignment:
        first, second = state.states
        entries = [KafkaStreamsAssignment(first, frozenset([task])) for task in state.all_tasks]
        return TaskAssignment((*entries, KafkaStreamsAssignment(second)))

    recorder.answer = one_by_one
    planned = tasks(2, 2)
    order = placed_by(recorder, planned)
    assert order.order(planned) == planned  # all of them are the first executor's
    assert recorder.told == [AssignmentError.NONE]
    assert recorder.sent == {"1@a": tuple(recorder.state.all_tasks), "2@a": ()}
    assert caplog.messages == []


def test_what_an_assignor_leaves_out_is_read_all_the_same(
    recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told that such an answer is not used."""
    recorder.answer = lambda state: TaskAssignment(
        tuple(KafkaStreamsAssignment(process) for process in state.states)
    )
    planned = tasks(2, 2)
    order = placed_by(recorder, planned)
    assert Counter(order.order(planned)) == Counter(planned)
    assert "left out 4 tasks" in caplog.text
    assert "no member gets task 0_0-[0," in caplog.text
    assert recorder.told == [AssignmentError.UNKNOWN_TASK_ID] * 2
    assert recorder.sent == {"1@a": (), "2@a": ()}


def test_whom_tasks_tell_where_they_run() -> None:
    clock, slices = Clock(0.0), slices_of(tasks(2, 2))
    order = TaskOrder(options(), clock=clock.monotonic)
    assert not order.should_locate(slices_of(tasks(3, 1)))  # nobody shares a partition
    assert [order.should_locate(slices) for _ in range(4)] == [
        True,
        True,
        True,
        False,
    ]
    clock.now = 61.0
    assert not order.should_locate(slices)  # nobody has ever answered
    order.observe(slices, {slices[0].slice: Executor("1@a", 2)})
    asked = []
    for clock.now in (61.0, 61.0, 120.9, 121.0):
        asked.append(order.should_locate(slices))
    assert asked == [True, False, False, True]  # once a minute
    clock.now = 661.0
    assert order.executors == {"1@a": 2}
    clock.now = 661.1
    assert order.executors == {}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere.to.be.found", "nowhere"),
        ("json.dumps", "dumps"),
        ("Sticky", "StickyTaskAssignor"),
    ],
)
def test_no_such_assignor(name: str, said: str) -> None:
    with pytest.raises(OptionsError, match="taskAssignor") as raised:
        options(taskAssignor=name)
    assert said in str(raised.value)


def test_a_config_out_of_its_limits() -> None:
    with pytest.raises(OptionsError, match=r"max.warmup.replicas"):
        options(**{"taskAssignor.max.warmup.replicas": "0"})


def test_kafkas_name_of_the_option() -> None:
    assert options(**{"task.assignor.class": "StickyTaskAssignor"}).task_assignor == (
        "StickyTaskAssignor"
    )


# -- what an assignor asks for, and what fails in it ----------------------------------------------


def test_an_assignor_that_fails_when_it_is_told_keeps_its_answer(
    recorder: Recorder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise ValueError("as hunter22")

    monkeypatch.setattr(recorder, "on_assignment_computed", fails)
    planned = tasks(2, 2)
    order = placed_by(recorder, planned)
    first = order.order(planned)
    assert order.order(planned) == first
    assert recorder.asked == 1  # the answer counts
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "on_assignment_computed failed" in caplog.text
    assert "hunter22" not in caplog.text


def test_an_assignor_is_asked_again_when_its_deadline_has_passed(recorder: Recorder) -> None:
    clock = Clock(1_000.0)

    def with_deadlines(state: ApplicationState) -> TaskAssignment:
        first, second = all_on_first(state).assignment
        return TaskAssignment(
            (
                first.with_followup_rebalance(1_060_000),
                second.with_followup_rebalance(datetime.fromtimestamp(1_030, UTC)),
            )
        )

    recorder.answer = with_deadlines
    planned = tasks(2, 2)
    order = TaskOrder(options(taskAssignor="an_assignor.made"), wall_clock=lambda: clock.now)
    known(order, planned, {"1@a": 1, "2@a": 1})
    asked = []
    for clock.now in (1_000.0, 1_029.9, 1_030.0, 1_031.0):
        order.order(planned)
        asked.append(recorder.asked)
    assert asked == [1, 1, 2, 3]  # it has set no later one


def test_a_batch_without_tasks_has_no_order() -> None:
    order, planned = TaskOrder(options()), tasks(2, 2)
    known(order, planned, {"1@a": 2, "2@a": 2})
    assert order.order(()) == ()


def test_a_task_of_several_slices_goes_by_its_first() -> None:
    planned = tasks(4, 1)
    packed = [Task((*planned[n].slices, *planned[n + 1].slices)) for n in (0, 2)]
    order = TaskOrder(options(taskAssignor="StickyTaskAssignor"))
    known(order, packed, {"1@a": 1, "2@a": 1})
    assert Counter(order.order(packed)) == Counter(packed)


def test_where_ranges_ran_that_are_cut_no_more_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_groups, "_RAN_MAX", 100)
    groups = task_groups.TaskGroups(options())
    ids = TaskGroups.slice_ids([each.slice for task in tasks(1, 300) for each in task.slices])
    assert ids is not None
    for id_ in (*ids[:60], *ids[50:], *ids[50:60]):
        groups.observe(id_, "executor-1")
    assert set(groups._ran) == {*ids[210:], *ids[50:60]}
