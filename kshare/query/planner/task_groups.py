"""Groups of tasks: a task assignor (KIP-924) is asked which tasks go together.

Guarantees: an assignor that fails (an exception, an invalid answer) is logged and asked again at
once, once; until it gives a valid answer, the last groups stay.
This imports :mod:`kshare.assignment` (15 ms), so it is imported once executors are known.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Final

from kshare.assignment import (
    ApplicationState,
    AssignmentConfigs,
    AssignmentError,
    GroupAssignment,
    GroupSubscription,
    KafkaStreamsAssignment,
    KafkaStreamsState,
    ProcessId,
    TaskAssignment,
    TaskAssignor,
    TaskId,
    TaskInfo,
    TaskTopicPartition,
    group_assignment,
    group_subscription,
)
from kshare.assignment.loading import DEFAULT_TASK_ASSIGNOR, ask, load_task_assignor, notify
from kshare.core.progress import Slice, TopicPartition
from kshare.core.tasks import Task
from kshare.options import SourceOptions
from kshare.options.source import made_task_assignor

__all__ = ["Groups", "TaskGroups"]

_log = logging.getLogger("kshare.planner")

_RAN_MAX: Final = 20_000
"""Number of tasks of which it is known where they ran: ranges that are cut anew are new tasks."""

Groups = Mapping[ProcessId, frozenset[TaskId]]


class TaskGroups:
    """Asks the task assignor of a query.

    Args:
        options: The query's options.
        wall_clock: Seconds since 1970.
    """

    def __init__(
        self, options: SourceOptions, *, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._name = options.task_assignor
        self._configs = options.task_assignor_configs
        self._assignor: TaskAssignor | None = made_task_assignor(options.task_assignor_configs)
        self._wall_clock = wall_clock
        self._ran: dict[TaskId, str] = {}
        self._groups: Groups = {}

    @staticmethod
    def slots(executors: Mapping[str, int]) -> dict[ProcessId, int]:
        """The number of task slots of each executor, ascending by name."""
        return {ProcessId(name): count for name, count in sorted(executors.items())}

    @staticmethod
    def task_ids(tasks: Sequence[Task]) -> list[TaskId] | None:
        """The name of each task: that of its first slice. None if slices have no names."""
        ids = TaskGroups.slice_ids([planned.slice for task in tasks for planned in task.slices])
        if ids is None:
            return None
        ends = accumulate(len(task.slices) for task in tasks)
        return [ids[end - len(task.slices)] for task, end in zip(tasks, ends, strict=True)]

    @staticmethod
    def slice_ids(slices: Sequence[Slice]) -> list[TaskId] | None:
        """Names for slices: topics are the subtopologies, in the order of their names.

        None if two slices would have the same name.
        """
        topics = {name: number for number, name in enumerate(sorted({s.topic for s in slices}))}
        ids = [TaskId(topics[s.topic], s.partition, s.hashes) for s in slices]
        return ids if len(set(ids)) == len(ids) else None

    def observe(self, task: TaskId, executor: str) -> None:
        """Take note of where a task ran."""
        self._ran.pop(task, None)  # the latest one is last
        self._ran[task] = executor
        if len(self._ran) > _RAN_MAX:
            del self._ran[next(iter(self._ran))]

    def ask(
        self, ids: Sequence[TaskId], tasks: Sequence[Task], slots: Mapping[ProcessId, int]
    ) -> tuple[Groups, int | None, bool]:
        """The assignor's groups, when it wants to be asked again, and whether its answer is valid.

        If it is not, the groups are those of the last valid answer.

        Args:
            ids: The names of the tasks.
            tasks: The tasks.
            slots: The number of task slots of each executor.
        """
        state = self._state(ids, tasks, slots)
        answer = ask(self._load, state, self._configs)
        if answer.assignment is not None:
            entries = answer.assignment.assignment
            self._groups = {entry.process_id: entry.active for entry in entries}
        faults = list(answer.faults)
        if answer.assignor is not None and answer.error is not None:
            outcome = partial(self._outcome, state)
            faults += notify(answer.assignor, outcome, answer.error, self._configs)
        for fault in faults:
            _log.warning("task assignor %s%s", self._shown, fault)
        if answer.assignment is not None:
            return self._groups, answer.followup_ms, True
        _log.warning(
            "the last assignment of tasks stays, and task assignor %s is asked again at the next "
            "batch; which records are read does not depend on it",
            self._shown,
        )
        return self._groups, None, False

    def _outcome(self, state: ApplicationState) -> tuple[GroupAssignment, GroupSubscription]:
        """What each executor gets, as far as that can be steered; and what it had."""
        known = state.all_tasks.keys()
        groups = [
            KafkaStreamsAssignment(process, self._groups.get(process, frozenset()) & known)
            for process in state.states
        ]
        assignment = group_assignment(state, TaskAssignment(tuple(groups)), AssignmentError.NONE)
        return assignment, group_subscription(state)

    def _load(self) -> TaskAssignor:
        if self._assignor is None:
            self._assignor = load_task_assignor(self._name or DEFAULT_TASK_ASSIGNOR, self._configs)
        return self._assignor

    def _state(
        self, ids: Sequence[TaskId], tasks: Sequence[Task], slots: Mapping[ProcessId, int]
    ) -> ApplicationState:
        infos = [
            TaskInfo(
                id_,
                topic_partitions=tuple(map(TaskTopicPartition, _partitions(task))),
            )
            for id_, task in zip(ids, tasks, strict=True)
        ]
        had: dict[str, set[TaskId]] = {}
        for id_ in ids:
            if id_ in self._ran:
                had.setdefault(self._ran[id_], set()).add(id_)
        processes = [
            KafkaStreamsState(
                process,
                count,
                (str(process),),
                previous_active_tasks=frozenset(had.get(str(process), ())),
                task_lags={},
            )
            for process, count in slots.items()
        ]
        configs = AssignmentConfigs.from_configs(self._configs)
        return ApplicationState.of(infos, processes, configs, now_ms=int(1000 * self._wall_clock()))

    @property
    def _shown(self) -> str:
        return self._name or "HighAvailabilityTaskAssignor"


def _partitions(task: Task) -> list[TopicPartition]:
    return sorted({planned.slice.topic_partition for planned in task.slices})
