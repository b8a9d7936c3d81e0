"""Find an object by its dotted path; an error says why there is none, and what is built in."""

from collections.abc import Collection
from importlib import import_module
from typing import Any

from kshare.core.showing import shown

__all__ = ["find", "unknown"]


def find(name: str, kind: str, built_in: Collection[str]) -> Any:
    """Find a callable or an assignor, by importing its module.

    Args:
        name: ``package.module.attribute`` or ``package.module:attribute``.
        kind: What kind of object is looked for, for the error.
        built_in: The names that need no path, for the error.

    Raises:
        ValueError: There is no such object, or it is something else.
    """
    module, separator, attribute = name.partition(":") if ":" in name else name.rpartition(".")
    if not (separator and module and attribute) or module.startswith("."):
        reason = "it is neither built in nor the dotted path of a callable"
        raise unknown(name, kind, reason, built_in)
    try:
        target: Any = import_module(module)
    except Exception as error:
        reason = f"module {module} cannot be imported: {shown(error)}"
        raise unknown(name, kind, reason, built_in) from error
    for part in attribute.split("."):
        target = getattr(target, part, None)
        if target is None:
            raise unknown(name, kind, f"module {module} has no {attribute}", built_in)
    if not (callable(target) or callable(getattr(target, "assign", None))):
        reason = f"{attribute} in module {module} cannot be called"
        raise unknown(name, kind, reason, built_in)
    return target


def unknown(name: str, kind: str, reason: str, built_in: Collection[str]) -> ValueError:
    """The error that says why there is no such object."""
    listed = f"; built in are: {', '.join(built_in)}" if built_in else ""
    return ValueError(f"no {kind} {name!r}: {reason}{listed}")
