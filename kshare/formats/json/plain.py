"""``from_json`` in plain Python: its rules, for one record at a time.

What Spark's function does with a record, in PERMISSIVE:

    nothing, or blanks alone -------------------------------> null, no fault
    its first value is no valid JSON ------------------------> a struct of nulls, a fault
    it is no object -----------------------------------------> a struct of nulls, a fault
    a field has a value of another type, or out of range ----> that field is null, a fault
      in a list: the whole list is null
      in a map: the whole map is null
      in a struct: that field of it is null
    a field is missing, or null -----------------------------> null
    a field is there twice ----------------------------------> the last one that can be read
    a field that is not asked for ---------------------------> only its grammar counts

Names are compared with their case. What stands behind the object is not looked at. The compiled
``decode_json`` does the same; what it finds too hard for it comes here.
"""

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from fractions import Fraction
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kshare.formats.json.options import JsonOptions
from kshare.formats.json.patterns import Pattern
from kshare.formats.json.reasons import excerpt, type_name
from kshare.formats.json.syntax import MalformedError, Text, java_text
from kshare.formats.json.times import date_of, legacy_date, micros_in, timestamp_of

__all__ = ["PlainReader"]

_INTEGERS: Final = {
    # Jackson takes unsigned bytes, too.
    pa.int8(): (-(1 << 7), (1 << 8) - 1),
    pa.int16(): (-(1 << 15), (1 << 15) - 1),
    pa.int32(): (-(1 << 31), (1 << 31) - 1),
    pa.int64(): (-(1 << 63), (1 << 63) - 1),
}
_NON_NUMBERS: Final = {
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "+Infinity": float("inf"),
    "+INF": float("inf"),
    "-Infinity": float("-inf"),
    "-INF": float("-inf"),
}
_BIG: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,9})?")
_EXPONENT_MAX: Final = 10_000
_EXPONENT_MIN: Final = -400  # of what is no fraction that is worth to compute
_FLOAT_MAX: Final = 2.0**128 - 2.0**103  # half way from the greatest float to the next power of 2
_MAX_DIGITS: Final = 2_000
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]*={0,2}", re.ASCII)


@dataclass(frozen=True, slots=True)
class _WrongError(Exception):
    """A value is not of its type; the field's path begins with the innermost name."""

    begin: int
    wanted: pa.DataType


@dataclass(slots=True)
class _Found:
    """The first thing in a record that is wrong, but costs it one field alone."""

    path: str
    reason: str


