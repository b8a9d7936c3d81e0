"""Settings of a scheduler in plain numbers, and a number of calls that adapts itself."""

from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["AdaptiveLimit", "OnFailure", "RetryPlan", "Settings"]

_FRACTIONS = 1_000_003  # a prime: offsets that follow each other get quite different delays
_TOLERANCE = 2.0  # by so much a latency may exceed the best one
_DECREASE = 2 / 3
_WINDOW_MIN = 32  # calls: the mean of fewer says little
_PROBE_WINDOWS = 200
_PROBE_PART = 8


class OnFailure(StrEnum):
    """What becomes of a record when all attempts have failed."""

    DEAD_LETTER = "dead_letter"
    PARK = "park"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class RetryPlan:
    """Times at which a failed record is tried again.

    Attributes:
        attempts: Maximum number of attempts, at least 1.
        first_seconds: Time until the second attempt; it doubles from one to the next.
        seconds_max: Maximum time from one attempt to the next.
        jitter: By which part a delay may be longer or shorter, from 0 to 1.
    """

    attempts: int = 5
    first_seconds: float = 0.2
    seconds_max: float = 30.0
    jitter: float = 0.2

    def delay(self, failures: int, offset: int) -> float:
        """Time until the next attempt in seconds; the same for the same record.

        Args:
            failures: How many attempts have failed, at least 1.
            offset: The record's offset, from which the jitter is drawn.
        """
        seconds = self.first_seconds * 2.0 ** min(failures - 1, 64)
        draw = hash((offset, failures)) % _FRACTIONS / _FRACTIONS
        return min(seconds * (1.0 + self.jitter * (2.0 * draw - 1.0)), self.seconds_max)


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a scheduler.

    Attributes:
        concurrency: Maximum number of handler calls at a time.
        records_max: Maximum number of records that are held: running, waiting or to be started.
        bytes_max: Maximum size of them; a larger one is taken when nothing else is held.
        timeout_seconds: Maximum time of an attempt; None for no limit.
        cancel_seconds: How long a call that took longer may still take to end once it is cancelled:
            so long its lane waits. 0 for calls that cannot be cancelled.
        retry: When a failed record is tried again.
        on_failure: What becomes of a record when all attempts have failed.
        sequence: Whether later records of its key follow a record into the dead-letter topic.
        batch_size: Maximum number of records that a handler is given at once.
        mixes_keys: Whether it may be given records of several lanes at once.
        gives_back: Whether records of a lane that waits may be given back: they come again then.
    """

    concurrency: int = 64
    records_max: int = 10_000
    bytes_max: int = 64 << 20
    timeout_seconds: float | None = None
    cancel_seconds: float = 0.0
    retry: RetryPlan = field(default_factory=RetryPlan)
    on_failure: OnFailure = OnFailure.STOP
    sequence: bool = False
    batch_size: int = 1
    mixes_keys: bool = False
    gives_back: bool = False


@dataclass(slots=True)
class AdaptiveLimit:
    """Number of calls at a time, by latencies: additive increase, multiplicative decrease.

    As TCP's congestion window (RFC 5681), and Netflix's concurrency-limits by latency: a window is
    as many calls as the limit, and 32 at least. If their mean latency is not much above the best
    that was seen, and the limit was in use, it rises by one step; if it is, or a server has said
    that it is too busy, it falls by a third, once a window. Servers get slower for good, too: from
    time to time one window is run with an eighth of the limit, and its latency is the best one then
    (BBR's ProbeRTT).

    Attributes:
        limit: The number now.
        most: Its maximum.
        best_seconds: The best mean latency of a window since the last probe; None before one.
    """

    limit: int = 8
    most: int = 1024
    best_seconds: float | None = None
    _calls: int = 0
    _seconds: float = 0.0
    _peak: int = 0
    _is_throttled: bool = False
    _windows: int = 0
    _after_probe: int = 0  # the limit to return to; 0: no probe is under way

    def ended(self, seconds: float, running: int) -> None:
        """A call has ended.

        Args:
            seconds: How long it took.
            running: How many were running, with it.
        """
        self._calls += 1
        self._seconds += seconds
        self._peak = max(self._peak, running)
        if self._calls >= max(self.limit, _WINDOW_MIN):
            self._end_window()

    def throttled(self) -> None:
        """A server is too busy, or did not answer in time."""
        if not self._is_throttled:
            self._is_throttled = True
            self.limit = max(int(self.limit * _DECREASE), 1)

    def _end_window(self) -> None:
        mean = self._seconds / self._calls
        self._windows += 1
        if self._after_probe:
            self.best_seconds = mean
            self.limit, self._after_probe = self._after_probe, 0
        else:
            best = mean if self.best_seconds is None else min(mean, self.best_seconds)
            self.best_seconds = best
            self._move(is_slow=mean > best * _TOLERANCE)
            if self._windows % _PROBE_WINDOWS == 0:
                self._after_probe = self.limit
                self.limit = max(self.limit // _PROBE_PART, 1)
        self._calls, self._seconds, self._peak, self._is_throttled = 0, 0.0, 0, False

    def _move(self, *, is_slow: bool) -> None:
        if self._is_throttled:
            return
        if is_slow:
            self.limit = max(int(self.limit * _DECREASE), 1)
        elif self._peak >= self.limit:
            self.limit = min(self.limit + max(self.limit // 16, 1), self.most)
