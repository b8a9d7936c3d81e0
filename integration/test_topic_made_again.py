"""A consumer whose topic is deleted and made again while it runs, by ``assign`` and in a group."""

import logging
import time
import uuid
from contextlib import suppress

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic

from integration.kafka import KafkaBroker
from kshare.errors import DataLossError
from kshare.group import KeySharedConsumer
from tests.support.clock import WAIT_S

OLD, NEW = 50, 80
TOLD = "was deleted and made again while it was read"


def make_again(broker: KafkaBroker, topic: str) -> None:
    """At once, so that no rebalance comes between; a name is free a moment after the deletion."""
    broker.admin.delete_topics([topic])[topic].result(WAIT_S)
    while True:
        with suppress(KafkaException):
            broker.admin.create_topics([NewTopic(topic, 1)])[topic].result(WAIT_S)
            return
        time.sleep(0.02)


def read(consumer: KeySharedConsumer, count: int) -> list[bytes]:
    values = list[bytes]()
    deadline = time.monotonic() + WAIT_S
    while len(values) < count:
        assert time.monotonic() < deadline, values
        message = consumer.poll(0.5)
        if message is not None:
            values.append(message.value() or b"")
    return values


def consumer_of(broker: KafkaBroker, reset: str, group: str = "") -> KeySharedConsumer:
    config = {"group.id": group or uuid.uuid4().hex, "auto.offset.reset": reset}
    return KeySharedConsumer({"bootstrap.servers": broker.bootstrap_servers, **config})


def fill(broker: KafkaBroker, topic: str, what: str, count: int) -> None:
    broker.produce(topic, [(f"k{at % 7}", f"{what}{at}") for at in range(count)])


@pytest.mark.parametrize("way", ["assign", "subscribe"])
def test_a_warning_says_what_is_not_read_and_a_seek_reads_it(
    broker: KafkaBroker, topic: str, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    caplog.set_level(logging.WARNING)
    fill(broker, topic, "old", OLD)
    with consumer_of(broker, "earliest") as consumer:
        if way == "assign":
            consumer.assign([TopicPartition(topic, 0)])
        else:
            consumer.subscribe([topic])
        read(consumer, OLD)
        make_again(broker, topic)
        fill(broker, topic, "new", NEW)
        assert read(consumer, NEW - OLD)[0] == b"new50"
        (said,) = [text for text in caplog.messages if TOLD in text]
        assert f"{topic}-0: " in said
        assert f"below offset {OLD}, up to which the former one was read, is not read" in said
        consumer.seek(TopicPartition(topic, 0, 0))
        assert sorted(read(consumer, NEW)) == sorted(b"new%d" % at for at in range(NEW))


def test_it_is_an_error_where_lost_offsets_are(broker: KafkaBroker, topic: str) -> None:
    group = uuid.uuid4().hex
    fill(broker, topic, "old", OLD)
    with consumer_of(broker, "earliest", group) as consumer:  # without an offset, none starts
        consumer.assign([TopicPartition(topic, 0)])
        read(consumer, OLD)
        consumer.commit()
    fill(broker, topic, "old", 1)
    with consumer_of(broker, "error", group) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        read(consumer, 1)
        make_again(broker, topic)
        fill(broker, topic, "new", NEW)
        with pytest.raises(DataLossError, match=TOLD):
            read(consumer, NEW)
        consumer.seek(TopicPartition(topic, 0, 0))
        assert len(read(consumer, NEW)) == NEW
