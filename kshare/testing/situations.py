"""Situations for task assignors, and an assignor's answers in them.

Situations are random ones, the same in another order, and as JSON cases; answers are looked at for
their validity and placement, also in Python processes with other hash seeds, where sets of
processes and of names have other orders.

Guarantees: a situation follows from its number and the seed. Written as a case for ``kshare
assign`` and read again, it is the same.
Cost: linear in tasks and processes. Other hash seeds take two Python processes, each with a run of
the assignor for each situation.
"""

import os
import pickle
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar, cast

from kshare.assignment.interface.application import (
    ApplicationState,
    AssignmentConfigs,
    KafkaStreamsState,
    TaskInfo,
    TaskTopicPartition,
)
from kshare.assignment.interface.assignor import AssignmentError, TaskAssignment, TaskAssignor
from kshare.assignment.interface.task_id import ProcessId, TaskId
from kshare.assignment.utils import validate_task_assignment
from kshare.core.hashing import WHOLE, split
from kshare.core.progress import TopicPartition
from kshare.core.showing import shown, shown_error
from kshare.start_folder import python_of_kshare

__all__ = [
    "BreachError",
    "Placement",
    "Source",
    "answer_of",
    "as_case",
    "assignor_of",
    "check_equal",
    "hash_seed_breaches",
    "names",
    "placement_of",
    "reordered",
    "situations",
]

_K = TypeVar("_K")
_T = TypeVar("_T")


