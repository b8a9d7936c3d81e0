"""Names in a text for people."""

from collections.abc import Iterable

__all__ = ["named"]


def named(names: Iterable[object], shown: int = 10) -> str:
    """Names with commas between them: the first few, and how many more there are.

    Args:
        names: What ``str`` shows.
        shown: Maximum number that is shown.
    """
    texts = [str(name) for name in names]
    more = len(texts) - shown
    return ", ".join(texts[:shown]) + (f" and {more} more" if more > 0 else "")
