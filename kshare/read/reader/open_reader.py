"""The reader of a task of an open batch: reads for a while, then agrees on where its ranges ended.

What it does next is said by :class:`~kshare.core.open_batch.RangeReader`, one for each range::

    LOOK --> some have ends: read up to exactly these, as slices of a closed batch
      ^  --> others: follow the log until the time is over --> PROPOSE where that ended --+
      +-----------------------------------------------------------------------------------+
      +--> all have handed over just what counts: END
      +--> one has handed over more: FAIL, and Spark runs the task again

Guarantees: before anything is handed over, the log of ends is read. The generator returns only when
every range has an end in the log, and the rows up to it, and no others, were handed over. A
generator that is closed proposes nothing. Records of one partition come in offset order. Rows are
handed over as they arrive; where none does for a second, an empty batch is, so that whoever has
gone is noticed.

With handlers (:class:`Handled`), rows are handed over when they have an outcome, by whoever takes
them here. When the time is over, what is under way may end; an end then covers what was handed
over, and the rest comes again.

Cost: as of :class:`~kshare.read.reader.tail_reader.TailReader`: a long poll at each leader, so a
partition without records costs two requests a second. The log of ends is read twice, and written
once.
"""

import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, Final, Protocol

import pyarrow as pa

from kshare.core.hashing import NO_HASHES, KeyRanges
from kshare.core.offsets import OFFSET_MAX
from kshare.core.open_batch import RangeReader, Step
from kshare.core.open_entry import LogPosition, OpenRange
from kshare.core.progress import Slice, TopicPartition
from kshare.core.range_end import PARTS_MAX, EndKey, RangeEnd, RangeEnds, RangeId
from kshare.core.tasks import OpenTask, PlannedSlice
from kshare.core.unhandled import Unhandled
from kshare.errors import DataLossError, KafkaError, UnknownTopicError
from kshare.kafka.protocol.background import Waker
from kshare.options import SourceOptions
from kshare.read.decode.columns import schema
from kshare.read.reader.batch_time import BatchTime
from kshare.read.reader.read_slice import read_slices
from kshare.read.reader.reading_meter import ReadingMeter, Says, say_nothing
from kshare.read.reader.tail_reader import LossTexts, NamedReset, TailReader, TailRecords

__all__ = ["IDLE_SECONDS", "LOOK_SECONDS", "Ends", "Handled", "OpenReader", "no_parked"]

_log = logging.getLogger(__name__)

IDLE_SECONDS: Final = 1.0
"""Longest time between two batches of rows, empty ones among them."""
LOOK_SECONDS: Final = 0.5
"""Longest time between two looks whether keys were parked."""
_PROPOSALS_MAX: Final = 100
_HELD_HASHES_MAX: Final = PARTS_MAX // 4
"""Each needs an offset of its own in an end, beside those of keys that were parked: up to half."""
_TEXTS: Final = LossTexts(
    option="failOnDataLoss is false",
    to_go_on="if that is acceptable, set failOnDataLoss to false",
    to_repair="wait until it holds them again, or start with a new checkpoint",
    to_read_anew="start with a new checkpoint to read it from its begin",
    to_warn="with failOnDataLoss=false, this is a warning",
)


class Ends(Protocol):
    """The log of ends: see :class:`kshare.kafka.end_log.EndLog`."""

    def read(self, position: LogPosition, ranges: Sequence[OpenRange]) -> RangeEnds:
        """The ends of ranges, as the log has them now."""

    def append(self, ends: Mapping[EndKey, RangeEnd]) -> bool:
        """Propose ends; return whether a broker has said that it took them."""


def no_parked() -> Mapping[str, KeyRanges]:
    """The hashes of parked keys, where none are parked amid a batch."""
    return {}


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Handled:
    """What a reader has to know of handlers that its rows go through.

    Whoever takes the rows notes them in ``unhandled``, before it takes the next ones, and hands
    over what this lets go. It is given an empty batch whenever it was woken, too.

    Args:
        meter: Is shown the rows when they are handed over.
        unhandled: The rows that have no outcome, or wait for others of their key hash.
        drain_seconds: How long handlers have once the batch's time is over.
        is_full: Whether handlers take no more rows now.
        is_at_rest: Whether no handler runs, or is about to: all that is held waits for a time.

    Attributes:
        waker: Its ``wake`` says that there are outcomes; from any thread.
    """

    meter: ReadingMeter = field(default_factory=lambda: ReadingMeter(say_nothing))
    unhandled: Unhandled[Any] = field(default_factory=Unhandled)
    drain_seconds: float = 0.0
    is_full: Callable[[], bool] = _never
    is_at_rest: Callable[[], bool] = _never
    waker: Waker = field(default_factory=Waker)

    @property
    def may_end(self) -> bool:
        """True if an end has room for what is held."""
        return len(self.unhandled) <= _HELD_HASHES_MAX


