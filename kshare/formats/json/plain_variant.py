"""Spark's ``parse_json`` in plain Python, for one record at a time.

It reads what the compiled ``decode_variant`` finds too hard for it: digits beyond 64 bits, bytes
that are not UTF-8, a name that is there twice, half a surrogate pair. The bytes are those that
Spark's builder makes::

    value     a first byte with the kind; then the content
      string    up to 63 bytes: their number is in the first byte; else in the next four
      integer   the narrowest of 8, 16, 32, 64 bits; beyond: a decimal, or a double
      number with a point, of at most 38 digits: a decimal of 4, 8 or 16 bytes; else a double
      object    how many fields, ids of names, offsets of values, values; sorted by names as Java
                does, where values stay in the order of the record
    metadata  the names, in the order of the record, with their offsets
"""

import re
import struct
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from kshare.formats.json.options import JsonOptions
from kshare.formats.json.syntax import MalformedError, Text, java_text
from kshare.read.decode import variant_kind

__all__ = ["OPTIONS", "PlainVariant", "too_large"]

OPTIONS: Final = JsonOptions(allow_single_quotes=False, allow_non_numeric_numbers=False)
"""The way ``parse_json`` reads: JSON, and nothing else."""

_POINTED: Final = re.compile(r"-?(\d+)(?:\.(\d+))?")
_HALF: Final = re.compile("[\ud800-\udfff]")
_AFTER_NUMBER: Final = " \t\r\n"
_INT64: Final = 1 << 63
_INTEGERS: Final = (
    (variant_kind.INT8, 1),
    (variant_kind.INT16, 2),
    (variant_kind.INT32, 4),
    (variant_kind.INT64, 8),
)
_DECIMALS: Final = (
    (variant_kind.DECIMAL4, variant_kind.DECIMAL4_MAX, 4),
    (variant_kind.DECIMAL8, variant_kind.DECIMAL8_MAX, 8),
    (variant_kind.DECIMAL16, variant_kind.DECIMAL16_MAX, 16),
)
_WORDS: Final = {
    "null": variant_kind.NULL,
    "true": variant_kind.TRUE,
    "false": variant_kind.FALSE,
}


def too_large() -> str:
    """The reason of a record whose variant is too large."""
    return f"makes a variant of more than {variant_kind.SIZE_MAX >> 20} MiB"


@dataclass(slots=True)
class _Level:
    """An object or array that is being read."""

    closing: str
    start: int
    fields: list[tuple[str, int]] = field(default_factory=list)  # name, offset


