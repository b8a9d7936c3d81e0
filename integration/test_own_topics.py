"""kshare's own topics on brokers with the rules of services: the whole work, or an error.

A ``create.topic.policy.class.name`` has the rules. Of replication factors it sees the result alone,
so on one broker Confluent Cloud's 3 is the brokers' own 1.
"""

import asyncio
import json
import logging
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AclOperation, ConfigResource, ResourceType

from integration.group_log import unique
from integration.jars import compiled
from integration.kafka import KafkaBroker, kafka_tool
from integration.members import eventually
from integration.sinking import Query
from kshare.cli import main as kshare_command
from kshare.cli.features import Feature
from kshare.core.hashing import ALL_HASHES
from kshare.core.progress import TopicPartition
from kshare.errors import InternalTopicError, KshareError
from kshare.group import AsyncKeySharedConsumer, KeySharedConsumer
from kshare.group.query_member import QueryMember
from kshare.kafka.topics import (
    INDIVIDUAL_COMMITS_TOPIC,
    LEDGER_TOPIC,
    PARKED_TOPIC,
    POLICIES_TOPIC,
    RANGE_ENDS_TOPIC,
)
from kshare.options import parse_options
from kshare.processing import DeadLetter, Processor, Record, Retry
from kshare.processing.runner import Runner

OWN = (INDIVIDUAL_COMMITS_TOPIC, LEDGER_TOPIC, PARKED_TOPIC, POLICIES_TOPIC, RANGE_ENDS_TOPIC)
RECORDS = 100
SERVICES = ("confluent", "express", "serverless")
WORDS = {
    "confluent": "POLICY_VIOLATION",
    "express": "segment.bytes cannot be set",
    "serverless": "cannot be set",
}
SOURCE = Path(__file__).parent / "policies" / "ServiceRules.java"


@pytest.fixture(scope="module")
def ruled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaBroker, Path]]:
    """A broker, and the file that names the service whose rules it has."""
    folder = tmp_path_factory.mktemp("rules")
    rules = folder / "service"
    rules.write_text("")
    config = {"create.topic.policy.class.name": "ServiceRules", "kshare.rules": str(rules)}
    with KafkaBroker(config=config, classes=compiled(SOURCE, folder)) as running:
        yield running, rules


@pytest.fixture
def service_broker(
    ruled: tuple[KafkaBroker, Path], request: pytest.FixtureRequest
) -> Iterator[KafkaBroker]:
    """A broker with a service's rules, without a topic of ours."""
    running, rules = ruled
    for topic in {*OWN} & {*running.admin.list_topics(timeout=30).topics}:
        running.delete_topic(topic)
    rules.write_text(request.param)
    yield running
    rules.write_text("")


of_services = pytest.mark.parametrize("service_broker", SERVICES, indirect=True)
that_refuses = pytest.mark.parametrize("service_broker", ["none"], indirect=True)


def settings(broker: KafkaBroker, group: str, **more: object) -> dict[str, Any]:
    """Of a consumer."""
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": group,
        "auto.offset.reset": "earliest",
        **more,
    }


def filled(broker: KafkaBroker) -> str:
    """A topic with records, of ten keys."""
    topic = broker.create_topic()
    broker.produce(topic, [(f"k{i % 10}", f"{i}") for i in range(RECORDS)], partition=0)
    return topic


def read_by(consumer: KeySharedConsumer, count: int = RECORDS) -> list[int]:
    """The offsets that a consumer delivers."""
    offsets: list[int] = []

    def receive() -> bool:
        messages: Any = consumer.consume(100, 0.1)
        offsets.extend(message.offset() for message in messages)
        return len(offsets) >= count

    eventually(receive)
    return offsets


def warned_of(caplog: pytest.LogCaptureFixture, topic: str) -> str:
    """The one warning of a topic that was made with less."""
    said = [
        record.getMessage()
        for record in caplog.records
        if record.getMessage().startswith(f"topic {topic} was made without")
    ]
    assert [record.levelno for record in caplog.records if record.getMessage() in said] == [
        logging.WARNING
    ]
    return said[0]


