"""The high-availability assignor: tasks run where their state is, and warm up where they are due.

Guarantees: no active task is on a process that is not caught up while another one has a smaller
lag; at most ``max.warmup.replicas`` copies are made beyond the wanted ones. The wanted placement
depends on tasks and processes alone; when nothing is behind any more, it is reached, and a further
run changes nothing. Stateful shared tasks are the exception: a previous placement of them that is
even and needs few state stores is the wanted one.
Cost: about tasks x processes at worst; 2,000 tasks with a standby each on 200 processes well below
a second, without racks.

    wanted process caught up, or no other one fresher    the task runs there
    a standby elsewhere is caught up                     the two change places
    another process is caught up                         it runs there; warm-up on the wanted one
    no process is caught up                              it runs on the freshest; warm-up, too

After Kafka Streams' HighAvailabilityTaskAssignor (KIP-441), which knows no shared tasks.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from kshare.assignment.interface.application import LATEST_OFFSET, ApplicationState
from kshare.assignment.interface.assignor import TaskAssignment, TaskAssignor
from kshare.assignment.interface.task_id import TaskId
from kshare.assignment.placement.default_standbys import assign_standbys
from kshare.assignment.placement.indexed_state import IndexedState
from kshare.assignment.placement.placement import Placement, deal, even_out, place_by_active_load
from kshare.assignment.placement.siblings import (
    group_actives,
    group_standbys,
    keep_previous_actives,
    keep_previous_standbys,
)
from kshare.assignment.racks.costs import RackCosts, has_racks, optimize_active, rack_costs
from kshare.assignment.racks.standby import keeps_tags, optimize_standby

__all__ = [
    "HighAvailabilityTaskAssignor",
]

_TRAFFIC_COST: Final = 10
_NON_OVERLAP_COST: Final = 1
_STATELESS_COSTS: Final = (1, 0)  # a task without state may move for any gain
_UNBOUNDED: Final = 2**63 - 1
"""The acceptable lag at which every process counts as caught up."""


class HighAvailabilityTaskAssignor(TaskAssignor):
    """Kafka's default: availability first, balance next; stickiness through state alone."""

    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        """Assign each task; ask for a follow-up while a copy is not yet where it is wanted.

        Raises:
            ValueError: There is no process.
            TaskAssignmentException: The task lags were not computed.
        """
        application_state.kafka_streams_states(compute_task_lags=True)
        indexed = IndexedState(application_state)
        placement = indexed.empty_placement()
        racks = _Racks(indexed)
        deal(placement, indexed.logged)
        even_out(
            placement,
            placement.active,
            lambda task, _source, target: placement.move_active(task, target),
        )
        shared = _shared(indexed, indexed.logged)
        if shared:
            group_actives(placement, shared)
            if not racks.is_enabled:
                keep_previous_actives(indexed, placement, shared)
        racks.optimize_active(placement, indexed.logged, racks.costs)
        _place_standbys(indexed, placement, racks, shared)
        is_moved = _run_where_state_is(indexed, placement)
        place_by_active_load(placement, indexed.unlogged)
        if shared_unlogged := _shared(indexed, indexed.unlogged):
            group_actives(placement, shared_unlogged)
        racks.optimize_active(placement, indexed.unlogged, _STATELESS_COSTS)
        interval = application_state.assignment_configs.probing_rebalance_interval_ms
        return indexed.answer(placement, application_state.now_ms + interval if is_moved else None)


def _shared(indexed: IndexedState, tasks: list[int]) -> list[int]:
    shared = indexed.shared.tasks
    return [task for task in tasks if task in shared] if shared else []


def _place_standbys(
    indexed: IndexedState, placement: Placement, racks: "_Racks", shared: list[int]
) -> None:
    state = indexed.state
    configs = state.assignment_configs
    if configs.num_standby_replicas <= 0:
        return
    standbys = assign_standbys(state, indexed.active_ids(placement))
    placement.set_standby(indexed.numbers(standbys))
    tags = [state.states[process].client_tags.items() for process in indexed.processes]
    has_tags = bool(configs.rack_aware_assignment_tags)
    even_out(
        placement,
        placement.standby,
        placement.move_standby,
        # Every tag counts here, also one that is not configured.
        lambda source, target: not has_tags or tags[source] <= tags[target],
    )
    if shared:
        _group_standbys(indexed, placement, shared)
        if not (has_tags or racks.is_enabled):
            keep_previous_standbys(indexed, placement, shared)
    racks.optimize_standby(placement)


