"""What a consumer reads of its partitions: where the session lets it start, and on from there.

::

    event --> Deliveries decide --> what begins anew --> reader --records--> HandingOut --> rows

Guarantees: what is handed out comes from a start of the session, is not processed by it, and comes
once. What an interrupted call has fetched is fetched again. Cost: one fetch for all ranges of a
partition; buffers are those of :class:`~kshare.read.reader.tail_reader.TailReader`.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Final

import pyarrow as pa

from kshare.core.hashing import KeyRanges
from kshare.core.progress import Slice, Stripe, TopicPartition
from kshare.group.config.table import ConsumerConfig
from kshare.group.core.deliveries import Deliveries
from kshare.group.core.delivery import Delivery
from kshare.group.core.handing_out import HandingOut
from kshare.group.core.left_out import LeftOut, ParkedHashes, Released
from kshare.group.delivery.load_meter import meter_of
from kshare.group.delivery.looks import Looks
from kshare.group.message import (
    NO_ROWS,
    Chunk,
    Message,
    ReleaseCount,
    Rows,
    batch_of,
    chunks,
    marked,
)
from kshare.group.metrics import PartitionMetrics
from kshare.group.protocol.membership.subscription import Assigned
from kshare.group.session.session import GroupSession
from kshare.kafka.parking import Parking
from kshare.kafka.protocol.background import Waker
from kshare.monitor.report import lag
from kshare.options import DEFAULT_COLUMNS, EARLIEST, SOURCE_COLUMNS, SourceOptions
from kshare.options.frozen import FrozenMapping
from kshare.options.model import Assign
from kshare.read.reader.tail_reader import NO_END, TailReader, TailRecords

__all__ = ["Dispatcher", "delivery_metrics", "read_options", "reader_of"]

_NONE_PARKED: Final[ParkedHashes] = {}


class Dispatcher:
    """Hands out the records of some partitions, chunk by chunk.

    It reads what :attr:`state` says, and tells it what happens. For one thread at a time.

    Args:
        config: The consumer's configuration.
        session: Says where to start.
        reader: Fetches.
        release_count: For :attr:`.Chunk.release_count`.
        parking: The parked keys; None if nobody parks any.

    Attributes:
        state: What is read and why.
        out: What is handed out of that.
        meter: Measures the load; None if nobody looks at it.
        parking: As given.
        looks: Looks at the cluster from time to time.
    """

    state_class: ClassVar[type[Deliveries]] = Deliveries

    def __init__(
        self,
        config: ConsumerConfig,
        session: GroupSession,
        reader: TailReader,
        release_count: ReleaseCount,
        parking: Parking | None = None,
    ) -> None:
        self.state = self.state_class(
            LeftOut(),
            explicit=config.explicit,
            is_transactional=config.transactional_id is not None,
        )
        self.out = HandingOut(self.state, explicit=config.explicit)
        self.meter = meter_of(config)
        self.parking = parking
        self.looks = Looks(config.kafka, f"group {config.group}")
        self._release_count = release_count
        self._config = config
        self._columns = _raw_columns(config, config.columns or DEFAULT_COLUMNS)
        self._session = session
        self._reader = reader

    @property
    def assignment(self) -> Assigned:
        """The partitions that are claimed, and their key hashes."""
        return self.state.assignment

    @property
    def deliveries(self) -> Mapping[TopicPartition, Delivery]:
        """What is handed out of the partitions that have started."""
        return self.state.by_partition

    @property
    def released(self) -> Released:
        """The keys that wait, as a record of them was released."""
        return self.state.left_out.released

    @property
    def rows(self) -> Rows:
        """Messages that may be handed out now; those that are taken from it are."""
        return self.state.fetched.rows

    # -- which partitions -------------------------------------------------------------------

    def take_turns(self) -> None:
        """Hand out some hundred records of each partition in turn, from now on."""
        self._reader.take_turns()
        # Partitions that are read one after another share a buffer: in turns each has its own.
        self.state.read_anew()
        self._read_anew()

    def keep(self, assignment: Assigned) -> None:
        """Read on these key hashes, until they are claimed without the others, and no others."""
        self.state.keep(assignment)
        self._read_anew()

    def assign(self, assignment: Assigned, *, keeps: bool = False) -> None:
        """Read these partitions and no others, as :meth:`.Deliveries.assign`.

        Args:
            assignment: The partitions, and their key hashes.
            keeps: As there: the group assigns, whose leader takes away what does not exist.
        """
        self._reader.awaits_topics = keeps
        self.state.assign(assignment, keeps=keeps)
        self._read_anew()

    def refresh(self, *, continues: bool = False, begins: bool = False) -> None:
        """Follow the session and the parked keys, as :meth:`.Deliveries.refresh`."""
        self.state.refresh(
            self._session.started(),
            time.monotonic(),
            self._parked,
            self._session.may_count,
            continues=continues,
            begins=begins,
        )
        self._read_anew()

    def pause(self, topic_partition: TopicPartition) -> None:
        """Read a partition no more for now."""
        known = self._reader.bounds(topic_partition)
        if known is not None:
            self.looks.paused_logs.note(topic_partition, known)
        self.state.pause(topic_partition)
        self._read_anew()

    def resume(self, topic_partition: TopicPartition) -> None:
        """Read a partition again; one that is not paused is read on."""
        self.state.resume(topic_partition)
        self._read_anew()

    def seek(self, topic_partition: TopicPartition, offset: int, *, is_batch: bool = True) -> None:
        """Go on at an offset.

        Args:
            topic_partition: The partition.
            offset: The offset.
            is_batch: As for :meth:`.Delivery.processed`.
        """
        self.state.seek(topic_partition, offset, self._session.started(), is_batch=is_batch)
        self._read_anew()

    def take_back(self, topic_partition: TopicPartition) -> None:
        """Hand records out again that were collected, as if they had not been fetched."""
        self.state.take_back(topic_partition)
        self._read_anew()

    def _read_anew(self) -> None:
        """Read what is to be read anew. What an interrupt leaves of it, the next call does."""
        anew = self.state.fetched.anew
        for topic_partition in list(anew):
            self._begin(topic_partition, self.state.to_read(topic_partition, NO_END))
            anew.pop(topic_partition, None)

    def _begin(self, topic_partition: TopicPartition, wanted: tuple[Stripe, ...]) -> None:
        """Read a partition in place of what was read of it."""
        if wanted:
            is_alone = len(self.state.assignment) == 1
            self._reader.read(Slice(*topic_partition, stripes=wanted), is_alone=is_alone)
        else:
            self._reader.drop(topic_partition)

    @property
    def seconds_until_due(self) -> float:
        """Time until keys are left out or let go that were released; infinite if there is none."""
        return max(self.state.next_due() - time.monotonic(), 0.0)

    @property
    def awaits_call(self) -> bool:
        """True if keys are to be left out or let go once a call has returned what it has."""
        return self.state.awaits_call(time.monotonic(), self._parked)

    @property
    def _parked(self) -> ParkedHashes | None:
        return _NONE_PARKED if self.parking is None else self.parking.hashes

    @property
    def finished_leases(self) -> int:
        """Number of leases that have been processed; 0 with key order."""
        return 0

    def end(self, topic_partition: TopicPartition) -> int | None:
        """The end of a partition, as of the last fetch; None if it is not known."""
        return self._reader.end(topic_partition)

    # -- records ----------------------------------------------------------------------------

    def next_rows(self, seconds: float) -> bool:
        """Put the next messages of one partition into :attr:`rows`, which is exhausted.

        Whoever takes a message from there has handed it out (:class:`.Rows`): nothing else counts.

        Args:
            seconds: Maximum time to wait. May return False before it is over.
        """
        fetched, out = self.state.fetched, self.out
        fetched.is_clean &= fetched.batch is None
        self._clean()
        fetched.is_clean = False
        fetched.rows = out.begun(self._begins) or self._fetched_rows(seconds) or NO_ROWS
        fetched.is_clean = True
        return self.rows.left > 0

    def _fetched_rows(self, seconds: float) -> Rows | None:
        fetched = self.state.fetched
        fetched.partition = None
        records = self._fetch(seconds)
        if records is None:
            return None
        fetched.begin(chunks(records.topic_partition, records.batch, records.epochs), records.end)
        return self.out.begun(self._begins)

    def _begins(self, chunk: Chunk) -> None:
        chunk.release_count = self._release_count
        if self.meter is not None:
            self.meter.begun(chunk)

    def fetch_batch(self, seconds: float) -> bool:
        """Have the next record batch of one partition ready for :meth:`collect_batch`.

        What is left of a batch whose messages were handed out comes first.

        Args:
            seconds: Maximum time to wait. May return False before it is over.
        """
        fetched = self.state.fetched
        if fetched.batch is None:
            fetched.is_clean &= not fetched.has_rows  # else it was read as messages so far
            self._clean()
            fetched.is_clean = False
            records = self._fetch(seconds)
            if records is not None:
                fetched.batch = Chunk(records.topic_partition, records.batch), records.end
            fetched.is_clean = True
        return fetched.batch is not None

    def _clean(self) -> None:
        """After an error or an interrupt, read again what may have been fetched and lost."""
        if not self.state.fetched.is_clean:
            self.state.read_anew()
            self.state.fetched.is_clean = True
        self._read_anew()

    def _fetch(self, seconds: float) -> TailRecords | None:
        waits = self.out.waits()
        self.looks.waits.look(waits)
        if waits or self.state.fetched.has_rest:
            self._reader.wait(seconds)
            return None
        return self._reader.next_records(seconds)

    def pass_over(self) -> None:
        """Count offsets as handed out that were read and hold no record of the own hashes.

        For the thread that reads.
        """
        fetched = self.state.fetched
        for topic_partition, delivery in self.deliveries.items():
            if fetched.has_all_out(topic_partition):
                delivery.pass_to(self._reader.delivered(topic_partition))

    # -- what a call collects ---------------------------------------------------------------

    @property
    def has_batch(self) -> bool:
        """True if there is something for :meth:`collect_batch`."""
        return self.state.fetched.batch is not None

    def collect_batch(self) -> pa.RecordBatch:
        """Hand out the record batch that is ready, until it is known what becomes of it."""
        chunk = self.out.collect_batch(self._begins)
        return marked(chunk.batch, [chunk]).select(self._columns)

    def collect_some(self, most: int, messages: list[Message]) -> pa.RecordBatch:
        """The same with messages of :attr:`rows`, at least one, in place of the batch.

        Args:
            most: Maximum number of records.
            messages: Where its messages go; there are none.
        """
        self.out.collect(most, messages)
        return marked(batch_of(messages), [message.chunk for message in messages]).select(
            self._columns
        )

    # -- metrics ----------------------------------------------------------------------------

    def metrics(self, *, is_batch: bool) -> dict[TopicPartition, PartitionMetrics]:
        """What is owned, and how far it is.

        Args:
            is_batch: As for :meth:`.Delivery.processed`.
        """
        return {
            topic_partition: self._metrics(topic_partition, hashes, is_batch=is_batch)
            for topic_partition, hashes in self.state.assignment.items()
        }

    def _metrics(
        self, topic_partition: TopicPartition, hashes: KeyRanges, *, is_batch: bool
    ) -> PartitionMetrics:
        delivery = self.deliveries.get(topic_partition)
        if delivery is None:
            return PartitionMetrics(tuple(hashes))
        log = self._reader.bounds(topic_partition)
        if log is None and topic_partition in self.state.paused:
            log = self.looks.paused_logs.bounds.get(topic_partition)
            if log is not None and log[1] < delivery.position:  # of a pause before
                log = None
        bounds = (None, None) if log is None else log
        return delivery_metrics(delivery, hashes, bounds, is_batch=is_batch)

    def close(self) -> None:
        """Give back all connections."""
        if self.parking is not None:
            self.parking.close()
        self._reader.close()


def delivery_metrics(
    delivery: Delivery,
    hashes: KeyRanges,
    bounds: tuple[int | None, int | None],
    *,
    is_batch: bool,
) -> PartitionMetrics:
    """The metrics of a partition that has started.

    Args:
        delivery: What hands it out.
        hashes: The key hashes that are owned.
        bounds: The first offset of the log, and its end; None if they are not known.
        is_batch: As for :meth:`.Delivery.processed`.
    """
    first, end = bounds
    done = delivery.done.union(delivery.processed(is_batch=is_batch))
    stable = done.position_of(hashes)
    return PartitionMetrics(
        tuple(hashes),
        delivery.position,
        end,
        None if end is None else lag(done, end, hashes),
        delivery.in_flight(is_batch=is_batch),
        stable_offset=stable,
        gaps=delivery.unacknowledged_ranges,
        oldest_unacknowledged_ms=delivery.oldest_unacknowledged_ms,
        retention_margin=None if first is None else max(stable - first, 0),
    )


def reader_of(config: ConsumerConfig, waker: Waker) -> TailReader:
    """Make the reader of a consumer.

    Args:
        config: The consumer's configuration.
        waker: What ends waiting.
    """
    assert isinstance(config.offset_reset, str)  # users name one
    return TailReader(read_options(config), config.offset_reset, waker)


def read_options(config: ConsumerConfig) -> SourceOptions:
    """What the reader of a consumer needs; partitions are named when they are read."""
    wanted = _raw_columns(config, config.columns or SOURCE_COLUMNS)
    columns = dict.fromkeys([*wanted, "offset"])
    if config.explicit or config.measures_load:  # in a rebalance, what is in hand goes by its key
        columns["key"] = None
    largest = max(config.queued_max_kbytes * 1024 // 4, 1)
    kafka = config.kafka
    kafka = replace(kafka, max_partition_fetch_bytes=min(kafka.max_partition_fetch_bytes, largest))
    return SourceOptions(
        topics=Assign(FrozenMapping({})),
        kafka=kafka,
        starting=EARLIEST,
        columns=tuple(columns),
        keys=config.keys,
        max_record_bytes=config.max_record_bytes,
        include_headers="headers" in columns,
    )


def _raw_columns(config: ConsumerConfig, names: tuple[str, ...]) -> tuple[str, ...]:
    """The columns of bytes that some columns are made of."""
    if config.typed_rows is None:
        return names
    # Formats: other consumers need none of it.
    from kshare.formats.typed_columns import raw_columns  # noqa: PLC0415

    return raw_columns(config.typed_rows, names, one_partition=True)
