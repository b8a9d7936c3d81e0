"""Metrics of a placement: moved tasks, evenness, traffic between racks.

Less is better in each, and none is weighed against another.
Cost: a few steps for each copy of a task; also counts of subtopologies by process.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from kshare.assignment.placement.indexed_state import IndexedState
from kshare.assignment.placement.placement import Placement
from kshare.assignment.racks.costs import RackCosts

__all__ = ["Metrics"]


class Metrics:
    """Metrics of placements of one application.

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
