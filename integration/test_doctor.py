"""``kshare doctor`` on a real broker: the whole page, and that it leaves the cluster as it was."""

import json
import re
import sys
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AclOperation

from integration.kafka import KafkaBroker
from integration.listeners import USERS, jaas
from kshare.cli import main
from kshare.kafka.topics import LEDGER_TOPIC

LINES = """\
green  brokers: 1 answer: HOST
green  topic TOPIC: 1 partition, 1 offset
green  clocks: the newest record is AGE old
green  API versions: all requests that kshare sends are known
green  __consumer_offsets: is not there, or not shown; brokers make it for the first group
green  __kshare_parked_keys: is not there; made when it is first written (every query)
green  __kshare_policies: is not there; made when it is first written (every query)
green  __individual_commit_offsets: is not there; made when it is first written (key-shared groups)
green  __kshare_sink_ledger: is not there; made when it is first written (exactlyOnce sinks)
green  __kshare_range_ends: is not there; made when it is first written (realTime queries)
green  broker settings: message.max.bytes=67108864, min.insync.replicas=1, \
default.replication.factor=1, delete.topic.enable=true
green  source: works
green  groups: works
green  exactly once: works
green  real time: works
green  parked keys: works
green  dead letters: works
"""
EVERY = [
    word
    for name in ("source", "groups", "exactly-once", "real-time", "parked-keys", "dead-letters")
    for word in ("--feature", name)
]


@pytest.fixture(scope="module")
def unused() -> Iterator[KafkaBroker]:
    """A broker on which nobody has made a topic yet."""
    with KafkaBroker() as running:
        yield running


@pytest.fixture(autouse=True)
def own_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the findings about this machine be green."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)


def page(text: str, broker: KafkaBroker, topic: str) -> str:
    """The printed lines of the cluster, without what differs from run to run."""
    text = text[text.index("green  brokers") : text.index("green  feedback")]
    text = text.replace(broker.bootstrap_servers, "HOST").replace(topic, "TOPIC")
    return re.sub(r"record is [\d.]+ \w+ old", "record is AGE old", text)


def test_a_broker_that_lacks_nothing(
    unused: KafkaBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = unused.create_topic()
    unused.produce(topic, [(b"k", b"v")], partition=0)
    before = sorted(unused.admin.list_topics(timeout=30).topics)
    command = ["doctor", "--bootstrap-servers", unused.bootstrap_servers, "--topic", topic, *EVERY]
    assert main(command) == 0
    assert page(capsys.readouterr().out, unused, topic) == LINES
    assert sorted(unused.admin.list_topics(timeout=30).topics) == before, "nothing is made"
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {each["level"] for each in found} == {"green"}


def test_rights_that_lack_are_named_and_secrets_are_not(
    secure_broker: KafkaBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stranger may not make topics, nor read the configuration of brokers."""
    secure_broker.deny(LEDGER_TOPIC, operation=AclOperation.CREATE)
    for operation in (AclOperation.CREATE, AclOperation.DESCRIBE_CONFIGS):
        secure_broker.deny_on_cluster(operation)
    given = secure_broker.client_options("SASL_PLAINTEXT", user="stranger")
    options = [f"--option={name}={value}" for name, value in given.items()]
    command = ["doctor", *options, "--feature", "exactly-once"]
    assert main(command) == 1
    out, err = capsys.readouterr()
    assert (
        "yellow __kshare_sink_ledger: is not there, and cannot be made (exactlyOnce sinks)" in out
    )
    assert "TOPIC_AUTHORIZATION_FAILED" in out
    assert "red    exactly once: does not work: topic __kshare_sink_ledger is not there" in out
    assert "yellow broker settings: cannot be read: not authorized to " in out
    assert "green  source: works" in out
    assert USERS["stranger"] not in out + err
    assert main(["doctor", *options]) == 0, "nobody has asked for exactly once"


def test_a_login_that_is_refused_is_one_short_line(
    secure_broker: KafkaBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    given = secure_broker.client_options("SASL_PLAINTEXT") | {
        "kafka.sasl.jaas.config": jaas("PLAIN", "nobody", "wrong-secret")
    }
    options = [f"--option={name}={value}" for name, value in given.items()]
    assert main(["doctor", *options]) == 1
    out, err = capsys.readouterr()
    (red,) = [line for line in out.splitlines() if line.startswith("red")]
    assert red.startswith("red    brokers: ")
    assert secure_broker.servers("SASL_PLAINTEXT") in red
    assert "wrong-secret" not in out + err
