"""Clients with quotas on a real broker, which throttles as brokers have since Kafka 2.0 (KIP-219).

A request that exceeds a quota is answered at once, a Fetch request without partitions, and the
broker reads nothing more from that connection for a while. The verdict: each record comes once, and
nobody takes it for a fault.
"""

import logging
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition

import kshare
from integration.kafka import KafkaBroker
from integration.sinking import PARTITIONS, assert_each_once_and_in_order, numbered, options_for
from integration.sinking import received as received_by
from kshare.core.hashing import WHOLE
from kshare.group import KeySharedConsumer
from kshare.processing import Processor, Record, Retry, Stop
from kshare.query.produce import write_rows
from tests.processing.running import run
from tests.support.clock import WAIT_S, until

COUNT = 1_250
VALUE = "v" * 1_000
RATE = 100_000  # bytes a second; the broker counts 11 s together, so the last ones are throttled
PERCENTAGE = (
    2.0  # of a thread: with less, one request a second of a slow broker is already too much
)
ORDERS: dict[str, dict[str, Any]] = {
    "key order": {},
    "no order": {"consumption.order": "none", "cooperative.chunk.records": 100},
    "explicit": {"acknowledgement.mode": "explicit"},
}
FAULTS = ("without", "did not answer", "not reached", "Lost", "lost", "failed", "again")


@pytest.fixture
def client_id() -> str:
    """A name that has quotas of its own."""
    return f"quota-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def filled(broker: KafkaBroker, topic: str) -> str:
    """A topic with some records of 50 keys."""
    for first in range(0, COUNT, 50):  # a batch is fetched whole, and counts whole
        rows = [(f"k{i % 50}", VALUE) for i in range(first, first + 50)]
        broker.produce(topic, rows, partition=0)
    return topic


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing is logged as a fault."""
    caplog.set_level(logging.INFO, "kshare")
    yield
    found = [each.getMessage() for each in caplog.get_records("call")]
    assert [text for text in found if any(word in text for word in FAULTS)] == []


@pytest.mark.parametrize(
    "quotas", [{"consumer_byte_rate": RATE}, {"request_percentage": PERCENTAGE}], ids=str
)
@pytest.mark.usefixtures("quiet")
def test_a_slice_is_read(
    broker: KafkaBroker, filled: str, client_id: str, quotas: dict[str, float]
) -> None:
    broker.set_quotas(client_id, **quotas)
    options = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "kafka.client.id": client_id,
        "kafka.max.partition.fetch.bytes": "100000",  # many requests
    }
    slice_ = kshare.Slice(filled, 0, (kshare.Rectangle(kshare.OffsetRange(0, COUNT), WHOLE),))
    batches = kshare.read_slice(slice_, options)
    found = [offset for batch in batches for offset in batch["offset"].to_pylist()]
    assert found == list(range(COUNT))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("quotas", [RATE, None], ids=["bytes", "requests"])
@pytest.mark.usefixtures("quiet")
def test_a_member_gets_each_record_once(
    broker: KafkaBroker, filled: str, client_id: str, order: str, quotas: int | None
) -> None:
    """It commits meanwhile, and its right to deliver never lapses: the log has no such quota."""
    if quotas is None:
        broker.set_quotas(client_id, request_percentage=PERCENTAGE)
    else:
        broker.set_quotas(client_id, consumer_byte_rate=quotas)
    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "client.id": client_id,
        "group.id": filled,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 200,
        "max.partition.fetch.bytes": 100_000,
        "claim.timeout.ms": 3_000,
        **ORDERS[order],
    }
    found = Counter[int]()
    with KeySharedConsumer(config) as consumer:
        consumer.subscribe([filled])

        def take() -> bool:
            for message in consumer.consume(100, 1.0):
                found[message.offset()] += 1
                if order == "explicit":
                    consumer.acknowledge(message)
            return len(found) == COUNT

        until(take, seconds=4 * WAIT_S)
    assert set(found.values()) == {1}


@pytest.mark.usefixtures("quiet")
def test_a_processor_handles_each_record_once(
    broker: KafkaBroker, filled: str, client_id: str
) -> None:
    """What it reads, and what it writes of attempts and letters, is throttled."""
    broker.set_quotas(client_id, consumer_byte_rate=RATE, producer_byte_rate=500)
    handled = Counter[int]()
    attempts = Counter[int]()

    def handler(record: Record) -> None:
        attempts[record.offset] += 1
        if record.offset % 100 == 0 and attempts[record.offset] == 1:
            raise ValueError("once")
        handled[record.offset] += 1

    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "client.id": client_id,
        "group.id": filled,
        "auto.offset.reset": "earliest",
        "max.partition.fetch.bytes": 100_000,
        "acknowledgement.mode": "explicit",
    }
    with KeySharedConsumer(config) as consumer:
        consumer.assign([TopicPartition(filled, 0)])
        retry = Retry(attempts=3, first=0.1, most=0.2)
        processor = Processor(handler, concurrency=8, retry=retry, on_failure=Stop())
        run(processor, consumer, lambda: len(handled) == COUNT, seconds=4 * WAIT_S)
    assert len(handled) == COUNT
    assert set(handled.values()) == {1}


def test_rows_are_written(broker: KafkaBroker, client_id: str) -> None:
    topic = broker.create_topic(partitions=PARTITIONS)
    broker.set_quotas(client_id, producer_byte_rate=10_000)
    rows: list[pa.RecordBatch] = [numbered(start, 500) for start in range(0, 3_000, 500)]
    options = options_for(broker, topic, **{"kafka.client.id": client_id})
    assert write_rows(rows, options) == 3_000
    assert_each_once_and_in_order(received_by(broker, topic), 3_000)
