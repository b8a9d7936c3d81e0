"""Dates and times in texts, as Spark reads them without a pattern.

Timestamps are microseconds since 1970 in UTC, dates days since 1970, both of the proleptic
Gregorian calendar. None: the text is no such thing.
"""

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from kshare.formats.json.patterns import Moment

__all__ = ["date_of", "days", "legacy_date", "micros_in", "timestamp_of", "zone_of"]

_MICROS_PER_DAY: Final = 86_400_000_000
_INT64: Final = 1 << 63
_INT32: Final = 1 << 31
# Blanks and ISO controls of one byte, around the text.
_TRIMMED: Final = "".join(map(chr, [*range(0x21), 0x7F]))

_TIME: Final = (
    r"(?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})"
    r"(?:\.(?P<fraction>\d*))?(?P<zone>[^\d].*)?)?)?"
)
_STAMP: Final = re.compile(
    rf"(?P<sign>[+-]?)(?P<year>\d{{4,6}})"
    rf"(?:-(?P<month>\d{{1,2}})(?:-(?P<day>\d{{1,2}})(?:[ T]{_TIME})?)?)?",
    re.ASCII | re.DOTALL,
)
_TIME_ALONE: Final = re.compile(rf"T?{_TIME}", re.ASCII | re.DOTALL)
_DATE: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<year>\d{4,7})"
    r"(?:-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2})(?:[ T].*)?)?)?",
    re.ASCII | re.DOTALL,
)
_INTEGER: Final = re.compile(r"[+-]?\d+")  # Java knows other digits, too
_OFFSET: Final = re.compile(
    r"(?P<sign>[+-])(?:(?P<h1>\d)|(?P<h2>\d\d)(?::?(?P<m>\d\d))?|"
    r"(?P<h3>\d\d):(?P<m3>\d\d):(?P<s3>\d\d)|(?P<h4>\d\d)(?P<m4>\d\d)(?P<s4>\d\d))",
    re.ASCII,
)
_OFFSET_MAX: Final = timedelta(hours=18)
_SHORT_IDS: Final = {
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
    "EST": "-05:00",
    "MST": "-07:00",
    "HST": "-10:00",
}