def situations(count: int = 100, *, seed: int = 0) -> Iterator[ApplicationState]:
    """Make random situations: fresh starts, processes that come and go, lags, racks, tags, ranges.

    Key ranges of a partition come with state and without.

    Args:
        count: Number of situations.
        seed: Another seed gives other situations.

    Yields:
        What an assignor's ``assign`` takes.
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
    old = rng.sample([one.process_id for one in processes], rng.randint(0, len(processes)))
    held = _previous(rng, tasks, old, configs.num_standby_replicas)
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
    ranges = split(WHOLE, rng.choice([1, 1, 4]))
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


def _previous(
    rng: random.Random, tasks: list[TaskInfo], processes: list[ProcessId], standbys: int
) -> dict[ProcessId, tuple[frozenset[TaskId], frozenset[TaskId]]]:
    """Former places of tasks: any process; some none."""
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


def reordered(state: ApplicationState, *, seed: int) -> ApplicationState:
    """Return the same situation, with each set and dict built in another order.

    Tasks, processes and previous tasks stay ascending: an assignor may rely on that.

    Args:
        state: The situation.
        seed: Another seed gives other orders.

    Returns:
        A state that equals ``state``.
    """
    rng = random.Random(f"order/{seed}")  # noqa: S311 - not for secrets
    tasks = {
        task: replace(info, state_store_names=_rebuilt_set(info.state_store_names, rng))
        for task, info in state.all_tasks.items()
    }
    states = {
        process: replace(
            one,
            client_tags=_rebuilt_dict(one.client_tags, rng),
            task_lags=None if one.task_lags is None else _rebuilt_dict(one.task_lags, rng),
            tasks_by_consumer=_rebuilt_dict(
                {name: _rebuilt_set(held, rng) for name, held in one.tasks_by_consumer.items()}, rng
            ),
        )
        for process, one in state.states.items()
    }
    return replace(state, all_tasks=tasks, states=states)


def _rebuilt_set(values: frozenset[_T], rng: random.Random) -> frozenset[_T]:
    # From a list, one by one: where hashes collide, what came first stands first.
    return frozenset(rng.sample(list(values), len(values)))


def _rebuilt_dict(values: Mapping[_K, _T], rng: random.Random) -> dict[_K, _T]:
    return dict(rng.sample(list(values.items()), len(values)))


def as_case(state: ApplicationState) -> dict[str, Any]:
    """Return the situation as a case for ``kshare assign``."""
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
                "prev_active": names(one.previous_active_tasks),
                "prev_standby": names(one.previous_standby_tasks),
                "rack": one.rack_id,
                "tags": dict(one.client_tags),
                "lags": {str(task): lag for task, lag in sorted((one.task_lags or {}).items())},
            }
            for process, one in sorted(state.states.items())
        ],
        "partition_racks": racks,
    }


def names(tasks: Iterable[TaskId]) -> list[str]:
    """Return the names of tasks, ascending."""
    return [str(task) for task in sorted(tasks)]


Placement: TypeAlias = dict[ProcessId, tuple[frozenset[TaskId], frozenset[TaskId]]]
"""The active and the standby tasks of each process."""
Source: TypeAlias = TaskAssignor | type[TaskAssignor] | Callable[[], TaskAssignor]
"""An assignor, or what makes one."""
_HASH_SEEDS = (1, 2)
_ELSEWHERE = "from kshare.testing.situations import _answer_here; _answer_here()"


class BreachError(Exception):
    """A law does not hold in a situation.

    Attributes:
        law: The law.
        what: What was seen instead.
        state: The situation.
    """

    def __init__(self, law: str, what: str, state: ApplicationState) -> None:
        super().__init__(what)
        self.law = law
        self.what = what
        self.state = state


def assignor_of(assignor: Source) -> TaskAssignor:
    """The assignor, made if need be."""
    # A class has the method, too; and an assignor need not inherit from the protocol.
    if isinstance(assignor, type) or not hasattr(assignor, "assign"):
        return assignor()
    return cast("TaskAssignor", assignor)


def answer_of(assignor: TaskAssignor, state: ApplicationState) -> TaskAssignment:
    """Ask an assignor once.

    Raises:
        BreachError: It does not answer, or its answer is not valid.
    """
    try:
        answer: object = assignor.assign(state)
    except Exception as error:
        raise BreachError("an answer is given", shown(error), state) from error
    if not isinstance(answer, TaskAssignment):
        what = f"the answer is a {type(answer).__name__}"
        raise BreachError("an answer is given", what, state)
    fault = validate_task_assignment(state, answer)
    if fault is not AssignmentError.NONE:
        raise BreachError("the answer is valid", fault.value, state)
    times = Counter(task for entry in answer.assignment for task in entry.active)
    for task in state.all_tasks:
        if times[task] != 1:
            what = f"task {task} is active {times[task]} times"
            raise BreachError("each task is active once", what, state)
    for entry in answer.assignment:
        for task in sorted(entry.standby):
            if not state.all_tasks[task].has_changelog:
                what = f"process {entry.process_id} has one of task {task}"
                raise BreachError("standbys are of tasks with a changelog", what, state)
    processes = Counter(entry.process_id for entry in answer.assignment)
    for process, count in processes.items():
        if count > 1:
            what = f"process {process} has {count}"
            raise BreachError("a process has one entry", what, state)
    return answer


def placement_of(answer: TaskAssignment) -> Placement:
    """The placement of an answer."""
    return {at: (entry.active, entry.standby) for at, entry in answer.by_process.items()}


def check_equal(law: str, state: ApplicationState, before: Placement, after: Placement) -> None:
    """Raise BreachError unless two placements are the same."""
    for process in sorted(before):
        for kind, was, is_ in zip(
            ("active", "standby"), before[process], after[process], strict=True
        ):
            if was != is_:
                what = f"process {process}, {kind}: first {names(was)}, then {names(is_)}"
                raise BreachError(law, what, state)


def hash_seed_breaches(
    assignor: Source, states: Sequence[ApplicationState]
) -> dict[int, BreachError]:
    """Breaches where answers depend on Python's hash seed by the number of the situation.

    Raises:
        ValueError: The assignor cannot be pickled, or loaded in another process.
    """
    try:
        message = pickle.dumps((sys.path, pickle.dumps((assignor, states))))
    except Exception as error:
        raise ValueError(
            "the assignor cannot be asked under other hash seeds: it cannot be pickled "
            f"({shown_error(error)}); wanted a class or an instance of one in a module"
        ) from error
    first, second = (_answers_under(seed, message) for seed in _HASH_SEEDS)
    breaches: dict[int, BreachError] = {}
    for number, (state, one, other) in enumerate(zip(states, first, second, strict=True)):
        try:
            if isinstance(one, str) or isinstance(other, str):
                what = one if isinstance(one, str) else str(other)
                raise BreachError("an answer is given", what, state)
            check_equal("the hash seed plays no part", state, one, other)
        except BreachError as breach:
            breaches[number] = breach
    return breaches


def _answers_under(seed: int, message: bytes) -> list[Placement | str]:
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    done = subprocess.run(  # noqa: S603 - this Python
        python_of_kshare(_ELSEWHERE),
        input=message,
        env=environment,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise ValueError(f"the assignor cannot be asked under other hash seeds: {said}")
    return cast("list[Placement | str]", pickle.loads(done.stdout))  # noqa: S301 - our own


def _answer_here() -> None:
    """Run in the other process: each situation's placement, or what went wrong."""
    # What an assignor prints is no answer.
    out, sys.stdout = sys.stdout, sys.stderr
    path, content = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our own parent
    sys.path[:] = path
    assignor, states = pickle.loads(content)  # noqa: S301 - from our own parent
    answers: list[Placement | str] = []
    for state in states:
        try:
            answers.append(placement_of(answer_of(assignor_of(assignor), state)))
        except BreachError as breach:
            answers.append(f"{breach.law}: {breach.what}")
    pickle.dump(answers, out.buffer)
