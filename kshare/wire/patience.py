"""How long a reader waits without progress, and how long it pauses before a retry.

Law: only waiting counts, not the time that the reader's consumer takes; any progress begins it
anew. Cost: nothing but the pauses.
"""

import random
import time

from kshare.options import KafkaConfig

__all__ = ["Patience"]


class Patience:
    """The patience of one reader, as ``default.api.timeout.ms`` and ``retry.backoff.*`` have it."""

    def __init__(self, kafka: KafkaConfig) -> None:
        self.seconds = kafka.read_timeout_ms / 1000
        self._pause_first = kafka.retry_backoff_ms / 1000
        self._pause_max = kafka.retry_backoff_max_ms / 1000
        self._pause = self._pause_first
        self._since: float | None = None

    def begin(self) -> None:
        """Waiting begins, unless it is going on."""
        if self._since is None:
            self._since = time.monotonic()

    def end(self) -> None:
        """There was progress."""
        self._since = None
        self._pause = self._pause_first

    @property
    def expired(self) -> bool:
        """Whether the stated time is over."""
        return self._since is not None and time.monotonic() - self._since >= self.seconds

    def sleep(self) -> None:
        """Pause before a retry: exponential, with a fifth of jitter as Kafka's clients do."""
        time.sleep(self._pause * random.uniform(0.8, 1.2))  # noqa: S311
        self._pause = min(2 * self._pause, self._pause_max)
