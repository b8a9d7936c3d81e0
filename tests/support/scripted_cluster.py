"""A cluster of many partitions on several brokers, whose logs and faults are made by hand.

It answers Fetch requests as Kafka does: partitions in the order of the request, as long as there is
room; a first batch that does not fit is left out, except for the first partition that has any.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from kshare.core.progress import Slice, TopicPartition
from kshare.core.tasks import PlannedSlice
from kshare.kafka.protocol.apis import api_of
from kshare.kafka.protocol.broker_pool import BrokerPool, PoolMemory
from kshare.kafka.protocol.brokers import Leader
from kshare.kafka.protocol.connection import BrokerConnection
from kshare.kafka.protocol.messages import Address
from kshare.options import KafkaConfig
from kshare.read.reader.read_slice import OnEnd, SliceReader, reader_options
from tests.support.batches import split_batches
from tests.support.clock import Clock

NOT_LEADER = 6
OUT_OF_RANGE = 1
OPTIONS = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.retry.backoff.ms": "10"}


def read(
    cluster: "ScriptedCluster",
    wanted: Sequence[PlannedSlice],
    on_end: Mapping[Slice, OnEnd] | None = None,
    /,
    **options: str,
) -> Iterator[pa.RecordBatch]:
    """Read slices from the cluster; dots of options' names are written as two underscores."""
    given = OPTIONS | {name.replace("__", "."): text for name, text in options.items()}
    topics = {part.slice.topic for part in wanted}
    parsed = reader_options(given, *topics)
    reader = SliceReader(wanted, parsed, on_end=on_end or {}, brokers=cluster, clock=cluster.clock)
    return reader.batches()


