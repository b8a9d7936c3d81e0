"""Task assignors: KIP-924 in Python. The range assignors of :mod:`kshare.ranges` are here, too.

Guarantees: a task assignor sees one frozen ``ApplicationState`` and nothing else. Equal input gets
equal answers, so a batch that is planned again is the same.
Cost: a name of KIP-924 is imported at its first use, so planners that need none start without it.
"""

from typing import TYPE_CHECKING, Final

from kshare.lazy import names_of
from kshare.ranges import RANGE_ASSIGNORS, adaptive, lag_weighted, load_range_assignor, round_robin

if TYPE_CHECKING:
    from kshare.assignment.high_availability import HighAvailabilityTaskAssignor
    from kshare.assignment.interface.application import (
        LATEST_OFFSET,
        UNKNOWN_OFFSET_SUM,
        ApplicationState,
        AssignmentConfigs,
        HostInfo,
        KafkaStreamsState,
        TaskInfo,
        TaskTopicPartition,
    )
    from kshare.assignment.interface.assignor import (
        AssignedTask,
        Assignment,
        AssignmentError,
        GroupAssignment,
        GroupSubscription,
        KafkaStreamsAssignment,
        Subscription,
        TaskAssignment,
        TaskAssignor,
        TaskType,
    )
    from kshare.assignment.interface.task_id import ProcessId, TaskId
    from kshare.assignment.loading import TASK_ASSIGNORS, load_task_assignor
    from kshare.assignment.sticky import FallbackPriorTaskAssignor, StickyTaskAssignor
    from kshare.assignment.utils import (
        RackAwareOptimizationParams,
        default_standby_task_assignment,
        group_assignment,
        group_subscription,
        identity_assignment,
        optimize_rack_aware_active_tasks,
        optimize_rack_aware_standby_tasks,
        validate_task_assignment,
    )

__all__ = [
    "LATEST_OFFSET",
    "RANGE_ASSIGNORS",
    "TASK_ASSIGNORS",
    "UNKNOWN_OFFSET_SUM",
    "ApplicationState",
    "AssignedTask",
    "Assignment",
    "AssignmentConfigs",
    "AssignmentError",
    "FallbackPriorTaskAssignor",
    "GroupAssignment",
    "GroupSubscription",
    "HighAvailabilityTaskAssignor",
    "HostInfo",
    "KafkaStreamsAssignment",
    "KafkaStreamsState",
    "ProcessId",
    "RackAwareOptimizationParams",
    "StickyTaskAssignor",
    "Subscription",
    "TaskAssignment",
    "TaskAssignor",
    "TaskId",
    "TaskInfo",
    "TaskTopicPartition",
    "TaskType",
    "adaptive",
    "default_standby_task_assignment",
    "group_assignment",
    "group_subscription",
    "identity_assignment",
    "lag_weighted",
    "load_range_assignor",
    "load_task_assignor",
    "optimize_rack_aware_active_tasks",
    "optimize_rack_aware_standby_tasks",
    "round_robin",
    "validate_task_assignment",
]

_NAMES: Final = {
    "interface.application": (
        "LATEST_OFFSET",
        "UNKNOWN_OFFSET_SUM",
        "ApplicationState",
        "AssignmentConfigs",
        "HostInfo",
        "KafkaStreamsState",
        "TaskInfo",
        "TaskTopicPartition",
    ),
    "interface.assignor": (
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
    ),
    "high_availability": ("HighAvailabilityTaskAssignor",),
    "loading": ("TASK_ASSIGNORS", "load_task_assignor"),
    "sticky": ("FallbackPriorTaskAssignor", "StickyTaskAssignor"),
    "interface.task_id": ("ProcessId", "TaskId"),
    "utils": (
        "RackAwareOptimizationParams",
        "default_standby_task_assignment",
        "group_assignment",
        "group_subscription",
        "identity_assignment",
        "optimize_rack_aware_active_tasks",
        "optimize_rack_aware_standby_tasks",
        "validate_task_assignment",
    ),
}
_MODULES: Final = {
    name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names
}

__getattr__ = names_of(__name__, _MODULES)
