"""``check_assignor``: good ones pass, and each law catches the one that breaks it."""

import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kshare.assignment import (
    ApplicationState,
    AssignmentConfigs,
    FallbackPriorTaskAssignor,
    HighAvailabilityTaskAssignor,
    KafkaStreamsAssignment,
    KafkaStreamsState,
    ProcessId,
    StickyTaskAssignor,
    TaskAssignment,
    TaskAssignor,
    TaskId,
    TaskInfo,
    TaskTopicPartition,
)
from kshare.assignment.cases import Case, run_case
from kshare.core.hashing import WHOLE, split
from kshare.core.progress import TopicPartition
from kshare.testing import check_assignor, situations
from kshare.testing.situations import reordered
from tests.support.cases import HA, STICKY, load, random_case


class Broken(TaskAssignor):
    """The sticky one, and then something goes wrong."""

    def __init__(self, spoil: Callable[[ApplicationState, list[Any]], Any]) -> None:
        self._spoil = spoil

    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        entries = list(StickyTaskAssignor().assign(application_state).assignment)
        spoiled = self._spoil(application_state, entries)
        return TaskAssignment(tuple(entries)) if spoiled is None else spoiled


@pytest.mark.parametrize("assignor", [HighAvailabilityTaskAssignor, StickyTaskAssignor()])
def test_the_built_in_ones_are_valid(assignor: Any) -> None:
    report = check_assignor(assignor)
    assert report.is_valid, str(report)
    assert str(report) == "100 situations, all laws hold"


@pytest.mark.parametrize(
    ("name", "assignor"), [(HA, HighAvailabilityTaskAssignor), (STICKY, StickyTaskAssignor)]
)
@pytest.mark.parametrize("strategy", ["none", "min_traffic", "balance_subtopology"])
def test_the_built_in_ones_are_as_even_with_racks_and_with_many_tasks(
    name: str, assignor: Any, strategy: str
) -> None:
    cases = [
        random_case(seed, name, preserve=False, strategy=strategy, racks=3, tasks=tasks)
        for seed in range(8)
        for tasks in (5, 60)
    ]
    states = [state for case in cases if (state := run_case(Case.read(case)).state)]
    assert len(states) == len(cases)
    report = check_assignor(assignor, states)
    assert report.is_valid, str(report)


class Given(TaskAssignor):
    """Answers what it was made with: the active tasks of each process."""

    def __init__(self, placed: dict[str, Iterable[str]]) -> None:
        self._entries = tuple(
            KafkaStreamsAssignment(ProcessId(process), frozenset(map(TaskId.parse, tasks)))
            for process, tasks in placed.items()
        )

    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        return TaskAssignment(self._entries)


def test_kafkas_own_answers_are_as_even() -> None:
    checked = 0
    for case in load("hand_ha") + load("hand_sticky") + load("random_small_medium"):
        golden = case.get("golden", {})
        # While copies warm up, active tasks stay together where their state is.
        if (
            case["op"] == "assign"
            and not golden["followup"]
            and not case.get("must_preserve_active")
        ):
            state = run_case(Case.read(case)).state
            assert state is not None
            placed = {process: held["active"] for process, held in golden["assignment"].items()}
            report = check_assignor(Given(placed), [state], settles=False)
            assert report.is_valid, str(report)
            checked += 1
    assert checked > 30


def placing(*loads: tuple[int, int]) -> tuple[Given, ApplicationState]:
    """Processes with so many tasks on so many threads; and what makes it so."""
    tasks = iter(range(sum(count for count, _ in loads)))
    placed = {str(n): [f"0_{next(tasks)}" for _ in range(c)] for n, (c, _) in enumerate(loads)}
    infos = [TaskInfo(TaskId.parse(task)) for held in placed.values() for task in held]
    states = [KafkaStreamsState(ProcessId(str(n)), t) for n, (_, t) in enumerate(loads)]
    return Given(dict(placed)), ApplicationState.of(infos, states)


