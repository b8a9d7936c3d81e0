"""What a processor has done, counted. Cost: 0.3 us a call."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from kshare.processing.core.outcome import Outcome, Status
from kshare.processing.core.scheduler import Scheduler

__all__ = ["BOUNDS", "Measures", "Running"]

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the buckets of latencies, in seconds; the last bucket has none."""


@dataclass(slots=True)
class Measures:
    """Counters of one processor.

    Attributes:
        outcomes: Number of records by what became of them.
        failures: Number of calls that have failed.
        undelivered: How often a dead letter could not be written, or a key not be parked.
        seconds: Time that calls took, in all.
        buckets: Number of calls by how long they took, see :data:`BOUNDS`.
        read: Number of records that were read.
    """

    outcomes: Counter[Status] = field(default_factory=Counter)
    failures: int = 0
    undelivered: int = 0
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    read: int = 0

    def called(self, seconds: float, *, is_failure: bool = False) -> None:
        """A call has ended."""
        self.seconds += seconds
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
        self.failures += is_failure

    def count(self, outcomes: Iterable[Outcome]) -> None:
        """Records have outcomes."""
        statuses = [outcome.status for outcome in outcomes]
        done = statuses.count(Status.DONE)  # by identity: to hash a status takes longer
        self.outcomes[Status.DONE] += done
        if done < len(statuses):
            self.outcomes.update(status for status in statuses if status is not Status.DONE)

    @property
    def calls(self) -> int:
        """Number of calls."""
        return sum(self.buckets)


@dataclass(frozen=True, slots=True)
class Running:
    """A processor that runs over a consumer, for its metrics.

    Attributes:
        group: Id of the group.
        member: Id of the consumer in it.
        scheduler: What it holds: only to be read.
        measures: What it has done.
    """

    group: str
    member: str
    scheduler: Scheduler
    measures: Measures
