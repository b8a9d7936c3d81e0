"""The order of a batch's tasks: a task assignor plans every batch, and Spark deals its answer out.

Guarantees: the tasks of a batch are the same, whatever an assignor does; only their order changes.
An assignor that fails (an exception, an invalid answer) is logged and asked again at once, once,
and then at the next batch; until then the last assignment stays.
Cost: a plan is computed when tasks or executors have changed, or when a deadline that the assignor
has set has passed; otherwise it is looked up.

What Kafka Streams calls a process is an executor here, a thread is a task slot, a task is a
partition or a key range of it. A Python source cannot say where a task shall run. But Spark deals
the tasks of a stage out in the order of their numbers: one to each executor that has a free slot,
then the next round (``TaskSchedulerImpl.resourceOffers``). So tasks that are numbered by rounds
come to the executors in the groups that the assignor made; to which executor a group comes,
Spark draws by lot.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from kshare.core.progress import Slice, TopicPartition
from kshare.core.tasks import PlannedSlice, Task
from kshare.errors import TaskAssignmentException
from kshare.feedback.messages import Executor
from kshare.options import SourceOptions
from kshare.options.assignors import made_task_assignor

if TYPE_CHECKING:
    from kshare.assignment import (
        ApplicationState,
        AssignmentError,
        ProcessId,
        TaskAssignment,
        TaskAssignor,
        TaskId,
    )

__all__ = ["TaskOrder", "by_rounds"]

_log = logging.getLogger("kshare.planner")

_LOCATED_AT_FIRST = 3  # batches
_LOCATE_EVERY_SECONDS = 60.0
_EXECUTOR_SECONDS_MAX = 600.0  # one that was not seen for so long is gone
_ATTEMPTS = 2  # at once; then comes the next batch

Groups = dict["ProcessId", frozenset["TaskId"]]
_Key = tuple[tuple["TaskId", ...], tuple[tuple["ProcessId", int], ...]]


@dataclass(frozen=True, slots=True)
class _Plan:
    """An order that was computed.

    Attributes:
        key: The tasks and executors that it is for.
        order: The numbers of the tasks.
        until_ms: When the assignor wants to be asked again, in ms since 1970; None: not before
            tasks or executors change.
    """

    key: _Key
    order: list[int]
    until_ms: int | None


class TaskOrder:
    """Orders the tasks of each batch of a query.

    Args:
        options: The query's options.
        clock: Seconds.
        wall_clock: Seconds since 1970.
    """

    def __init__(
        self,
        options: SourceOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._name = options.task_assignor
        self._configs = options.task_assignor_configs
        self._assignor: TaskAssignor | None = made_task_assignor(options)
        self._executors = _Executors(clock)
        self._wall_clock = wall_clock
        self._ran: dict[TaskId, str] = {}
        self._plan: _Plan | None = None
        self._groups: Groups = {}

    @property
    def executors(self) -> dict[str, int]:
        """The executors that are known, and the number of tasks that each runs at once."""
        return self._executors.known

    def should_locate(self, slices: Sequence[PlannedSlice]) -> bool:
        """Whether the tasks of a batch shall report which executor they run on.

        Only where tasks share a partition; in the first batches, and once a minute. Where none
        has ever answered (a firewall), no longer.
        """
        partitions = {(planned.slice.topic, planned.slice.partition) for planned in slices}
        if len(partitions) == len(slices) and self._name is None:
            return False
        return self._executors.should_locate()

    def observe(self, slices: Sequence[PlannedSlice], executors: Mapping[Slice, Executor]) -> None:
        """Take note of where the tasks of a batch ran.

        Args:
            slices: What they read.
            executors: Where, as far as is known.
        """
        if not executors:
            return
        ids = _ids([planned.slice for planned in slices])
        for number, planned in enumerate(slices):
            executor = executors.get(planned.slice)
            if executor is not None:
                self._executors.add(executor)
                if ids is not None:
                    self._ran[ids[number]] = executor.name

    def order(self, tasks: Sequence[Task]) -> tuple[Task, ...]:
        """The tasks in the order that brings the assignor's groups to the executors."""
        executors = self.executors
        if not executors or (len(executors) == 1 and self._name is None):
            return tuple(tasks)
        ids = _task_ids(tasks)
        if ids is None:  # cut by offset: no two tasks of a partition have a name of their own
            return tuple(tasks)
        from kshare.assignment import ProcessId  # noqa: PLC0415 - most queries do without

        slots = {ProcessId(name): count for name, count in sorted(executors.items())}
        key = (tuple(ids), tuple(slots.items()))
        plan = self._plan
        if plan is None or plan.key != key or self._is_over(plan):
            groups, until_ms, is_valid = self._assign(ids, tasks, slots)
            plan = _Plan(key, _order(ids, groups, slots), until_ms)
            self._plan = plan if is_valid else None
        return tuple(tasks[number] for number in plan.order)

    def _is_over(self, plan: _Plan) -> bool:
        return plan.until_ms is not None and self._wall_clock() * 1000 >= plan.until_ms

    def _assign(
        self, ids: Sequence["TaskId"], tasks: Sequence[Task], slots: Mapping["ProcessId", int]
    ) -> tuple[Groups, int | None, bool]:
        """The assignor's groups, when it wants to be asked again, and whether its answer is valid.

        If it is not, the groups are those of the last valid answer.
        """
        from kshare.assignment import AssignmentError, validate_task_assignment  # noqa: PLC0415
        from kshare.assignment.loading import shown_error  # noqa: PLC0415

        state = self._state(ids, tasks, slots)
        for _ in range(_ATTEMPTS):
            try:
                if self._assignor is None:
                    self._assignor = _load(self._name, self._configs)
                answer = self._assignor.assign(state)
                error = validate_task_assignment(state, answer)
            except Exception as fault:
                kind = "cannot answer" if isinstance(fault, TaskAssignmentException) else "failed"
                shown, _ = shown_error(fault, self._configs)
                _log.warning("task assignor %s %s: %s", self._shown, kind, shown)
                continue
            self._notify(self._assignor, state, answer, error)
            if error is AssignmentError.NONE:
                self._groups = {entry.process_id: entry.active for entry in answer.assignment}
                deadlines = [entry.followup_rebalance_deadline for entry in answer.assignment]
                until_ms = min((ms for ms in deadlines if ms is not None), default=None)
                return self._groups, until_ms, True
            _log.warning("task assignor %s gave an invalid answer: %s", self._shown, error.value)
        _log.warning(
            "the last assignment of tasks stays, and task assignor %s is asked again at the next "
            "batch; which records are read does not depend on it",
            self._shown,
        )
        return self._groups, None, False

    def _notify(
        self,
        assignor: "TaskAssignor",
        state: "ApplicationState",
        answer: "TaskAssignment",
        error: "AssignmentError",
    ) -> None:
        """Tell the assignor what became of its answer. An exception there changes nothing."""
        from kshare.assignment import (  # noqa: PLC0415
            TaskAssignor,
            group_assignment,
            group_subscription,
        )
        from kshare.assignment.loading import shown_error  # noqa: PLC0415

        notify = getattr(assignor, "on_assignment_computed", None)
        # Those that inherit the method that does nothing need not be told.
        if not notify or getattr(notify, "__func__", None) is TaskAssignor.on_assignment_computed:
            return
        try:
            notify(group_assignment(state, answer, error), group_subscription(state), error)
        except Exception as fault:
            shown, _ = shown_error(fault, self._configs)
            _log.warning(
                "task assignor %s: on_assignment_computed failed, which changes nothing: %s",
                self._shown,
                shown,
            )

    def _state(
        self, ids: Sequence["TaskId"], tasks: Sequence[Task], slots: Mapping["ProcessId", int]
    ) -> "ApplicationState":
        from kshare.assignment import (  # noqa: PLC0415
            ApplicationState,
            AssignmentConfigs,
            KafkaStreamsState,
            TaskInfo,
            TaskTopicPartition,
        )

        infos = [
            TaskInfo(
                id_,
                topic_partitions=tuple(map(TaskTopicPartition, _partitions(task))),
            )
            for id_, task in zip(ids, tasks, strict=True)
        ]
        known = set(ids)
        had: dict[str, set[TaskId]] = {}
        for id_, name in self._ran.items():
            if id_ in known:
                had.setdefault(name, set()).add(id_)
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


