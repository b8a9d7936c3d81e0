"""The input of an assignor: configs, tasks, processes, and the tasks and state that processes had.

Guarantees: all of it is a frozen value, made before the assignor runs; nothing is fetched later. In
KIP-924 ``kafkaStreamsStates(true)`` makes a remote call; here the lags are known or they are not.
Exactly the configs that Kafka accepts are accepted.
Cost: linear in tasks and processes; lags are kept for the tasks that have any.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kshare.assignment.interface.task_id import ProcessId, SortedTaskIds, TaskId
from kshare.core.progress import TopicPartition
from kshare.errors import TaskAssignmentException

__all__ = [
    "CONFIG_NAMES",
    "LATEST_OFFSET",
    "STRATEGIES",
    "TAGS_MAX",
    "UNKNOWN_OFFSET_SUM",
    "ApplicationState",
    "AssignmentConfigs",
    "HostInfo",
    "KafkaStreamsState",
    "TaskInfo",
    "TaskTopicPartition",
]

STRATEGIES: Final = ("none", "min_traffic", "balance_subtopology")
"""The values of ``rack.aware.assignment.strategy``."""

TAGS_MAX: Final = 5
"""Maximum number of client tags in ``rack.aware.assignment.tags``."""

CONFIG_NAMES: Final = {
    "acceptable.recovery.lag": "acceptable_recovery_lag",
    "max.warmup.replicas": "max_warmup_replicas",
    "num.standby.replicas": "num_standby_replicas",
    "probing.rebalance.interval.ms": "probing_rebalance_interval_ms",
    "rack.aware.assignment.tags": "rack_aware_assignment_tags",
    "rack.aware.assignment.traffic_cost": "rack_aware_traffic_cost",
    "rack.aware.assignment.non_overlap_cost": "rack_aware_non_overlap_cost",
    "rack.aware.assignment.strategy": "rack_aware_assignment_strategy",
}
"""Kafka's name of each config, and the field that holds it."""


@dataclass(frozen=True, slots=True)
class AssignmentConfigs:
    """The configs of an assignor. Only lower bounds are checked, as in Kafka.

    Attributes:
        acceptable_recovery_lag: Greatest lag, in offsets, at which a copy is caught up; >= 0.
        max_warmup_replicas: Maximum number of copies that warm up at once; >= 1.
        num_standby_replicas: Standbys of each task with a changelog. Not checked, as in Kafka;
            below 0 is none.
        probing_rebalance_interval_ms: Milliseconds until a follow-up rebalance; >= 60000.
        rack_aware_assignment_tags: Client tags in which the copies of a task should differ; at
            most 5.
        rack_aware_traffic_cost: Cost of a partition read from another rack; None: not configured.
        rack_aware_non_overlap_cost: Cost of a task that moves; None: not configured.
        rack_aware_assignment_strategy: One of :data:`STRATEGIES`.

    Raises:
        ValueError: A value is out of bounds; the text is Kafka's, with Kafka's config name.
    """

    acceptable_recovery_lag: int = 10_000
    max_warmup_replicas: int = 2
    num_standby_replicas: int = 0
    probing_rebalance_interval_ms: int = 600_000
    rack_aware_assignment_tags: tuple[str, ...] = ()
    rack_aware_traffic_cost: int | None = None
    rack_aware_non_overlap_cost: int | None = None
    rack_aware_assignment_strategy: str = "none"

    def __post_init__(self) -> None:
        _at_least(0, "acceptable.recovery.lag", self.acceptable_recovery_lag)
        _at_least(1, "max.warmup.replicas", self.max_warmup_replicas)
        _at_least(60_000, "probing.rebalance.interval.ms", self.probing_rebalance_interval_ms)
        tags = tuple(self.rack_aware_assignment_tags)
        object.__setattr__(self, "rack_aware_assignment_tags", tags)
        if len(tags) > TAGS_MAX:
            raise _invalid(
                f"[{', '.join(tags)}]",
                "rack.aware.assignment.tags",
                f"exceeds maximum list size of [{TAGS_MAX}].",
            )
        if self.rack_aware_assignment_strategy not in STRATEGIES:
            raise _invalid(
                self.rack_aware_assignment_strategy,
                "rack.aware.assignment.strategy",
                f"String must be one of: {', '.join(STRATEGIES)}",
            )

    @property
    def has_rack_aware_costs(self) -> bool:
        """True if both costs are configured."""
        return (
            self.rack_aware_traffic_cost is not None
            and self.rack_aware_non_overlap_cost is not None
        )

    @classmethod
    def from_configs(cls, configs: Mapping[str, Any]) -> "AssignmentConfigs":
        """Take the configs with Kafka's names, as text or as values, and ignore the rest.

        Raises:
            ValueError: A text is no whole number, or a value is out of bounds.
        """
        values: dict[str, Any] = {}
        for name, attribute in CONFIG_NAMES.items():
            if (value := configs.get(name)) is None:
                continue
            if attribute == "rack_aware_assignment_tags":
                tags = value.split(",") if isinstance(value, str) else value
                value = tuple(tag.strip() for tag in tags if tag.strip())
            elif attribute != "rack_aware_assignment_strategy" and isinstance(value, str):
                try:
                    value = int(value)
                except ValueError:
                    raise _invalid(value, name, "Not a whole number") from None
            values[attribute] = value
        return cls(**values)


