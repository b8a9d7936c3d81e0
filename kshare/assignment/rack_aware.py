"""Moving tasks to the racks of what they read, as many on each process as before.

Law: no process has more tasks or fewer than before; a move never makes the total cost higher. The
placement of actives is an optimum, and among the optima one with few moves. That of standbys is a
local one, as Kafka's is: no two processes can swap standbys with a gain.
Cost: actives as :mod:`~kshare.assignment.min_cost`; standbys a pass over all pairs of processes in
different racks, at most four times.

Source: KIP-925 and Kafka 4.1.1; the algorithms are others.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import Final, TypeAlias

from kshare.assignment.application import ApplicationState, TaskInfo
from kshare.assignment.task_id import ProcessId, TaskId

__all__ = [
    "MayMove",
    "RackCosts",
    "configured_costs",
    "has_racks",
    "keeps_tags",
    "optimize_active",
    "optimize_standby",
    "rack_costs",
]

Placement: TypeAlias = Mapping[ProcessId, Collection[TaskId]]

MayMove: TypeAlias = Callable[[TaskId, ProcessId, ProcessId, Collection[ProcessId]], bool]
"""Whether a standby may go from a process to another, given the processes with any copy of it."""

_PASSES_MAX: Final = 4


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


# -- active tasks --------------------------------------------------------------------------------


def optimize_active(
    active: Placement, tasks: Collection[TaskId], costs: RackCosts, strategy: str
) -> dict[ProcessId, set[TaskId]]:
    """Move active tasks so that the total cost is least; among such placements, few tasks move.

    Args:
        active: the active tasks of each process.
        tasks: those that may move.
        costs: see there.
        strategy: ``min_traffic``; or ``balance_subtopology``: a process gets no more than its
            share of each subtopology, rounded up.

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
    after = _solve(wanted, [owner[task] for task in wanted], processes, costs, strategy)
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


def _solve(
    tasks: Sequence[TaskId],
    start: Sequence[ProcessId],
    processes: Sequence[ProcessId],
    costs: RackCosts,
    strategy: str,
) -> list[ProcessId]:
    """The process of each task after the optimisation."""
    import numpy as np  # noqa: PLC0415 - planners that need no racks need no numpy

    from kshare.assignment.min_cost import Costs, place, place_capped  # noqa: PLC0415

    racks = sorted({costs.process_racks[process] for process in processes})
    column = {rack: i for i, rack in enumerate(racks)}
    number = {process: i for i, process in enumerate(processes)}
    before = np.array([number[process] for process in start], dtype=np.intp)
    priced = Costs(
        np.array([[costs.traffic(task, rack) for rack in racks] for task in tasks], dtype=np.int64),
        np.array([column[costs.process_racks[process]] for process in processes], dtype=np.intp),
        costs.non_overlap_cost,
    )
    if strategy == "balance_subtopology":
        _, group = np.unique([task[0] for task in tasks], return_inverse=True)
        after = place_capped(priced, before, group)
    else:
        after = place(priced, before)
    return [processes[i] for i in after]


# -- standby tasks -------------------------------------------------------------------------------


def keeps_tags(state: ApplicationState) -> MayMove | None:
    """The rule for standbys with client tags: the copies of a task shall not lose a tag.

    Counted are the different names with values, over all processes with a copy.

    Returns:
        None if no tags are configured.
    """
    if not state.assignment_configs.rack_aware_assignment_tags:
        return None
    entries = {process: frozenset(one.client_tags.items()) for process, one in state.states.items()}
    nothing: frozenset[tuple[str, str]] = frozenset()

    def may_move(
        _task: TaskId,
        source: ProcessId,
        destination: ProcessId,
        holders: Collection[ProcessId],
    ) -> bool:
        others = nothing.union(*(entries[one] for one in holders if one != source))
        return len(others | entries[destination]) >= len(others | entries[source])

    return may_move


def optimize_standby(
    active: Placement,
    standby: Placement,
    tasks: Collection[TaskId],
    costs: RackCosts,
    strategy: str,
    may_move: MayMove | None = None,
) -> dict[ProcessId, set[TaskId]]:
    """Swap standbys between processes in different racks, as long as that lowers the cost.

    Args:
        active: the active tasks of each process.
        standby: the standby tasks of each process.
        tasks: those that may move.
        costs: see there.
        strategy: ``min_traffic``; or ``balance_subtopology``: of what two processes could swap,
            neither gets more than its share of each subtopology, rounded up.
        may_move: asked for each move besides.

    Returns:
        The standby tasks of each process.

    Raises:
        ValueError: a standby is of a task that is not in the topology.
    """
    swaps = _Swaps(active, standby, tasks, costs, strategy, may_move)
    racks = costs.process_racks
    pairs = [
        (one, two)
        for one, two in combinations(sorted(swaps.standby), 2)
        if one in racks and two in racks and racks[one] != racks[two]
    ]
    for _ in range(_PASSES_MAX):
        if not sum(swaps.improve(one, two) for one, two in pairs):
            break
    return swaps.standby


