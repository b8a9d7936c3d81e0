"""Standbys of the sticky assignor: where copies were, else where there is room and variety.

Law: a task has as many standbys as are configured, or one on each other process; a process has one
copy of a task. If the standbys that there are will do and are as even as new ones would be, they
stay as they are.
Cost: a walk over the least loaded processes for each standby, mostly one step; sets of tasks are
integers, a bit a task, so that asking for a new pair is an operation on a few words.

After Kafka Streams' StickyTaskAssignor. There a table remembers all pairs of tasks that share a
process; but two tasks do so if and only if some process holds both, so none is needed.
"""

import heapq
from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_

from kshare.assignment.placement.balance import even_out
from kshare.assignment.placement.indexed_state import IndexedState
from kshare.assignment.placement.placement import Placement, bits
from kshare.assignment.placement.siblings import group_standbys

__all__ = ["place_even_standbys"]


def place_even_standbys(indexed: IndexedState, placement: Placement) -> None:
    """Give each task with a changelog its standbys; its active task is placed already."""
    replicas = indexed.replicas
    if replicas <= 0 or not indexed.logged:
        return
    standbys = _Standbys(indexed, placement, replicas)
    placement.set_standby(standbys.place())
    if standbys.is_crowded:
        even_out(placement, placement.standby, placement.move_standby)
    if indexed.shared.tasks:
        _group_new(indexed, placement)
    before = _as_before(indexed, placement, replicas)
    if before is not None and _spread(placement, before) <= _spread(placement, placement.standby):
        placement.set_standby(before)


def _group_new(indexed: IndexedState, placement: Placement) -> None:
    """Bring standbys of shared tasks together, but for those that are where a copy was."""
    movable = [
        (standby & indexed.shared.tasks) - had_active - had_standby
        for standby, had_active, had_standby in zip(
            placement.standby,
            indexed.previous.active,
            indexed.previous.standby,
            strict=True,
        )
    ]
    group_standbys(indexed, placement, movable)


def _as_before(indexed: IndexedState, placement: Placement, replicas: int) -> list[set[int]] | None:
    """The standbys that there were, if none is missing without those where the task is active."""
    logged = set(indexed.logged)
    before = [
        (had & logged) - active
        for had, active in zip(indexed.previous.standby, placement.active, strict=True)
    ]
    copies = dict.fromkeys(logged, 0)
    for held in before:
        for task in held:
            copies[task] += 1
    return before if all(count == replicas for count in copies.values()) else None


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
        is_crowded: a process got more than its share, since those with room had a copy already.
    """

    def __init__(self, indexed: IndexedState, placement: Placement, replicas: int) -> None:
        self.is_crowded = False
        self._threads = indexed.threads
        self._tasks = indexed.logged
        self._replicas = replicas
        self._held: list[set[int]] = [set() for _ in self._threads]
        self._count = [len(active) for active in placement.active]
        self._masks = [bits(active) for active in placement.active]
        self._had: dict[int, list[int]] = {}
        for held in (indexed.previous.active, indexed.previous.standby):
            for process, tasks in enumerate(held):
                for task in tasks:
                    self._had.setdefault(task, []).append(process)
        self._copies = {task: [placement.owner[task]] for task in self._tasks}
        self._targets = self._even_targets(placement)
        self._heap: list[tuple[float, int]] = []

    def _even_targets(self, placement: Placement) -> list[int]:
        """How many copies each process is to have, as even as its own active tasks allow."""
        logged = set(self._tasks)
        room = [len(logged) - len(logged & active) for active in placement.active]
        targets = list(self._count)
        heap = [
            (targets[process] / self._threads[process], process)
            for process in range(len(targets))
            if room[process]
        ]
        heapq.heapify(heap)
        left = len(logged) * self._replicas
        while left and heap:
            process = heap[0][1]
            targets[process] += 1
            room[process] -= 1
            left -= 1
            if room[process]:
                heapq.heapreplace(heap, (targets[process] / self._threads[process], process))
            else:
                heapq.heappop(heap)
        return targets

    def place(self) -> list[set[int]]:
        """Place all; the standbys of each process."""
        for task in self._tasks:
            self._to_former_holders(task)
        self._heap = [(self._load(process), process) for process in range(len(self._threads))]
        heapq.heapify(self._heap)
        for task in self._tasks:
            for _ in range(1 + self._replicas - len(self._copies[task])):
                self._to_anybody(task)
        return self._held

    def _give(self, process: int, task: int) -> None:
        self._held[process].add(task)
        self._copies[task].append(process)
        self._count[process] += 1
        self._masks[process] |= 1 << task

    def _to_former_holders(self, task: int) -> None:
        copies = self._copies[task]
        for process in sorted(self._had.get(task, ()), key=lambda one: (self._load(one), one)):
            if len(copies) > self._replicas:
                return
            limit = max(self._targets[process], self._threads[process])
            if process not in copies and self._count[process] < limit:
                self._give(process, task)

    def _to_anybody(self, task: int) -> None:
        """The least loaded process below its target that brings a new pair of tasks together.

        Else one below its target, else any that has no copy.
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
            process = self._least_loaded(task, is_wanted)
            if process is not None:
                self.is_crowded |= count[process] >= targets[process]
                self._give(process, task)
                heapq.heappush(self._heap, (self._load(process), process))
                return

    def _least_loaded(self, task: int, is_wanted: Callable[[int], bool]) -> int | None:
        """Taken from the heap: its entry changes."""
        passed = []
        found = None
        while self._heap:
            entry = heapq.heappop(self._heap)
            if entry[1] not in self._copies[task] and is_wanted(entry[1]):
                found = entry[1]
                break
            passed.append(entry)
        for entry in passed:
            heapq.heappush(self._heap, entry)
        return found

    def _load(self, process: int) -> float:
        return self._count[process] / self._threads[process]
