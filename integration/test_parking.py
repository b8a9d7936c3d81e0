"""Parked keys on a real broker: the compacted topic that they are kept in."""

import pytest
from confluent_kafka.admin import ConfigResource, ResourceType

from integration.kafka import KafkaBroker
from kshare.cli import main as kshare_command
from kshare.cluster.parked_keys import PARKED_TOPIC, ParkedKeys, ParkWatch
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
