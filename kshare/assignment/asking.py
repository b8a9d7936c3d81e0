"""Asking a task assignor: a valid answer, or why there is none.

Guarantees: an assignor that fails (an exception, an invalid answer) is asked again at once, once.
It learns what became of each answer, and an exception there changes nothing. No text shows a
config's value, as :func:`.loading.shown_error`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kshare.assignment.interface.application import ApplicationState
from kshare.assignment.interface.assignor import AssignmentError, TaskAssignment, TaskAssignor
from kshare.assignment.loading import shown_error
from kshare.assignment.utils import (
    group_assignment,
    group_subscription,
    validate_task_assignment,
)
from kshare.errors import TaskAssignmentException

__all__ = ["Answer", "ask"]

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
