"""Task assignors by name: loaded and configured, and asked for a valid answer.

Guarantees: a name leads to one configured assignor, or to an error that says why not. An assignor
that fails (an exception, an invalid answer) is asked again at once, once. A usable answer has one
entry for each process, and each task is active once. The assignor learns what became of each answer
(in :func:`ask` of those that are asked for again, by :func:`notify` of the last one), and an
exception there changes nothing. No error and no text shows a config's value (of four characters or
more), since it may be a secret.
Cost: an import.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from kshare.assignment.interface.application import ApplicationState
from kshare.assignment.interface.assignor import (
    AssignmentError,
    GroupAssignment,
    GroupSubscription,
    TaskAssignment,
    TaskAssignor,
)
from kshare.assignment.interface.task_id import TaskId
from kshare.assignment.utils import (
    group_assignment,
    group_subscription,
    validate_task_assignment,
)
from kshare.core.dotted_path import find, unknown
from kshare.core.showing import WHOLE, error_text, shown
from kshare.errors import TaskAssignmentException

__all__ = [
    "DEFAULT_TASK_ASSIGNOR",
    "TASK_ASSIGNORS",
    "Answer",
    "Outcome",
    "answer_fault",
    "ask",
    "is_built_in",
    "load_task_assignor",
    "notify",
    "shown_error",
]

DEFAULT_TASK_ASSIGNOR: Final = "HighAvailabilityTaskAssignor"
"""Kafka's default of ``task.assignor.class``."""

_SECRET_CHARACTERS: Final = 4
"""Shorter values are not looked for in texts: they may be part of any word."""

_HERE: Final = "kshare.assignment"

TASK_ASSIGNORS: Final[dict[str, str]] = {
    "HighAvailabilityTaskAssignor": f"{_HERE}.high_availability:HighAvailabilityTaskAssignor",
    "StickyTaskAssignor": f"{_HERE}.sticky:StickyTaskAssignor",
    "FallbackPriorTaskAssignor": f"{_HERE}.sticky:FallbackPriorTaskAssignor",
}
"""The built-in task assignors by Kafka's names, with the dotted paths to import them from."""


def load_task_assignor(
    name: str | type = DEFAULT_TASK_ASSIGNOR, configs: Mapping[str, Any] | None = None
) -> TaskAssignor:
    """Load a task assignor and configure it.

    Args:
        name: A built-in name, also with Kafka's package in front; or the dotted path of a class, of
            an instance, or of a function that returns one: ``package.module.name`` or
            ``package.module:name``; or a class.
        configs: The configs, passed to the assignor's ``configure`` if it has one.

    Raises:
        ValueError: There is no such assignor, or it cannot be made or configured; the text says why
            and names the built-in ones.
    """
    target: Any = name
    if isinstance(name, type):
        name = f"{name.__module__}:{name.__qualname__}"
    else:
        target = find(TASK_ASSIGNORS.get(_short(name), name), "task assignor", TASK_ASSIGNORS)
    try:
        # A class has the method assign, too.
        is_factory = isinstance(target, type) or not _is_assignor(target)
        assignor = target() if is_factory else target
        if not _is_assignor(assignor):
            raise TypeError(f"{type(assignor).__name__} has no method assign")
        if callable(configure := getattr(assignor, "configure", None)):
            configure(dict(configs or {}))
    except Exception as error:
        shown, cause = shown_error(error, configs or {})
        raise unknown(
            name, "task assignor", f"it cannot be made: {shown}", TASK_ASSIGNORS
        ) from cause
    return assignor  # type: ignore[no-any-return]


def is_built_in(name: str) -> bool:
    """True if a name is that of a task assignor of kshare's own."""
    return _short(name) in TASK_ASSIGNORS


def _short(name: str) -> str:
    """A name without Kafka's package."""
    return name.rpartition(".")[2] if name.startswith("org.apache.kafka.") else name


def _is_assignor(target: Any) -> bool:
    return callable(getattr(target, "assign", None))


def shown_error(error: Exception, configs: Mapping[str, Any]) -> tuple[str, Exception | None]:
    """Return the text of an assignor's error, and the error as a cause to raise from.

    If the error shows a config's value, the text is its type alone, and there is no cause.
    """
    texts = "\n".join(_unquoted(text) for text in _texts(error))
    values = {name: _unquoted(_value_text(value)) for name, value in configs.items()}
    found = [n for n, v in values.items() if len(v) >= _SECRET_CHARACTERS and v in texts]
    if not found:
        return shown(error, WHOLE), error
    kind = type(error).__name__
    return f"{kind} (its text holds the value of {', '.join(found)}, and is not shown)", None