def days(year: int, month: int, day: int) -> int | None:
    """Days since 1970; None: there is no such day."""
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    lengths = (31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    if not 1 <= month <= 12 or not 1 <= day <= lengths[month - 1]:
        return None
    before = year - 1
    return (
        365 * before
        + before // 4
        - before // 100
        + before // 400
        + sum(lengths[: month - 1])
        + day
        - 719_163
    )


def date_of(text: str) -> int | None:
    """Read a date as Spark casts it: 32 bits hold its days."""
    match = _DATE.fullmatch(text.strip(_TRIMMED))
    if match is None:
        return None
    year = int(match["year"]) * (-1 if match["sign"] == "-" else 1)
    return _of_32_bits(days(year, int(match["month"] or 1), int(match["day"] or 1)))


def _of_32_bits(number: int | None) -> int | None:
    return number if number is not None and -_INT32 <= number < _INT32 else None


def legacy_date(text: str) -> int | None:
    """Read a date that Spark's cast refuses: with GMT in it, or a number of days."""
    found = date_of(text.replace("GMT", ""))
    if found is None and _INTEGER.fullmatch(text) and len(text) <= 20:
        number = int(text)
        found = _of_32_bits(_rebased(number)) if -_INT32 <= number < _INT32 else None
    return found


_GREGORIAN_FROM: Final = -141_427  # days: 1582-10-15


def _rebased(number: int) -> int | None:
    """Days of the hybrid calendar as days of the proleptic one, with the same date."""
    if number >= _GREGORIAN_FROM:
        return number
    # The Julian day number's algorithm for the Julian calendar.
    c = number + 2_440_588 + 32_082
    d = (4 * c + 3) // 1461
    e = c - 1461 * d // 4
    m = (5 * e + 2) // 153
    day = e - (153 * m + 2) // 5 + 1
    month, year = m + 3 - 12 * (m // 10), d - 4800 + m // 10
    found = days(year, month, day)
    # The 29th of February of a year that is a leap year in the Julian calendar alone.
    return days(year, 3, 1) if found is None else found


def timestamp_of(text: str, zone: str | None) -> int | None:
    """Read a timestamp as Spark casts it.

    Args:
        text: The text.
        zone: Of a text that names none; None: one that names a zone, or no date, is refused.
    """
    trimmed = text.strip(_TRIMMED)
    match = _STAMP.fullmatch(trimmed)
    alone = None
    # A T that stands before a time is read at the very start alone.
    if match is None and not (trimmed[:1] == "T" and text[:1] != "T"):
        alone = _TIME_ALONE.fullmatch(trimmed)
    parts = match or alone
    if parts is None or (alone is not None and trimmed[:1] != "T" and ":" not in trimmed):
        return None
    if zone is None and (alone is not None or parts["zone"]):
        return None
    fraction = (parts["fraction"] or "")[:6].ljust(6, "0")
    clock = (int(parts["hour"] or 0), int(parts["minute"] or 0), int(parts["second"] or 0))
    named = parts["zone"].strip(_TRIMMED) if parts["zone"] else None
    if match is None:
        place = zone_of(named or zone or "UTC")
        if place is None:
            return None
        today = datetime.now(place)
        date = (today.year, today.month, today.day)
    else:
        sign = -1 if match["sign"] == "-" else 1
        date = (sign * int(match["year"]), int(match["month"] or 1), int(match["day"] or 1))
    return micros_in(Moment(date, (*clock, int(fraction)), named), zone)


def micros_in(moment: Moment, zone: str | None) -> int | None:
    """The microseconds of a moment, in its own zone, or else the given one; None is UTC."""
    date = days(*moment.date)
    hour, minute, second, micros = moment.time
    if date is None or hour > 23 or minute > 59 or second > 59:
        return None
    place = zone_of(moment.zone or zone or "UTC")
    if place is None:
        return None
    local = ((hour * 60 + minute) * 60 + second) * 1_000_000 + micros
    found = date * _MICROS_PER_DAY + local - _offset(place, moment) // timedelta(microseconds=1)
    return found if -_INT64 <= found < _INT64 else None


def _offset(place: tzinfo, moment: Moment) -> timedelta:
    year, month, day = moment.date
    if not 1 <= year <= 9999:
        # Rules go on for ever: the calendar repeats after 400 years.
        year = 1 if year < 1 else 9200 + year % 400
        day = min(day, 28) if month == 2 and year == 1 else day
    return place.utcoffset(datetime(year, month, day, *moment.time, tzinfo=place)) or timedelta()


@lru_cache(maxsize=1024)
def zone_of(name: str) -> tzinfo | None:
    """A zone by its name, as Spark and Java read it; None: there is none."""
    # Spark adds the zeros that Java asks for.
    name = re.sub(r"([+-])(\d):", r"\g<1>0\2:", name, count=1, flags=re.ASCII)
    name = re.sub(r"([+-])(\d\d):(\d)$", r"\1\2:0\3", name, count=1, flags=re.ASCII)
    name = _SHORT_IDS.get(name, name)
    if name in {"Z", "UTC", "GMT", "UT"}:
        return UTC
    prefix = next((each for each in ("UTC", "GMT", "UT") if re.match(rf"{each}[+-]", name)), "")
    offset = _OFFSET.fullmatch(name[len(prefix) :])
    if offset is not None:
        found = offset.groupdict(default="")
        hours = int(found["h1"] or found["h2"] or found["h3"] or found["h4"])
        minutes = int(found["m"] or found["m3"] or found["m4"] or 0)
        seconds = int(found["s3"] or found["s4"] or 0)
        delta = timedelta(hours=hours, minutes=minutes, seconds=seconds)
        if minutes > 59 or seconds > 59 or delta > _OFFSET_MAX:
            return None
        return timezone(-delta if found["sign"] == "-" else delta)
    if prefix or not re.fullmatch(r"[A-Za-z][A-Za-z0-9~/._+-]+", name):
        return None
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None
