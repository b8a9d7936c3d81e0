"""The sticky assignor: tasks stay where they were, as far as even loads allow.

Guarantees: without racks, a complete placement stays unless a move makes loads more even, so runs
on their own answers come to rest (with racks, as far as the standbys' local search does). Otherwise
no process gets more active tasks than its share: the same number a thread, the rest dealt one by
one; with fewer tasks than threads, one a thread. No metric of :class:`Metrics` is worse than in
Kafka's own placement. Equal input gets equal answers.
Cost: about linear in tasks and processes, 2,000 tasks with a standby each on 200 processes within
some 0.1 s, without racks; with racks a second or two, for the standbys' local search, which grows
with the pairs of processes. Memory is linear; Kafka's grows with the square of the tasks.

Up to three placements are made: that of Kafka Streams' StickyTaskAssignor, an even one, and one
with Kafka's active tasks and even standbys. An application with shared tasks, which Kafka does not
know, gets the even one, with siblings side by side.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kshare.assignment.interface.application import ApplicationState
from kshare.assignment.interface.assignor import TaskAssignment, TaskAssignor
from kshare.assignment.placement.indexed_state import IndexedState
from kshare.assignment.placement.placement import Placement
from kshare.assignment.racks.costs import RackCosts, Wishes, configured_costs, optimize_active
from kshare.assignment.racks.standby import optimize_standby
from kshare.assignment.sticky.even import place_even_actives, place_even_standbys
from kshare.assignment.sticky.kafka import place_kafka_actives, place_kafka_standbys

__all__ = ["FallbackPriorTaskAssignor", "Metrics", "StickyTaskAssignor"]

_STATELESS_COSTS: Final = {"traffic_cost": 1, "non_overlap_cost": 0}
"""A task without state may move for any gain."""


@dataclass(frozen=True, slots=True)
class _Algorithm:
    """An algorithm that places all tasks.

    Attributes:
        place_active: Places the active tasks; the flag says to leave all where they were.
        place_standby: Places the standbys; gets the active tasks before racks moved any.
        spreads: Whether standbys are spread over subtopologies at any cost, as in Kafka.
    """

    place_active: Callable[[IndexedState, Placement, bool], None]
    place_standby: Callable[[IndexedState, Placement, Sequence[set[int]]], None]
    spreads: bool


_KAFKA: Final = _Algorithm(place_kafka_actives, place_kafka_standbys, True)
_EVEN: Final = _Algorithm(
    place_even_actives, lambda indexed, placement, _: place_even_standbys(indexed, placement), False
)


class Metrics:
    """Metrics of placements of one application: less is better in each, and none is weighed.

    They cost a few steps for each copy of a task.

    Args:
        indexed: The tasks, the processes, and what these had.
        racks: The costs of traffic of active tasks, and of standbys; None where racks play no part.
    """

    def __init__(
        self, indexed: IndexedState, racks: tuple[RackCosts | None, RackCosts | None] = (None, None)
    ) -> None:
        self._indexed = indexed
        self._had = indexed.previous.active
        self._copies = [
            active | standby
            for active, standby in zip(self._had, indexed.previous.standby, strict=True)
        ]
        self._was_active = set[int]().union(*self._had)
        self._was_there = set[int]().union(*self._copies)
        self._racks = racks

    @property
    def knows_racks(self) -> bool:
        """True if racks play a part."""
        return any(costs is not None for costs in self._racks)

    def is_nowhere_worse(self, placement: Placement, than: tuple[float, ...]) -> bool:
        """Return whether a placement is as good in each metric as another one, of :meth:`all`."""
        return all(a <= b for a, b in zip(self.all(placement), than, strict=True))

    def is_more_even(self, one: Placement, other: Placement) -> bool:
        """Return whether the first one is more even: in active tasks, then in all copies."""
        return self._spreads(one) < self._spreads(other)

    def all(self, placement: Placement) -> tuple[float, ...]:
        """Return all metrics.

        Active tasks that are not where they were active; active tasks, and standbys, where no copy
        was; the spread of active tasks a thread, and of all copies; the greatest difference in the
        number of active tasks of a subtopology; where racks play a part, the partitions of actives
        and of standbys without a replica in their rack.
        """
        active, standby = placement.active, placement.standby
        return (
            _misplaced(active, self._had, self._was_active),
            _misplaced(active, self._copies, self._was_there),
            _misplaced(standby, self._copies, self._was_there),
            *self._spreads(placement),
            self._skew(placement),
            *self._traffic(placement),
        )

    @staticmethod
    def _spreads(placement: Placement) -> tuple[float, float]:
        actives = [
            len(held) / threads
            for held, threads in zip(placement.active, placement.threads, strict=True)
        ]
        return max(actives) - min(actives), placement.spread

    def _skew(self, placement: Placement) -> int:
        tasks = self._indexed.tasks
        counts = Counter((tasks[task][0], process) for task, process in enumerate(placement.owner))
        by_subtopology: dict[int, list[int]] = {}
        for (subtopology, _), count in counts.items():
            by_subtopology.setdefault(subtopology, []).append(count)
        processes = len(placement.threads)
        return max(
            (
                max(tasks) - (min(tasks) if len(tasks) == processes else 0)
                for tasks in by_subtopology.values()
            ),
            default=0,
        )

    def _traffic(self, placement: Placement) -> Iterator[int]:
        ids = self._indexed.tasks
        processes = self._indexed.processes
        for costs, held in zip(self._racks, (placement.active, placement.standby), strict=True):
            if costs is not None:
                yield sum(
                    costs.traffic(ids[task], costs.process_racks[process])
                    for process, tasks in zip(processes, held, strict=True)
                    for task in tasks
                )


def _misplaced(placed: Iterable[set[int]], before: Iterable[set[int]], known: set[int]) -> int:
    """The number of known tasks on a process that did not have them."""
    return sum(len((held & known) - had) for held, had in zip(placed, before, strict=True))


class StickyTaskAssignor(TaskAssignor):
    """Stickiness first, within even loads; lags play no part.

    Args:
        must_preserve_active: Whether active tasks stay where they were, however uneven that is. A
            follow-up rebalance is then asked for at once, and racks play no part.
    """

    def __init__(self, must_preserve_active: bool = False) -> None:
        self._must_preserve_active = must_preserve_active

    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        """Assign each task.

        Raises:
            ValueError: There is no process.
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
            return self._place(indexed, _EVEN)
        kafka = self._place(indexed, _KAFKA)
        bound = measures.all(kafka)
        best = self._place(indexed, _EVEN)
        if not measures.is_nowhere_worse(best, bound):
            best = self._mixed(indexed, kafka)
            if not measures.is_nowhere_worse(best, bound):
                best = kafka
        previous = None if measures.knows_racks else indexed.previous_placement()
        if previous is not None and not measures.is_more_even(best, previous):
            return previous
        return best

    def _place(self, indexed: IndexedState, algorithm: _Algorithm) -> Placement:
        placement = indexed.empty_placement()
        algorithm.place_active(indexed, placement, self._must_preserve_active)
        dealt = list(placement.active)
        if not self._must_preserve_active:
            _optimize_actives(indexed, placement)
        algorithm.place_standby(indexed, placement, dealt)
        if not self._must_preserve_active:
            _optimize_standbys(indexed, placement, spreads=algorithm.spreads)
        return placement

    def _mixed(self, indexed: IndexedState, kafka: Placement) -> Placement:
        """Kafka's active tasks, as their racks left them, with our standbys."""
        placement = indexed.empty_placement()
        placement.set_active([set(held) for held in kafka.active])
        place_even_standbys(indexed, placement)
        if not self._must_preserve_active:
            _optimize_standbys(indexed, placement, spreads=_KAFKA.spreads)
        return placement


class FallbackPriorTaskAssignor(StickyTaskAssignor):
    """Kafka's fallback while lags cannot be fetched: all active tasks stay where they were."""

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
    """Best is the place where a task was active; next best, where it was standby."""
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
