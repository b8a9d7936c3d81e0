"""Logs of hand-made batches, served as brokers serve them, in responses of any size.

Each class stands in for what a reader is given: a connection, a pool of brokers, or both.
"""

import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

import kshare
from kshare.core.progress import TopicPartition
from kshare.core.slice_end import SliceEnd
from kshare.core.tasks import FetchGroup, PlannedSlice
from kshare.kafka.protocol.apis import api_of
from kshare.kafka.protocol.broker_pool import BrokerPool, PoolMemory
from kshare.kafka.protocol.brokers import Brokers, Leader
from kshare.kafka.protocol.connection import BrokerConnection
from kshare.kafka.protocol.messages import Address
from kshare.kafka.protocol.retry import Clock
from kshare.options import KafkaConfig
from kshare.read.reader.read_slice import SliceReader, reader_options
from tests.support.batches import split_batches
from tests.support.clock import Clock as FakeClock

PARTITION = TopicPartition("t", 0)


def read_slice(
    brokers: Brokers,
    slice_: kshare.Slice,
    options: Mapping[str, str],
    *,
    max_records: int | None = None,
    on_end: Callable[[SliceEnd], None] | None = None,
    fetch_group: FetchGroup | None = None,
    clock: Clock = time,
) -> Iterator[pa.RecordBatch]:
    """:func:`kshare.read_slice` from other brokers than those that the options name."""
    planned = PlannedSlice(slice_, max_records, fetch_group=fetch_group)
    parsed = reader_options(options, slice_.topic)
    told = {} if on_end is None else {slice_: on_end}
    return SliceReader([planned], parsed, on_end=told, brokers=brokers, clock=clock).batches()


