"""A cluster of two brokers or more, as a pool sees it: what answers, and what was asked."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from kshare.kafka.protocol.apis import api_of
from kshare.kafka.protocol.broker_pool import BrokerPool, PoolMemory
from kshare.kafka.protocol.messages import Address
from kshare.options import KafkaConfig, parse_options
from tests.support.clock import Clock

ONE, TWO, THREE, FOUR = ("one", 1), ("two", 2), ("three", 3), ("four", 4)
BOTH = f"{ONE[0]}:{ONE[1]},{TWO[0]}:{TWO[1]}"


class FakeConnection:
    """A connection that answers Metadata requests."""

    def __init__(self, cluster: "Cluster", address: Address) -> None:
        self._cluster, self._address = cluster, address
        self.broker = f"{address[0]}:{address[1]}"
        self.idle = True
        self.throttled_until = 0.0
        self.is_expiring = False
        self.freed = 0
        self.closed = False

    def version(
        self, request: type[Any], lowest: int | None = None, highest: int | None = None
    ) -> int:
        return api_of(request.API_KEY).highest if highest is None else highest

    def send(self, request: Any) -> None:
        raise AssertionError("nothing is fetched")

    def receive_ready(self) -> memoryview | None:
        return self.receive()

    def receive(self) -> memoryview:
        raise AssertionError("nothing is fetched")

    def fileno(self) -> int:
        raise AssertionError("nothing is waited for")

    def call(self, request: Any) -> Any:
        return self._cluster.metadata(self._address, request)

    def free_buffer(self) -> None:
        self.freed += 1

    def close(self) -> None:
        self.closed = True


@dataclass
class Cluster:
    """Two brokers, or more.

    Attributes:
        brokers: All brokers, by their node ids from 1 on.
        leader: Node id of the broker that leads.
        down: What ails a broker when it is connected to.
        mute: What ails a broker when it is asked for metadata.
        tried: The brokers that were connected to.
        asked: The brokers that were asked for metadata, and for which topics.
        clock: Time.
        memory: What the process remembers.
    """

    brokers: tuple[Address, ...] = (ONE, TWO)
    leader: int = 1
    down: dict[Address, Exception] = field(default_factory=dict)
    mute: dict[Address, Exception] = field(default_factory=dict)
    tried: list[Address] = field(default_factory=list)
    asked: list[tuple[Address, list[str]]] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)
    memory: PoolMemory = field(default_factory=PoolMemory)

    def connect(self, host: str, port: int, kafka: KafkaConfig) -> FakeConnection:
        self.tried.append((host, port))
        if (host, port) in self.down:
            raise self.down[host, port]
        return FakeConnection(self, (host, port))

    def metadata(self, address: Address, request: Any) -> Any:
        topics = [topic.name for topic in request.topics]
        self.asked.append((address, topics))
        if address in self.mute:
            raise self.mute[address]
        parts = [SimpleNamespace(partition_index=n, leader_id=self.leader) for n in range(3)]
        return SimpleNamespace(
            brokers=[
                SimpleNamespace(node_id=node, host=host, port=port)
                for node, (host, port) in enumerate(self.brokers, start=1)
            ],
            topics=[SimpleNamespace(name=t, error_code=0, partitions=parts) for t in topics],
        )

    def kafka(self, servers: str = BOTH, **more: str) -> KafkaConfig:
        given = {f"kafka.{name.replace('__', '.')}": text for name, text in more.items()}
        given |= {"kafka.bootstrap.servers": servers, "subscribe": "t"}
        return parse_options(given, streaming=True).options.kafka

    def pool(
        self,
        servers: str = BOTH,
        memory: Callable[[], PoolMemory] | None = None,
        **more: str,
    ) -> BrokerPool:
        """A pool by parsed options; dots of names are written as two underscores."""
        known, kafka = memory or (lambda: self.memory), self.kafka(servers, **more)
        return BrokerPool(kafka, connect=self.connect, memory=known, clock=self.clock)
