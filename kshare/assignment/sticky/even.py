"""The sticky assignor's own placement: as even as can be, and within that, where tasks were.

Guarantees, active tasks: no process gets more than its share: the same number a thread, the rest
dealt one by one; with fewer tasks than threads, a process that had tasks keeps up to one a thread.
Within that, a process keeps the tasks it had. Placing again what was placed changes nothing.
Standbys: a task has as many as are configured, or one on each other process; the previous ones stay
if they are complete and as even as new ones. Equal input gets equal placements.
Cost: a few steps for each task, one of a heap, and for each standby a walk over the least loaded
processes, mostly one step.

Kafka leaves some choices to hash order. Here, a process with too many tasks keeps those that no
other process has seen, and of each subtopology the first ones. Its table of all pairs of tasks that
share a process is not needed: two tasks do so if and only if some process holds both. Sets of tasks
are integers, a bit a task, so that looking for a new pair is an operation on a few words.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import or_

from kshare.assignment.placement.indexed_state import IndexedState
from kshare.assignment.placement.placement import Placement, bits, even_out, take_first
from kshare.assignment.placement.siblings import group_standbys

__all__ = ["place_even_actives", "place_even_standbys"]


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
                away = self._siblings_elsewhere(own)  # what is left of a partition moves first
                own.sort(key=lambda task: (task in welcome, away.get(task, 0), task))
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

    def _siblings_elsewhere(self, own: Iterable[int]) -> dict[int, int]:
        """The number of siblings of each shared task that are not among some tasks, if any is."""
        shared = self._indexed.shared
        counts = Counter(shared.partitions[task] for task in own if task in shared.tasks)
        return {
            task: len(shared.siblings[task]) - counts[shared.partitions[task]]
            for task in own
            if task in shared.tasks
        }

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
            process = take_first(
                self._heap,
                lambda one: one not in self._copies[task] and is_wanted(one),  # noqa: B023
            )
            if process is not None:
                self.is_crowded |= count[process] >= targets[process]
                self._give(process, task)
                heapq.heappush(self._heap, (self._load(process), process))
                return

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
