"""``oauthTokenProvider`` against a real broker: planner, tasks and sink log in by a function."""

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import kshare
from integration.differential import error_of
from integration.kafka import KafkaBroker
from integration.spark import QUERY_S
from integration.tokens import CALLS, LIFETIME_S
from kshare.core.hashing import WHOLE
from kshare.errors import AuthenticationError
from kshare.kafka.cluster import Cluster
from kshare.options import parse_options
from kshare.options.sink import parse_sink_options
from kshare.query.produce import write_rows
from kshare.testing import Record


def logging_in(broker: KafkaBroker, listener: str, function: str) -> dict[str, str]:
    options = broker.client_options(listener, "OAUTHBEARER")
    del options["kafka.sasl.jaas.config"]
    return {**options, "oauthTokenProvider": f"integration.tokens:{function}"}


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The processes that called a function for a token, once for each call."""
    path = tmp_path / "calls"
    path.touch()
    monkeypatch.setenv(CALLS, str(path))
    return lambda: path.read_text().split()


def plan(topic: str, options: dict[str, str]) -> int:
    parsed = parse_options({**options, "subscribe": topic}, streaming=True).options
    with closing(Cluster(parsed.kafka)) as cluster:
        return sum(cluster.latest(cluster.partitions(parsed.topics)).values())


def read(topic: str, options: dict[str, str], count: int) -> list[bytes]:
    offsets = kshare.OffsetRange(0, count)
    slice_ = kshare.Slice(topic, 0, (kshare.Rectangle(offsets, WHOLE),))
    values: list[bytes] = pa.Table.from_batches(kshare.read_slice(slice_, options))[
        "value"
    ].to_pylist()
    return values


def write(topic: str, options: dict[str, str], value: bytes) -> None:
    parsed = parse_sink_options({**options, "topic": topic}, streaming=False).options
    write_rows(iter([pa.record_batch({"key": [b"k"], "value": [value]})]), parsed)


@pytest.mark.parametrize(
    "listener", [pytest.param("SASL_PLAINTEXT", marks=pytest.mark.long), "SASL_SSL"]
)
def test_planner_reader_and_sink(secure_broker: KafkaBroker, listener: str) -> None:
    topic = secure_broker.create_topic()
    options = logging_in(secure_broker, listener, "reader")
    write(topic, options, b"1")
    assert plan(topic, options) == 1
    assert read(topic, options, 1) == [b"1"]


def test_the_function_as_javas_handler(secure_broker: KafkaBroker) -> None:
    topic = secure_broker.create_topic()
    options = logging_in(secure_broker, "SASL_PLAINTEXT", "reader")
    options["kafka.sasl.login.callback.handler.class"] = "integration.tokens.reader"
    del options["oauthTokenProvider"]
    write(topic, options, b"1")
    assert read(topic, options, 1) == [b"1"]


@pytest.mark.long
def test_tokens_are_refreshed(calls: Callable[[], list[str]]) -> None:
    """On connections that the broker ends when their token has expired (KIP-368)."""
    config = {"connections.max.reauth.ms": "60000"}
    with KafkaBroker(("SASL_PLAINTEXT",), config=config) as broker:
        topic = broker.create_topic()
        options = logging_in(broker, "SASL_PLAINTEXT", "short_lived")
        parsed = parse_options({**options, "subscribe": topic}, streaming=True).options
        with closing(Cluster(parsed.kafka)) as cluster:
            begun, count = time.monotonic(), 0
            while (passed := time.monotonic() - begun) < 1.65 * LIFETIME_S or len(calls()) < 3:
                write(topic, options, b"%d" % count)
                count += 1
                assert list(cluster.latest(cluster.partitions(parsed.topics)).values()) == [count]
                assert read(topic, options, count) == [b"%d" % i for i in range(count)]
                time.sleep(0.3)
    assert len(calls()) <= 4 + 2 * passed / (0.8 * LIFETIME_S), "a few calls for all connections"


def test_through_spark(spark: SparkSession, secure_broker: KafkaBroker, tmp_path: Path) -> None:
    source, target = secure_broker.create_topic(), secure_broker.create_topic()
    secure_broker.produce(source, [Record(b"k%d" % (i % 3), b"%d" % i) for i in range(30)])
    options = logging_in(secure_broker, "SASL_SSL", "reader")
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
    written = spark.read.format("kshare").options(**options).option("subscribe", target).load()
    assert written.count() == 30


def test_a_token_that_the_broker_refuses(secure_broker: KafkaBroker) -> None:
    topic = secure_broker.create_topic()
    options = logging_in(secure_broker, "SASL_PLAINTEXT", "nobody")
    for attempt in (
        lambda: plan(topic, options),
        lambda: read(topic, options, 1),
        lambda: write(topic, options, b"1"),
    ):
        with pytest.raises(AuthenticationError):
            attempt()


def test_a_function_that_fails_is_named(spark: SparkSession, secure_broker: KafkaBroker) -> None:
    topic = secure_broker.create_topic()
    options = logging_in(secure_broker, "SASL_PLAINTEXT", "failing")
    frame = spark.read.format("kshare").options(**options).option("subscribe", topic).load()
    wanted = (
        "AuthenticationError: cannot log in: oauthTokenProvider integration.tokens:failing failed: "
        "LookupError: found no credentials on this machine"
    )
    assert wanted in error_of(frame.collect)
