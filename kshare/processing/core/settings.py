"""How a processor schedules, as plain numbers."""

from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["OnFailure", "RetryPlan", "Settings"]

_FRACTIONS = 1_000_003  # a prime: offsets that follow each other get quite different delays


class OnFailure(StrEnum):
    """What becomes of a record when all attempts have failed."""

    DEAD_LETTER = "dead_letter"
    PARK = "park"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class RetryPlan:
    """When a failed record is tried again.

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
    """How a processor schedules.

    Attributes:
        concurrency: Maximum number of handler calls at a time.
        records_max: Maximum number of records that are held: running, waiting or to be started.
        bytes_max: Maximum size of them; a larger one is taken when nothing else is held.
        timeout_seconds: Maximum time of an attempt; None for no limit.
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
    retry: RetryPlan = field(default_factory=RetryPlan)
    on_failure: OnFailure = OnFailure.STOP
    sequence: bool = False
    batch_size: int = 1
    mixes_keys: bool = False
    gives_back: bool = False
