"""The grammar of JSON as Jackson has it, with the options that Spark sets; in plain Python.

What is invalid makes a whole record bad, so a text is first passed over, which checks it, and then
read.
"""

import json
import re
from collections.abc import Iterator
from typing import Final

from kshare.formats.json.options import JsonOptions

__all__ = ["MAX_NUMBER", "Entries", "MalformedError", "Text", "java_text"]

MAX_NUMBER: Final = 1000
"""Digits of a number, at most, as in Jackson, which does not count a zero before the point."""

MAX_NAME: Final = 50_000
"""Characters of a field's name, at most, as in Jackson."""

Entries = Iterator[tuple[str, int, int]]
"""Name, begin and end of each value of an object."""

_SPACES: Final = re.compile(r"[ \t\r\n]*")
_COMMENTED: Final = re.compile(r"(?:[ \t\r\n]|/\*.*?\*/|//[^\r\n]*)*", re.DOTALL)
_PLAIN: Final = {quote: re.compile(rf"[^{quote}\\\x00-\x1f]*") for quote in "\"'"}
_UNCONTROLLED: Final = {quote: re.compile(rf"[^{quote}\\]*") for quote in "\"'"}
_NUMBER: Final = re.compile(r"-?([0-9]+)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_HEX: Final = re.compile(r"[0-9A-Fa-f]{4}")
_WORD: Final = re.compile(r"[+-]?[A-Za-z]+")
_NAME: Final = re.compile(r"[A-Za-z_$\-@#*][\w$\-@#*]*")
_ESCAPES: Final = {**dict(zip("bfnrt", "\b\f\n\r\t", strict=True)), '"': '"', "\\": "\\", "/": "/"}
_NON_NUMBERS: Final = {
    "NaN": "NaN",
    "Infinity": "Infinity",
    "+Infinity": "Infinity",
    "+INF": "Infinity",
    "-Infinity": "-Infinity",
    "-INF": "-Infinity",
}
_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
_LOWER: Final = re.compile(r"((?<!\\)(?:\\\\)*\\u)([0-9a-f]{4})")
_HALF: Final = re.compile("[\ud800-\udfff]")
_PAIRED: Final = re.compile("([\ud800-\udbff])([\udc00-\udfff])|[\ud800-\udfff]")


def java_text(data: bytes) -> str:
    """Decode UTF-8 as Java does: what is none becomes U+FFFD, one for an encoded surrogate."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _SURROGATE.sub(b"\xef\xbf\xbd", data).decode(errors="replace")


class MalformedError(ValueError):
    """The text is no JSON.

    Args:
        at: Where.
        reason: A clause.
    """

    def __init__(self, at: int, reason: str = "") -> None:
        super().__init__(reason)
        self.at = at
        self.reason = reason


class Text:
    """A text, and how it is to be read.

    Args:
        text: The text.
        options: How.
    """

    def __init__(self, text: str, options: JsonOptions) -> None:
        self.text = text
        self.options = options
        self._spaces = _COMMENTED if options.allow_comments else _SPACES
        self._plain = _UNCONTROLLED if options.allow_unquoted_control_chars else _PLAIN

    def space(self, at: int) -> int:
        """The end of the blanks that begin here."""
        match = self._spaces.match(self.text, at)
        return match.end() if match else at

    def _sign(self, at: int) -> str:
        """The character here.

        Raises:
            MalformedError: The text is at its end.
        """
        if at >= len(self.text):
            raise MalformedError(at, "is cut short")
        return self.text[at]

    def skip(self, at: int) -> int:
        """Check the value that begins here.

        Returns:
            Where it ends.

        Raises:
            MalformedError: It is no JSON.
        """
        closing: list[str] = []
        while True:
            at = self._begin(at, closing)  # one scalar, or an empty or opened container
            while closing:
                at = self.space(at)
                sign = self._sign(at)
                if sign == closing[-1]:
                    closing.pop()
                    at += 1
                elif sign == ",":
                    at = self.space(at + 1)
                    if closing[-1] == "}":
                        at = self.colon(self.string(at, is_name=True)[1])
                    break
                else:
                    raise MalformedError(at)
            else:
                return at

    def _begin(self, at: int, closing: list[str]) -> int:
        """Pass over a scalar, or the begin of a container up to its first scalar."""
        while (sign := self._sign(at)) in "{[":
            close = "}" if sign == "{" else "]"
            closing.append(close)
            if len(closing) > self.options.max_depth:
                limit = f"{self.options.max_depth:,}"
                raise MalformedError(at, f"has more than {limit} objects and arrays in each other")
            at = self.space(at + 1)
            if self._sign(at) == close:
                closing.pop()
                return at + 1
            if close == "}":
                at = self.colon(self.string(at, is_name=True)[1])
        return self.scalar(at)[1]

    def entries(self, at: int) -> Entries:
        """The entries of the object that begins here, in their order."""
        at = self.space(at + 1)
        while self._sign(at) != "}":
            name, at = self.string(at, is_name=True)
            at = self.colon(at)
            end = self.skip(at)
            yield name, at, end
            at = self.space(end)
            if self.text[at] == ",":
                at = self.space(at + 1)

    def elements(self, at: int) -> Iterator[int]:
        """The begins of the values of the array that begins here."""
        at = self.space(at + 1)
        while self._sign(at) != "]":
            yield at
            at = self.space(self.skip(at))
            if self.text[at] == ",":
                at = self.space(at + 1)

    def scalar(self, at: int) -> tuple[str, int]:
        """A value that is no container.

        Returns:
            Its kind: string, int, float, true, false, null, or what a number is that is none (NaN,
            Infinity, -Infinity); and where it ends.
        """
        sign = self._sign(at)
        if sign == '"' or (sign == "'" and self.options.allow_single_quotes):
            return "string", self.string(at)[1]
        match = _NUMBER.match(self.text, at)
        if match is not None:
            return self._number(match)
        word = _WORD.match(self.text, at)
        if word is None:
            raise MalformedError(at)
        if word.group() in {"true", "false", "null"}:
            return word.group(), word.end()
        if word.group() in _NON_NUMBERS and self.options.allow_non_numeric_numbers:
            return _NON_NUMBERS[word.group()], word.end()
        raise MalformedError(at)

    def _number(self, match: re.Match[str]) -> tuple[str, int]:
        whole, end = match[1], match.end()
        if whole[0] == "0" and len(whole) > 1 and not self.options.allow_numeric_leading_zeros:
            raise MalformedError(match.start())
        digits = [whole if whole != "0" else "", (match[2] or "")[1:], (match[3] or "")[1:]]
        if sum(len(each.lstrip("+-")) for each in digits) > MAX_NUMBER:
            raise MalformedError(match.start(), f"has a number of more than {MAX_NUMBER:,} digits")
        if self.text[end : end + 1] in {".", "e", "E"} and not match[3]:
            raise MalformedError(end)
        return "float" if match[2] or match[3] else "int", end

    def string(self, at: int, *, is_name: bool = False) -> tuple[str, int]:
        """The text of a string, or of a field's name, and where it ends."""
        found, end = self._units(at, is_name=is_name)
        return _joined(found, "?"), end

    def characters(self, at: int, *, is_name: bool = False) -> tuple[str, int]:
        """The same, with escapes of half a surrogate pair as they are."""
        found, end = self._units(at, is_name=is_name)
        return _joined(found, ""), end

    def colon(self, at: int) -> int:
        """The begin of the value behind the colon that follows here."""
        at = self.space(at)
        if self._sign(at) != ":":
            raise MalformedError(at)
        return self.space(at + 1)

    def _units(self, at: int, *, is_name: bool) -> tuple[str, int]:
        """The same, where an escaped surrogate is a character of its own."""
        quote = self._sign(at)
        if quote != '"' and not (quote == "'" and self.options.allow_single_quotes):
            name = _NAME.match(self.text, at)
            if is_name and name and self.options.allow_unquoted_field_names:
                return name.group(), name.end()
            raise MalformedError(at)
        plain, begin = self._plain[quote], at
        parts = []
        at += 1
        while True:
            end = plain.match(self.text, at).end()  # type: ignore[union-attr]
            parts.append(self.text[at:end])
            sign = self._sign(end)
            if sign == quote:
                found = "".join(parts)
                if is_name and len(found) > MAX_NAME:
                    raise MalformedError(begin, f"has a name of more than {MAX_NAME:,} characters")
                return found, end + 1
            if sign != "\\":
                raise MalformedError(end)
            sign, at = self._escaped(end + 1)
            parts.append(sign)

    def _escaped(self, at: int) -> tuple[str, int]:
        sign = self._sign(at)
        if sign in _ESCAPES:
            return _ESCAPES[sign], at + 1
        if sign == "u":
            digits = _HEX.match(self.text, at + 1)
            if digits is None:
                raise MalformedError(at)
            return chr(int(digits.group(), 16)), digits.end()
        options = self.options
        is_quote = sign == "'" and options.allow_single_quotes
        if is_quote or options.allow_backslash_escaping_any_character:
            return sign, at + 1
        raise MalformedError(at)

    def compact(self, begin: int, end: int) -> str:
        """A value as Jackson writes what it has read."""
        parts, at = [], begin
        while at < end:
            sign = self.text[at]
            if sign in "{}[],:":
                parts.append(sign)
                at += 1
            elif sign in "\"'" or self._is_name(at, parts):
                found, at = self._raw_string(at)
                parts.append(found)
            else:
                kind, until = self.scalar(at)
                parts.append(_written(kind, self.text[at:until]))
                at = until
            at = self.space(at)
        return "".join(parts)

    def _is_name(self, at: int, before: list[str]) -> bool:
        """True if a name begins here that has no quotes."""
        if not self.options.allow_unquoted_field_names or before[-1:] not in (["{"], [","]):
            return False
        match = _NAME.match(self.text, at)
        return match is not None and self._sign(self.space(match.end())) == ":"

    def _raw_string(self, at: int) -> tuple[str, int]:
        found, end = self._units(at, is_name=True)
        # Jackson's escapes have capitals; those of half a surrogate pair stay.
        text = json.dumps(_joined(found, ""), ensure_ascii=False)
        text = _LOWER.sub(lambda match: match[1] + match[2].upper(), text)
        return _HALF.sub(lambda match: f"\\u{ord(match.group()):04X}", text), end


def _joined(text: str, half: str) -> str:
    """A text whose escaped surrogates are characters where they are pairs.

    Args:
        text: The text.
        half: What else becomes of them; "": they stay.
    """
    if text.isascii() or not _PAIRED.search(text):
        return text

    def join(match: re.Match[str]) -> str:
        if match[1]:
            return match.group().encode("utf-16", "surrogatepass").decode("utf-16")
        return half or match.group()

    return _PAIRED.sub(join, text)


def _written(kind: str, text: str) -> str:
    """A scalar that is no string, as Jackson writes it."""
    if kind == "int":
        return str(int(text))
    if kind == "float":
        kind = java_double(float(text))
        return f'"{kind}"' if kind.endswith("y") else kind
    return kind if kind in {"true", "false", "null"} else f'"{kind}"'


def java_double(value: float) -> str:
    """``Double.toString(value)``."""
    if value in {float("inf"), float("-inf")}:
        return "Infinity" if value > 0 else "-Infinity"
    if abs(value) == 5e-324:
        return "-4.9E-324" if value < 0 else "4.9E-324"  # Java writes two digits at least
    mantissa, _, exponent = repr(value).partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return sign + "0.0"
    # The value is 0.DIGITS * 10 ** point.
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0") or "0"
    if -3 < point <= 7:
        if point <= 0:
            return f"{sign}0.{'0' * -point}{digits}"
        padded = digits.ljust(point + 1, "0")
        return f"{sign}{padded[:point]}.{padded[point:]}"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{point - 1}"
