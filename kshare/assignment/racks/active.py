"""Moving active tasks to the racks of what they read, as many on each process as before.

Law: no process has more tasks or fewer than before; the total cost is the least there is.
Cost: see :mod:`~kshare.assignment.racks.min_cost`.

Source: KIP-925 and Kafka 4.1.1; the algorithms are others.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from kshare.assignment.interface.application import ApplicationState, TaskInfo
from kshare.assignment.interface.task_id import ProcessId, TaskId

if TYPE_CHECKING:
    from kshare.assignment.racks.min_cost import Costs

__all__ = [
    "RackCosts",
    "Wishes",
    "configured_costs",
    "has_racks",
    "optimize_active",
    "rack_costs",
]

Placement: TypeAlias = Mapping[ProcessId, Collection[TaskId]]

Wishes: TypeAlias = Mapping[tuple[TaskId, ProcessId], int]
"""What decides between placements of the same cost: less is better, 0 where nothing is said."""


@dataclass(frozen=True, slots=True)
class RackCosts:
    """What it costs to have a task on a process.

    Attributes:
        process_racks: the rack of each process.
        partition_racks: for each task, the racks of each partition that counts.
        traffic_cost: of a partition that has no replica in the rack of the process.
        non_overlap_cost: of a task that is not where it started.
    """

    process_racks: Mapping[ProcessId, str]
    partition_racks: Mapping[TaskId, tuple[frozenset[str], ...]]
    traffic_cost: int
    non_overlap_cost: int

    def traffic(self, task: TaskId, rack: str) -> int:
        """The cost of a task's traffic, on a process in that rack.

        Raises:
            ValueError: the task is not in the topology.
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
    every_replica: bool = False,
) -> RackCosts | None:
    """The costs, if all racks are known that they need.

    Args:
        state: tasks and processes.
        inputs: the partitions that are read count.
        changelogs: the changelog partitions count.
        traffic_cost: see :class:`RackCosts`.
        non_overlap_cost: likewise.
        every_replica: the rack of each replica has to be known; else that of one is enough.

    Returns:
        None if the rack of a process or a partition is missing: one gap is enough.
    """
    if not has_racks(state, inputs=inputs, changelogs=changelogs, every_replica=every_replica):
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
    """The costs that the public helpers go by: changelogs count, inputs too if asked for.

    Args:
        state: tasks, processes and configs.
        inputs: see :func:`rack_costs`.
        traffic_cost: instead of the configured one.
        non_overlap_cost: likewise.

    Returns:
        None if nothing may be optimised: no strategy, a rack is missing, or a cost is not
        configured, for which the arguments do not stand in.
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
    state: ApplicationState, *, inputs: bool, changelogs: bool, every_replica: bool = False
) -> bool:
    """Whether the racks of all processes are known, and of these partitions.

    Args:
        state: tasks and processes.
        inputs: ask for the partitions that are read.
        changelogs: ask for the changelog partitions.
        every_replica: ask for the rack of each replica; else that of one is enough.
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


def optimize_active(
    active: Placement,
    tasks: Collection[TaskId],
    costs: RackCosts,
    strategy: str,
    wishes: Wishes | None = None,
) -> dict[ProcessId, set[TaskId]]:
    """Move active tasks so that the total cost is least.

    Args:
        active: the active tasks of each process.
        tasks: those that may move.
        costs: see there.
        strategy: ``min_traffic``; or ``balance_subtopology``: a process gets no more than its
            share of each subtopology, rounded up.
        wishes: of placements of the same cost, one with the least sum of these numbers is wanted,
            if the tasks are not too many for that; else one where few tasks move. With
            ``balance_subtopology`` less traffic comes before that: there Kafka does not start
            from what is, and ends up with more moves and less traffic.

    Returns:
        The active tasks of each process. A process without tasks stays without.

    Raises:
        ValueError: a task to move is on no process, or on two, or not in the topology.
    """
    placed = {process: set(held) for process, held in active.items()}
    wanted = sorted(set(tasks))
    if not wanted:
        return placed
    owner = _owners(active, wanted, costs)
    processes = sorted(set(owner.values()))
    before = [owner[task] for task in wanted]
    prefers_near = strategy == "balance_subtopology"
    priced = _priced(wanted, processes, costs, prefers_near, wishes or {})
    after = _solve(wanted, before, processes, priced, strategy)
    for task, process in zip(wanted, after, strict=True):
        if process != owner[task]:
            placed[owner[task]].remove(task)
            placed[process].add(task)
    return placed


def _owners(
    active: Placement, tasks: Sequence[TaskId], costs: RackCosts
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


def _priced(
    tasks: Sequence[TaskId],
    processes: Sequence[ProcessId],
    costs: RackCosts,
    prefers_near: bool,
    wishes: Wishes,
) -> "Costs":
    import numpy as np  # noqa: PLC0415 - planners that need no racks need no numpy

    from kshare.assignment.racks.min_cost import DENSE_MAX, Costs  # noqa: PLC0415

    racks = sorted({costs.process_racks[process] for process in processes})
    column = {rack: i for i, rack in enumerate(racks)}
    wished = None
    # Networks know no wishes, and the matrix would be large.
    if wishes and len(tasks) <= DENSE_MAX:
        wished = np.zeros((len(tasks), len(processes)), dtype=np.int64)
        row = {task: i for i, task in enumerate(tasks)}
        number = {process: i for i, process in enumerate(processes)}
        for (task, process), wish in wishes.items():
            if task in row and process in number:
                wished[row[task], number[process]] = wish
    return Costs(
        np.array([[costs.traffic(task, rack) for rack in racks] for task in tasks], dtype=np.int64),
        np.array([column[costs.process_racks[process]] for process in processes], dtype=np.intp),
        costs.non_overlap_cost,
        prefers_near,
        wished,
    )


def _solve(
    tasks: Sequence[TaskId],
    start: Sequence[ProcessId],
    processes: Sequence[ProcessId],
    priced: "Costs",
    strategy: str,
) -> list[ProcessId]:
    """The process of each task after the optimisation."""
    import numpy as np  # noqa: PLC0415

    from kshare.assignment.racks.min_cost import place, place_capped  # noqa: PLC0415

    number = {process: i for i, process in enumerate(processes)}
    before = np.array([number[process] for process in start], dtype=np.intp)
    if strategy == "balance_subtopology":
        _, group = np.unique([task[0] for task in tasks], return_inverse=True)
        after = place_capped(priced, before, group)
    else:
        after = place(priced, before)
    return [processes[i] for i in after]
