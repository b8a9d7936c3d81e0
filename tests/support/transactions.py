"""Consumers with transactions on a mock cluster, for their tests: what they copy and commit."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kshare.core.hashing import WHOLE
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle, Slice, TopicPartition
from kshare.group import KeySharedConsumer
from kshare.group.consumer.transaction import Transaction
from kshare.group.tools.offsets import list_offsets
from kshare.read.reader.read_slice import read_slice
from kshare.testing import FakeCluster, watermarks
from tests.support.clock import WAIT_S
from tests.support.groups import GROUP, LOG

RECORDS = 200


@contextmanager
def cluster_with_records() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 2, "invoices": 1, LOG: 1}) as running:
        rows = [(f"k{number % 17}".encode(), b"%d" % number) for number in range(RECORDS)]
        running.produce("orders", rows, partition=0)
        yield running


@contextmanager
def consumers_of(cluster: FakeCluster) -> Iterator[Callable[..., KeySharedConsumer]]:
    """Makes consumers, which are closed at the end."""
    made: list[KeySharedConsumer] = []

    def consumer(name: str = "billing-1", **given: Any) -> KeySharedConsumer:
        more = {key.replace("_", "."): value for key, value in given.items()}
        made.append(KeySharedConsumer({**settings(cluster, name), **more}))
        return made[-1]

    yield consumer
    for each in made:
        each.close()


def settings(cluster: FakeCluster, name: str = "billing-1") -> dict[str, Any]:
    return {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": GROUP,
        "auto.offset.reset": "earliest",
        "claim.timeout.ms": 300,
        "check.crcs": False,
        "transactional.id": name,
    }


def copy(consumer: KeySharedConsumer, transaction: Transaction, most: int) -> list[int]:
    messages = consumer.consume(most, WAIT_S)
    for message in messages:
        transaction.produce("invoices", message.value(), message.key())
    return [message.offset() for message in messages]


def outputs(cluster: FakeCluster) -> list[int]:
    end = watermarks(cluster.bootstrap_servers, "invoices")[1]
    wanted = Slice("invoices", 0, (Rectangle(OffsetRange(0, end), WHOLE),))
    options = {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "kafka.check.crcs": "false",
    }
    batches = read_slice(wanted, options) if end else ()
    return [int(value) for batch in batches for value in batch.column("value").to_pylist()]


def committed(cluster: FakeCluster) -> dict[TopicPartition, Progress]:
    return {tp: each.progress for tp, each in list_offsets(GROUP, settings(cluster)).items()}
