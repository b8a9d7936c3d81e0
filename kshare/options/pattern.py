"""Regular expressions of Java -> those of Python.

Guarantee: a pattern matches the names of topics (ASCII letters, digits, ``.``, ``_``, ``-``) in
which Java's ``Pattern`` finds it, or it is refused, with the construct that Python does not have.
"""

import re
import warnings
from functools import lru_cache
from typing import Final

__all__ = ["java_pattern"]

# Names of topics are ASCII, so a class of Unicode means its ASCII part.
_CLASSES: Final = {
    name: characters
    for names, characters in (
        ("Lower Ll IsLowercase javaLowerCase", "a-z"),
        ("Upper Lu IsUppercase javaUpperCase", "A-Z"),
        ("Alpha L IsL IsAlphabetic javaAlphabetic javaLetter IsLatin", "a-zA-Z"),
        ("Digit N Nd IsDigit javaDigit", "0-9"),
        ("Alnum javaLetterOrDigit", "a-zA-Z0-9"),
        ("XDigit IsHex_Digit", "0-9a-fA-F"),
        ("Punct", r"!-/:-@\[-`{-~"),
        ("P IsPunctuation", r"!-#%-*,-/:;?@\[-\]_{}"),
        ("Space", r"\s"),
        ("Blank", r" \t"),
        ("ASCII", r"\x00-\x7f"),
        ("Graph", "!-~"),
        ("Print", " -~"),
    )
    for name in names.split()
}
_PLAIN_ESCAPES: Final = frozenset("dDsSwWbBAtnrfa")
_QUANTIFIER: Final = re.compile(r"\{[0-9]+(?:,[0-9]*)?\}", re.ASCII)
_GROUP: Final = re.compile(r"\(\?(?:<([A-Za-z][A-Za-z0-9]*)>|[:=!>]|<[=!]|[ims]+(?:-[ims]+)?:)")
_FLAGS: Final = re.compile(r"\(\?[ims]+\)")
_PROPERTY: Final = re.compile(r"\\[pP](?:\{([A-Za-z_]+)\}|([A-Z]))")
_CODE: Final = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4})")
_OCTAL: Final = re.compile(r"\\0([0-3]?[0-7]{1,2})")
_REFERENCE: Final = re.compile(r"\\k<([A-Za-z][A-Za-z0-9]*)>")


@lru_cache(maxsize=64)
def java_pattern(text: str) -> re.Pattern[str]:
    """Compile a Java regular expression; use ``search`` on it.

    Raises:
        ValueError: The text is not one, or uses what Python cannot express; the error says what.
    """
    translated = _Translator(text).translate()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return re.compile(translated, re.ASCII)
    except (re.error, OverflowError, RecursionError, FutureWarning, DeprecationWarning) as error:
        raise ValueError(f"is not a regular expression that kshare can use: {error}") from None


class _Translator:
    """Translates one pattern once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._done: list[str] = []

    def translate(self) -> str:
        flags = _FLAGS.match(self._text)
        if flags:
            self._take(flags[0])
        while self._at < len(self._text):
            character = self._text[self._at]
            if character == "\\":
                self._escape()
            elif character == "[":
                self._class()
            elif self._text.startswith("(?", self._at):
                self._group()
            elif character == "{":
                match = _QUANTIFIER.match(self._text, self._at)
                if match is None:
                    raise self._refused("a '{' that is no quantifier (write \\{)")
                self._take(match[0])
            else:
                self._take(character)
        return "".join(self._done)

    def _take(self, source: str, translated: str | None = None) -> None:
        self._at += len(source)
        self._done.append(source if translated is None else translated)

    def _refused(self, what: str) -> ValueError:
        return ValueError(f"has at position {self._at} {what}, which kshare does not support")

    def _group(self) -> None:
        match = _GROUP.match(self._text, self._at)
        if match is None:
            raise self._refused(f"the group {self._text[self._at : self._at + 4]!r}")
        self._take(match[0], f"(?P<{match[1]}>" if match[1] else None)

    def _escape(self) -> None:
        if self._text.startswith("\\Q", self._at):
            quoted = self._quoted()
            self._done.append(re.escape(quoted))
            return
        match = _REFERENCE.match(self._text, self._at)
        if match:
            self._take(match[0], f"(?P={match[1]})")
            return
        match = _PROPERTY.match(self._text, self._at)
        if match:
            negated = "^" if match[0][1] == "P" else ""
            self._take(match[0], f"[{negated}{self._property(match)}]")
            return
        following = self._text[self._at + 1 : self._at + 2]
        if following in {"Z", "z"}:  # names have no line ends, before which Java's \Z stands too
            self._take(f"\\{following}", r"\Z")
        elif following in {"h", "H"}:
            self._take(f"\\{following}", r"[ \t]" if following == "h" else r"[^ \t]")
        elif following and following in "123456789":
            two = self._text[self._at + 2 : self._at + 3]
            if two and two in "0123456789" and self._text.count("(") > 9:
                raise self._refused("a reference of two digits")
            self._take(f"\\{following}", f"(?:\\{following})")
        else:
            self._character(_PLAIN_ESCAPES)

    def _character(self, plain: frozenset[str]) -> None:
        """An escape that means the same in and out of a class."""
        match = _CODE.match(self._text, self._at)
        if match:
            self._take(match[0])
            return
        match = _OCTAL.match(self._text, self._at)
        if match:
            self._take(match[0], f"\\x{int(match[1], 8):02x}")
            return
        following = self._text[self._at + 1 : self._at + 2]
        if following == "e":
            self._take("\\e", r"\x1b")
        elif following in plain:
            self._take(f"\\{following}")
        elif following and not (following.isascii() and following.isalnum()):
            self._take(f"\\{following}", re.escape(following))
        else:
            raise self._refused(f"the escape '\\{following}'")

    def _property(self, match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in _CLASSES:
            raise self._refused(f"the class {match[0]!r}")
        return _CLASSES[name]

    def _quoted(self) -> str:
        begin = self._at + 2
        end = self._text.find("\\E", begin)
        end, self._at = (len(self._text),) * 2 if end < 0 else (end, end + 2)
        return self._text[begin:end]

    def _class(self) -> None:
        """A class in brackets: unions and intersections of classes are Java's alone."""
        self._take("[")
        if self._text.startswith("^", self._at):
            self._take("^")
        begin = self._at
        while self._at < len(self._text):
            character = self._text[self._at]
            if character == "]" and self._at > begin:
                self._take("]")
                return
            if character == "[" or self._text.startswith("&&", self._at):
                raise self._refused("a class within a class")
            if character == "\\":
                self._class_escape()
            else:
                special = character in "]&~|"
                self._take(character, f"\\{character}" if special else None)
        raise self._refused("no ']' for a '['")

    def _class_escape(self) -> None:
        if self._text.startswith("\\Q", self._at):
            self._done.append("".join(re.escape(character) for character in self._quoted()))
            return
        match = _PROPERTY.match(self._text, self._at)
        if match and match[0][1] == "p":
            self._take(match[0], self._property(match))
            return
        if self._text.startswith("\\h", self._at):
            self._take("\\h", r" \t")
            return
        self._character(frozenset("dDsSwWtnrfa"))
