"""Keys, names, numbers and times as people see them."""

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = [
    "ParkedCount",
    "counted",
    "duration",
    "join_names",
    "key_json",
    "key_of_json",
    "nearest",
    "printable",
    "printable_lines",
    "show_key",
]

_NEAR = 0.75
"""Least likeness of two names, by ``difflib``, for one to be the other misspelt: 1 if equal."""


_UNITS = (("s", 1.0), ("min", 60.0), ("h", 3600.0), ("day", 86_400.0))


def counted(n: int, one: str, many: str | None = None) -> str:
    """A number of things, such as ``1,024 records``.

    Args:
        n: The number.
        one: The noun.
        many: Its plural; None if that ends with an additional s.
    """
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def duration(seconds: float) -> str:
    """A time in a unit that suits it: ``0.4 s``, ``12 s``, ``5 min``, ``3 h``, ``67 days``.

    Each unit is left at two of the next one.
    """
    seconds = max(seconds, 0.0)
    name, unit = next((each for each in reversed(_UNITS) if seconds >= 2 * each[1]), _UNITS[0])
    if name == "s":
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    count = int(seconds / unit)
    return counted(count, name) if name == "day" else f"{count} {name}"


def join_names(names: Iterable[object], shown: int = 10) -> str:
    """Names with commas between them: the first few, and how many more there are.

    Args:
        names: What ``str`` shows.
        shown: Maximum number that is shown.
    """
    texts = [str(name) for name in names]
    more = len(texts) - shown
    return ", ".join(texts[:shown]) + (f" and {more} more" if more > 0 else "")


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of some names that a name was meant to be, upper and lower case aside; None if none.

    Args:
        name: A name that is not among them.
        names: The names that there are.
    """
    from difflib import get_close_matches  # noqa: PLC0415 - only for what is misspelt

    by_lower_case = {each.lower(): each for each in names}
    found = get_close_matches(name.lower(), by_lower_case, n=1, cutoff=_NEAR)
    return by_lower_case[found[0]] if found else None


def printable(text: str) -> str:
    """A text of others without what moves the cursor, begins a line, or worse."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def printable_lines(text: str) -> str:
    """A text of several lines, such as an error: it cannot move the cursor, or forge a first line.

    Tabs stay. A line that follows another is indented, unless it is already.
    """
    first, *more = ("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))
    return "\n".join([first, *(line if line[:1] in {"", " "} else f"  {line}" for line in more)])


def show_key(key: bytes) -> str:
    """A key as text if it is visible text, else its bytes in hexadecimal."""
    shown = key_json(key)
    if isinstance(shown, str) and shown.isprintable() and shown.strip() == shown != "":
        return shown
    return f"0x{key.hex()}" if key else "(empty)"


def key_json(key: bytes) -> str | dict[str, str]:
    """A key for programs: text if it is UTF-8, else ``{"hex": ...}``."""
    try:
        return key.decode("utf-8")
    except UnicodeDecodeError:
        return {"hex": key.hex()}


def key_of_json(value: str | dict[str, str]) -> bytes:
    """The key that :func:`key_json` has written.

    Raises:
        ValueError: It has not.
    """
    if isinstance(value, str):
        return value.encode()
    if value.keys() != {"hex"}:
        raise ValueError('a key is text, or {"hex": ...}')
    return bytes.fromhex(value["hex"])


@dataclass(frozen=True, slots=True)
class ParkedCount:
    """The parked keys of a topic.

    Attributes:
        keys: Number of keys that are parked; above 0.
        since: When the oldest was parked, in seconds since 1970; None if nobody wrote that down.
    """

    keys: int
    since: float | None = None
