"""Which tasks go together: a task assignor plans every batch, and Spark deals its answer out.

Law: the tasks of a batch are the same, whatever an assignor does; only their order changes. One
that fails (an exception, an invalid answer) is told so and asked again at once, once, and then at
the next batch; until then tasks go as they went before.
Cost: a plan is computed when tasks or executors have changed, and else looked up.

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
from typing import TYPE_CHECKING

from kshare.core.progress import TopicPartition
from kshare.errors import TaskAssignmentException
from kshare.feedback.messages import Executor
from kshare.options import SourceOptions
from kshare.options.assignors import made_task_assignor
from kshare.planner.tasks import Task

if TYPE_CHECKING:
    from kshare.assignment import (
        ApplicationState,
        AssignmentError,
        ProcessId,
        TaskAssignment,
        TaskAssignor,
        TaskId,
    )

__all__ = ["Placement", "by_rounds"]

_log = logging.getLogger("kshare.planner")

_ASKED_AT_FIRST = 3  # batches
_ASK_AGAIN_SECONDS = 60.0
_EXECUTOR_SECONDS_MAX = 600.0  # one that was not seen for so long is gone
_ATTEMPTS = 2  # at once; then comes the next batch

Groups = dict["ProcessId", frozenset["TaskId"]]
_Key = tuple[tuple["TaskId", ...], tuple[tuple["ProcessId", int], ...]]


class Placement:
    """Orders the tasks of each batch of a query.

    Args:
        options: the query's.
        clock: seconds.
    """

    def __init__(
        self, options: SourceOptions, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = options.task_assignor
        self._configs = options.task_assignor_configs
        self._clock = clock
        self._assignor: TaskAssignor | None = made_task_assignor(options)
        self._executors: dict[str, tuple[int, float]] = {}  # slots, and when it was seen last
        self._ran: dict[TaskId, str] = {}
        self._asked = 0
        self._asked_at: float | None = None
        self._planned: tuple[_Key, list[int]] | None = None
        self._groups: Groups = {}

    @property
    def executors(self) -> dict[str, int]:
        """The executors that are known, and how many tasks each runs at once."""
        since = self._clock() - _EXECUTOR_SECONDS_MAX
        return {name: slots for name, (slots, seen) in self._executors.items() if seen >= since}

    def asks(self, tasks: Sequence[Task]) -> bool:
        """Whether the tasks of a batch shall tell which executor they run on.

        Only where tasks share a partition; in the first batches, and once a minute. Where none
        has ever answered (a firewall), no longer.
        """
        places = {(task.slice.topic, task.slice.partition) for task in tasks}
        if len(places) == len(tasks) and self._name is None:
            return False
        now = self._clock()
        unheard = self._asked >= _ASKED_AT_FIRST and not self._executors
        recent = self._asked_at is not None and now - self._asked_at < _ASK_AGAIN_SECONDS
        if unheard or (self._asked >= _ASKED_AT_FIRST and recent):
            return False
        self._asked += 1
        self._asked_at = now
        return True

    def saw(self, tasks: Sequence[Task], executors: Mapping[int, Executor]) -> None:
        """Take note of where the tasks of a batch ran, by their numbers."""
        if not executors:
            return
        now = self._clock()
        ids = _ids(tasks)
        for number, executor in executors.items():
            self._executors[executor.name] = (max(executor.slots, 1), now)
            if ids is not None and number < len(ids):
                self._ran[ids[number]] = executor.name

    def ordered(self, tasks: Sequence[Task]) -> tuple[Task, ...]:
        """The tasks in the order that brings the assignor's groups to the executors."""
        executors = self.executors
        if not executors or (len(executors) == 1 and self._name is None):
            return tuple(tasks)
        ids = _ids(tasks)
        if ids is None:  # cut by offset: no two tasks of a partition have a name of their own
            return tuple(tasks)
        from kshare.assignment import ProcessId  # noqa: PLC0415 - most queries do without

        slots = {ProcessId(name): count for name, count in sorted(executors.items())}
        key = (tuple(ids), tuple(slots.items()))
        if self._planned is None or self._planned[0] != key:
            groups, is_final = self._assigned(ids, tasks, slots)
            order = _order(ids, groups, slots)
            self._planned = (key, order) if is_final else None
        else:
            order = self._planned[1]
        return tuple(tasks[number] for number in order)

    def _assigned(
        self, ids: Sequence["TaskId"], tasks: Sequence[Task], slots: Mapping["ProcessId", int]
    ) -> tuple[Groups, bool]:
        """The assignor's groups, and whether they need not be asked for again."""
        from kshare.assignment import AssignmentError  # noqa: PLC0415
        from kshare.assignment.loading import shown_error  # noqa: PLC0415

        state = self._state(ids, tasks, slots)
        for _ in range(_ATTEMPTS):
            try:
                if self._assignor is None:
                    self._assignor = _load(self._name, self._configs)
                answer = self._assignor.assign(state)
                error = self._judge(state, answer)
            except Exception as fault:
                kind = "cannot answer" if isinstance(fault, TaskAssignmentException) else "failed"
                told, _ = shown_error(fault, self._configs)
                _log.warning("task assignor %s %s: %s", self._shown, kind, told)
                continue
            if error is AssignmentError.NONE:
                self._groups = {one.process_id: one.active for one in answer.assignment}
                return self._groups, not answer.wants_followup
            _log.warning("task assignor %s gave an invalid answer: %s", self._shown, error.value)
        _log.warning(
            "the last assignment of tasks stays, and task assignor %s is asked again at the next "
            "batch; which records are read does not depend on it",
            self._shown,
        )
        return self._groups, False

    def _judge(self, state: "ApplicationState", answer: "TaskAssignment") -> "AssignmentError":
        """What is wrong with an answer; the assignor is told, too."""
        from kshare.assignment import (  # noqa: PLC0415
            TaskAssignor,
            group_assignment,
            group_subscription,
            validate_task_assignment,
        )

        error = validate_task_assignment(state, answer)
        assert self._assignor is not None
        tell = getattr(self._assignor, "on_assignment_computed", None)
        # Those that inherit the method that does nothing need not be told.
        if tell and getattr(tell, "__func__", None) is not TaskAssignor.on_assignment_computed:
            tell(group_assignment(state, answer, error), group_subscription(state), error)
        return error

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
                topic_partitions=(
                    TaskTopicPartition(TopicPartition(task.slice.topic, task.slice.partition)),
                ),
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
        return ApplicationState.of(infos, processes, configs, now_ms=int(1000 * time.time()))

    @property
    def _shown(self) -> str:
        return self._name or "HighAvailabilityTaskAssignor"


