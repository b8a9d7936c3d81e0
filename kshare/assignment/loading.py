"""Finding a task assignor by its name.

Law: a name leads to one assignor, ready to use, or to an error that says why not.
Cost: an import.
"""

from collections.abc import Mapping
from typing import Any, Final

from kshare.assignment.assignor import TaskAssignor
from kshare.assignment.finding import find, unknown

__all__ = ["DEFAULT_TASK_ASSIGNOR", "TASK_ASSIGNORS", "load_task_assignor"]

DEFAULT_TASK_ASSIGNOR: Final = "HighAvailabilityTaskAssignor"
"""Kafka's default of ``task.assignor.class``."""

_HERE: Final = "kshare.assignment"

TASK_ASSIGNORS: Final[dict[str, str]] = {
    "HighAvailabilityTaskAssignor": f"{_HERE}.high_availability:HighAvailabilityTaskAssignor",
    "StickyTaskAssignor": f"{_HERE}.sticky:StickyTaskAssignor",
    "FallbackPriorTaskAssignor": f"{_HERE}.sticky:FallbackPriorTaskAssignor",
}
"""The built-in task assignors by Kafka's names, and where each is: imported when asked for."""


def load_task_assignor(
    name: str = DEFAULT_TASK_ASSIGNOR, configs: Mapping[str, Any] | None = None
) -> TaskAssignor:
    """Find a task assignor, make one and configure it.

    Args:
        name: a built-in one, also with Kafka's package in front; or the dotted path of a class, of
            an assignor, or of a function that returns one: ``package.module.name`` or
            ``package.module:name``.
        configs: the options, for the assignor's ``configure``.

    Raises:
        ValueError: there is none of that name, or it cannot be made or configured; the text says
            why, and names the built-in ones.
    """
    kafka = name.rpartition(".")[2] if name.startswith("org.apache.kafka.") else name
    found = find(TASK_ASSIGNORS.get(kafka, name), "task assignor", TASK_ASSIGNORS)
    try:
        assignor = found() if isinstance(found, type) or not _is_assignor(found) else found
        if not _is_assignor(assignor):
            raise TypeError(f"{type(assignor).__name__} has no method assign")
        if callable(configure := getattr(assignor, "configure", None)):
            configure(dict(configs or {}))
    except Exception as error:
        reason = f"it cannot be made: {error!r}"
        raise unknown(name, "task assignor", reason, TASK_ASSIGNORS) from error
    return assignor  # type: ignore[no-any-return]


def _is_assignor(thing: Any) -> bool:
    return callable(getattr(thing, "assign", None))
