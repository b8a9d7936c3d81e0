"""Cases: situations as JSON, which ``kshare assign`` reads and answers.

Guarantees: the answer does not depend on the order of tasks and processes in a case. A case that
cannot be read raises :class:`CaseError`; where Kafka raises, the answer says why.
Cost: linear in the case, apart from the assignor.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from kshare.assignment.interface.application import (
    ApplicationState,
    AssignmentConfigs,
    KafkaStreamsState,
    TaskInfo,
    TaskTopicPartition,
)
from kshare.assignment.interface.assignor import (
    AssignmentError,
    KafkaStreamsAssignment,
    TaskAssignment,
    TaskAssignor,
)
from kshare.assignment.interface.task_id import ProcessId, TaskId
from kshare.assignment.loading import (
    DEFAULT_TASK_ASSIGNOR,
    TASK_ASSIGNORS,
    answer_fault,
    load_task_assignor,
)
from kshare.assignment.utils import (
    RackAwareOptimizationParams,
    default_standby_task_assignment,
    identity_assignment,
    optimize_rack_aware_active_tasks,
    optimize_rack_aware_standby_tasks,
    validate_task_assignment,
)
from kshare.core.progress import TopicPartition

__all__ = ["OPERATIONS", "Case", "CaseError", "Outcome", "run_case"]

OPERATIONS: Final = (
    "assign",
    "optimize_active",
    "optimize_standby",
    "default_standby",
    "identity",
    "validate",
    "config",
    "lags",
)
"""The operations that a case can ask for."""


_T = TypeVar("_T")


class CaseError(ValueError):
    """A case that cannot be read; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Case:
    """A situation, and what to do with it.

    Attributes:
        id: Its name, any JSON value; the answer has it, too.
        operation: One of :data:`OPERATIONS`.
        fields: The whole case.
        assignor: Replaces the assignor that the case names.
    """

    id: Any
    operation: str
    fields: Mapping[str, Any]
    assignor: TaskAssignor | None = None

    @classmethod
    def read(cls, fields: Any, assignor: TaskAssignor | None = None) -> "Case":
        """Read a case from parsed JSON.

        Raises:
            CaseError: It is no object, or has no known operation.
        """
        if not isinstance(fields, Mapping):
            raise CaseError("a case is an object")
        operation = fields.get("op", "assign")
        if operation not in OPERATIONS:
            raise CaseError(f"no operation {operation!r}; there are: {', '.join(OPERATIONS)}")
        return cls(fields.get("id"), operation, fields, assignor)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a case.

    Attributes:
        answer: The answer, as JSON.
        state: The application state; None if the case has none.
        before: The previous assignment of each process.
        after: The new assignment; None if there is none.
    """

    answer: dict[str, Any]
    state: ApplicationState | None = None
    before: Mapping[ProcessId, KafkaStreamsAssignment] = field(default_factory=dict)
    after: TaskAssignment | None = None


def run_case(case: Case) -> Outcome:
    """Answer a case.

    Raises:
        CaseError: A field is missing or makes no sense.
    """
    if case.operation == "lags":
        return Outcome({"id": case.id, **_readable(_lags, case.fields)})
    try:
        configs = _readable(_configs, case.fields)
    except _InvalidConfigError as error:
        fault = f"ConfigException: {error}"
        if case.operation == "config":
            return Outcome({"id": case.id, "result": "error", "error": fault})
        return _raises(case, fault)
    if case.operation == "config":
        return Outcome({"id": case.id, "result": "ok"})
    state = _readable(lambda fields: _state(fields, configs), case.fields)
    if case.operation == "validate":
        return _validated(case, state)
    return _placed(case, state)


def _raises(case: Case, why: object) -> Outcome:
    if case.operation == "validate":
        return Outcome({"id": case.id, "result": "raises", "raises": str(why)})
    return Outcome({"id": case.id, "raises": str(why)})


# -- reading -------------------------------------------------------------------------------------


class _InvalidConfigError(Exception):
    """A config that Kafka refuses; the case itself can be read."""


def _readable(read: Callable[[Mapping[str, Any]], _T], fields: Mapping[str, Any]) -> _T:
    """Read; raise any error as a fault of the case."""
    try:
        return read(fields)
    except CaseError:
        raise
    except KeyError as error:
        raise CaseError(f"there is no {error.args[0]!r}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise CaseError(str(error)) from error


def _configs(fields: Mapping[str, Any]) -> AssignmentConfigs:
    values = dict(fields.get("configs", {}))
    known = AssignmentConfigs.__dataclass_fields__
    if unknown := sorted(values.keys() - known.keys()):
        raise CaseError(f"no config {unknown[0]!r}; there are: {', '.join(known)}")
    for name, value in values.items():
        is_text = name == "rack_aware_assignment_strategy"
        if name == "rack_aware_assignment_tags":
            values[name] = tuple(map(str, _list(value, name)))
        elif value is None and name.endswith("_cost"):
            continue
        elif isinstance(value, bool) or not isinstance(value, str if is_text else int):
            wanted = "a text" if is_text else "a whole number"
            raise CaseError(f"config {name} is {value!r}; wanted {wanted}")
    try:
        return AssignmentConfigs(**values)
    except ValueError as error:
        raise _InvalidConfigError(str(error)) from error


def _state(fields: Mapping[str, Any], configs: AssignmentConfigs) -> ApplicationState:
    racks = fields.get("partition_racks", {})
    tasks = [_task(one, racks) for one in _list(fields["tasks"], "tasks")]
    ends = {
        info.id: _whole(one.get("end_offset", 0), "end_offset")
        for info, one in zip(tasks, fields["tasks"], strict=True)
        if info.has_changelog
    }
    processes = [_process(one, ends) for one in _list(fields["processes"], "processes")]
    return ApplicationState.of(tasks, processes, configs)


def _task(fields: Mapping[str, Any], racks: Mapping[str, Any]) -> TaskInfo:
    inputs = _list(fields["inputs"], "inputs")
    changelogs = _list(fields.get("changelogs") or [], "changelogs")
    partitions = [
        TaskTopicPartition(
            _topic_partition(name),
            name in inputs,
            name in changelogs,
            None if racks.get(name) is None else tuple(_list(racks[name], name)),
        )
        for name in dict.fromkeys([*inputs, *changelogs])
    ]
    is_stateful = bool(fields.get("stateful", bool(changelogs)))
    return TaskInfo(TaskId.parse(fields["id"]), is_stateful, tuple(partitions))


def _process(fields: Mapping[str, Any], ends: Mapping[TaskId, int]) -> KafkaStreamsState:
    lags = {
        TaskId.parse(task): _whole(lag, "lag") for task, lag in (fields.get("lags") or {}).items()
    }
    return KafkaStreamsState(
        ProcessId(fields["id"]),
        _whole(fields.get("threads", 1), "threads"),
        tuple(sorted(_list(fields.get("client_ids") or [], "client_ids"))),
        _tasks(fields.get("prev_active", ())),
        _tasks(fields.get("prev_standby", ())),
        dict(fields.get("tags") or {}),
        fields.get("rack"),
        task_lags={task: lags.get(task, end) for task, end in ends.items()},
    )


def _tasks(names: Iterable[str]) -> frozenset[TaskId]:
    return frozenset(TaskId.parse(name) for name in _list(names, "tasks"))


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise CaseError(f"{name} is {value!r}; wanted a list")
    return list(value)


def _whole(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise CaseError(f"{name} is {value!r}; wanted a whole number")
    return value


def _topic_partition(name: str) -> TopicPartition:
    topic, _, number = name.rpartition("-")
    if not topic or not number.isdecimal():
        raise CaseError(f"not a partition: {name!r}; wanted topic-0")
    return TopicPartition(topic, int(number))


def _entry(process: str, fields: Mapping[str, Any]) -> KafkaStreamsAssignment | str:
    """The assignment of a process; the reason if there cannot be such a one."""
    id_ = ProcessId(process)
    active, standby = _tasks(fields.get("active", ())), _tasks(fields.get("standby", ()))
    try:
        return KafkaStreamsAssignment(id_, active, standby)
    except ValueError as error:
        return str(error)


# -- answering -----------------------------------------------------------------------------------


def _lags(fields: Mapping[str, Any]) -> dict[str, Any]:
    state = KafkaStreamsState.from_offset_sums(
        ProcessId(str(fields.get("process", "0"))),
        {TaskId.parse(task): _whole(end, task) for task, end in fields["end_offset_sums"].items()},
        {
            client: {TaskId.parse(task): _whole(at, task) for task, at in sums.items()}
            for client, sums in fields["offset_sums_by_client"].items()
        },
    )
    lags = state.stateful_tasks_to_lag_sums()
    return {
        "lags": {str(task): lags[task] for task in sorted(lags)},
        "previous_active_tasks": _names(state.previous_active_tasks),
        "previous_standby_tasks": _names(state.previous_standby_tasks),
        "prev_tasks_by_lag": {
            client: [str(task) for task in state.prev_tasks_by_lag(client)]
            for client in sorted(state.tasks_by_consumer)
        },
    }


def _validated(case: Case, state: ApplicationState) -> Outcome:
    entries = _readable(
        lambda fields: [_entry(one["process"], one) for one in fields["assignment"]], case.fields
    )
    good = [entry for entry in entries if not isinstance(entry, str)]
    if len(good) < len(entries):
        return _raises(case, next(entry for entry in entries if isinstance(entry, str)))
    result = validate_task_assignment(state, TaskAssignment(tuple(good)))
    return Outcome({"id": case.id, "result": result.value})


def _placed(case: Case, state: ApplicationState) -> Outcome:
    before: dict[ProcessId, KafkaStreamsAssignment]
    try:
        if case.operation == "assign":
            before = {}
            with suppress(ValueError):
                before = identity_assignment(state)
            after = _assign(case, state)
        elif case.operation == "identity":
            before = identity_assignment(state)
            after = TaskAssignment(tuple(before.values()))
        else:
            started = _readable(_start, case.fields)
            good = {at: one for at, one in started.items() if not isinstance(one, str)}
            if len(good) < len(started):
                return _raises(case, next(one for one in started.values() if isinstance(one, str)))
            before = good
            after = TaskAssignment(tuple(_improve(case, state, good).values()))
    except CaseError:
        raise
    except Exception as error:  # an assignor may be anybody's
        is_ours = case.assignor is None and isinstance(error, ValueError)
        return _raises(case, error if is_ours else f"{type(error).__name__}: {error}")
    assignment = {
        str(entry.process_id): {"active": _names(entry.active), "standby": _names(entry.standby)}
        for entry in after.by_process.values()
    }
    answer = {"id": case.id, "assignment": assignment, "followup": after.wants_followup}
    return Outcome(answer, state, before, after)


def _assign(case: Case, state: ApplicationState) -> TaskAssignment:
    """The assignor's answer, if it is valid.

    Raises:
        CaseError: The case names no built-in assignor: data imports no code.
        ValueError: The answer is not valid.
    """
    assignor = case.assignor
    if assignor is None:
        name = case.fields.get("assignor", DEFAULT_TASK_ASSIGNOR)
        if name not in TASK_ASSIGNORS:
            raise CaseError(f"no assignor {name!r} is built in; there are: {_listed()}")
        if name == "StickyTaskAssignor" and case.fields.get("must_preserve_active"):
            name = "FallbackPriorTaskAssignor"
        assignor = load_task_assignor(name)
    answer = assignor.assign(state)
    if not isinstance(answer, TaskAssignment):
        raise TypeError(f"the assignor answers {type(answer).__name__}; wanted TaskAssignment")
    error, what = answer_fault(state, answer)
    if error is not AssignmentError.NONE:
        raise ValueError(f"the answer is not valid: {what}")
    return answer


def _listed() -> str:
    return ", ".join(TASK_ASSIGNORS)


def _start(fields: Mapping[str, Any]) -> dict[ProcessId, KafkaStreamsAssignment | str]:
    return {ProcessId(process): _entry(process, held) for process, held in fields["start"].items()}


def _improve(
    case: Case, state: ApplicationState, start: dict[ProcessId, KafkaStreamsAssignment]
) -> dict[ProcessId, KafkaStreamsAssignment]:
    if case.operation == "default_standby":
        return default_standby_task_assignment(state, start)
    params = _readable(lambda fields: _params(fields, state), case.fields)
    if case.operation == "optimize_active":
        return optimize_rack_aware_active_tasks(params, start)
    return optimize_rack_aware_standby_tasks(params, start)


def _params(fields: Mapping[str, Any], state: ApplicationState) -> RackAwareOptimizationParams:
    given = fields.get("optimize_params") or {}
    params = RackAwareOptimizationParams(
        state,
        traffic_cost_override=given.get("traffic_cost"),
        non_overlap_cost_override=given.get("non_overlap_cost"),
    )
    match given.get("tasks"):
        case None:
            return params
        case "stateful":
            return params.for_stateful_tasks()
        case "stateless":
            return params.for_stateless_tasks()
        case names:
            return params.for_tasks(_tasks(names))


def _names(tasks: Iterable[TaskId]) -> list[str]:
    return [str(task) for task in sorted(tasks)]
