"""Parked keys on a real broker: the compacted topic that they are kept in."""

from typing import Any

import pytest
from confluent_kafka.admin import ConfigResource, ResourceType

from integration.kafka import KafkaBroker
from integration.members import eventually
from kshare.cli import main as kshare_command
from kshare.group import KeySharedConsumer
from kshare.kafka.parked_keys import PARKED_TOPIC, ParkedKeys, ParkWatch
from kshare.options import parse_options


def test_parked_keys_are_kept_in_a_compacted_topic(
    broker: KafkaBroker, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topic}
    kafka = parse_options(settings, streaming=True).options.kafka
    where = ["--bootstrap-servers", broker.bootstrap_servers]

    assert kshare_command(["park", *where, "--topic", topic, "--why", "bad JSON", "a", "b"]) == 0
    resource = ConfigResource(ResourceType.TOPIC, PARKED_TOPIC)
    config = broker.admin.describe_configs([resource])[resource].result(30)
    assert config["cleanup.policy"].value == "compact"
    kept = ParkedKeys(kafka)
    parked = kept.parked()
    kept.close()
    assert {key for name, key in parked if name == topic} == {b"a", b"b"}
    assert parked[topic, b"a"].why == "bad JSON"

    assert kshare_command(["unpark", *where, "--topic", topic, "a"]) == 0
    watch = ParkWatch(kafka)
    assert {(name, key) for name, key in watch.current({topic}) if name == topic} == {(topic, b"b")}
    watch.close()
    capsys.readouterr()
    assert kshare_command(["parked", *where]) == 0
    printed = capsys.readouterr().out
    assert topic in printed
    assert "bad JSON" in printed
    assert kshare_command(["unpark", *where, "--topic", topic, "b"]) == 0


def test_members_of_a_group_pass_over_a_parked_key(broker: KafkaBroker) -> None:
    """Also while they hand key hashes to each other."""
    topic = broker.create_topic()
    keys = ["a", "b", "c", "d"]
    broker.produce(topic, [(key, f"{i}") for i in range(20) for key in keys], partition=0)
    where = ["--bootstrap-servers", broker.bootstrap_servers]
    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": 45_000,  # nobody is to be dropped
        "heartbeat.interval.ms": 200,
    }
    assert kshare_command(["park", *where, "--topic", topic, "b"]) == 0
    returned: list[tuple[bytes, int]] = []
    with KeySharedConsumer(config) as first, KeySharedConsumer(config) as second:
        consumers = [first]

        def receive() -> int:
            for consumer in consumers:
                messages: Any = consumer.consume(100, 0.1)
                returned.extend((message.key(), message.offset()) for message in messages)
            return len(returned)

        first.subscribe([topic])
        eventually(lambda: receive() >= 1)
        second.subscribe([topic])
        consumers.append(second)
        eventually(lambda: receive() and all(each.assignment() for each in consumers))
        eventually(lambda: receive() >= 60)
        for _ in range(5):
            receive()
        assert {key for key, _ in returned} == {b"a", b"c", b"d"}
        assert kshare_command(["unpark", *where, "--topic", topic, "b"]) == 0
        eventually(lambda: receive() >= 80)
    by_key = {
        key.encode(): [offset for one, offset in returned if one == key.encode()] for key in keys
    }
    assert by_key == {key.encode(): list(range(i, 80, 4)) for i, key in enumerate(keys)}