def _group_standbys(indexed: IndexedState, placement: Placement, shared: list[int]) -> None:
    """Group the standbys of shared tasks, among processes whose configured tags are equal."""
    states, configs = indexed.state.states, indexed.state.assignment_configs
    names = frozenset(configs.rack_aware_assignment_tags)
    tags = [
        frozenset(entry for entry in states[process].client_tags.items() if entry[0] in names)
        for process in indexed.processes
    ]
    movable = [standby.intersection(shared) for standby in placement.standby]
    group_standbys(indexed, placement, movable, tags)


class _Racks:
    """The rack-aware steps; they do nothing unless all racks that they need are known.

    They differ from the public helpers as in Kafka: only inputs count for active tasks, costs that
    are not configured have defaults, the rack of every replica must be known, and client tags hold
    back standbys.

    Attributes:
        costs: The costs of traffic and of a move, for stateful tasks.
        is_enabled: Whether the steps do anything.
    """

    def __init__(self, indexed: IndexedState) -> None:
        self._indexed = indexed
        configs = indexed.state.assignment_configs
        traffic = configs.rack_aware_traffic_cost
        non_overlap = configs.rack_aware_non_overlap_cost
        self.costs = (
            _TRAFFIC_COST if traffic is None else traffic,
            _NON_OVERLAP_COST if non_overlap is None else non_overlap,
        )
        self._strategy = configs.rack_aware_assignment_strategy
        self.is_enabled = self._strategy != "none" and has_racks(
            indexed.state,
            inputs=True,
            changelogs=configs.num_standby_replicas > 0,
            every_replica=True,
        )

    def optimize_active(
        self, placement: Placement, tasks: list[int], costs: tuple[int, int]
    ) -> None:
        """Place active tasks at the least cost; each process keeps its number of tasks."""
        if not (self.is_enabled and tasks):
            return
        indexed = self._indexed
        actives = optimize_active(
            indexed.active_ids(placement),
            [indexed.tasks[task] for task in tasks],
            self._price(costs, inputs=True),
            self._strategy,
        )
        placement.set_active(indexed.numbers(actives))

    def optimize_standby(self, placement: Placement) -> None:
        """Swap standbys, always by ``min_traffic``, as in Kafka."""
        if not self.is_enabled:
            return
        indexed = self._indexed
        standbys = optimize_standby(
            indexed.active_ids(placement),
            indexed.standby_ids(placement),
            [indexed.tasks[task] for task in indexed.logged],
            self._price(self.costs, inputs=False),
            "min_traffic",
            keeps_tags(indexed.state),
        )
        placement.set_standby(indexed.numbers(standbys))

    def _price(self, costs: tuple[int, int], *, inputs: bool) -> RackCosts:
        priced = rack_costs(
            self._indexed.state,
            inputs=inputs,
            changelogs=not inputs,
            traffic_cost=costs[0],
            non_overlap_cost=costs[1],
        )
        if priced is None:
            raise AssertionError("racks are missing that were there")
        return priced


def _run_where_state_is(indexed: IndexedState, placement: Placement) -> bool:
    """Move tasks that are behind to where their state is; return whether any was behind."""
    state, configs = indexed.state, indexed.state.assignment_configs
    sums = [state.states[process].stateful_tasks_to_lag_sums() for process in indexed.processes]
    lags = _Lags(sums, indexed.tasks, configs.acceptable_recovery_lag)
    warmups = _Warmups(configs.max_warmup_replicas)
    siblings = indexed.shared.siblings if indexed.logged else {}
    actives = _move_actives(placement, indexed.logged, lags, warmups, siblings)
    return bool(_move_standbys(placement, lags, warmups) or actives)


class _Lags:
    """The lag of each process on each task; rows are read when they are needed.

    Args:
        lags: For each process, the lag of each task.
        tasks: The ids of the tasks, by number.
        acceptable: Greatest lag at which a process counts as caught up.
    """

    def __init__(
        self, lags: Sequence[Mapping[TaskId, int]], tasks: Sequence[TaskId], acceptable: int
    ) -> None:
        self._lags = lags
        self._tasks = tasks
        self._acceptable = acceptable
        self._rows: dict[int, list[int]] = {}
        self._caught_up: dict[int, list[int]] = {}

    def caught_up(self, task: int) -> list[int]:
        """Return the processes that are caught up on a task, ascending."""
        processes = self._caught_up.get(task)
        if processes is None:
            is_caught_up, lags = self._is_caught_up, self._row(task)
            good = {lag for lag in set(lags) if is_caught_up(lag)}
            processes = [process for process, lag in enumerate(lags) if lag in good]
            self._caught_up[task] = processes
        return processes

    def is_behind(self, process: int, task: int) -> bool:
        """Return whether a process is not caught up, and another one has a smaller lag."""
        lag = self._lags[process][self._tasks[task]]
        return not self._is_caught_up(lag) and min(self._row(task)) < lag

    def freshest(self, task: int, than: int, passed_over: Collection[int] = ()) -> int | None:
        """Return the process with the smallest lag, the first on a tie; None if that is ``than``.

        Args:
            task: The task's number.
            than: The process to beat.
            passed_over: Processes that do not count.
        """
        lags = self._row(task)
        best = than
        for process, lag in enumerate(lags):
            is_better = lag < lags[best] or (lag == lags[best] and process < best)
            if is_better and process not in passed_over:
                best = process
        return None if best == than else best

    def _row(self, task: int) -> list[int]:
        row = self._rows.get(task)
        if row is None:
            id_ = self._tasks[task]
            row = self._rows[task] = [lags[id_] for lags in self._lags]
        return row

    def _is_caught_up(self, lag: int) -> bool:
        # The lag -3 (unknown) is no proof of being caught up, though it sorts as the smallest.
        return (
            lag == LATEST_OFFSET or 0 <= lag <= self._acceptable or self._acceptable == _UNBOUNDED
        )


