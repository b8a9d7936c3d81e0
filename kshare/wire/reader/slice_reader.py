"""The reader of slices: :class:`~kshare.core.progress.Slice` in, Arrow record batches out.

The batches hold exactly the records of the slices that the log holds, those of a partition in
offset order, or an error says what is missing. A fault that passes never shows; one that lasts ends
in an error that names broker, topic, partition and offset. With a limit, they hold the first
records of a slice: where that ends is a function of the log. None of this depends on which
replica is read, on what siblings on the host have fetched, or on which slices are read together.

Cost: one request for each broker is always under way while the last response is decoded (unless a
limit is likely to be reached in it, or a sibling makes it). Memory is two fetch responses and one
output batch, however large the backlog is.

One turn of the loop::

    take what siblings have fetched --> find who leads --> ask every broker that is not asked
                   ^                                                     |
                   |                                                     v
                deliver <-- send the next request <-- receive from the one asked first
"""

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain

import pyarrow as pa

from kshare.core.progress import TopicPartition
from kshare.errors import KafkaError, RecordError, UnknownTopicError
from kshare.options import SourceOptions
from kshare.wire.decode.codecs import Arena
from kshare.wire.decode.records import BYTES_MAX, ROWS_MAX
from kshare.wire.protocol.background import NotYetError
from kshare.wire.protocol.broker_pool import BrokerPool
from kshare.wire.protocol.brokers import Brokers, Leader
from kshare.wire.protocol.messages import Address, FetchAnswer, PartitionFetch, list_offsets
from kshare.wire.protocol.retry import Clock
from kshare.wire.reader.fetcher import Fetcher
from kshare.wire.reader.partition_reader import Outcome, PartitionReader
from kshare.wire.reader.slice_records import SliceRecords, WantedSlice

__all__ = ["Checks", "SliceReader"]

_RESPONSE_BYTES_MIN = 64 << 10
_TOGETHER_SECONDS = 0.05
_CLAIMED_SECONDS = 0.01  # between looks at what siblings are fetching
_DECODERS_MAX = 8  # that keep their buffers, of some 2 MiB each

Checks = list[tuple[PartitionReader, FetchAnswer]]
"""Partitions whose bounds are to be asked for, and the answers that led there."""


