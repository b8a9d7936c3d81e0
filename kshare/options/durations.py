"""Texts of options that say how far a query goes: durations, and keys that wait.

Law: a duration without a doubt, or an error that says how to write one. Cost: none.
"""

import json
import re
from typing import Any, Final

__all__ = ["DEFAULT_RANGES", "parse_delay", "parse_duration", "parse_keys", "parse_wanted_keys"]

DEFAULT_RANGES: Final = 10_000
"""``maxRangesInCheckpoint``, if it is not given."""

_MAX_US = 2**63 // 1000
# JavaUtils.timeStringAs of Spark: the suffixes that it knows, in microseconds.
_SPARK_US = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
_US = _SPARK_US | {
    name: _SPARK_US[unit]
    for unit, names in (
        ("ms", "millisecond milliseconds milli millis"),
        ("s", "sec secs second seconds"),
        ("m", "mins minute minutes"),
        ("h", "hour hours"),
        ("d", "day days"),
    )
    for name in names.split()
}
_DELAY = re.compile(r"([0-9]{1,19})([a-z]+)?", re.ASCII)
_DURATION = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,19})?)\s*([a-z]+)", re.ASCII)


def parse_delay(text: str) -> float:
    """A time as Spark's ``Utils.timeStringAsMs`` reads it: ``15m``, ``30s``; bare numbers are ms.

    Returns:
        Seconds, whole milliseconds.

    Raises:
        ValueError: it is none.
    """
    match = _DELAY.fullmatch(text.strip().lower())
    unit = match and _SPARK_US.get(match[2] or "ms")
    if match is None or unit is None or int(match[1]) * unit > _MAX_US:
        raise ValueError("is not a time; write for example 15m, 30s, 500ms (us, ms, s, m, h, d)")
    return int(match[1]) * unit // 1000 / 1000


def parse_duration(text: str) -> float:
    """A time with its unit: ``10s``, ``500ms``, ``2 minutes``, ``1.5 h``.

    Returns:
        Seconds, more than 0.

    Raises:
        ValueError: it is none.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    unit = match and _US.get(match[2])
    if match is None or unit is None or not 0 < float(match[1]) * unit <= _MAX_US:
        raise ValueError(
            "is not a time above 0 with a unit; write for example 10s, 500ms, 2 minutes"
        )
    return float(match[1]) * unit / 1e6


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


def parse_wanted_keys(text: str) -> tuple[bytes, ...]:
    """The keys of ``keys``, written like those of ``parkedKeys``; there is at least one.

    Raises:
        ValueError: it is no such list, or it is empty.
    """
    keys = parse_keys(text)
    if not keys:
        raise ValueError("names no key; leave it out to read all keys")
    return keys


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
