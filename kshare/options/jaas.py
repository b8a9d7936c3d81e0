"""A line of JAAS: ``Module required username="..." password="...";``.

Guarantee: the line is read as Kafka's ``JaasConfig`` reads it with Java's ``StreamTokenizer``:
quotes, escapes and comments included. What Java would misread is an error. No error holds a value.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from kshare.options.frozen import Properties

__all__ = ["JaasEntry", "parse_jaas"]

_FLAGS = frozenset({"required", "requisite", "sufficient", "optional"})
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_SHOWN = frozenset({"username", "password", "clientId", "clientSecret", "scope", "tokenauth"})
_ESCAPE = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)


@cache
def _token_pattern() -> re.Pattern[str]:
    """Compile the pattern of a token: at first use, since its classes take 10 ms."""
    return re.compile(
        r"""(?P<skip>[\x00-\x20]+|/\*.*?(?:\*/|\Z)|/[^\r\n]*)
        |(?P<number>-?(?:[0-9]+\.?[0-9]*|\.[0-9]+))
        |(?P<word>[A-Za-z_$\xa0-\U0010ffff][A-Za-z0-9_$.\-\xa0-\U0010ffff]*)
        |"(?P<double>(?:[^"\\\r\n]|\\.)*)"
        |'(?P<single>(?:[^'\\\r\n]|\\.)*)'
        |(?P<other>.)""",
        re.VERBOSE | re.DOTALL,
    )


@dataclass(frozen=True, slots=True)
class JaasEntry:
    """A login module and its options.

    Attributes:
        module: The Java class, package included.
        options: Values by name, as written; texts of this object hold no values.
    """

    module: str
    options: Properties


def parse_jaas(text: str) -> JaasEntry:
    """Parse the one entry of a ``sasl.jaas.config``.

    Args:
        text: The value of the property.

    Raises:
        ValueError: The line cannot be read; the text says why, without values.
    """
    tokens = list(_tokens(text))
    if not tokens:
        raise ValueError("names no login module")
    entries = []
    while tokens:
        entries.append(_entry(tokens))
    if len(entries) > 1:
        raise ValueError(f"has {len(entries)} login modules; exactly one is wanted")
    return entries[0]


def _entry(tokens: list[tuple[str, str]]) -> JaasEntry:
    """Take one entry from the front of the tokens."""
    kind, module = tokens.pop(0)
    if kind != "text":
        raise ValueError("does not begin with the name of a login module")
    kind, flag = tokens.pop(0) if tokens else ("end", "")
    if kind != "text" or flag.lower() not in _FLAGS:
        raise ValueError(f"lacks a control flag after {_safe(module)}, such as 'required'")
    options: dict[str, str] = {}
    while tokens and tokens[0] != ("sign", ";"):
        kind, name = tokens.pop(0)
        if kind != "text":
            raise ValueError("has something else where the name of an option belongs")
        if not tokens or tokens.pop(0) != ("sign", "="):
            raise ValueError(f"has no '=' after {_safe(name)}")
        kind, value = tokens.pop(0) if tokens else ("end", "")
        if kind == "number":
            raise ValueError(
                f"has a number as value of {_safe(name)}, which Java cannot read either: put it "
                "in double quotes"
            )
        if kind != "text":
            raise ValueError(f"has no value for {_safe(name)}: put it in double quotes")
        options[name] = value
    if not tokens:
        raise ValueError("does not end with a semicolon")
    tokens.pop(0)
    return JaasEntry(module, Properties(options))


def _safe(name: str) -> str:
    """A name for an error: where quotes are missing, a piece of a password looks like one."""
    return name if name in _SHOWN or name.endswith("LoginModule") else "what is not shown here"


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    for match in _token_pattern().finditer(text):
        kind, value = match.lastgroup, match[match.lastgroup or 0]
        match kind:
            case "skip":
                continue
            case "number":
                yield "number", ""
            case "word":
                yield "text", value
            case "double" | "single":
                yield "text", _ESCAPE.sub(_unescape, value)
            case _:
                if value in "\"'":
                    raise ValueError("has a quoted text that does not end on its line")
                yield "sign", value


def _unescape(match: re.Match[str]) -> str:
    escaped = match[1]
    if escaped[0] in "01234567":
        return chr(int(escaped, 8))
    return _ESCAPES.get(escaped, escaped)