class ScriptedLog:
    """Stands in for the brokers of one partition, and for the connection to its leader.

    Args:
        batches: Encoded record batches.
        response_bytes: Maximum size of a response; one record batch may exceed it.
        aborted: (producer id, first offset, offset of the end) of aborted transactions; a response
            lists those that touch it, as a broker's does.
    """

    broker = "scripted:1"
    throttled_until = 0.0
    is_expiring = False
    address_of_all: Address = ("scripted", 1)

    def __init__(
        self,
        batches: Sequence[bytes],
        *,
        response_bytes: int = 1 << 20,
        aborted: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        self._batches: list[tuple[int, bytes]] = []
        for data in batches:
            (batch,), _ = split_batches(data)
            self._batches.append((batch.base + batch.last_delta + 1, data))
        self.response_bytes = response_bytes
        self.stable: int | None = None  # the last stable offset; None: the end
        self._aborted = aborted
        self._waiting: list[Any] = []
        self.fetches: list[tuple[int, int]] = []  # offset, bytes asked for
        self.left_in_flight: list[int] = []  # at the end of each reader

    # -- brokers ----------------------------------------------------------------------------

    def leaders(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Leader]:
        return dict.fromkeys(partitions, self.address_of_all)

    def address(self, node_id: int) -> Address:
        raise AssertionError("no follower is read")

    def lease(self, address: Address) -> "ScriptedLog":
        self._waiting.clear()
        return self

    def release(self, address: Address, connection: BrokerConnection) -> None:
        self.left_in_flight.append(len(self._waiting))

    def discard(self, address: Address, connection: BrokerConnection) -> None:
        self.left_in_flight.append(len(self._waiting))

    def forget(self, topic_partition: TopicPartition) -> None:
        """The leader stays the same."""

    def is_outdated(self, topic_partition: TopicPartition, leader: Address) -> bool:
        return False

    def preference(self, topic_partition: TopicPartition) -> None:
        """No follower is read."""

    def prefer(self, topic_partition: TopicPartition, node_id: int | None, seconds: float) -> None:
        raise AssertionError("no follower is read")

    # -- a connection -----------------------------------------------------------------------

    def fileno(self) -> int:
        raise AssertionError("nobody waits for a socket here")

    @property
    def idle(self) -> bool:
        return not self._waiting

    def free_buffer(self) -> None:
        """It has none."""

    def close(self) -> None:
        self._waiting.clear()

    def call(self, request: Any) -> Any:
        raise AssertionError(f"not scripted: {request}")

    def version(
        self, request: type[Any], lowest: int | None = None, highest: int | None = None
    ) -> int:
        return api_of(request.API_KEY).highest if highest is None else highest

    @property
    def in_flight(self) -> int:
        """How many requests are under way."""
        return len(self._waiting)

    def send(self, request: Any) -> None:
        wanted = request.fetches[0]
        self.fetches.append((wanted.offset, wanted.max_bytes))
        self._waiting.append(wanted)

    def receive_ready(self) -> memoryview | None:
        return self.receive()

    def receive(self) -> memoryview:
        wanted = self._waiting.pop(0)
        room = min(self.response_bytes, wanted.max_bytes)
        records, reached = b"", 0
        for end, data in self._batches:
            if end > wanted.offset and (not records or len(records) + len(data) <= room):
                records += data
                reached = end
            elif records:
                break
        assert records, f"nothing there at offset {wanted.offset}"
        touching = [
            struct.pack(">qq", producer, first)
            for producer, first, stop in self._aborted
            if first < reached and stop >= wanted.offset
        ]
        return self.response(records, touching)

    def response(
        self,
        records: bytes = b"",
        aborted: Sequence[bytes] = (),
        *,
        error: int = 0,
        preferred: int = -1,
    ) -> memoryview:
        """The body of a Fetch response."""
        last = self._batches[-1][0]
        stable = last if self.stable is None else self.stable
        head = struct.pack(">ihiih", 0, 0, 0, 1, 1) + b"t"
        head += struct.pack(">iihqqqi", 1, 0, error, last, stable, 0, len(aborted))
        head += b"".join(aborted)
        return memoryview(head + struct.pack(">ii", preferred, len(records)) + records)


class ScriptedReplica(ScriptedLog):
    """A leader or a follower, which misbehaves as told.

    Args:
        batches: Encoded record batches that it holds.
        broker: Its name.
        names: Node that it names to readers with a rack; None for none.
        answers: Its next answers: an error code, an error to raise, EMPTY for no records, or None
            for the records.
        options: As for :class:`ScriptedLog`.
    """

    EMPTY = "empty"

    def __init__(
        self,
        batches: Sequence[bytes],
        broker: str,
        *,
        names: int | None = None,
        answers: Sequence[int | str | Exception | None] = (),
        **options: Any,
    ) -> None:
        super().__init__(batches, **options)
        self.broker, self.names, self.answers = broker, names, list(answers)
        self.start = 0
        self.racks: list[str] = []  # told in each request

    def send(self, request: Any) -> None:
        super().send(request)
        self.racks.append(request.rack_id)

    def receive_ready(self) -> memoryview | None:
        return self.receive()

    def receive(self) -> memoryview:
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            self._waiting.pop(0)
            return self.response(error=answer)
        rack = self.racks[len(self.racks) - len(self._waiting)]
        offset = self._waiting[0].offset
        if rack and self.names is not None:
            self._waiting.pop(0)
            return self.response(preferred=self.names)
        if offset > self._batches[-1][0] or offset < self.start:
            self._waiting.pop(0)
            return self.response(error=1)
        if answer == self.EMPTY or offset == self._batches[-1][0]:
            self._waiting.pop(0)
            return self.response()
        return super().receive()

    def call(self, request: Any) -> Any:
        """The bounds of the log, as ListOffsets has them."""
        asked = request.topics[0].partitions[0].timestamp
        found = SimpleNamespace(
            partition_index=0,
            error_code=0,
            offset={-2: self.start, -1: self._batches[-1][0]}[asked],
        )
        return SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=[found])])


class ScriptedBrokers(BrokerPool):
    """Stands in for a cluster of one partition's replicas, by their node ids.

    What is preferred is remembered as ever; ``forgotten`` counts what was forgotten.
    """

    def __init__(
        self, leader: int, replicas: Mapping[int, ScriptedReplica], clock: FakeClock
    ) -> None:
        memory = PoolMemory()
        self.clock = clock
        super().__init__(KafkaConfig(bootstrap_servers=()), memory=lambda: memory, clock=clock)
        self.leader, self.replicas = leader, replicas
        self.opened: list[int] = []
        self.forgotten = 0

    def leaders(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Leader]:
        return dict.fromkeys(partitions, ("node", self.leader))

    def address(self, node_id: int) -> Address:
        return "node", node_id

    def forget(self, topic_partition: TopicPartition) -> None:
        self.forgotten += 1

    def is_outdated(self, topic_partition: TopicPartition, leader: Address) -> bool:
        return False

    def lease(self, address: Address) -> BrokerConnection:
        _, node = address
        self.opened.append(node)
        if node not in self.replicas:
            raise OSError(f"broker {node} is not in the cluster's metadata")
        return self.replicas[node].lease(address)

    def release(self, address: Address, connection: BrokerConnection) -> None:
        self.replicas[address[1]].release(address, connection)

    def discard(self, address: Address, connection: BrokerConnection) -> None:
        self.replicas[address[1]].discard(address, connection)
