"""Kafka's own sticky placement: task by task, each on the best process at that moment.

Guarantees: equal input gets equal answers. Active tasks are placed as Kafka 4.1.1 places them for
some naming of the processes: tasks in the order of Java's hash tables, processes ascending.
Standbys come in that order too; Kafka takes them in an order that differs from run to run.
Cost: a step of a heap or of a short walk for each copy of a task.

Source: Kafka Streams' StickyTaskAssignor 4.1.1. Its table of task pairs is not needed: two tasks
have been together if and only if some process holds both.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence

from kshare.assignment.placement.indexed_state import (
    IndexedState,
    order_when_copied,
    order_when_grown,
)
from kshare.assignment.placement.placement import Placement, bits

__all__ = ["place_kafka_actives", "place_kafka_standbys"]


def place_kafka_actives(
    indexed: IndexedState, placement: Placement, must_preserve: bool = False
) -> None:
    """Place all active tasks: where they were, within quotas; where standbys were; anywhere.

    Args:
        indexed: The tasks, the processes, and what these had.
        placement: An empty placement.
        must_preserve: Whether tasks stay where they were, with any quota.
    """
    owner, tasks, threads = placement.owner, indexed.tasks, indexed.threads
    quota = len(tasks) // sum(threads)
    had = _last_owners(indexed)
    for task in order_when_grown(list(had), tasks):
        process = had[task]
        if must_preserve or len(placement.active[process]) < quota * threads[process]:
            placement.add_active(process, task)
    holders = indexed.previous.standby_holders
    for task in order_when_copied(order_when_grown(range(len(tasks)), tasks), tasks):
        if owner[task] < 0:
            for process in holders.get(task, ()):
                if len(placement.active[process]) < quota * threads[process]:
                    placement.add_active(process, task)
                    break
    _place_rest(placement, had, holders)


def _last_owners(indexed: IndexedState) -> dict[int, int]:
    """The process that had each task; of several, the last."""
    return {
        task: process for process, had in enumerate(indexed.previous.active) for task in sorted(had)
    }


def _place_rest(placement: Placement, had: dict[int, int], holders: dict[int, list[int]]) -> None:
    """Each where it was, or on the least loaded former standby; if overloaded, anywhere."""
    load = placement.load
    heap = [(value, process) for process, value in enumerate(load)]
    heapq.heapify(heap)

    def least_loaded() -> tuple[float, int]:
        # Entries are brought up to date when they come up; loads only grow.
        while heap[0][0] != load[heap[0][1]]:
            heapq.heapreplace(heap, (load[heap[0][1]], heap[0][1]))
        return heap[0]

    for task, at in enumerate(placement.owner):
        if at >= 0:
            continue
        least, process = least_loaded()
        known = holders.get(task, ())
        former = min(known, key=lambda one: (load[one], one)) if known else None
        for one in (had.get(task, former), former):
            if one is not None and (load[one] < 1 or load[one] <= least):
                process = one
                break
        placement.add_active(process, task)


def place_kafka_standbys(
    indexed: IndexedState, placement: Placement, dealt: Sequence[set[int]]
) -> None:
    """Give each task with a changelog its standbys.

    Args:
        indexed: The tasks, the processes, and what these had.
        placement: A placement of all active tasks.
        dealt: The active tasks of each process before any moved for their racks. Kafka remembers
            these as having been together.
    """
    if indexed.replicas > 0:
        standbys = _Standbys(indexed, placement, dealt)
        for task in order_when_grown(indexed.logged, indexed.tasks):
            for _ in range(indexed.replicas):
                standbys.place(task)


class _Standbys:
    """Standbys while they are placed."""

    def __init__(
        self, indexed: IndexedState, placement: Placement, dealt: Sequence[set[int]]
    ) -> None:
        self._placement = placement
        self._had = _last_owners(indexed)
        self._holders = indexed.previous.standby_holders
        # A set of tasks is an integer, a bit a task.
        self._masks = [bits(active) for active in placement.active]
        self._standbys = [0] * len(self._masks)
        self._copies: dict[int, list[int]] = {}
        self._dealt = [0] * len(indexed.tasks)
        for active in dealt:
            together = bits(active)
            for task in active:
                self._dealt[task] = together
        self._order = sorted((value, process) for process, value in enumerate(placement.load))

    def place(self, task: int) -> None:
        """Add a standby on the best process without a copy of the task."""
        process = self._best(task)
        placement = self._placement
        del self._order[bisect_left(self._order, (placement.load[process], process))]
        placement.add_standby(process, task)
        insort(self._order, (placement.load[process], process))
        self._masks[process] |= 1 << task
        self._standbys[process] |= 1 << task
        self._copies.setdefault(task, []).append(process)

    def _best(self, task: int) -> int:
        free = [one for one in self._holders.get(task, ()) if not self._has(one, task)]
        former = free[0] if free else None
        if len(free) > 1:
            load = self._placement.load
            former = self._least_loaded(sorted((load[one], one) for one in free), task)
        before = self._had.get(task)
        if before is None or self._has(before, task):
            before = former
        for one in (before, former):
            if one is not None and not self._is_overloaded(one):
                return one
        return self._least_loaded(self._order, task)

    def _has(self, process: int, task: int) -> bool:
        return bool(self._masks[process] >> task & 1)

    def _together(self, task: int) -> int:
        """The tasks that have come to a process with this one, or this one to them."""
        mask = self._dealt[task] | self._standbys[self._placement.owner[task]]
        for process in self._copies.get(task, ()):
            mask |= self._masks[process]
        return mask

    def _is_overloaded(self, process: int) -> bool:
        load = self._placement.load[process]
        return load >= 1 and self._order[0][0] < load

    def _least_loaded(self, order: list[tuple[float, int]], task: int) -> int:
        """The first without a copy that has nothing or brings a new pair together; else the first.

        Args:
            order: processes with their loads, ascending; one at least has no copy.
            task: the one to place.
        """
        together = self._together(task)
        first = -1
        for load, process in order:
            held = self._masks[process]
            if held >> task & 1:
                continue
            if not load or held & ~together:
                return process
            first = process if first < 0 else first
        return first