class PlainReader:
    """Reads records, one by one.

    Args:
        schema: The struct that they are.
        options: How they are read.
    """

    def __init__(self, schema: pa.StructType, options: JsonOptions) -> None:
        self._schema = schema
        self._options = options
        formats = (options.timestamp_format, options.timestamp_ntz_format, options.date_format)
        self._stamp, self._local, self._date = (Pattern(each) if each else None for each in formats)
        self._fault: _Found | None = None

    def read(self, payload: bytes) -> tuple[dict[str, Any] | None, tuple[str, str] | None]:
        """Read a record.

        Returns:
            Its value, with numbers for dates and timestamps; and, if it is bad, the field and what
            is wrong with it.
        """
        text = Text(java_text(payload), self._options)
        self._fault = None
        try:
            begin = text.space(0)
            if begin == len(text.text):
                return None, None
            if text.text[begin] == "{":
                text.skip(begin)
        except MalformedError as error:
            at = len(text.text[: error.at].encode())
            return self._nulls(), ("", error.reason or f"is no valid JSON at byte {at + 1}")
        if text.text[begin] != "{":
            found = excerpt(text.text[begin : begin + 64])
            return self._nulls(), ("", f"is {found}, where an object is wanted")
        try:
            value = self._struct(text, begin, self._schema, "")
        except MalformedError as error:
            return self._nulls(), ("", error.reason)
        fault = self._fault
        return value, None if fault is None else (fault.path, fault.reason)

    def _nulls(self) -> dict[str, Any]:
        return {field.name: None for field in self._schema}

    def _note(self, text: Text, path: str, error: _WrongError) -> None:
        """Remember what was wrong first."""
        if self._fault is None:
            found = excerpt(text.text[error.begin : error.begin + 64])
            self._fault = _Found(path, f"has {found} where {type_name(error.wanted)} is wanted")

    def _value(self, text: Text, at: int, kind: pa.DataType, path: str) -> Any:
        """Read a value.

        Raises:
            _WrongError: It is not of its type.
        """
        if text.text.startswith("null", at):
            return None
        sign = text.text[at]
        if pa.types.is_string(kind):
            return self._string(text, at)
        if sign in "{[":
            wanted = _container(kind)
            if sign != wanted:
                raise _WrongError(at, kind)
            return self._containers[wanted, pa.types.is_map(kind)](self, text, at, kind, path)
        if _container(kind):
            raise _WrongError(at, kind)
        word, end = text.scalar(at)
        shown = text.string(at)[0] if word == "string" else text.text[at:end]
        found = self._scalar(word, shown, kind)
        if found is None:
            raise _WrongError(at, kind)
        return found

    def _struct(self, text: Text, at: int, kind: pa.StructType, path: str) -> dict[str, Any]:
        found = {field.name: None for field in kind}
        for name, begin, _ in text.entries(at):
            if name not in found:
                continue
            place = f"{path}.{name}" if path else name
            try:
                found[name] = self._value(text, begin, kind.field(name).type, place)
            except _WrongError as error:
                self._note(text, place, error)
        return found

    def _list(self, text: Text, at: int, kind: pa.ListType, path: str) -> list[Any]:
        return [
            self._value(text, begin, kind.value_type, path) for begin in list(text.elements(at))
        ]

    def _map(self, text: Text, at: int, kind: pa.MapType, path: str) -> list[tuple[str, Any]]:
        found, wrong = [], None
        for name, begin, _ in text.entries(at):
            try:
                found.append((name, self._value(text, begin, kind.item_type, path)))
            except _WrongError as error:
                wrong = wrong or error
        if wrong is not None:
            raise wrong
        return found

    _containers: Final[dict[tuple[str, bool], Callable[..., Any]]] = {
        ("{", False): _struct,
        ("{", True): _map,
        ("[", False): _list,
    }

    def _string(self, text: Text, at: int) -> str:
        if text.text[at] in "\"'":
            return text.string(at)[0]
        return text.compact(at, text.skip(at))

    def _scalar(  # noqa: PLR0911
        self, word: str, text: str, kind: pa.DataType
    ) -> Any:
        """Make a value of a word that is neither null nor for a string; None: it cannot be."""
        if pa.types.is_boolean(kind):
            return {"true": True, "false": False}.get(word)
        if kind in _INTEGERS:
            return _integer(word, text, kind)
        if pa.types.is_floating(kind):
            return self._floating(word, text, kind)
        if pa.types.is_decimal(kind):
            return _decimal(word, text, kind)
        if pa.types.is_binary(kind):
            return _from_base64(text) if word == "string" else None
        if word == "string":
            return self._time(text, kind) if text else None
        if word == "int" and pa.types.is_timestamp(kind) and kind.tz is not None:
            seconds = int(text)
            if not -(1 << 63) <= seconds < 1 << 63:
                return None
            return (seconds * 1_000_000 + (1 << 63)) % (1 << 64) - (1 << 63)  # as Java's product
        return None

    def _floating(self, word: str, text: str, kind: pa.DataType) -> float | None:
        narrow = pa.types.is_float32(kind)
        if word in {"int", "float"}:
            shown = str(int(text)) if word == "int" else text  # -0 is 0
            return nearest_float(shown) if narrow else float(shown)
        if word == "string":
            return _NON_NUMBERS.get(text) if self._options.allow_non_numeric_numbers else None
        return _NON_NUMBERS.get(word)

    def _time(self, text: str, kind: pa.DataType) -> int | None:
        if pa.types.is_date(kind):
            if self._date is None:
                found = date_of(text)
                return legacy_date(text) if found is None else found
            moment = self._date.read(text)
            micros = None if moment is None else micros_in(moment, None)
            return None if micros is None else micros // 86_400_000_000
        zone = self._options.time_zone if kind.tz else None
        pattern = self._stamp if kind.tz else self._local
        if pattern is not None:
            moment = pattern.read(text)
            if moment is None or (zone is None and moment.zone is not None):
                return None
            return micros_in(moment, zone)
        found = timestamp_of(text, zone)
        if found is None and zone is not None and "GMT" in text:
            found = timestamp_of(text.replace("GMT", ""), zone)
        return found


