"""Moving active tasks to the racks of what they read, as many on each process as before.

Guarantees: no process has more tasks or fewer than before; the total cost is the least there is.
Cost: see :mod:`~kshare.assignment.racks.min_cost`.

Source: KIP-925 and Kafka 4.1.1; the algorithms are others.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from kshare.assignment.interface.task_id import ProcessId, TaskId
from kshare.assignment.racks.costs import RackCosts, TasksByProcess
from kshare.assignment.racks.solver import load_solver

__all__ = ["Wishes", "optimize_active"]

Wishes: TypeAlias = Mapping[tuple[TaskId, ProcessId], int]
"""Decide between placements of the same cost: less is better, 0 where nothing is said."""


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
        ValueError: a task to move is on no process, on two, or not in the topology.
        ModuleNotFoundError: the solver's packages are not installed.
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
