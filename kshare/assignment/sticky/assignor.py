"""The assignor that moves as little as balance allows.

Law: without racks, what is complete stays as it is, unless loads get more even by a move: so runs
on their own answers come to rest (with racks: as far as the standbys' local search does). Else no
process gets more active tasks than its share, a share of tasks a thread, the rest dealt one by one;
or, with fewer tasks than threads, than it has threads; and the answer is worse than that of Kafka's
own way in nothing that :class:`Metrics` measures (shared tasks, which Kafka does not know, are not
compared). Equal input gets equal answers.
Cost: about linear in tasks and processes, 2,000 tasks with a standby each on 200 processes within
some 0.1 s, without racks; with racks a second or two, for the standbys' local search, which grows
with the pairs of processes. Memory is linear; Kafka's grows with the square of the tasks.

Up to three placements are made: Kafka Streams' StickyTaskAssignor's, an even one that is ours, and
one with Kafka's active tasks and our standbys. Shared tasks, which Kafka does not know, are placed
in our way, side by side.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kshare.assignment.interface.application import ApplicationState
from kshare.assignment.interface.assignor import TaskAssignment, TaskAssignor
from kshare.assignment.placement.indexed_state import IndexedState
from kshare.assignment.placement.placement import Placement
from kshare.assignment.racks.active import Wishes, optimize_active
from kshare.assignment.racks.costs import configured_costs
from kshare.assignment.racks.standby import optimize_standby
from kshare.assignment.sticky.even_actives import place_even_actives
from kshare.assignment.sticky.even_standbys import place_even_standbys
from kshare.assignment.sticky.kafka import place_kafka_actives, place_kafka_standbys
from kshare.assignment.sticky.metrics import Metrics

__all__ = ["FallbackPriorTaskAssignor", "StickyTaskAssignor"]

_STATELESS_COSTS: Final = {"traffic_cost": 1, "non_overlap_cost": 0}
"""A task without state may move for any gain."""


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to place all.

    Attributes:
        place_active: place the active tasks; may have to leave all where they were.
        place_standby: place the standbys; given the active tasks before racks moved any.
        spreads: see :func:`~kshare.assignment.racks.standby.optimize_standby`.
    """

    place_active: Callable[[IndexedState, Placement, bool], None]
    place_standby: Callable[[IndexedState, Placement, Sequence[set[int]]], None]
    spreads: bool


_KAFKAS: Final = _Way(place_kafka_actives, place_kafka_standbys, True)
_OURS: Final = _Way(
    place_even_actives, lambda indexed, placement, _: place_even_standbys(indexed, placement), False
)


class StickyTaskAssignor(TaskAssignor):
    """Stickiness first, within even loads; lags play no part.

    Args:
        must_preserve_active: every active task that a process had stays there, however uneven
            that is, and a follow-up rebalance is asked for at once. Racks play no part then.
    """

    def __init__(self, must_preserve_active: bool = False) -> None:
        self._must_preserve_active = must_preserve_active

    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        """Place each task.

        Raises:
            ValueError: there is no process.
        """
        indexed = IndexedState(application_state)
        if self._must_preserve_active:
            return indexed.answer(self._best(indexed, Metrics(indexed)), deadline=0)
        racks = (
            configured_costs(application_state, inputs=True, traffic_cost=1),
            configured_costs(application_state, inputs=False, traffic_cost=1),
        )
        return indexed.answer(self._best(indexed, Metrics(indexed, racks)))

    def _best(self, indexed: IndexedState, measures: Metrics) -> Placement:
        if any(task.key_range is not None for task in indexed.tasks):
            return self._place(indexed, _OURS)
        kafkas = self._place(indexed, _KAFKAS)
        bound = measures.all(kafkas)
        best = self._place(indexed, _OURS)
        if not measures.is_nowhere_worse(best, bound):
            best = self._mixed(indexed, kafkas)
            if not measures.is_nowhere_worse(best, bound):
                best = kafkas
        previous = None if measures.knows_racks else indexed.previous_placement()
        if previous is not None and not measures.is_more_even(best, previous):
            return previous
        return best

    def _place(self, indexed: IndexedState, way: _Way) -> Placement:
        placement = indexed.empty_placement()
        way.place_active(indexed, placement, self._must_preserve_active)
        dealt = list(placement.active)
        if not self._must_preserve_active:
            _optimize_actives(indexed, placement)
        way.place_standby(indexed, placement, dealt)
        if not self._must_preserve_active:
            _optimize_standbys(indexed, placement, spreads=way.spreads)
        return placement

    def _mixed(self, indexed: IndexedState, kafkas: Placement) -> Placement:
        """Kafka's active tasks, as their racks left them, with our standbys."""
        placement = indexed.empty_placement()
        placement.set_active([set(held) for held in kafkas.active])
        place_even_standbys(indexed, placement)
        if not self._must_preserve_active:
            _optimize_standbys(indexed, placement, spreads=_KAFKAS.spreads)
        return placement


class FallbackPriorTaskAssignor(StickyTaskAssignor):
    """What Kafka falls back to while lags cannot be fetched: all active tasks stay."""

    def __init__(self) -> None:
        super().__init__(must_preserve_active=True)


def _optimize_actives(indexed: IndexedState, placement: Placement) -> None:
    state = indexed.state
    stateful = [task for task in indexed.tasks if state.all_tasks[task].is_stateful]
    stateless = [task for task in indexed.tasks if not state.all_tasks[task].is_stateful]
    strategy = state.assignment_configs.rack_aware_assignment_strategy
    wishes = _former_places(state) if strategy != "none" else {}
    for tasks, overrides in ((stateful, {}), (stateless, _STATELESS_COSTS)):
        costs = configured_costs(state, inputs=True, **overrides)
        if costs is not None and tasks:
            actives = optimize_active(indexed.active_ids(placement), tasks, costs, strategy, wishes)
            placement.set_active(indexed.numbers(actives))


def _former_places(state: ApplicationState) -> Wishes:
    """Rather where a task was active, else where it was standby."""
    wishes = {
        (task, process): -1
        for process, one in state.states.items()
        for task in one.previous_standby_tasks
    }
    for process, one in state.states.items():
        wishes.update(dict.fromkeys(((task, process) for task in one.previous_active_tasks), -2))
    return wishes


def _optimize_standbys(indexed: IndexedState, placement: Placement, *, spreads: bool) -> None:
    state = indexed.state
    configs = state.assignment_configs
    costs = configured_costs(state, inputs=False)
    if costs is None or configs.num_standby_replicas <= 0:
        return
    # Client tags hold nothing back: so it is in Kafka's public helper, which this assignor uses.
    standbys = optimize_standby(
        indexed.active_ids(placement),
        indexed.standby_ids(placement),
        [indexed.tasks[task] for task in indexed.logged],
        costs,
        configs.rack_aware_assignment_strategy,
        spreads=spreads,
    )
    placement.set_standby(indexed.numbers(standbys))
