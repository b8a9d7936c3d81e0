"""Pauses between retries: ``ExponentialBackoff`` of Kafka's clients."""

from collections.abc import Callable
from typing import Final, TypeAlias

__all__ = ["Backoff", "Uniform"]

Uniform: TypeAlias = Callable[[float, float], float]
"""A random number between two bounds, as ``random.uniform``."""

_JITTER: Final = 0.2
_LONGEST_SECONDS: Final = 86_400.0
"""Properties allow 292 million years, ``time.sleep`` does not."""


def _even(low: float, high: float) -> float:
    return (low + high) / 2


class Backoff:
    """Pauses that double, with a jitter of a fifth.

    Args:
        first_ms: Length of the first pause, before jitter.
        longest_ms: Maximum length of a pause.
        uniform: Source of jitter; without one, there is none.
    """

    def __init__(self, first_ms: int, longest_ms: int, uniform: Uniform = _even) -> None:
        self._longest = min(longest_ms / 1000, _LONGEST_SECONDS)
        self._first = min(first_ms / 1000, self._longest)
        self._next = self._first
        self._uniform = uniform

    def pause(self) -> float:
        """The next pause, in seconds."""
        pause = self._next * self._uniform(1 - _JITTER, 1 + _JITTER)
        self._next = min(2 * self._next, self._longest)
        return min(pause, self._longest)

    def reset(self) -> None:
        """Start with the first pause again."""
        self._next = self._first
