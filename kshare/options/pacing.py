"""Texts of options that say how far a query goes: durations, and keys that wait.

Law: a duration without a doubt, or an error that says how to write one. Cost: none.
"""

import json
import math
import re
from typing import Any, Final

__all__ = ["DEFAULT_RANGES", "parse_delay", "parse_duration", "parse_keys"]

DEFAULT_RANGES: Final = 10_000
"""``maxRangesInCheckpoint``, if it is not given."""

_MAX_SECONDS = 2**63 / 1e9
# JavaUtils.timeStringAs of Spark: the suffixes that it knows.
_SPARK_SECONDS = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_SECONDS = _SPARK_SECONDS | {
    name: seconds
    for names, seconds in (
        ("millisecond milliseconds milli millis", 1e-3),
        ("sec secs second seconds", 1.0),
        ("mins minute minutes", 60.0),
        ("hour hours", 3600.0),
        ("day days", 86400.0),
    )
    for name in names.split()
}
_DELAY = re.compile(r"([0-9]+)([a-z]+)?", re.ASCII)
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)", re.ASCII)


def parse_delay(text: str) -> float:
    """A time as Spark's ``Utils.timeStringAsMs`` reads it: ``15m``, ``30s``; bare numbers are ms.

    Returns:
        Seconds, whole milliseconds.

    Raises:
        ValueError: it is none.
    """
    match = _DELAY.fullmatch(text.strip().lower())
    unit = match and _SPARK_SECONDS.get(match[2] or "ms")
    if match is None or unit is None or int(match[1]) * unit > _MAX_SECONDS:
        raise ValueError("is not a time; write for example 15m, 30s, 500ms (us, ms, s, m, h, d)")
    return math.floor(round(int(match[1]) * unit * 1000, 6)) / 1000


def parse_duration(text: str) -> float:
    """A time with its unit: ``10s``, ``500ms``, ``2 minutes``, ``1.5 h``.

    Returns:
        Seconds, more than 0.

    Raises:
        ValueError: it is none.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    unit = match and _SECONDS.get(match[2])
    if match is None or unit is None or not 0 < float(match[1]) * unit <= _MAX_SECONDS:
        raise ValueError(
            "is not a time above 0 with a unit; write for example 10s, 500ms, 2 minutes"
        )
    return float(match[1]) * unit


def parse_keys(text: str) -> tuple[bytes, ...]:
    """The keys of ``parkedKeys``: ``["customer-7", {"hex": "00ff"}]``.

    Returns:
        Each key once, in the order given.

    Raises:
        ValueError: it is no such list.
    """
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(given, list):
        raise ValueError('must be a JSON list, such as ["customer-7", {"hex": "00ff"}]')  # noqa: TRY004
    return tuple(dict.fromkeys(_key(entry, place) for place, entry in enumerate(given)))


def _key(entry: Any, place: int) -> bytes:
    try:
        match entry:
            case str():
                return entry.encode()
            case {"hex": str(digits)} if len(entry) == 1:
                return bytes.fromhex(digits)
    except ValueError as error:  # a lone surrogate, or no hexadecimal digits
        raise ValueError(f"entry {place} cannot be read: {error}") from None
    raise ValueError(
        f'entry {place} must be a string, or {{"hex": "..."}} with an even number of digits'
    )
