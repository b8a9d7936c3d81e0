"""Finding a task assignor by its name.

Law: a name leads to one assignor, ready to use, or to an error that says why not; no value (of four
characters or more) of the configs is in that error's text, nor in that of what led to it.
Cost: an import.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kshare.assignment.interface.assignor import TaskAssignor
from kshare.core.dotted_path import find, unknown

__all__ = ["DEFAULT_TASK_ASSIGNOR", "TASK_ASSIGNORS", "load_task_assignor", "shown_error"]

DEFAULT_TASK_ASSIGNOR: Final = "HighAvailabilityTaskAssignor"
"""Kafka's default of ``task.assignor.class``."""

_SECRET_CHARACTERS: Final = 4
"""A config's value that is shorter is not looked for in texts: it may be part of any word."""

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
        shown, cause = shown_error(error, configs or {})
        raise unknown(
            name, "task assignor", f"it cannot be made: {shown}", TASK_ASSIGNORS
        ) from cause
    return assignor  # type: ignore[no-any-return]


def _is_assignor(thing: Any) -> bool:
    return callable(getattr(thing, "assign", None))


def shown_error(error: Exception, configs: Mapping[str, Any]) -> tuple[str, Exception | None]:
    """An assignor's error, and the same as a cause: its kind alone if it tells a config's value."""
    texts = "\n".join(_bare(text) for text in _texts(error))
    values = {name: _bare(str(value)) for name, value in configs.items()}
    told = [n for n, v in values.items() if len(v) >= _SECRET_CHARACTERS and v in texts]
    if not told:
        return repr(error), error
    kind = type(error).__name__
    return f"{kind} (its text holds the value of {', '.join(told)}, and is not shown)", None


def _texts(error: BaseException | None) -> Iterator[str]:
    """What a traceback would show of an error and of those before it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield from (str(error), repr(error), *getattr(error, "__notes__", ()))
        error = error.__cause__ or error.__context__


def _bare(text: str) -> str:
    """A text without what quoting does to it, however often it was quoted."""
    return text.encode("unicode_escape").decode().replace("\\", "")
