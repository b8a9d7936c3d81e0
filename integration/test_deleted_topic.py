"""A topic that is deleted while a group reads it, on a real broker."""

import asyncio
import logging
import threading
import time
from contextlib import closing
from typing import Any

import pytest

from integration.kafka import KafkaBroker
from integration.members import eventually
from kshare.group import KeySharedConsumer
from kshare.processing import Processor, Record
from kshare.processing.runner import Runner

TIMEOUT_MS = 2_000


def config_of(broker: KafkaBroker, group: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "default.api.timeout.ms": TIMEOUT_MS,
        "request.timeout.ms": TIMEOUT_MS,
        "auto.commit.interval.ms": 100,
    }


def test_members_read_their_other_topics_on(
    broker: KafkaBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever leads; and the deleted one is read again once it is made again."""
    caplog.set_level(logging.INFO)
    gone = f"{topic}-gone"
    broker.create_topic(gone, 2)
    read: list[tuple[str, bytes | None]] = []
    with (
        closing(KeySharedConsumer(config_of(broker, topic))) as one,
        closing(KeySharedConsumer(config_of(broker, topic))) as two,
    ):

        def poll() -> None:
            for consumer in (one, two):
                first = consumer.poll(0.05)
                messages = [*([first] if first else []), *consumer.consume(10, 0.05)]
                read.extend((each.topic(), each.value()) for each in messages)

        def is_read(*wanted: tuple[str, bytes]) -> bool:
            poll()
            return set(wanted) <= set(read)

        for consumer in (one, two):
            consumer.subscribe([topic, gone])
        eventually(lambda: is_read() and all(each.assignment() for each in (one, two)))
        broker.produce(topic, [("k", "1")])
        broker.produce(gone, [("k", "1")])
        eventually(lambda: is_read((topic, b"1"), (gone, b"1")))
        broker.delete_topic(gone)
        until, sent = time.monotonic() + 2.5 * TIMEOUT_MS / 1000, 1
        while time.monotonic() < until or any(
            each.topic == gone for consumer in (one, two) for each in consumer.assignment()
        ):
            sent += 1
            broker.produce(topic, [("k", str(sent))])
            eventually(lambda now=sent: is_read((topic, b"%d" % now)))  # type: ignore[misc]
        assert f"topic {gone} does not exist: nobody is assigned any of it" in caplog.text
        broker.create_topic(gone, 2)
        # A record of the former topic was read, so one of this counts as read: that is warned of.
        broker.produce(gone, [("k", "passed over"), ("k", "again")])
        eventually(lambda: is_read((gone, b"again")))
    assert [value for name, value in read if name == topic] == [
        b"%d" % number for number in range(1, sent + 1)
    ]


def test_a_processor_goes_on_with_its_other_topic(broker: KafkaBroker, topic: str) -> None:
    gone = f"{topic}-gone"
    broker.create_topic(gone)
    handled: list[tuple[str, bytes | None]] = []

    def handle(record: Record) -> None:
        handled.append((record.topic, record.value))

    processor = Processor(handle)
    config = {**config_of(broker, topic), "acknowledgement.mode": "explicit"}
    with KeySharedConsumer(config) as consumer:
        runner = Runner(processor, consumer, [topic, gone])
        thread = threading.Thread(target=asyncio.run, args=(runner.run(),))
        thread.start()
        try:
            broker.produce(topic, [("k", "1")])
            broker.produce(gone, [("k", "1")])
            eventually(lambda: len(handled) == 2)
            broker.delete_topic(gone)
            time.sleep(2.5 * TIMEOUT_MS / 1000)
            broker.produce(topic, [("k", "2")])
            eventually(lambda: (topic, b"2") in handled)
            assert thread.is_alive()
        finally:
            runner.stop()
            thread.join()
