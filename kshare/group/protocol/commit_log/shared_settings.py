"""Settings that all members of a group must share, and who differs.

A member says its own when it joins, and in its beats. One of a version that does not say a setting
is not compared by it. Laws: equal settings do not differ; who says nothing differs from nobody;
and if one differs from another, the other differs from it, by the same names.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from kshare.core.bounded_json import text_of

__all__ = ["Settings", "difference", "largest", "settings_of", "settings_value"]

Settings: TypeAlias = tuple[tuple[str, str], ...]
"""Values by name, as texts, in the order of the names. Empty: nothing is said."""

_NAMES_MAX: Final = 64


def settings_value(settings: Settings) -> dict[str, dict[str, str]]:
    """The field that says settings, for JSON; none if nothing is said."""
    return {"settings": dict(settings)} if settings else {}


def settings_of(fields: Mapping[str, Any]) -> Settings:
    """The settings that the fields of a beat or a subscription say.

    Raises:
        TypeError, ValueError: They are something else.
    """
    said = fields.get("settings", {})
    if not isinstance(said, dict) or len(said) > _NAMES_MAX:
        raise TypeError(f"found {said!r:.100}; wanted settings by name")
    return tuple(sorted((text_of(name), text_of(value)) for name, value in said.items()))


def largest(name: str, said: Iterable[Settings], default: int) -> int:
    """The largest value of a setting that is a number, of some members.

    Args:
        name: Its name.
        said: What each of them says.
        default: The value of one that says none, or no number; and of nobody.
    """
    texts = (dict(settings).get(name, "") for settings in said)
    values = (int(text) if text.isascii() and text.isdigit() else default for text in texts)
    return max(values, default=default)


def difference(own: Settings, other: Settings) -> str:
    """Say in what another member's settings differ; empty if they do not.

    Args:
        own: Those of one member.
        other: Those of another one.
    """
    mine = dict(own)
    return ", ".join(
        f"{name}={value:.100} there and {mine[name]:.100} here"
        for name, value in other
        if name in mine and mine[name] != value
    )
