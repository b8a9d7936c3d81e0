"""Standbys on the least loaded processes, or on processes whose client tags differ.

Guarantees: a process has at most one copy of a task; a task has as many standbys as are configured,
or one on each other process. Standbys that are there already stay.
Cost: a heap of the processes; with tags, a walk over the least loaded for each standby.

Source: Kafka 4.1.1 (KIP-708 for the tags), in its order of tasks.
"""

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence

from kshare.assignment.interface.application import ApplicationState
from kshare.assignment.interface.task_id import ProcessId, TaskId
from kshare.assignment.placement.indexed_state import order_when_grown
from kshare.assignment.placement.placement import take_first

__all__ = ["assign_standbys"]


def assign_standbys(
    state: ApplicationState,
    active: Mapping[ProcessId, Collection[TaskId]],
    standby: Mapping[ProcessId, Collection[TaskId]] | None = None,
    *,
    in_hash_order: bool = False,
) -> dict[ProcessId, set[TaskId]]:
    """Give each task with a changelog its standbys.

    Each goes to the process with the fewest tasks a thread, the first one on a tie. If tags are
    configured, the copies of a task go to processes that share no tag value, as far as there are
    such.

    Args:
        state: Tasks, processes, the number of standbys and the tags.
        active: The active tasks of each process.
        standby: Standbys that are there already; they count as load.
        in_hash_order: Whether tasks are taken in the order of Java's hash tables, as by Kafka's
            public helper; else ascending, as by its high-availability assignor.

    Returns:
        All standbys of each process.
    """
    queue = _LeastLoaded(state, active, standby or {})
    replicas = state.assignment_configs.num_standby_replicas
    if replicas <= 0:
        return queue.standby
    tasks = _logged(state, in_hash_order=in_hash_order)
    if not state.assignment_configs.rack_aware_assignment_tags:
        for task in tasks:
            _spread(queue, task, replicas)
        return queue.standby
    rest = _with_tags(state, active, queue, tasks, replicas)
    for number in order_when_grown(range(len(tasks)), tasks):
        _spread(queue, tasks[number], rest.get(tasks[number], 0))
    return queue.standby


def _logged(state: ApplicationState, *, in_hash_order: bool) -> list[TaskId]:
    """The tasks with a changelog, in Kafka's order."""
    tasks = sorted(state.all_tasks)
    order: Sequence[int] = range(len(tasks))
    if in_hash_order:
        order = order_when_grown(order, tasks)
    logged = [number for number in order if state.all_tasks[tasks[number]].has_changelog]
    if in_hash_order:
        logged = order_when_grown(logged, tasks)
    return [tasks[number] for number in logged]


class _LeastLoaded:
    """The processes by tasks a thread, and the standbys that they get."""

    def __init__(
        self,
        state: ApplicationState,
        active: Mapping[ProcessId, Collection[TaskId]],
        standby: Mapping[ProcessId, Collection[TaskId]],
    ) -> None:
        self.standby = {process: set(standby.get(process, ())) for process in state.states}
        self._copies = {
            process: self.standby[process].union(active.get(process, ()))
            for process in state.states
        }
        self._threads = {
            process: one.num_processing_threads for process, one in state.states.items()
        }
        self._heap = [(self._load(process), process) for process in state.states]
        heapq.heapify(self._heap)

    def _load(self, process: ProcessId) -> float:
        return len(self._copies[process]) / self._threads[process]

    def give(
        self, task: TaskId, may_have: Callable[[ProcessId], bool] | None = None
    ) -> ProcessId | None:
        """Add a standby on the least loaded process that may have it; return that process."""
        chosen = take_first(
            self._heap,
            lambda one: task not in self._copies[one] and (may_have is None or may_have(one)),
        )
        if chosen is not None:
            self._copies[chosen].add(task)
            self.standby[chosen].add(task)
            heapq.heappush(self._heap, (self._load(chosen), chosen))
        return chosen


def _spread(queue: _LeastLoaded, task: TaskId, copies: int) -> None:
    for _ in range(copies):
        if queue.give(task) is None:
            break


def _with_tags(
    state: ApplicationState,
    active: Mapping[ProcessId, Collection[TaskId]],
    queue: _LeastLoaded,
    tasks: Sequence[TaskId],
    replicas: int,
) -> dict[TaskId, int]:
    """Place the copies of each task on processes with different tag values.

    A value that a copy has blocks the other processes with it; but once a key has no more values
    than there are copies, it blocks nothing more.

    Returns:
        The tasks that lack standbys after that, and how many.
    """
    configured = frozenset(state.assignment_configs.rack_aware_assignment_tags)
    tags = {
        process: {key: value for key, value in one.client_tags.items() if key in configured}
        for process, one in state.states.items()
    }
    values: dict[str, set[str]] = {key: set() for key in configured}
    for entries in tags.values():
        for key, value in entries.items():
            values[key].add(value)
    owners: dict[TaskId, ProcessId] = {}
    for process in sorted(active, reverse=True):
        owners.update(dict.fromkeys(active[process], process))
    rest: dict[TaskId, int] = {}
    for task in tasks:
        last = owners.get(task)
        missing = replicas
        blocked: set[tuple[str, str]] = set()
        while missing and last is not None and last in tags:
            copies = 1 + replicas - missing
            for key, value in tags[last].items():
                if len(values[key]) <= copies:
                    blocked = {entry for entry in blocked if entry[0] != key}
                else:
                    blocked.add((key, value))
            last = queue.give(task, lambda one: blocked.isdisjoint(tags[one].items()))  # noqa: B023
            missing -= last is not None
        if missing:
            rest[task] = missing
    return rest