@pytest.mark.parametrize(
    ("loads", "is_even"),
    [
        ([(1, 1), (0, 1)], True),
        ([(2, 1), (0, 1)], False),
        ([(3, 1), (0, 1)], False),
        ([(3, 1), (2, 1), (2, 1)], True),
        ([(3, 1), (2, 1), (1, 1)], False),
        ([(4, 4), (0, 4)], True),  # fewer tasks than threads: a task a thread stays
        ([(5, 4), (0, 4)], False),
        ([(5, 4), (4, 4)], True),
        ([(5, 4), (3, 4)], False),
        ([(1, 4), (2, 1)], False),
        ([(6, 4), (1, 1)], True),
        ([(9, 4), (1, 1)], False),
        ([(8, 4), (3, 2), (1, 1)], True),
        ([(8, 4), (2, 2), (2, 1)], False),  # the first and the last are even, but for the middle
    ],
)
def test_how_even_is_even_enough(loads: list[tuple[int, int]], is_even: bool) -> None:
    assignor, state = placing(*loads)
    report = check_assignor(assignor, [state])
    assert report.is_valid is is_even
    assert {breach.law for breach in report.breaches} <= {"active loads are even"}


def test_what_gets_uneven_later_is_found_out() -> None:
    def first_even_then_not(state: ApplicationState, entries: list[Any]) -> Any:
        has_past = any(one.previous_active_tasks for one in state.states.values())
        return give_all_to_one(state, entries) if has_past else None

    _, state = placing((2, 1), (2, 1))
    report = check_assignor(Broken(first_even_then_not), [state])
    assert [breach.law for breach in report.breaches] == ["active loads are even"]


def test_how_uneven_it_may_be_can_be_said() -> None:
    assignor, state = placing((3, 1), (0, 1))
    assert not check_assignor(assignor, [state], spread_max=2.9).is_valid
    assert check_assignor(assignor, [state], spread_max=3.0).is_valid
    assert check_assignor(assignor, [state], spread_max=None).is_valid


def test_the_one_for_emergencies_is_valid_but_uneven_and_never_done() -> None:
    some = list(situations(30))
    assert check_assignor(FallbackPriorTaskAssignor, some, spread_max=None, rounds_max=0).is_valid
    assert "rebalances come to an end" in str(check_assignor(FallbackPriorTaskAssignor, some))
    uneven = check_assignor(FallbackPriorTaskAssignor, some, rounds_max=0)
    assert {breach.law for breach in uneven.breaches} == {"active loads are even"}


def lose_a_task(state: ApplicationState, entries: list[Any]) -> None:
    entries[0] = replace(entries[0], active=frozenset(sorted(entries[0].active)[1:]))


def double_a_task(state: ApplicationState, entries: list[Any]) -> None:
    if len(entries) > 1:
        more = entries[1].active - entries[0].standby
        entries[0] = replace(entries[0], active=entries[0].active | more)


def make_a_task_up(state: ApplicationState, entries: list[Any]) -> None:
    entries[0] = replace(entries[0], active=entries[0].active | {TaskId(99, 0)})


def make_a_process_up(state: ApplicationState, entries: list[Any]) -> None:
    entries.append(KafkaStreamsAssignment(ProcessId("nobody")))


def forget_a_process(state: ApplicationState, entries: list[Any]) -> None:
    entries.pop() if len(entries) > 1 and not entries[-1].active else None


def name_a_process_twice(state: ApplicationState, entries: list[Any]) -> None:
    entries.append(KafkaStreamsAssignment(entries[0].process_id))


def stand_by_for_what_has_no_changelog(state: ApplicationState, entries: list[Any]) -> None:
    stateless = [task for task, info in state.all_tasks.items() if not info.has_changelog]
    free = frozenset(stateless) - entries[0].active
    entries[0] = replace(entries[0], standby=entries[0].standby | free)


def raise_something(state: ApplicationState, entries: list[Any]) -> None:
    raise RuntimeError("broken")


def answer_something_else(state: ApplicationState, entries: list[Any]) -> Any:
    return entries


def ask_for_ever(state: ApplicationState, entries: list[Any]) -> None:
    entries[0] = entries[0].with_followup_rebalance(0)