def _texts(error: BaseException | None) -> Iterator[str]:
    """The texts that a traceback would show of an error and its causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield from (error_text(error), shown(error, WHOLE), *getattr(error, "__notes__", ()))
        error = error.__cause__ or error.__context__


def _value_text(value: Any) -> str:
    return value if isinstance(value, str) else shown(value, WHOLE)


def _unquoted(text: str) -> str:
    """A text without escapes, however often it was quoted."""
    return text.encode("unicode_escape").decode().replace("\\", "")


_ATTEMPTS: Final = 2


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a task assignor.

    Attributes:
        assignment: The answer, if it can be used, with one entry for each process; else None.
        faults: What went wrong, in words that follow the assignor's name.
        error: What is wrong with the last answer that it gave; None if it gave none.
        assignor: The assignor that gave it; None if it gave none.
    """

    assignment: TaskAssignment | None
    faults: tuple[str, ...] = ()
    error: AssignmentError | None = None
    assignor: TaskAssignor | None = None

    @property
    def followup_ms(self) -> int | None:
        """Time of the next call that the assignor asks for, in ms since 1970; None: no call."""
        entries = () if self.assignment is None else self.assignment.assignment
        deadlines = [entry.followup_rebalance_deadline for entry in entries]
        return min((ms for ms in deadlines if ms is not None), default=None)


def ask(
    load: Callable[[], TaskAssignor], state: ApplicationState, configs: Mapping[str, Any]
) -> Answer:
    """Ask a task assignor. It has yet to learn what becomes of its last answer (:func:`notify`).

    Args:
        load: Returns the assignor; may raise.
        state: What it decides by.
        configs: Its configs, of which no text shows a value.
    """
    faults: list[str] = []
    error: AssignmentError | None = None
    asked: TaskAssignor | None = None
    for attempt in range(_ATTEMPTS):
        try:
            assignor = load()
            answer = assignor.assign(state)
            found, what = answer_fault(state, answer)
        except Exception as fault:
            kind = "cannot answer" if isinstance(fault, TaskAssignmentException) else "failed"
            faults.append(f" {kind}: {shown_error(fault, configs)[0]}")
            continue
        error, asked = found, assignor
        if error is AssignmentError.NONE:
            usable = TaskAssignment(tuple(answer.by_process.values()))
            return Answer(usable, tuple(faults), error, assignor)
        if attempt + 1 < _ATTEMPTS:
            faults += notify(assignor, _outcome(state, answer, error), error, configs)
        faults.append(f" gave an invalid answer: {what}")
    return Answer(None, tuple(faults), error, asked)


def answer_fault(state: ApplicationState, answer: TaskAssignment) -> tuple[AssignmentError, str]:
    """Return the error for which an answer cannot be used, and its text; NONE if it can be.

    Beside Kafka's errors (:func:`validate_task_assignment`), each task has to be active somewhere.
    """
    error = validate_task_assignment(state, answer)
    if error is not AssignmentError.NONE:
        return error, error.value
    active = frozenset[TaskId]().union(*(entry.active for entry in answer.assignment))
    # Kafka passes over such a task, and nobody reads its partition.
    if missing := state.all_tasks.keys() - active:
        error = AssignmentError.UNKNOWN_TASK_ID
        return error, f"no member gets task {min(missing)} ({error.value})"
    return error, error.value


Outcome: TypeAlias = Callable[[], tuple[GroupAssignment, GroupSubscription]]
"""Makes what an assignor learns: what members get, and what they have said."""


def _outcome(state: ApplicationState, answer: TaskAssignment, error: AssignmentError) -> Outcome:
    return lambda: (group_assignment(state, answer, error), group_subscription(state))


def notify(
    assignor: TaskAssignor, outcome: Outcome, error: AssignmentError, configs: Mapping[str, Any]
) -> list[str]:
    """Call ``on_assignment_computed`` with what is done. An exception there changes nothing.

    Args:
        assignor: The assignor.
        outcome: Makes what it learns; not called if it does not listen.
        error: Why its answer is not used; NONE if it is.
        configs: Its configs, of which no text shows a value.

    Returns:
        What went wrong, in words that follow the assignor's name.
    """
    try:
        call = getattr(assignor, "on_assignment_computed", None)
        # Those that inherit the method that does nothing need not be called.
        if call and getattr(call, "__func__", None) is not TaskAssignor.on_assignment_computed:
            call(*outcome(), error)
    except Exception as fault:
        shown, _ = shown_error(fault, configs)
        return [f": on_assignment_computed failed, which changes nothing: {shown}"]
    return []
