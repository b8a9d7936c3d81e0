"""Principals that may not write to the log of their group."""

import logging
from contextlib import ExitStack, closing

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AclOperation, AdminClient

from integration.group_log import starts, unique
from integration.kafka import KafkaBroker
from integration.members import eventually
from kshare.core.hashing import ALL_HASHES
from kshare.core.progress import TopicPartition
from kshare.errors import AuthorizationError
from kshare.group import KeySharedConsumer
from kshare.group.config.consumer_config import consumer_config
from kshare.group.session.session import GroupSession

SECONDS = 60.0


def test_no_right_to_write_to_the_log(secure_broker: KafkaBroker) -> None:
    topic = secure_broker.create_topic()
    log = secure_broker.create_topic(unique("log"), config={"cleanup.policy": "compact"})
    secure_broker.deny(log, operation=AclOperation.WRITE)
    options = secure_broker.client_options("SASL_PLAINTEXT", user="stranger")
    given = {name.removeprefix("kafka."): value for name, value in options.items()}
    settings = consumer_config(
        {**given, "group.id": unique("group"), "individual.commit.topic": log}
    )
    member = GroupSession(settings)
    try:
        member.claim({TopicPartition(topic, 0): ALL_HASHES})
        with pytest.raises(AuthorizationError, match=f"not authorized to write to {log}"):
            eventually(lambda: starts(member, TopicPartition(topic, 0)))
    finally:
        member.close(10)


@pytest.mark.parametrize("way", ["subscribe", "assign"])
def test_without_individual_commits_there_is_no_log(secure_broker: KafkaBroker, way: str) -> None:
    """It goes on where it was, and Kafka's own clients see its offset."""
    topic, log = secure_broker.create_topic(), unique("log")
    for operation in (AclOperation.CREATE, AclOperation.DESCRIBE, AclOperation.WRITE):
        secure_broker.deny(log, operation=operation)
    secure_broker.produce(topic, [(f"k{i % 7}", f"{i}") for i in range(50)], partition=0)
    options = secure_broker.client_options("SASL_PLAINTEXT", user="stranger")
    given = {
        **{name.removeprefix("kafka."): value for name, value in options.items()},
        "group.id": unique("group"),
        "individual.commit.topic": log,
        "auto.offset.reset": "earliest",
        "allow.individual.commit": False,
    }
    read: list[int] = []
    for count in (30, 20):
        with KeySharedConsumer(given) as consumer:
            if way == "assign":
                consumer.assign({(topic, 0): []})
            else:
                consumer.subscribe([topic])
            rows = [row for _ in range(count) if (row := consumer.poll(SECONDS)) is not None]
            read += [row.offset() for row in rows]
            assert consumer.commit() == {TopicPartition(topic, 0): len(read)}
        with closing(Consumer({"group.id": given["group.id"], **_plain(secure_broker)})) as plain:
            (stored,) = plain.committed([RdTopicPartition(topic, 0)], 30)
            assert stored.offset == len(read)
    assert read == list(range(50))
    assert (
        log
        not in AdminClient({"bootstrap.servers": secure_broker.bootstrap_servers})
        .list_topics(timeout=30)
        .topics
    )


def _plain(broker: KafkaBroker) -> dict[str, str]:
    return {"bootstrap.servers": broker.bootstrap_servers}


def test_without_the_right_to_write_whole_partitions_go_on(
    secure_broker: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    topic = secure_broker.create_topic(partitions=2)
    log = secure_broker.create_topic(unique("log"), config={"cleanup.policy": "compact"})
    secure_broker.deny(log, operation=AclOperation.WRITE)
    for part in range(2):
        secure_broker.produce(topic, [(f"k{i % 7}", f"{i}") for i in range(50)], partition=part)
    options = secure_broker.client_options("SASL_PLAINTEXT", user="stranger")
    given = {
        **{name.removeprefix("kafka."): value for name, value in options.items()},
        "group.id": unique("group"),
        "individual.commit.topic": log,
        "auto.offset.reset": "earliest",
    }

    def read(count: int) -> tuple[list[tuple[str, int, int]], int]:
        with KeySharedConsumer(given) as consumer:
            consumer.subscribe([topic])
            rows = [row for _ in range(count) if (row := consumer.poll(SECONDS)) is not None]
            stable = consumer.commit() or {}
            return [(row.topic(), row.partition(), row.offset()) for row in rows], sum(
                stable.values()
            )

    with caplog.at_level(logging.WARNING, "kshare.group"):
        first, stable = read(60)
    assert stable == 60
    assert f"not authorized to write to {log}" in caplog.text
    assert "goes on with whole partitions" in caplog.text
    second, stable = read(40)
    assert stable == 100
    assert sorted(first + second) == [(topic, part, i) for part in range(2) for i in range(50)]
    with ExitStack() as stack:
        members = [stack.enter_context(KeySharedConsumer(given)) for _ in range(3)]
        for member in members:
            member.subscribe([topic])

        def poll_all() -> bool:
            for member in members:
                member.poll(0.1)
            return False

        # Three members of two partitions share one of them.
        with pytest.raises(AuthorizationError, match=f"write to {log}"):
            eventually(poll_all)
