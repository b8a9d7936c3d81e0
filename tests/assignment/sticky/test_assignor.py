"""The sticky assignor: the judge's hard rules on random cases, and its own laws."""

import random
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kshare.assignment import (
    ApplicationState,
    AssignmentConfigs,
    FallbackPriorTaskAssignor,
    KafkaStreamsState,
    ProcessId,
    StickyTaskAssignor,
    TaskAssignment,
    TaskId,
    TaskInfo,
    TaskTopicPartition,
)
from kshare.assignment.cases import Case, run_case
from kshare.assignment.placement.indexed_state import IndexedState
from kshare.assignment.sticky.even import place_even_actives
from kshare.assignment.sticky.kafka import place_kafka_actives, place_kafka_standbys
from kshare.core.hashing import WHOLE, split
from kshare.core.progress import TopicPartition
from tests.support.cases import (
    STICKY,
    answer,
    judge,
    next_round,
    random_case,
    relabelled,
    violations,
)
from tests.support.effort import examples

seeds = st.integers(0, 2**32)
quick = examples(40)


@given(seeds)
@examples(120)
def test_answers_are_valid(seed: int) -> None:
    assert violations(random_case(seed, STICKY)) == []


@pytest.mark.parametrize("strategy", ["none", "min_traffic", "balance_subtopology"])
def test_answers_to_large_cases_are_valid(strategy: str) -> None:
    case = random_case(1, STICKY, tasks=500, processes=50, strategy=strategy, racks=3)
    assert violations(case) == []


@given(seeds)
@quick
def test_names_and_order_mean_nothing(seed: int) -> None:
    case = random_case(seed, STICKY)
    other, names = relabelled(case, seed)
    found = answer(other)
    renamed = {names[process]: held for process, held in found["assignment"].items()}
    assert {**found, "assignment": renamed} == answer(case)


@given(seeds)
@example(123)  # Kafka's own way would move on
@example(402)
@examples(120)
def test_runs_on_their_own_answers_come_to_rest(seed: int) -> None:
    case = random_case(seed, STICKY, strategy="none")
    out = answer(case)
    while True:
        before = spreads(case, out)
        next_round(case, out)
        new = answer(case)
        if new == out:
            break
        assert spreads(case, new) < before
        out = new


def spreads(case: dict[str, Any], out: dict[str, Any]) -> tuple[float, float]:
    found = judge.metrics(case, out)
    return found["active_spread"], found["load_spread"]


@given(seeds, st.integers(2, 8), st.booleans())
@examples(80)
def test_nothing_is_worse_than_in_kafkas_own_way_unless_all_stays(
    seed: int, processes: int, preserve: bool
) -> None:
    case = random_case(seed, STICKY, strategy="none", processes=processes, preserve=preserve)
    outcome = run_case(Case.read(case))
    assert outcome.state is not None
    situation = IndexedState(outcome.state)
    kafkas = situation.empty_placement()
    place_kafka_actives(situation, kafkas, preserve)
    place_kafka_standbys(situation, kafkas, kafkas.active)
    answered = situation.answer(kafkas, 0 if preserve else None)
    metrics = judge.metrics(case, {"assignment": as_json(answered)})
    found = judge.metrics(case, outcome.answer)
    previous = situation.previous_placement()
    if previous is None or outcome.answer["assignment"] != as_json(situation.answer(previous)):
        assert {name: found[name] for name in MEASURED if found[name] > metrics[name]} == {}


MEASURED = (
    "active_moved", "active_cold", "standby_cold", "active_spread", "load_spread",
    "subtopology_skew",
)  # fmt: skip


def as_json(placed: TaskAssignment) -> dict[str, dict[str, list[str]]]:
    return {
        str(entry.process_id): {
            "active": list(map(str, sorted(entry.active))),
            "standby": list(map(str, sorted(entry.standby))),
        }
        for entry in placed.assignment
    }


def test_what_is_complete_and_even_stays_whatever_the_subtopologies() -> None:
    tasks = {TaskId(sub, n): True for sub in range(2) for n in range(4)}
    had = {"1": (1, "0_0 0_1 0_2 0_3", "1_0 1_1 1_2 1_3")}
    state = app(tasks, {**had, "2": (1, "1_0 1_1 1_2 1_3", "0_0 0_1 0_2 0_3")}, 1)
    assert actives(state, StickyTaskAssignor())["1"] == ["0_0", "0_1", "0_2", "0_3"]


