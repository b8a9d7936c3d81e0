"""What is kept of records that fail, in a group that keeps no log: its topic is made for that."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from kshare.core.progress import TopicPartition
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.processing import DeadLetter, Processor, Record, Retry
from kshare.testing import FakeCluster, watermarks
from tests.group.consumer.released import received
from tests.processing.running import run
from tests.support.groups import LOG, quick_settings

ORDERS = TopicPartition("orders", 0)
RECORDS = 4


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1, "dlq": 1}) as running:
        running.produce("orders", [("k", str(at)) for at in range(RECORDS)], partition=0)
        yield running


def settings(cluster: FakeCluster) -> dict[str, Any]:
    return quick_settings(
        cluster.bootstrap_servers,
        allow_individual_commit=False,
        acknowledgement_mode="explicit",
    )


def topics(cluster: FakeCluster) -> set[str]:
    return set(AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics().topics)


def test_deliveries_are_counted_through_a_restart(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """As with a log: what was released is not forgotten, and the topic is made by then alone."""
    with KeySharedConsumer(settings(cluster)) as consumer:
        consumer.subscribe(["orders"])
        first, second, *_ = received(consumer, RECORDS)
        assert [first.delivery_count(), second.delivery_count()] == [1, 1]
        consumer.acknowledge(first)
        assert LOG not in topics(cluster)
        consumer.release(second)
    assert LOG in topics(cluster)
    with KeySharedConsumer(settings(cluster)) as consumer:
        consumer.subscribe(["orders"])
        again = received(consumer, RECORDS - 1)
        counts = [(message.offset(), message.delivery_count()) for message in again]
    assert counts == [(1, 2), (2, 1), (3, 1)]
    assert "attempts were not written" not in caplog.text


def test_a_processor_keeps_its_sequences(cluster: FakeCluster) -> None:
    """The mark of a key is on the brokers before its first letter: else none would ever come."""
    handled = list[int]()

    async def handler(record: Record) -> None:
        handled.append(record.offset)
        if record.offset == 1:
            raise ValueError("no such customer")

    letters = RECORDS - 1
    with KeySharedConsumer(settings(cluster)) as consumer:
        consumer.assign({ORDERS: []})
        policy = DeadLetter("dlq", sequence=True)
        processor = Processor(handler, retry=Retry(attempts=1), on_failure=policy)
        run(
            processor,
            consumer,
            lambda: watermarks(cluster.bootstrap_servers, "dlq")[1] >= letters,
        )
    assert handled == [0, 1]
    assert watermarks(cluster.bootstrap_servers, "dlq")[1] == letters
    assert LOG in topics(cluster)
