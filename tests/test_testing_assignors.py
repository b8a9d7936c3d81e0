"""``check_assignor``: good ones pass, and each law catches the one that breaks it."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kshare.assignment import (
    ApplicationState,
    FallbackPriorTaskAssignor,
    HighAvailabilityTaskAssignor,
    KafkaStreamsAssignment,
    ProcessId,
    StickyTaskAssignor,
    TaskAssignment,
    TaskAssignor,
    TaskId,
)
from kshare.assignment.cases import Case, run_case
from kshare.testing import check_assignor, situations


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
    ],
)
def test_a_broken_one_is_found_out(spoil: Any, law: str, what: str) -> None:
    spread_max = None if spoil is turn_round else 1.0
    report = check_assignor(Broken(spoil), situations(40), spread_max=spread_max)
    assert not report.is_valid
    assert {breach.law for breach in report.breaches} == {law}
    assert what in str(report)
    assert f"- {law}: {len(report.breaches)}" in str(report)


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