def _load(name: str | None, configs: Mapping[str, str]) -> "TaskAssignor":
    from kshare.assignment.loading import (  # noqa: PLC0415
        DEFAULT_TASK_ASSIGNOR,
        load_task_assignor,
    )

    return load_task_assignor(name or DEFAULT_TASK_ASSIGNOR, configs)


class _Executors:
    """The executors that tasks have reported from."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[int, float]] = {}  # slots, and when it was seen last
        self._located = 0  # batches
        self._located_at: float | None = None

    @property
    def known(self) -> dict[str, int]:
        """The slots of those that were seen lately."""
        since = self._clock() - _EXECUTOR_SECONDS_MAX
        return {name: slots for name, (slots, seen) in self._seen.items() if seen >= since}

    def add(self, executor: Executor) -> None:
        self._seen[executor.name] = (max(executor.slots, 1), self._clock())

    def should_locate(self) -> bool:
        """Whether the tasks of a batch shall report where they run; counts the batches."""
        now = self._clock()
        if self._located >= _LOCATED_AT_FIRST:
            is_recent = (
                self._located_at is not None and now - self._located_at < _LOCATE_EVERY_SECONDS
            )
            if not self._seen or is_recent:
                return False
        self._located += 1
        self._located_at = now
        return True


def _partitions(task: Task) -> list[TopicPartition]:
    return sorted({planned.slice.topic_partition for planned in task.slices})


def _task_ids(tasks: Sequence[Task]) -> "list[TaskId] | None":
    """The name of each task: that of its first slice."""
    ids = _ids([planned.slice for task in tasks for planned in task.slices])
    if ids is None:
        return None
    firsts = accumulate((len(task.slices) for task in tasks[:-1]), initial=0)
    return [ids[first] for first in firsts]


def _ids(slices: Sequence[Slice]) -> "list[TaskId] | None":
    """Names for slices: topics are the subtopologies, in the order of their names.

    None if two slices would have the same name.
    """
    from kshare.assignment import TaskId  # noqa: PLC0415

    topics = {name: number for number, name in enumerate(sorted({s.topic for s in slices}))}
    ids = [TaskId(topics[s.topic], s.partition, s.hashes) for s in slices]
    return ids if len(set(ids)) == len(ids) else None


def _order(ids: Sequence["TaskId"], groups: Groups, slots: Mapping["ProcessId", int]) -> list[int]:
    """The numbers of tasks by rounds. Those in no group come last: nothing is left out."""
    numbers = {id_: number for number, id_ in enumerate(ids)}
    grouped = [
        (sorted(numbers[id_] for id_ in groups.get(process, ()) if id_ in numbers), count)
        for process, count in slots.items()
    ]
    order = by_rounds(grouped)
    if len(order) < len(ids):
        left_out = set(range(len(ids))) - set(order)
        _log.warning("the task assignor left out %d tasks; they are added", len(left_out))
        order += sorted(left_out)
    return order


def by_rounds(groups: Iterable[tuple[Sequence[int], int]]) -> list[int]:
    """Deal as Spark does: one to each executor in turn, as often as it has slots.

    Args:
        groups: For each executor its tasks and its slots. What is beyond the slots comes in the
            same way again, when slots are free again.

    Returns:
        Each task once.
    """
    rows = [(iter(tasks), slots) for tasks, slots in groups]
    turns = range(max((slots for _, slots in rows), default=0))
    order: list[int] = []
    dealt = -1
    while len(order) > dealt:
        dealt = len(order)
        for turn in turns:
            for tasks, slots in rows:
                if turn < slots and (number := next(tasks, None)) is not None:
                    order.append(number)
    return order
