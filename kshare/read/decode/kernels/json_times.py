"""Dates and timestamps in texts, as Spark reads them without a pattern.

What is read here: ``[+-]yyyy[-[m]m[-[d]d[[ T][h]h[:[m]m[:[s]s[.f*]][zone]]]]]``, with Z or
an offset of hours and minutes for a zone. A name of a zone, or a time without a date, is HARD, and
so is what Spark may read in another way that it has kept.
"""

from kshare.read.decode import json_kind
from kshare.read.decode.kernels.native import (
    Int,
    Record,
    helper,
    load_i64,
    load_u8,
)

__all__ = ["date", "days_of", "timestamp", "zone_offset"]

_MICROS_PER_SECOND = 1_000_000
_MICROS_PER_DAY = 86_400 * _MICROS_PER_SECOND
_DAYS_MAX = 106_751_000  # whose microseconds 63 bits hold
_DATE_MAX = 2**31  # days of a date are 32 bits


@helper
def _number(at: int, end: int) -> tuple[int, int]:
    """A number of digits, and the address behind it."""
    number = 0
    while at < end:
        digit = load_u8(at) - 0x30
        if digit < 0 or digit > 9:
            break
        if number < 100_000_000:
            number = number * 10 + digit
        at += 1
    return number, at


@helper
def _trim(at: int, end: int) -> tuple[int, int]:
    """The text without blanks and control characters around it."""
    while at < end and (load_u8(at) <= 0x20 or load_u8(at) == 0x7F):
        at += 1
    while end > at and (load_u8(end - 1) <= 0x20 or load_u8(end - 1) == 0x7F):
        end -= 1
    return at, end


@helper
def _is_leap(year: int) -> bool:
    return bool(year % 4 == 0 and (year % 100 != 0 or year % 400 == 0))


@helper
def days_of(year: int, month: int, day: int) -> tuple[bool, int]:
    """Days since 1970; false: there is no such day."""
    if month < 1 or month > 12 or day < 1:
        return False, 0
    length = 31
    if month == 2:
        length = 29 if _is_leap(year) else 28
    elif month in (4, 6, 9, 11):
        length = 30
    if day > length:
        return False, 0
    # Years that begin in March, of eras of 400.
    shifted = year - 1 if month <= 2 else year
    era = shifted // 400
    of_era = shifted - era * 400
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return True, era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


@helper
def _day(at: int, end: int, most_digits: int) -> tuple[int, int, int]:
    """Read ``[+-]yyyy[-[m]m[-[d]d]]``.

    Returns:
        Days since 1970; the address behind it, 0 if it is none; and how many parts it has.
    """
    sign = 1
    if at < end and (load_u8(at) == 0x2D or load_u8(at) == 0x2B):
        sign = -1 if load_u8(at) == 0x2D else 1
        at += 1
    year, behind = _number(at, end)
    if behind - at < 4 or behind - at > most_digits:
        return 0, 0, 0
    at = behind
    month = 1
    day = 1
    parts = 1
    if at < end and load_u8(at) == 0x2D:
        month, behind = _number(at + 1, end)
        if behind - at < 2 or behind - at > 3:
            return 0, 0, 0
        at = behind
        parts = 2
        if at < end and load_u8(at) == 0x2D:
            day, behind = _number(at + 1, end)
            if behind - at < 2 or behind - at > 3:
                return 0, 0, 0
            at = behind
            parts = 3
    there, days = days_of(sign * year, month, day)
    return days, at if there else 0, parts


@helper
def _may_be_old(at: int, end: int) -> bool:
    """True if Spark may read a text in a way that it has kept: it has GMT, or is an integer."""
    digits = True
    begin = at
    while at < end:
        byte = load_u8(at)
        if byte == 0x47 or byte >= 0x80:  # Java knows other digits, too
            return True
        if (byte < 0x30 or byte > 0x39) and not (at == begin and byte in (0x2B, 0x2D)):
            digits = False
        at += 1
    return digits


@helper
def date(at: int, end: int) -> tuple[int, int]:
    """Read a date.

    Returns:
        0 and the days since 1970; TYPE: it is none, or more than 32 bits hold; HARD: it is not
        decided.
    """
    begin, stop = _trim(at, end)
    days, behind, parts = _day(begin, stop, 7)
    if behind != 0 and behind < stop:
        byte = load_u8(behind)
        if parts != 3 or byte not in (0x20, 0x54):
            behind = 0
    if behind != 0 and -_DATE_MAX <= days < _DATE_MAX:
        return 0, days
    return json_kind.HARD if _may_be_old(at, end) else json_kind.TYPE, 0


