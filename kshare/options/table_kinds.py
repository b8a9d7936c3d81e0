"""Kinds of values that options of ``format("kshare")`` alone have: see :mod:`.kinds`."""

import math
import re
from typing import Any, Final

from kshare.options.kinds import (
    BOOLEAN,
    LONG_MAX,
    BadValueError,
    Kind,
    parse_duration,
    parse_keys,
)
from kshare.options.model import SOURCE_COLUMNS
from kshare.ranges import load_range_assignor

__all__ = [
    "BYTES",
    "COLUMNS",
    "COMMITS",
    "DURATION_OR_OFF",
    "FUNCTION",
    "KEYS",
    "RANGE_ASSIGNOR",
    "SOME_KEYS",
    "auto_or",
]

_KEYS: Final = 'JSON such as `["customer-7", {"hex": "00ff"}]`'
_COMMITS: Final[dict[str, bool | str]] = {"true": True, "false": False, "individual": "individual"}


def auto_or(number: Kind, where: str = "") -> Kind:
    """``auto``, or a number.

    Args:
        number: The numbers.
        where: Where ``auto`` is allowed, for errors; empty for everywhere.
    """

    def parse(text: str) -> Any:
        if text.strip().lower() == "auto":
            return "auto"
        try:
            return number.parse(text)
        except BadValueError as error:
            raise BadValueError(str(error), f"{error.right}, or auto{where}") from None

    return Kind(f"`auto`, or {number.values}", parse)


def _parse_columns(text: str) -> tuple[str, ...]:
    spellings = {name.lower(): name for name in SOURCE_COLUMNS}
    known = f"known are: {', '.join(SOURCE_COLUMNS)}"
    if not text.strip():
        raise ValueError(f"names no column; {known}")
    columns: list[str] = []
    unknown: list[str] = []
    repeated: list[str] = []
    for name in (name.strip() for name in text.split(",")):
        column = spellings.get(name.lower())
        if column is None:
            unknown.append(repr(name))
        elif column in columns:
            repeated.append(repr(name))
        else:
            columns.append(column)
    faults = []
    if unknown:
        faults.append(f"has no column {', '.join(dict.fromkeys(unknown))}")
    if repeated:
        faults.append(f"names {', '.join(dict.fromkeys(repeated))} twice")
    if faults:
        raise ValueError(f"{' and '.join(faults)}; {known}")
    return tuple(columns)


def _parse_some_keys(text: str) -> tuple[bytes, ...]:
    keys = parse_keys(text)
    if not keys:
        raise ValueError("names no key; leave it out to read all keys")
    return keys


def _parse_range_assignor(text: str) -> str:
    load_range_assignor(text.strip())
    return text.strip()


def _parse_function(text: str) -> str:
    module, colon, attribute = text.strip().partition(":")
    names = (*module.split("."), *attribute.split("."))
    if not colon or not all(map(str.isidentifier, names)):
        raise BadValueError("is not the path of a Python function", "write package.module:function")
    return text.strip()


def _parse_commits(text: str) -> bool | str:
    word = text.strip().lower()
    if word not in _COMMITS:
        raise BadValueError("is wrong", "wanted true, false or individual")
    return _COMMITS[word]


def _parse_duration_or_off(text: str) -> float:
    if text.strip().lower() == "off":
        return math.inf
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ValueError(f"{error}, or off") from None


COLUMNS: Final = Kind(", ".join(f"`{name}`" for name in SOURCE_COLUMNS), _parse_columns)
"""Names of a row's columns, in any case; none of them twice."""
KEYS: Final = Kind(_KEYS, parse_keys)
SOME_KEYS: Final = Kind(_KEYS, _parse_some_keys)
"""Keys, at least one."""
RANGE_ASSIGNOR: Final = Kind("name or dotted path", _parse_range_assignor)
"""A range assignor that can be loaded."""
FUNCTION: Final = Kind("`package.module:function`", _parse_function)
COMMITS: Final = Kind(f"{BOOLEAN.values}, `individual`", _parse_commits)
"""The way in which offsets are committed, if at all."""
# JavaUtils.byteStringAs of Spark; a bare number is one of bytes.
_SIZE: Final = re.compile(r"([0-9]{1,19})\s*([kmgtp]?)b?", re.ASCII)


def _parse_bytes(text: str) -> int:
    match = _SIZE.fullmatch(text.strip().lower())
    size = int(match[1]) << (10 * " kmgtp".index(match[2] or " ")) if match else 0
    if not 1 <= size <= LONG_MAX:
        raise BadValueError(
            "is not a number of bytes above 0",
            "write for example 512k, 100m, 2g (b, k, m, g, t, p)",
        )
    return size


BYTES: Final = Kind("bytes such as `100m`", _parse_bytes)

DURATION_OR_OFF: Final = Kind("time such as `10m`, or `off`", _parse_duration_or_off)
"""Seconds, infinite for ``off``."""
