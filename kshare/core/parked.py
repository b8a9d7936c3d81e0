"""Metrics of a topic's parked keys."""

from dataclasses import dataclass

__all__ = ["ParkedCount"]


@dataclass(frozen=True, slots=True)
class ParkedCount:
    """The parked keys of a topic.

    Attributes:
        keys: Number of keys that are parked; above 0.
        since: When the oldest was parked, in seconds since 1970; None if nobody wrote that down.
    """

    keys: int
    since: float | None = None