def _load(name: str | None, configs: Mapping[str, str]) -> "TaskAssignor":
    from kshare.assignment.loading import (  # noqa: PLC0415
        DEFAULT_TASK_ASSIGNOR,
        load_task_assignor,
    )

    return load_task_assignor(name or DEFAULT_TASK_ASSIGNOR, configs)


def _ids(tasks: Sequence[Task]) -> "list[TaskId] | None":
    """Names for tasks: topics are the subtopologies, in the order of their names.

    None if two tasks would have the same name.
    """
    from kshare.assignment import TaskId  # noqa: PLC0415

    topics = {name: number for number, name in enumerate(sorted({t.slice.topic for t in tasks}))}
    ids = [
        TaskId(topics[task.slice.topic], task.slice.partition, task.slice.hashes) for task in tasks
    ]
    return ids if len(set(ids)) == len(ids) else None


def _order(ids: Sequence["TaskId"], groups: Groups, slots: Mapping["ProcessId", int]) -> list[int]:
    """The numbers of tasks by rounds. Those in no group come last: nothing is left out."""
    numbers = {id_: number for number, id_ in enumerate(ids)}
    placed = [
        (sorted(numbers[id_] for id_ in groups.get(process, ()) if id_ in numbers), count)
        for process, count in slots.items()
    ]
    order = by_rounds(placed)
    if len(order) < len(ids):
        left_out = set(range(len(ids))) - set(order)
        _log.warning("the task assignor left out %d tasks; they are added", len(left_out))
        order += sorted(left_out)
    return order


def by_rounds(placed: Iterable[tuple[Sequence[int], int]]) -> list[int]:
    """Deal as Spark does: one to each executor in turn, as often as it has slots.

    Args:
        placed: for each executor its tasks and its slots. What is beyond the slots comes in the
            same way again, when slots are free again.

    Returns:
        Each task once.
    """
    rows = [(iter(tasks), slots) for tasks, slots in placed]
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