class SliceReader:
    """Reads some slices once, together.

    :class:`~kshare.wire.reader.tail_reader.TailReader`, which reads without an end, replaces some
    steps: ``_turn``, ``_ask``, ``_in_order``, ``_deliver``, ``_finish_if_read``, ``_check_bounds``
    and ``_reroute``. All else of the loop is the same.

    Args:
        wanted: The slices; no two of them hold the same record.
        options: Options of the source.
        brokers: The brokers of the cluster; None for those that the options name.
        clock: Source of time.

    Attributes:
        slices: What was read of each slice, in the order of ``wanted``.
    """

    def __init__(
        self,
        wanted: Sequence[WantedSlice],
        options: SourceOptions,
        *,
        brokers: Brokers | None = None,
        clock: Clock = time,
    ) -> None:
        arena = Arena()  # slices are decoded in turn
        many = len(wanted) > _DECODERS_MAX
        self.slices = [
            SliceRecords(each, options, arena=arena, is_one_of_many=many) for each in wanted
        ]
        self._options = options
        self._brokers = BrokerPool(options.kafka) if brokers is None else brokers
        self._clock = _ReaderClock(clock)
        self._waiting: dict[TopicPartition, PartitionReader] = {}  # for a broker to be found
        self._fetchers: dict[Address, Fetcher] = {}  # the one that was asked first comes first

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The record batches of the slices, up to their limits. To be called once."""
        many = len(self.slices) > 1
        unfinished = list(self.slices)
        partitions = self._partitions()
        self._waiting = {partition.topic_partition: partition for partition in partitions}
        try:
            while self._waiting or self._active:
                turn = self._turn()
                for batch in _gathered(turn) if many else turn:
                    with self._clock.stopped():
                        yield batch
                unfinished = _report_ends(unfinished)
        finally:
            for fetcher in self._fetchers.values():
                fetcher.close(failed=False)
            for partition in partitions:
                partition.close()

    def _partitions(self) -> list[PartitionReader]:
        by_partition: dict[TopicPartition, list[SliceRecords]] = {}
        for part in self.slices:
            by_partition.setdefault(part.wanted.slice.topic_partition, []).append(part)
        return [
            PartitionReader(slices, self._options, self._brokers, self._clock)
            for slices in by_partition.values()
        ]

    @property
    def _active(self) -> list[Fetcher]:
        """The fetchers that partitions are read from."""
        return [fetcher for fetcher in self._fetchers.values() if fetcher.partitions]

    def _turn(self) -> Iterator[pa.RecordBatch]:
        """Go on by one response, if there is one to wait for."""
        due = yield from self._take_chunks()
        self._route(due)
        self._send()
        asked = [fetcher for fetcher in self._fetchers.values() if fetcher.is_waiting]
        if asked:
            yield from self._receive(asked[0])
        else:
            self._sleep()
        for fetcher in self._fetchers.values():
            if not fetcher.partitions:
                fetcher.close(failed=False)  # and what is under way goes down with it

    # -- who is asked -----------------------------------------------------------------------

    def _take_chunks(self) -> Generator[pa.RecordBatch, None, list[PartitionReader]]:
        """Deliver what siblings have fetched.

        Returns:
            The partitions that a broker is to be asked for now.
        """
        ours: list[PartitionReader] = []
        for partition in self._due():
            if not partition.shares:
                ours.append(partition)
            elif ours or self._active:
                # A sibling may be waiting for what this task is to fetch: do not wait for siblings.
                if partition.claim(partition.offset):
                    ours.append(partition)
            elif not (yield from self._take_chunk(partition)):
                ours.append(partition)
        return ours

    def _due(self) -> list[PartitionReader]:
        """Waiting partitions whose pause is over, and those whose pause is nearly over with them.

        Pauses of partitions that failed together differ by their jitter.
        """
        now = self._clock.monotonic()
        waiting = list(self._waiting.values())
        if not any(partition.due <= now for partition in waiting):
            return []
        return [partition for partition in waiting if partition.due <= now + _TOGETHER_SECONDS]

    def _take_chunk(self, partition: PartitionReader) -> Generator[pa.RecordBatch, None, bool]:
        try:
            if not (yield from partition.take_chunk()):
                return False
        except OSError as error:
            partition.failed(error)
        self._finish_if_read(partition)
        return True

    def _route(self, partitions: Sequence[PartitionReader]) -> None:
        """Find the brokers to ask for some partitions."""
        if not partitions:
            return
        leaders = self._brokers.leaders(
            [each.topic_partition for each in partitions if each.replica.choose() is None]
        )
        for partition in partitions:
            try:
                address = self._address(partition, leaders)
            except UnknownTopicError as error:
                partition.pause(error)
            except NotYetError:
                continue
            except OSError as error:
                partition.failed(error)
            else:
                del self._waiting[partition.topic_partition]
                if address not in self._fetchers:
                    self._fetchers[address] = Fetcher(
                        address, self._brokers, self._options.kafka, self._clock.actual
                    )
                self._fetchers[address].assign(partition)

    def _address(
        self, partition: PartitionReader, leaders: Mapping[TopicPartition, Leader]
    ) -> Address:
        follower = partition.replica.follower
        if follower is not None:
            return self._brokers.address(follower)
        leader = leaders[partition.topic_partition]
        if isinstance(leader, Exception):
            raise leader
        return leader

    def _send(self) -> None:
        """Ask every broker that is not asked."""
        for fetcher in self._active:
            if fetcher.is_waiting or fetcher.throttle_left > 0:
                continue
            try:
                broker = fetcher.open().broker
                for partition in fetcher.partitions.values():
                    partition.broker = broker
                self._ask(fetcher, [each.next_fetch() for each in fetcher.partitions.values()])
            except NotYetError:
                continue
            except OSError as error:
                self._lose(fetcher, error)
            except KafkaError as error:
                if any(each.replica.follower is None for each in fetcher.partitions.values()):
                    raise
                # The leader's listener and certificate may be in order.
                self._lose(fetcher, OSError(str(error)))

    def _ask(self, fetcher: Fetcher, fetches: Iterable[PartitionFetch | None]) -> None:
        """Send a request; the responses of all brokers together are no larger than one's."""
        kafka = self._options.kafka
        share = kafka.max_partition_fetch_bytes // max(len(self._active), 1)
        fetcher.send(
            [fetch for fetch in fetches if fetch is not None],
            min(max(share, _RESPONSE_BYTES_MIN), kafka.fetch_max_bytes),
        )

    def _sleep(self) -> None:
        """Nothing is under way: wait until something may be asked."""
        now = self._clock.monotonic()
        pauses = [partition.due - now for partition in self._waiting.values()]
        throttles = [fetcher.throttle_left for fetcher in self._active]
        pause = min(pauses + throttles, default=0.0)
        if throttles and pause <= 0:  # siblings are fetching what is due, or it would be asked for
            pause = min(_CLAIMED_SECONDS, *throttles)
        if pause > 0:
            self._clock.sleep(pause)

    # -- what is answered -------------------------------------------------------------------

    def _receive(self, fetcher: Fetcher) -> Iterator[pa.RecordBatch]:
        """Receive a response, send the next request, and deliver the response."""
        self._fetchers[fetcher.address] = self._fetchers.pop(fetcher.address)
        try:
            delivering, checks = self._handle(fetcher)
            ahead, fault = self._send_ahead(fetcher, delivering, checks)
            yield from self._in_order(
                self._delivered(
                    fetcher,
                    partition,
                    moves=outcome is Outcome.LAST_RECORDS
                    or (partition.shares and partition not in ahead),
                )
                for partition, outcome in delivering.items()
            )
            if fault is not None:
                raise fault
            self._check_bounds(fetcher, checks)
        except OSError as error:
            self._lose(fetcher, error)

    def _handle(self, fetcher: Fetcher) -> tuple[dict[PartitionReader, Outcome], Checks]:
        """Receive a response.

        Returns:
            The partitions that have records to deliver, and those whose bounds are to be asked for.
        """
        answers = fetcher.receive()
        with_records = sum(len(answer.records) > 0 for _, _, answer in answers)
        delivering: dict[PartitionReader, Outcome] = {}
        checks: Checks = []
        for partition, asked, answer in answers:
            others = with_records - (len(answer.records) > 0)
            outcome = partition.handle(answer, asked, others_have_records=others > 0)
            if outcome is Outcome.REROUTE:
                self._reroute(fetcher, partition)
            elif outcome is Outcome.CHECK_BOUNDS:
                checks.append((partition, answer))
            elif outcome is not Outcome.EMPTY:
                delivering[partition] = outcome
            elif self._is_outdated(fetcher, partition):
                self._reroute(fetcher, partition)
        for partition in delivering:  # what got nothing comes first in the next request
            del fetcher.partitions[partition.topic_partition]
            fetcher.assign(partition)
        return delivering, checks

    def _is_outdated(self, fetcher: Fetcher, partition: PartitionReader) -> bool:
        """True if another broker may lead a partition by now, without its leader knowing."""
        is_leader = partition.replica.follower is None
        return is_leader and self._brokers.is_outdated(partition.topic_partition, fetcher.address)

    def _send_ahead(
        self, fetcher: Fetcher, delivering: Mapping[PartitionReader, Outcome], checks: Checks
    ) -> tuple[set[PartitionReader], OSError | None]:
        """Send the next request before a response is decoded.

        Returns:
            The partitions that are asked for, and why that failed, if it did: the response is good
            all the same, and must be delivered first.
        """
        if checks or fetcher.throttle_left > 0:
            return set(), None
        fetches = {
            partition: partition.fetch_ahead()
            for partition in fetcher.partitions.values()
            if delivering.get(partition) is not Outcome.LAST_RECORDS
        }
        fault = None
        try:
            self._ask(fetcher, fetches.values())
        except OSError as error:
            fault = error
        return {partition for partition, fetch in fetches.items() if fetch is not None}, fault

    def _in_order(self, deliveries: Iterable[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """What a response has of each partition: one after the other here, in turn in a tail."""
        return chain.from_iterable(deliveries)

    def _delivered(
        self, fetcher: Fetcher, partition: PartitionReader, *, moves: bool
    ) -> Iterator[pa.RecordBatch]:
        """Deliver what a response has of a partition, which then moves to another broker or not."""
        yield from self._deliver(fetcher, partition)
        if moves:
            self._reroute(fetcher, partition)

    def _deliver(self, fetcher: Fetcher, partition: PartitionReader) -> Iterator[pa.RecordBatch]:
        try:
            yield from partition.deliver()
        except RecordError as error:
            partition.damaged(error)
            self._reroute(fetcher, partition)
        self._finish_if_read(partition)

    def _check_bounds(self, fetcher: Fetcher, checks: Checks) -> None:
        """Tell lost records from late ones. The response is of no further use then."""
        if not checks:
            return
        bounds = list_offsets(fetcher.open(), [each.topic_partition for each, _ in checks])
        for partition, answer in checks:
            outcome = partition.check_bounds(answer, bounds[partition.topic_partition])
            if outcome is Outcome.REROUTE:
                self._reroute(fetcher, partition)
            self._finish_if_read(partition)

    def _reroute(self, fetcher: Fetcher, partition: PartitionReader) -> None:
        """Find out again which broker to ask for a partition, if anything of it is left."""
        if fetcher.partitions.pop(partition.topic_partition, None) is not None:
            self._waiting[partition.topic_partition] = partition

    def _lose(self, fetcher: Fetcher, error: OSError) -> None:
        """A connection failed: go on with its partitions as if they had not been asked for."""
        fetcher.close(failed=True)
        lost, fetcher.partitions = fetcher.partitions, {}
        self._waiting |= lost
        for partition in lost.values():
            partition.failed(error)
            self._finish_if_read(partition)

    def _finish_if_read(self, partition: PartitionReader) -> None:
        if partition.offset is not None:
            return
        self._waiting.pop(partition.topic_partition, None)
        for fetcher in self._fetchers.values():
            fetcher.partitions.pop(partition.topic_partition, None)
        partition.close()


def _report_ends(slices: Sequence[SliceRecords]) -> list[SliceRecords]:
    """Report the ends of those that are read; return the others."""
    unfinished = []
    for part in slices:
        if not part.cursor.is_done:
            unfinished.append(part)
        elif part.wanted.on_end is not None:
            part.wanted.on_end(part.slice_end)
    return unfinished


class _ReaderClock:
    """Time as a reader counts it: without the time that its consumer takes."""

    def __init__(self, actual: Clock) -> None:
        self.actual = actual
        self._stopped_seconds = 0.0

    def monotonic(self) -> float:
        return self.actual.monotonic() - self._stopped_seconds

    def sleep(self, seconds: float, /) -> None:
        self.actual.sleep(seconds)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """The consumer works."""
        since = self.actual.monotonic()
        try:
            yield
        finally:
            self._stopped_seconds += self.actual.monotonic() - since


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, in few batches; nothing is held back at the end."""
    small: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        rows += batch.num_rows
        size += batch.nbytes
        if small and (rows > ROWS_MAX or size > BYTES_MAX):
            yield pa.concat_batches(small)
            small, rows, size = [], batch.num_rows, batch.nbytes
        small.append(batch)
    if small:
        yield small[0] if len(small) == 1 else pa.concat_batches(small)
