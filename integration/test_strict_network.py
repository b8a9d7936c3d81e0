"""A network, or a service, that hangs up: on a version it does not know, on who says nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from integration.kafka import KafkaBroker
from integration.members import eventually
from integration.proxy import StrictProxy
from kshare.group import KeySharedConsumer

Strict = tuple[KafkaBroker, StrictProxy]


@pytest.fixture
def strict() -> Iterator[Strict]:
    broker = KafkaBroker()
    with StrictProxy(broker.ports["PLAINTEXT"], idle_seconds=2.0) as proxy:
        broker.config["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{proxy.port}"
        with broker:
            yield broker, proxy


def rows(first: int) -> list[tuple[str, str]]:
    return [(f"k{number % 7}", str(number)) for number in range(first, first + 50)]


def until_cut(proxy: StrictProxy) -> None:
    """Wait until connections were cut, as nobody has said anything over them."""
    before = proxy.cut
    eventually(lambda: proxy.cut > before + 1)


def test_a_member_goes_on_after_its_connections_were_cut(
    strict: Strict, caplog: pytest.LogCaptureFixture
) -> None:
    broker, proxy = strict
    topic = broker.create_topic()
    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": topic,
        "auto.offset.reset": "earliest",
    }
    found: list[int] = []

    def receive(consumer: KeySharedConsumer) -> int:
        messages: Any = consumer.consume(100, 0.2)
        found.extend(int(message.value()) for message in messages)
        return len(found)

    with KeySharedConsumer(config) as consumer:
        consumer.subscribe([topic])
        for turn in range(2):
            broker.produce(topic, rows(50 * turn), partition=0)
            count = 50 * (turn + 1)
            eventually(lambda count=count: receive(consumer) == count)  # type: ignore[misc]
            assert consumer.commit()
            until_cut(proxy)
        assert consumer.commit() is not None
    assert proxy.refused
    assert sorted(found) == list(range(100))
    said = [each.getMessage() for each in caplog.records if each.levelname != "INFO"]
    assert not [text for text in said if "Kafka client" not in text], said


def test_a_query_reads_and_writes_through_it(
    spark: SparkSession, strict: Strict, tmp_path: Path
) -> None:
    broker, proxy = strict
    source, target = broker.create_topic(), broker.create_topic()
    where = {"kafka.bootstrap.servers": broker.bootstrap_servers}
    query = (
        spark.readStream.format("kshare")
        .options(**where, subscribe=source, startingOffsets="earliest", minPartitions="2")
        .load()
        .select("key", "value")
        .writeStream.format("kshare")
        .options(**where, topic=target, checkpointLocation=str(tmp_path))
        .start()
    )
    try:
        for turn in range(2):
            broker.produce(source, rows(50 * turn), partition=0)
            eventually(lambda end=50 * (turn + 1): broker.latest(target) == end)  # type: ignore[misc]
            until_cut(proxy)
    finally:
        query.stop()
    assert query.exception() is None
    assert proxy.refused
