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

Cost: as of :class:`~kshare.wire.reader.tail_reader.TailReader`: a long poll at each leader, so a
partition without records costs two requests a second. The log of ends is read twice, and written
once.
"""

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from secrets import token_hex
from typing import Final, Protocol

import pyarrow as pa

from kshare.core.hashing import NO_HASHES, KeyRanges
from kshare.core.offsets import OFFSET_MAX
from kshare.core.open_batch import RangeReader, Step
from kshare.core.open_entry import LogPosition, OpenRange
from kshare.core.progress import Slice, TopicPartition
from kshare.core.range_end import PARTS_MAX, EndKey, RangeEnd, RangeEnds, RangeId
from kshare.core.tasks import OpenTask, PlannedSlice
from kshare.errors import KafkaError
from kshare.options import SourceOptions
from kshare.wire.decode.columns import schema
from kshare.wire.protocol.background import Waker
from kshare.wire.reader.read_slice import read_slices
from kshare.wire.reader.reading_meter import ReadingMeter, Says, say_nothing
from kshare.wire.reader.tail_reader import LossTexts, NamedReset, TailReader

__all__ = ["LOOK_SECONDS", "Ends", "OpenReader", "no_parked"]

IDLE_SECONDS: Final = 1.0
"""Longest time between two batches of rows, empty ones among them."""
LOOK_SECONDS: Final = 0.5
"""Longest time between two looks whether keys were parked."""
_PROPOSALS_MAX: Final = 100
_TEXTS: Final = LossTexts(
    option="failOnDataLoss is false",
    to_go_on="if that is acceptable, set failOnDataLoss to false",
    to_repair="wait until it holds them again, or start with a new checkpoint",
    to_read_anew="start with a new checkpoint to read it from its begin",
    to_warn="with failOnDataLoss=false, this is a warning",
)


class Ends(Protocol):
    """The log of ends: see :class:`kshare.cluster.end_log.EndLog`."""

    def read(self, position: LogPosition, ranges: Sequence[OpenRange]) -> RangeEnds:
        """The ends of ranges, as the log has them now."""

    def append(self, ends: Mapping[EndKey, RangeEnd]) -> None:
        """Propose ends."""


def no_parked() -> Mapping[str, KeyRanges]:
    """The hashes of parked keys, where none are parked amid a batch."""
    return {}


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
        seconds: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._task = task
        self._options = options
        self._ends = ends
        self._parked = parked
        self._meter = ReadingMeter(says, seconds, wall_clock)
        self._seconds = seconds
        self._attempt = token_hex(8)
        self._no_rows = pa.RecordBatch.from_pylist([], schema(options.column_names))
        left = task.milliseconds / 1000
        if task.until_ms is not None:
            left = min(left, task.until_ms / 1000 - wall_clock())
        self._until = seconds() + left
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
        if first.proposals >= _PROPOSALS_MAX:
            topic, partition = first.range.id.partition
            raise KafkaError(
                f"topic {self._task.topic}, partition {self._task.log.partition}, does not show "
                f"where the reading of {topic}, partition {partition}, ended, though that was "
                f"written {_PROPOSALS_MAX} times; it must keep what is written",
                topic=topic,
                partition=partition,
            )
        self._ends.append({reader.key(self._attempt): reader.delivered for reader in proposing})
        for reader in proposing:
            self._put(reader.proposed())

    def _too_far(self) -> KafkaError:
        topic, partition = self._at(Step.FAIL)[0].range.id.partition
        return KafkaError(
            f"{topic}, partition {partition}: another attempt at this task has ended before this "
            "one, and its end counts; this one has read further. Run again, it reads up to there",
            topic=topic,
            partition=partition,
        )

    # -- rows -------------------------------------------------------------------------------

    def _read_to_bounds(self) -> Iterator[pa.RecordBatch]:
        """Read what has an end up to it: the same rows as whoever has read it before."""
        bounded = [reader for reader in self._at(Step.READ) if reader.bound is not None]
        slices = [PlannedSlice(each) for reader in bounded for each in reader.rest]
        yield from read_slices(slices, self._options)
        for reader in bounded:
            self._put(reader.deliver_to(OFFSET_MAX))

    def _follow(self) -> Iterator[pa.RecordBatch]:
        """Read on until the time is over: ranges of one partition together."""
        following = {reader.range.id.partition for reader in self._at(Step.READ)}
        with ExitStack() as stack:
            waker = stack.enter_context(closing(Waker().open()))
            reset: NamedReset = "error" if self._options.fail_on_data_loss else "earliest"
            tail = TailReader(
                self._options, reset, waker, texts=_TEXTS, drops_times=False, rests=True
            )
            stack.enter_context(closing(tail))
            followed: Mapping[str, KeyRanges] = {}
            for partition in following:
                self._read(tail, partition)
            idle_from = self._seconds()
            while (left := self._until - self._seconds()) > 0:
                parked = self._parked()
                if parked != followed:
                    followed = parked
                    self._leave_out(tail, following, parked)
                records = tail.next_records(min(left, LOOK_SECONDS))
                if self._meter.is_due:
                    self._meter.say(self._places(tail))
                if records is not None:
                    self._meter.take(records.batch)
                    yield records.batch
                elif self._seconds() - idle_from < IDLE_SECONDS:
                    continue
                else:
                    yield self._no_rows
                idle_from = self._seconds()
            self._meter.say(self._places(tail))
            for partition in following:
                self._deliver(partition, tail.delivered(partition))
        for reader in self._at(Step.READ):
            self._put(reader.time_over())

    def _places(self, tail: TailReader) -> list[tuple[int, int]]:
        """Where each range is, and the end of its partition's log; 0 if that is not known."""
        return [
            (
                max(reader.delivered.parts[-1][1], tail.delivered(partition)),
                tail.end(partition) or 0,
            )
            for (_, partition, _), reader in self._readers.items()
        ]

    def _read(self, tail: TailReader, partition: TopicPartition) -> None:
        """Read what is not handed over of a partition, from now on."""
        stripes = [
            stripe
            for reader in self._following(partition)
            for slice_ in reader.rest
            for stripe in slice_.stripes
        ]
        if stripes:
            tail.read(Slice(*partition, stripes=stripes))
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
                    self._until = self._seconds()
            self._read(tail, partition)

    def _following(self, partition: TopicPartition) -> list[RangeReader]:
        """The readers of a partition that have no end yet."""
        return [reader for reader in self._at(Step.READ) if reader.range.id.partition == partition]

    def _deliver(self, partition: TopicPartition, offset: int) -> None:
        """All wanted records of a partition below an offset are handed over."""
        for reader in self._following(partition):
            self._put(reader.deliver_to(offset))
