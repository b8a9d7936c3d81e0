"""What a consumer says of itself: what it owns, how far it is, its commits, its health.

Cost: counting costs a clock's look for each commit. Metrics are worked out when they are asked for:
linear in the partitions, and in the stretches that are not acknowledged.
"""

import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, Protocol

from kshare.core.hashing import HASH_SPACE, HashRange
from kshare.core.listing import ParkedCount
from kshare.core.progress import TopicPartition

__all__ = [
    "LATENCY_BOUNDS",
    "ConsumerHealth",
    "ConsumerMetrics",
    "DeliveryPause",
    "Latencies",
    "Latency",
    "LogMetrics",
    "MeasuredConsumer",
    "PartitionMetrics",
    "ServedConsumer",
]


LATENCY_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets of latencies, in seconds; the last bucket has none."""


@dataclass(frozen=True, slots=True)
class PartitionMetrics:
    """What a consumer owns of a partition, and how far it is.

    A record counts as returned once a call has collected it, though the call may still go on.

    Attributes:
        hashes: The key hashes that it owns.
        position: The offset after the last record that was returned; None before it has started.
        end: The end of the log, as of the last fetch; None if nothing is fetched.
        lag: Number of offsets with something pending of these hashes, an upper bound of the
            records; None if the end is not known.
        in_flight: Number of records that were returned and are not processed. With
            ``acknowledgement.mode=implicit``, the offsets among which they are.
        stable_offset: The first offset that is not processed for all of these hashes; None before
            it has started, and with ``consumption.order=none``.
        gaps: Number of stretches that were returned and are not acknowledged, with processed ones
            above them (``acknowledgement.mode=explicit``).
        oldest_unacknowledged_ms: Timestamp of the record with the lowest offset of those that were
            returned and are not acknowledged (``acknowledgement.mode=explicit``); None if there is
            none, or timestamps are not read (``columns``).
        retention_margin: Number of offsets from the log's first one to the stable offset, which may
            be deleted before anything pending is; None if that is not known.
    """

    hashes: tuple[HashRange, ...]
    position: int | None = None
    end: int | None = None
    lag: int | None = None
    in_flight: int = 0
    stable_offset: int | None = None
    gaps: int = 0
    oldest_unacknowledged_ms: int | None = None
    retention_margin: int | None = None

    @property
    def share(self) -> float:
        """Which part of the partition's key hashes it owns, from 0 to 1."""
        return sum(part.width for part in self.hashes) / HASH_SPACE


@dataclass(frozen=True, slots=True)
class Latencies:
    """How long something took, each time.

    Attributes:
        counts: Cumulative counts, one for each of :data:`LATENCY_BOUNDS` and one for +Inf.
        seconds: All of it together.
    """

    counts: tuple[int, ...] = (0,) * (len(LATENCY_BOUNDS) + 1)
    seconds: float = 0.0

    @property
    def count(self) -> int:
        """How often it was done."""
        return self.counts[-1]


@dataclass(frozen=True, slots=True)
class LogMetrics:
    """The partition of the group's log, which each member of each of its groups reads.

    Attributes:
        records: Number of offsets from its first record to its end: how much a member that starts
            reads at most.
        groups: Number of groups whose records were read since the consumer began to follow it.
        read_seconds: How long the first read took, to its end; None while it goes on.
    """

    records: int = 0
    groups: int = 0
    read_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ConsumerMetrics:
    """The metrics of one consumer.

    Attributes:
        group: Id of its group.
        member: Its id in the group (``memberid``).
        partitions: What it owns, and how far it is.
        commits: How long the commits took that have succeeded; those of transactions do not count.
        commit_failures: Number of commits that have failed.
        rebalances: How often the group has changed what it owns.
        fenced_seconds: For how long its polls had to wait, as it could not be sure that what it
            owns is still its own: it had not reached the group's log or coordinator in time.
        transactions: How long the commits of transactions took that have succeeded, with their time
            in the purgatory.
        aborted_transactions: Number of transactions that were aborted.
        is_member: Whether it is a member of the group now; None if it has not subscribed.
        leads: Whether it leads the group, so that it plans who owns what; None as above.
        parked: The parked keys of each topic that it owns some of and that has some.
        log: The group's log; None before it was found, and in a group that keeps none
            (``allow.individual.commit=false``).
    """

    group: str
    member: str
    partitions: Mapping[TopicPartition, PartitionMetrics]
    commits: Latencies
    commit_failures: int
    rebalances: int
    fenced_seconds: float
    transactions: Latencies = Latencies()
    aborted_transactions: int = 0
    is_member: bool | None = None
    leads: bool | None = None
    parked: Mapping[str, ParkedCount] = field(default_factory=dict)
    log: LogMetrics | None = None


@dataclass(frozen=True, slots=True)
class ConsumerHealth:
    """The health of a consumer.

    Attributes:
        is_alive: False if it does not recover by itself: it is closed, has failed, or nobody has
            polled for ``max.poll.interval.ms``. Start the process again.
        is_ready: Whether it processes its part of the group's records: it has joined, all that it
            owns is claimed, records may be handed out, and more are read.
        reason: Text for people; empty if it is alive and ready.
    """

    is_alive: bool
    is_ready: bool
    reason: str = ""


class Latency:
    """Measures how long something takes. From any thread.

    Attributes:
        failures: How often it has failed.
    """

    def __init__(self) -> None:
        self.failures = 0
        self._lock = threading.RLock()  # a signal handler may close the consumer amid this
        self._counts = [0] * (len(LATENCY_BOUNDS) + 1)
        self._seconds = 0.0

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure what is done within; what raises counts as failed."""
        start = time.monotonic()
        try:
            yield
        except BaseException:
            with self._lock:
                self.failures += 1
            raise
        self.add(time.monotonic() - start)

    def add(self, seconds: float) -> None:
        """Count one duration, in seconds."""
        with self._lock:
            self._counts[bisect_left(LATENCY_BOUNDS, seconds)] += 1
            self._seconds += seconds

    def latencies(self) -> Latencies:
        """What was measured so far."""
        with self._lock:
            return Latencies(tuple(accumulate(self._counts)), self._seconds)


class DeliveryPause:
    """Counts the time in which nothing may be handed out, as the session may be over.

    For the thread that polls. The session says why, once it lasts.

    Attributes:
        seconds: All of it together.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A poll waits, as nothing may be handed out."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds += time.monotonic() - start


class MeasuredConsumer(Protocol):
    """The used part of a consumer."""

    @property
    def is_closed(self) -> bool:
        """True if the consumer is closed."""

    def metrics(self) -> ConsumerMetrics:
        """Its metrics."""


class ServedConsumer(MeasuredConsumer, Protocol):
    """The used part of the consumer."""

    def health(self) -> ConsumerHealth:
        """Return its health."""
