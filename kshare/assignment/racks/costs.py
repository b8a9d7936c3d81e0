"""The costs of racks: what a task costs on a process.

Guarantees: costs are there only if every rack they need is known; one gap is enough for None.
Cost: linear in the partitions of all tasks.

Source: KIP-925 and Kafka 4.1.1.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from kshare.assignment.interface.application import ApplicationState, TaskInfo
from kshare.assignment.interface.task_id import ProcessId, TaskId

__all__ = ["RackCosts", "TasksByProcess", "configured_costs", "has_racks", "rack_costs"]

TasksByProcess: TypeAlias = Mapping[ProcessId, Collection[TaskId]]


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
    """Return the costs, if all racks that they need are known.

    Args:
        state: Tasks and processes.
        inputs: Whether the partitions that are read count.
        changelogs: Whether the changelog partitions count.
        traffic_cost: Cost of a partition that has no replica in the rack of the process.
        non_overlap_cost: Cost of a task that is not on the process where it started.
        every_replica: Whether the rack of each replica must be known; else one is enough.

    Returns:
        None if the rack of any process or partition is unknown.
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
    state: ApplicationState, *, inputs: bool, changelogs: bool, every_replica: bool = False
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
