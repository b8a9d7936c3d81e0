"""Task assignors by name: loaded and configured, and asked for a valid answer.

Guarantees: a name leads to one configured assignor, or to an error that says why not. An assignor
that fails (an exception, an invalid answer) is asked again at once, once. It learns what became of
each answer, and an exception there changes nothing. No error and no text shows a config's value (of
four characters or more), since it may be a secret.
Cost: an import.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kshare.assignment.interface.application import ApplicationState
from kshare.assignment.interface.assignor import AssignmentError, TaskAssignment, TaskAssignor
from kshare.assignment.utils import (
    group_assignment,
    group_subscription,
    validate_task_assignment,
)
from kshare.core.dotted_path import find, unknown
from kshare.errors import TaskAssignmentException

__all__ = [
    "DEFAULT_TASK_ASSIGNOR",
    "TASK_ASSIGNORS",
    "Answer",
    "ask",
    "load_task_assignor",
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
        kafka = name.rpartition(".")[2] if name.startswith("org.apache.kafka.") else name
        target = find(TASK_ASSIGNORS.get(kafka, name), "task assignor", TASK_ASSIGNORS)
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


def _is_assignor(target: Any) -> bool:
    return callable(getattr(target, "assign", None))


def shown_error(error: Exception, configs: Mapping[str, Any]) -> tuple[str, Exception | None]:
    """Return the text of an assignor's error, and the error as a cause to raise from.

    If the error shows a config's value, the text is its type alone, and there is no cause.
    """
    texts = "\n".join(_unquoted(text) for text in _texts(error))
    values = {name: _unquoted(str(value)) for name, value in configs.items()}
    shown = [n for n, v in values.items() if len(v) >= _SECRET_CHARACTERS and v in texts]
    if not shown:
        return repr(error), error
    kind = type(error).__name__
    return f"{kind} (its text holds the value of {', '.join(shown)}, and is not shown)", None


def _texts(error: BaseException | None) -> Iterator[str]:
    """The texts that a traceback would show of an error and its causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield from (str(error), repr(error), *getattr(error, "__notes__", ()))
        error = error.__cause__ or error.__context__


def _unquoted(text: str) -> str:
    """A text without escapes, however often it was quoted."""
    return text.encode("unicode_escape").decode().replace("\\", "")


_ATTEMPTS: Final = 2


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a task assignor.

    Attributes:
        assignment: The answer, if it is valid; None if there is none.
        faults: What went wrong, in words that follow the assignor's name.
    """

    assignment: TaskAssignment | None
    faults: tuple[str, ...] = ()

    @property
    def followup_ms(self) -> int | None:
        """Time of the next call that the assignor asks for, in ms since 1970; None: no call."""
        entries = () if self.assignment is None else self.assignment.assignment
        deadlines = [entry.followup_rebalance_deadline for entry in entries]
        return min((ms for ms in deadlines if ms is not None), default=None)


def ask(
    load: Callable[[], TaskAssignor], state: ApplicationState, configs: Mapping[str, Any]
) -> Answer:
    """Ask a task assignor.

    Args:
        load: Returns the assignor; may raise.
        state: What it decides by.
        configs: Its configs, of which no text shows a value.
    """
    faults: list[str] = []
    for _ in range(_ATTEMPTS):
        try:
            assignor = load()
            answer = assignor.assign(state)
            error = validate_task_assignment(state, answer)
        except Exception as fault:
            kind = "cannot answer" if isinstance(fault, TaskAssignmentException) else "failed"
            faults.append(f" {kind}: {shown_error(fault, configs)[0]}")
            continue
        faults += _notify(assignor, state, answer, error, configs)
        if error is AssignmentError.NONE:
            return Answer(answer, tuple(faults))
        faults.append(f" gave an invalid answer: {error.value}")
    return Answer(None, tuple(faults))


def _notify(
    assignor: TaskAssignor,
    state: ApplicationState,
    answer: TaskAssignment,
    error: AssignmentError,
    configs: Mapping[str, Any],
) -> list[str]:
    """Tell the assignor what became of its answer. An exception there changes nothing."""
    notify = getattr(assignor, "on_assignment_computed", None)
    # Those that inherit the method that does nothing need not be told.
    if not notify or getattr(notify, "__func__", None) is TaskAssignor.on_assignment_computed:
        return []
    try:
        notify(group_assignment(state, answer, error), group_subscription(state), error)
    except Exception as fault:
        shown, _ = shown_error(fault, configs)
        return [f": on_assignment_computed failed, which changes nothing: {shown}"]
    return []
