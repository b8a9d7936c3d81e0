"""The names of typed rows' options in a consumer: ``value.format`` is ``valueFormat``.

Guarantee: data and texts only. Spark's names are taken, too, so that options can be copied.
"""

import re
from typing import Final

from kshare.options.registry_table import PREFIX

__all__ = ["DOTTED_NAMES", "REGISTRY_PREFIX", "dotted", "row_option"]

REGISTRY_PREFIX: Final = "schema.registry."

DOTTED_NAMES: Final = {
    **{
        f"{column}.{name.lower()}": f"{column}{name.replace('.', '')}"
        for column in ("value", "key")
        for name in ("Format", "Schema", "Subject", "Other.Records", "Framing", "Fields")
    },
    "bad.records": "badRecords",
}
"""The option of ``format("kshare")`` by its name in a consumer's configuration."""

_OPTIONS: Final = {
    **DOTTED_NAMES,
    **{option.lower(): option for option in DOTTED_NAMES.values()},
}
_SHOWN: Final = {option: name for name, option in DOTTED_NAMES.items()} | {PREFIX: REGISTRY_PREFIX}
# A value that is shown is in quotes.
_IN_TEXT: Final = re.compile(
    rf"(?<!['\w.-])(?:(?:{'|'.join(DOTTED_NAMES.values())})(?!\w)|{re.escape(PREFIX)})"
)


def row_option(name: str) -> str | None:
    """The option of ``format("kshare")`` that a configuration is; None if it is none of these.

    Args:
        name: The configuration's name, in any case.
    """
    lower = name.lower()
    for prefix in (REGISTRY_PREFIX, PREFIX.lower()):
        if lower.startswith(prefix):
            return f"{PREFIX}{lower.removeprefix(prefix)}"
    if lower.startswith(("value.json.", "key.json.")):
        return lower
    return _OPTIONS.get(lower)


def dotted(text: str) -> str:
    """A text in which options have the names of a consumer's configuration."""
    return _IN_TEXT.sub(lambda match: _SHOWN[match[0]], text)
