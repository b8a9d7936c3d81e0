"""Batch queries with both formats: rows, columns, types, and what is refused."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from integration.differential import DAY_MS, FORMATS, T0, World, both, error_of, per_partition, read

Options = dict[str, Any]


READS: dict[str, Callable[[World], Options]] = {
    "subscribe": lambda w: {"subscribe": w.plain},
    "subscribe several": lambda w: {"subscribe": f"{w.plain}, {w.dated} ,{w.empty}"},
    "subscribePattern": lambda w: {"subscribePattern": f"{w.plain[:-1]}.|^{w.dated}$"},
    "subscribePattern finds anywhere": lambda w: {"subscribePattern": w.dated[3:-2]},
    "assign": lambda w: {"assign": json.dumps({w.plain: [1]})},
    "assign several": lambda w: {"assign": json.dumps({w.plain: [0, 1], w.dated: [0]})},
    "headers": lambda w: {"subscribe": w.plain, "includeHeaders": "true"},
    "headers, in other words": lambda w: {"subscribe": w.plain, "INCLUDEHEADERS": "True"},
    "an empty topic": lambda w: {"subscribe": w.empty},
    "startingOffsets": lambda w: {
        "subscribe": w.plain,
        "startingOffsets": per_partition(w.plain, 7, 33),
    },
    "startingOffsets -2": lambda w: {
        "subscribe": w.plain,
        "startingOffsets": per_partition(w.plain, -2, 33),
    },
    "endingOffsets": lambda w: {
        "subscribe": w.plain,
        "endingOffsets": per_partition(w.plain, 7, 33),
    },
    "endingOffsets -1": lambda w: {
        "subscribe": w.plain,
        "endingOffsets": per_partition(w.plain, -1, 33),
    },
    "both offsets": lambda w: {
        "subscribe": w.plain,
        "startingOffsets": per_partition(w.plain, 7, 12),
        "endingOffsets": per_partition(w.plain, 7, 13),
    },
    "startingTimestamp": lambda w: {"subscribe": w.dated, "startingTimestamp": T0 + 4500},
    "endingTimestamp": lambda w: {"subscribe": w.dated, "endingTimestamp": T0 + 4500},
    "both timestamps": lambda w: {
        "subscribe": w.dated,
        "startingTimestamp": T0 + 3000,
        "endingTimestamp": T0 + 9000,
    },
    "startingOffsetsByTimestamp": lambda w: {
        "subscribe": w.dated,
        "startingOffsetsByTimestamp": per_partition(w.dated, T0 + 7000),
    },
    "endingOffsetsByTimestamp": lambda w: {
        "subscribe": w.dated,
        "endingOffsetsByTimestamp": per_partition(w.dated, T0 + 7000),
    },
    "an end that no record has": lambda w: {
        "subscribe": w.dated,
        "endingTimestamp": T0 + DAY_MS,
    },
    "a start that no record has, latest": lambda w: {
        "subscribe": w.dated,
        "startingTimestamp": T0 + DAY_MS,
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "a timestamp wins over timestamps": lambda w: {
        "subscribe": w.dated,
        "startingTimestamp": T0 + 15000,
        "startingOffsetsByTimestamp": per_partition(w.dated, T0),
        "startingOffsets": "earliest",
    },
    "timestamps win over offsets": lambda w: {
        "subscribe": w.dated,
        "startingOffsetsByTimestamp": per_partition(w.dated, T0 + 15000),
        "startingOffsets": "earliest",
        "endingOffsetsByTimestamp": per_partition(w.dated, T0 + 18000),
        "endingOffsets": "latest",
    },
    "minPartitions": lambda w: {"subscribe": w.plain, "minPartitions": "5"},
    "minPartitions, by offset": lambda w: {
        "subscribe": w.plain,
        "minPartitions": "5",
        "splitBy": "offset",
    },
    "maxRecordsPerPartition": lambda w: {"subscribe": w.plain, "maxRecordsPerPartition": "9"},
    "maxTasks=2": lambda w: {
        "subscribe": f"{w.plain},{w.dated},{w.empty}",
        "minPartitions": "7",
        "maxTasks": "2",
    },
    "maxTasks=auto": lambda w: {
        "subscribe": f"{w.plain},{w.trimmed}",
        "minPartitions": "5",
        "maxTasks": "auto",
    },
    "transactions": lambda w: {"subscribe": w.transactions},
    "read_committed": lambda w: {
        "subscribe": w.transactions,
        "kafka.isolation.level": "read_committed",
    },
    "compacted": lambda w: {"subscribe": w.compacted},
    "LogAppendTime": lambda w: {"subscribe": w.stamped},
    "trimmed": lambda w: {"subscribe": w.trimmed},
    "below a trimmed log, and no error wanted": lambda w: {
        "subscribe": w.trimmed,
        "startingOffsets": per_partition(w.trimmed, 20),
        "failOnDataLoss": "false",
    },
    "gzip": lambda w: {"subscribe": w.codecs["gzip"]},
    "snappy": lambda w: {"subscribe": w.codecs["snappy"]},
    "lz4": lambda w: {"subscribe": w.codecs["lz4"]},
    "zstd": lambda w: {"subscribe": w.codecs["zstd"]},
    "names without case": lambda w: {
        "SUBSCRIBE": w.plain,
        "StartingOffsets": "EARLIEST",
        "ENDINGOFFSETS": "Latest",
    },
    "small fetches": lambda w: {
        "subscribe": w.plain,
        "kafka.max.partition.fetch.bytes": "500",
        "kafka.fetch.max.bytes": "700",
    },
}


@pytest.mark.parametrize("case", READS)
def test_rows(spark: SparkSession, world: World, case: str) -> None:
    results = both(spark, world.servers, READS[case](world))
    assert results["kshare"] == results["kafka"]
    nothing = {"an empty topic", "a start that no record has, latest"}
    assert bool(results["kafka"][1]) == (case not in nothing)


FILTERS: dict[str, Callable[[World], Any]] = {
    "partition": lambda _: F.col("partition") == 1,
    "offset": lambda _: (F.col("offset") >= 5) & (F.col("offset") < 31),
    "topic": lambda w: F.col("topic").isin(w.dated, "nowhere"),
    "timestamp": lambda _: F.col("timestamp") > F.timestamp_millis(F.lit(T0 + 6500)),
    "both": lambda _: (F.col("partition") > 0) & (F.col("offset").isin(3, 4, 99)),
    "one of two": lambda _: (F.col("partition") == 0) | (F.col("offset") == 2),
    "nothing": lambda _: F.col("partition") == 7,
    "of values": lambda _: F.col("key").isNull() & (F.col("offset") <= 20),
}


@pytest.mark.parametrize("case", FILTERS)
def test_filters(spark: SparkSession, world: World, pushed: bool, case: str) -> None:
    def keep(frame: DataFrame) -> DataFrame:
        return frame.where(FILTERS[case](world))

    options = {"subscribe": f"{world.plain},{world.dated}"}
    results = both(spark, world.servers, options, keep)
    assert results["kshare"] == results["kafka"]
    assert bool(results["kafka"][1]) == (case != "nothing")


def test_counts_and_chosen_columns(spark: SparkSession, world: World) -> None:
    """Queries that need no column, or only some."""
    changes: tuple[Callable[[DataFrame], DataFrame], ...] = (
        lambda frame: frame.groupBy().count(),
        lambda frame: frame.groupBy("partition").agg(F.max("offset")).orderBy("partition"),
        lambda frame: frame.select("value", "offset").orderBy("offset"),
    )
    for change in changes:
        results = [
            [
                tuple(row)
                for row in change(
                    read(spark, source, world.servers, {"subscribe": world.codecs["lz4"]})
                ).collect()
            ]
            for source in FORMATS
        ]
        assert results[0] == results[1]
        assert results[0]


# What both refuse: the options, and what each of them says.
REFUSED: dict[str, tuple[Callable[[World], Options], str, str]] = {
    "no topic": (lambda _: {}, "subscribe", "subscribe"),
    "two ways to name topics": (
        lambda w: {"subscribe": w.plain, "subscribePattern": "x"},
        "Only one of",
        "subscribe",
    ),
    "no name in subscribe": (lambda _: {"subscribe": " , "}, "No topics", "subscribe"),
    "assign is no JSON": (lambda _: {"assign": "a"}, "assign", "assign"),
    "latest as a start": (
        lambda w: {"subscribe": w.plain, "startingOffsets": "latest"},
        "latest",
        "startingOffsets.*latest",
    ),
    "earliest as an end": (
        lambda w: {"subscribe": w.plain, "endingOffsets": "earliest"},
        "earliest",
        "endingOffsets.*earliest",
    ),
    "-1 as a start": (
        lambda w: {"subscribe": w.plain, "startingOffsets": per_partition(w.plain, 0, -1)},
        "latest",
        "startingOffsets.*latest",
    ),
    "-2 as an end": (
        lambda w: {"subscribe": w.plain, "endingOffsets": per_partition(w.plain, 3, -2)},
        "earliest",
        "endingOffsets.*earliest",
    ),
    "a partition is missing": (
        lambda w: {"subscribe": w.plain, "startingOffsets": per_partition(w.plain, 0)},
        "(?i)partition",
        "startingOffsets",
    ),
    "a topic too many": (
        lambda w: {
            "subscribe": w.plain,
            "startingOffsets": json.dumps({w.plain: {"0": 0, "1": 0}, "other": {"0": 0}}),
        },
        "(?i)partition",
        "startingOffsets.*other",
    ),
    "a start after the end": (
        lambda w: {
            "subscribe": w.plain,
            "startingOffsets": per_partition(w.plain, 9, 9),
            "endingOffsets": per_partition(w.plain, 8, 9),
        },
        "(?i)greater|offset",
        "9.*8",
    ),
    "a start that no record has": (
        lambda w: {"subscribe": w.dated, "startingTimestamp": T0 + DAY_MS},
        "(?i)timestamp",
        "(?i)timestamp",
    ),
    "offsets that are gone": (
        lambda w: {"subscribe": w.trimmed, "startingOffsets": per_partition(w.trimmed, 20)},
        "(?i)fail ?On ?Data ?Loss|data|offset",
        "20.*60",
    ),
    "an end beyond the log": (
        lambda w: {
            "subscribe": w.dated,
            "endingOffsets": per_partition(w.dated, 999),
            "kafkaConsumer.pollTimeoutMs": "1000",
        },
        "",
        "999",
    ),
    "startingOffsets is no JSON": (
        lambda w: {"subscribe": w.plain, "startingOffsets": "sometimes"},
        "Expected",
        "startingOffsets",
    ),
    "startingTimestamp is no number": (
        lambda w: {"subscribe": w.plain, "startingTimestamp": "noon"},
        "noon",
        "startingTimestamp",
    ),
    "an unknown strategy": (
        lambda w: {
            "subscribe": w.dated,
            "startingTimestamp": T0,
            "startingOffsetsByTimestampStrategy": "sometimes",
        },
        "(?i)sometimes",
        "startingOffsetsByTimestampStrategy",
    ),
    "minPartitions is no number": (
        lambda w: {"subscribe": w.plain, "minPartitions": "many"},
        "",
        "minPartitions",
    ),
    "failOnDataLoss is no truth value": (
        lambda w: {"subscribe": w.plain, "failOnDataLoss": "maybe"},
        "",
        "failOnDataLoss",
    ),
    "auto.offset.reset": (
        lambda w: {"subscribe": w.plain, "kafka.auto.offset.reset": "latest"},
        "auto.offset.reset",
        "kafka.auto.offset.reset",
    ),
    "key.deserializer": (
        lambda w: {"subscribe": w.plain, "kafka.key.deserializer": "x"},
        "key.deserializer",
        "kafka.key.deserializer",
    ),
    "value.deserializer": (
        lambda w: {"subscribe": w.plain, "kafka.value.deserializer": "x"},
        "value.deserializer",
        "kafka.value.deserializer",
    ),
    "enable.auto.commit": (
        lambda w: {"subscribe": w.plain, "kafka.enable.auto.commit": "true"},
        "enable.auto.commit",
        "kafka.enable.auto.commit",
    ),
    "interceptor.classes": (
        lambda w: {"subscribe": w.plain, "kafka.interceptor.classes": "x"},
        "interceptor.classes",
        "kafka.interceptor.classes",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(spark: SparkSession, world: World, case: str) -> None:
    options, by_spark, by_us = REFUSED[case]

    def error_with(source: str) -> str:
        return error_of(lambda: read(spark, source, world.servers, options(world)).collect())

    errors = {source: error_with(source) for source in FORMATS}
    assert re.search(by_spark, errors["kafka"], re.DOTALL), errors["kafka"]
    assert re.search(by_us, errors["kshare"], re.DOTALL), errors["kshare"]


def test_a_topic_that_is_not_there(spark: SparkSession, world: World) -> None:
    """Both name the topic."""
    for source in FORMATS:
        options = {"subscribe": f"nowhere,{world.plain}"}
        error = error_of(lambda: read(spark, source, world.servers, options).collect())  # noqa: B023
        assert "nowhere" in error or "UnknownTopic" in error, error


def test_no_servers(spark: SparkSession) -> None:
    for source in FORMATS:
        error = error_of(
            lambda: spark.read.format(source).option("subscribe", "t").load().collect()  # noqa: B023
        )
        assert "kafka.bootstrap.servers" in error