class _Warmups:
    """The copies that warm up.

    Args:
        quota: Maximum number of copies.

    Attributes:
        made: The copies, as (process, task).
    """

    def __init__(self, quota: int) -> None:
        self._left = quota
        self.made: set[tuple[int, int]] = set()

    def take(self, process: int, task: int) -> bool:
        """Take one copy of the quota for the process; return whether one was left."""
        if self._left <= 0:
            return False
        self._left -= 1
        self.made.add((process, task))
        return True


def _move_actives(
    placement: Placement,
    tasks: Iterable[int],
    lags: _Lags,
    warmups: _Warmups,
    siblings: Mapping[int, Collection[int]],
) -> list[int]:
    """Run each active task that is behind where it is wanted on a process that is caught up.

    That is a holder of a standby, which costs no warmup, or else a process that is caught up: the
    one that runs most siblings of the task, then the least loaded; or else the freshest. Tasks with
    the fewest caught-up processes go first.

    Args:
        placement: Where the tasks are wanted; it is changed.
        tasks: The active tasks to look at.
        lags: The lag of each process.
        warmups: Takes the copies that warm up where they are wanted.
        siblings: For each shared task, all shared tasks of its partition.

    Returns:
        The tasks that cannot run yet where they are wanted.
    """
    behind = [task for task in tasks if lags.is_behind(placement.owner[task], task)]
    behind.sort(key=lambda task: (len(lags.caught_up(task)), task))
    for task in behind:
        wanted = placement.owner[task]
        caught_up = lags.caught_up(task)
        holders = [process for process in caught_up if task in placement.standby[process]]
        source = _least_loaded(placement, holders or caught_up, siblings.get(task, ()))
        if source is None:
            source = lags.freshest(task, wanted)
            if source is None:
                raise AssertionError(f"task {task} is behind, and no process is fresher")
        if task in placement.standby[source]:
            placement.swap(task, source)
        else:
            placement.move_active(task, source)
            if warmups.take(wanted, task):
                placement.add_standby(wanted, task)
    return behind


def _move_standbys(placement: Placement, lags: _Lags, warmups: _Warmups) -> list[int]:
    """Give a standby that is behind where it is wanted to a fresher process without a copy.

    The wanted process keeps its copy too, if a warm-up is left. Warm-ups of active tasks stay.

    Returns:
        The tasks of the standbys that were moved, one entry for each.
    """
    active_warmups = set(warmups.made)
    behind = [
        (len(lags.caught_up(task)), task, process)
        for process, held in enumerate(placement.standby)
        for task in held
        if (process, task) not in active_warmups and lags.is_behind(process, task)
    ]
    moved = []
    for _, task, wanted in sorted(behind):
        holders = {process for process, held in enumerate(placement.standby) if task in held}
        holders.add(placement.owner[task])
        having_none = [process for process in lags.caught_up(task) if process not in holders]
        source = _least_loaded(placement, having_none)
        if source is None:
            source = lags.freshest(task, wanted, holders)
        if source is not None:
            moved.append(task)
            placement.add_standby(source, task)
            if not warmups.take(wanted, task):
                placement.drop_standby(wanted, task)
    return moved


def _least_loaded(
    placement: Placement, processes: Sequence[int], siblings: Collection[int] = ()
) -> int | None:
    """The process that runs most of the siblings, then the least loaded, then the first."""
    if siblings and processes:
        running = Counter(placement.owner[task] for task in siblings)
        most = max(running[process] for process in processes)
        processes = [process for process in processes if running[process] == most]
    load = placement.load
    return min(processes, key=lambda process: (load[process], process), default=None)
