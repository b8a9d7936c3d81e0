"""Patterns of dates and times, as Java's ``DateTimeFormatter`` and Spark have them.

What is of use in data is read: numbers of years to fractions of seconds, English names of months,
morning and afternoon, offsets, zones' names, literals, optional parts. Anything else is refused
when the options are read, and named.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["Moment", "Pattern", "PatternError", "parts_of"]

_FULL_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June", "July", "August", "September"),
    *("October", "November", "December"),
)
_MONTHS: Final = [name[:3] for name in _FULL_MONTHS]
_LETTERS: Final = "A-Za-z"
_TWO_DIGIT_BASE: Final = 2000


class PatternError(ValueError):
    """The rest of a sentence about a pattern: what is wanted."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The meaning of a text: a local date and time, and where it is.

    Attributes:
        date: Year, month and day.
        time: Hour, minute, second and microsecond.
        zone: An offset, or a zone's name; None: the text has neither.
    """

    date: tuple[int, int, int]
    time: tuple[int, int, int, int]
    zone: str | None


class Pattern:
    """A pattern, ready to read texts.

    Args:
        pattern: Java's.

    Raises:
        PatternError: It has something that is not supported.
    """

    def __init__(self, pattern: str) -> None:
        self._names: list[str] = []
        source = "".join(self._parts(pattern))
        self._expression = re.compile(source, re.DOTALL | re.ASCII)

    def _parts(self, pattern: str) -> Iterator[str]:
        for kind, text, adjacent in parts_of(pattern):
            if kind == "literal":
                yield re.escape(text)
            elif kind == "optional":
                yield "(?:"
            elif kind == "end":
                yield ")?"
            else:
                yield self._field(text[0], len(text), adjacent=adjacent)

    def _field(self, letter: str, count: int, *, adjacent: bool) -> str:
        name = f"{letter}{len(self._names)}"
        self._names.append(name)
        found = _fragment(letter, count, adjacent=adjacent)
        if found is None:
            raise PatternError(f"{letter * count} is not supported in patterns")
        return f"(?P<{name}>{found})"

    def read(self, text: str) -> Moment | None:
        """Read a whole text; None: it is not of this pattern, or of no date."""
        match = self._expression.fullmatch(text)
        if match is None:
            return None
        found = {name[0]: match[name] for name in self._names if match[name] is not None}
        year = int(found.get("y") or found.get("u") or 1970)
        if len(found.get("y", "")) == 2:
            year += _TWO_DIGIT_BASE
        hour = int(found.get("H", 0))
        if "h" in found:
            hour = int(found["h"]) % 12 + (12 if found.get("a", "AM").upper() == "PM" else 0)
            if not 1 <= int(found["h"]) <= 12:
                return None
        micros = int(found.get("S", "0")[:6].ljust(6, "0"))
        zone = next((found[letter] for letter in "XxZVz" if letter in found), None)
        return Moment(
            (year, _month(found.get("M", "1")), int(found.get("d", 1))),
            (hour, int(found.get("m", 0)), int(found.get("s", 0)), micros),
            zone,
        )


def parts_of(
    pattern: str,
) -> Iterator[tuple[Literal["literal", "optional", "end", "field"], str, bool]]:
    """The parts of a pattern, one after another.

    Yields:
        What each is; its text; whether the digits of another field come next.

    Raises:
        PatternError: Quotes or brackets do not match, or a sign is reserved.
    """
    at, depth = 0, 0
    while at < len(pattern):
        letter, end = pattern[at], at + 1
        if letter == "'":
            quote = pattern.find("'", at + 1)
            if quote < 0:
                raise PatternError("wanted a quote that ends, too")
            yield "literal", pattern[at + 1 : quote] or "'", False
            end = quote + 1
        elif letter in "[]":
            depth += 1 if letter == "[" else -1
            if depth < 0:
                raise PatternError("wanted [ before ]")
            yield "optional" if letter == "[" else "end", letter, False
        elif re.match(f"[{_LETTERS}]", letter):
            while end < len(pattern) and pattern[end] == letter:
                end += 1
            adjacent = end < len(pattern) and pattern[end] in "yuMdHhmsS"
            yield "field", pattern[at:end], adjacent
        elif letter in "#{}":
            raise PatternError(f"{letter} is reserved in patterns")
        else:
            yield "literal", letter, False
        at = end
    if depth:
        raise PatternError("wanted ] behind [")


def _month(text: str) -> int:
    return int(text) if text.isdigit() else _MONTHS.index(text[:3]) + 1


def _fragment(  # noqa: PLR0911
    letter: str, count: int, *, adjacent: bool
) -> str | None:
    """Return the regular expression of a field; None: there is none."""
    if letter in "yu":
        if count == 2 and letter == "y":
            return r"\d{2}"
        # Java's years of four digits may have more, if they have a sign; Spark takes none before.
        return r"\d{4}" if adjacent or count == 4 else rf"\d{{{count},10}}" if count < 7 else None
    if letter in "MdHhms" and count <= 2:
        return r"\d{2}" if count == 2 or adjacent else r"\d{1,2}"
    if letter == "M" and count == 3:
        return "|".join(name[:3] for name in _FULL_MONTHS)
    if letter == "M" and count == 4:
        return "|".join(_FULL_MONTHS)
    if letter == "S" and count <= 9:
        return rf"\d{{{count}}}"
    if letter == "a" and count == 1:
        return "AM|PM"
    if letter in "Xx" and count <= 3:
        colon = {1: r"[+-]\d\d(?:\d\d)?", 2: r"[+-]\d{4}", 3: r"[+-]\d\d:\d\d"}[count]
        return colon + ("|Z" if letter == "X" else "")
    if letter == "Z" and count <= 3:
        return r"[+-]\d{4}"
    if letter == "V" and count == 2:
        return r"Z|[+-]\d\d:\d\d|[A-Za-z][A-Za-z0-9~/._+-]+"
    return None
