"""The reader of logs that go on: partitions without an end offset, and long polls.

The records of a partition come in offset order, each at most once, as from
:class:`~kshare.wire.reader.slice_reader.SliceReader`, whose loop it is. Where that one waits, this
one returns when it is woken, and it waits for no broker alone: other threads look up leaders and
connect. A fault that passes is retried for ever, with a warning now and then;
an error leaves the reader in order, and the next call goes on after the last record that was taken.

With :attr:`TailReader.takes_turns`, no partition has to wait until all of another one is taken:
each gets the same share of a response, and some hundred rows at a time are delivered of each in
turn. So the first records that are taken have as many different keys as there can be.

Cost: as for a slice. One request is under way at each leader; memory is two fetch responses and one
output batch, whatever the backlog; in turns, also an arena for each of at most 8 partitions.
"""

import logging
import math
import select
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Literal

import pyarrow as pa

from kshare.core.leader_epochs import NO_EPOCHS, LeaderEpochs
from kshare.core.progress import Slice, TopicPartition
from kshare.errors import DataLossError, UnknownTopicError
from kshare.options import SourceOptions
from kshare.wire.decode.batch_index import BatchIndex
from kshare.wire.decode.codecs import Arena
from kshare.wire.protocol.background import BackgroundBrokers, Waker
from kshare.wire.protocol.brokers import Brokers
from kshare.wire.protocol.messages import FetchAnswer, PartitionFetch
from kshare.wire.protocol.retry import Clock, RetryDeadline, retry_backoff
from kshare.wire.reader.faults import why_missing
from kshare.wire.reader.fetcher import Fetcher
from kshare.wire.reader.partition_reader import Outcome, PartitionReader
from kshare.wire.reader.slice_reader import Checks, SliceReader
from kshare.wire.reader.slice_records import SliceRecords, WantedSlice

__all__ = ["NO_END", "NamedReset", "TailReader", "TailRecords"]

_log = logging.getLogger(__name__)

NO_END = 1 << 62
"""The end of a slice that has none."""

NamedReset = Literal["earliest", "latest", "error"]
_WARNING_SECONDS = 30.0
_MANY = 8  # partitions, from which on each gives up its buffers after each response
_SHARE_BYTES_MIN = 64 << 10


@dataclass(frozen=True, slots=True)
class TailRecords:
    """Some records of a partition.

    Attributes:
        topic_partition: The partition.
        batch: The records, in offset order.
        end: The offset after the last one.
        epochs: First offsets, ascending, each with the leader epoch of the records up to the next.
    """

    topic_partition: TopicPartition
    batch: pa.RecordBatch
    end: int
    epochs: tuple[tuple[int, int], ...] = ()


class _TailSlice(SliceRecords):
    """The records of a partition without an end, and which leaders wrote those of the last answer.

    Attributes:
        epochs: As in :class:`TailRecords`.
        read_epochs: Which leaders wrote what was read of each partition so far.
    """

    rows_max: ClassVar[int] = 16_384  # a fourth takes 20 MB less, and no more time
    drops_times: ClassVar[bool] = True  # a message can say that it has none
    epochs: tuple[tuple[int, int], ...] = ()
    read_epochs: dict[TopicPartition, LeaderEpochs]

    def take(
        self, index: BatchIndex, aborted: Sequence[tuple[int, int]]
    ) -> Iterator[pa.RecordBatch]:
        assert index.next_offset is not None
        self.epochs = index.leader_epochs()
        partition = self.wanted.slice.topic_partition
        read = self.read_epochs.get(partition, NO_EPOCHS)
        self.read_epochs[partition] = read.read(index.fetch_offset, index.next_offset, self.epochs)
        return super().take(index, aborted)


class _TurnSlice(_TailSlice):
    """The same for one of several partitions that are delivered in turn."""

    rows_max: ClassVar[int] = 512


