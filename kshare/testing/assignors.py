"""The laws that any task assignor must meet, checked on situations, for those who write their own.

Law: a situation that breaks a law is reported with all that is needed to try it again: as a case
for ``kshare assign``. Equal arguments give equal reports.
Cost: three runs of the assignor for each situation, and one for each round of convergence.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, cast

from kshare.assignment.application import (
    ApplicationState,
    KafkaStreamsState,
    TaskInfo,
    TaskTopicPartition,
)
from kshare.assignment.assignor import AssignmentError, TaskAssignment, TaskAssignor
from kshare.assignment.configs import AssignmentConfigs
from kshare.assignment.task_id import ProcessId, TaskId
from kshare.assignment.utils import validate_task_assignment
from kshare.core.hashing import WHOLE, split
from kshare.core.progress import TopicPartition

__all__ = ["AssignorReport", "Breach", "check_assignor", "situations"]


@dataclass(frozen=True, slots=True)
class Breach:
    """A law that does not hold.

    Attributes:
        law: which.
        what: what was seen instead.
        case: the situation, as a case for ``kshare assign``.
    """

    law: str
    what: str
    case: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.law}: {self.what}\n  {json.dumps(self.case)}"


@dataclass(frozen=True, slots=True)
class AssignorReport:
    """What came out.

    Attributes:
        checked: how many situations.
        breaches: what was broken, at most one for each situation.
    """

    checked: int
    breaches: tuple[Breach, ...] = ()

    @property
    def is_valid(self) -> bool:
        """Whether every law held in every situation."""
        return not self.breaches

    def __str__(self) -> str:
        if self.is_valid:
            return f"{self.checked} situations, all laws hold"
        laws = Counter(breach.law for breach in self.breaches)
        lines = [f"{self.checked} situations, {len(self.breaches)} of them break a law:"]
        lines += [f"- {law}: {count}" for law, count in laws.most_common()]
        # The smallest one says most.
        smallest = min(self.breaches, key=lambda breach: len(json.dumps(breach.case)))
        return "\n".join([*lines, "the smallest one, for `kshare assign`:", str(smallest)])


class _BreachError(Exception):
    def __init__(self, law: str, what: str, state: ApplicationState) -> None:
        super().__init__(what)
        self.law = law
        self.what = what
        self.state = state


def check_assignor(
    assignor: TaskAssignor | type[TaskAssignor] | Callable[[], TaskAssignor],
    states: Iterable[ApplicationState] | None = None,
    *,
    spread_max: float | None = 1.0,
    rounds_max: int | None = None,
    settles: bool = True,
) -> AssignorReport:
    """Check an assignor against the laws, each situation by itself.

    - Each task is active on exactly one process, and no task or process is made up.
    - No standby is of a task without a changelog, or beside another copy.
    - What is asked twice is answered the same.
    - Rebalances come to an end: states catch up, and after some rounds no follow-up is asked for.
    - Then loads are even: the most and the least loaded process differ by no more than one active
      task of each, and ``spread_max`` tasks a thread.
    - Then a further run changes nothing, or the few runs that racks need to settle.

    Args:
        assignor: one, or what makes one (a class), called for each situation.
        states: the situations; None: :func:`situations`, some hundred of all sorts.
        spread_max: how many tasks a thread the active loads may differ by, besides what one task
            makes on a process with few threads; None: any.
        rounds_max: rounds until no follow-up is asked for; None: as many as there are copies to
            warm up, one by one; 0: a follow-up may be asked for each time.
        settles: check that a further run changes nothing; an assignor that rotates tasks on
            purpose does not.

    Returns:
        A report to print; assert its ``is_valid``.
    """
    breaches = []
    checked = 0
    for state in situations() if states is None else states:
        checked += 1
        try:
            _check(assignor, state, spread_max, rounds_max, settles)
        except _BreachError as breach:
            breaches.append(Breach(breach.law, breach.what, _as_case(breach.state)))
    return AssignorReport(checked, tuple(breaches))


def _check(
    assignor: TaskAssignor | type[TaskAssignor] | Callable[[], TaskAssignor],
    state: ApplicationState,
    spread_max: float | None,
    rounds_max: int | None,
    settles: bool,
) -> None:
    made = _made(assignor)
    answer = _run(made, state)
    _equal("equal situations, equal answers", state, answer, _run(made, state))
    rounds = _copies(state) + 2 if rounds_max is None else rounds_max
    for _ in range(rounds):
        if not answer.wants_followup:
            break
        state = _caught_up(state, answer)
        answer = _run(made, state)
    if rounds and answer.wants_followup:
        what = f"a follow-up is asked for after {rounds} rounds"
        raise _BreachError("rebalances come to an end", what, state)
    if spread_max is not None:
        _check_balance(state, answer, spread_max)
    if settles:
        # What moved for racks or loads may need a run to settle; from then on nothing moves.
        for _ in range(3):
            state = _caught_up(state, answer)
            last, answer = answer, _run(made, state)
            if _placed(last) == _placed(answer):
                return
        _equal("a further run changes nothing", state, last, answer)


def _made(
    assignor: TaskAssignor | type[TaskAssignor] | Callable[[], TaskAssignor],
) -> TaskAssignor:
    # A class has the method, too; and an assignor need not inherit from the protocol.
    if isinstance(assignor, type) or not hasattr(assignor, "assign"):
        return assignor()
    return cast("TaskAssignor", assignor)


def _copies(state: ApplicationState) -> int:
    """How many copies there are of tasks with a changelog, when all is placed."""
    logged = sum(info.has_changelog for info in state.all_tasks.values())
    return logged * (1 + max(0, state.assignment_configs.num_standby_replicas))


def _run(assignor: TaskAssignor, state: ApplicationState) -> TaskAssignment:
    try:
        answer: object = assignor.assign(state)
    except Exception as error:
        raise _BreachError("an answer is given", repr(error), state) from error
    if not isinstance(answer, TaskAssignment):
        what = f"the answer is a {type(answer).__name__}"
        raise _BreachError("an answer is given", what, state)
    fault = validate_task_assignment(state, answer)
    if fault is not AssignmentError.NONE:
        raise _BreachError("the answer is valid", fault.value, state)
    times = Counter(task for entry in answer.assignment for task in entry.active)
    for task in state.all_tasks:
        if times[task] != 1:
            what = f"task {task} is active {times[task]} times"
            raise _BreachError("each task is active once", what, state)
    for entry in answer.assignment:
        for task in sorted(entry.standby):
            if not state.all_tasks[task].has_changelog:
                what = f"process {entry.process_id} has one of task {task}"
                raise _BreachError("standbys are of tasks with a changelog", what, state)
    processes = Counter(entry.process_id for entry in answer.assignment)
    for process, count in processes.items():
        if count > 1:
            what = f"process {process} has {count}"
            raise _BreachError("a process has one entry", what, state)
    return answer


def _equal(law: str, state: ApplicationState, one: TaskAssignment, other: TaskAssignment) -> None:
    before, after = _placed(one), _placed(other)
    for process in sorted(before):
        for kind, was, is_ in zip(
            ("active", "standby"), before[process], after[process], strict=True
        ):
            if was != is_:
                what = f"process {process}, {kind}: first {_names(was)}, then {_names(is_)}"
                raise _BreachError(law, what, state)


def _placed(answer: TaskAssignment) -> dict[ProcessId, tuple[frozenset[TaskId], frozenset[TaskId]]]:
    return {entry.process_id: (entry.active, entry.standby) for entry in answer.assignment}


def _caught_up(state: ApplicationState, answer: TaskAssignment) -> ApplicationState:
    """What the next rebalance sees: all copies have caught up, and there are no others."""
    placed = _placed(answer)
    lags_of_nobody = {
        task: max((one.task_lags or {}).get(task, 0) for one in state.states.values())
        for task, info in state.all_tasks.items()
        if info.has_changelog
    }
    states = {}
    for process, one in state.states.items():
        active, standby = placed[process]
        lags = {
            task: 0 if task in active or task in standby else max(end, 1)
            for task, end in lags_of_nobody.items()
        }
        states[process] = replace(
            one, previous_active_tasks=active, previous_standby_tasks=standby, task_lags=lags
        )
    return replace(state, states=states)


def _check_balance(state: ApplicationState, answer: TaskAssignment, spread_max: float) -> None:
    """The stateful and the stateless active tasks by themselves: their loads add up."""
    placed = _placed(answer)
    threads = {process: one.num_processing_threads for process, one in state.states.items()}
    loads = {process: Fraction(len(placed[process][0]), threads[process]) for process in threads}
    most = max(loads, key=lambda process: (loads[process], process))
    least = min(loads, key=lambda process: (loads[process], process))
    # Both kinds of tasks are dealt by themselves in Kafka, so each may be one task off.
    step = Fraction(1, threads[most]) + Fraction(1, threads[least])
    if loads[most] - loads[least] > step + Fraction(spread_max):
        what = (
            f"process {most} has {float(loads[most]):.2f} active tasks a thread, "
            f"process {least} {float(loads[least]):.2f}"
        )
        raise _BreachError("active loads are even", what, state)


# -- situations ----------------------------------------------------------------------------------


def situations(count: int = 100, *, seed: int = 0) -> Iterator[ApplicationState]:
    """Situations of all sorts: fresh starts, members that come and go, lags, racks, tags, ranges.

    Args:
        count: how many.
        seed: another one, other situations.
    """
    for number in range(count):
        yield _situation(random.Random(f"{seed}/{number}"))  # noqa: S311 - not for secrets


def _situation(rng: random.Random) -> ApplicationState:
    racks = [f"r{number}" for number in range(rng.choice([0, 0, 2, 3]))]
    strategies = ["none", "min_traffic", "balance_subtopology"]
    configs = AssignmentConfigs(
        acceptable_recovery_lag=rng.choice([0, 100, 10_000]),
        max_warmup_replicas=rng.choice([1, 2, 5]),
        num_standby_replicas=rng.choice([0, 0, 1, 2]),
        rack_aware_assignment_tags=rng.choice([(), (), ("zone",)]),
        rack_aware_traffic_cost=10,
        rack_aware_non_overlap_cost=1,
        rack_aware_assignment_strategy=rng.choice(strategies) if racks else "none",
    )
    tasks = [task for number in range(rng.randint(1, 3)) for task in _tasks(rng, number, racks)]
    processes = [_process(rng, number, racks) for number in range(rng.randint(1, 8))]
    old = rng.sample(processes, rng.randint(0, len(processes)))
    held = _held(rng, tasks, [one.process_id for one in old], configs.num_standby_replicas)
    ends = {task.id: rng.randint(1, 100_000) for task in tasks if task.has_changelog}
    states = []
    for one in processes:
        active, standby = held.get(one.process_id, (frozenset(), frozenset()))
        lags = {
            task: rng.choice([0, 0, -2 if task in active else 0, rng.randint(0, end)])
            if task in active or task in standby
            else end
            for task, end in ends.items()
        }
        states.append(
            replace(
                one,
                previous_active_tasks=active,
                previous_standby_tasks=standby,
                task_lags=lags,
            )
        )
    return ApplicationState.of(tasks, states, configs, now_ms=1_000_000)


def _tasks(rng: random.Random, subtopology: int, racks: list[str]) -> Iterator[TaskInfo]:
    is_stateful = rng.random() < 0.6
    ranges = [None] if is_stateful else split(WHOLE, rng.choice([1, 1, 4]))
    for partition in range(rng.randint(1, 12)):
        replicas = tuple(rng.sample(racks, rng.randint(1, len(racks)))) if racks else None
        source = TopicPartition(f"in{subtopology}", partition)
        partitions = [TaskTopicPartition(source, True, False, replicas)]
        if is_stateful:
            changelog = TopicPartition(f"store{subtopology}", partition)
            partitions.append(TaskTopicPartition(changelog, False, True, replicas))
        for hashes in ranges:
            yield TaskInfo(TaskId(subtopology, partition, hashes), is_stateful, tuple(partitions))


def _process(rng: random.Random, number: int, racks: list[str]) -> KafkaStreamsState:
    return KafkaStreamsState(
        ProcessId(str(number)),
        rng.choice([1, 1, 2, 4]),
        client_tags={"zone": rng.choice("abc")},
        rack_id=rng.choice(racks) if racks else None,
    )


def _held(
    rng: random.Random, tasks: list[TaskInfo], processes: list[ProcessId], standbys: int
) -> dict[ProcessId, tuple[frozenset[TaskId], frozenset[TaskId]]]:
    """Where the tasks were: anywhere, some nowhere."""
    active: dict[ProcessId, set[TaskId]] = {process: set() for process in processes}
    standby: dict[ProcessId, set[TaskId]] = {process: set() for process in processes}
    for task in tasks:
        if not processes or rng.random() < 0.1:
            continue
        copies = 1 + (standbys if task.has_changelog else 0)
        first, *others = rng.sample(processes, min(copies, len(processes)))
        active[first].add(task.id)
        for other in others:
            standby[other].add(task.id)
    return {
        process: (frozenset(active[process]), frozenset(standby[process])) for process in processes
    }


# -- as a case -----------------------------------------------------------------------------------


def _as_case(state: ApplicationState) -> dict[str, Any]:
    """The situation as ``kshare assign`` reads it."""
    configs = state.assignment_configs
    racks: dict[str, list[str | None]] = {}
    tasks = []
    for task, info in sorted(state.all_tasks.items()):
        for one in info.topic_partitions:
            if one.replica_racks is not None:
                racks[str(one.topic_partition)] = list(one.replica_racks)
        tasks.append(
            {
                "id": str(task),
                "inputs": [str(one) for one in info.input_topic_partitions],
                "changelogs": [str(one) for one in info.changelog_topic_partitions],
                "stateful": info.is_stateful,
            }
        )
    return {
        "id": "breach",
        "op": "assign",
        "configs": {
            name: list(value) if isinstance(value, tuple) else value
            for name in AssignmentConfigs.__dataclass_fields__
            if (value := getattr(configs, name)) is not None
        },
        "tasks": tasks,
        "processes": [
            {
                "id": str(process),
                "threads": one.num_processing_threads,
                "prev_active": _names(one.previous_active_tasks),
                "prev_standby": _names(one.previous_standby_tasks),
                "rack": one.rack_id,
                "tags": dict(one.client_tags),
                "lags": {str(task): lag for task, lag in sorted((one.task_lags or {}).items())},
            }
            for process, one in sorted(state.states.items())
        ],
        "partition_racks": racks,
    }


def _names(tasks: Iterable[TaskId]) -> list[str]:
    return [str(task) for task in sorted(tasks)]
