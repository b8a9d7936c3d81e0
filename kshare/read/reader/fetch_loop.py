"""The fetch loop: partitions to read in, Arrow record batches out, until no partition is left.

:class:`~kshare.read.reader.read_slice.SliceReader` and
:class:`~kshare.read.reader.tail_reader.TailReader` each own one. They say what differs between
them: how to wait (the argument of :meth:`FetchLoop.step`), how many partitions of a response
alternate, and what becomes of a partition at an obstacle (:class:`.ObstacleHandler`).

The records of a partition come in offset order, or an error says what is missing. The caller never
sees a fault that passes. None of this depends on which replica is read, on what siblings on the
host have fetched, or on which partitions are read together.

Cost: one request for each broker is always under way while the last response is decoded (unless a
limit is likely to be reached in it, or a sibling makes it). Memory is two fetch responses and one
output batch, however large the backlog is.

One step of the loop::

    take what siblings have fetched --> find who leads --> ask every broker that is not asked
                   ^                                                     |
                   |                                                     v
                deliver <-- send the next request <-- receive what is answered <-- wait
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from math import inf

from kshare.core.progress import TopicPartition
from kshare.errors import KafkaError, RecordError, UnknownTopicError
from kshare.kafka.protocol.background import NotYetError
from kshare.kafka.protocol.brokers import Brokers, Leader
from kshare.kafka.protocol.fetch import FetchAnswer, PartitionFetch
from kshare.kafka.protocol.messages import Address, list_offsets
from kshare.kafka.protocol.retry import Clock
from kshare.options import SourceOptions
from kshare.read.reader.fetcher import Fetcher
from kshare.read.reader.partition_reader import Delivered, ObstacleHandler, Outcome, PartitionReader
from kshare.read.reader.slice_records import SliceRecords

__all__ = ["FetchLoop", "ReaderClock"]

_RESPONSE_BYTES_MIN = 64 << 10
_TOGETHER_SECONDS = 0.05
_REST = 2
_REST_SECONDS_MAX = 0.05

_Checks = list[tuple[PartitionReader, FetchAnswer]]
"""Partitions whose bounds are to be asked for, and the answers that led there."""


class FetchLoop:
    """Reads some partitions together; any may be dropped between two record batches.

    Args:
        options: Options of the source.
        brokers: The brokers of the cluster.
        clock: Source of time.

    Attributes:
        clock: A clock that stops while the caller works.
        partitions: What is read, and not at its end.
        waiting: Those of them that wait for a broker to be found.
        fetchers: Who is asked, by address; the one that was asked first comes first.
        alternating: Number of partitions of a response that are delivered a batch each in turn. If
            more than 1, each partition gets the same share of a response.
        rests: Whether a broker is asked less often, for more at once, while there is no backlog:
            after a response up to the end of its partitions it is not asked for :data:`_REST` times
            as long as that took, the caller's part included. On a busy machine that is longer.
        waits_for_siblings: Whether a step may wait for what a sibling is fetching, if nothing else
            is to be had; else it is looked for again after a pause, as what is due later is.
    """

    def __init__(self, options: SourceOptions, brokers: Brokers, clock: Clock) -> None:
        self.clock = ReaderClock(clock)
        self.partitions: dict[TopicPartition, PartitionReader] = {}
        self.waiting: dict[TopicPartition, PartitionReader] = {}
        self.fetchers: dict[Address, Fetcher] = {}
        self.alternating = 1
        self.rests = False
        self.waits_for_siblings = True
        self._options = options
        self._brokers = brokers
        self._looked_at = self.clock.monotonic(), clock.monotonic()

    # -- which partitions -------------------------------------------------------------------

    def read(self, slices: Sequence[SliceRecords], handler: ObstacleHandler) -> PartitionReader:
        """Read slices of one partition that is not read yet; return what reads them."""
        partition = PartitionReader(slices, self._options, self._brokers, self.clock, handler)
        self.partitions[partition.topic_partition] = partition
        self.waiting[partition.topic_partition] = partition
        return partition

    def drop(self, topic_partition: TopicPartition) -> None:
        """Read a partition no more; what is on its way is not delivered."""
        if topic_partition not in self.partitions:
            return
        for fetcher in self.asked:
            if topic_partition in fetcher.partitions:
                fetcher.close(failed=False)  # else the next request waits behind the long poll
        self._remove(topic_partition)

    def rewind(self) -> None:
        """Forget what is under way: what was not delivered is asked for again."""
        for fetcher in self.fetchers.values():
            fetcher.close(failed=False)
            fetcher.partitions = {}
        for partition in self.partitions.values():
            partition.rewind()
        self.waiting.update(self.partitions)

    def close(self) -> None:
        """Drop all partitions, and give back all connections."""
        for fetcher in self.fetchers.values():
            fetcher.close(failed=False)
        for topic_partition in list(self.partitions):
            self._remove(topic_partition)

    def _remove(self, topic_partition: TopicPartition) -> None:
        # Close it first and forget it last: an interrupt may come between any two lines.
        self.partitions[topic_partition].close()
        self.waiting.pop(topic_partition, None)
        for fetcher in self.fetchers.values():
            fetcher.partitions.pop(topic_partition, None)
        del self.partitions[topic_partition]

    def _reads(self, partition: PartitionReader) -> bool:
        """True if this reader still reads its partition; after a drop, another one may."""
        return self.partitions.get(partition.topic_partition) is partition

    def _finish_if_read(self, partition: PartitionReader) -> None:
        if partition.offset is None and self._reads(partition):
            self._remove(partition.topic_partition)

    # -- a step -----------------------------------------------------------------------------

    @property
    def asked(self) -> list[Fetcher]:
        """The fetchers with a request under way."""
        return [fetcher for fetcher in self.fetchers.values() if fetcher.is_waiting]

    @property
    def _active(self) -> list[Fetcher]:
        """The fetchers that partitions are read from."""
        return [fetcher for fetcher in self.fetchers.values() if fetcher.partitions]

    @property
    def pauses(self) -> tuple[list[float], list[float]]:
        """Seconds until each waiting partition, and each idle broker, may be asked.

        0 or less: now.
        """
        now = self.clock.monotonic()
        unasked = (fetcher for fetcher in self._active if not fetcher.is_waiting)
        return (
            [partition.due - now for partition in self.waiting.values()],
            [fetcher.silence_left for fetcher in unasked],
        )

    @property
    def seconds_until_due(self) -> float:
        """Seconds until something may be asked that was not due when this step began; inf for none.

        What was due then waits for a thread that connects, and wakes whoever waits. What has become
        due since then was not looked at: it is due now (0), and no request is under way for it.
        """
        pauses, silences = self.pauses
        looked_at, actually = self._looked_at
        since, actually_since = (
            self.clock.monotonic() - looked_at,
            self.clock.actual.monotonic() - actually,
        )
        left = [each for each in pauses if each + since > 0]
        left += [each for each in silences if each + actually_since > 0]
        return max(min(left, default=inf), 0.0)

    def step(self, ready: Callable[[], Sequence[Fetcher]]) -> Iterator[Delivered]:
        """Ask whoever may be asked, and deliver what is answered.

        Args:
            ready: Waits; returns the fetchers whose answers are to be received.

        Raises:
            KshareError: Reading cannot go on; :meth:`rewind` comes before the next step.
        """
        self._looked_at = self.clock.monotonic(), self.clock.actual.monotonic()
        due = yield from self._take_chunks()
        self._route(due)
        self._send()
        for fetcher in ready():
            if fetcher.is_waiting:  # else a partition was dropped meanwhile, and its answer with it
                yield from self._receive(fetcher)
        for fetcher in self.fetchers.values():
            if not fetcher.partitions:
                fetcher.close(failed=False)  # and what is under way goes down with it

    # -- who is asked -----------------------------------------------------------------------

    def _take_chunks(self) -> Generator[Delivered, None, list[PartitionReader]]:
        """Deliver what siblings have fetched.

        Returns:
            The partitions that a broker is to be asked for now.
        """
        ours: list[PartitionReader] = []
        for partition in self._due():
            if not self._reads(partition):
                continue  # it was dropped while a chunk was delivered
            if not partition.shares:
                ours.append(partition)
            elif self.waits_for_siblings and (ours or self._active):
                # A sibling may be waiting for what this task is to fetch: do not wait for siblings.
                if partition.claim(partition.offset):
                    ours.append(partition)
            elif not (yield from self._take_chunk(partition)):
                ours.append(partition)
        return [partition for partition in ours if self._reads(partition)]

    def _due(self) -> list[PartitionReader]:
        """Waiting partitions whose pause is over, and those whose pause is nearly over with them.

        Pauses of partitions that failed together differ by their jitter.
        """
        now = self.clock.monotonic()
        waiting = list(self.waiting.values())
        if not any(partition.due <= now for partition in waiting):
            return []
        return [partition for partition in waiting if partition.due <= now + _TOGETHER_SECONDS]

    def _take_chunk(self, partition: PartitionReader) -> Generator[Delivered, None, bool]:
        try:
            if not (yield from partition.take_chunk(waits=self.waits_for_siblings)):
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
                del self.waiting[partition.topic_partition]
                if address not in self.fetchers:
                    self.fetchers[address] = Fetcher(
                        address, self._brokers, self._options.kafka, self.clock.actual
                    )
                self.fetchers[address].assign(partition)

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
        """Send a request to each broker that has none under way."""
        for fetcher in self._active:
            if fetcher.is_waiting or fetcher.silence_left > 0:
                continue
            try:
                broker = fetcher.open().broker
                for partition in fetcher.partitions.values():
                    partition.broker = broker
                self._ask(fetcher, [each.next_fetch() for each in fetcher.partitions.values()])
            except NotYetError:
                continue
            except OSError as error:
                self.lose(fetcher, error)
            except KafkaError as error:
                if any(each.replica.follower is None for each in fetcher.partitions.values()):
                    raise
                # The leader's listener and certificate may be in order.
                self.lose(fetcher, OSError(str(error)))

    def _ask(self, fetcher: Fetcher, fetches: Iterable[PartitionFetch | None]) -> None:
        """Send a request; the responses of all brokers together are no larger than one's."""
        kafka, brokers = self._options.kafka, max(len(self._active), 1)
        wanted = [fetch for fetch in fetches if fetch is not None]
        if self.alternating > 1 and wanted:
            whole = min(kafka.max_partition_fetch_bytes, kafka.fetch_max_bytes)
            share = max(whole // (brokers * len(wanted)), _RESPONSE_BYTES_MIN)
            wanted = [
                fetch
                if fetcher.partitions[fetch.topic_partition].has_large_batches
                else fetch._replace(max_bytes=min(fetch.max_bytes, share))
                for fetch in wanted
            ]
        response_bytes = max(kafka.max_partition_fetch_bytes // brokers, _RESPONSE_BYTES_MIN)
        fetcher.send(wanted, min(response_bytes, kafka.fetch_max_bytes))

    # -- what is answered -------------------------------------------------------------------

    def _receive(self, fetcher: Fetcher) -> Iterator[Delivered]:
        """Receive a response, send the next request, and deliver the response."""
        self.fetchers[fetcher.address] = self.fetchers.pop(fetcher.address)
        since = self.clock.actual.monotonic()
        try:
            delivering, checks = self._handle(fetcher)
            rests = self.rests and delivering and all(each.is_at_end for each in delivering)
            ahead, fault = (
                (set[PartitionReader](), None)
                if rests
                else self._send_ahead(fetcher, delivering, checks)
            )
            yield from self._alternated(
                self._deliver(
                    fetcher,
                    partition,
                    moves=outcome is Outcome.LAST_RECORDS
                    or (partition.shares and partition not in ahead),
                )
                for partition, outcome in delivering.items()
            )
            if rests:
                took = self.clock.actual.monotonic() - since
                fetcher.rest(min(_REST * took, _REST_SECONDS_MAX))
            if fault is not None:
                raise fault
            self._check_bounds(fetcher, checks)
        except NotYetError:
            return  # the broker had hung up behind its answer: it is asked again once connected
        except OSError as error:
            self.lose(fetcher, error)

    def _handle(self, fetcher: Fetcher) -> tuple[dict[PartitionReader, Outcome], _Checks]:
        """Receive a response.

        Returns:
            The partitions that have records to deliver, and those whose bounds are to be asked for.
        """
        answers = fetcher.receive()
        with_records = sum(len(answer.records) > 0 for _, _, answer in answers)
        delivering: dict[PartitionReader, Outcome] = {}
        checks: _Checks = []
        for partition, asked, answer in answers:
            others = with_records - (len(answer.records) > 0)
            outcome = partition.handle(answer, asked, others_have_records=others > 0)
            if outcome is Outcome.REROUTE:
                self._reroute(fetcher, partition)
            elif outcome is Outcome.CHECK_BOUNDS:
                checks.append((partition, answer))
            elif outcome is not Outcome.EMPTY:
                delivering[partition] = outcome
            elif partition.replica.follower is None and self._brokers.is_outdated(
                partition.topic_partition, fetcher.address
            ):  # another broker may lead it by now, without this one knowing
                self._reroute(fetcher, partition)
        for partition in delivering:  # what got nothing comes first in the next request
            del fetcher.partitions[partition.topic_partition]
            fetcher.assign(partition)
        return delivering, checks

    def _send_ahead(
        self, fetcher: Fetcher, delivering: Mapping[PartitionReader, Outcome], checks: _Checks
    ) -> tuple[set[PartitionReader], OSError | None]:
        """Send the next request before a response is decoded.

        Returns:
            The partitions that are asked for, and why that failed, if it did: the response is good
            all the same, and must be delivered first.
        """
        if checks or fetcher.silence_left > 0:
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

    def _alternated(self, deliveries: Iterable[Iterator[Delivered]]) -> Iterator[Delivered]:
        """Deliver a response: :attr:`alternating` partitions take turns, a batch each."""
        following = iter(deliveries)
        current = deque(islice(following, self.alternating))
        while current:
            delivery = current.popleft()
            delivered = next(delivery, None)
            if delivered is None:
                current.extend(islice(following, 1))
                continue
            current.append(delivery)
            yield delivered

    def _deliver(
        self, fetcher: Fetcher, partition: PartitionReader, *, moves: bool
    ) -> Iterator[Delivered]:
        """Deliver a partition's part of a response; ``moves``: then look for its broker again."""
        try:
            yield from partition.deliver()
        except RecordError as error:
            partition.damaged(error)
            moves = True
        self._finish_if_read(partition)
        if moves:
            self._reroute(fetcher, partition)

    def _check_bounds(self, fetcher: Fetcher, checks: _Checks) -> None:
        """Tell lost records from late ones. The response is of no further use then."""
        # Nobody wants the lost records of a partition that was dropped meanwhile.
        wanted = [check for check in checks if self._reads(check[0])]
        if not wanted:
            return
        bounds = list_offsets(fetcher.open(), [each.topic_partition for each, _ in wanted])
        for partition, answer in wanted:
            outcome = partition.check_bounds(answer, bounds[partition.topic_partition])
            if outcome is Outcome.REROUTE:
                self._reroute(fetcher, partition)
            self._finish_if_read(partition)

    def _reroute(self, fetcher: Fetcher, partition: PartitionReader) -> None:
        """Find out again which broker to ask for a partition, if anything of it is left."""
        if fetcher.partitions.get(partition.topic_partition) is partition:
            del fetcher.partitions[partition.topic_partition]
            self.waiting[partition.topic_partition] = partition

    def lose(self, fetcher: Fetcher, error: OSError) -> None:
        """A connection failed: go on with its partitions as if they had not been asked for."""
        fetcher.close(failed=True)
        lost, fetcher.partitions = fetcher.partitions, {}
        self.waiting |= lost
        for partition in lost.values():
            partition.failed(error)
            self._finish_if_read(partition)


class ReaderClock:
    """Time as a reader counts it: without the time that its caller takes."""

    def __init__(self, actual: Clock) -> None:
        self.actual = actual
        self._stopped_seconds = 0.0

    def monotonic(self) -> float:
        """Seconds since some moment, without those of the caller."""
        return self.actual.monotonic() - self._stopped_seconds

    def sleep(self, seconds: float, /) -> None:
        """Wait."""
        self.actual.sleep(seconds)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the clock while the caller works."""
        since = self.actual.monotonic()
        try:
            yield
        finally:
            self._stopped_seconds += self.actual.monotonic() - since