def cleanup_policy(broker: KafkaBroker, topic: str) -> str | None:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found: dict[str, Any] = broker.admin.describe_configs([resource])[resource].result(30)
    policy: str | None = found["cleanup.policy"].value
    return policy


@of_services
@pytest.mark.parametrize("way", ["subscribe", "assign"])
def test_a_group_reads_all_records(
    service_broker: KafkaBroker, way: str, request: pytest.FixtureRequest
) -> None:
    caplog: pytest.LogCaptureFixture = request.getfixturevalue("caplog")
    service = request.node.callspec.params["service_broker"]
    topic = filled(service_broker)
    with caplog.at_level(logging.INFO), KeySharedConsumer(settings(service_broker, topic)) as one:
        if way == "subscribe":
            one.subscribe([topic])
        else:
            one.assign([RdTopicPartition(topic, 0)])
        assert sorted(read_by(one)) == list(range(RECORDS))
        one.commit(asynchronous=False)
    said = warned_of(caplog, INDIVIDUAL_COMMITS_TOPIC)
    assert WORDS[service] in said
    assert "segment.bytes=10485760" in said
    assert "What it costs: the topic grows larger" in said
    assert cleanup_policy(service_broker, INDIVIDUAL_COMMITS_TOPIC) == "compact"
    assert "has large segments" not in caplog.text