@given(seeds)
@quick
def test_no_standby_is_missing(seed: int) -> None:
    case = random_case(seed, STICKY)
    assert judge.metrics(case, answer(case))["standby_shortfall"] == sum(
        max(0, case["configs"]["num_standby_replicas"] - len(case["processes"]) + 1)
        for task in case["tasks"]
        if task.get("changelogs")
    )


def loads(case: dict[str, Any], out: dict[str, Any]) -> list[Fraction]:
    return [
        Fraction(len(out["assignment"][one["id"]]["active"]), one["threads"])
        for one in case["processes"]
    ]


@given(seeds)
@quick
def test_active_tasks_are_dealt_a_thread(seed: int) -> None:
    case = random_case(seed, STICKY, preserve=False)
    share = len(case["tasks"]) // sum(one["threads"] for one in case["processes"])
    found = loads(case, answer(case))
    if share:
        assert min(found) >= share
    assert max(found) <= share + 1


@given(seeds)
@quick
def test_an_owner_within_its_share_keeps_all(seed: int) -> None:
    case = random_case(seed, STICKY, preserve=False, strategy="none")
    share = len(case["tasks"]) // sum(one["threads"] for one in case["processes"])
    out = answer(case)["assignment"]
    known = {task["id"] for task in case["tasks"]}
    for one in case["processes"]:
        had = set(one["prev_active"]) & known
        if len(had) <= share * one["threads"]:
            assert had <= set(out[one["id"]]["active"])
        elif share:
            assert len(had & set(out[one["id"]]["active"])) >= share * one["threads"]


@given(seeds)
@quick
def test_preserving_moves_no_active_task_and_asks_for_a_follow_up(seed: int) -> None:
    case = random_case(seed, STICKY, preserve=True)
    out = answer(case)
    assert judge.metrics(case, out)["active_moved"] == 0
    assert out["followup"]


def app(
    tasks: dict[TaskId, bool],
    processes: dict[str, tuple[int, str, str]],
    standbys: int = 0,
) -> ApplicationState:
    """Tasks, whether they have a changelog; processes with threads and what they had."""
    infos = [
        TaskInfo(task, logged, (TaskTopicPartition(TopicPartition("t", task[1]), True, logged),))
        for task, logged in tasks.items()
    ]

    def parsed(names: str) -> frozenset[TaskId]:
        return frozenset(map(TaskId.parse, names.split()))

    states = [
        KafkaStreamsState(ProcessId(name), threads, (), parsed(active), parsed(standby))
        for name, (threads, active, standby) in processes.items()
    ]
    return ApplicationState.of(infos, states, AssignmentConfigs(num_standby_replicas=standbys))


def actives(state: ApplicationState, assignor: StickyTaskAssignor) -> dict[str, list[str]]:
    return {
        str(entry.process_id): [str(task) for task in sorted(entry.active)]
        for entry in assignor.assign(state).assignment
    }


FOUR = {TaskId(0, n): True for n in range(4)}


def test_over_its_share_a_process_keeps_what_no_other_has_room_for_and_a_copy_of() -> None:
    state = app(FOUR, {"1": (1, "0_0 0_1 0_2 0_3", ""), "2": (1, "", "0_0 0_3")})
    assert actives(state, StickyTaskAssignor()) == {"1": ["0_1", "0_2"], "2": ["0_0", "0_3"]}


def test_of_each_subtopology_the_first_ones_stay() -> None:
    tasks = {TaskId(sub, n): False for sub in range(2) for n in range(4)}
    had = " ".join(map(str, tasks))
    state = app(tasks, {"1": (1, had, ""), "2": (1, "", "")})
    assert actives(state, StickyTaskAssignor())["1"] == ["0_0", "0_1", "1_0", "1_1"]


def test_with_less_than_a_task_a_thread_owners_keep_one_a_thread() -> None:
    state = app(FOUR, {"1": (4, "0_0 0_1 0_2 0_3", ""), "2": (4, "", "")})
    assert actives(state, StickyTaskAssignor())["2"] == []
    state = app(FOUR, {"1": (2, "0_0 0_1 0_2 0_3", ""), "2": (4, "", "")})
    assert actives(state, StickyTaskAssignor())["2"] == ["0_2", "0_3"]