def give_all_to_one(state: ApplicationState, entries: list[Any]) -> Any:
    everything = frozenset(state.all_tasks)
    return TaskAssignment(
        (
            KafkaStreamsAssignment(entries[0].process_id, everything),
            *(KafkaStreamsAssignment(entry.process_id) for entry in entries[1:]),
        )
    )


def turn_round(state: ApplicationState, entries: list[Any]) -> Any:
    """The next process gets what this one had: even, and never at rest."""
    states = list(state.states.values())
    had = [one.previous_active_tasks for one in states]
    if not all(had) or set().union(*had) != set(state.all_tasks) or len(had) < 2:
        return None
    pairs = zip(states, [*had[1:], had[0]], strict=True)
    return TaskAssignment(tuple(KafkaStreamsAssignment(one.process_id, t) for one, t in pairs))


def scatter(state: ApplicationState, entries: list[Any]) -> Any:
    """Tasks are dealt round, so that siblings are apart; even, and at rest."""
    if state.assignment_configs.num_standby_replicas:
        return None
    return dealt(list(state.all_tasks), list(state.states))


def scatter_standbys(state: ApplicationState, entries: list[Any]) -> Any:
    """Each task's standby on the next process in turn that has no copy of it."""
    standby: list[set[TaskId]] = [set() for _ in entries]
    for number, task in enumerate(task for entry in entries for task in sorted(entry.standby)):
        free = [n for n, e in enumerate(entries) if task not in e.active | standby[n]]
        standby[free[number % len(free)]].add(task)
    return TaskAssignment(
        tuple(
            replace(entry, standby=frozenset(held))
            for entry, held in zip(entries, standby, strict=True)
        )
    )


@pytest.mark.parametrize(
    ("spoil", "law", "what"),
    [
        (lose_a_task, "each task is active once", "is active 0 times"),
        (double_a_task, "the answer is valid", "ACTIVE_TASK_ASSIGNED_MULTIPLE_TIMES"),
        (make_a_task_up, "the answer is valid", "UNKNOWN_TASK_ID"),
        (make_a_process_up, "the answer is valid", "UNKNOWN_PROCESS_ID"),
        (forget_a_process, "the answer is valid", "MISSING_PROCESS_ID"),
        (name_a_process_twice, "a process has one entry", "has 2"),
        (stand_by_for_what_has_no_changelog, "the answer is valid", "INVALID_STANDBY_TASK"),
        (raise_something, "an answer is given", "RuntimeError('broken')"),
        (answer_something_else, "an answer is given", "the answer is a list"),
        (ask_for_ever, "rebalances come to an end", "after"),
        (give_all_to_one, "active loads are even", "active tasks a thread"),
        (turn_round, "a further run changes nothing", "first"),
        (scatter, "shared tasks of a partition are together", "the active shared tasks of"),
        (scatter_standbys, "shared tasks of a partition are together", "the standby shared tasks"),
    ],
)
def test_a_broken_one_is_found_out(spoil: Any, law: str, what: str) -> None:
    some = situations(200 if spoil is scatter_standbys else 40)
    spread_max = None if spoil in (turn_round, scatter) else 0.0
    settles = spoil not in (scatter, scatter_standbys)
    report = check_assignor(Broken(spoil), some, spread_max=spread_max, settles=settles)
    assert not report.is_valid
    assert {breach.law for breach in report.breaches} == {law}
    assert what in str(report)
    assert f"- {law}: {len(report.breaches)}" in str(report)


def shared(partitions: int, ranges: int, processes: int, standbys: int) -> ApplicationState:
    """Shared tasks with state, on processes with a thread each."""
    infos = [
        TaskInfo(
            TaskId(0, partition, hashes),
            True,
            (
                TaskTopicPartition(TopicPartition("in", partition), True, False, None),
                TaskTopicPartition(TopicPartition("store", partition), False, True, None),
            ),
        )
        for partition in range(partitions)
        for hashes in split(WHOLE, ranges)
    ]
    lags = {info.id: 1 for info in infos}
    states = [KafkaStreamsState(ProcessId(str(n)), 1, task_lags=lags) for n in range(processes)]
    return ApplicationState.of(infos, states, AssignmentConfigs(num_standby_replicas=standbys))