class PlainVariant:
    """Reads one record.

    Args:
        payload: Its bytes.
    """

    def __init__(self, payload: bytes) -> None:
        self._text = Text(java_text(payload), OPTIONS)
        self._value = bytearray()
        self._ids: dict[str, int] = {}

    def read(self) -> tuple[bytes, bytes] | str:
        """Read it.

        Returns:
            Value and metadata; or why it is bad.
        """
        text = self._text
        try:
            begin = text.space(0)
            if begin == len(text.text):
                return "is empty"
            self._check_end(begin, text.skip(begin))
            self._read(begin)
            found = bytes(self._value), self._metadata()
            if max(map(len, found)) > variant_kind.SIZE_MAX:
                return too_large()
        except MalformedError as error:
            at = len(text.text[: error.at].encode())
            return error.reason or f"is no valid JSON at byte {at + 1}"
        return found

    def _check_end(self, begin: int, end: int) -> None:
        """Look at the character behind the value as a whole, as Jackson does."""
        first, behind = self._text.text[begin], self._text.text[end : end + 1]
        if first == "-" or first.isdecimal():
            wrong = behind not in _AFTER_NUMBER
        else:
            wrong = first in "tfn" and behind >= "0" and (f"a{behind}".isidentifier())
        if wrong or (first in "tfn" and behind == "\x7f"):
            raise MalformedError(end)

    def _read(self, at: int) -> None:
        """Write the value that begins here, whose grammar was checked."""
        text, levels = self._text, list[_Level]()
        while True:
            sign = text.text[at]
            if opened := sign in "{[":
                levels.append(_Level("}" if sign == "{" else "]", len(self._value)))
                at = text.space(at + 1)
            else:
                at = self._scalar(at)
            while levels:
                at = text.space(at)
                level = levels[-1]
                if text.text[at] == level.closing:
                    self._end(levels.pop(), at)
                    at += 1
                    opened = False
                    continue
                if not opened:
                    at = text.space(at + 1)
                name = ""
                if level.closing == "}":
                    name, end = self._characters(at, is_name=True)
                    at = text.colon(end)
                    self._ids.setdefault(name, len(self._ids))
                level.fields.append((name, len(self._value) - level.start))
                break
            else:
                return

    # -- scalars ---------------------------------------------------------------------------------

    def _scalar(self, at: int) -> int:
        """Write a value that is no container; return where it ends."""
        kind, end = self._text.scalar(at)
        if kind == "string":
            self._string(self._characters(at)[0].encode())
        elif kind in _WORDS:
            self._value.append(_WORDS[kind] << 2)
        else:
            self._number(self._text.text[at:end], is_integer=kind == "int")
        return end

    def _characters(self, at: int, *, is_name: bool = False) -> tuple[str, int]:
        """A string or name, and where it ends."""
        found, end = self._text.characters(at, is_name=is_name)
        if _HALF.search(found):
            raise MalformedError(at, "has a string with half a surrogate pair")
        return found, end

    def _string(self, data: bytes) -> None:
        if len(data) <= variant_kind.SHORT_STRING_MAX:
            self._value.append(len(data) << 2 | variant_kind.SHORT_STRING)
        else:
            self._value.append(variant_kind.LONG_STRING << 2)
            self._value += len(data).to_bytes(4, "little")
        self._value += data

    def _number(self, text: str, *, is_integer: bool) -> None:
        if is_integer and -_INT64 <= (number := int(text)) < _INT64:
            kind, width = next(
                each
                for each in _INTEGERS
                if -(1 << 8 * each[1] - 1) <= number < 1 << 8 * each[1] - 1
            )
            self._value.append(kind << 2)
            self._value += number.to_bytes(width, "little", signed=True)
        elif not self._decimal(text):
            self._value.append(variant_kind.DOUBLE << 2)
            self._value += struct.pack("<d", float(text))

    def _decimal(self, text: str) -> bool:
        """Write a number as a decimal, if it is one of at most 38 digits."""
        match = _POINTED.fullmatch(text)
        if match is None:
            return False
        scale = len(match[2] or "")
        digits = (match[1] + (match[2] or "")).lstrip("0")
        most = max(len(digits), scale)
        for kind, limit, width in _DECIMALS:
            if most <= limit:
                unscaled = int(digits or "0") * (-1 if text.startswith("-") else 1)
                self._value += bytes((kind << 2, scale))
                self._value += unscaled.to_bytes(width, "little", signed=True)
                return True
        return False

    # -- objects, arrays, metadata ---------------------------------------------------------------

    def _end(self, level: _Level, at: int) -> None:
        """Write the head of an object or array in front of its values."""
        size, fields = len(self._value) - level.start, level.fields
        if size > 0xFFFFFF:
            raise MalformedError(at, too_large())
        large, width = len(fields) > 0xFF, _width(size)
        counted = len(fields).to_bytes(4 if large else 1, "little")
        if level.closing == "}":
            fields.sort(key=lambda each: each[0].encode("utf-16-be"))
            for (one, _), (other, _) in pairwise(fields):
                if one == other:
                    raise MalformedError(at, f"has an object with two fields {_shown(one)}")
            ids = [self._ids[name] for name, _ in fields]
            ids_width = _width(max(ids, default=0))
            head = large << 6 | (ids_width - 1) << 4 | (width - 1) << 2 | variant_kind.OBJECT
            counted += b"".join(each.to_bytes(ids_width, "little") for each in ids)
        else:
            head = large << 4 | (width - 1) << 2 | variant_kind.ARRAY
        offsets = [*(offset for _, offset in fields), size]
        listed = b"".join(each.to_bytes(width, "little") for each in offsets)
        self._value[level.start : level.start] = bytes([head]) + counted + listed

    def _metadata(self) -> bytes:
        names = [name.encode() for name in self._ids]
        total = sum(map(len, names))
        if max(total, len(names)) > 0xFFFFFF:
            raise MalformedError(0, too_large())
        width = _width(max(total, len(names)))
        parts, offset = [len(names)], 0
        for name in names:
            parts.append(offset)
            offset += len(name)
        parts.append(offset)
        head = bytes([variant_kind.VERSION | (width - 1) << 6])
        return head + b"".join(each.to_bytes(width, "little") for each in parts) + b"".join(names)


def _width(number: int) -> int:
    return 1 if number <= 0xFF else 2 if number <= 0xFFFF else 3


def _shown(name: str) -> str:
    """A name as a reason shows it."""
    shown = "".join(sign if sign.isprintable() else "\ufffd" for sign in name[:30])
    return shown if len(name) <= 30 else f"{shown}..."
