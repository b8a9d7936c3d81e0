"""How long a reader waits without progress, and how long it pauses before a retry.

Law: only waiting counts, not the time that the reader's consumer takes; any progress begins it
anew; no pause outlasts the patience. Cost: nothing but the pauses.
"""

import random
import time
from typing import Final

from kshare.options import KafkaConfig

__all__ = ["Backoff", "Patience"]

_JITTER: Final = 0.2
_LONGEST_SECONDS: Final = 86_400.0
"""Properties allow 292 million years, ``time.sleep`` does not."""


class Backoff:
    """Pauses that double, with a fifth of jitter: ``ExponentialBackoff`` of Kafka's clients.

    Args:
        first_ms: about the first pause.
        longest_ms: no pause is longer.
    """

    def __init__(self, first_ms: int, longest_ms: int) -> None:
        self._longest = min(longest_ms / 1000, _LONGEST_SECONDS)
        self._first = min(first_ms / 1000, self._longest)
        self._next = self._first

    def pause(self) -> float:
        """The next pause, in seconds."""
        pause = self._next * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311
        self._next = min(2 * self._next, self._longest)
        return min(pause, self._longest)

    def reset(self) -> None:
        """Begin with the first pause again."""
        self._next = self._first


class Patience:
    """The patience of one reader, as ``default.api.timeout.ms`` and ``retry.backoff.*`` have it."""

    def __init__(self, kafka: KafkaConfig) -> None:
        self.seconds = kafka.read_timeout_ms / 1000
        self._backoff = Backoff(kafka.retry_backoff_ms, kafka.retry_backoff_max_ms)
        self._since: float | None = None

    def begin(self) -> None:
        """Waiting begins, unless it is going on."""
        if self._since is None:
            self._since = time.monotonic()

    def end(self) -> None:
        """There was progress."""
        self._since = None
        self._backoff.reset()

    @property
    def expired(self) -> bool:
        """Whether the stated time is over."""
        return self._since is not None and time.monotonic() - self._since >= self.seconds

    def sleep(self) -> None:
        """Pause before a retry, but not beyond the stated time."""
        waited = 0.0 if self._since is None else time.monotonic() - self._since
        time.sleep(max(0.0, min(self._backoff.pause(), self.seconds - waited)))