class _TailPartition(PartitionReader):
    """A partition without an end: an answer without records is as good as one with records.

    Attributes:
        is_closed: Whether what is on its way is not wanted any more.
        end: The end of what brokers hand out, as of the last answer; None before the first.
        bounds: First offset and end of the log, by the last answer; None before.
        has_large_batches: Whether an answer was too small for one record batch.
    """

    def __init__(
        self,
        records: _TailSlice,
        options: SourceOptions,
        brokers: Brokers,
        clock: Clock,
        reset: NamedReset,
    ) -> None:
        super().__init__([records], options, brokers, clock)
        self.is_closed = False
        self.end: int | None = None
        self.bounds: tuple[int, int] | None = None
        self.has_large_batches = False
        self._slice = records
        self._reset = reset
        self._pauses = RetryDeadline(math.inf, retry_backoff(options.kafka), clock)
        self._warned: float | None = None

    @property
    def due(self) -> float:
        return max(super().due, self._pauses.due)

    @property
    def delivered(self) -> int:
        """The offset after the last record that was delivered, or was not wanted."""
        return self._slice.cursor.delivered

    @property
    def epochs(self) -> tuple[tuple[int, int], ...]:
        """The leader epochs of what is being delivered."""
        return self._slice.epochs

    def rewind(self) -> None:
        """Fetch again what was not delivered."""
        self._records.rewind()

    def handle(self, answer: FetchAnswer, asked: int, *, others_have_records: bool) -> Outcome:
        if not answer.error_code:
            self.end = self._visible(answer)
            self._pauses.reset()
            self._deadline.reset()
            self._was_found_again = False
            self._warned = None
            self.bounds = (max(answer.log_start, 0), self._visible(answer))
        return super().handle(answer, asked, others_have_records=others_have_records)

    def deliver(self) -> Iterator[pa.RecordBatch]:
        batches = super().deliver()
        # It may be closed at each yield, and while other partitions of the response are delivered.
        while not self.is_closed and (batch := next(batches, None)) is not None:
            yield batch

    def pause(self, cause: Exception) -> None:
        """Ask nothing for a while; raises only if the topic or partition does not exist."""
        if isinstance(cause, UnknownTopicError):
            super().pause(cause)
            return
        self._pauses.postpone()
        now = self._pauses.due
        if self._warned is None or now - self._warned >= _WARNING_SECONDS:
            level = logging.INFO if self._warned is None else logging.WARNING
            self._warned = now
            _log.log(level, "%s: trying again after: %s", self.topic_partition, cause)

    def _starved(self, answer: FetchAnswer, asked: int, others_have_records: bool) -> Outcome:  # noqa: ARG002
        if len(answer.records):
            self.has_large_batches = True
            self._records.grow()
        return Outcome.EMPTY

    def _skip(self, earliest: int, last: int, latest: int) -> None:  # noqa: ARG002
        offset = self.offset
        if offset is None or earliest <= offset <= latest:
            return
        is_deleted = offset < earliest
        what = (
            f"{self.topic_partition}: offset {offset} is wanted, the log holds {earliest} to "
            f"{latest} (end not included): what is missing {why_missing(is_deleted=is_deleted)}"
        )
        if self._reset == "error" or not is_deleted:
            hint = "set auto.offset.reset to go on" if is_deleted else "reset the group's offsets"
            raise DataLossError(
                f"{what}; {hint}",
                wanted=(offset, earliest if is_deleted else offset + 1),
                available=(earliest, latest),
                **self.position.facts,
            )
        # Not at the end, as Java's consumer with "latest": what is left has not been processed.
        _log.warning("%s. Going on at %d (auto.offset.reset=%s)", what, earliest, self._reset)
        self._slice.cursor = self._slice.cursor.deliver_to(earliest)


