"""The interface of an assignor, and its answer.

Guarantees: answers are frozen values, and no process has a task both as active and as standby.
Cost: linear in the tasks.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from numbers import Real
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from kshare.assignment.interface.application import ApplicationState
from kshare.assignment.interface.task_id import ProcessId, TaskId
from kshare.core.progress import TopicPartition
from kshare.core.showing import shown

__all__ = [
    "AssignedTask",
    "Assignment",
    "AssignmentError",
    "GroupAssignment",
    "GroupSubscription",
    "KafkaStreamsAssignment",
    "Subscription",
    "TaskAssignment",
    "TaskAssignor",
    "TaskType",
]


_LATEST_MS: Final = 2**63 - 1
"""Of Java's ``long``."""


class Instant(Protocol):
    """A ``datetime.datetime`` that has a time zone."""

    @property
    def tzinfo(self) -> Any:
        """Its time zone."""

    def timestamp(self) -> float:
        """Seconds since 1970."""


class TaskType(Enum):
    """The role of a task on a process (``AssignedTask.Type`` of the KIP)."""

    ACTIVE = "ACTIVE"
    STANDBY = "STANDBY"


class AssignedTask(NamedTuple):
    """A task on a process."""

    id: TaskId
    type: TaskType


@dataclass(frozen=True, slots=True)
class KafkaStreamsAssignment:
    """The tasks of one process.

    Attributes:
        process_id: The process's id.
        active: The tasks that it processes.
        standby: The tasks whose state it keeps warm, warm-ups among them.
        followup_rebalance_deadline: When this process asks for another rebalance, in ms since 1970;
            0 for as soon as possible, None for no follow-up. A datetime is converted. One before
            1970 is 0, and one that Java's ``long`` cannot hold is the latest that it can.

    Raises:
        TypeError: The deadline is no time.
        ValueError: A task is both active and standby, a datetime has no time zone, or the deadline
            is not a number.
    """

    process_id: ProcessId
    active: frozenset[TaskId] = frozenset()
    standby: frozenset[TaskId] = frozenset()
    followup_rebalance_deadline: int | None = None

    def __post_init__(self) -> None:
        if both := self.active & self.standby:
            raise ValueError(
                f"process {self.process_id} has task {min(both)} both as active and as standby"
            )
        object.__setattr__(
            self, "followup_rebalance_deadline", _milliseconds(self.followup_rebalance_deadline)
        )

    @classmethod
    def of(
        cls, process_id: ProcessId, assignment: Iterable[AssignedTask]
    ) -> "KafkaStreamsAssignment":
        """Make an assignment from tasks with their types, as in the KIP.

        Raises:
            ValueError: A task is both active and standby.
        """
        by_type: dict[TaskType, set[TaskId]] = {TaskType.ACTIVE: set(), TaskType.STANDBY: set()}
        for task, type_ in assignment:
            by_type[type_].add(task)
        return cls(
            process_id, frozenset(by_type[TaskType.ACTIVE]), frozenset(by_type[TaskType.STANDBY])
        )

    def with_followup_rebalance(
        self, rebalance_deadline: "int | Instant"
    ) -> "KafkaStreamsAssignment":
        """Return the same assignment with a follow-up rebalance.

        Args:
            rebalance_deadline: When to rebalance again: ms since 1970, or a datetime with a time
                zone.

        Raises:
            TypeError, ValueError: It is something else.
        """
        deadline = _milliseconds(rebalance_deadline)
        return replace(self, followup_rebalance_deadline=deadline)

    @property
    def tasks(self) -> dict[TaskId, AssignedTask]:
        """All tasks by id, ascending."""
        return {
            task: AssignedTask(task, TaskType.ACTIVE if task in self.active else TaskType.STANDBY)
            for task in sorted(self.active | self.standby)
        }

    @property
    def assignment(self) -> frozenset[AssignedTask]:
        """All tasks with their types, as a set."""
        return frozenset(self.tasks.values())


def _milliseconds(deadline: Any) -> int | None:
    """A deadline in ms since 1970, from 0, which is at once, to the last that others can read."""
    if callable(getattr(deadline, "timestamp", None)):  # this package knows no clock's module
        if deadline.tzinfo is None:
            raise ValueError(f"the deadline {deadline} has no time zone, as datetime.now(UTC) has")
        return _bounded(deadline.timestamp() * 1000)
    if deadline is None:
        return None
    if isinstance(deadline, bool) or not isinstance(deadline, Real):
        wanted = "ms since 1970, or a datetime"
        raise TypeError(
            f"the deadline of a follow-up rebalance is {shown(deadline)}; wanted {wanted}"
        )
    return _bounded(deadline)


def _bounded(milliseconds: Any) -> int:
    if milliseconds != milliseconds:  # noqa: PLR0124 - isnan fails for whole numbers beyond floats
        raise ValueError("the deadline of a follow-up rebalance is not a number")
    # Infinity has no floor, so it is compared before.
    bounded: int = math.floor(min(max(milliseconds, 0), _LATEST_MS))
    return bounded


