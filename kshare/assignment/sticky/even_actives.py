"""Active tasks of the sticky assignor: as even as can be, and within that, where they were.

Guarantees: no process gets more than its share of the tasks: the same number a thread, the rest
dealt one by one; with fewer tasks than threads, a process that had tasks keeps up to one a thread.
Within that, a process keeps the tasks it had. Equal input gets equal placements, and placing again
what was placed in this way changes nothing.
Cost: a few steps for each task, and one of a heap.

Kafka leaves some choices to hash order. Here, a process with too many tasks keeps those that no
other process has seen, and of each subtopology the first ones.
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
        indexed: The tasks, the processes, and what these had.
        placement: An empty placement.
        must_preserve: Whether tasks stay where they were, however many these are.
    """
    actives = _Actives(indexed, placement)
    actives.place_with_owners(keep_all=must_preserve)
    actives.place_with_standby_holders()
    actives.place_rest()


class _Actives:
    """Active tasks while they are placed; each step leaves the rest to the next one."""

    def __init__(self, indexed: IndexedState, placement: Placement) -> None:
        self._indexed = indexed
        self._placement = placement
        self._widths = Counter(task[0] for task in indexed.tasks)
        self._count = [0] * len(indexed.threads)
        self._in_subtopology: list[Counter[int]] = [Counter() for _ in indexed.threads]
        self._targets = _targets(indexed)
        # With less than a task a thread, a process that has a thread to spare is not overloaded.
        is_scarce = len(indexed.tasks) < sum(indexed.threads)
        self._limits = indexed.threads if is_scarce else self._targets

    def place_with_owners(self, *, keep_all: bool) -> None:
        """Leave tasks where they were active, up to each process's limit."""
        owner, limits, previous = self._placement.owner, self._limits, self._indexed.previous
        welcome: set[int] = set()  # other processes have room for them, and a copy
        for process, had in enumerate(previous.active):
            if len(had) < limits[process]:
                welcome |= previous.standby[process]
        for process, had in enumerate(previous.active):
            own = sorted(task for task in had if owner[task] < 0)
            if not keep_all and len(own) > limits[process]:
                own.sort(key=lambda task: (task in welcome, task))
                own = self._mixed(own)[: limits[process]]
            for task in own:
                self._give(process, task)

    def place_with_standby_holders(self) -> None:
        """Give tasks to processes that had a standby, as far as these have room."""
        owner, holders = self._placement.owner, self._indexed.previous.standby_holders
        for task in self._mixed(sorted(task for task in holders if owner[task] < 0)):
            free = [one for one in holders[task] if self._count[one] < self._limits[one]]
            if free:
                near = [process for process in free if self._has_sibling(process, task)]
                self._give(self._with_fewest(near or free, self._indexed.tasks[task][0]), task)

    def place_rest(self) -> None:
        """Give each task to the process that has filled the least part of its room.

        So no process is filled first. Siblings go side by side as far as there is room. Targets add
        up to the number of tasks, so that each finds a place.
        """
        owner, count, targets = self._placement.owner, self._count, self._targets
        tasks, queue = self._indexed.tasks, _LeastFilled(self._indexed.threads, count, targets)
        near = self._processes_by_partition()
        for task, holder in enumerate(owner):
            if holder >= 0:
                continue
            id_ = tasks[task]
            is_shared = len(id_) > 2
            candidates = near.get(id_[:2], ()) if is_shared else ()
            process = next((one for one in candidates if count[one] < targets[one]), None)
            if process is None:
                process = queue.first()
                if is_shared:
                    near.setdefault(id_[:2], []).append(process)
            self._give(process, task)

    def _give(self, process: int, task: int) -> None:
        self._placement.add_active(process, task)
        self._count[process] += 1
        self._in_subtopology[process][self._indexed.tasks[task][0]] += 1

    def _mixed(self, tasks: Iterable[int]) -> list[int]:
        """Mix subtopologies, each as often as it is wide; siblings stay side by side."""
        ranks: Counter[int] = Counter()
        first: dict[tuple[int, ...], float] = {}
        order = []
        for task in tasks:
            id_ = self._indexed.tasks[task]
            rank = (ranks[id_[0]] + 0.5) / self._widths[id_[0]]
            order.append((first.setdefault(id_[:2], rank), task))
            ranks[id_[0]] += 1
        return [task for _, task in sorted(order)]

    def _has_sibling(self, process: int, task: int) -> bool:
        owner = self._placement.owner
        return any(owner[one] == process for one in self._indexed.shared.siblings.get(task, ()))

    def _with_fewest(self, processes: list[int], subtopology: int) -> int:
        """The process with the fewest tasks a thread: of the subtopology, then of all."""

        def load(process: int) -> tuple[float, float, int]:
            threads = self._indexed.threads[process]
            few = self._in_subtopology[process][subtopology] / threads
            return few, self._count[process] / threads, process

        return min(processes, key=load)

    def _processes_by_partition(self) -> dict[tuple[int, ...], list[int]]:
        """The processes that run shared tasks of each partition."""
        processes: dict[tuple[int, ...], list[int]] = {}
        for task, process in enumerate(self._placement.owner):
            id_ = self._indexed.tasks[task]
            if process >= 0 and len(id_) > 2:
                near = processes.setdefault(id_[:2], [])
                if process not in near:
                    near.append(process)
        return processes


