"""KIP-924's TaskAssignmentUtils: helpers for authors of assignors, and the validation.

Guarantees: no argument is changed; every result has an entry for each process of the application.
Without the configs or the racks that it needs, an optimisation for racks changes nothing.
Cost: linear in tasks and processes; for the optimisations see
:mod:`~kshare.assignment.racks.costs`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kshare.assignment.interface.application import ApplicationState, KafkaStreamsState
from kshare.assignment.interface.assignor import (
    Assignment,
    AssignmentError,
    GroupAssignment,
    GroupSubscription,
    KafkaStreamsAssignment,
    Subscription,
    TaskAssignment,
)
from kshare.assignment.interface.task_id import ProcessId, TaskId
from kshare.assignment.placement.default_standbys import assign_standbys
from kshare.assignment.racks.costs import RackCosts, configured_costs, optimize_active
from kshare.assignment.racks.standby import keeps_tags, optimize_standby
from kshare.core.progress import TopicPartition

__all__ = [
    "RackAwareOptimizationParams",
    "default_standby_task_assignment",
    "group_assignment",
    "group_subscription",
    "identity_assignment",
    "optimize_rack_aware_active_tasks",
    "optimize_rack_aware_standby_tasks",
    "validate_task_assignment",
]


@dataclass(frozen=True, slots=True)
class RackAwareOptimizationParams:
    """The costs to optimise, and their weights.

    Attributes:
        application_state: Tasks, processes and configs.
        tasks_to_optimize: The tasks that may move; None: all of the kind that is optimised.
        traffic_cost_override: Replaces the configured cost of traffic. As in Kafka, both costs
            have to be configured all the same.
        non_overlap_cost_override: Replaces the configured cost of a move, on the same condition.
        keep_client_tags: Whether the copies of a task keep their variety of tags. Kafka 4.1.1 means
            to ensure that but compares a process with itself, so the default is False.
    """

    application_state: ApplicationState
    tasks_to_optimize: frozenset[TaskId] | None = None
    traffic_cost_override: int | None = None
    non_overlap_cost_override: int | None = None
    keep_client_tags: bool = False

    @classmethod
    def of(cls, application_state: ApplicationState) -> "RackAwareOptimizationParams":
        """Optimise all tasks at the configured costs."""
        return cls(application_state)

    def for_stateful_tasks(self) -> "RackAwareOptimizationParams":
        """Return the same parameters for tasks with a state store, logged or not."""
        return self.for_tasks(
            task for task, info in self.application_state.all_tasks.items() if info.is_stateful
        )

    def for_stateless_tasks(self) -> "RackAwareOptimizationParams":
        """Return the same parameters for tasks without a state store."""
        return self.for_tasks(
            task for task, info in self.application_state.all_tasks.items() if not info.is_stateful
        )

    def for_tasks(self, tasks: Iterable[TaskId]) -> "RackAwareOptimizationParams":
        """Return the same parameters for these tasks."""
        return replace(self, tasks_to_optimize=frozenset(tasks))

    def with_traffic_cost_override(self, cost: int) -> "RackAwareOptimizationParams":
        """Return the same parameters with this cost of a partition read from another rack."""
        return replace(self, traffic_cost_override=cost)

    def with_non_overlap_cost_override(self, cost: int) -> "RackAwareOptimizationParams":
        """Return the same parameters with this cost of a task that moves."""
        return replace(self, non_overlap_cost_override=cost)


def identity_assignment(
    application_state: ApplicationState,
) -> dict[ProcessId, KafkaStreamsAssignment]:
    """Return the previous assignment, also of tasks that have left the topology.

    Raises:
        ValueError: A process had a task both as active and as standby.
    """
    return {
        process: KafkaStreamsAssignment(
            process, state.previous_active_tasks, state.previous_standby_tasks
        )
        for process, state in application_state.kafka_streams_states().items()
    }


def default_standby_task_assignment(
    application_state: ApplicationState,
    assignments: Mapping[ProcessId, KafkaStreamsAssignment],
) -> dict[ProcessId, KafkaStreamsAssignment]:
    """Add standbys: on the least loaded processes, or by client tags if those are configured.

    Args:
        application_state: Tasks, processes, the number of standbys and the tags.
        assignments: The tasks of each process. Previous standbys play no part.

    Raises:
        ValueError: An assignment is under another process's id.
    """
    placed = _for_all(application_state, assignments)
    standby = assign_standbys(
        application_state, _active(placed), _standby(placed), in_hash_order=True
    )
    return _with(placed, standby=standby)


def optimize_rack_aware_active_tasks(
    params: RackAwareOptimizationParams | ApplicationState,
    assignments: Mapping[ProcessId, KafkaStreamsAssignment],
    tasks: Iterable[TaskId] | None = None,
) -> dict[ProcessId, KafkaStreamsAssignment]:
    """Move active tasks to where their inputs and changelogs are.

    Call this before standbys are placed. Each process keeps its number of tasks. Among the cheapest
    placements, one is chosen that leaves standbys where they are, unless the tasks are too many for
    that; with ``balance_subtopology`` less traffic comes first. If an active task still comes to a
    process that has its standby, the two change places; in Kafka that standby is lost.

    Args:
        params: What to optimise, and at which costs; or the application state, as in the KIP.
        assignments: The tasks of each process.
        tasks: The tasks that may move; None: those of ``params``, or all.

    Raises:
        ValueError: A task to optimise is active on no process, on two, or not in the topology.
        ModuleNotFoundError: The extra ``kshare[racks]`` is not installed.
    """
    params = _params(params, tasks)
    placed = _for_all(params.application_state, assignments)
    active = _active(placed)
    movable = _movable(params, active)
    costs = _costs(params, inputs=True) if movable else None
    if costs is None:
        return placed
    strategy = params.application_state.assignment_configs.rack_aware_assignment_strategy
    # Of placements of the same cost, one that leaves standbys where they are.
    taken = {(task, process): 1 for process, one in placed.items() for task in one.standby}
    after = optimize_active(active, movable, costs, strategy, taken)
    owner = {task: process for process, held in active.items() for task in held}
    standby = {process: set(one.standby) for process, one in placed.items()}
    for process, held in after.items():
        for task in sorted(held & standby[process]):
            standby[process].remove(task)
            standby[owner[task]].add(task)
    return _with(placed, active=after, standby=standby)


def optimize_rack_aware_standby_tasks(
    params: RackAwareOptimizationParams | ApplicationState,
    assignments: Mapping[ProcessId, KafkaStreamsAssignment],
    tasks: Iterable[TaskId] | None = None,
) -> dict[ProcessId, KafkaStreamsAssignment]:
    """Swap standby tasks between processes to bring them to the racks of their changelogs.

    Args:
        params: What to optimise, and at which costs; or the application state, as in the KIP.
        assignments: The tasks of each process.
        tasks: The tasks whose standbys may move; None: those of ``params``, or all.

    Raises:
        ValueError: A standby is of a task that is not in the topology.
        ModuleNotFoundError: The extra ``kshare[racks]`` is not installed.
    """
    params = _params(params, tasks)
    placed = _for_all(params.application_state, assignments)
    standby = _standby(placed)
    movable = _movable(params, standby)
    costs = _costs(params, inputs=False) if movable else None
    if costs is None:
        return placed
    state = params.application_state
    after = optimize_standby(
        _active(placed),
        standby,
        movable,
        costs,
        state.assignment_configs.rack_aware_assignment_strategy,
        keeps_tags(state) if params.keep_client_tags else None,
    )
    return _with(placed, standby=after)


def _params(
    given: RackAwareOptimizationParams | ApplicationState, tasks: Iterable[TaskId] | None
) -> RackAwareOptimizationParams:
    params = RackAwareOptimizationParams.of(given) if isinstance(given, ApplicationState) else given
    return params if tasks is None else params.for_tasks(tasks)


def _movable(
    params: RackAwareOptimizationParams, placed: Mapping[ProcessId, Collection[TaskId]]
) -> frozenset[TaskId]:
    if params.tasks_to_optimize is not None:
        return params.tasks_to_optimize
    return frozenset(task for held in placed.values() for task in held)


def _costs(params: RackAwareOptimizationParams, *, inputs: bool) -> RackCosts | None:
    return configured_costs(
        params.application_state,
        inputs=inputs,
        traffic_cost=params.traffic_cost_override,
        non_overlap_cost=params.non_overlap_cost_override,
    )


def _for_all(
    state: ApplicationState, assignments: Mapping[ProcessId, KafkaStreamsAssignment]
) -> dict[ProcessId, KafkaStreamsAssignment]:
    for process, one in assignments.items():
        if one.process_id != process:
            raise ValueError(f"the assignment of process {one.process_id} is under {process}")
    missing = {
        process: KafkaStreamsAssignment(process)
        for process in state.states
        if process not in assignments
    }
    return {**assignments, **missing}


def _active(
    placed: Mapping[ProcessId, KafkaStreamsAssignment],
) -> dict[ProcessId, frozenset[TaskId]]:
    return {process: one.active for process, one in placed.items()}


def _standby(
    placed: Mapping[ProcessId, KafkaStreamsAssignment],
) -> dict[ProcessId, frozenset[TaskId]]:
    return {process: one.standby for process, one in placed.items()}


def _with(
    placed: Mapping[ProcessId, KafkaStreamsAssignment],
    *,
    standby: Mapping[ProcessId, Collection[TaskId]],
    active: Mapping[ProcessId, Collection[TaskId]] | None = None,
) -> dict[ProcessId, KafkaStreamsAssignment]:
    return {
        process: replace(
            one,
            active=one.active if active is None else frozenset(active[process]),
            standby=frozenset(standby.get(process, one.standby)),
        )
        for process, one in placed.items()
    }


def validate_task_assignment(
    application_state: ApplicationState, task_assignment: TaskAssignment
) -> AssignmentError:
    """Return the first error in an answer, in Kafka's order.

    Entries come first, one by one, with their tasks ascending (UNKNOWN_TASK_ID and
    ACTIVE_TASK_ASSIGNED_MULTIPLE_TIMES), then INVALID_STANDBY_TASK, MISSING_PROCESS_ID and
    UNKNOWN_PROCESS_ID. An unassigned task is no error, nor are two entries for one process. A task
    that is active in one of these and standby in the other escapes Kafka; here it is
    ACTIVE_AND_STANDBY_TASK_ASSIGNED_TO_SAME_KAFKASTREAMS, after all other errors.
    """
    entries = task_assignment.assignment
    for fault in (
        _fault_in_tasks(application_state, entries),
        _fault_in_processes(application_state, entries),
    ):
        if fault is not AssignmentError.NONE:
            return fault
    copies = {(entry.process_id, task) for entry in entries for task in entry.active}
    if any((entry.process_id, task) in copies for entry in entries for task in entry.standby):
        return AssignmentError.ACTIVE_AND_STANDBY_TASK_ASSIGNED_TO_SAME_KAFKASTREAMS
    return AssignmentError.NONE


def _fault_in_tasks(
    state: ApplicationState, entries: Sequence[KafkaStreamsAssignment]
) -> AssignmentError:
    seen: set[TaskId] = set()
    for entry in entries:
        for task in sorted(entry.active | entry.standby):
            if task not in state.all_tasks:
                return AssignmentError.UNKNOWN_TASK_ID
            if task in entry.active:
                if task in seen:
                    return AssignmentError.ACTIVE_TASK_ASSIGNED_MULTIPLE_TIMES
                seen.add(task)
    standby = {task for entry in entries for task in entry.standby}
    if not all(state.all_tasks[task].is_stateful for task in standby):
        return AssignmentError.INVALID_STANDBY_TASK
    return AssignmentError.NONE


def _fault_in_processes(
    state: ApplicationState, entries: Sequence[KafkaStreamsAssignment]
) -> AssignmentError:
    processes = {entry.process_id for entry in entries}
    if not processes.issuperset(state.states):
        return AssignmentError.MISSING_PROCESS_ID
    if not processes <= state.states.keys():
        return AssignmentError.UNKNOWN_PROCESS_ID
    return AssignmentError.NONE


def group_subscription(application_state: ApplicationState) -> GroupSubscription:
    """Return what each member of the group brought to the rebalance.

    A process's previous active tasks are dealt to its members in turn. A process without members
    counts as one member with the process's name.
    """
    inputs = _inputs(application_state)
    topics = tuple(sorted({one.topic for partitions in inputs.values() for one in partitions}))
    subscriptions: dict[str, Subscription] = {}
    for one in application_state.states.values():
        members = _members(one)
        owned = sorted(one.previous_active_tasks & inputs.keys())
        for i, member in enumerate(members):
            subscriptions[member] = Subscription(
                topics, _partitions(owned[i :: len(members)], inputs), one.rack_id
            )
    return GroupSubscription(subscriptions)


def group_assignment(
    application_state: ApplicationState,
    task_assignment: TaskAssignment,
    error: AssignmentError,
) -> GroupAssignment:
    """Return what each member of the group would get by an answer.

    The tasks of a process are dealt to its members in turn.

    Args:
        application_state: Tasks, and processes with their members.
        task_assignment: An assignor's answer.
        error: The result of :func:`validate_task_assignment` for it.

    Returns:
        An empty assignment if the answer has an unknown process or task, whichever error of it is
        the first.
    """
    if error in (AssignmentError.UNKNOWN_PROCESS_ID, AssignmentError.UNKNOWN_TASK_ID):
        return GroupAssignment()
    inputs, processes = _inputs(application_state), application_state.states.keys()
    for entry in task_assignment.assignment:  # validation ends at an earlier error
        if entry.process_id not in processes or not entry.active | entry.standby <= inputs.keys():
            return GroupAssignment()
    by_process: dict[ProcessId, list[KafkaStreamsAssignment]] = {}
    for entry in task_assignment.assignment:  # an invalid one may have a task in two roles
        by_process.setdefault(entry.process_id, []).append(entry)
    assignments: dict[str, Assignment] = {}
    for process, one in application_state.states.items():
        entries = by_process.get(process, ())
        active = sorted(task for entry in entries for task in entry.active)
        standby = sorted(task for entry in entries for task in entry.standby)
        members = _members(one)
        for i, member in enumerate(members):
            mine = active[i :: len(members)]
            assignments[member] = Assignment(
                _partitions(mine, inputs), tuple(mine), tuple(standby[i :: len(members)])
            )
    return GroupAssignment(assignments)


def _inputs(state: ApplicationState) -> dict[TaskId, tuple[TopicPartition, ...]]:
    return {task: info.input_topic_partitions for task, info in state.all_tasks.items()}


def _members(state: KafkaStreamsState) -> tuple[str, ...]:
    return tuple(state.consumer_client_ids) or (str(state.process_id),)


def _partitions(
    tasks: Iterable[TaskId], inputs: Mapping[TaskId, tuple[TopicPartition, ...]]
) -> tuple[TopicPartition, ...]:
    return tuple(sorted({one for task in tasks for one in inputs[task]}))