class OpenReader:
    """One attempt at a task of an open batch. For one thread.

    Args:
        task: The task.
        options: Options of the source.
        ends: The log of ends.
        parked: The hashes of the keys that are parked now, by topic; asked for with each batch of
            rows, so it must not wait.
        says: Called about each second with where each range is, where its partition's log ends (0
            if not known), and how late records were handed over. It must not wait.
        handled: Says when rows are handed over, and how late they were; None: when they are taken.
        seconds: Source of time.
        wall_clock: Seconds since 1970.
    """

    def __init__(
        self,
        task: OpenTask,
        options: SourceOptions,
        ends: Ends,
        *,
        parked: Callable[[], Mapping[str, KeyRanges]] = no_parked,
        says: Says = say_nothing,
        handled: Handled | None = None,
        seconds: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._task = task
        self._options = options
        self._ends = ends
        self._parked = parked
        self._has_handlers = handled is not None
        self._handled = handled or Handled(ReadingMeter(says, seconds, wall_clock))
        self._meter = self._handled.meter
        self._seconds = seconds
        self._attempt = token_hex(8)
        self._taken = 0  # writes of ends that a broker has taken
        self._no_rows = pa.RecordBatch.from_pylist([], schema(options.column_names))
        self._time = BatchTime(task, seconds, wall_clock)
        self._readers: dict[RangeId, RangeReader] = {
            each.id: RangeReader.of(each) for each in task.ranges
        }

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """The rows, as they come. To be called once.

        Yields:
            Batches of the columns of Spark's kafka source; empty ones where nothing comes.

        Raises:
            KshareError: The task cannot end, and is to be run again.
        """
        while steps := {reader.step for reader in self._readers.values()} - {Step.END}:
            if Step.LOOK in steps:
                self._look()
            elif Step.FAIL in steps:
                raise self._too_far()
            elif Step.PROPOSE in steps:
                self._propose()
            elif any(reader.bound is not None for reader in self._at(Step.READ)):
                yield from self._read_to_bounds()
            else:
                yield from self._follow()

    def _at(self, step: Step) -> list[RangeReader]:
        return [reader for reader in self._readers.values() if reader.step is step]

    def _put(self, reader: RangeReader) -> None:
        self._readers[reader.range.id] = reader

    # -- the log of ends --------------------------------------------------------------------

    def _look(self) -> None:
        ends = self._ends.read(self._task.log, self._task.ranges)
        for reader in self._at(Step.LOOK):
            self._put(reader.look(ends))

    def _propose(self) -> None:
        proposing = self._at(Step.PROPOSE)
        first = proposing[0]
        if self._taken >= _PROPOSALS_MAX:
            topic, partition = first.range.id.partition
            raise KafkaError(
                f"topic {self._task.topic}, partition {self._task.log.partition}, does not show "
                f"where the reading of {topic}, partition {partition}, ended, though that was "
                f"written {_PROPOSALS_MAX} times; it must keep what is written",
                topic=topic,
                partition=partition,
            )
        ends = {reader.key(self._attempt): reader.delivered for reader in proposing}
        self._taken += self._ends.append(ends)  # its own error says why none is taken
        for reader in proposing:
            self._put(reader.proposed())

    def _too_far(self) -> KafkaError:
        topic, partition = self._at(Step.FAIL)[0].range.id.partition
        return KafkaError(
            f"{topic}, partition {partition}: another attempt at this task has ended before this "
            "one, and its end counts; this one has read further. Run again, it reads up to there. "
            "In local mode, or with spark.task.maxFailures=1, Spark runs it once, and the query "
            "ends: give each use of a frame its own load(), or let tasks fail, as with local[*,4]",
            topic=topic,
            partition=partition,
        )

    # -- rows -------------------------------------------------------------------------------

    def _read_to_bounds(self) -> Iterator[pa.RecordBatch]:
        """Read what has an end up to it: the same rows as whoever has read it before."""
        bounded = [reader for reader in self._at(Step.READ) if reader.bound is not None]
        groups = self._task.fetch_groups
        slices = [
            PlannedSlice(each, fetch_group=groups.get(reader.range.id.partition))
            for reader in bounded
            for each in reader.rest
        ]
        handled = self._handled
        with closing(handled.waker.open()):
            with closing(read_slices(slices, self._options)) as batches:
                for batch in batches:
                    yield batch
                    yield from self._wait_while(handled.is_full)
            yield from self._wait_while(lambda: len(handled.unhandled) > 0)
        for reader in bounded:
            self._put(reader.deliver_to(OFFSET_MAX))

    def _follow(self) -> Iterator[pa.RecordBatch]:
        """Read on until the time is over: ranges of one partition together."""
        following = {reader.range.id.partition for reader in self._at(Step.READ)}
        with ExitStack() as stack:
            waker = stack.enter_context(closing(self._handled.waker.open()))
            reset: NamedReset = "error" if self._options.fail_on_data_loss else "earliest"
            tail = TailReader(
                self._options, reset, waker, texts=_TEXTS, drops_times=False, rests=True
            )
            stack.enter_context(closing(tail))
            followed: Mapping[str, KeyRanges] = {}
            for partition in following:
                self._read(tail, partition)
            idle_from = self._seconds()
            self._time.begin()
            while (left := self._time.left) > 0:
                parked = self._parked()
                if parked != followed:
                    followed = parked
                    self._leave_out(tail, following, parked)
                records = self._next(tail, following, min(left, LOOK_SECONDS))
                if not self._time.counts:
                    self._time.look(tail.unanswered)
                if self._meter.is_due:
                    self._meter.say(self._places(tail))
                if records is not None:
                    if not self._has_handlers:
                        self._meter.take(records.batch)
                    yield records.batch
                elif not self._has_handlers and self._seconds() - idle_from < IDLE_SECONDS:
                    continue
                else:
                    yield self._no_rows
                idle_from = self._seconds()
            yield from self._drain()
            self._meter.say(self._places(tail))
            for partition in following:
                self._deliver(partition, tail.delivered(partition))
        unhandled = self._handled.unhandled
        for reader in self._at(Step.READ):
            self._put(reader.hold(unhandled.firsts(reader.range.id.partition)).time_over())
        if count := unhandled.give_up():
            _log.warning(
                "%d records have no outcome when their micro-batch ends: they come again in the "
                "next one, and their handlers are called again",
                count,
            )

    def _next(
        self, tail: TailReader, following: set[TopicPartition], seconds: float
    ) -> TailRecords | None:
        """The next rows; None if there are none within that time, or a partition is given up.

        A range of a log that is gone, or ends too early, ends where it stands, if that is no error:
        the next plan says what is lost. Its task waits for the end of the time, as the others do.
        """
        if self._handled.is_full():
            tail.wait(seconds)
            return None
        try:
            return tail.next_records(seconds)
        except (DataLossError, UnknownTopicError) as error:
            lost = [each for each in following if each == (error.topic, error.partition)]
            if self._options.fail_on_data_loss or not lost:
                raise
            (partition,) = lost
            self._deliver(partition, tail.delivered(partition))
            tail.drop(partition)
            following.remove(partition)
            _log.warning(
                "%s. No more of %s is read in this micro-batch (failOnDataLoss is false)",
                error,
                partition,
            )
            return None

    def _drain(self) -> Iterator[pa.RecordBatch]:
        """Wait for handlers that run; for all others, too, if an end has no room for them."""
        handled = self._handled
        end = self._seconds() + handled.drain_seconds
        yield from self._wait_while(
            lambda: (
                len(handled.unhandled) > 0
                and not (handled.may_end and (self._seconds() >= end or handled.is_at_rest()))
            )
        )

    def _wait_while(self, is_so: Callable[[], bool]) -> Iterator[pa.RecordBatch]:
        """Read nothing meanwhile; whoever takes the rows hands over what gets its outcome."""
        while is_so():
            self._handled.waker.wait(LOOK_SECONDS)
            yield self._no_rows

    def _places(self, tail: TailReader) -> list[tuple[int, int]]:
        """Where each range is, and the end of its partition's log; 0 if that is not known."""
        places = []
        for (_, partition, _), reader in self._readers.items():
            at = max(reader.delivered.parts[-1][1], tail.delivered(partition))
            held = self._handled.unhandled.firsts(partition).items()
            firsts = [offset for hash_, offset in held if reader.range.hashes.holds(hash_)]
            places.append((min([at, *firsts]), tail.end(partition) or 0))
        return places

    def _read(self, tail: TailReader, partition: TopicPartition) -> None:
        """Read what is not handed over of a partition, from now on."""
        stripes = [
            stripe
            for reader in self._following(partition)
            for slice_ in reader.rest
            for stripe in slice_.stripes
        ]
        if stripes:
            group = self._task.fetch_groups.get(partition)
            tail.read(Slice(*partition, stripes=stripes), fetch_group=group)
        else:
            tail.drop(partition)

    def _leave_out(
        self,
        tail: TailReader,
        partitions: set[TopicPartition],
        parked: Mapping[str, KeyRanges],
    ) -> None:
        """Read no more of keys that were parked; where that makes a difference."""
        for partition in partitions:
            hashes = parked.get(partition.topic, NO_HASHES)
            if not any(
                (hashes & reader.range.hashes) - reader.parked
                for reader in self._following(partition)
            ):
                continue
            self._deliver(partition, tail.delivered(partition))
            for reader in self._following(partition):
                self._put(reader.park(hashes))
                if len(reader.delivered.parts) >= PARTS_MAX // 2:  # an end has room for so many
                    self._time.end()
            self._read(tail, partition)

    def _following(self, partition: TopicPartition) -> list[RangeReader]:
        """The readers of a partition that have no end yet."""
        return [reader for reader in self._at(Step.READ) if reader.range.id.partition == partition]

    def _deliver(self, partition: TopicPartition, offset: int) -> None:
        """All wanted records of a partition below an offset are handed over."""
        for reader in self._following(partition):
            self._put(reader.deliver_to(offset))
