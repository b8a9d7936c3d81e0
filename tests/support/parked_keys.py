"""What the tests of parked keys share."""

from collections.abc import Callable, Collection
from datetime import UTC, datetime

from confluent_kafka.admin import AdminClient

from kshare.core.listing import ParkedCount
from kshare.kafka.parked_keys import ParkedKey, ParkedKeys
from kshare.options import KafkaConfig
from kshare.testing import FakeCluster

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
SINCE = "2026-01-02T12:00:00+00:00"
A, B = b"a", b"\xff\x00"


def kafka(cluster: FakeCluster, *, timeout_ms: int = 20_000) -> KafkaConfig:
    host, port = cluster.bootstrap_servers.split(":")
    return KafkaConfig(bootstrap_servers=((host, int(port)),), api_timeout_ms=timeout_ms)


def keys_of(cluster: FakeCluster, admin: Callable[..., AdminClient] = AdminClient) -> ParkedKeys:
    return ParkedKeys(kafka(cluster), now=lambda: NOON, admin=admin)


class FakeParked:
    """Parked keys that live in memory; called to make what reads them."""

    def __init__(self, *keys: ParkedKey) -> None:
        self.keys = set(keys)
        self.looks = 0
        self.is_closed = False

    def __call__(self, kafka: KafkaConfig) -> "FakeParked":
        return self

    def everywhere(self) -> Collection[ParkedKey]:
        self.looks += 1
        return frozenset(self.keys)

    def counts(self) -> dict[str, ParkedCount]:
        topics = [topic for topic, _ in self.keys]
        return {topic: ParkedCount(topics.count(topic), NOON.timestamp()) for topic in topics}

    def close(self) -> None:
        self.is_closed = True
