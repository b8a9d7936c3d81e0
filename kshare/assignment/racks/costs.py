"""The costs of racks, and active tasks moved to where these are least.

Guarantees: costs are there only if every rack they need is known; one gap is enough for None. No
process has more active tasks or fewer than before, and their total cost is the least there is.
Cost: linear in the partitions of all tasks; the moves, see :mod:`~.racks.min_cost`.

Source: KIP-925 and Kafka 4.1.1; the algorithms are others.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from kshare.assignment.interface.application import ApplicationState, TaskInfo
from kshare.assignment.interface.task_id import ProcessId, TaskId

__all__ = [
    "RackCosts",
    "Solver",
    "TasksByProcess",
    "Wishes",
    "configured_costs",
    "has_racks",
    "load_solver",
    "optimize_active",
    "rack_costs",
]

TasksByProcess: TypeAlias = Mapping[ProcessId, Collection[TaskId]]
Wishes: TypeAlias = Mapping[tuple[TaskId, ProcessId], int]
"""Decide between placements of the same cost: less is better, 0 where nothing is said."""


@dataclass(frozen=True, slots=True)
class RackCosts:
    """The cost of a task on a process.

    Attributes:
        process_racks: The rack of each process.
        partition_racks: For each task, the racks of each partition that counts.
        traffic_cost: Cost of a partition that has no replica in the rack of the process.
        non_overlap_cost: Cost of a task that is not on the process where it started.
    """

    process_racks: Mapping[ProcessId, str]
    partition_racks: Mapping[TaskId, tuple[frozenset[str], ...]]
    traffic_cost: int
    non_overlap_cost: int

    def traffic(self, task: TaskId, rack: str) -> int:
        """Return the cost of a task's traffic on a process in that rack.

        Raises:
            ValueError: The task is not in the topology.
        """
        racks = self.partition_racks.get(task)
        if racks is None:
            raise ValueError(f"task {task} is not in the topology")
        return self.traffic_cost * sum(rack not in one for one in racks)


def rack_costs(
    state: ApplicationState,
    *,
    inputs: bool,
    changelogs: bool,
    traffic_cost: int,
    non_overlap_cost: int,
) -> RackCosts | None:
    """Return the costs, if all racks that they need are known.

    Args:
        state: Tasks and processes.
        inputs: Whether the partitions that are read count.
        changelogs: Whether the changelog partitions count.
        traffic_cost: Cost of a partition that has no replica in the rack of the process.
        non_overlap_cost: Cost of a task that is not on the process where it started.

    Returns:
        None if the rack of any process or partition is unknown.
    """
    if not has_racks(state, inputs=inputs, changelogs=changelogs, every_replica=False):
        return None
    return RackCosts(
        {process: one.rack_id for process, one in state.states.items() if one.rack_id is not None},
        {
            task: _racks(info, inputs=inputs, changelogs=changelogs)
            for task, info in state.all_tasks.items()
        },
        traffic_cost,
        non_overlap_cost,
    )


def configured_costs(
    state: ApplicationState,
    *,
    inputs: bool,
    traffic_cost: int | None = None,
    non_overlap_cost: int | None = None,
) -> RackCosts | None:
    """Return the costs that the public helpers use: changelogs count, inputs if asked for.

    Args:
        state: Tasks, processes and configs.
        inputs: Whether the partitions that are read count.
        traffic_cost: Replaces the configured cost of traffic.
        non_overlap_cost: Replaces the configured cost of a move.

    Returns:
        None if nothing may be optimised: there is no strategy, a rack is unknown, or a cost is not
        configured. As in Kafka, the arguments do not stand in for a missing config.
    """
    configs = state.assignment_configs
    traffic, non_overlap = configs.rack_aware_traffic_cost, configs.rack_aware_non_overlap_cost
    if configs.rack_aware_assignment_strategy == "none" or traffic is None or non_overlap is None:
        return None
    return rack_costs(
        state,
        inputs=inputs,
        changelogs=True,
        traffic_cost=traffic if traffic_cost is None else traffic_cost,
        non_overlap_cost=non_overlap if non_overlap_cost is None else non_overlap_cost,
    )


def _racks(info: TaskInfo, *, inputs: bool, changelogs: bool) -> tuple[frozenset[str], ...]:
    return tuple(
        one.rack_ids or frozenset()
        for one in info.topic_partitions
        if (inputs and one.is_source) or (changelogs and one.is_changelog)
    )


def has_racks(
    state: ApplicationState, *, inputs: bool, changelogs: bool, every_replica: bool
) -> bool:
    """Return whether the racks of all processes and of these partitions are known.

    Args:
        state: Tasks and processes.
        inputs: Whether the partitions that are read count.
        changelogs: Whether the changelog partitions count.
        every_replica: Whether the rack of each replica must be known; else one is enough.
    """
    if any(one.rack_id is None for one in state.states.values()):
        return False
    for info in state.all_tasks.values():
        for one in info.topic_partitions:
            if not ((inputs and one.is_source) or (changelogs and one.is_changelog)):
                continue
            racks = one.replica_racks or ()
            missing = [rack for rack in racks if rack is None]
            if len(missing) == len(racks) or (every_replica and missing):
                return False
    return True


class Solver(Protocol):
    """The interface of :mod:`~kshare.assignment.racks.min_cost`."""

    def place_tasks(
        self,
        traffic: Sequence[Sequence[int]],
        racks: Sequence[int],
        start: Sequence[int],
        *,
        move: int,
        groups: Sequence[int] | None = None,
        wishes: Mapping[tuple[int, int], int] | None = None,
    ) -> list[int]:
        """Place tasks at least cost."""
        ...

    def place_on_two(
        self,
        traffic: Sequence[Sequence[int]],
        first: int,
        groups: Sequence[int],
        move: int = 0,
        *,
        prefers_near: bool = False,
    ) -> list[int]:
        """Place tasks on two processes at least cost."""
        ...


def load_solver() -> Solver:
    """Import the solver, when there is something to solve.

    It needs numpy and scipy, which the extra ``kshare[racks]`` installs: scipy is large (some
    140 MB, a second to import).

    Raises:
        ModuleNotFoundError: The package scipy is not installed; the text says how to install it.
    """
    try:
        from kshare.assignment.racks import min_cost  # noqa: PLC0415 - as said
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise ModuleNotFoundError(
            f"rack-aware assignment needs {package}: pip install 'kshare[racks]', "
            "or set rack.aware.assignment.strategy to none",
            name=error.name,
        ) from error
    return min_cost


def optimize_active(
    active: TasksByProcess,
    tasks: Collection[TaskId],
    costs: RackCosts,
    strategy: str,
    wishes: Wishes | None = None,
) -> dict[ProcessId, set[TaskId]]:
    """Move active tasks so that the total cost is least.

    Args:
        active: The active tasks of each process.
        tasks: The tasks that may move.
        costs: The cost of each task on each process.
        strategy: ``min_traffic``; or ``balance_subtopology``, where a process gets no more than
            its share of each subtopology, rounded up.
        wishes: Decide between placements of the same cost: the least sum is best, if the tasks are
            not too many for that; else few moves are. With ``balance_subtopology`` less traffic
            comes first: there Kafka does not start from the present placement, and ends up with
            more moves and less traffic.

    Returns:
        The active tasks of each process. A process without tasks stays without.

    Raises:
        ValueError: A task to move is on no process, on two, or not in the topology.
        ModuleNotFoundError: The solver's packages are not installed.
    """
    placed = {process: set(held) for process, held in active.items()}
    wanted = sorted(set(tasks))
    if not wanted:
        return placed
    owner = _owners(active, wanted, costs)
    processes = sorted(set(owner.values()))
    racks = sorted({costs.process_racks[process] for process in processes})
    rack_number = {rack: number for number, rack in enumerate(racks)}
    task_number = {task: number for number, task in enumerate(wanted)}
    process_number = {process: number for number, process in enumerate(processes)}
    after = load_solver().place_tasks(
        [[costs.traffic(task, rack) for rack in racks] for task in wanted],
        [rack_number[costs.process_racks[process]] for process in processes],
        [process_number[owner[task]] for task in wanted],
        move=costs.non_overlap_cost,
        groups=[task[0] for task in wanted] if strategy == "balance_subtopology" else None,
        wishes={
            (task_number[task], process_number[process]): wish
            for (task, process), wish in (wishes or {}).items()
            if task in task_number and process in process_number
        },
    )
    for task, number in zip(wanted, after, strict=True):
        process = processes[number]
        if process != owner[task]:
            placed[owner[task]].remove(task)
            placed[process].add(task)
    return placed


def _owners(
    active: TasksByProcess, tasks: Sequence[TaskId], costs: RackCosts
) -> dict[TaskId, ProcessId]:
    wanted = set(tasks)
    owner: dict[TaskId, ProcessId] = {}
    for process in sorted(active):
        if process not in costs.process_racks:
            continue
        for task in wanted.intersection(active[process]):
            if task in owner:
                raise ValueError(f"task {task} is active on {owner[task]} and on {process}")
            owner[task] = process
    for task in tasks:
        if task not in owner:
            raise ValueError(f"task {task} is active on no process")
    return owner