@helper
def _clock(at: int, end: int) -> tuple[int, int, bool]:
    """Read ``[h]h[:[m]m[:[s]s[.f*]]]``.

    Returns:
        Microseconds; the address behind it, 0 if it is none; whether a zone may follow.
    """
    hour, behind = _number(at, end)
    if behind == at or behind - at > 2 or hour > 23:
        return 0, 0, False
    micros = hour * 3600 * _MICROS_PER_SECOND
    at = behind
    if at == end or load_u8(at) != 0x3A:
        return micros, at, False
    minute, behind = _number(at + 1, end)
    if behind - at < 2 or behind - at > 3 or minute > 59:
        return 0, 0, False
    micros += minute * 60 * _MICROS_PER_SECOND
    at = behind
    if at == end or load_u8(at) != 0x3A:
        return micros, at, False
    second, behind = _number(at + 1, end)
    if behind - at < 2 or behind - at > 3 or second > 59:
        return 0, 0, False
    micros += second * _MICROS_PER_SECOND
    at = behind
    if at < end and load_u8(at) == 0x2E:
        at += 1
        unit = 100_000
        while at < end and 0x30 <= load_u8(at) <= 0x39:
            micros += unit * (load_u8(at) - 0x30)
            unit //= 10
            at += 1
    return micros, at, True


@helper
def _offset(at: int, end: int) -> tuple[int, int]:
    """Read Z, or hours and minutes with a colon.

    Returns:
        0 and microseconds to the east; HARD: it is another zone, or none.
    """
    size = end - at
    first = load_u8(at)
    if size == 1 and first == 0x5A:
        return 0, 0
    if size != 6 or first not in (0x2B, 0x2D) or load_u8(at + 3) != 0x3A:
        return json_kind.HARD, 0
    hours, behind = _number(at + 1, at + 3)
    minutes, stop = _number(at + 4, end)
    if behind != at + 3 or stop != end or minutes > 59 or 60 * hours + minutes > 18 * 60:
        return json_kind.HARD, 0
    micros = (60 * hours + minutes) * 60 * _MICROS_PER_SECOND
    return 0, -micros if first == 0x2D else micros


@helper
def zone_offset(state: Record, local: int) -> tuple[int, int]:
    """The offset of the zone that holds where a timestamp names none.

    Args:
        state: JsonState.
        local: The local time. One that is skipped counts with the offset before it, one that is
            there twice, too.

    Returns:
        0 and microseconds; HARD: it is not known.
    """
    first = 0
    end = state.zone_change_count
    while end - first > 1:
        middle = (first + end) >> 1
        if load_i64(state.zone_changes + 16 * middle) <= local:
            first = middle
        else:
            end = middle
    change = state.zone_changes + 16 * first
    if first + 1 >= state.zone_change_count or local < load_i64(change):
        return json_kind.HARD, 0
    return 0, load_i64(change + 8)


@helper
def timestamp(state: Record, at: int, end: int, is_local: bool) -> tuple[int, int]:
    """Read a timestamp.

    Args:
        state: JsonState.
        at: Address of the text.
        end: Its end.
        is_local: It has no zone, and may name none.

    Returns:
        0 and the microseconds since 1970, in UTC or local; TYPE: it is none; HARD: it is not
        decided.
    """
    begin, stop = _trim(at, end)
    wrong = json_kind.HARD if not is_local and _may_be_old(at, end) else json_kind.TYPE
    days, behind, parts = _day(begin, stop, 6)
    if behind == 0:
        # A time without a date is today's, where there is a zone.
        is_time = begin < stop and (
            load_u8(begin) == 0x54 or (0x30 <= load_u8(begin) <= 0x39 and _has_colon(begin, stop))
        )
        return json_kind.HARD if is_time and not is_local else wrong, 0
    micros = 0
    has_zone = False
    if behind < stop:
        byte = load_u8(behind)
        if parts != 3 or byte not in (0x20, 0x54):
            return wrong, 0
        micros, behind, has_zone = _clock(behind + 1, stop)
        if behind == 0 or (behind < stop and not has_zone):
            return wrong, 0
    if days < -_DAYS_MAX or days > _DAYS_MAX:
        return json_kind.HARD, 0
    micros += days * _MICROS_PER_DAY
    if is_local:
        return 0 if behind == stop else json_kind.TYPE, micros
    result = 0
    if behind < stop:
        result, offset = _offset(behind, stop)
    else:
        result, offset = zone_offset(state, micros)
    return result, micros - offset


@helper
def _has_colon(at: int, end: int) -> Int:
    """True if the first three bytes have a colon."""
    found = False
    stop = min(end, at + 3)
    while at < stop:
        if load_u8(at) == 0x3A:
            found = True
        at += 1
    return found
