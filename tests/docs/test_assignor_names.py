"""The tables of docs/design/kip-924.md: every name is there, and leads to what is here."""

import builtins
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import kshare.assignment

DOCS = Path(__file__).parents[2] / "docs" / "design" / "kip-924.md"

# The public names of the accepted text, as it has them: classes, and what they have.
KIP = {
    "StreamsConfig": (
        "TASK_ASSIGNOR_CLASS_CONFIG TASK_ASSIGNOR_CLASS_DOC APPLICATION_SERVER_CONFIG "
        "InternalConfig.INTERNAL_TASK_ASSIGNOR_CLASS clientTagPrefix"
    ),
    "TaskAssignor": "assign onAssignmentComputed TaskAssignment AssignmentError",
    "Configurable": "configure",
    "TaskAssignor.TaskAssignment": "assignment",
    "TaskAssignor.AssignmentError": (
        "NONE ACTIVE_TASK_ASSIGNED_MULTIPLE_TIMES INVALID_STANDBY_TASK "
        "ACTIVE_AND_STANDBY_TASK_ASSIGNED_TO_SAME_KAFKASTREAMS UNKNOWN_PROCESS_ID UNKNOWN_TASK_ID"
    ),
    "KafkaStreamsAssignment": (
        "of withFollowupRebalance processId assignment followupRebalanceDeadline AssignedTask"
    ),
    "KafkaStreamsAssignment.AssignedTask": "id type Type",
    "KafkaStreamsAssignment.AssignedTask.Type": "ACTIVE STANDBY",
    "ProcessId": "id",
    "Task": "LATEST_OFFSET",
    "KafkaStreamsState": (
        "processId numProcessingThreads consumerClientIds previousActiveTasks previousStandbyTasks "
        "lagFor prevTasksByLag statefulTasksToLagSums hostInfo clientTags rackId"
    ),
    "ApplicationState": "kafkaStreamsStates assignmentConfigs allTasks",
    "TaskInfo": (
        "id isStateful stateStoreNames inputTopicPartitions changelogTopicPartitions "
        "partitionToRackIds"
    ),
    "TaskAssignmentUtils": (
        "defaultStandbyTaskAssignment optimizeRackAwareActiveTasks optimizeRackAwareStandbyTasks "
        "identityAssignment"
    ),
    "AssignmentConfigs": (
        "acceptableRecoveryLag maxWarmupReplicas numStandbyReplicas probingRebalanceIntervalMs "
        "rackAwareAssignmentTags trafficCost nonOverlapCost"
    ),
}
ALONE = (
    "task.assignor.class TaskAssignor KafkaStreamsAssignment ProcessId ProcessID TaskId TaskInfo "
    "TopicPartition HostInfo KafkaStreamsState ApplicationState AssignmentConfigs GroupAssignment "
    "GroupSubscription ConsumerPartitionAssignor HighAvailabilityTaskAssignor StickyTaskAssignor "
    "ClientState StreamsPartitionAssignor RackAwareTaskAssignor StreamThread StreamsException "
    "StreamsUncaughtExceptionHandler TaskAssignmentException UnsupportedOperationException"
)


def rows() -> Iterator[tuple[list[str], list[str]]]:
    """The names of each row, on both sides, none of them shortened."""
    section = DOCS.read_text().partition("\n## Names\n")[2].partition("\n## ")[0]
    for line in section.splitlines():
        if line.startswith("| ") and not line.startswith("| KIP-924 |"):
            theirs, here = line.strip("| ").split(" | ")
            yield in_full(theirs), in_full(here)


def in_full(cell: str) -> list[str]:
    names: list[str] = []
    of = ""
    for name in re.findall(r"`([^`]+)`", cell):
        names.append(of + name if name.startswith(".") else name)
        owner, _, last = names[-1].partition("(")[0].rpartition(".")
        # A class may have the names that come next; a method or a constant may not.
        if not name.startswith("."):
            of = f"{owner}.{last}".lstrip(".") if re.fullmatch("[A-Z]+[a-z]+.*", last) else owner
    return names


def found(name: str) -> Any:
    """What a name of the right column is. Its parameters, if any are named, are looked at, too."""
    path, parenthesis, parameters = name.rstrip(")").partition("(")
    if path.startswith("kshare."):
        try:
            return import_module(path)
        except ModuleNotFoundError:
            module, _, attribute = path.rpartition(".")
            return getattr(import_module(module), attribute)
    thing: Any = builtins if hasattr(builtins, path) else kshare.assignment
    for part in path.split("."):
        thing = getattr(thing, part)
    if parenthesis:
        known = [one for one in inspect.signature(thing).parameters if one != "self"]
        wanted = parameters.split(", ")
        if known[: len(wanted)] != wanted:
            raise AttributeError(f"{path} takes {known}, not {wanted}")
    return thing


@pytest.mark.parametrize("name", [name for _, here in rows() for name in here])
def test_each_name_of_ours_is_there(name: str) -> None:
    found(name)


@pytest.mark.parametrize(
    "name",
    [
        "TaskAssignor.assigns",
        "TaskInfo.racks",
        "kshare.errors.NoError",
        "kshare.query.planner.nowhere.Placement",
        "KafkaStreamsState.lag_for(consumer)",
        "AssignmentError.OVERLAPPING_CLIENT",
    ],
)
def test_a_wrong_name_is_seen(name: str) -> None:
    with pytest.raises((AttributeError, ImportError)):
        found(name)


def test_each_name_of_the_proposal_is_in_the_table() -> None:
    theirs = {name for names, _ in rows() for name in names}
    wanted = {f"{of}.{name}" for of, names in KIP.items() for name in names.split()}
    assert wanted | set(ALONE.split()) <= theirs


def test_a_row_says_what_is_here_or_why_nothing_is() -> None:
    section = DOCS.read_text().partition("\n## Names\n")[2].partition("\n## ")[0]
    cells = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:3] == "| `"]
    assert len(cells) > 30
    for theirs, here in cells:
        assert in_full(theirs)
        assert in_full(here) or here.startswith("not here, because "), theirs


def test_what_is_public_is_in_a_table() -> None:
    here = {name.partition("(")[0].partition(".")[0] for _, names in rows() for name in names}
    ranges = {"RANGE_ASSIGNORS", "adaptive", "lag_weighted", "load_range_assignor", "round_robin"}
    assert set(kshare.assignment.__all__) - ranges <= here


def test_marks_of_lags_are_public() -> None:
    assert (kshare.assignment.LATEST_OFFSET, kshare.assignment.UNKNOWN_OFFSET_SUM) == (-2, -3)
