"""Policies on a real broker: set by the command, obeyed by queries and consumers."""

import json
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import ConfigResource, ResourceType
from pyspark.sql import SparkSession

from integration.kafka import KafkaBroker
from kshare.cli import main as kshare_command
from kshare.core.hashing import HASH_SPACE
from kshare.errors import PolicyError
from kshare.group import KeySharedConsumer
from kshare.kafka.topics import INDIVIDUAL_COMMITS_TOPIC, POLICIES_TOPIC
from tests.support.clock import until

RECORDS = 50
LOWER = [(0, HASH_SPACE // 2)]


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    """A broker of its own: other tests' consumers would obey a policy for the whole cluster."""
    with KafkaBroker() as running:
        yield running


@pytest.fixture
def filled(broker: KafkaBroker, topic: str) -> str:
    broker.produce(topic, [(f"key-{i}", f"{i}") for i in range(RECORDS)], partition=0)
    return topic


@pytest.fixture
def where(broker: KafkaBroker) -> list[str]:
    return ["--bootstrap-servers", broker.bootstrap_servers]


def test_policies_are_obeyed(
    spark: SparkSession,
    broker: KafkaBroker,
    filled: str,
    where: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fetch_is(value: str) -> None:
        change = ["policy", "set", "accept.range.fetch", value, "--topic", filled, *where]
        assert kshare_command(change) == 0

    def count(**more: str) -> int:
        reader = spark.read.format("kshare").option("subscribe", filled)
        reader = reader.option("kafka.bootstrap.servers", broker.bootstrap_servers)
        return reader.options(**more).load().count()

    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": f"group-{uuid.uuid4().hex[:8]}",
        "auto.offset.reset": "earliest",
        "acknowledgement.mode": "explicit",
        "enable.auto.commit": False,
    }
    fetch_is("false")
    resource = ConfigResource(ResourceType.TOPIC, POLICIES_TOPIC)
    found = broker.admin.describe_configs([resource])[resource].result(30)
    assert found["cleanup.policy"].value == "compact"
    says = f"keyRanges: asks for key ranges of topic {filled}, whose policy accept.range.fetch"
    with pytest.raises(Exception, match=says):
        count(keyRanges="2")
    assert count() == RECORDS
    with KeySharedConsumer(config) as consumer:
        with pytest.raises(PolicyError, match=rf"accept\.range\.fetch of topic {filled} is false"):
            consumer.assign({(filled, 0): LOWER})
        fetch_is("true")
    assert count(keyRanges="2") == RECORDS

    assert kshare_command(["policy", "set", "accept.individual.commit", "false", *where]) == 0
    with KeySharedConsumer(config) as consumer:
        with pytest.raises(PolicyError, match=r"accept\.individual\.commit is false"):
            consumer.assign({(filled, 0): LOWER})
        consumer.assign({(filled, 0): []})
        messages = consumer.consume(RECORDS, 60)
        for message in messages[:10] + messages[20:]:
            consumer.acknowledge(message)
        assert list((consumer.commit() or {}).values()) == [10]
        (committed,) = consumer.committed().values()
        assert committed.progress.is_level  # what is above counts no more after a restart

    transactional = {name: value for name, value in config.items() if name != "enable.auto.commit"}
    transactional["transactional.id"] = filled
    with KeySharedConsumer(transactional) as consumer:
        consumer.assign({(filled, 0): []})

        def process(left_out: int) -> None:
            with consumer.transaction():
                for message in consumer.consume(RECORDS - 10, 60)[left_out:]:
                    consumer.acknowledge(message)

        with pytest.raises(PolicyError, match="offset 10 is not acknowledged, and offset 12"):
            process(2)
        process(0)
        until(lambda: [each.offset for each in consumer.committed().values()] == [RECORDS])

    capsys.readouterr()
    assert kshare_command(["policy", "list", "--json", *where]) == 0
    listed = json.loads(capsys.readouterr().out)
    values = {(row["policy"], row["topic"]): row["value"] for row in listed}
    assert values["accept.range.fetch", filled] is True
    assert values["accept.individual.commit", None] is False


def test_a_pattern_passes_no_policy_by(broker: KafkaBroker, where: list[str]) -> None:
    topics = [broker.create_topic(partitions=1) for _ in range(2)]
    for topic in topics:
        broker.produce(topic, [(None, f"{i}") for i in range(RECORDS)], partition=0)
    shared, kept = topics
    every = ["policy", "set", "accept.individual.commit", "true", *where]
    assert kshare_command(every) == 0
    change = ["policy", "set", "accept.range.fetch", "false", "--topic", kept, *where]
    assert kshare_command(change) == 0
    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": f"group-{uuid.uuid4().hex[:8]}",
        "auto.offset.reset": "earliest",
        "consumption.order": "none",
    }
    seen, said = set[str](), list[PolicyError]()

    def has_both(consumer: KeySharedConsumer) -> bool:
        try:
            seen.update(str(each.topic()) for each in consumer.consume(10, 0.5))
        except PolicyError as error:
            said.append(error)
        return bool(seen and said)

    with KeySharedConsumer(config) as consumer:
        consumer.subscribe(f"^({shared}|{kept})$")
        until(lambda: has_both(consumer))
        assert seen == {shared}
        assert {(each.policy, each.topic) for each in said} == {("accept.range.fetch", kept)}
        assert {tp.topic for tp in consumer.assignment()} == {shared}
    resource = ConfigResource(ResourceType.TOPIC, INDIVIDUAL_COMMITS_TOPIC)
    found = broker.admin.describe_configs([resource])[resource].result(30)
    assert found["min.cleanable.dirty.ratio"].value == "0.05"
    assert found["max.compaction.lag.ms"].value == "3600000"