@dataclass
class Log:
    """The log of one partition.

    Attributes:
        batches: Encoded record batches, in the order of their offsets.
        leader: Node id of the leader.
        start: First offset that the log holds; what the batches hold before it was deleted.
        aborted: (producer id, first offset, offset of the end) of aborted transactions.
        errors: Error codes of its next answers; None for an answer as ever.
    """

    batches: Sequence[bytes]
    leader: int = 1
    start: int = 0
    aborted: Sequence[tuple[int, int, int]] = ()
    errors: list[int | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ends = []
        for data in self.batches:
            (batch,), _ = split_batches(data)
            self._ends.append(batch.base + batch.last_delta + 1)

    @property
    def end(self) -> int:
        return self._ends[-1] if self._ends else 0

    def fetch(self, offset: int, room: int, *, at_least_one: bool) -> tuple[bytes, list[bytes]]:
        """The records from an offset on that fit, and the aborted transactions among them."""
        records, reached = b"", offset
        for end, data in zip(self._ends, self.batches, strict=True):
            if end <= offset:
                continue
            if len(records) + len(data) > room and (records or not at_least_one):
                break
            records, reached = records + data, end
        touching = [
            struct.pack(">qq", producer, first)
            for producer, first, stop in self.aborted
            if first < reached and stop >= offset
        ]
        return records, touching


class ScriptedConnection:
    """A connection to one broker of the cluster."""

    def __init__(self, cluster: "ScriptedCluster", node: int) -> None:
        self._cluster, self._node = cluster, node
        self.broker = f"node:{node}"
        self.throttled_until = 0.0
        self.is_expiring = False
        self.requests: list[Any] = []
        self.is_open = True

    def version(
        self, request: type[Any], lowest: int | None = None, highest: int | None = None
    ) -> int:
        return api_of(request.API_KEY).highest if highest is None else highest

    def send(self, request: Any) -> None:
        assert self.is_open
        assert not self.requests, "more than one request is under way"
        fault = self._cluster.next_fault("send", self._node)
        if fault is not None:
            raise fault
        parts = [(part.topic_partition, part) for part in request.fetches]
        assert len({partition for partition, _ in parts}) == len(parts)
        self._cluster.fetches.append(
            Fetch(
                self._node,
                self._cluster.clock.now,
                request.max_bytes,
                {partition: part.offset for partition, part in parts},
            )
        )
        self.requests.append((request, parts))

    def receive_ready(self) -> memoryview | None:
        return self.receive()

    def receive(self) -> memoryview:
        request, parts = self.requests.pop(0)
        self._cluster.clock.now += self._cluster.answer_seconds
        fault = self._cluster.next_fault("receive", self._node)
        if fault is not None:
            raise fault
        return self._cluster.answer(self._node, request, parts)

    def call(self, request: Any) -> Any:
        """The bounds of logs."""
        assert not self.requests, "a call with a request in flight"
        self._cluster.calls += 1
        return SimpleNamespace(
            topics=[
                SimpleNamespace(
                    name=topic.name,
                    partitions=[
                        self._cluster.bound(
                            self._node, TopicPartition(topic.name, part.partition_index), part
                        )
                        for part in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def fileno(self) -> int:
        raise AssertionError("nobody waits for a socket here")

    @property
    def idle(self) -> bool:
        return not self.requests and self.is_open

    def free_buffer(self) -> None:
        """It has none."""

    def close(self) -> None:
        self.is_open = False
        self.requests.clear()


@dataclass(frozen=True)
class Fetch:
    """A Fetch request that was sent: to which broker, when, for how much, and for what."""

    node: int
    at: float
    max_bytes: int
    offsets: Mapping[TopicPartition, int]


class ScriptedCluster(BrokerPool):
    """Brokers that serve some logs.

    Args:
        logs: The log of each partition.
        response_bytes: Maximum size of a response; one record batch may exceed it.
        answer_seconds: How long a broker takes to answer.

    Attributes:
        faults: What goes wrong next with a broker: by "lease", "send" or "receive", and node id.
        throttles_ms: What each broker's next responses say, by node id.
        fetches: The requests that were sent.
        served: The partitions and offsets for which a response had records.
        calls: How many ListOffsets requests were sent.
        lookups: The partitions whose leaders were looked up, each time.
        open: The connections that are on lease.
    """

    def __init__(
        self,
        logs: Mapping[TopicPartition, Log],
        *,
        response_bytes: int = 1 << 20,
        answer_seconds: float = 0.0,
    ) -> None:
        self.clock, memory = Clock(), PoolMemory()
        super().__init__(KafkaConfig(bootstrap_servers=()), memory=lambda: memory, clock=self.clock)
        self.logs = dict(logs)
        self.response_bytes = response_bytes
        self.answer_seconds = answer_seconds
        self.faults: dict[tuple[str, int], list[Exception | None]] = {}
        self.throttles_ms: dict[int, list[int]] = {}
        self.fetches: list[Fetch] = []
        self.served: list[tuple[TopicPartition, int]] = []
        self.calls = 0
        self.lookups: list[list[TopicPartition]] = []
        self.open: list[ScriptedConnection] = []
        self._leaders = {partition: log.leader for partition, log in logs.items()}  # as last seen

    def next_fault(self, what: str, node: int) -> Exception | None:
        waiting = self.faults.get((what, node))
        return waiting.pop(0) if waiting else None

    # -- the pool ---------------------------------------------------------------------------

    def leaders(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Leader]:
        wanted = list(partitions)
        self.lookups.append(wanted)
        return {partition: ("node", self._leaders[partition]) for partition in wanted}

    def forget(self, topic_partition: TopicPartition) -> None:
        self._leaders[topic_partition] = self.logs[topic_partition].leader

    def is_outdated(self, topic_partition: TopicPartition, leader: Address) -> bool:
        return False

    def address(self, node_id: int) -> Address:
        return "node", node_id

    def lease(self, address: Address) -> ScriptedConnection:
        fault = self.next_fault("lease", address[1])
        if fault is not None:
            raise fault
        connection = ScriptedConnection(self, address[1])
        self.open.append(connection)
        return connection

    def release(self, address: Address, connection: BrokerConnection) -> None:
        assert isinstance(connection, ScriptedConnection)
        self.open.remove(connection)

    def discard(self, address: Address, connection: BrokerConnection) -> None:
        self.release(address, connection)

    # -- answers ----------------------------------------------------------------------------

    def answer(
        self, node: int, request: Any, parts: Sequence[tuple[TopicPartition, Any]]
    ) -> memoryview:
        throttles = self.throttles_ms.get(node, [])
        body = struct.pack(
            ">ihii",
            throttles.pop(0) if throttles else 0,
            0,
            0,
            len({partition.topic for partition, _ in parts}),
        )
        room, is_empty, topic = min(self.response_bytes, request.max_bytes), True, None
        for partition, part in parts:
            if partition.topic != topic:
                topic = partition.topic
                count = sum(other.topic == topic for other, _ in parts)
                name = topic.encode()
                body += struct.pack(">h", len(name)) + name + struct.pack(">i", count)
            log = self.logs[partition]
            code = self._error(node, log, part.offset)
            records, aborted = b"", list[bytes]()
            if not code:
                limit = min(room, part.max_bytes)
                records, aborted = log.fetch(part.offset, limit, at_least_one=is_empty)
            if records:
                self.served.append((partition, part.offset))
            room, is_empty = max(0, room - len(records)), is_empty and not records
            body += struct.pack(
                ">ihqqqi", partition.partition, code, log.end, log.end, log.start, len(aborted)
            )
            body += b"".join(aborted) + struct.pack(">ii", -1, len(records)) + records
        return memoryview(body)

    def _error(self, node: int, log: Log, offset: int) -> int:
        if log.leader != node:
            return NOT_LEADER
        if not log.start <= offset <= log.end:
            return OUT_OF_RANGE
        return (log.errors.pop(0) if log.errors else None) or 0

    def bound(self, node: int, partition: TopicPartition, part: Any) -> Any:
        log = self.logs[partition]
        return SimpleNamespace(
            partition_index=partition.partition,
            error_code=0 if log.leader == node else NOT_LEADER,
            offset={-2: log.start, -1: log.end}[part.timestamp],
        )
