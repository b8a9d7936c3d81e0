"""The order of a batch's tasks: a task assignor groups them, and Spark deals the groups out.

Guarantees: the tasks of a batch do not depend on what an assignor does; only their order changes.
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
from typing import TYPE_CHECKING

from kshare.core.progress import Slice
from kshare.core.tasks import PlannedSlice, Task
from kshare.options import SourceOptions
from kshare.query.feedback.messages import Executor

if TYPE_CHECKING:
    from kshare.assignment import ProcessId, TaskId
    from kshare.query.planner.task_groups import Groups, TaskGroups

__all__ = ["TaskOrder", "by_rounds"]

_log = logging.getLogger("kshare.planner")

_LOCATED_AT_FIRST = 3  # batches
_LOCATE_EVERY_SECONDS = 60.0
_EXECUTOR_SECONDS_MAX = 600.0  # one that was not seen for so long is gone: tasks report rarely

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
        self._options = options
        self._executors = _Executors(clock)
        self._wall_clock = wall_clock
        self._made_groups: TaskGroups | None = None
        self._plan: _Plan | None = None

    @property
    def executors(self) -> dict[str, int]:
        """The executors that are known, and the number of tasks that each runs at once."""
        return self._executors.known

    def should_locate(self, slices: Sequence[PlannedSlice]) -> bool:
        """True if the tasks of a batch shall report which executor they run on.

        Only where tasks share a partition; in the first batches, and once a minute. Where none
        has ever answered (a firewall), no longer.
        """
        partitions = {(planned.slice.topic, planned.slice.partition) for planned in slices}
        if len(partitions) == len(slices) and self._options.task_assignor is None:
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
        ids = self._groups.slice_ids([planned.slice for planned in slices])
        for number, planned in enumerate(slices):
            executor = executors.get(planned.slice)
            if executor is not None:
                self._executors.add(executor)
                if ids is not None:
                    self._groups.observe(ids[number], executor.name)

    def order(self, tasks: Sequence[Task]) -> tuple[Task, ...]:
        """The tasks in the order that brings the assignor's groups to the executors."""
        executors = self.executors
        if not executors or (len(executors) == 1 and self._options.task_assignor is None):
            return tuple(tasks)
        ids = self._groups.task_ids(tasks)
        if ids is None:  # cut by offset: no two tasks of a partition have a name of their own
            return tuple(tasks)
        slots = self._groups.slots(executors)
        key = (tuple(ids), tuple(slots.items()))
        plan = self._plan
        if plan is None or plan.key != key or self._is_over(plan):
            groups, until_ms, is_valid = self._groups.ask(ids, tasks, slots)
            plan = _Plan(key, _order(ids, groups, slots), until_ms)
            self._plan = plan if is_valid else None
        return tuple(tasks[number] for number in plan.order)

    @property
    def _groups(self) -> "TaskGroups":
        if self._made_groups is None:
            from kshare.query.planner.task_groups import TaskGroups  # noqa: PLC0415 - 15 ms

            self._made_groups = TaskGroups(self._options, wall_clock=self._wall_clock)
        return self._made_groups

    def _is_over(self, plan: _Plan) -> bool:
        return plan.until_ms is not None and self._wall_clock() * 1000 >= plan.until_ms


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
        """True if the tasks of a batch shall report where they run; counts the batches."""
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


def _order(
    ids: Sequence["TaskId"], groups: "Groups", slots: Mapping["ProcessId", int]
) -> list[int]:
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
