"""Dates and timestamps in texts, by a pattern that is given as steps.

The steps are those of :mod:`kshare.read.decode.pattern_step`.
"""

from kshare.read.decode import json_kind, pattern_step
from kshare.read.decode.kernels.json_times import days_of, zone_offset
from kshare.read.decode.kernels.native import (
    Int,
    Record,
    helper,
    json_step_at,
    load_i64,
    load_u8,
    store_i64,
)
from kshare.read.decode.layout import JSON_STEP

__all__ = ["by_pattern"]

_STEP_SIZE = JSON_STEP.itemsize
_MICROS_PER_SECOND = 1_000_000
_SECONDS_PER_DAY = 86_400
_MINUTES_MAX = 18 * 60  # of an offset
_NO_ZONE = 1 << 20


@helper
def _digits(at: int, end: int, least: int, most: int) -> tuple[int, int]:
    """A number, and the address behind it; 0: it has too few digits."""
    number = 0
    begin = at
    stop = min(end, at + most)
    while at < stop and 0x30 <= load_u8(at) <= 0x39:
        number = number * 10 + load_u8(at) - 0x30
        at += 1
    return number, at if at - begin >= least else 0


@helper
def _offset(at: int, end: int, forms: int) -> tuple[int, int]:
    """Minutes to the east, and the address behind the offset; 0: there is none."""
    sign = load_u8(at) if at < end else 0
    if sign == 0x5A and forms & pattern_step.UTC != 0:
        return 0, at + 1
    if sign not in (0x2B, 0x2D):
        return 0, 0
    hours, behind = _digits(at + 1, end, 2, 2)
    if behind == 0:
        return 0, 0
    has_colon = behind < end and load_u8(behind) == 0x3A
    minutes = 0
    if has_colon == (forms & pattern_step.COLON != 0):
        minutes, stop = _digits(behind + 1 if has_colon else behind, end, 2, 2)
        if stop != 0:
            behind = stop
        elif forms & pattern_step.HOURS != 0:
            minutes = 0
        else:
            behind = 0
    else:
        behind = 0
    minutes_all = 60 * hours + minutes
    if minutes > 59 or minutes_all > _MINUTES_MAX:
        behind = 0
    return -minutes_all if sign == 0x2D else minutes_all, behind


@helper
def _half(at: int, end: int) -> tuple[int, int]:
    """0 for AM, 12 for PM, and the address behind it; 0: it is neither."""
    if end - at < 2 or load_u8(at + 1) != 0x4D:
        return 0, 0
    byte = load_u8(at)
    return 12 if byte == 0x50 else 0, at + 2 if byte in (0x41, 0x50) else 0


@helper
def _begins(step: Record, at: int, end: int) -> bool:
    """True if the text goes on with a sign, or an offset."""
    if at >= end:
        return False
    byte = load_u8(at)
    if step.kind == pattern_step.LITERAL:
        return bool(byte == step.first)
    return byte in (0x2B, 0x2D) or (byte == 0x5A and step.first & pattern_step.UTC != 0)


@helper
def _part(step: Record, at: int, end: int) -> Int:
    """Read what a step says.

    Returns:
        Its value; the address behind it, 0 if the text is another.
    """
    kind = step.kind
    first = step.first
    if kind == pattern_step.LITERAL:
        return 0, at + 1 if at < end and load_u8(at) == first else 0
    if kind == pattern_step.ZONE:
        return _offset(at, end, first)
    if kind == pattern_step.HALF:
        return _half(at, end)
    if kind == pattern_step.FRACTION:
        value, behind = _digits(at, end, first, first)
        factor = step.second
        return value * factor if factor > 0 else value // -factor, behind
    return _digits(at, end, first, step.second)


@helper
def _clear(moment: int) -> None:
    """Write what counts where the pattern has no such part."""
    number = 0
    while number < pattern_step.KINDS:
        store_i64(moment + 8 * number, 0)
        number += 1
    store_i64(moment + 8 * pattern_step.YEAR, 1970)
    store_i64(moment + 8 * pattern_step.SHORT_YEAR, -1)
    store_i64(moment + 8 * pattern_step.MONTH, 1)
    store_i64(moment + 8 * pattern_step.DAY, 1)
    store_i64(moment + 8 * pattern_step.HOUR_OF_HALF, -1)
    store_i64(moment + 8 * pattern_step.ZONE, _NO_ZONE)


@helper
def _clock(moment: int) -> Int:
    """Seconds of the day; -1: there is no such time."""
    hour = load_i64(moment + 8 * pattern_step.HOUR)
    minute = load_i64(moment + 8 * pattern_step.MINUTE)
    second = load_i64(moment + 8 * pattern_step.SECOND)
    of_half = load_i64(moment + 8 * pattern_step.HOUR_OF_HALF)
    if of_half == 0 or of_half > 12:
        return -1
    if of_half > 0:
        hour = of_half % 12 + load_i64(moment + 8 * pattern_step.HALF)
    if hour > 23 or minute > 59 or second > 59:
        return -1
    return (60 * hour + minute) * 60 + second


@helper
def _days(moment: int) -> Int:
    """False, if there is no such day; and days since 1970."""
    year = load_i64(moment + 8 * pattern_step.YEAR)
    short = load_i64(moment + 8 * pattern_step.SHORT_YEAR)
    if short >= 0:
        year = 2000 + short
    return days_of(
        year,
        load_i64(moment + 8 * pattern_step.MONTH),
        load_i64(moment + 8 * pattern_step.DAY),
    )


@helper
def by_pattern(state: Record, step: Record, at: int, end: int) -> tuple[int, int]:
    """Read a date or timestamp.

    Args:
        state: JsonState.
        step: The node's, with a pattern that has steps.
        at: Address of the text.
        end: Its end.

    Returns:
        0, and days or microseconds since 1970; TYPE: it is not of this pattern; HARD: it is not
        decided.
    """
    begin = json_step_at(state.patterns + _STEP_SIZE * step.first)
    wrong = json_kind.TYPE if begin.second != 0 else json_kind.HARD
    moment = state.moment
    _clear(moment)
    number = step.first + 1
    stop = step.first + step.second
    while number < stop:
        part = json_step_at(state.patterns + _STEP_SIZE * number)
        number += 1
        kind = part.kind
        if kind == pattern_step.OPTIONAL:
            if not _begins(json_step_at(state.patterns + _STEP_SIZE * number), at, end):
                number += part.first
        else:
            value, at = _part(part, at, end)
            if at == 0:
                return wrong, 0
            store_i64(moment + 8 * kind, value)
    there, days = _days(moment)
    seconds = _clock(moment)
    if at != end or not there or seconds < 0:
        return wrong, 0
    if begin.first == pattern_step.DATE:
        return 0, days
    micros = load_i64(moment + 8 * pattern_step.FRACTION)
    micros += (days * _SECONDS_PER_DAY + seconds) * _MICROS_PER_SECOND
    if begin.first == pattern_step.LOCAL_TIMESTAMP:
        return 0, micros
    minutes = load_i64(moment + 8 * pattern_step.ZONE)
    if minutes != _NO_ZONE:
        return 0, micros - 60 * minutes * _MICROS_PER_SECOND
    result, east = zone_offset(state, micros)
    return result, micros - east