def _container(kind: pa.DataType) -> str:
    """The sign that a value of a type begins with; "": it is a scalar."""
    if pa.types.is_list(kind):
        return "["
    return "{" if pa.types.is_struct(kind) or pa.types.is_map(kind) else ""


def _integer(word: str, text: str, kind: pa.DataType) -> int | None:
    if word != "int":
        return None
    low, high = _INTEGERS[kind]
    number = int(text)
    if not low <= number <= high:
        return None
    return number - 256 if kind == pa.int8() and number > 127 else number


def nearest_float(text: str) -> float:
    """The number of 32 bits that is nearest to a decimal one."""
    exact = float(text)
    if not -_FLOAT_MAX < exact < _FLOAT_MAX:
        return exact * float("inf")
    with np.errstate(over="ignore"):
        narrow = np.float32(exact)
    number = Decimal(text)
    if not exact or float(narrow) == number or number.adjusted() < _EXPONENT_MIN:
        return float(narrow)
    # By way of a double it may have been rounded twice.
    goal = Fraction(number)
    with np.errstate(over="ignore"):
        around = [narrow, *(np.nextafter(narrow, np.float32(end)) for end in (-np.inf, np.inf))]
    return min(
        (float(each) for each in around if np.isfinite(each)),
        key=lambda each: (abs(Fraction(each) - goal), _is_odd(each)),
    )


def _is_odd(value: float) -> int:
    return int(np.float32(value).view(np.uint32)) & 1


def _decimal(word: str, text: str, kind: pa.DataType) -> Decimal | None:
    if word == "string":
        text = text.replace(",", "")
    elif word not in {"int", "float"}:
        return None
    if not _BIG.fullmatch(text):
        return None
    number = Decimal(text)
    if number and not -_EXPONENT_MAX < number.adjusted() < kind.precision:
        return Decimal(0).scaleb(-kind.scale) if number.adjusted() < 0 else None
    try:
        context = Context(prec=_MAX_DIGITS, rounding=ROUND_HALF_UP)
        found = number.quantize(Decimal(1).scaleb(-kind.scale), context=context)
    except InvalidOperation:
        return None
    return found if len(found.as_tuple().digits) <= kind.precision or not found else None


def _from_base64(text: str) -> bytes | None:
    """Read base 64 as Jackson does: blanks between groups of four, and no character besides.

    Raises:
        MalformedError: A group of one character ends it: Jackson goes on behind the string then,
            and understands no more of the record.
    """
    kept, at = [], 0
    while at < len(text):
        if text[at] <= " ":
            at += 1
            continue
        kept.append(text[at : at + 4])
        at += 4
    if kept and len(kept[-1]) == 1 and all(map(_BASE64.fullmatch, kept)) and kept[-1] != "=":
        raise MalformedError(0, "has base 64 with a character too many")
    if any(len(each) != 4 or not _BASE64.fullmatch(each) for each in kept):
        return None
    try:
        return b"".join(base64.b64decode(each, validate=True) for each in kept)
    except binascii.Error:
        return None
