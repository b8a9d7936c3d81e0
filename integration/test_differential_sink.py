"""Writing with both formats: the records in the topic, and what is refused."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from integration.differential import FORMATS, READS_ALL, error_of, read, read_all, rows_of
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
            query = (
                frame.select("key", "value")
                .writeStream.format(source)
                .option("kafka.bootstrap.servers", servers)
                .option("topic", out)
                .option("checkpointLocation", str(tmp_path / source))
                .trigger(**READS_ALL)
                .start()
            )
            read_all(query)
    results = {source: written(spark, servers, out) for source, out in outs.items()}
    assert results["kshare"] == results["kafka"]
    assert len(results["kafka"]) == 40
