"""The default assignor: tasks run where their state is, and warm up where they are wanted.

Guarantees: no active task is on a process that is not caught up while another one has a smaller
lag. The wanted placement depends on tasks and processes alone; when nothing is behind any more, it
is reached, and a further run changes nothing. Stateful shared tasks are the exception: a previous
placement of them that is even and needs few state stores is the wanted one.
Cost: about tasks x processes at worst; 2,000 tasks with a standby each on 200 processes well below
a second, without racks.

After Kafka Streams' HighAvailabilityTaskAssignor (KIP-441), which knows no shared tasks.
"""

from typing import Final

from kshare.assignment.high_availability.movements import Lags, Warmups, move_actives, move_standbys
from kshare.assignment.interface.application import ApplicationState
from kshare.assignment.interface.assignor import TaskAssignment, TaskAssignor
from kshare.assignment.placement.balance import deal, even_out, place_by_active_load
from kshare.assignment.placement.default_standbys import assign_standbys
from kshare.assignment.placement.indexed_state import IndexedState
from kshare.assignment.placement.placement import Placement
from kshare.assignment.placement.siblings import (
    group_actives,
    group_standbys,
    keep_previous_actives,
    keep_previous_standbys,
)
from kshare.assignment.racks.active import optimize_active
from kshare.assignment.racks.costs import RackCosts, has_racks, rack_costs
from kshare.assignment.racks.standby import keeps_tags, optimize_standby

__all__ = ["HighAvailabilityTaskAssignor"]

_TRAFFIC_COST: Final = 10
_NON_OVERLAP_COST: Final = 1
_STATELESS_COSTS: Final = (1, 0)  # a task without state may move for any gain


class HighAvailabilityTaskAssignor(TaskAssignor):
    """Kafka's default: availability first, balance next; stickiness through state alone."""

    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        """Assign each task; ask for a follow-up while a copy is not yet where it is wanted.

        Raises:
            ValueError: there is no process.
            TaskAssignmentException: the task lags were not computed.
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


def _run_where_state_is(indexed: IndexedState, placement: Placement) -> bool:
    """Move tasks that are behind to where their state is; return whether any was behind."""
    state, configs = indexed.state, indexed.state.assignment_configs
    sums = [state.states[process].stateful_tasks_to_lag_sums() for process in indexed.processes]
    lags = Lags(sums, indexed.tasks, configs.acceptable_recovery_lag)
    warmups = Warmups(configs.max_warmup_replicas)
    siblings = indexed.shared.siblings if indexed.logged else {}
    actives = move_actives(placement, indexed.logged, lags, warmups, siblings)
    return bool(move_standbys(placement, lags, warmups) or actives)


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