class TailReader(SliceReader):
    """Reads some partitions from given offsets on, without an end.

    Not for use by several threads, but for ``waker``.

    Args:
        options: Options of the source; columns, and how to reach Kafka.
        reset: Whether to go on if wanted offsets were deleted: `error` says no.
        waker: What ends waiting.

    Attributes:
        takes_turns: Whether partitions that are read from now on are delivered in turn.
    """

    _brokers: BackgroundBrokers
    _delivering: PartitionReader  # whose record batch was delivered last

    def __init__(self, options: SourceOptions, reset: NamedReset, waker: Waker) -> None:
        brokers = BackgroundBrokers(options.kafka, waker.wake)
        super().__init__((), options, brokers=brokers)
        self.takes_turns = False
        self._reset: NamedReset = reset
        self._waker = waker
        self._arena = Arena()
        self._reading: dict[TopicPartition, _TailPartition] = {}
        self._read_epochs: dict[TopicPartition, LeaderEpochs] = {}  # of those dropped, too
        self._batches: Iterator[TailRecords | None] | None = None
        self._wait_seconds = 0.0

    # -- which partitions -------------------------------------------------------------------

    def read(self, slice_: Slice, *, is_alone: bool = False) -> None:
        """Read a slice from now on, in place of what was read of its partition.

        Args:
            slice_: What is read.
            is_alone: Whether no other partition is read: then short turns would be of no use.
        """
        topic_partition = slice_.topic_partition
        self.drop(topic_partition)
        # In turns, what one decoder has decompressed stays while others decode.
        kind = _TurnSlice if self.takes_turns and not is_alone else _TailSlice
        records = kind(
            WantedSlice(slice_),
            self._options,
            arena=None if self.takes_turns else self._arena,
            is_one_of_many=len(self._reading) >= _MANY,
        )
        records.read_epochs = self._read_epochs
        partition = _TailPartition(records, self._options, self._brokers, self._clock, self._reset)
        self._reading[topic_partition] = self._waiting[topic_partition] = partition

    def drop(self, topic_partition: TopicPartition) -> None:
        """Read a partition no more."""
        partition = self._reading.pop(topic_partition, None)
        if partition is not None:
            partition.is_closed = True
            self._waiting.pop(topic_partition, None)
            for fetcher in self._fetchers.values():
                if fetcher.partitions.pop(topic_partition, None) and fetcher.is_waiting:
                    fetcher.close(failed=False)  # or what is asked next waited for a long poll

    def delivered(self, topic_partition: TopicPartition) -> int:
        """The offset up to which all wanted records of a partition were returned; 0 if unknown."""
        partition = self._reading.get(topic_partition)
        return 0 if partition is None else partition.delivered

    def end(self, topic_partition: TopicPartition) -> int | None:
        """The end of a partition, as of the last answer; None if it is not known."""
        partition = self._reading.get(topic_partition)
        return None if partition is None else partition.end

    def bounds(self, topic_partition: TopicPartition) -> tuple[int, int] | None:
        """First offset and end of a partition's log, by the last answer.

        None if no answer has come since :meth:`read` was called.
        """
        partition = self._reading.get(topic_partition)
        return None if partition is None else partition.bounds

    def leader_epochs(self, topic_partition: TopicPartition) -> LeaderEpochs:
        """The leader epochs of a partition's records read so far. May be called by any thread."""
        return self._read_epochs.get(topic_partition, NO_EPOCHS)

    # -- records ----------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Wait without reading."""
        self._waker.wait(seconds)

    def next_records(self, seconds: float) -> TailRecords | None:
        """The next records of any partition; None if there are none within that time.

        May return None before the time is over.

        Raises:
            KshareError: A partition cannot be read now. The next call tries again.
        """
        self._wait_seconds = seconds
        if self._batches is None:
            self._batches = self._tail()
        try:
            return next(self._batches)
        except BaseException:
            self._start_again()
            raise

    def close(self) -> None:
        """Give back all connections."""
        for topic_partition in list(self._reading):
            self.drop(topic_partition)
        self._start_again()
        self._brokers.close()

    def _tail(self) -> Iterator[TailRecords | None]:
        """The records of all partitions; None whenever there is nothing to be had at once."""
        while True:
            got_none = True
            for batch in self._turn():
                got_none = False
                partition = self._delivering
                with self._clock.stopped():
                    assert isinstance(partition, _TailPartition)
                    yield TailRecords(
                        partition.topic_partition, batch, partition.delivered, partition.epochs
                    )
            if got_none:
                with self._clock.stopped():
                    yield None

    def _turn(self) -> Iterator[pa.RecordBatch]:
        self._route(self._due())
        self._send()
        ready = self._ready()
        for fetcher in self._fetchers.values():
            if fetcher.is_overdue and fetcher not in ready:  # frozen, or cut off: no FIN comes
                host, port = fetcher.address
                late = f"{host}:{port} has not answered within request.timeout.ms"
                self._lose(fetcher, TimeoutError(late))
        for fetcher in ready:
            if fetcher.is_waiting:  # else a partition was dropped meanwhile, and its answer with it
                yield from self._receive(fetcher)
        for fetcher in self._fetchers.values():
            if not fetcher.partitions:
                fetcher.close(failed=False)

    def _ask(self, fetcher: Fetcher, fetches: Iterable[PartitionFetch | None]) -> None:
        if not self.takes_turns:
            super()._ask(fetcher, fetches)
            return
        wanted = [fetch for fetch in fetches if fetch is not None]
        kafka = self._options.kafka
        whole = min(kafka.max_partition_fetch_bytes, kafka.fetch_max_bytes)
        brokers = max(len(self._active), 1)
        share = max(whole // (brokers * max(len(wanted), 1)), _SHARE_BYTES_MIN)
        super()._ask(
            fetcher,
            [
                fetch
                if self._reading[fetch.topic_partition].has_large_batches
                else fetch._replace(max_bytes=min(fetch.max_bytes, share))
                for fetch in wanted
            ],
        )

    def _in_order(self, deliveries: Iterable[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        if not self.takes_turns:
            yield from super()._in_order(deliveries)
            return
        following = iter(deliveries)
        turns = deque(islice(following, _MANY))
        while turns:
            delivery = turns.popleft()
            batch = next(delivery, None)
            if batch is None:
                turns.extend(islice(following, 1))
                continue
            yield batch
            turns.append(delivery)

    def _deliver(self, fetcher: Fetcher, partition: PartitionReader) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _TailPartition)
        for batch in super()._deliver(fetcher, partition):
            self._delivering = partition
            yield batch

    def _finish_if_read(self, partition: PartitionReader) -> None:
        assert isinstance(partition, _TailPartition)
        if not partition.is_closed:  # else what is read in its place would end
            super()._finish_if_read(partition)

    def _check_bounds(self, fetcher: Fetcher, checks: Checks) -> None:
        # What a partition has lost that was dropped meanwhile, nobody wants any more.
        reading = self._reading
        wanted = [each for each in checks if reading.get(each[0].topic_partition) is each[0]]
        super()._check_bounds(fetcher, wanted)

    def _reroute(self, fetcher: Fetcher, partition: PartitionReader) -> None:
        assert isinstance(partition, _TailPartition)
        if not partition.is_closed:
            super()._reroute(fetcher, partition)

    def _ready(self) -> list[Fetcher]:
        """Wait for answers; return the fetchers that have one."""
        now = self._clock.monotonic()
        asked = {
            fetcher.connection.fileno(): fetcher
            for fetcher in self._fetchers.values()
            if fetcher.is_waiting and fetcher.connection is not None
        }
        pauses = [partition.due - now for partition in self._waiting.values()]
        pauses += [fetcher.throttle_left for fetcher in self._active if not fetcher.is_waiting]
        pauses = [pause for pause in pauses if pause > 0]
        ready = self._waker.wait(
            min([self._wait_seconds, *pauses]), dict.fromkeys(asked, select.POLLIN)
        )
        return [asked[socket] for socket in ready]

    def _start_again(self) -> None:
        """After an error, what was under way is not wanted: ask again for what was not taken."""
        self._batches = None
        for fetcher in self._fetchers.values():
            fetcher.close(failed=False)
            fetcher.partitions = {}
        for partition in self._reading.values():
            partition.rewind()
        self._waiting.update(self._reading)
