"""Retries: how long to pause before each, and how long to go on.

Only waiting counts, not the time that the caller's consumer takes; any progress starts the time
again. No pause ends after the deadline. What lasts is said: see :mod:`kshare.core.waits`.
"""

import logging
import random
import time
from collections.abc import Callable
from typing import Final, Protocol, Self, TypeVar

from kshare.core.backoff import Backoff
from kshare.core.waits import Wait
from kshare.kafka.protocol.wait_log import WaitLog
from kshare.operating_system import this_system
from kshare.options import KafkaConfig

__all__ = ["CHANCE", "Clock", "RetryDeadline", "boot_time", "retry_backoff"]

CHANCE: Final = random.SystemRandom()
"""Chance without a state: threads and forked processes share none, nor the application's."""

_RESOLUTION_SECONDS: Final = 1e-6
"""A clock may not show that so short a pause was made."""

_T = TypeVar("_T")


class Clock(Protocol):
    """The used part of the module ``time``."""

    def monotonic(self) -> float:
        """Seconds since some moment."""

    def sleep(self, seconds: float, /) -> None:
        """Wait."""


_BOOT_CLOCK: Final = this_system().boot_clock


def boot_time() -> float:
    """Seconds since the machine was started; a suspended machine's clock goes on."""
    return time.clock_gettime(_BOOT_CLOCK)


class RetryDeadline:
    """Limits the retries of one operation in time, and paces them.

    Time starts to count with :meth:`start`, and :meth:`reset` says that there was progress.

    Args:
        seconds: Maximum time without progress.
        backoff: Pauses between retries.
        clock: Source of time; the module ``time`` unless stated otherwise.

    Attributes:
        due: Time of the clock before which nothing is to be tried.
    """

    def __init__(self, seconds: float, backoff: Backoff, clock: Clock = time) -> None:
        self.seconds = seconds
        self._backoff = backoff
        self._clock = clock
        self._since: float | None = None
        self._waits: WaitLog | None = None
        self.due = 0.0

    @classmethod
    def for_reading(cls, kafka: KafkaConfig, clock: Clock = time) -> Self:
        """As ``kafkaConsumer.pollTimeoutMs`` or ``default.api.timeout.ms`` says."""
        return cls(kafka.read_timeout_ms / 1000, retry_backoff(kafka), clock)

    @classmethod
    def for_requests(cls, kafka: KafkaConfig, clock: Clock = time) -> Self:
        """As ``default.api.timeout.ms`` says."""
        return cls(kafka.api_timeout_ms / 1000, retry_backoff(kafka), clock)

    def start(self) -> None:
        """Start the time, unless it is running."""
        if self._since is None:
            self._since = self._clock.monotonic()

    def reset(self) -> None:
        """Stop the time: there was progress."""
        self._since = None
        self._backoff.reset()
        self.over()

    def over(self) -> None:
        """Say that the wait is over, if it was said. The time goes on: others may share it."""
        if self._waits is not None:
            self._waits.over()

    @property
    def seconds_left(self) -> float:
        """Time left, at least 0."""
        if self._since is None:
            return self.seconds
        left = self.seconds - (self._clock.monotonic() - self._since)
        return left if left > _RESOLUTION_SECONDS else 0.0

    @property
    def expired(self) -> bool:
        """True if the time is over."""
        return self._since is not None and not self.seconds_left

    def next_pause(self) -> float:
        """The pause before the next retry, in seconds; it does not outlast the time."""
        return min(self._backoff.pause(), self.seconds_left)

    def postpone(self) -> None:
        """Set :attr:`due` to after the next pause; a whole one if the time is over already."""
        pause = self._backoff.pause() if self.expired else self.next_pause()
        self.due = self._clock.monotonic() + pause

    def pause(self, seconds: float) -> None:
        """Set :attr:`due` to after some time; nothing has failed."""
        self.due = self._clock.monotonic() + seconds

    def waits(self, log: logging.Logger, wait: Wait) -> None:
        """Say that there was no progress: the first time at INFO, once it lasts as a warning.

        Args:
            log: Where it is said, and that it is over with :meth:`reset`.
            wait: What is waited for.
        """
        if self._waits is None:
            self._waits = WaitLog(log, clock=self._clock.monotonic)
        if not self._waits.is_waiting:
            head = f"{wait.name}: " if wait.name else ""
            log.info("%s%s, retrying after: %s", head, wait.state, wait.detail)
        self._waits.wait(wait)

    def sleep(self, log: logging.Logger, action: str, cause: object) -> None:
        """Pause before the next retry, and say so as :meth:`waits` does.

        Args:
            log: Where it is said.
            action: What is tried, such as ``list topics``.
            cause: Why it has to be tried again.
        """
        until = f"brokers answer, for {self.seconds:g} s at most"
        self.waits(log, Wait(f"cannot {action}", until, detail=str(cause) or type(cause).__name__))
        self._clock.sleep(self.next_pause())

    def retried(
        self,
        log: logging.Logger,
        action: str,
        step: Callable[[], _T],
        passes: Callable[[Exception], bool],
    ) -> _T:
        """Take a step until it raises nothing, with pauses. The time starts now.

        Args:
            log: As for :meth:`sleep`.
            action: As for :meth:`sleep`.
            step: What is done.
            passes: True of an error that may pass.

        Returns:
            What the step returns.

        Raises:
            Exception: The step's error, if it does not pass, or if the time is over.
        """
        self.start()
        while True:
            try:
                answer = step()
            except Exception as error:
                if not passes(error) or self.expired:
                    raise
                self.sleep(log, action, error)
            else:
                self.over()
                return answer


def retry_backoff(kafka: KafkaConfig) -> Backoff:
    """As ``retry.backoff.ms`` and ``retry.backoff.max.ms`` say, with a random jitter."""
    return Backoff(kafka.retry_backoff_ms, kafka.retry_backoff_max_ms, CHANCE.uniform)
