"""Loading a task assignor by name.

Guarantees: a name leads to one configured assignor, or to an error that says why not. Neither the
error nor its cause shows a config's value (of four characters or more), since it may be a secret.
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
        ValueError: there is no such assignor, or it cannot be made or configured; the text says why
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