class _LeastFilled:
    """A queue of the processes below their targets, the least filled part of its room first.

    Args:
        threads: Threads of each process.
        count: Active tasks of each process; they grow while the queue is used.
        targets: How many tasks each process shall have.
    """

    def __init__(self, threads: list[int], count: list[int], targets: list[int]) -> None:
        self._threads = threads
        self._count = count
        self._before = list(count)
        self._targets = targets
        share = sum(targets) / sum(threads)
        self._room = [max(0.5, share * own - had) for own, had in zip(threads, count, strict=True)]
        self._heap = [
            self._entry(process) for process in range(len(count)) if not self._is_full(process)
        ]
        heapq.heapify(self._heap)

    def first(self) -> int:
        """Return the first process. Entries are brought up to date when they come up."""
        heap = self._heap
        while True:
            process = heap[0][-1]
            if self._is_full(process):
                heapq.heappop(heap)
            elif heap[0] < (latest := self._entry(process)):
                heapq.heapreplace(heap, latest)
            else:
                return process

    def _entry(self, process: int) -> tuple[float, float, int]:
        count = self._count[process]
        added = count - self._before[process]
        return added / self._room[process], count / self._threads[process], process

    def _is_full(self, process: int) -> bool:
        return self._count[process] >= self._targets[process]


def _targets(indexed: IndexedState) -> list[int]:
    """The number of active tasks that each process shall have: the same a thread, the rest by load.

    Of equally loaded processes, one more goes first to those that had more tasks which no other
    process has seen; then to those that had more tasks, so that the next run has the same targets;
    then to those with more threads.
    """
    threads, previous = indexed.threads, indexed.previous
    seen = Counter(task for had in (*previous.active, *previous.standby) for task in had)
    unique = [sum(seen[task] == 1 for task in had) for had in previous.active]
    share = len(indexed.tasks) // sum(threads)
    targets = [share * own for own in threads]

    def entry(process: int) -> tuple[float, bool, bool, int, int]:
        target = targets[process]
        is_spared = unique[process] <= target, len(previous.active[process]) <= target
        return target / threads[process], *is_spared, -threads[process], process

    heap = [entry(process) for process in range(len(threads))]
    heapq.heapify(heap)
    for _ in range(len(indexed.tasks) - share * sum(threads)):
        process = heap[0][-1]
        targets[process] += 1
        heapq.heapreplace(heap, entry(process))
    return targets
