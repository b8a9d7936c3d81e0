"""Limited keys of a consumer: what is kept back is neither lost nor counted as processed."""

from collections.abc import Callable, Iterator

import pytest

from kshare.core.progress import TopicPartition
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.message import CHUNK_ROWS, Message
from kshare.testing import FakeCluster
from tests.support.fake_session import FakeSessions, fake_consumers

ORDERS = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)
RECORDS = 3 * CHUNK_ROWS
LOWER, UPPER = "abcdefghijklmnop", "ABCDEFGHIJKLMNOP"
CONFIG = {"acknowledgement__mode": "explicit", "max__in__flight__per__key": 1}

Make = Callable[..., KeySharedConsumer]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 2}) as running:
        yield running


@pytest.fixture
def make(cluster: FakeCluster) -> Iterator[Make]:
    with fake_consumers(cluster, FakeSessions()) as consumers:
        yield consumers


def fill(cluster: FakeCluster, keys: str, partition: int, times: int = 1) -> None:
    for part in range(times):
        rows = [(keys[i % len(keys)], f"{part}-{i}") for i in range(RECORDS)]
        cluster.produce("orders", rows, partition=partition)


def drain(consumer: KeySharedConsumer, messages: list[Message], wanted: int) -> list[Message]:
    """Acknowledge what is in flight, and take what comes, until all has come."""
    seen = list(messages)
    while messages:
        for message in messages:
            consumer.acknowledge(message)
        messages = consumer.consume(min(len(messages), wanted - len(seen)), 10.0)
        seen += messages
    return seen


def places(messages: list[Message]) -> list[tuple[int, int]]:
    return sorted((message.partition(), message.offset()) for message in messages)


def test_while_all_keys_are_in_flight_nothing_that_was_fetched_is_lost(
    cluster: FakeCluster, make: Make
) -> None:
    fill(cluster, LOWER, 0, times=2)
    consumer = make(**CONFIG)
    consumer.assign({ORDERS: []})
    first = consumer.consume(len(LOWER), 10)
    for _ in range(5):
        assert consumer.consume(1, 0.1) == []
    seen = drain(consumer, first, 2 * RECORDS)
    assert places(seen) == [(0, offset) for offset in range(2 * RECORDS)]


def test_what_is_let_out_of_one_partition_is_not_counted_for_another(
    cluster: FakeCluster, make: Make
) -> None:
    fill(cluster, LOWER, 0)
    fill(cluster, UPPER, 1)
    consumer = make(**CONFIG)
    consumer.assign({ORDERS: [], OTHER: []})
    first = consumer.consume(len(LOWER + UPPER), 10)
    seen = drain(consumer, first, 2 * RECORDS)
    assert places(seen) == [(p, offset) for p in range(2) for offset in range(RECORDS)]
    assert consumer.commit() == {ORDERS: RECORDS, OTHER: RECORDS}


def test_a_call_waits_for_no_record_that_comes_only_after_an_acknowledgement(
    cluster: FakeCluster, make: Make
) -> None:
    """It waits without a limit, and ends when each key has one in flight."""
    fill(cluster, LOWER, 0)
    consumer = make(**CONFIG)
    consumer.assign({ORDERS: []})
    seen: list[Message] = []
    while len(seen) < RECORDS:
        messages = consumer.consume(RECORDS - len(seen))
        assert len(messages) <= len(LOWER)
        seen += messages
        for message in messages:
            consumer.acknowledge(message)
    assert places(seen) == [(0, offset) for offset in range(RECORDS)]
