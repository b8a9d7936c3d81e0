"""The open batches of a query, of option ``realTime``: they have no end when they are planned.

::

    plan      draw a name, cut ranges, look where the log of ends ends        -> the dict
    tasks     the dict's ranges, packed                                       -> Spark runs them
    finish    Spark has committed the batch: read where each range ended, and
              seal what has no end                                            -> progress
    forget    delete the ends of the batch before

Model and rules: :mod:`kshare.core.open_batch` and ``docs/design/real-time.md``. Everything but
``plan`` goes by the dict: a query whose option has changed, or is gone, finishes its last batch.

Cost: for each batch five requests to the log of ends, and a write.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from secrets import token_hex
from typing import Final, Protocol, TypeAlias

from kshare.core.checkpoint import BatchOffsets
from kshare.core.hashing import NO_HASHES, HashRange, KeyRanges
from kshare.core.losses import no_longer_assigned
from kshare.core.open_batch import open_ranges, reached, seals
from kshare.core.open_entry import LogPosition, OpenBatch, OpenRange
from kshare.core.progress import Progress, TopicPartition
from kshare.core.range_end import EndKey, RangeEnd, RangeEnds
from kshare.core.tasks import OpenTask, pack
from kshare.errors import KafkaError
from kshare.kafka.end_log import EndLog
from kshare.kafka.protocol.retry import RetryDeadline
from kshare.kafka.topics import RANGE_ENDS_TOPIC
from kshare.options import SourceOptions
from kshare.query.planner.batch_history import raise_or_warn
from kshare.query.planner.key_selection import KeySelection
from kshare.query.planner.time_alignment import OpenTime

__all__ = ["CutRanges", "EndLogLike", "OpenBatches"]

_log = logging.getLogger("kshare.planner")

_LATE_SECONDS: Final = 2.0
"""Time that a batch takes besides its reading, without a word."""
_SLOW_BATCHES: Final = 2
"""One alone may be the first one, whose tasks start their workers."""
_UNREAD_SECONDS: Final = 60.0
"""A sink that never reads to the end has several batches a second: it is said so seldom."""
_PARTS_MAX: Final = 10_000
"""Maximum number of stretches of key hashes in a range: a record of 1 MB has room for two ends."""

Progresses: TypeAlias = Mapping[TopicPartition, Progress]
CutRanges: TypeAlias = Callable[
    [Mapping[TopicPartition, KeyRanges], Progresses, Mapping[TopicPartition, int]],
    Mapping[TopicPartition, Sequence[HashRange]],
]
"""Cuts partitions into ranges: what is read of each, how far it is, and where its log ends."""


class EndLogLike(Protocol):
    """A log of ends: see :class:`~kshare.kafka.end_log.EndLog`."""

    def open(self) -> None:
        """Make it, unless it exists."""

    def position(self) -> LogPosition:
        """Its end."""

    def read(self, position: LogPosition, ranges: Sequence[OpenRange], /) -> RangeEnds:
        """The ends of a batch's ranges."""

    def append(self, ends: Mapping[EndKey, RangeEnd], /) -> object:
        """Propose ends."""

    def delete(self, batch: str, /) -> None:
        """Delete the ends of a batch."""

    def close(self) -> None:
        """Close it."""


