"""Situations for task assignors: random ones, the same in another order, and as JSON cases.

Guarantees: a situation follows from its number and the seed. Written as a case for ``kshare
assign`` and read again, it is the same.
Cost: linear in tasks and processes.
"""

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from kshare.assignment.interface.application import (
    ApplicationState,
    AssignmentConfigs,
    KafkaStreamsState,
    TaskInfo,
    TaskTopicPartition,
)
from kshare.assignment.interface.task_id import ProcessId, TaskId
from kshare.core.hashing import WHOLE, split
from kshare.core.progress import TopicPartition

__all__ = ["as_case", "names", "reordered", "situations"]

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
