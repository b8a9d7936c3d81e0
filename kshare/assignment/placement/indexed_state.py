"""An application state with processes and tasks as numbers, in the order of their ids.

Guarantees: the answer does not depend on the order in which tasks and processes were given.
Cost: sorting, and one entry for each task and process; previous tasks are indexed at first use.

Some of Kafka's decisions depend on the order in which Java's hash tables iterate over tasks (after
java.util.HashMap of OpenJDK 17, with the hash of Kafka's TaskId). :func:`order_when_grown` and
:func:`order_when_copied` give it for tasks of whole partitions, as long as no table has a bucket of
more than eight; shared tasks follow the hash of their partition.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final

from kshare.assignment.interface.application import ApplicationState, KafkaStreamsState
from kshare.assignment.interface.assignor import KafkaStreamsAssignment, TaskAssignment
from kshare.assignment.interface.task_id import ProcessId, TaskId
from kshare.assignment.placement.placement import Placement

__all__ = ["IndexedState", "PreviousTasks", "SharedTasks", "order_when_copied", "order_when_grown"]

_SMALLEST: Final = 16


class IndexedState:
    """An application state by numbers.

    Attributes:
        state: The application state.
        processes: The ids of the processes, ascending; a process's number is its index here.
        tasks: The ids of the tasks, ascending; a task's number is its index here.
        threads: Processing threads of each process.
        replicas: Standbys of each logged task: as configured, or one on each other process.
        logged: The tasks with a changelog, ascending; only they have standbys.
        shared: The tasks that have a key range.
        previous: The tasks that each process had.

    Raises:
        ValueError: There is no process.
    """

    def __init__(self, state: ApplicationState) -> None:
        if not state.states:
            raise ValueError("there is no process to assign tasks to; wanted at least one")
        self.state = state
        self.processes = sorted(state.states)
        self.tasks = sorted(state.all_tasks)
        self._numbers = {task: number for number, task in enumerate(self.tasks)}
        states = [state.states[process] for process in self.processes]
        self.threads = [process.num_processing_threads for process in states]
        standbys = max(0, state.assignment_configs.num_standby_replicas)
        self.replicas = min(standbys, len(self.threads) - 1)
        self.logged = [
            number for number, task in enumerate(self.tasks) if state.all_tasks[task].has_changelog
        ]
        self.shared = SharedTasks(self.tasks)
        self.previous = PreviousTasks(states, self._numbers)

    @property
    def unlogged(self) -> list[int]:
        """The tasks without a changelog, ascending."""
        return sorted(set(range(len(self.tasks))).difference(self.logged))

    def empty_placement(self) -> Placement:
        """Return a placement without any task."""
        return Placement(self.threads, len(self.tasks))

    def active_ids(self, placement: Placement) -> dict[ProcessId, set[TaskId]]:
        """Return the ids of the active tasks of each process."""
        return self._ids(placement.active)

    def standby_ids(self, placement: Placement) -> dict[ProcessId, set[TaskId]]:
        """Return the ids of the standby tasks of each process."""
        return self._ids(placement.standby)

    def numbers(self, held: Mapping[ProcessId, Collection[TaskId]]) -> list[set[int]]:
        """Return the numbers of tasks, for each process."""
        numbers = self._numbers
        return [{numbers[task] for task in held[process]} for process in self.processes]

    def previous_placement(self) -> Placement | None:
        """Return the previous placement, if no copy of a task is missing and none is too many."""
        active, standby = self.previous.active, self.previous.standby
        replicas = self.replicas
        copies = Counter(task for held in standby for task in held)
        if (
            sum(map(len, active)) != len(self.tasks)
            or len(set[int]().union(*active)) != len(self.tasks)
            or any(not one.isdisjoint(other) for one, other in zip(active, standby, strict=True))
            or copies != (dict.fromkeys(self.logged, replicas) if replicas else {})
        ):
            return None
        placement = self.empty_placement()
        placement.set_active([set(held) for held in active])
        placement.set_standby([set(held) for held in standby])
        return placement

    def answer(self, placement: Placement, deadline: int | None = None) -> TaskAssignment:
        """Return a placement of all tasks as an assignor's answer.

        Args:
            placement: Where each task is.
            deadline: When a follow-up rebalance is due, in ms since 1970; the first process asks
                for it. None: no follow-up.
        """
        tasks = self.tasks
        entries = [
            KafkaStreamsAssignment(
                process,
                frozenset([tasks[task] for task in active]),
                frozenset([tasks[task] for task in standby]),
            )
            for process, active, standby in zip(
                self.processes, placement.active, placement.standby, strict=True
            )
        ]
        if deadline is not None:
            entries[0] = entries[0].with_followup_rebalance(deadline)
        return TaskAssignment(tuple(entries))

    def _ids(self, held: Iterable[set[int]]) -> dict[ProcessId, set[TaskId]]:
        tasks = self.tasks
        return {
            process: {tasks[task] for task in numbers}
            for process, numbers in zip(self.processes, held, strict=True)
        }


def order_when_grown(numbers: Sequence[int], tasks: Sequence[TaskId]) -> list[int]:
    """Return the order of a table that was filled one by one.

    Args:
        numbers: The tasks in the table, in the order in which they were added.
        tasks: The ids of all tasks, by number.
    """
    buckets = _SMALLEST
    while len(numbers) * 4 > buckets * 3:
        buckets *= 2
    return _sorted(numbers, tasks, buckets)


def order_when_copied(numbers: Sequence[int], tasks: Sequence[TaskId]) -> list[int]:
    """Return the order of a table that was copied from a collection: it starts out larger.

    Args:
        numbers: The tasks in the table, in the order in which they were added.
        tasks: The ids of all tasks, by number.
    """
    buckets = _SMALLEST
    while buckets < len(numbers) * 4 // 3 + 1:
        buckets *= 2
    return _sorted(numbers, tasks, buckets)


def _sorted(numbers: Iterable[int], tasks: Sequence[TaskId], buckets: int) -> list[int]:
    def bucket(number: int) -> int:
        task = tasks[number]
        code = (29791 + 961 * task[0] + 31 * task[1]) & 0xFFFFFFFF
        return (code ^ code >> 16) & (buckets - 1)

    return sorted(numbers, key=bucket)


class PreviousTasks:
    """The tasks that each process had, without those that have left the topology. Read-only."""

    def __init__(self, states: Sequence[KafkaStreamsState], numbers: Mapping[TaskId, int]) -> None:
        self._states = states
        self._numbers = numbers

    @cached_property
    def active(self) -> list[set[int]]:
        """The active tasks of each process."""
        return self._known(state.previous_active_tasks for state in self._states)

    @cached_property
    def standby(self) -> list[set[int]]:
        """The standby tasks of each process."""
        return self._known(state.previous_standby_tasks for state in self._states)

    @cached_property
    def standby_holders(self) -> dict[int, list[int]]:
        """For each task with standbys, the processes that had one, ascending."""
        holders: dict[int, list[int]] = {}
        for process, tasks in enumerate(self.standby):
            for task in tasks:
                holders.setdefault(task, []).append(process)
        return holders

    def _known(self, previous: Iterable[Collection[TaskId]]) -> list[set[int]]:
        numbers = self._numbers
        # The order plays no part here: plain sets are enough.
        return [{numbers[task] for task in set(tasks) if task in numbers} for tasks in previous]


class SharedTasks:
    """The tasks that have a key range.

    Args:
        ids: The ids of all tasks, by number.

    Attributes:
        tasks: The numbers of the shared ones.
    """

    def __init__(self, ids: Sequence[TaskId]) -> None:
        self._ids = ids
        self.tasks = frozenset(number for number, task in enumerate(ids) if len(task) > 2)

    @cached_property
    def partitions(self) -> dict[int, tuple[int, ...]]:
        """Subtopology and partition of each; siblings have the same."""
        return {number: self._ids[number][:2] for number in sorted(self.tasks)}

    @cached_property
    def siblings(self) -> dict[int, list[int]]:
        """For each, all shared tasks of its partition, ascending."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for number, partition in self.partitions.items():
            groups.setdefault(partition, []).append(number)
        return {number: groups[partition] for number, partition in self.partitions.items()}

    def stores(self, held: Iterable[Iterable[int]]) -> int:
        """Return how many state stores processes need: one for each partition they hold.

        Args:
            held: The shared tasks of each process.
        """
        partitions = self.partitions
        return sum(len({partitions[task] for task in tasks}) for tasks in held)
