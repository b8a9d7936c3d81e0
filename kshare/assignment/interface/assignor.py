"""What an assignor answers, and what an assignor is.

Law: answers are frozen values. A process has a task as active or as standby, not as both: such an
answer cannot be built.
Cost: linear in the tasks.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple, Protocol, runtime_checkable

from kshare.assignment.interface.application import ApplicationState
from kshare.assignment.interface.task_id import ProcessId, TaskId
from kshare.core.progress import TopicPartition

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


class TaskType(Enum):
    """What a process does with a task (``AssignedTask.Type`` of the KIP)."""

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
        process_id: which.
        active: the tasks that it processes.
        standby: the tasks whose state it keeps warm; warmups are among them.
        followup_rebalance_deadline: when this process shall ask for a rebalance, in ms since
            1970; None: it shall not. 0 is as soon as possible.

    Raises:
        ValueError: a task is both active and standby.
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

    @classmethod
    def of(
        cls, process_id: ProcessId, assignment: Iterable[AssignedTask]
    ) -> "KafkaStreamsAssignment":
        """The KIP's way to make one.

        Raises:
            ValueError: a task is both active and standby.
        """
        by_type: dict[TaskType, set[TaskId]] = {TaskType.ACTIVE: set(), TaskType.STANDBY: set()}
        for task, type_ in assignment:
            by_type[type_].add(task)
        return cls(
            process_id, frozenset(by_type[TaskType.ACTIVE]), frozenset(by_type[TaskType.STANDBY])
        )

    def with_followup_rebalance(self, rebalance_deadline: int) -> "KafkaStreamsAssignment":
        """The same with a follow-up rebalance after ``rebalance_deadline`` (ms since 1970)."""
        return replace(self, followup_rebalance_deadline=rebalance_deadline)

    @property
    def tasks(self) -> dict[TaskId, AssignedTask]:
        """All tasks, ascending."""
        return {
            task: AssignedTask(task, TaskType.ACTIVE if task in self.active else TaskType.STANDBY)
            for task in sorted(self.active | self.standby)
        }

    @property
    def assignment(self) -> frozenset[AssignedTask]:
        """All tasks, as the KIP has them."""
        return frozenset(self.tasks.values())


@dataclass(frozen=True, slots=True)
class TaskAssignment:
    """An assignor's answer: an entry for each process; their order only matters for validation."""

    assignment: tuple[KafkaStreamsAssignment, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "assignment", tuple(self.assignment))

    @property
    def wants_followup(self) -> bool:
        """Whether any process shall ask for another rebalance."""
        return any(one.followup_rebalance_deadline is not None for one in self.assignment)


class AssignmentError(Enum):
    """What can be wrong with an answer: ``validate_task_assignment`` finds it."""

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
    """What one member of the group gets.

    Attributes:
        partitions: that it reads, ascending; a partition that it shares with others as well.
        active_tasks: ascending.
        standby_tasks: ascending.
    """

    partitions: tuple[TopicPartition, ...] = ()
    active_tasks: tuple[TaskId, ...] = ()
    standby_tasks: tuple[TaskId, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupAssignment:
    """What each member of the group gets; empty if an answer could not be understood."""

    assignments: Mapping[str, Assignment] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Subscription:
    """What one member of the group came with.

    Attributes:
        topics: that the application reads, ascending.
        owned_partitions: that the member had, ascending.
        rack_id: its rack, if known.
    """

    topics: tuple[str, ...] = ()
    owned_partitions: tuple[TopicPartition, ...] = ()
    rack_id: str | None = None


@dataclass(frozen=True, slots=True)
class GroupSubscription:
    """What each member of the group came with."""

    subscriptions: Mapping[str, Subscription] = field(default_factory=dict)


@runtime_checkable
class TaskAssignor(Protocol):
    """Places tasks on processes. Inherit from it to have the two methods that do nothing."""

    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        """Place each task.

        Raises:
            TaskAssignmentException: keep the assignment as it is, and try again at once.
        """
        ...

    def on_assignment_computed(
        self,
        assignment: GroupAssignment,
        subscription: GroupSubscription,
        error: AssignmentError,
    ) -> None:
        """Be told what became of the answer.

        Args:
            assignment: what each member gets; empty if ``error`` is UNKNOWN_PROCESS_ID or
                UNKNOWN_TASK_ID.
            subscription: what each member came with.
            error: what is wrong with the answer; NONE if nothing is.
        """

    def configure(self, configs: Mapping[str, Any]) -> None:
        """Be given the options; called once, before anything else."""
