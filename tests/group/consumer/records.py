"""Records of the topic "orders", and what the tests take of them."""

from kshare.core.hashing import HASH_SPACE
from kshare.core.progress import TopicPartition
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.message import Message
from kshare.testing import FakeCluster
from tests.support.clock import WAIT_S

ORDERS = TopicPartition("orders", 0)
MIDDLE = HASH_SPACE // 2
KEYS = [f"k{number}" for number in range(20)]


def fill(cluster: FakeCluster, records: int, partition: int = 0, first: int = 0) -> None:
    rows = [(KEYS[i % len(KEYS)], str(i)) for i in range(first, first + records)]
    cluster.produce("orders", rows, partition=partition)


def take(consumer: KeySharedConsumer, records: int) -> list[Message]:
    messages = consumer.consume(records, WAIT_S)
    assert len(messages) == records
    return messages


def offsets(messages: list[Message]) -> list[int]:
    return [message.offset() for message in messages]