class Scattering(TaskAssignor):
    """Deals tasks round, always the same: their standbys on the processes after."""

    def __init__(self, *, active: bool) -> None:
        self._active = active

    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        tasks, processes = list(application_state.all_tasks), list(application_state.states)
        own = len(tasks) // len(processes)
        entries = []
        for number, process in enumerate(processes):
            parts = tasks[number :: len(processes)], tasks[number * own : (number + 1) * own]
            active = frozenset(parts[0] if self._active else parts[1])
            standby: frozenset[TaskId] = frozenset()
            if application_state.assignment_configs.num_standby_replicas:
                standby = frozenset(
                    task
                    for at, task in enumerate(tasks)
                    if ((at if self._active else at // own + at % own) + 1) % len(processes)
                    == number
                )
            entries.append(KafkaStreamsAssignment(process, active, standby))
        return TaskAssignment(tuple(entries))


@pytest.mark.parametrize(
    ("active", "state", "what"),
    [
        (True, shared(2, 2, 2, 0), "the active shared tasks of 2 partitions need 4 stores on 2"),
        (True, shared(2, 2, 2, 1), "the active shared tasks of 2 partitions need 4 stores on 2"),
        (False, shared(3, 2, 3, 1), "the standby shared tasks of 3 partitions need 6 stores on 3"),
    ],
)
def test_partitions_that_fit_are_not_cut(active: bool, state: ApplicationState, what: str) -> None:
    report = check_assignor(Scattering(active=active), [state])
    law = "shared tasks of a partition are together"
    assert [breach.law for breach in report.breaches] == [law], str(report)
    assert what in str(report)


def test_not_even_two_partitions_that_fit_are_cut() -> None:
    state = shared(3, 2, 3, 0)
    one, two, three, four, *others = map(str, state.all_tasks)
    placed = Given({"0": [one, three], "1": [two, four], "2": others})
    report = check_assignor(placed, [state])
    assert "3 partitions need 5 stores on 3 processes; wanted at most 3" in str(report)


@pytest.mark.parametrize("standbys", [0, 1, 2])
@pytest.mark.parametrize("ranges", [2, 3, 4])
@pytest.mark.parametrize("assignor", [HighAvailabilityTaskAssignor, StickyTaskAssignor])
def test_the_built_in_ones_cut_no_partitions_that_fit(
    assignor: Any, ranges: int, standbys: int
) -> None:
    states = [shared(n * p, ranges, p, standbys) for p in (1, 2, 3, 4) for n in (1, 2)]
    report = check_assignor(assignor, states)
    assert report.is_valid, str(report)


def test_one_that_need_not_care_may_scatter_shared_tasks() -> None:
    report = check_assignor(
        Broken(scatter), situations(40), spread_max=None, settles=False, together=False
    )
    assert report.is_valid, str(report)


def test_one_that_is_not_pure_is_found_out() -> None:
    times: list[int] = []

    def alternate(state: ApplicationState, entries: list[Any]) -> None:
        times.append(1)
        if len(times) % 2 and len(entries) > 1:
            one, other = entries[:2]
            entries[:2] = [replace(one, active=other.active, standby=frozenset()),
                           replace(other, active=one.active, standby=frozenset())]  # fmt: skip

    laws = {breach.law for breach in check_assignor(Broken(alternate)).breaches}
    assert "equal situations, equal answers" in laws


class InOrderOfASet(TaskAssignor):
    """Deals tasks in the order in which the mappings of lags were built."""

    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        states = application_state.kafka_streams_states()
        had = [task for one in states.values() for task in one.task_lags or ()]
        order = [one for one in dict.fromkeys(had) if one in application_state.all_tasks]
        order += [one for one in application_state.all_tasks if one not in set(order)]
        return dealt(order, list(states))


class InOrderOfProcesses(TaskAssignor):
    """Deals tasks to a set of processes."""

    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        print("what an assignor prints is no answer")
        return dealt(list(application_state.all_tasks), list(set(application_state.states)))


class FailsElsewhere(TaskAssignor):
    """Works in the process that made it."""

    def __init__(self) -> None:
        self._here = os.getpid()

    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        if os.getpid() != self._here:
            raise RuntimeError("not here")
        return StickyTaskAssignor().assign(application_state)


def dealt(tasks: list[TaskId], processes: list[ProcessId]) -> TaskAssignment:
    entries = (
        KafkaStreamsAssignment(process, frozenset(tasks[number :: len(processes)]))
        for number, process in enumerate(processes)
    )
    return TaskAssignment(tuple(entries))


def test_one_that_goes_by_the_order_of_sets_is_found_out() -> None:
    report = check_assignor(InOrderOfASet, spread_max=None, settles=False, together=False)
    assert {breach.law for breach in report.breaches} == {"the order of sets plays no part"}
    assert len(report.breaches) > 10


def test_another_order_is_the_same_situation() -> None:
    turned = 0
    for state in situations(30):
        again = reordered(state, seed=1)
        assert again == state
        assert list(again.all_tasks) == list(state.all_tasks)
        assert list(again.states) == list(state.states)
        for process, one in state.states.items():
            other = again.states[process]
            turned += list(one.task_lags or ()) != list(other.task_lags or ())
            assert list(one.previous_active_tasks) == sorted(other.previous_active_tasks)
    assert turned > 20


def test_one_that_goes_by_the_hashes_of_names_is_found_out() -> None:
    some = list(situations(30))
    check = partial(check_assignor, InOrderOfProcesses, some, spread_max=None, together=False)
    assert check().is_valid  # one process cannot know
    report = check(other_hash_seeds=True)
    assert {breach.law for breach in report.breaches} == {"the hash seed plays no part"}
    assert len(report.breaches) > 10
    assert str(report) == str(check(other_hash_seeds=True))


@pytest.mark.slow
@pytest.mark.parametrize("assignor", [HighAvailabilityTaskAssignor(), StickyTaskAssignor])
def test_the_built_in_ones_do_not_go_by_hashes(assignor: Any) -> None:
    report = check_assignor(assignor, situations(40, seed=3), other_hash_seeds=True)
    assert report.is_valid, str(report)


@pytest.mark.slow
def test_modules_are_found_elsewhere_as_they_are_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "an_assignor_on_a_path.py").write_text(
        "from kshare.assignment import StickyTaskAssignor\nclass Mine(StickyTaskAssignor): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    mine = import_module("an_assignor_on_a_path").Mine
    assert check_assignor(mine, situations(2), other_hash_seeds=True).is_valid


def test_what_fails_under_another_hash_seed_is_told() -> None:
    report = check_assignor(FailsElsewhere(), situations(2), other_hash_seeds=True)
    assert [breach.law for breach in report.breaches] == ["an answer is given"] * 2
    assert "not here" in str(report)


def test_what_cannot_be_asked_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="cannot be pickled"):
        check_assignor(Broken(lambda *_: None), situations(1), other_hash_seeds=True)
    # A class of a module that only this process has.
    made = type("Made", (StickyTaskAssignor,), {"__module__": "only_here"})
    monkeypatch.setitem(sys.modules, "only_here", SimpleNamespace(Made=made))
    with pytest.raises(ValueError, match=r"under other hash seeds: .*only_here"):
        check_assignor(made, situations(1), other_hash_seeds=True)


def test_the_case_in_the_report_is_the_situation() -> None:
    states = list(situations(20, seed=5))
    report = check_assignor(Broken(lose_a_task), states)
    seen = 0
    for breach in report.breaches:
        text = json.dumps(dict(breach.case))
        outcome = run_case(Case.read(json.loads(text)))
        assert outcome.state is not None
        for state in states:
            if replace(outcome.state, now_ms=state.now_ms) == state:
                seen += 1
    assert seen == len(report.breaches) > 0


def test_situations_follow_from_their_seed() -> None:
    assert list(situations(5)) == list(situations(5))
    assert list(situations(5)) != list(situations(5, seed=1))
