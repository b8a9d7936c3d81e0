"""KIP-924's values: names, order, limits, what cannot be built."""

import math
import pickle
import traceback
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.assignment import (
    ApplicationState,
    AssignedTask,
    Assignment,
    AssignmentConfigs,
    AssignmentError,
    GroupAssignment,
    KafkaStreamsAssignment,
    KafkaStreamsState,
    ProcessId,
    Subscription,
    TaskAssignment,
    TaskAssignor,
    TaskId,
    TaskInfo,
    TaskTopicPartition,
    TaskType,
    group_assignment,
    group_subscription,
    high_availability,
    load_task_assignor,
    sticky,
    validate_task_assignment,
)
from kshare.core.hashing import HASH_SPACE, WHOLE, HashRange
from kshare.core.progress import TopicPartition
from kshare.errors import TaskAssignmentException
from tests.support.cases import java_order

numbers = st.integers(0, 30)
bounds = st.lists(st.integers(0, HASH_SPACE), min_size=2, max_size=2, unique=True).map(sorted)
ranges = bounds.map(lambda ends: HashRange(*ends))
task_ids = st.builds(TaskId, numbers, numbers, st.none() | ranges)


@given(task_ids)
def test_a_task_is_read_back_from_its_name(task: TaskId) -> None:
    assert TaskId.parse(str(task)) == task
    assert pickle.loads(pickle.dumps(task)) == task
    assert TaskId(task.subtopology, task.partition, task.key_range) == task


@given(st.lists(task_ids, max_size=40))
def test_previous_tasks_iterate_in_order(tasks: list[TaskId]) -> None:
    """As the KIP's SortedSet does; in all else they are a frozenset."""
    held = frozenset(tasks)
    one = KafkaStreamsState(ProcessId("1"), 1, (), held, held)
    for previous in (one.previous_active_tasks, one.previous_standby_tasks):
        assert list(previous) == [*previous] == sorted(held)
        assert previous == held
        assert hash(previous) == hash(held)
        assert previous & held == previous | held == held
        assert list(pickle.loads(pickle.dumps(previous))) == sorted(held)


@given(st.lists(task_ids))
def test_tasks_sort_by_subtopology_partition_and_range(tasks: list[TaskId]) -> None:
    def key(task: TaskId) -> tuple[int, int, int, int]:
        part = task.key_range
        return task.subtopology, task.partition, part.lo if part else -1, part.hi if part else -1

    assert sorted(tasks) == sorted(tasks, key=key)


def test_the_range_of_all_keys_is_none() -> None:
    assert TaskId(0, 1, WHOLE) == TaskId(0, 1)
    assert str(TaskId(0, 1, HashRange(0, 8))) == "0_1-[0,8)"


@pytest.mark.parametrize("text", ["", "0", "0_", "a_1", "-1_0", "0_1-[2,1)", "0_1-[0,0)", "0_1 "])
def test_what_is_no_task_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        TaskId.parse(text)


@given(st.lists(st.uuids()))
def test_processes_sort_like_javas_uuids(ids: list[uuid.UUID]) -> None:
    in_java = sorted(map(str, ids), key=java_order)
    assert [str(one) for one in sorted(map(ProcessId, ids))] == in_java


def test_executors_sort_as_numbers_and_after_uuids() -> None:
    names = ["driver", "10", "9", "00000000-0000-0000-0000-000000000001"]
    ordered = [str(one) for one in sorted(map(ProcessId, names))]
    assert ordered == [names[3], "9", "10", "driver"]


def test_a_task_is_not_both_active_and_standby() -> None:
    task = TaskId(0, 0)
    with pytest.raises(ValueError, match="task 0_0 both as active and as standby"):
        KafkaStreamsAssignment.of(
            ProcessId("1"),
            [AssignedTask(task, TaskType.ACTIVE), AssignedTask(task, TaskType.STANDBY)],
        )


def test_a_follow_up_leaves_the_tasks_alone() -> None:
    entry = KafkaStreamsAssignment.of(ProcessId("1"), [AssignedTask(TaskId(0, 0), TaskType.ACTIVE)])
    later = entry.with_followup_rebalance(5)
    assert later.assignment == entry.assignment == {AssignedTask(TaskId(0, 0), TaskType.ACTIVE)}
    assert not TaskAssignment((entry,)).wants_followup
    assert TaskAssignment((entry, later)).wants_followup


def test_entries_of_one_process_are_one() -> None:
    one, two, other = (TaskId(0, number) for number in range(3))
    answer = TaskAssignment(
        (
            KafkaStreamsAssignment(ProcessId("a"), frozenset([one]), frozenset([other])),
            KafkaStreamsAssignment(ProcessId("b"), frozenset([other])),
            KafkaStreamsAssignment(ProcessId("a"), frozenset([two]), followup_rebalance_deadline=9),
            KafkaStreamsAssignment(ProcessId("a"), followup_rebalance_deadline=5),
        )
    )
    a, b = ProcessId("a"), ProcessId("b")
    assert answer.by_process == {
        a: KafkaStreamsAssignment(a, frozenset([one, two]), frozenset([other]), 5),
        b: answer.assignment[1],
    }


