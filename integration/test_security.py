"""Every listener and mechanism of a real broker, for source and sink; and what can be wrong.

An error comes within 30 s and says what is wrong; neither it nor any log holds a secret.
"""

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import AclOperation
from pyspark.sql import SparkSession

import kshare
from integration.certs import KEY_PASSWORD, STORE_PASSWORD, Certificates, make_client_jks
from integration.differential import error_of
from integration.kafka import KafkaBroker
from integration.listeners import MECHANISMS, USERS, jaas
from integration.spark import QUERY_S
from kshare.cli.doctor_cluster import examine_cluster
from kshare.core.hashing import WHOLE
from kshare.errors import AuthenticationError, AuthorizationError, KafkaError
from kshare.kafka.cluster import Cluster
from kshare.options import parse_options
from kshare.options.sink import parse_sink_options
from kshare.query.produce import write_rows
from kshare.testing import Record

SECONDS_MAX = 50  # with the defaults, what is tried again ends after 60
WAYS = [
    ("PLAINTEXT", None),
    ("SSL", None),
    ("MUTUAL", None),
    *[(listener, name) for listener in ("SASL_PLAINTEXT", "SASL_SSL") for name in MECHANISMS],
]
SECRETS = [*USERS.values(), STORE_PASSWORD, KEY_PASSWORD, "PRIVATE KEY", "wrong-secret"]


def certificates_of(broker: KafkaBroker) -> Certificates:
    assert broker.certificates
    return broker.certificates


def options_for(broker: KafkaBroker, listener: str, mechanism: str | None) -> dict[str, str]:
    options = broker.client_options(listener, mechanism)
    if listener == "MUTUAL":
        options |= {
            "kafka.ssl.keystore.type": "PKCS12",
            "kafka.ssl.keystore.location": str(certificates_of(broker).client_p12),
            "kafka.ssl.keystore.password": STORE_PASSWORD,
        }
    return options


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No secret in any log line of this process."""
    caplog.set_level(logging.DEBUG)
    yield
    assert_no_secret(caplog.text)


def assert_no_secret(text: str) -> None:
    leaked = [secret for secret in SECRETS if secret in text]
    assert not leaked, leaked


def read_all(topic: str, options: dict[str, str], count: int) -> pa.Table:
    offsets = kshare.OffsetRange(0, count)
    slice_ = kshare.Slice(topic, 0, (kshare.Rectangle(offsets, WHOLE),))
    return pa.Table.from_batches(kshare.read_slice(slice_, options))


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_the_planner_and_the_reader(
    secure_broker: KafkaBroker, listener: str, mechanism: str | None
) -> None:
    topic = secure_broker.create_topic()
    secure_broker.produce(topic, [Record(b"k", b"%d" % i) for i in range(20)])
    options = options_for(secure_broker, listener, mechanism)
    parsed = parse_options({**options, "subscribe": topic}, streaming=True).options
    cluster = Cluster(parsed.kafka)
    partitions = cluster.partitions(parsed.topics)
    assert list(cluster.latest(partitions).values()) == [20]
    cluster.close()
    assert read_all(topic, options, 20)["offset"].to_pylist() == list(range(20))
    assert_no_secret(repr(parsed))


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_the_sinks_producer(
    secure_broker: KafkaBroker, listener: str, mechanism: str | None
) -> None:
    """What the sink's tasks do, without Spark around them."""
    topic = secure_broker.create_topic()
    options = options_for(secure_broker, listener, mechanism)
    parsed = parse_sink_options({**options, "topic": topic}, streaming=False).options
    rows = pa.record_batch({"key": [b"a", None], "value": [b"1", b"2"]})
    write_rows(iter([rows]), parsed)
    assert read_all(topic, options, 2)["value"].to_pylist() == [b"1", b"2"]
    assert_no_secret(repr(parsed))


@pytest.mark.usefixtures("quiet")
def test_a_jks_key_store(secure_broker: KafkaBroker, tmp_path: Path) -> None:
    """Of keytool, its key with a password of its own; the sink writes with it, the reader reads."""
    topic, path = secure_broker.create_topic(), tmp_path / "client.jks"
    make_client_jks(certificates_of(secure_broker), path)
    options = options_for(secure_broker, "MUTUAL", None) | {
        "kafka.ssl.keystore.type": "JKS",
        "kafka.ssl.keystore.location": str(path),
        "kafka.ssl.key.password": KEY_PASSWORD,
    }
    parsed = parse_sink_options({**options, "topic": topic}, streaming=False).options
    write_rows(iter([pa.record_batch({"key": [b"a", None], "value": [b"1", b"2"]})]), parsed)
    assert read_all(topic, options, 2)["value"].to_pylist() == [b"1", b"2"]