class _Swaps:
    """Standbys while they are swapped."""

    def __init__(
        self,
        active: Placement,
        standby: Placement,
        tasks: Collection[TaskId],
        costs: RackCosts,
        strategy: str,
        may_move: MayMove | None,
    ) -> None:
        self.standby = {process: set(held) for process, held in standby.items()}
        self._start = {process: frozenset(held) for process, held in standby.items()}
        self._copies = {
            process: held.union(active.get(process, ())) for process, held in self.standby.items()
        }
        self._tasks = frozenset(tasks)
        self._costs = costs
        self._capped = strategy == "balance_subtopology"
        self._may_move = may_move
        self._traffic = {
            task: {rack: costs.traffic(task, rack) for rack in set(costs.process_racks.values())}
            for task in self._tasks.intersection(chain(*self.standby.values()))
        }
        self._holders: dict[TaskId, set[ProcessId]] = {task: set() for task in self._traffic}
        for process, held in self._copies.items():
            for task in held.intersection(self._traffic):
                self._holders[task].add(process)

    def improve(self, one: ProcessId, two: ProcessId) -> bool:
        """Swap what two processes gain by; whether they did."""
        give, take = self._movable(one, two), self._movable(two, one)
        if not give or not take:
            return False
        swapped = []
        for (gain, task), (gain_back, task_back) in zip(give, take, strict=False):
            if gain + gain_back <= 0:
                break
            swapped.append((task, task_back))
        if not swapped:
            return False
        if self._capped:
            swapped = self._within_caps(give, take)
        for task, task_back in swapped:
            self._move(task, one, two)
            self._move(task_back, two, one)
        return bool(swapped)

    def _movable(self, source: ProcessId, destination: ProcessId) -> list[tuple[int, TaskId]]:
        """What may go, with the gain of it; the largest gain first."""
        may_move = self._may_move
        found = [
            (self._gain(task, source, destination), task)
            for task in (self.standby[source] & self._tasks) - self._copies[destination]
            if may_move is None or may_move(task, source, destination, self._holders[task])
        ]
        return sorted(found, key=lambda entry: (-entry[0], entry[1]))

    def _gain(self, task: TaskId, source: ProcessId, destination: ProcessId) -> int:
        traffic, racks = self._traffic[task], self._costs.process_racks
        # Measured from the start, so that a standby that comes back costs nothing.
        moves = (task not in self._start[source]) - (task not in self._start[destination])
        saved = traffic[racks[source]] - traffic[racks[destination]]
        return saved + moves * self._costs.non_overlap_cost

    def _move(self, task: TaskId, source: ProcessId, destination: ProcessId) -> None:
        for held in (self.standby, self._copies):
            held[source].remove(task)
            held[destination].add(task)
        self._holders[task] ^= {source, destination}

    @staticmethod
    def _within_caps(
        give: Sequence[tuple[int, TaskId]], take: Sequence[tuple[int, TaskId]]
    ) -> list[tuple[TaskId, TaskId]]:
        """The best swaps that keep to the shares; none if there is no gain in that."""
        import numpy as np  # noqa: PLC0415

        from kshare.assignment.min_cost import Costs, place_capped  # noqa: PLC0415

        tasks = [task for _, task in (*give, *take)]
        start = np.repeat(np.arange(2), [len(give), len(take)])
        costs = np.zeros((len(tasks), 2), dtype=np.int64)
        costs[np.arange(len(tasks)), 1 - start] = [-gain for gain, _ in (*give, *take)]
        _, group = np.unique([task[0] for task in tasks], return_inverse=True)
        after = place_capped(Costs(costs, np.arange(2)), start, group)
        if costs[np.arange(len(tasks)), after].sum() >= 0:
            return []
        moved = [
            (task, way) for task, way, to in zip(tasks, start, after, strict=True) if way != to
        ]
        given = [task for task, way in moved if way == 0]
        taken = [task for task, way in moved if way == 1]
        return list(zip(given, taken, strict=True))
