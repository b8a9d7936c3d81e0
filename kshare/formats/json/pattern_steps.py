"""Patterns of dates and times as the compiled reader wants them: a table of steps.

It reads numbers, signs, offsets, AM and PM, and optional parts that begin with a sign or an offset.
Whatever it reads, :class:`kshare.formats.json.patterns.Pattern` reads in the same way.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import pyarrow as pa

from kshare.formats.json.patterns import parts_of
from kshare.read.decode import pattern_step as steps

__all__ = ["Step", "pattern_steps"]

Step = tuple[int, int, int]

_NUMBERS: Final = {
    "M": steps.MONTH,
    "d": steps.DAY,
    "H": steps.HOUR,
    "h": steps.HOUR_OF_HALF,
    "m": steps.MINUTE,
    "s": steps.SECOND,
}
_OFFSETS: Final = {
    "X": steps.UTC | steps.HOURS,
    "XX": steps.UTC,
    "XXX": steps.UTC | steps.COLON,
    "x": steps.HOURS,
    "xx": 0,
    "xxx": steps.COLON,
    "Z": 0,
    "ZZ": 0,
    "ZZZ": 0,
}
_MICROS_DIGITS: Final = 6


class _UnknownError(Exception):
    """The compiled reader does not know a part."""


def pattern_steps(pattern: str, kind: pa.DataType) -> list[Step]:
    """The steps of a pattern; none: the compiled reader does not know it.

    Args:
        pattern: A pattern that can be read.
        kind: What its texts become: a date, or a timestamp with or without a zone.
    """
    made: list[Step] = []
    opened: list[int] = []
    try:
        for what, text, adjacent in parts_of(pattern):
            if what == "optional":
                opened.append(len(made))
                made.append((steps.OPTIONAL, 0, 0))
            elif what == "end":
                begin = opened.pop()
                made[begin] = steps.OPTIONAL, len(made) - begin - 1, 0
            elif what == "literal":
                made += _literal(text)
            else:
                made.append(_field(text, adjacent=adjacent))
        _check(made, kind)
    except _UnknownError:
        return []
    is_exact = all(step[0] != steps.OPTIONAL for step in made)
    return [(steps.BEGIN, _meaning(kind), int(is_exact)), *made]


def _meaning(kind: pa.DataType) -> int:
    if pa.types.is_date(kind):
        return steps.DATE
    return steps.TIMESTAMP if kind.tz else steps.LOCAL_TIMESTAMP


def _literal(text: str) -> Iterator[Step]:
    for letter in text:
        # A digit might be the number's before it.
        if not letter.isascii() or letter.isdigit():
            raise _UnknownError
        yield steps.LITERAL, ord(letter), 0


def _field(text: str, *, adjacent: bool) -> Step:
    letter, count = text[0], len(text)
    if text == "yy":
        return steps.SHORT_YEAR, 2, 2
    if letter in "yu" and count == 4:
        return steps.YEAR, 4, 4
    if letter in _NUMBERS and count <= 2:
        least = 2 if count == 2 or adjacent else 1
        return _NUMBERS[letter], least, 2
    if letter == "S":
        more = _MICROS_DIGITS - count
        return steps.FRACTION, count, 10**more if more >= 0 else -(10**-more)
    if text == "a":
        return steps.HALF, 0, 0
    if text in _OFFSETS and not adjacent:
        return steps.ZONE, _OFFSETS[text], 0
    raise _UnknownError


def _check(made: list[Step], kind: pa.DataType) -> None:
    """Refuse what the compiled reader would read in another way."""
    kinds = [step[0] for step in made]
    behind_optional = [after for before, after in pairwise(kinds) if before == steps.OPTIONAL]
    fields = [each for each in kinds if each not in (steps.LITERAL, steps.OPTIONAL)]
    has_zone = steps.ZONE in fields
    if (
        len(set(fields)) < len(fields)  # which of them counts
        or {steps.YEAR, steps.SHORT_YEAR} <= set(fields)
        or not {steps.LITERAL, steps.ZONE}.issuperset(behind_optional)
        or kinds[-1:] == [steps.OPTIONAL]
        or (has_zone and _meaning(kind) != steps.TIMESTAMP)
    ):
        raise _UnknownError
