"""Keys and names as people see them: the first few of many, keys as text, how many are parked."""

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["ParkedCount", "join_names", "key_json", "key_of_json", "show_key"]


def join_names(names: Iterable[object], shown: int = 10) -> str:
    """Names with commas between them: the first few, and how many more there are.

    Args:
        names: What ``str`` shows.
        shown: Maximum number that is shown.
    """
    texts = [str(name) for name in names]
    more = len(texts) - shown
    return ", ".join(texts[:shown]) + (f" and {more} more" if more > 0 else "")


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
