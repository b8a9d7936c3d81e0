"""A placement: which process has which tasks, while an assignor works; and how loads become even.

Guarantees: the numbers of processes and tasks follow the order of their ids, so that nothing
depends on the order in which they were given. A process holds a task once, active or standby. No
move makes the balance of two processes worse.
Cost: every change is O(1); memory is one entry for each copy of a task. Evening out looks at each
pair of processes until nothing moves; the rest is one step of a heap for each task.

The rules of evening out are those of Kafka Streams' high-availability assignor.
"""

import heapq
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

__all__ = [
    "LeastLoaded",
    "Placement",
    "bits",
    "deal",
    "even_out",
    "is_even",
    "place_by_active_load",
    "take_first",
]

_P = TypeVar("_P")


class Placement:
    """Tasks on processes, both as numbers.

    Attributes:
        threads: Processing threads of each process.
        active: Active tasks of each process.
        standby: Standby tasks of each process.
        count: Number of tasks of each process, active and standby.
        load: Number of tasks a thread, of each process.
        owner: The process on which each task is active; -1: none.
    """

    __slots__ = ("active", "count", "load", "owner", "standby", "threads")

    def __init__(self, threads: Sequence[int], tasks: int) -> None:
        processes = len(threads)
        self.threads = list(threads)
        self.active: list[set[int]] = [set() for _ in range(processes)]
        self.standby: list[set[int]] = [set() for _ in range(processes)]
        self.count = [0] * processes
        self.load = [0.0] * processes
        self.owner = [-1] * tasks

    @property
    def spread(self) -> float:
        """The difference between the highest and the lowest load."""
        return max(self.load) - min(self.load)

    def has(self, process: int, task: int) -> bool:
        """True if the process holds a copy, active or standby."""
        return self.owner[task] == process or task in self.standby[process]

    def add_active(self, process: int, task: int) -> None:
        """Make the process the owner of a task that is active nowhere else."""
        self.active[process].add(task)
        self.owner[task] = process
        self._grow(process, 1)

    def move_active(self, task: int, process: int) -> None:
        """Give a task that is active somewhere to a process that holds no copy of it."""
        owner = self.owner[task]
        self.active[owner].remove(task)
        self._grow(owner, -1)
        self.add_active(process, task)

    def set_active(self, held: Sequence[set[int]]) -> None:
        """Replace the active tasks of all processes."""
        for process, tasks in enumerate(held):
            self._grow(process, len(tasks) - len(self.active[process]))
            self.active[process] = tasks
            for task in tasks:
                self.owner[task] = process

    def add_standby(self, process: int, task: int) -> None:
        """Add a standby on a process that holds no copy of the task."""
        self.standby[process].add(task)
        self._grow(process, 1)

    def drop_standby(self, process: int, task: int) -> None:
        """Remove a standby."""
        self.standby[process].remove(task)
        self._grow(process, -1)

    def move_standby(self, task: int, source: int, target: int) -> None:
        """Move a standby to a process that holds no copy of the task."""
        self.drop_standby(source, task)
        self.add_standby(target, task)

    def set_standby(self, held: Sequence[set[int]]) -> None:
        """Replace the standbys of all processes."""
        for process, tasks in enumerate(held):
            self._grow(process, len(tasks) - len(self.standby[process]))
            self.standby[process] = tasks

    def swap(self, task: int, promoted: int) -> None:
        """Make the holder of a standby the owner, and the owner a holder of a standby."""
        demoted = self.owner[task]
        self.active[demoted].remove(task)
        self.standby[promoted].remove(task)
        self.active[promoted].add(task)
        self.standby[demoted].add(task)
        self.owner[task] = promoted

    def _grow(self, process: int, by: int) -> None:
        self.count[process] += by
        self.load[process] = self.count[process] / self.threads[process]


def deal(placement: Placement, tasks: Sequence[int]) -> None:
    """Deal active tasks to all processes in turn."""
    processes = len(placement.threads)
    for turn, task in enumerate(tasks):
        placement.add_active(turn % processes, task)


def place_by_active_load(placement: Placement, tasks: Sequence[int]) -> None:
    """Give each task to the process with the fewest active tasks a thread."""
    active = [len(held) for held in placement.active]
    loads = [count / threads for count, threads in zip(active, placement.threads, strict=True)]
    queue = LeastLoaded(loads)
    for task in tasks:
        process = queue.first()
        placement.add_active(process, task)
        active[process] += 1
        queue.change_first(active[process] / placement.threads[process])


def even_out(
    placement: Placement,
    held: Sequence[set[int]],
    move: Callable[[int, int, int], None],
    is_allowed: Callable[[int, int], bool] = lambda _source, _target: True,
) -> None:
    """Move tasks from loaded to less loaded processes while the skew of the two shrinks.

    Args:
        placement: The placement, for the loads.
        held: The tasks of each process that may move.
        move: Moves a task: task, source, target.
        is_allowed: Whether tasks may go from a source to a target.
    """
    processes = range(len(placement.threads))
    load = placement.load
    is_moving = True
    while is_moving:
        is_moving = False
        for source in processes:
            for target in processes:
                if load[source] <= load[target] or not _improves(placement, source, target):
                    continue
                if not is_allowed(source, target):
                    continue
                for task in sorted(held[source]):
                    if not _improves(placement, source, target):
                        break
                    if not placement.has(target, task):
                        move(task, source, target)
                        is_moving = True


def is_even(placement: Placement) -> bool:
    """Return whether no single task would make the skew of two processes smaller by moving."""
    processes, load = range(len(placement.threads)), placement.load
    return not any(
        load[source] > load[target] and _improves(placement, source, target)
        for source in processes
        for target in processes
    )


def _improves(placement: Placement, source: int, target: int) -> bool:
    """True if moving one task makes the skew smaller without inverting it."""
    count, threads, load = placement.count, placement.threads, placement.load
    skew = load[source] - load[target]
    after = (count[source] - 1.0) / threads[source] - (count[target] + 1.0) / threads[target]
    return 0 <= after < skew


class LeastLoaded:
    """A queue of all processes, the least loaded first; the lower number first among equals."""

    __slots__ = ("_heap",)

    def __init__(self, load: Sequence[float]) -> None:
        self._heap = [(value, process) for process, value in enumerate(load)]
        heapq.heapify(self._heap)

    def first(self) -> int:
        """The first process; it stays in the queue."""
        return self._heap[0][1]

    def change_first(self, load: float) -> None:
        """Set the load of the first process."""
        heapq.heapreplace(self._heap, (load, self._heap[0][1]))


def take_first(heap: list[tuple[float, _P]], is_wanted: Callable[[_P], bool]) -> _P | None:
    """Take the first wanted process off a heap of processes by load; None if there is none."""
    passed = []
    chosen = None
    while heap:
        entry = heapq.heappop(heap)
        if is_wanted(entry[1]):
            chosen = entry[1]
            break
        passed.append(entry)
    for entry in passed:
        heapq.heappush(heap, entry)
    return chosen


def bits(tasks: Collection[int]) -> int:
    """A set as an integer, a bit a task."""
    if not tasks:
        return 0
    mask = bytearray(max(tasks) // 8 + 1)
    for task in tasks:
        mask[task >> 3] |= 1 << (task & 7)
    return int.from_bytes(mask, "little")
