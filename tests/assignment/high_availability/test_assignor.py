"""The high-availability assignor: the judge's hard rules on random cases, and its own laws."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.assignment import (
    ApplicationState,
    HighAvailabilityTaskAssignor,
    KafkaStreamsState,
    ProcessId,
    TaskId,
    TaskInfo,
)
from kshare.core.hashing import WHOLE, split
from kshare.errors import TaskAssignmentException
from tests.support.cases import (
    HA,
    answer,
    java_order,
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
    assert violations(random_case(seed)) == []


@pytest.mark.parametrize("strategy", ["none", "min_traffic", "balance_subtopology"])
def test_answers_to_large_cases_are_valid(strategy: str) -> None:
    assert violations(random_case(1, tasks=500, processes=50, strategy=strategy, racks=3)) == []


@given(seeds)
@quick
def test_names_and_order_mean_nothing(seed: int) -> None:
    case = random_case(seed)
    other, names = relabelled(case, seed)
    found = answer(other)
    renamed = {names[process]: held for process, held in found["assignment"].items()}
    assert {**found, "assignment": renamed} == answer(case)


@given(seeds)
@quick
def test_warmed_up_placements_come_to_rest(seed: int) -> None:
    case = random_case(seed, tasks=20, processes=5)
    for _ in range(150):
        out = answer(case)
        next_round(case, out)
        if not out["followup"]:
            break
    assert not out["followup"]
    assert answer(case) == out


@given(seeds)
@quick
def test_the_wanted_placement_depends_on_no_previous_one(seed: int) -> None:
    # With any lag acceptable nothing is behind.
    now = random_case(seed, acceptable=judge.MAXLONG)
    fresh = {
        **now,
        "processes": [
            {**one, "prev_active": [], "prev_standby": [], "lags": {}} for one in now["processes"]
        ],
    }
    assert answer(now) == answer(fresh)
    assert not answer(now)["followup"]


@given(seeds)
@quick
def test_a_follow_up_is_wanted_if_and_only_if_something_is_behind(seed: int) -> None:
    case = random_case(seed)
    calm = {**case, "configs": {**case["configs"], "acceptable_recovery_lag": judge.MAXLONG}}
    out, wanted = answer(case), answer(calm)
    assert out["followup"] == bool(behind(case, wanted["assignment"]))
    if not out["followup"]:
        assert out == wanted


def behind(case: dict[str, Any], wanted: dict[str, Any]) -> list[tuple[str, str]]:
    """The (task, process) that are wanted and behind, and for which another process can stand in.

    Any fresher one can run an active task. A standby needs one without a copy that is at least as
    fresh, and that comes first if it is not fresher (so it is in Kafka).
    """
    acceptable = case["configs"]["acceptable_recovery_lag"]
    found = []
    for task in case["tasks"]:
        if not task.get("changelogs"):
            continue
        id_, end = task["id"], task.get("end_offset", 0)
        lags = {one["id"]: one.get("lags", {}).get(id_, end) for one in case["processes"]}
        actives = {process for process in lags if id_ in wanted[process]["active"]}
        copies = actives | {process for process in lags if id_ in wanted[process]["standby"]}
        rank = {process: (lag, java_order(process)) for process, lag in lags.items()}
        for process in copies:
            lag = lags[process]
            is_caught_up = lag == -2 or 0 <= lag <= acceptable or acceptable == judge.MAXLONG
            is_freshest = lag == min(lags.values())
            if is_caught_up or is_freshest:
                continue
            if process in actives or any(rank[o] < rank[process] for o in lags.keys() - copies):
                found.append((id_, process))
    return found


def state(tasks: list[TaskId], **threads: int) -> ApplicationState:
    processes = [
        KafkaStreamsState(ProcessId(name[1:]), count, task_lags={})
        for name, count in threads.items()
    ]
    return ApplicationState.of([TaskInfo(task) for task in tasks], processes)


def test_both_halves_of_a_partition_are_on_one_process() -> None:
    halves = split(WHOLE, 2)
    tasks = [TaskId(0, partition, part) for partition in range(2) for part in halves]
    found = HighAvailabilityTaskAssignor().assign(state(tasks, p1=2, p2=2))
    assert [sorted(entry.active) for entry in found.assignment] == [tasks[:2], tasks[2:]]


@given(st.integers(1, 12), st.integers(2, 8), st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_shared_tasks_of_a_partition_are_neighbours(
    partitions: int, ranges: int, threads: list[int]
) -> None:
    tasks = [TaskId(0, n, part) for n in range(partitions) for part in split(WHOLE, ranges)]
    app = state(tasks, **{f"p{n}": count for n, count in enumerate(threads)})
    found = HighAvailabilityTaskAssignor().assign(app)
    held = [sorted(entry.active) for entry in found.assignment]
    assert [task for tasks in held for task in tasks] == sorted(tasks)
    loads = [len(mine) / count for mine, count in zip(held, threads, strict=True)]
    assert max(loads) - min(loads) <= 1


def test_without_a_process_or_lags_there_is_no_answer() -> None:
    with pytest.raises(ValueError, match="no process"):
        HighAvailabilityTaskAssignor().assign(state([TaskId(0, 0)]))
    app = ApplicationState.of([], [KafkaStreamsState(ProcessId("1"))])
    with pytest.raises(TaskAssignmentException, match="process 1"):
        HighAvailabilityTaskAssignor().assign(app)


@pytest.mark.parametrize(("lag", "runs_on"), [(-3, "3"), (-2, "2"), (0, "2"), (10, "2"), (11, "3")])
def test_an_unknown_lag_is_not_caught_up(lag: int, runs_on: str) -> None:
    # 0_0 is wanted on process 1, which is behind. Process 3 is caught up; so may process 2 be.
    case = {
        "configs": {"acceptable_recovery_lag": 10},
        "tasks": [
            {"id": f"0_{n}", "inputs": [f"t-{n}"], "changelogs": [f"s-{n}"]} for n in range(3)
        ],
        "processes": [
            {"id": str(n), "threads": 1, "lags": {"0_0": at}}
            for n, at in enumerate([20, lag, 10], start=1)
        ],
    }
    held = answer(case)["assignment"]
    assert [process for process in held if "0_0" in held[process]["active"]] == [runs_on]


def test_the_first_process_asks_for_the_follow_up() -> None:
    case = random_case(3, scenario="out", tasks=60, processes=8, acceptable=0, standbys=1)
    assert case["assignor"] == HA
    assert answer(case)["followup"]