def _at_least(least: int, name: str, value: int) -> None:
    if value < least:
        raise _invalid(value, name, f"Value must be at least {least}")


def _invalid(value: object, name: str, fault: str) -> ValueError:
    return ValueError(f"Invalid value {value} for configuration {name}: {fault}")


LATEST_OFFSET: Final = -2
"""The lag of a task that runs as active on the process."""

UNKNOWN_OFFSET_SUM: Final = -3
"""The lag of a task whose offsets the process does not know."""


class HostInfo(NamedTuple):
    """The address where an application's server listens (Kafka's ``application.server``)."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class TaskTopicPartition:
    """A partition that a task reads or logs to.

    Attributes:
        topic_partition: Topic and partition number.
        is_source: Whether the task reads it.
        is_changelog: Whether a state store of the task is logged to it; a source can be a
            changelog, too.
        replica_racks: The rack of each broker that has a replica, None for a broker without a
            rack; None if nothing is known.
    """

    topic_partition: TopicPartition
    is_source: bool = True
    is_changelog: bool = False
    replica_racks: tuple[str | None, ...] | None = None

    @property
    def rack_ids(self) -> frozenset[str] | None:
        """The known racks of its replicas; None if no rack is known."""
        known = frozenset(rack for rack in self.replica_racks or () if rack is not None)
        return known or None


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """A task to be assigned.

    Attributes:
        id: The task's id.
        is_stateful: Whether it has a state store, logged or not.
        topic_partitions: The partitions it reads and logs to.
        state_store_names: The names of its state stores, if known.
    """

    id: TaskId
    is_stateful: bool = False
    topic_partitions: tuple[TaskTopicPartition, ...] = ()
    state_store_names: frozenset[str] = frozenset()

    @property
    def input_topic_partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions that the task reads."""
        return tuple(part.topic_partition for part in self.topic_partitions if part.is_source)

    @property
    def changelog_topic_partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions that its state stores are logged to."""
        return tuple(part.topic_partition for part in self.topic_partitions if part.is_changelog)

    @property
    def has_changelog(self) -> bool:
        """True if a state store is logged. Only such a task gets standbys."""
        return any(part.is_changelog for part in self.topic_partitions)

    @property
    def partition_to_rack_ids(self) -> dict[TopicPartition, frozenset[str]]:
        """The known racks of each partition; a partition without any is missing."""
        return {
            part.topic_partition: racks
            for part in self.topic_partitions
            if (racks := part.rack_ids) is not None
        }


@dataclass(frozen=True, slots=True)
class KafkaStreamsState:
    """A process, as it was when the rebalance began.

    Attributes:
        process_id: The process's id.
        num_processing_threads: Number of tasks it can process at once; at least 1.
        consumer_client_ids: Members of the group that run in it, ascending.
        previous_active_tasks: Active tasks it had before, also those that have left the topology;
            iterates in ascending order.
        previous_standby_tasks: Standby tasks it had before; iterates in ascending order.
        client_tags: Names and values such as ``zone``, for ``rack.aware.assignment.tags``.
        rack_id: Its rack, if known.
        host_info: Its ``application.server``, if configured.
        task_lags: Lag of each task with a changelog, in offsets, or one of the marks
            :data:`LATEST_OFFSET` and :data:`UNKNOWN_OFFSET_SUM`; None if lags were not computed.
        tasks_by_consumer: Tasks whose state each member has reported.

    Raises:
        ValueError: ``num_processing_threads`` is below 1.
    """

    process_id: ProcessId
    num_processing_threads: int = 1
    consumer_client_ids: tuple[str, ...] = ()
    previous_active_tasks: frozenset[TaskId] = frozenset()
    previous_standby_tasks: frozenset[TaskId] = frozenset()
    client_tags: Mapping[str, str] = field(default_factory=dict)
    rack_id: str | None = None
    host_info: HostInfo | None = None
    task_lags: Mapping[TaskId, int] | None = None
    tasks_by_consumer: Mapping[str, frozenset[TaskId]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("previous_active_tasks", "previous_standby_tasks"):
            object.__setattr__(self, name, SortedTaskIds(getattr(self, name)))
        if self.num_processing_threads < 1:
            raise ValueError(
                f"process {self.process_id} has {self.num_processing_threads} threads; "
                "wanted at least 1"
            )

    def lag_for(self, task: TaskId) -> int:
        """Return how many offsets of a task's state the process lacks, or one of the marks.

        Raises:
            LookupError: Lags were not computed, or there is none of this task: it has no changelog,
                or, in a group, no member of the process had it.
        """
        lags = self.stateful_tasks_to_lag_sums()
        if task not in lags:
            raise LookupError(
                f"there is no lag for task {task} of process {self.process_id}: the task has no "
                "changelog, or (in a group) no member of the process had it before; "
                "stateful_tasks_to_lag_sums() has those that are known"
            )
        return lags[task]

    def stateful_tasks_to_lag_sums(self) -> Mapping[TaskId, int]:
        """Return the lag of each task with a changelog.

        Raises:
            LookupError: Lags were not computed.
        """
        if self.task_lags is None:
            raise LookupError(f"the task lags of process {self.process_id} were not computed")
        return self.task_lags

    def prev_tasks_by_lag(self, consumer_client_id: str) -> tuple[TaskId, ...]:
        """Return the tasks that a member has state of, the smallest lag first, then by id.

        Tasks that have left the topology are left out.

        Raises:
            LookupError: Lags were not computed, or there is no such member.
        """
        lags = self.stateful_tasks_to_lag_sums()
        if consumer_client_id not in self.tasks_by_consumer:
            raise LookupError(f"no consumer {consumer_client_id!r} in process {self.process_id}")
        tasks = [task for task in self.tasks_by_consumer[consumer_client_id] if task in lags]
        return tuple(sorted(tasks, key=lambda task: (lags[task], task)))

    @classmethod
    def from_offset_sums(
        cls,
        process_id: ProcessId,
        end_offset_sums: Mapping[TaskId, int],
        offset_sums_by_client: Mapping[str, Mapping[TaskId, int]],
        *,
        num_processing_threads: int = 1,
        client_tags: Mapping[str, str] | None = None,
        rack_id: str | None = None,
    ) -> "KafkaStreamsState":
        """Make the state of a process from the offsets that its members reported.

        Args:
            process_id: The process's id.
            end_offset_sums: Sum of the end offsets of each task's changelogs.
            offset_sums_by_client: For each member, the sum of the offsets it has of each task, or a
                mark. Where two members report one task, the later one counts.
            num_processing_threads: Number of tasks it can process at once.
            client_tags: Names and values such as ``zone``.
            rack_id: Its rack, if known.
        """
        sums = {
            task: offset
            for offsets in offset_sums_by_client.values()
            for task, offset in offsets.items()
        }
        running = frozenset(task for task, offset in sums.items() if offset == LATEST_OFFSET)
        return cls(
            process_id,
            num_processing_threads,
            tuple(sorted(offset_sums_by_client)),
            running,
            frozenset(sums) - running,
            client_tags or {},
            rack_id,
            task_lags={task: _lag(end, sums.get(task, 0)) for task, end in end_offset_sums.items()},
            tasks_by_consumer={
                client: frozenset(tasks) for client, tasks in offset_sums_by_client.items()
            },
        )


def _lag(end: int, offset: int) -> int:
    if offset in (LATEST_OFFSET, UNKNOWN_OFFSET_SUM):
        return offset
    # Beyond the end the state cannot be of this changelog: all of it has to be read again.
    return end if offset > end else end - offset


@dataclass(frozen=True, slots=True)
class ApplicationState:
    """Everything an assignor decides by.

    Attributes:
        all_tasks: The tasks to assign by id, ascending.
        assignment_configs: The configs of the assignment.
        states: The processes by id, ascending.
        now_ms: When the rebalance began, in ms since 1970: assignors are pure and have no clock.
    """

    all_tasks: Mapping[TaskId, TaskInfo]
    assignment_configs: AssignmentConfigs
    states: Mapping[ProcessId, KafkaStreamsState]
    now_ms: int = 0

    @classmethod
    def of(
        cls,
        tasks: Iterable[TaskInfo],
        processes: Iterable[KafkaStreamsState],
        configs: AssignmentConfigs | None = None,
        *,
        now_ms: int = 0,
    ) -> "ApplicationState":
        """Make a state from tasks and processes in any order.

        Raises:
            ValueError: Two tasks or two processes have the same id.
        """
        infos, states = list(tasks), list(processes)
        by_task = {info.id: info for info in sorted(infos, key=lambda info: info.id)}
        by_process = {
            state.process_id: state for state in sorted(states, key=lambda state: state.process_id)
        }
        if len(by_task) < len(infos):
            raise ValueError(f"a task is there twice: {_twice([info.id for info in infos])}")
        if len(by_process) < len(states):
            doubled = _twice([state.process_id for state in states])
            raise ValueError(f"a process is there twice: {doubled}")
        return cls(by_task, configs or AssignmentConfigs(), by_process, now_ms)

    def kafka_streams_states(
        self, compute_task_lags: bool = False
    ) -> Mapping[ProcessId, KafkaStreamsState]:
        """Return the processes by id, ascending.

        Args:
            compute_task_lags: Whether lags are needed. They are not computed here: a process has
                them or not.

        Raises:
            TaskAssignmentException: Lags are needed and a process has none.
        """
        if compute_task_lags:
            for process, state in self.states.items():
                if state.task_lags is None:
                    raise TaskAssignmentException(f"there are no task lags of process {process}")
        return self.states


def _twice(names: list[TaskId] | list[ProcessId]) -> str:
    return next(str(name) for name in names if names.count(name) > 1)  # type: ignore[arg-type]
