"""Faults of records in words: for the compiled reader and the plain one."""

import re
from typing import Final

import pyarrow as pa

from kshare.read.decode import json_kind

__all__ = ["excerpt", "grammar_reason", "type_name"]

EXCERPT_MAX: Final = 64
"""Bytes or characters that :func:`excerpt` wants to see."""

_SHOWN: Final = re.compile(r'"[^"]{0,24}"?|.[^\s,\]}]{0,23}', re.DOTALL)
_NAMES: Final = {
    pa.bool_(): "a boolean",
    pa.int8(): "a tinyint",
    pa.int16(): "a smallint",
    pa.int32(): "an int",
    pa.int64(): "a bigint",
    pa.float32(): "a float",
    pa.float64(): "a double",
    pa.string(): "a string",
    pa.binary(): "base 64",
    pa.date32(): "a date",
    pa.timestamp("us", "UTC"): "a timestamp",
    pa.timestamp("us"): "a timestamp without a zone",
}


def excerpt(text: str) -> str:
    """Describe the value that a text begins with, in at most 30 characters."""
    if text.startswith("{"):
        return "an object"
    if text.startswith("["):
        return "an array"
    match = _SHOWN.match(text)
    shown = match.group() if match else "nothing"
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in shown)


def grammar_reason(code: int, at: int, max_depth: int) -> str:
    """Describe what is wrong with a record whose value is not valid JSON.

    Args:
        code: Of the compiled reader: MALFORMED, CUT_SHORT or TOO_DEEP.
        at: Where.
        max_depth: Objects and arrays in each other, at most.
    """
    if code == json_kind.MALFORMED:
        return f"is no valid JSON at byte {at + 1}"
    if code == json_kind.CUT_SHORT:
        return "is cut short"
    assert code == json_kind.TOO_DEEP
    return f"has more than {max_depth:,} objects and arrays in each other"


def type_name(kind: pa.DataType) -> str:
    """Name a type, with its article."""
    name = _NAMES.get(kind)
    if name is not None:
        return name
    if pa.types.is_struct(kind):
        return "an object"
    if pa.types.is_decimal(kind):
        return f"a decimal({kind.precision},{kind.scale})"
    return "a map" if pa.types.is_map(kind) else "an array"
