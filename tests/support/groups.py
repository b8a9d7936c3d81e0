"""What the tests of key-shared groups share: configurations, members, and waiting for them."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import TopicPartition as Partition

from kshare.core.hashing import ALL_HASHES, WHOLE, HashRange, KeyRanges, split
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle, TopicPartition
from kshare.group.config.consumer_config import consumer_config
from kshare.group.config.table import ConsumerConfig
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.log.primary import PrimaryOffsets, StoredOffset
from kshare.group.session.by_log import ByLog
from kshare.group.session.session import GroupSession
from kshare.testing import FakeCluster
from tests.support.clock import WAIT_S, until

LOG = "__individual_commit_offsets"
T0, T1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
LOWER, UPPER = split(WHOLE, 2)
GROUP = "billing"
SECONDS = WAIT_S
FETCH_WAIT_MS = 50
"""For ``fetch.max.wait.ms``: so long, mock brokers hold a fetch, though records come meanwhile."""


def group_config(servers: str, claim_timeout_ms: int = 400, **given: Any) -> ConsumerConfig:
    """The configuration of a member; names with underscores for dots."""
    return consumer_config(
        {
            "bootstrap.servers": servers,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "claim.timeout.ms": claim_timeout_ms,
            "fetch.max.wait.ms": FETCH_WAIT_MS,
            **{name.replace("_", "."): value for name, value in given.items()},
        }
    )


def quick_settings(servers: str, **given: Any) -> dict[str, Any]:
    """What a consumer that subscribes is given: its group notices within 3 s that it is gone.

    Args:
        servers: ``host:port`` of the brokers.
        given: More settings, with underscores for dots; they win.
    """
    return {
        "bootstrap.servers": servers,
        "group.id": GROUP,
        "auto.offset.reset": "earliest",
        "claim.timeout.ms": 500,
        "fetch.max.wait.ms": FETCH_WAIT_MS,
        "session.timeout.ms": 3_000,
        "heartbeat.interval.ms": 100,
        **{name.replace("_", "."): value for name, value in given.items()},
    }


def join_together(cluster: FakeCluster) -> None:
    """Let a group wait for half a second before it begins, so that it begins with all its members.

    Each one that joins later costs the mock coordinator's wait, nearly a session.
    """
    cluster._call("mock_group_initial_rebalance_delay_ms", 500)


@contextmanager
def member(servers: str, *hashes: HashRange, **given: Any) -> Iterator[GroupSession]:
    """A session that owns some hashes of T0, and has started."""
    with closing_session(GroupSession(group_config(servers, **given))) as session:
        session.claim({T0: KeyRanges(hashes) or ALL_HASHES})
        start_of(session)
        yield session


@contextmanager
def closing_session(session: GroupSession) -> Iterator[GroupSession]:
    """Close a session at the end."""
    try:
        yield session
    finally:
        session.close(5)


def fetch_as_brokers_do(monkeypatch: pytest.MonkeyPatch, *partitions: TopicPartition) -> None:
    """Let a fetch of all committed offsets return those of these partitions.

    The fake cluster returns none, so that only those are asked for of which the log speaks.
    """
    fetch = PrimaryOffsets.fetch

    def fetch_all(
        self: PrimaryOffsets, wanted: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, StoredOffset]:
        return fetch(self, partitions if wanted is None else wanted)

    monkeypatch.setattr(PrimaryOffsets, "fetch", fetch_all)


def by_log(session: GroupSession) -> ByLog:
    """What a session does with its group's log."""
    ground = session._thread.ground
    assert isinstance(ground, ByLog)
    return ground


def start_of(session: GroupSession, partition: TopicPartition = T0) -> Progress:
    """From where a partition is delivered; waits for it."""

    def has_started() -> bool:
        session.check()
        return partition in session.started()

    eventually(has_started)
    return session.started()[partition].done


def eventually(holds: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """Wait until something holds, and return it."""
    return until(holds, seconds, lambda: "it did not come to pass")


def rectangle(start: int, end: int, hashes: HashRange = WHOLE) -> Rectangle:
    """Offsets and key hashes."""
    return Rectangle(OffsetRange(start, end), hashes)


def commit(session: GroupSession, *pieces: Rectangle, seconds: float = SECONDS) -> int:
    """Commit rectangles of T0; the stable offset that is answered."""
    return session.commit({T0: pieces}, seconds)[T0]


def receive_and_commit(config: dict[str, Any], topic: str, count: int, way: str) -> list[Any]:
    """Receive all records of a topic of one partition, commit them, and look at the group's offset.

    Args:
        config: The consumer's configuration.
        topic: The topic.
        count: Number of its records.
        way: ``subscribe`` or ``assign``.

    Returns:
        The messages.
    """
    found: list[Any] = []
    with KeySharedConsumer(config) as consumer:
        if way == "subscribe":
            consumer.subscribe([topic])
        else:
            consumer.assign([Partition(topic, 0)])
        while len(found) < count:
            messages = consumer.consume(count, WAIT_S)
            assert messages
            found += messages
        consumer.commit()
    with KeySharedConsumer(config) as consumer:
        committed = consumer.committed([(topic, 0)], WAIT_S)
        assert committed[TopicPartition(topic, 0)].offset == count
    return found
