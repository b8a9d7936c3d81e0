"""Standbys of the sticky assignor: where copies were, else where there is room and variety.

Guarantees: a task has as many standbys as are configured, or one on each other process; a process
has one copy of a task. The previous standbys stay if they are complete and as even as new ones.
Cost: a walk over the least loaded processes for each standby, mostly one step. Sets of tasks are
integers, a bit a task, so that looking for a new pair is an operation on a few words.

After Kafka Streams' StickyTaskAssignor, which keeps a table of all pairs of tasks that share a
process. Two tasks do so if and only if some process holds both, so no table is needed.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_

from kshare.assignment.placement.balance import even_out
from kshare.assignment.placement.indexed_state import IndexedState
from kshare.assignment.placement.placement import Placement, bits
from kshare.assignment.placement.siblings import group_standbys

__all__ = ["place_even_standbys"]


def place_even_standbys(indexed: IndexedState, placement: Placement) -> None:
    """Give each task with a changelog its standbys.

    Args:
        indexed: The tasks, the processes, and what these had.
        placement: A placement of all active tasks.
    """
    if indexed.replicas <= 0 or not indexed.logged:
        return
    standbys = _Standbys(indexed, placement)
    placement.set_standby(standbys.place())
    if standbys.is_crowded:
        even_out(placement, placement.standby, placement.move_standby)
    if indexed.shared.tasks:
        _group_new(indexed, placement)
    before = _previous(indexed, placement)
    if before is not None and _spread(placement, before) <= _spread(placement, placement.standby):
        placement.set_standby(before)


def _group_new(indexed: IndexedState, placement: Placement) -> None:
    """Bring standbys of siblings together, except those that are where a copy was."""
    previous = indexed.previous
    movable = [
        (standby & indexed.shared.tasks) - had_active - had_standby
        for standby, had_active, had_standby in zip(
            placement.standby, previous.active, previous.standby, strict=True
        )
    ]
    group_standbys(indexed, placement, movable)


def _previous(indexed: IndexedState, placement: Placement) -> list[set[int]] | None:
    """The previous standbys, without those where the task is active; None if one is missing."""
    logged = set(indexed.logged)
    before = [
        (had & logged) - active
        for had, active in zip(indexed.previous.standby, placement.active, strict=True)
    ]
    copies = Counter(task for held in before for task in held)
    return before if copies == dict.fromkeys(logged, indexed.replicas) else None


def _spread(placement: Placement, standbys: Sequence[set[int]]) -> float:
    """The difference between the highest and the lowest load."""
    loads = [
        (len(active) + len(standby)) / threads
        for active, standby, threads in zip(
            placement.active, standbys, placement.threads, strict=True
        )
    ]
    return max(loads) - min(loads)


class _Standbys:
    """Standbys while they are placed.

    Attributes:
        is_crowded: Whether a process got more than its share, because those with room had a copy.
    """

    def __init__(self, indexed: IndexedState, placement: Placement) -> None:
        self.is_crowded = False
        self._indexed = indexed
        self._held: list[set[int]] = [set() for _ in indexed.threads]
        self._count = [len(active) for active in placement.active]
        self._masks = [bits(active) for active in placement.active]
        self._copies = {task: [placement.owner[task]] for task in indexed.logged}
        self._targets = _even_targets(indexed, placement)
        self._heap: list[tuple[float, int]] = []

    def place(self) -> list[set[int]]:
        """Place all; return the standbys of each process."""
        self._place_with_former_holders()
        self._heap = [(self._load(process), process) for process in range(len(self._count))]
        heapq.heapify(self._heap)
        for task in self._indexed.logged:
            for _ in range(1 + self._indexed.replicas - len(self._copies[task])):
                self._place_anywhere(task)
        return self._held

    def _give(self, process: int, task: int) -> None:
        self._held[process].add(task)
        self._copies[task].append(process)
        self._count[process] += 1
        self._masks[process] |= 1 << task

    def _place_with_former_holders(self) -> None:
        previous, threads = self._indexed.previous, self._indexed.threads
        holders: dict[int, list[int]] = {}
        for held in (previous.active, previous.standby):
            for process, tasks in enumerate(held):
                for task in tasks:
                    holders.setdefault(task, []).append(process)
        for task in self._indexed.logged:
            copies = self._copies[task]
            for process in sorted(holders.get(task, ()), key=lambda one: (self._load(one), one)):
                if len(copies) > self._indexed.replicas:
                    break
                limit = max(self._targets[process], threads[process])
                if process not in copies and self._count[process] < limit:
                    self._give(process, task)

    def _place_anywhere(self, task: int) -> None:
        """Give a standby to the least loaded process below its target where it makes a new pair.

        Else to one below its target, else to any without a copy.
        """
        together = reduce(or_, (self._masks[process] for process in self._copies[task]), 0)
        count, targets, masks = self._count, self._targets, self._masks
        choices: tuple[Callable[[int], bool], ...] = (
            lambda one: (
                count[one] < targets[one] and (not count[one] or masks[one] & ~together > 0)
            ),
            lambda one: count[one] < targets[one],
            lambda _: True,
        )
        for is_wanted in choices:
            process = self._pop_least_loaded(task, is_wanted)
            if process is not None:
                self.is_crowded |= count[process] >= targets[process]
                self._give(process, task)
                heapq.heappush(self._heap, (self._load(process), process))
                return

    def _pop_least_loaded(self, task: int, is_wanted: Callable[[int], bool]) -> int | None:
        """Take the first wanted process without a copy off the heap: its load changes."""
        passed = []
        chosen = None
        while self._heap:
            entry = heapq.heappop(self._heap)
            if entry[1] not in self._copies[task] and is_wanted(entry[1]):
                chosen = entry[1]
                break
            passed.append(entry)
        for entry in passed:
            heapq.heappush(self._heap, entry)
        return chosen

    def _load(self, process: int) -> float:
        return self._count[process] / self._indexed.threads[process]


def _even_targets(indexed: IndexedState, placement: Placement) -> list[int]:
    """The number of copies that each process shall have, as even as its own active tasks allow."""
    threads, logged = indexed.threads, set(indexed.logged)
    targets = [len(active) for active in placement.active]
    room = [len(logged) - len(logged & active) for active in placement.active]
    heap = [
        (targets[process] / threads[process], process)
        for process in range(len(targets))
        if room[process]
    ]
    heapq.heapify(heap)
    left = len(logged) * indexed.replicas
    while left and heap:
        process = heap[0][1]
        targets[process] += 1
        room[process] -= 1
        left -= 1
        if room[process]:
            heapq.heapreplace(heap, (targets[process] / threads[process], process))
        else:
            heapq.heappop(heap)
    return targets
