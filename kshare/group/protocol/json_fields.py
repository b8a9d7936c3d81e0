"""JSON as members and the log write it, and checks of its fields as they are read."""

import json
from typing import Any

__all__ = ["count_of", "dumps", "flag_of", "text_of"]


def dumps(value: Any) -> bytes:
    """A value as compact JSON in UTF-8."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def text_of(value: Any) -> str:
    """A field that is a text.

    Raises:
        TypeError: It is something else.
    """
    return str(_of_type(value, str))


def flag_of(value: Any) -> bool:
    """A field that is true or false.

    Raises:
        TypeError: It is something else.
    """
    return bool(_of_type(value, bool))


def count_of(value: Any) -> int:
    """A field that is 0 or more.

    Raises:
        TypeError: It is no whole number.
        ValueError: It is negative.
    """
    count = int(_of_type(value, int))
    if count < 0:
        raise ValueError(f"found {count}; wanted 0 or more")
    return count


def _of_type(value: Any, kind: type) -> Any:
    if type(value) is not kind:  # true is no number
        raise TypeError(f"found {value!r:.100}; wanted {kind.__name__}")
    return value