@dataclass(frozen=True, slots=True)
class TaskAssignment:
    """An assignor's answer.

    Attributes:
        assignment: An entry for each process. Their order matters only for validation. Two entries
            of one process count together.
    """

    assignment: tuple[KafkaStreamsAssignment, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "assignment", tuple(self.assignment))

    @property
    def by_process(self) -> dict[ProcessId, KafkaStreamsAssignment]:
        """The tasks of each process, of all its entries; the earliest deadline counts.

        Raises:
            ValueError: A process has a task both as active and as standby, in two entries.
        """
        joined: dict[ProcessId, KafkaStreamsAssignment] = {}
        for entry in self.assignment:
            before = joined.get(entry.process_id)
            joined[entry.process_id] = entry if before is None else _together(before, entry)
        return joined

    @property
    def wants_followup(self) -> bool:
        """True if any process asks for another rebalance."""
        return any(entry.followup_rebalance_deadline is not None for entry in self.assignment)


def _together(one: KafkaStreamsAssignment, other: KafkaStreamsAssignment) -> KafkaStreamsAssignment:
    """Two entries of a process as one."""
    deadlines = (one.followup_rebalance_deadline, other.followup_rebalance_deadline)
    earliest = min((ms for ms in deadlines if ms is not None), default=None)
    return KafkaStreamsAssignment(
        one.process_id, one.active | other.active, one.standby | other.standby, earliest
    )


class AssignmentError(Enum):
    """Faults of an answer; found by ``validate_task_assignment``.

    A task that nobody gets is none in Kafka. Such an answer is not used here, and the assignor
    hears UNKNOWN_TASK_ID: its tasks are not those that are to be assigned.
    """

    NONE = "NONE"
    ACTIVE_TASK_ASSIGNED_MULTIPLE_TIMES = "ACTIVE_TASK_ASSIGNED_MULTIPLE_TIMES"
    ACTIVE_AND_STANDBY_TASK_ASSIGNED_TO_SAME_KAFKASTREAMS = (
        "ACTIVE_AND_STANDBY_TASK_ASSIGNED_TO_SAME_KAFKASTREAMS"
    )
    INVALID_STANDBY_TASK = "INVALID_STANDBY_TASK"
    MISSING_PROCESS_ID = "MISSING_PROCESS_ID"
    UNKNOWN_PROCESS_ID = "UNKNOWN_PROCESS_ID"
    UNKNOWN_TASK_ID = "UNKNOWN_TASK_ID"


@dataclass(frozen=True, slots=True)
class Assignment:
    """The assignment of one member of the group.

    Attributes:
        partitions: The partitions it reads, ascending, also those it shares with other members.
        active_tasks: Its active tasks, ascending. Of a task that it gets in part, since others have
            still to give up the rest, the key ranges that it gets.
        standby_tasks: Its standby tasks, ascending.
    """

    partitions: tuple[TopicPartition, ...] = ()
    active_tasks: tuple[TaskId, ...] = ()
    standby_tasks: tuple[TaskId, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupAssignment:
    """The assignments of all members."""

    assignments: Mapping[str, Assignment] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Subscription:
    """The subscription with which one member joined the rebalance.

    Attributes:
        topics: Topics that the application reads, ascending.
        owned_partitions: Partitions that the member had, ascending.
        rack_id: Its rack, if known.
    """

    topics: tuple[str, ...] = ()
    owned_partitions: tuple[TopicPartition, ...] = ()
    rack_id: str | None = None


@dataclass(frozen=True, slots=True)
class GroupSubscription:
    """The subscriptions of all members of the group."""

    subscriptions: Mapping[str, Subscription] = field(default_factory=dict)


@runtime_checkable
class TaskAssignor(Protocol):
    """Assigns tasks to processes.

    Inherit from it to have ``on_assignment_computed`` and ``configure`` that do nothing.
    """

    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        """Assign each task.

        Raises:
            TaskAssignmentException: The assignment stays as it is, and the assignor is asked again
                at once.
        """
        ...

    def on_assignment_computed(
        self,
        assignment: GroupAssignment,  # noqa: ARG002
        subscription: GroupSubscription,  # noqa: ARG002
        error: AssignmentError,  # noqa: ARG002
    ) -> None:
        """Receive the outcome of an answer. An exception here is logged and changes nothing.

        It is called once it is known what is done: with what members are sent, in each round of a
        rebalance, whether the answer could be used or not. Of an answer that cannot be used, and
        that is asked for again at once, it is called before that, too.

        Args:
            assignment: What each member gets. Of an answer that is asked for again: what it says,
                or nothing if it has an unknown process or task, or ``error`` is UNKNOWN_TASK_ID.
            subscription: What each member brought to the rebalance.
            error: Why the answer was not used; NONE if it was, or if there was none.
        """
        return  # an empty body would make it abstract to type checkers

    def configure(self, configs: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Receive the configs. Called once, before anything else."""
        return
