"""Active tasks of the sticky assignor: as even as can be, and within that, where they were.

Law: no process gets more than its share of the tasks, a share of tasks a thread, the rest dealt
one by one; with fewer tasks than threads, who had tasks keeps up to one a thread. Within that,
whoever had a task keeps it. Equal input gets equal placements, and placing what was so placed
before changes nothing.
Cost: a few steps for each task, and one of a heap.

What is hash order in Kafka is decided here: over quota, the tasks stay that no other process has
seen, and of each subtopology the first ones.
"""

import heapq
from collections import Counter
from collections.abc import Iterable

from kshare.assignment.placement.indexed_state import IndexedState
from kshare.assignment.placement.placement import Placement

__all__ = ["place_even_actives"]


def place_even_actives(
    indexed: IndexedState, placement: Placement, must_preserve: bool = False
) -> None:
    """Place all active tasks.

    Args:
        indexed: what there is.
        placement: empty so far.
        must_preserve: who had a task keeps it, share or not.
    """
    _Actives(indexed, placement, must_preserve).place()


class _Actives:
    """Active tasks while they are placed.

    Each step leaves what it cannot place to the next one: former owners, former holders of a
    standby, anybody.
    """

    def __init__(self, indexed: IndexedState, placement: Placement, must_preserve: bool) -> None:
        self._indexed = indexed
        self._placement = placement
        self._tasks = indexed.tasks
        self._threads = indexed.threads
        self._must_preserve = must_preserve
        self._had = indexed.previous.active
        self._had_standby = indexed.previous.standby
        self._holders = indexed.previous.standby_holders
        self._widths = Counter(task[0] for task in self._tasks)
        self._count = [0] * len(self._threads)
        self._in_subtopology: list[Counter[int]] = [Counter() for _ in self._threads]
        self._seen = Counter(task for had in (*self._had, *self._had_standby) for task in had)
        self._targets = _targets(
            self._threads,
            [sum(self._seen[task] == 1 for task in had) for had in self._had],
            [len(had) for had in self._had],
            len(self._tasks),
        )
        # With less than a task a thread, a process that has a thread to spare is not overloaded.
        is_scarce = len(self._tasks) < sum(self._threads)
        self._limits = self._threads if is_scarce else self._targets

    def place(self) -> None:
        """Place all."""
        self._to_owners()
        self._to_standbys()
        self._to_anybody()

    def _give(self, process: int, task: int) -> None:
        self._placement.add_active(process, task)
        self._count[process] += 1
        self._in_subtopology[process][self._tasks[task][0]] += 1

    def _to_owners(self) -> None:
        owner, limits = self._placement.owner, self._limits
        welcome: set[int] = set()
        for process, had in enumerate(self._had):
            if len(had) < limits[process]:
                welcome |= self._had_standby[process]
        for process, had in enumerate(self._had):
            mine = sorted(task for task in had if owner[task] < 0)
            if not self._must_preserve and len(mine) > limits[process]:
                mine = self._worth_keeping(mine, welcome)[: limits[process]]
            for task in mine:
                self._give(process, task)

    def _worth_keeping(self, tasks: list[int], welcome: set[int]) -> list[int]:
        """An even share of each subtopology first; in it, those last that others have room for."""
        return self._mixed(sorted(tasks, key=lambda one: (one in welcome, one)))

    def _mixed(self, tasks: Iterable[int]) -> list[int]:
        """Subtopologies mixed, each as often as it is wide; siblings side by side."""
        ranks: Counter[int] = Counter()
        first: dict[tuple[int, ...], float] = {}
        order = []
        for task in tasks:
            id_ = self._tasks[task]
            rank = (ranks[id_[0]] + 0.5) / self._widths[id_[0]]
            order.append((first.setdefault(id_[:2], rank), task))
            ranks[id_[0]] += 1
        return [task for _, task in sorted(order)]

    def _to_standbys(self) -> None:
        owner, count, holders = self._placement.owner, self._count, self._holders
        for task in self._mixed(sorted(task for task in holders if owner[task] < 0)):
            having_room = [one for one in holders[task] if count[one] < self._limits[one]]
            if having_room:
                near = [one for one in having_room if self._has_sibling(one, task)]
                self._give(self._with_fewest(near or having_room, self._tasks[task][0]), task)

    def _has_sibling(self, process: int, task: int) -> bool:
        owner = self._placement.owner
        return any(owner[one] == process for one in self._indexed.shared.siblings.get(task, ()))

    def _with_fewest(self, processes: list[int], subtopology: int) -> int:
        """The one with the fewest of a subtopology a thread, then of all."""

        def load(process: int) -> tuple[float, float, int]:
            threads = self._threads[process]
            few = self._in_subtopology[process][subtopology] / threads
            return few, self._count[process] / threads, process

        return min(processes, key=load)

    def _to_anybody(self) -> None:
        """The one that has been given the least part of its room, so that nobody is filled first.

        Shared tasks of a partition come side by side as far as it goes. Targets add up to all
        tasks, so that there is room.
        """
        owner, count, targets = self._placement.owner, self._count, self._targets
        share = len(owner) / sum(self._threads)
        before = list(count)
        room = [
            max(0.5, share * threads - had)
            for threads, had in zip(self._threads, before, strict=True)
        ]

        def entry(process: int) -> tuple[float, float, int]:
            given = count[process] - before[process]
            return given / room[process], count[process] / self._threads[process], process

        heap = [
            entry(process) for process in range(len(count)) if count[process] < targets[process]
        ]
        heapq.heapify(heap)
        siblings = self._siblings()
        for task, at in enumerate(owner):
            if at >= 0:
                continue
            id_ = self._tasks[task]
            near = siblings.get(id_[:2], ()) if len(id_) > 2 else ()
            process = next((one for one in near if count[one] < targets[one]), None)
            if process is None:
                # Entries are brought up to date when they come up.
                while heap[0] < (latest := entry(heap[0][-1])) or self._is_full(heap[0][-1]):
                    if self._is_full(heap[0][-1]):
                        heapq.heappop(heap)
                    else:
                        heapq.heapreplace(heap, latest)
                process = heap[0][-1]
                if len(id_) > 2:
                    siblings.setdefault(id_[:2], []).append(process)
            self._give(process, task)

    def _is_full(self, process: int) -> bool:
        return self._count[process] >= self._targets[process]

    def _siblings(self) -> dict[tuple[int, ...], list[int]]:
        """The processes that have shared tasks of a partition."""
        found: dict[tuple[int, ...], list[int]] = {}
        for task, process in enumerate(self._placement.owner):
            id_ = self._tasks[task]
            if process >= 0 and len(id_) > 2:
                near = found.setdefault(id_[:2], [])
                if process not in near:
                    near.append(process)
        return found


def _targets(threads: list[int], unique: list[int], had: list[int], tasks: int) -> list[int]:
    """How many active tasks each process is to have: the same a thread, the rest by load.

    Of equally loaded processes those get one more that had more which no other process has seen;
    then those that had more at all, so that the next run has the same targets; then those with
    more threads.
    """
    share = tasks // sum(threads)
    targets = [share * one for one in threads]

    def entry(process: int) -> tuple[float, bool, bool, int, int]:
        target = targets[process]
        is_spared = unique[process] <= target, had[process] <= target
        return target / threads[process], *is_spared, -threads[process], process

    heap = [entry(process) for process in range(len(threads))]
    heapq.heapify(heap)
    for _ in range(tasks - share * sum(threads)):
        process = heap[0][-1]
        targets[process] += 1
        heapq.heapreplace(heap, entry(process))
    return targets
