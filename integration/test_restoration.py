"""Restoring a store from a changelog to which other members write in transactions."""

import threading
import time

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from integration.kafka import KafkaBroker
from kshare.group import restore
from tests.support.clock import until


def transactional(broker: KafkaBroker, name: str) -> Producer:
    settings = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name}
    producer = Producer(settings)
    producer.init_transactions(30)
    producer.begin_transaction()
    return producer


def high_watermark(broker: KafkaBroker, topic: str) -> int:
    """The end of a log, open transactions or not."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    (found,) = admin.list_offsets({TopicPartition(topic, 0): latest}).values()
    offset: int = found.result().offset
    return offset


def test_what_was_committed_beside_an_open_transaction_is_restored(
    broker: KafkaBroker, topic: str
) -> None:
    """The last stable offset is before it: ``restore`` waits until the open one is decided."""
    first, second = (transactional(broker, f"{topic}-{number}") for number in range(2))
    first.produce(topic, "aborted", "a", partition=0)
    first.flush(30)
    second.produce(topic, "committed", "b", partition=0)
    second.commit_transaction(30)
    # Its marker may come after the coordinator's answer.
    until(lambda: high_watermark(broker, topic) == 3)
    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": "billing",
        "transactional.id": f"{topic}-2",
    }
    restoration = restore(topic, 0, [], None, config)
    began = time.monotonic()
    timer = threading.Timer(1.0, first.abort_transaction)
    timer.start()
    values = [value for batch in restoration for value in batch.column("value").to_pylist()]
    timer.join()
    assert values == [b"committed"]
    assert time.monotonic() - began >= 1.0
    # The abort's marker lies beyond what was the high watermark at the call.
    assert restoration.progress.processed.stable == restoration.end == 3
