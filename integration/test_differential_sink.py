"""Writing with both formats: the records in the topic, and what is refused."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from integration.differential import FORMATS, error_of, read, rows_of, run_available_now
from integration.kafka import KafkaBroker
from kshare.testing import Record

Rows = Callable[[SparkSession], DataFrame]


def write(frame: DataFrame, source: str, servers: str, **options: Any) -> None:
    writer = frame.write.format(source).option("kafka.bootstrap.servers", servers)
    writer.mode("append").options(**options).save()


def written(spark: SparkSession, servers: str, topic: str) -> list[tuple[Any, ...]]:
    """The records of a topic, in order, without timestamps."""
    options = {"subscribe": topic, "includeHeaders": "true"}
    frame = read(spark, "kafka", servers, options)
    return [(row[3], row[0], row[1], row[7], row[4]) for row in rows_of(frame.select("*"))]


TEXT = "key string, value string"
FRAMES: dict[str, Rows] = {
    "text": lambda s: s.createDataFrame([("k1", "v1"), ("k2", "v2"), ("k1", "v3")], TEXT),
    "bytes": lambda s: s.createDataFrame(
        [(b"\x00\xff", b"v"), (b"", b"")], "key binary, value binary"
    ),
    "null keys and values": lambda s: s.createDataFrame(
        [(None, "v"), ("k", None), (None, None), ("", "")], TEXT
    ),
    "values only": lambda s: s.createDataFrame([("v",), ("w",)], "value string"),
    "other letters": lambda s: s.createDataFrame([("ключ", "значение 🎈")], TEXT),
    "headers": lambda s: s.createDataFrame(
        [("k", "v", [("a", b"1"), ("b", b""), ("a", None)]), ("k", "w", [])],
        f"{TEXT}, headers array<struct<key: string, value: binary>>",
    ),
    "null headers": lambda s: s.createDataFrame(
        [("k", "v", None)], f"{TEXT}, headers array<struct<key: string, value: binary>>"
    ),
    "columns in another order": lambda s: s.createDataFrame(
        [("v", 0, "k")], "value string, partition int, key string"
    ),
    "no row": lambda s: s.createDataFrame([], TEXT),
}


@pytest.mark.parametrize(
    ("case", "included"),
    [
        *((case, "true") for case in FRAMES),
        ("headers", "false"),
        *(pytest.param(c, "false", marks=pytest.mark.long) for c in FRAMES if c != "headers"),
    ],
)
def test_records(spark: SparkSession, broker: KafkaBroker, case: str, included: str) -> None:
    results = {}
    frame = FRAMES[case](spark).coalesce(1)
    for source in FORMATS:
        topic = broker.create_topic()
        servers = broker.bootstrap_servers
        write(frame, source, servers, topic=topic, includeHeaders=included)
        results[source] = written(spark, servers, topic)
    assert results["kshare"] == results["kafka"]
    assert len(results["kafka"]) == frame.count()


def test_the_topic_option_wins_over_the_column(spark: SparkSession, broker: KafkaBroker) -> None:
    servers = broker.bootstrap_servers
    for source in FORMATS:
        option, column = broker.create_topic(), broker.create_topic()
        rows = spark.createDataFrame([(column, "k", "v")], f"topic string, {TEXT}")
        write(rows, source, servers, topic=option)
        assert [row[1:3] for row in written(spark, servers, option)] == [(b"k", b"v")]
        assert written(spark, servers, column) == []
        write(rows, source, servers)
        assert [row[1:3] for row in written(spark, servers, column)] == [(b"k", b"v")]


def test_keys_go_where_javas_producer_puts_them(spark: SparkSession, broker: KafkaBroker) -> None:
    rows = spark.range(1000).select(
        F.concat(F.lit("key-"), F.col("id").cast("string")).alias("key"),
        F.col("id").cast("string").alias("value"),
    )
    results = {}
    for source in FORMATS:
        topic = broker.create_topic(partitions=7)
        write(rows.coalesce(1), source, broker.bootstrap_servers, topic=topic)
        results[source] = written(spark, broker.bootstrap_servers, topic)
    assert results["kshare"] == results["kafka"]
    assert len({row[0] for row in results["kafka"]}) == 7


def test_a_partition_of_its_own(spark: SparkSession, broker: KafkaBroker) -> None:
    """A null leaves it to the key."""
    rows = spark.createDataFrame(
        [("k", "a", 2), ("k", "b", 0), ("k", "c", None)], f"{TEXT}, partition int"
    ).coalesce(1)
    results = {}
    for source in FORMATS:
        topic = broker.create_topic(partitions=3)
        write(rows, source, broker.bootstrap_servers, topic=topic)
        results[source] = written(spark, broker.bootstrap_servers, topic)
    assert results["kshare"] == results["kafka"]


REFUSED: dict[str, tuple[Rows, dict[str, str], str, str]] = {
    "no value": (
        lambda s: s.createDataFrame([("k",)], "key string"),
        {"topic": "TOPIC"},
        "value",
        "column value: is required",
    ),
    "no topic": (FRAMES["text"], {}, "(?i)topic", "topic: must be specified"),
    "a null topic": (
        lambda s: s.createDataFrame([(None, "k", "v")], f"topic string, {TEXT}"),
        {},
        "(?i)null topic",
        "(?i)null.*topic|topic.*null",
    ),
    "a key that is a number": (
        lambda s: s.createDataFrame([(1, "v")], "key int, value string"),
        {"topic": "TOPIC"},
        "(?i)key",
        "column key:",
    ),
    "a value that is a number": (
        lambda s: s.createDataFrame([("k", 1)], "key string, value int"),
        {"topic": "TOPIC"},
        "(?i)value",
        "column value:",
    ),
    "a partition that is text": (
        lambda s: s.createDataFrame([("k", "v", "0")], f"{TEXT}, partition string"),
        {"topic": "TOPIC"},
        "(?i)partition",
        "column partition:",
    ),
    "headers that are text": (
        lambda s: s.createDataFrame([("k", "v", "h")], f"{TEXT}, headers string"),
        {"topic": "TOPIC"},
        "(?i)headers",
        "column headers:",
    ),
    "a topic that is a number": (
        lambda s: s.createDataFrame([(3, "v")], "topic int, value string"),
        {},
        "(?i)topic",
        "column topic:",
    ),
    "a partition that is not there": (
        lambda s: s.createDataFrame([("k", "v", 9)], f"{TEXT}, partition int"),
        {
            "topic": "TOPIC",
            "kafka.max.block.ms": "2000",
            "kafka.delivery.timeout.ms": "5000",
            "kafka.request.timeout.ms": "2000",
        },
        "",
        "9",
    ),
    "key.serializer": (
        FRAMES["text"],
        {"topic": "TOPIC", "kafka.key.serializer": "x"},
        "key.serializer",
        "kafka.key.serializer",
    ),
    "value.serializer": (
        FRAMES["text"],
        {"topic": "TOPIC", "kafka.value.serializer": "x"},
        "value.serializer",
        "kafka.value.serializer",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(spark: SparkSession, broker: KafkaBroker, topic: str, case: str) -> None:
    rows, options, by_spark, by_us = REFUSED[case]
    options = {name: topic if value == "TOPIC" else value for name, value in options.items()}
    frame, errors = rows(spark), {}
    for source in FORMATS:
        errors[source] = error_of(
            partial(write, frame, source, broker.bootstrap_servers, **options)
        )
    assert re.search(by_spark, errors["kafka"]), errors["kafka"]
    assert re.search(by_us, errors["kshare"]), errors["kshare"]
    assert broker.latest(topic) == 0


def test_a_stream_and_its_restart(spark: SparkSession, broker: KafkaBroker, tmp_path: Path) -> None:
    """From one topic to another, a batch at a time; nothing twice after a clean stop."""
    servers, source_topic = broker.bootstrap_servers, broker.create_topic()
    outs = {source: broker.create_topic() for source in FORMATS}
    for part in range(2):
        broker.produce(
            source_topic, [Record(b"key-%d" % (i % 3), b"%d-%d" % (part, i)) for i in range(20)]
        )
        for source, out in outs.items():
            frame = (
                spark.readStream.format(source)
                .option("kafka.bootstrap.servers", servers)
                .option("subscribe", source_topic)
                .option("startingOffsets", "earliest")
                .option("maxOffsetsPerTrigger", "8")
                .load()
            )
            writer = (
                frame.select("key", "value")
                .writeStream.format(source)
                .option("kafka.bootstrap.servers", servers)
                .option("topic", out)
                .option("checkpointLocation", str(tmp_path / source))
            )
            run_available_now(writer, source)
    results = {source: written(spark, servers, out) for source, out in outs.items()}
    assert results["kshare"] == results["kafka"]
    assert len(results["kafka"]) == 40


MISSING = {"kafka.max.block.ms": "2000"}  # Java's 60 s, for a sentence without a reason


@pytest.mark.parametrize("named_by", ["option", "column"])
def test_a_topic_that_does_not_exist(
    spark: SparkSession, broker: KafkaBroker, topic: str, named_by: str
) -> None:
    """No row is written, and the nearest topic is named."""
    missing, servers = f"{topic}s", broker.bootstrap_servers
    rows = spark.createDataFrame(
        [(topic, "k", "v"), (missing, "k", "v")], f"topic string, {TEXT}"
    ).coalesce(1)
    given = {"topic": missing, **MISSING} if named_by == "option" else MISSING
    errors = {
        source: error_of(partial(write, rows, source, servers, **given)) for source in FORMATS
    }
    assert f"Topic {missing} not present in metadata after 2000 ms" in errors["kafka"]
    said = f"topic {missing} does not exist on {servers}; did you mean {topic}?"
    assert said in errors["kshare"]
    # Spark's producer has sent the row before.
    assert broker.latest(topic) == (0 if named_by == "option" else 1)


@pytest.mark.parametrize("exactly_once", ["false", "true"])
def test_a_stream_to_a_topic_that_does_not_exist(
    spark: SparkSession, broker: KafkaBroker, topic: str, tmp_path: Path, exactly_once: str
) -> None:
    servers, missing = broker.bootstrap_servers, f"{topic}s"
    broker.produce(topic, [Record(b"k", b"v")])
    frame = (
        spark.readStream.format("kshare")
        .options(**{"kafka.bootstrap.servers": servers, "startingOffsets": "earliest"})
        .option("subscribe", topic)
        .load()
    )
    writer = (
        frame.select("key", "value")
        .writeStream.format("kshare")
        .options(**{"kafka.bootstrap.servers": servers, "topic": missing})
        .options(exactlyOnce=exactly_once, checkpointLocation=str(tmp_path))
    )
    said = f"topic {missing} does not exist on {servers}; did you mean {topic}?"
    assert said in error_of(partial(run_available_now, writer, "kshare"))


def test_brokers_that_make_the_topics_that_are_written_to(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("made-by-column", "k", "v")], f"topic string, {TEXT}")
    with KafkaBroker(config={"auto.create.topics.enable": "true"}) as makes:
        servers = makes.bootstrap_servers
        for source in FORMATS:
            write(rows, source, servers, topic=f"made-for-{source}")
            write(rows.withColumn("topic", F.lit(f"{source}-column")), source, servers)
            for topic in (f"made-for-{source}", f"{source}-column"):
                assert [row[1:3] for row in written(spark, servers, topic)] == [(b"k", b"v")]
