"""A claim in the group's log that cannot be read, as the members of a group live through it."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Partition

from kshare.core.progress import TopicPartition
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.protocol.commit_log.record_codec import encode_key
from kshare.group.protocol.commit_log.records import Key
from kshare.group.tools.offsets import list_offsets
from kshare.testing import FakeCluster
from tests.support.groups import GROUP, LOG, eventually, join_together, quick_settings

ORDERS = TopicPartition("orders", 0)
RECORDS = 60


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1, LOG: 1}) as running:
        join_together(running)
        fill(running, 0)
        yield running


def fill(cluster: FakeCluster, first: int) -> None:
    cluster.produce("orders", [(f"k{i % 20}", f"{first + i}") for i in range(RECORDS)], partition=0)


def damage(cluster: FakeCluster) -> None:
    """Whoever may write to the log may write this."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    producer.produce(LOG, b"{}", encode_key(GROUP, Key(0, "claim", ORDERS, ("typo",))), 0)
    assert producer.flush(60) == 0


@pytest.mark.parametrize(("way", "members"), [("subscribe", 2), ("assign", 1)])
def test_members_go_on_after_a_wait(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, way: str, members: int
) -> None:
    """No call raises, nothing is lost, and what was committed does not come again."""
    config = quick_settings(cluster.bootstrap_servers, enable_auto_commit="false")
    seen: list[int] = []
    with ExitStack() as stack:
        consumers = [stack.enter_context(KeySharedConsumer(config)) for _ in range(members)]
        for consumer in consumers:
            if way == "subscribe":
                consumer.subscribe(["orders"])
            else:
                consumer.assign([Partition(*ORDERS)])

        def receive(count: int) -> bool:
            for consumer in consumers:
                messages: Any = consumer.consume(100, 0.1)
                seen.extend(message.offset() for message in messages)
            return len({*seen}) >= count

        def commit(count: int) -> bool:
            receive(0)  # as a member of a group has to
            for consumer in consumers:
                consumer.commit()
            found = list_offsets(GROUP, {"bootstrap.servers": cluster.bootstrap_servers})
            return ORDERS in found and found[ORDERS].offset == count

        eventually(lambda: receive(RECORDS))
        eventually(lambda: commit(RECORDS))
        seen.clear()
        damage(cluster)
        said = "claim orders-0 anew, and wait"  # by each of them
        eventually(lambda: receive(0) and caplog.text.count(said) >= members)
        fill(cluster, RECORDS)
        eventually(lambda: receive(RECORDS))
        assert sorted(seen) == [*range(RECORDS, 2 * RECORDS)]