def test_of_two_that_had_a_task_the_second_keeps_it_if_the_first_has_no_room() -> None:
    state = app(FOUR, {"1": (1, "0_0 0_1 0_2", ""), "2": (1, "0_2", "")})
    assert actives(state, StickyTaskAssignor()) == {"1": ["0_0", "0_1"], "2": ["0_2", "0_3"]}
    kept = actives(state, FallbackPriorTaskAssignor())
    assert kept == {"1": ["0_0", "0_1"], "2": ["0_2", "0_3"]}


def test_standbys_are_where_copies_were() -> None:
    state = app(FOUR, {"1": (2, "0_0 0_1", "0_2 0_3"), "2": (2, "0_2 0_3", "0_0 0_1")}, 1)
    entries = StickyTaskAssignor().assign(state).assignment
    assert [sorted(entry.standby) for entry in entries] == [
        [TaskId(0, 2), TaskId(0, 3)],
        [TaskId(0, 0), TaskId(0, 1)],
    ]


def test_what_lacks_standbys_does_not_stay_as_it_is() -> None:
    state = app(FOUR, {"1": (1, "0_0 0_1", ""), "2": (1, "0_2 0_3", "")}, 1)
    entries = StickyTaskAssignor().assign(state).assignment
    assert [len(entry.standby) for entry in entries] == [2, 2]


def test_copies_stay_where_they_are_when_others_are_missing() -> None:
    tasks = {TaskId(0, n): True for n in range(12)}
    copies = {"1": "0_9 0_10 0_11", "2": "0_0 0_1 0_3", "3": "0_2 0_4"}
    had = {"1": "0_0 0_1 0_2 0_3", "2": "0_4 0_5 0_6 0_7", "3": "0_8 0_9 0_10 0_11"}
    state = app(tasks, {name: (4, had[name], copies[name]) for name in had}, 1)
    for entry in StickyTaskAssignor().assign(state).assignment:
        assert entry.standby >= set(map(TaskId.parse, copies[str(entry.process_id)].split()))
        assert len(entry.standby) == 4


def test_processes_do_not_mirror_each_other() -> None:
    tasks = {TaskId(0, n): True for n in range(8)}
    state = app(tasks, {str(n): (1, "", "") for n in range(4)}, 1)
    held = [entry.active | entry.standby for entry in StickyTaskAssignor().assign(state).assignment]
    pairs = Counter(len(one & other) for n, one in enumerate(held) for other in held[:n])
    assert max(pairs) < 4


def test_shared_tasks_of_a_partition_are_side_by_side() -> None:
    tasks = {TaskId(0, n, part): False for n in range(2) for part in split(WHOLE, 2)}
    state = app(tasks, {"1": (2, "", ""), "2": (2, "", "")})
    entries = StickyTaskAssignor().assign(state).assignment
    assert [{task[1] for task in entry.active} for entry in entries] == [{0}, {1}]


def test_of_too_many_shared_tasks_the_rest_of_a_partition_moves() -> None:
    """So a process that had a whole partition keeps its store, and no other one needs it."""
    low, high = split(WHOLE, 2)
    of_first, of_second = [TaskId(0, 0, high)], [TaskId(0, 1, part) for part in (low, high)]
    had = " ".join(map(str, [*of_first, *of_second]))
    tasks = dict.fromkeys([TaskId(0, 0, low), *of_first, *of_second], True)
    state = app(tasks, {"1": (2, str(TaskId(0, 0, low)), ""), "2": (2, had, "")})
    entries = StickyTaskAssignor().assign(state).assignment
    assert [{task[1] for task in entry.active} for entry in entries] == [{0}, {1}]


@given(seeds)
@quick
def test_shared_tasks_are_placed_in_our_way_only(seed: int) -> None:
    rng = random.Random(seed)
    parts = [TaskId(sub, n, part) for sub in range(2) for n in range(4) for part in split(WHOLE, 3)]
    had: list[list[str]] = [[], [], []]
    for task in parts:
        had[rng.choice([0, 0, 1, 2])].append(str(task))
    state = app(
        dict.fromkeys(parts, False),
        {str(n): (n, " ".join(one), "") for n, one in enumerate(had, 1)},
    )
    situation = IndexedState(state)
    placement = situation.empty_placement()
    place_even_actives(situation, placement)
    assert StickyTaskAssignor().assign(state) == situation.answer(placement)


def test_without_a_process_there_is_no_answer() -> None:
    with pytest.raises(ValueError, match="no process"):
        StickyTaskAssignor().assign(app(FOUR, {}))
