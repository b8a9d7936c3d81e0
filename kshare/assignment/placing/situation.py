"""What an assignor is given, as numbers: processes and tasks by their place in sorted order.

Law: the answer does not depend on the order in which tasks and processes were given.
Cost: sorting, and one entry for each task and process.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from kshare.assignment.interface.application import ApplicationState
from kshare.assignment.interface.assignor import KafkaStreamsAssignment, TaskAssignment
from kshare.assignment.interface.task_id import ProcessId, TaskId
from kshare.assignment.placing.placement import Placement

__all__ = ["Situation"]


class Situation:
    """Tasks and processes in order.

    Attributes:
        state: what it was made from.
        processes: their ids, ascending; a process is known by its index from now on.
        tasks: likewise.
        threads: of each process.
        logged: the tasks with a changelog, ascending: only they have standbys.
        unlogged: the others.
        shared: the tasks that have a key range, as a set.
        partitions: subtopology and partition of each task; siblings have the same.
        siblings: for each shared task, all shared tasks of its partition.

    Raises:
        ValueError: there is no process.
    """

    def __init__(self, state: ApplicationState) -> None:
        if not state.states:
            raise ValueError("there is no process to assign tasks to; wanted at least one")
        self.state = state
        self.processes = sorted(state.states)
        self.tasks = sorted(state.all_tasks)
        self._states = [state.states[one] for one in self.processes]
        self._number = {task: index for index, task in enumerate(self.tasks)}
        self._active: list[set[int]] | None = None
        self._standby: list[set[int]] | None = None
        self._holders: dict[int, list[int]] | None = None
        self.threads = [one.num_processing_threads for one in self._states]
        infos = [state.all_tasks[task].has_changelog for task in self.tasks]
        configured = state.assignment_configs.num_standby_replicas
        self.replicas = min(max(0, configured), len(self.threads) - 1)
        self.logged = [task for task, is_logged in enumerate(infos) if is_logged]
        self.unlogged = [task for task, is_logged in enumerate(infos) if not is_logged]
        self.shared = {task for task, id_ in enumerate(self.tasks) if len(id_) > 2}
        self.partitions = [id_[:2] for id_ in self.tasks] if self.shared else []
        groups: dict[tuple[int, ...], list[int]] = {}
        for task in sorted(self.shared):
            groups.setdefault(self.partitions[task], []).append(task)
        self.siblings = {task: group for group in groups.values() for task in group}

    def placement(self) -> Placement:
        """Nothing placed yet."""
        return Placement(self.threads, len(self.tasks))

    def actives(self, placement: Placement) -> dict[ProcessId, set[TaskId]]:
        """The active tasks by id."""
        return self._by_id(placement.active)

    def standbys(self, placement: Placement) -> dict[ProcessId, set[TaskId]]:
        """The standbys by id."""
        return self._by_id(placement.standby)

    def numbers(self, held: Mapping[ProcessId, Collection[TaskId]]) -> list[set[int]]:
        """Tasks by id as numbers, for each process."""
        number = self._number
        return [{number[task] for task in held[process]} for process in self.processes]

    def previous_active(self) -> list[set[int]]:
        """The active tasks that each process had, without those that have left the topology.

        Not to be changed, as the standbys.
        """
        if self._active is None:
            self._active = self._known(one.previous_active_tasks for one in self._states)
        return self._active

    def previous_standby(self) -> list[set[int]]:
        """The standbys likewise."""
        if self._standby is None:
            self._standby = self._known(one.previous_standby_tasks for one in self._states)
        return self._standby

    def standby_holders(self) -> dict[int, list[int]]:
        """The processes that had a standby of each task, ascending. Not to be changed."""
        if self._holders is None:
            self._holders = {}
            for process, tasks in enumerate(self.previous_standby()):
                for task in tasks:
                    self._holders.setdefault(task, []).append(process)
        return self._holders

    def previous_placement(self) -> Placement | None:
        """What there was, if no copy of a task is missing, and none is too much."""
        active, standby = self.previous_active(), self.previous_standby()
        replicas = self.replicas
        copies = Counter(task for held in standby for task in held)
        if (
            sum(map(len, active)) != len(self.tasks)
            or len(set[int]().union(*active)) != len(self.tasks)
            or any(not one.isdisjoint(other) for one, other in zip(active, standby, strict=True))
            or copies != (dict.fromkeys(self.logged, replicas) if replicas else {})
        ):
            return None
        placement = self.placement()
        placement.set_active([set(held) for held in active])
        placement.set_standby([set(held) for held in standby])
        return placement

    def answer(self, placement: Placement, deadline: int | None = None) -> TaskAssignment:
        """The placement as an answer.

        Args:
            placement: of all tasks.
            deadline: when a follow-up rebalance is due, in ms since 1970. One process asks for
                it: the first.
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

    def _known(self, previous: Iterable[Iterable[TaskId]]) -> list[set[int]]:
        number = self._number
        # The order plays no part here, so a plain set is enough.
        return [{number[task] for task in set(tasks) if task in number} for tasks in previous]

    def _by_id(self, held: Iterable[set[int]]) -> dict[ProcessId, set[TaskId]]:
        tasks = self.tasks
        return {
            process: {tasks[task] for task in numbers}
            for process, numbers in zip(self.processes, held, strict=True)
        }