class OpenBatches:
    """Plans and finishes the open batches of one query.

    Args:
        options: The query's options.
        keys: The key hashes that the query reads.
        cut: Cuts partitions into ranges.
        make_log: Makes the log of ends of a topic; None: Kafka's.
        clock: Seconds.
    """

    def __init__(
        self,
        options: SourceOptions,
        keys: KeySelection,
        cut: CutRanges,
        make_log: Callable[[str], EndLogLike] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._keys = keys
        self._cut = cut
        self._make_log = make_log or self._kafka_log
        run = token_hex(8)
        self._names = (f"{run}-{number}" for number in count(1))
        self._logs: dict[str, EndLogLike] = {}  # by topic: what the options say, and a dict before
        self._finished: dict[str, str] = {}  # batches whose ends are in a log: topic by name
        self._slots = _SlotWatch(clock)
        self._clock = clock
        self._unread_said_at: float | None = None

    def plan(
        self,
        progress: Progresses,
        available: Mapping[TopicPartition, int],
        keys: KeySelection,
        time_left: OpenTime | None,
    ) -> OpenBatch | None:
        """The next batch.

        Args:
            progress: Where its partitions begin.
            available: Where their logs end now.
            keys: What the query reads, without parked keys.
            time_left: How long it may read; None: not at all.

        Returns:
            None if it may not, or there is nothing that it could read.

        Raises:
            KafkaError: The log of ends cannot be had.
            PlanError: The range assignor's answer cannot be used.
        """
        if time_left is None:
            return None
        read = {tp: hashes for tp in progress if (hashes := keys.readable(tp))}
        cut = self._cut(read, progress, available)
        ranges = {
            tp: parts
            for tp, hashes in read.items()
            if (parts := tuple(part for one in cut[tp] for part in _writable(one, hashes)))
        }
        if not ranges:
            return None
        topic = self._options.real_time_topic or RANGE_ENDS_TOPIC
        position = self._log_of(topic).position()
        name, milliseconds = next(self._names), time_left.milliseconds
        return OpenBatch(name, milliseconds, topic, position, ranges, time_left.until_ms)

    def tasks(self, offsets: BatchOffsets) -> tuple[OpenTask, ...]:
        """The tasks of a batch, which is about to run; the same for the same dict and options."""
        batch = _open(offsets)
        ranges = open_ranges(batch, offsets.progress)
        most = self._options.max_tasks
        slices = [each.slice for each in ranges]
        packed = pack(slices, [1.0] * len(slices), most if isinstance(most, int) else len(slices))
        self._slots.start(batch.name, len(packed))
        return tuple(
            OpenTask(
                tuple(ranges[number] for number in numbers),
                batch.milliseconds,
                batch.topic,
                batch.log,
                batch.until_ms,
            )
            for numbers in packed
        )

    def finish(self, offsets: BatchOffsets) -> dict[TopicPartition, Progress]:
        """The progress of partitions when a batch is done, which Spark has committed.

        Raises:
            KafkaError: The log of ends does not answer, or takes no write.
            DataLossError: It was deleted, or ranges hold key hashes that the query does not read
                any more and that are behind others; and ``failOnDataLoss`` is true.
        """
        batch = _open(offsets)
        log = self._log_of(batch.topic)
        self._finished[batch.name] = batch.topic
        ranges = open_ranges(batch, offsets.progress)
        ends = log.read(batch.log, ranges)
        deadline = RetryDeadline.for_requests(self._options.kafka)
        deadline.start()
        by, tries = f"planner-{token_hex(8)}", 0
        while unread := seals(ranges, ends):
            if deadline.expired:
                raise KafkaError(
                    f"cannot write to {batch.topic}: what is written does not arrive",
                    topic=batch.topic,
                    partition=batch.log.partition,
                )
            _log.log(
                self._unread_level(),
                "%d of %d ranges of the last batch were not read to their end, as its sink has not "
                "asked for all rows: what it has taken of them comes again. Let it read the whole "
                "frame in each batch",
                len(unread),
                len(ranges),
            )
            log.append({EndKey(each, f"{by}-{tries}"): end for each, end in unread.items()})
            ends, tries = log.read(batch.log, ranges), tries + 1
        if not_read := self._no_longer_assigned(batch):
            done = reached(ranges, offsets.progress, ends, lambda _: NO_HASHES)
            self._check_read(not_read, done)
        self._slots.finish(batch.name, batch.milliseconds / 1000)
        return reached(ranges, offsets.progress, ends, self._keys.unassigned)

    def forget(self, last: BatchOffsets) -> None:
        """Delete the ends of the batches before the last one that Spark has committed.

        A fault is no error: what is left is never read again.
        """
        name = None if last.open is None else last.open.name
        for batch, topic in [*self._finished.items()]:
            if batch != name:
                del self._finished[batch]
                try:
                    self._log_of(topic).delete(batch)
                except KafkaError as error:
                    _log.info("ends of batch %s are left in %s: %s", batch, topic, error)

    def close(self) -> None:
        """Close the connections."""
        with ExitStack() as closing:
            for log in self._logs.values():
                closing.callback(log.close)

    def _unread_level(self) -> int:
        """At which level to say that a sink has not read all."""
        now, said_at = self._clock(), self._unread_said_at
        if said_at is not None and now < said_at + _UNREAD_SECONDS:
            return logging.INFO
        self._unread_said_at = now
        return logging.WARNING

    def _kafka_log(self, topic: str) -> EndLog:
        options = self._options
        return EndLog(options.kafka, topic, fail_on_data_loss=options.fail_on_data_loss)

    def _log_of(self, topic: str) -> EndLogLike:
        if topic not in self._logs:
            log = self._make_log(topic)
            try:
                log.open()
            except BaseException:
                log.close()
                raise
            self._logs[topic] = log
        return self._logs[topic]

    def _no_longer_assigned(self, batch: OpenBatch) -> dict[TopicPartition, KeyRanges]:
        """What a run before has read that this one does not; only partitions with something."""
        found = {}
        for tp, ranges in batch.ranges.items():
            if unassigned := self._keys.unassigned(tp):
                read = KeyRanges(part for hashes in ranges for part in hashes)
                found[tp] = read & unassigned
        return {tp: hashes for tp, hashes in found.items() if hashes}

    def _check_read(self, not_read: Mapping[TopicPartition, KeyRanges], done: Progresses) -> None:
        """Say what a run before has left unread that this one does not read."""
        for tp, hashes in not_read.items():
            pending = done[tp].pending_of(done[tp].front, hashes)
            if pending:
                losses = [no_longer_assigned(tp, pending)]
                raise_or_warn(losses, fail=self._options.fail_on_data_loss)


class _SlotWatch:
    """Says that tasks wait for slots: a batch then takes about twice as long as it should, or more.

    Args:
        clock: Seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started: tuple[str, int, float] | None = None  # a batch, its tasks, and when
        self._slow = 0  # batches in a row that took too long
        self._said_of = 0  # the number of tasks that a warning was for

    def start(self, batch: str, tasks: int) -> None:
        """Take note of a batch that is about to run; or Spark asks again for its tasks."""
        if self._started is None or self._started[0] != batch:
            self._started = batch, tasks, self._clock()

    def finish(self, batch: str, wanted: float) -> None:
        """Take note of a batch that has run, and how long it should take, in seconds."""
        if self._started is None or self._started[0] != batch:
            return
        _, tasks, since = self._started
        seconds = self._clock() - since
        is_slow = tasks > 1 and seconds > 1.9 * wanted + _LATE_SECONDS
        self._slow = self._slow + 1 if is_slow else 0
        if self._slow >= _SLOW_BATCHES and tasks != self._said_of:
            self._said_of = tasks
            _log.warning(
                "batches take %.1f s with realTime=%gs and %d tasks. Where these "
                "are more than the query has task slots, some read nothing while others do: give "
                "maxTasks the number of slots; or the sink takes so long",
                seconds,
                wanted,
                tasks,
            )


def _writable(cut: HashRange, hashes: KeyRanges) -> list[KeyRanges]:
    """The hashes of a range that are read, as ranges whose ends fit into a record.

    Many parked keys part a range into as many stretches of hashes.
    """
    parts = KeyRanges([cut]) & hashes
    firsts = range(0, len(parts), _PARTS_MAX)
    return [KeyRanges(parts[first : first + _PARTS_MAX]) for first in firsts]


def _open(offsets: BatchOffsets) -> OpenBatch:
    assert offsets.open is not None
    return offsets.open
