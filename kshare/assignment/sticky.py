"""The assignor that moves as little as balance allows.

Law: without racks, what is complete stays as it is, unless loads get more even by a move: so runs
on their own answers come to rest (with racks: as far as the standbys' local search does). Else no
process gets more active tasks than its share, a share of tasks a thread, the rest dealt one by one;
or, with fewer tasks than threads, than it has threads; and the answer is worse than that of Kafka's
own way in nothing that :class:`Measures` measures (shared tasks, which Kafka does not know, are not
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
from kshare.assignment.placing.greedy import place_greedy_actives, place_greedy_standbys
from kshare.assignment.placing.measures import Measures
from kshare.assignment.placing.placement import Placement
from kshare.assignment.placing.situation import Situation
from kshare.assignment.placing.sticky_active import place_even_actives
from kshare.assignment.placing.sticky_standby import place_standbys
from kshare.assignment.racks.active import Wishes, optimize_active
from kshare.assignment.racks.costs import configured_costs
from kshare.assignment.racks.standby import optimize_standby

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

    place_active: Callable[[Situation, Placement, bool], None]
    place_standby: Callable[[Situation, Placement, Sequence[set[int]]], None]
    spreads: bool


_KAFKAS: Final = _Way(place_greedy_actives, place_greedy_standbys, True)
_OURS: Final = _Way(
    place_even_actives, lambda situation, placement, _: place_standbys(situation, placement), False
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
        situation = Situation(application_state)
        if self._must_preserve_active:
            return situation.answer(self._best(situation, Measures(situation)), deadline=0)
        racks = (
            configured_costs(application_state, inputs=True, traffic_cost=1),
            configured_costs(application_state, inputs=False, traffic_cost=1),
        )
        return situation.answer(self._best(situation, Measures(situation, racks)))

    def _best(self, situation: Situation, measures: Measures) -> Placement:
        if any(task.key_range is not None for task in situation.tasks):
            return self._place(situation, _OURS)
        kafkas = self._place(situation, _KAFKAS)
        bound = measures.all(kafkas)
        best = self._place(situation, _OURS)
        if not measures.is_nowhere_worse(best, bound):
            best = self._mixed(situation, kafkas)
            if not measures.is_nowhere_worse(best, bound):
                best = kafkas
        previous = None if measures.knows_racks else situation.previous_placement()
        if previous is not None and not measures.is_more_even(best, previous):
            return previous
        return best

    def _place(self, situation: Situation, way: _Way) -> Placement:
        placement = situation.placement()
        way.place_active(situation, placement, self._must_preserve_active)
        dealt = list(placement.active)
        if not self._must_preserve_active:
            _optimize_actives(situation, placement)
        way.place_standby(situation, placement, dealt)
        if not self._must_preserve_active:
            _optimize_standbys(situation, placement, spreads=way.spreads)
        return placement

    def _mixed(self, situation: Situation, kafkas: Placement) -> Placement:
        """Kafka's active tasks, as their racks left them, with our standbys."""
        placement = situation.placement()
        placement.set_active([set(held) for held in kafkas.active])
        place_standbys(situation, placement)
        if not self._must_preserve_active:
            _optimize_standbys(situation, placement, spreads=_KAFKAS.spreads)
        return placement


class FallbackPriorTaskAssignor(StickyTaskAssignor):
    """What Kafka falls back to while lags cannot be fetched: all active tasks stay."""

    def __init__(self) -> None:
        super().__init__(must_preserve_active=True)


def _optimize_actives(situation: Situation, placement: Placement) -> None:
    state = situation.state
    stateful = [task for task in situation.tasks if state.all_tasks[task].is_stateful]
    stateless = [task for task in situation.tasks if not state.all_tasks[task].is_stateful]
    strategy = state.assignment_configs.rack_aware_assignment_strategy
    wishes = _former_places(state) if strategy != "none" else {}
    for tasks, overrides in ((stateful, {}), (stateless, _STATELESS_COSTS)):
        costs = configured_costs(state, inputs=True, **overrides)
        if costs is not None and tasks:
            actives = optimize_active(situation.actives(placement), tasks, costs, strategy, wishes)
            placement.set_active(situation.numbers(actives))


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


def _optimize_standbys(situation: Situation, placement: Placement, *, spreads: bool) -> None:
    state = situation.state
    configs = state.assignment_configs
    costs = configured_costs(state, inputs=False)
    if costs is None or configs.num_standby_replicas <= 0:
        return
    # Client tags hold nothing back: so it is in Kafka's public helper, which this assignor uses.
    standbys = optimize_standby(
        situation.actives(placement),
        situation.standbys(placement),
        [situation.tasks[task] for task in situation.logged],
        costs,
        configs.rack_aware_assignment_strategy,
        spreads=spreads,
    )
    placement.set_standby(situation.numbers(standbys))