def test_configs_come_under_kafkas_names_as_text_or_values() -> None:
    configs = AssignmentConfigs.from_configs(
        {
            "num.standby.replicas": "2",
            "max.warmup.replicas": 3,
            "rack.aware.assignment.tags": "zone, cluster",
            "rack.aware.assignment.strategy": "min_traffic",
            "application.id": "other",
        }
    )
    assert configs.num_standby_replicas == 2
    assert configs.max_warmup_replicas == 3
    assert configs.rack_aware_assignment_tags == ("zone", "cluster")
    assert not configs.has_rack_aware_costs
    with pytest.raises(ValueError, match=r"Invalid value x for configuration num\.standby\.repl"):
        AssignmentConfigs.from_configs({"num.standby.replicas": "x"})


def state(*members: tuple[str, ...]) -> ApplicationState:
    """A process for each tuple of members, with one task each."""
    tasks = [
        TaskInfo(TaskId(0, n), False, (TaskTopicPartition(TopicPartition("t", n)),))
        for n in range(4)
    ]
    states = [
        KafkaStreamsState(ProcessId(str(n)), 1, names, frozenset([TaskId(0, n)]))
        for n, names in enumerate(members)
    ]
    return ApplicationState.of(tasks, states)


def test_members_get_the_tasks_of_their_process_in_turn() -> None:
    app = state(("a", "b"), ())
    held = frozenset(TaskId(0, n) for n in range(3))
    answer = TaskAssignment(
        (KafkaStreamsAssignment(ProcessId("0"), held), KafkaStreamsAssignment(ProcessId("1")))
    )
    found = group_assignment(app, answer, AssignmentError.NONE).assignments
    partition = [TopicPartition("t", n) for n in range(4)]
    assert found["a"] == Assignment((partition[0], partition[2]), (TaskId(0, 0), TaskId(0, 2)))
    assert found["b"] == Assignment((partition[1],), (TaskId(0, 1),))
    assert found["1"] == Assignment()
    members = group_subscription(app).subscriptions
    assert members["a"] == Subscription(("t",), (partition[0],))
    assert members["1"].owned_partitions == (partition[1],)


@pytest.mark.parametrize("error", AssignmentError)
def test_nobody_gets_anything_of_an_answer_that_is_not_understood(error: AssignmentError) -> None:
    unknown = error in {AssignmentError.UNKNOWN_PROCESS_ID, AssignmentError.UNKNOWN_TASK_ID}
    found = group_assignment(state(("a",)), TaskAssignment(()), error)
    assert (found == GroupAssignment()) == unknown


@pytest.mark.parametrize("error", AssignmentError)
@pytest.mark.parametrize(
    "entry",
    [
        KafkaStreamsAssignment(ProcessId("0"), active=frozenset([TaskId(0, 4)])),
        KafkaStreamsAssignment(ProcessId("0"), standby=frozenset([TaskId(0, 4)])),
        KafkaStreamsAssignment(ProcessId("1")),
    ],
    ids=["active", "standby", "process"],
)
def test_nobody_gets_anything_of_what_is_not_there_whatever_is_said_of_it_first(
    entry: KafkaStreamsAssignment, error: AssignmentError
) -> None:
    known = KafkaStreamsAssignment(ProcessId("0"), frozenset([TaskId(0, 0)]))
    found = group_assignment(state(("a",)), TaskAssignment((known, entry)), error)
    assert found == GroupAssignment()


def test_an_answer_can_hold_a_task_both_ways_only_in_two_entries() -> None:
    app = ApplicationState.of(
        [TaskInfo(TaskId(0, 0), True)], [KafkaStreamsState(ProcessId("1"), 1)]
    )
    held = frozenset([TaskId(0, 0)])
    answer = TaskAssignment(
        (
            KafkaStreamsAssignment(ProcessId("1"), active=held),
            KafkaStreamsAssignment(ProcessId("1"), standby=held),
        )
    )
    error = AssignmentError.ACTIVE_AND_STANDBY_TASK_ASSIGNED_TO_SAME_KAFKASTREAMS
    assert validate_task_assignment(app, answer) is error


def test_twice_the_same_is_refused() -> None:
    with pytest.raises(ValueError, match="0_0"):
        ApplicationState.of([TaskInfo(TaskId(0, 0)), TaskInfo(TaskId(0, 0))], [])
    with pytest.raises(ValueError, match="twice"):
        ApplicationState.of([], [KafkaStreamsState(ProcessId("1"))] * 2)
    with pytest.raises(ValueError, match="threads; wanted at least 1"):
        KafkaStreamsState(ProcessId("1"), 0)


def test_lags_that_were_not_computed_are_not_made_up() -> None:
    app = state(("a",))
    with pytest.raises(TaskAssignmentException, match="no task lags of process 0"):
        app.kafka_streams_states(compute_task_lags=True)
    with pytest.raises(LookupError, match="not computed"):
        app.states[ProcessId("0")].lag_for(TaskId(0, 0))