@of_services
def test_a_sink_writes_exactly_once(
    service_broker: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(service_broker)
    query.commit(query.prepare("run", 1, tasks=10), 1)
    assert sum(query.rows().values()) == len(query.rows()) == RECORDS
    assert "segment.bytes=1048576" in warned_of(caplog, LEDGER_TOPIC)
    assert cleanup_policy(service_broker, LEDGER_TOPIC) == "compact"


@of_services
def test_keys_are_parked_and_policies_are_kept(
    service_broker: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Their topics have no setting that is refused."""
    topic = filled(service_broker)
    where = ["--bootstrap-servers", service_broker.bootstrap_servers]
    assert kshare_command(["park", *where, "--topic", topic, "k3"]) == 0
    assert kshare_command(["policy", "set", *where, "accept.individual.commit", "true"]) == 0
    for own in (PARKED_TOPIC, POLICIES_TOPIC):
        assert cleanup_policy(service_broker, own) == "compact"
        assert f"topic {own} was made without" not in caplog.text
    with KeySharedConsumer(settings(service_broker, topic)) as consumer:
        consumer.subscribe([topic])
        assert sorted(read_by(consumer, 90)) == [i for i in range(RECORDS) if i % 10 != 3]
        assert kshare_command(["unpark", *where, "--topic", topic, "k3"]) == 0
        assert sorted(read_by(consumer, 10)) == list(range(3, RECORDS, 10))


@of_services
def test_a_processor_handles_all_records_or_writes_dead_letters(
    service_broker: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    topic = filled(service_broker)
    letters = service_broker.create_topic(f"{topic}-dlq")
    handled: list[int] = []

    async def handle(record: Record) -> None:
        if record.key == b"k3":
            raise ValueError("no")
        handled.append(record.offset)

    policy = DeadLetter(letters, sequence=True)
    processor = Processor(handle, retry=Retry(attempts=1), on_failure=policy)
    more = {"acknowledgement.mode": "explicit"}
    with KeySharedConsumer(settings(service_broker, topic, **more)) as consumer:
        runner = Runner(processor, consumer, [topic])
        thread = threading.Thread(target=asyncio.run, args=(runner.run(),))
        thread.start()
        try:
            eventually(lambda: len(handled) == 90 and service_broker.latest(letters) >= 10)
        finally:
            runner.stop()
            thread.join()
    assert sorted(handled) == [i for i in range(RECORDS) if i % 10 != 3]
    warned_of(caplog, INDIVIDUAL_COMMITS_TOPIC)


def asynchronously(config: dict[str, Any], topic: str) -> None:
    async def read() -> None:
        async with AsyncKeySharedConsumer(config) as consumer:
            await consumer.subscribe([topic])
            for _ in range(600):
                await consumer.poll(0.1)

    asyncio.run(read())


def in_turn(call: Callable[[KeySharedConsumer], object]) -> Callable[[dict[str, Any], str], None]:
    """A consumer that subscribes, and does something until it raises."""

    def read(config: dict[str, Any], topic: str) -> None:
        with KeySharedConsumer(config) as consumer:
            consumer.subscribe([topic])
            for _ in range(600):
                call(consumer)

    return read


def assigned(config: dict[str, Any], topic: str) -> None:
    with KeySharedConsumer(config) as consumer:
        consumer.assign([RdTopicPartition(topic, 0)])
        for _ in range(600):
            consumer.poll(0.1)


def processed(config: dict[str, Any], topic: str) -> None:
    async def handle(record: Record) -> None:
        raise AssertionError(record)

    more = {"acknowledgement.mode": "explicit"}
    Processor(handle).run(KeySharedConsumer({**config, **more}), [topic])


def of_a_query(config: dict[str, Any], topic: str) -> None:
    """What a source with ``startingOffsets=group`` does in its planner."""
    given = {"kafka.bootstrap.servers": config["bootstrap.servers"], "subscribe": topic}
    kafka = parse_options(given, streaming=True).options.kafka
    with closing(QueryMember(kafka, topic, lambda _: ALL_HASHES)) as member:
        member.join([TopicPartition(topic, 0)])


@that_refuses
@pytest.mark.parametrize(
    "read",
    [
        in_turn(lambda consumer: consumer.poll(0.1)),
        in_turn(lambda consumer: consumer.consume(10, 0.1)),
        in_turn(lambda consumer: consumer.consume_batch(0.1)),
        assigned,
        asynchronously,
        processed,
        of_a_query,
    ],
    ids=["poll", "consume", "consume_batch", "assign", "async", "processor", "query"],
)
def test_a_log_that_is_refused_is_an_error_of_who_reads(
    service_broker: KafkaBroker, read: Callable[[dict[str, Any], str], None]
) -> None:
    topic = filled(service_broker)
    with pytest.raises(KshareError) as raised:
        read(settings(service_broker, topic), topic)
    check_error(str(raised.value), service_broker, INDIVIDUAL_COMMITS_TOPIC)


@that_refuses
def test_a_ledger_that_is_refused_is_an_error_of_the_sink(service_broker: KafkaBroker) -> None:
    query = Query(service_broker)
    with pytest.raises(InternalTopicError) as raised:
        query.commit(query.prepare("run", 1), 1)
    check_error(str(raised.value), service_broker, LEDGER_TOPIC)


@that_refuses
def test_parked_keys_that_are_refused_are_an_error_of_the_command(
    service_broker: KafkaBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = service_broker.create_topic()
    where = ["--bootstrap-servers", service_broker.bootstrap_servers]
    assert kshare_command(["park", *where, "--topic", topic, "k"]) != 0
    check_error(capsys.readouterr().err, service_broker, PARKED_TOPIC)


SHORT = {
    "groups": "works without a short log: members read more when they start",
    "exactly once": "works without a short ledger, and room in it for batches of very many tasks",
    "real time": "works without a short topic of ends: it takes more room before it is compacted",
}
REFUSED = {
    "source": "works without policies",
    "groups": "does not work: topic __individual_commit_offsets is not there",
    "exactly once": "does not work: topic __kshare_sink_ledger is not there",
    "real time": "does not work: topic __kshare_range_ends is not there",
    "parked keys": "does not work: topic __kshare_parked_keys is not there",
    "dead letters": "does not work: groups do not work",
}


@pytest.mark.parametrize("service_broker", [*SERVICES, "none"], indirect=True)
def test_the_doctor_says_before_what_the_other_tests_find(
    service_broker: KafkaBroker,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    """It asks with ``validate_only``, and leaves the cluster as it was."""
    service = request.node.callspec.params["service_broker"]
    before = sorted(service_broker.admin.list_topics(timeout=30).topics)
    kshare_command(["doctor", "--json", "--bootstrap-servers", service_broker.bootstrap_servers])
    found = {each["check"]: each for each in json.loads(capsys.readouterr().out)}
    verdicts = {str(feature): found[str(feature)]["text"] for feature in Feature}
    expected = REFUSED if service == "none" else SHORT
    for feature, text in verdicts.items():
        assert text.startswith(expected.get(feature, "works"))
        assert feature in expected or text == "works"
    for topic in OWN:
        if service == "none":
            assert "POLICY_VIOLATION: Ask the platform team" in found[topic]["text"]
            check_command(found[topic]["remedy"], service_broker)
        elif topic in (INDIVIDUAL_COMMITS_TOPIC, LEDGER_TOPIC, RANGE_ENDS_TOPIC):
            assert WORDS[service] in found[topic]["text"]
        else:
            assert found[topic]["level"] == "green"
    assert sorted(service_broker.admin.list_topics(timeout=30).topics) == before


def check_error(text: str, broker: KafkaBroker, topic: str) -> None:
    """An error names topic, refusal and command; where it is taken, that makes the topic."""
    assert f"cannot create topic {topic}" in text
    assert "POLICY_VIOLATION: Ask the platform team for topics; let" in text
    check_command(text, broker)


def check_command(text: str, broker: KafkaBroker) -> None:
    """A text ends with a command."""
    script, *arguments = text[text.index("kafka-topics.sh") :].split()
    assert arguments[:2] == ["--bootstrap-server", broker.bootstrap_servers]
    assert script == "kafka-topics.sh"
    assert arguments[-2:] == ["--config", "cleanup.policy=compact"]


def test_the_command_of_an_error_makes_the_topic(ruled: tuple[KafkaBroker, Path]) -> None:
    broker, rules = ruled
    rules.write_text("none")
    if INDIVIDUAL_COMMITS_TOPIC in broker.admin.list_topics(timeout=30).topics:
        broker.delete_topic(INDIVIDUAL_COMMITS_TOPIC)
    topic = filled(broker)
    with pytest.raises(InternalTopicError) as raised:
        in_turn(lambda consumer: consumer.poll(0.1))(settings(broker, topic), topic)
    rules.write_text("confluent")
    text = str(raised.value)
    _, *arguments = text[text.index("kafka-topics.sh") :].split()
    tool = kafka_tool("org.apache.kafka.tools.TopicCommand")
    subprocess.run([*tool, *arguments], check=True, capture_output=True)
    rules.write_text("none")
    with KeySharedConsumer(settings(broker, topic)) as consumer:
        consumer.subscribe([topic])
        assert sorted(read_by(consumer)) == list(range(RECORDS))
    rules.write_text("")


@pytest.fixture(scope="module")
def closed_broker() -> Iterator[KafkaBroker]:
    """A broker where no topic can be deleted, and a stranger does not see __consumer_offsets."""
    config = {"delete.topic.enable": "false"}
    with KafkaBroker(["SASL_PLAINTEXT"], config=config) as running:
        running.deny("__consumer_offsets", operation=AclOperation.DESCRIBE)
        yield running


@pytest.mark.parametrize("user", ["reader", "stranger"])
def test_a_group_whose_members_do_not_see_the_offsets_topic(
    closed_broker: KafkaBroker, user: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic, log = filled(closed_broker), unique(INDIVIDUAL_COMMITS_TOPIC)
    options = closed_broker.client_options("SASL_PLAINTEXT", user=user)
    login = {name.removeprefix("kafka."): value for name, value in options.items()}
    config = settings(closed_broker, topic, **{"individual.commit.topic": log}) | login
    with ExitStack() as stack:
        consumers = [stack.enter_context(KeySharedConsumer(config)) for _ in range(2)]
        for consumer in consumers:
            consumer.subscribe([topic])
        offsets: list[int] = []

        def receive() -> bool:
            messages: Any = chain.from_iterable(each.consume(100, 0.1) for each in consumers)
            offsets.extend(message.offset() for message in messages)
            return {*offsets} == {*range(RECORDS)}

        eventually(receive)
    count = len(closed_broker.admin.list_topics(log, timeout=30).topics[log].partitions)
    assert count == (1 if user == "reader" else 50)
    assert cleanup_policy(closed_broker, log) == "compact"
    assert "was made without" not in caplog.text