def test_through_spark(
    spark: SparkSession,
    secure_broker: KafkaBroker,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """From a topic to another, over SASL_SSL; nothing that Spark prints holds a secret."""
    source, target = secure_broker.create_topic(), secure_broker.create_topic()
    secure_broker.produce(source, [Record(b"k%d" % (i % 3), b"%d" % i) for i in range(30)])
    options = options_for(secure_broker, "SASL_SSL", "SCRAM-SHA-512")
    reader = spark.readStream.format("kshare").options(**options)
    frame = reader.option("subscribe", source).option("startingOffsets", "earliest").load()
    query = (
        frame.select("key", "value")
        .writeStream.format("kshare")
        .options(**options)
        .option("topic", target)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(QUERY_S)
    assert query.lastProgress is not None
    assert_no_secret(query.lastProgress.json)
    read = spark.read.format("kshare").options(**options).option("subscribe", target).load()
    assert read.count() == 30
    read.explain(extended=True)
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert_no_secret(file.read_text(errors="replace"))
    output = capfd.readouterr()
    assert_no_secret(output.out + output.err)


def wrong_ways(broker: KafkaBroker) -> dict[str, tuple[dict[str, str], str]]:
    """Options that must fail, and what the error says."""
    trusted = certificates_of(broker)
    stranger = {"kafka.ssl.truststore.location": str(trusted.stranger_ca)}
    cases: dict[str, tuple[dict[str, str], str]] = {
        "an unknown authority": (
            {**options_for(broker, "SSL", None), **stranger},
            "(?i)unknown|authority|issuer|self.signed",
        ),
        "another host's certificate": (
            options_for(broker, "MISNAMED", None),
            "(?i)host ?name|127.0.0.1",
        ),
        "an expired certificate": (options_for(broker, "EXPIRED", None), "(?i)expired"),
        "no client certificate": (broker.client_options("MUTUAL"), "(?i)certificate"),
    }
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        options = options_for(broker, "SASL_SSL", mechanism)
        login = {"kafka.sasl.jaas.config": jaas(mechanism, "reader", "wrong-secret")}
        cases[f"a wrong password, {mechanism}"] = (
            {**options, **login},
            "(?i)authentication|credential|password",
        )
    return cases


WRONG = (
    "an unknown authority",
    "another host's certificate",
    "an expired certificate",
    "no client certificate",
    "a wrong password, PLAIN",
    "a wrong password, SCRAM-SHA-256",
    "a wrong password, SCRAM-SHA-512",
)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_told(secure_broker: KafkaBroker, case: str) -> None:
    """By the planner, the reader and the sink's producer."""
    topic = secure_broker.create_topic()
    options, said = wrong_ways(secure_broker)[case]
    parsed = parse_options({**options, "subscribe": topic}, streaming=True).options
    writing = parse_sink_options({**options, "topic": topic}, streaming=False).options
    rows = pa.record_batch({"key": [b"a"], "value": [b"1"]})

    def plan() -> None:
        cluster = Cluster(parsed.kafka)
        try:
            cluster.partitions(parsed.topics)
        finally:
            cluster.close()

    for attempt in (
        plan,
        lambda: read_all(topic, options, 1),
        lambda: write_rows(iter([rows]), writing),
    ):
        began = time.monotonic()
        with pytest.raises(KafkaError, match=said) as raised:
            attempt()
        assert time.monotonic() - began < SECONDS_MAX
        assert isinstance(raised.value, AuthenticationError)
        assert_no_secret(f"{raised.value!r} {raised.value}")


def test_a_wrong_password_in_a_query(
    spark: SparkSession, secure_broker: KafkaBroker, capfd: pytest.CaptureFixture[str]
) -> None:
    """What a user sees, from the source and from the sink."""
    options, _ = wrong_ways(secure_broker)["a wrong password, PLAIN"]
    topic = secure_broker.create_topic()
    began = time.monotonic()
    reading = spark.read.format("kshare").options(**options).option("subscribe", topic)
    errors = error_of(lambda: reading.load().collect())
    rows = spark.createDataFrame([("k", "v")], "key string, value string")
    writing = rows.write.format("kshare").options(**options).option("topic", topic)
    errors += error_of(lambda: writing.mode("append").save())
    assert time.monotonic() - began < 2 * SECONDS_MAX
    assert errors.count("AuthenticationError") >= 2
    printed = capfd.readouterr()
    assert_no_secret(errors + printed.out + printed.err)


def test_the_doctor_says_which_rights_lack(secure_broker: KafkaBroker, quiet: None) -> None:
    may, may_not = secure_broker.create_topic(), secure_broker.create_topic()
    secure_broker.deny(may_not)
    secure_broker.produce(may, [(b"k", b"v")], partition=0)
    given = secure_broker.client_options("SASL_PLAINTEXT", user="stranger")
    kafka = parse_options({**given, "subscribe": may}, streaming=False).options.kafka
    found = {topic: list(examine_cluster(kafka, topic)) for topic in (may, may_not)}
    of_topic = {topic: findings[1] for topic, findings in found.items()}
    assert (of_topic[may].level, of_topic[may].text) == ("green", "1 partition, 1 offset")
    assert (of_topic[may_not].level, of_topic[may_not].remedy) == ("red", "grant Read on it")
    assert [(each.check, each.level) for each in found[may]][2] == ("clocks", "green")


def test_the_doctor_says_that_a_login_is_refused(secure_broker: KafkaBroker, quiet: None) -> None:
    given = secure_broker.client_options("SASL_PLAINTEXT") | {
        "kafka.sasl.jaas.config": jaas("PLAIN", "nobody", "wrong-secret")
    }
    kafka = parse_options({**given, "subscribe": "t"}, streaming=False).options.kafka
    (found,) = examine_cluster(kafka, None)
    assert (found.check, found.level) == ("brokers", "red")
    assert "refused SASL PLAIN" in found.text


def test_a_sink_says_of_a_topic_that_it_may_not_see_that_it_may_not_write(
    secure_broker: KafkaBroker,
) -> None:
    """At once, and not that it is missing. Without Write alone, the rows say so."""
    rows = pa.RecordBatch.from_pydict({"value": ["v"]})
    options = secure_broker.client_options("SASL_PLAINTEXT", user="stranger")
    for operation in (AclOperation.DESCRIBE, AclOperation.WRITE):
        topic = secure_broker.create_topic()
        secure_broker.deny(topic, operation=operation)
        given = parse_sink_options({**options, "topic": topic}, streaming=False).options
        with pytest.raises(AuthorizationError, match=f"not authorized to write to topic {topic}"):
            write_rows([rows], given)
        assert secure_broker.latest(topic) == 0