class Own(TaskAssignor):
    """Found by its path; remembers its options."""

    configs: object = None

    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        return TaskAssignment(())

    def configure(self, configs: Any) -> None:
        if configs == {"bad": "1"}:
            raise ValueError("bad is bad")
        self.configs = configs


OWN = Own()


class Telling(Own):
    """Its error tells of its configs, each in another way."""

    def configure(self, configs: Any) -> None:
        tell, password = configs["tell"], configs["password"]
        if tell == "text":
            raise KeyError(f"no config among {configs}")
        if tell == "cause":
            try:
                raise LookupError(password)
            except LookupError as error:
                raise ValueError("it has a cause") from error
        if tell == "note":
            noted = ValueError("it has a note")
            noted.add_note(password)
            raise noted
        raise ValueError(f"tell={tell}")


class TestLoading:
    def test_the_default_is_kafkas(self) -> None:
        assert isinstance(load_task_assignor(), high_availability.HighAvailabilityTaskAssignor)

    @pytest.mark.parametrize(
        "name",
        ["StickyTaskAssignor", "org.apache.kafka.streams.processor.assignment.StickyTaskAssignor"],
    )
    def test_built_in_ones_are_known_by_kafkas_names(self, name: str) -> None:
        assert isinstance(load_task_assignor(name), sticky.StickyTaskAssignor)

    def test_a_class_is_made_and_an_instance_is_taken_and_both_are_configured(self) -> None:
        made = load_task_assignor(f"{__name__}.Own", {"a": "b"})
        assert type(made).__name__ == "Own"
        assert vars(made) == {"configs": {"a": "b"}}

    @pytest.mark.parametrize(
        ("name", "why"),
        [
            ("Sticky", "neither built in nor the dotted path"),
            ("no.such.module:X", "cannot be imported"),
            ("json.decoder:nothing", "has no nothing"),
            ("json:dumps", "it cannot be made"),
            ("builtins.dict", "dict has no method assign"),
        ],
    )
    def test_what_leads_nowhere_is_an_error_that_names_the_built_in_ones(
        self, name: str, why: str
    ) -> None:
        with pytest.raises(ValueError, match=why) as caught:
            load_task_assignor(name)
        assert "HighAvailabilityTaskAssignor" in str(caught.value)

    @pytest.mark.parametrize(
        ("tell", "kind"), [("text", "KeyError"), ("cause", "ValueError"), ("note", "ValueError")]
    )
    @pytest.mark.parametrize("password", ["s3cret", 'it\'s\n"s3cret"', "s3cret\\ü\ud800"])
    def test_an_error_that_tells_a_configs_value_is_not_shown(
        self, tell: str, kind: str, password: str
    ) -> None:
        with pytest.raises(ValueError, match="cannot be made") as caught:
            load_task_assignor(f"{__name__}.Telling", {"tell": tell, "password": password})
        shown = "".join(traceback.format_exception(caught.value))
        assert "s3cret" not in shown
        assert f"it cannot be made: {kind} (its text holds the value of " in shown
        assert "password, and is not shown)" in shown

    def test_an_error_that_tells_none_is_shown_with_what_led_to_it(self) -> None:
        with pytest.raises(ValueError, match=r"cannot be made: ValueError\('tell=no'\)") as caught:
            load_task_assignor(f"{__name__}.Telling", {"tell": "no", "password": "s3cret"})
        assert isinstance(caught.value.__cause__, ValueError)


def test_a_deadline_is_a_time() -> None:
    entry = KafkaStreamsAssignment(ProcessId("p"))
    when = datetime(2026, 7, 1, 12, tzinfo=UTC)
    later = entry.with_followup_rebalance(when)
    assert later.followup_rebalance_deadline == int(when.timestamp() * 1000)
    for before in (-1, datetime.min.replace(tzinfo=UTC)):  # at once
        assert entry.with_followup_rebalance(before).followup_rebalance_deadline == 0
    given = KafkaStreamsAssignment(ProcessId("p"), followup_rebalance_deadline=5.5)  # type: ignore[arg-type]
    assert given.followup_rebalance_deadline == 5
    with pytest.raises(ValueError, match="has no time zone"):
        entry.with_followup_rebalance(when.replace(tzinfo=None))
    with pytest.raises(ValueError, match="not a number"):
        entry.with_followup_rebalance(math.nan)  # type: ignore[arg-type]
    for far in (10**400, math.inf, 2**63):
        later = entry.with_followup_rebalance(far)  # type: ignore[arg-type]
        assert later.followup_rebalance_deadline == 2**63 - 1
    latest = entry.with_followup_rebalance(datetime.max.replace(tzinfo=UTC))
    assert latest.followup_rebalance_deadline == 253_402_300_800_000
    counted = entry.with_followup_rebalance(np.int64(1_800_000_000_001))  # type: ignore[arg-type]
    assert counted.followup_rebalance_deadline == 1_800_000_000_001
    for wrong in ("soon", True, timedelta(minutes=5)):
        with pytest.raises(TypeError, match="wanted ms since 1970, or a datetime"):
            entry.with_followup_rebalance(wrong)  # type: ignore[arg-type]
