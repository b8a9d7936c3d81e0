"""Streaming queries with both formats: rows of each batch, offsets, restarts, what is refused."""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from integration.differential import FORMATS, T0, Stream, World, error_of, per_partition, streams
from integration.kafka import KafkaBroker
from kshare.core.checkpoint import EXTRA_KEY
from kshare.testing import Record
from spark_plugin.spark_api import TELLS_START, shown_offsets

Options = dict[str, Any]


def numbered(count: int) -> list[Record]:
    return [Record(b"key-%d" % (i % 5), b"%d" % i) for i in range(count)]


def assert_same(queries: dict[str, Stream]) -> Stream:
    """The same rows in the same batches, and the same offsets in their reports."""
    spark, ours = queries["kafka"], queries["kshare"]
    assert ours.batches == spark.batches
    ends = {source: [_bare(end) for _, end in one.ranges] for source, one in queries.items()}
    assert ends["kshare"] == ends["kafka"]
    # Where batch 0 began, Spark's source does not tell; after that each begins where one ended.
    starts = {source: [_bare(start) for start, _ in one.ranges] for source, one in queries.items()}
    assert starts["kshare"][1:] == starts["kafka"][1:]
    return spark


def _bare(shown: str) -> dict[str, Any]:
    """Offsets in a progress report, without where the query began: the end of batch 0 has that."""
    read: dict[str, Any] = json.loads(shown_offsets(shown) or "null") or {}
    read.pop(EXTRA_KEY, None)
    return read


READS: dict[str, Callable[[World], Options]] = {
    "earliest": lambda w: {"subscribe": w.plain},
    "headers": lambda w: {"subscribe": w.plain, "includeHeaders": "true"},
    "maxOffsetsPerTrigger": lambda w: {"subscribe": w.plain, "maxOffsetsPerTrigger": "17"},
    "maxOffsetsPerTrigger of three topics": lambda w: {
        "subscribe": f"{w.plain},{w.dated},{w.trimmed}",
        "maxOffsetsPerTrigger": "23",
    },
    "maxOffsetsPerTrigger below the partitions": lambda w: {
        "subscribe": f"{w.dated},{w.stamped}",
        "maxOffsetsPerTrigger": "5",
    },
    "minOffsetsPerTrigger": lambda w: {"subscribe": w.plain, "minOffsetsPerTrigger": "10"},
    "minOffsetsPerTrigger and max": lambda w: {
        "subscribe": w.plain,
        "minOffsetsPerTrigger": "10",
        "maxOffsetsPerTrigger": "40",
    },
    "startingOffsets": lambda w: {
        "subscribe": w.plain,
        "startingOffsets": per_partition(w.plain, 11, -2),
    },
    "startingTimestamp": lambda w: {"subscribe": w.dated, "startingTimestamp": T0 + 4500},
    "startingOffsetsByTimestamp": lambda w: {
        "subscribe": w.dated,
        "startingOffsetsByTimestamp": per_partition(w.dated, T0 + 9000),
    },
    "read_committed": lambda w: {
        "subscribe": w.transactions,
        "kafka.isolation.level": "read_committed",
    },
    "transactions": lambda w: {"subscribe": w.transactions, "maxOffsetsPerTrigger": "9"},
    "compacted": lambda w: {"subscribe": w.compacted, "maxOffsetsPerTrigger": "50"},
    "LogAppendTime": lambda w: {"subscribe": w.stamped},
    "trimmed": lambda w: {"subscribe": w.trimmed},
    "minPartitions": lambda w: {"subscribe": w.plain, "minPartitions": "4"},
    "maxRecordsPerPartition": lambda w: {
        "subscribe": w.plain,
        "maxRecordsPerPartition": "10",
        "maxOffsetsPerTrigger": "60",
    },
    "maxTasks=2": lambda w: {
        "subscribe": f"{w.plain},{w.dated},{w.trimmed}",
        "minPartitions": "7",
        "maxOffsetsPerTrigger": "30",
        "maxTasks": "2",
    },
    "maxTasks=auto": lambda w: {
        "subscribe": f"{w.plain},{w.transactions}",
        "minPartitions": "6",
        "maxOffsetsPerTrigger": "50",
        "maxTasks": "auto",
    },
    "assign": lambda w: {"assign": json.dumps({w.plain: [1]}), "maxOffsetsPerTrigger": "25"},
    "an empty topic beside": lambda w: {"subscribe": f"{w.empty},{w.dated}"},
}

ONCE_MORE = (
    "maxOffsetsPerTrigger below the partitions",
    "minOffsetsPerTrigger and max",
    "startingOffsetsByTimestamp",
    "maxTasks=2",
    "minPartitions",
    "assign",
)
"""What other cases of streams or batches show, too."""


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.long) if case in ONCE_MORE else case for case in READS],
)
def test_rows_of_each_batch(spark: SparkSession, world: World, tmp_path: Path, case: str) -> None:
    queries = streams(spark, world.servers, tmp_path, READS[case](world))
    for source, stream in queries.items():
        stream.start(source)
    assert assert_same(queries).batches


@pytest.mark.parametrize("trigger", [{"once": True}, {"processingTime": "50 milliseconds"}])
def test_triggers(
    spark: SparkSession, world: World, tmp_path: Path, trigger: dict[str, Any]
) -> None:
    options = {"subscribe": world.plain, "maxOffsetsPerTrigger": "30"}
    queries = streams(spark, world.servers, tmp_path, options)
    for source, stream in queries.items():
        stream.start(source, trigger)
    if "once" in trigger and not TELLS_START:  # a difference that docs/spark-versions.md names
        sizes = {source: [len(batch) for batch in one.batches] for source, one in queries.items()}
        assert sizes == {"kafka": [100], "kshare": [30]}
        return
    seen = assert_same(queries)
    # Trigger.Once ignores the limit.
    assert (len(seen.batches) == 1) == ("once" in trigger)


def test_available_now_with_a_limit(spark: SparkSession, world: World, tmp_path: Path) -> None:
    """Before Spark 4.2 it is one batch a start, and nothing is lost."""
    options = {"subscribe": world.plain, "maxOffsetsPerTrigger": "30"}
    stream = Stream(spark, world.servers, tmp_path, options)
    starts = 1 if TELLS_START else 4
    for _ in range(starts):
        stream.start("kshare", {"availableNow": True})
    read = [(row[3], row[4]) for batch in stream.batches for row in batch]
    assert sorted(read) == [(0, i) for i in range(40)] + [(1, i) for i in range(60)]
    assert len(stream.batches) == 4


def test_restarts(spark: SparkSession, broker: KafkaBroker, tmp_path: Path) -> None:
    """latest, nothing, more, another limit, and nothing again."""
    topic = broker.create_topic(partitions=2)
    broker.produce(topic, numbered(20))
    queries = streams(spark, broker.bootstrap_servers, tmp_path, {"subscribe": topic})
    starts: list[dict[str, Any]] = [
        {"startingOffsets": "latest"},
        {},
        {"maxOffsetsPerTrigger": "4"},
        {},
    ]
    for more in starts:
        for source, stream in queries.items():
            stream.start(source, **more)
        broker.produce(topic, numbered(10))
    for source, stream in queries.items():
        stream.start(source)
    seen = assert_same(queries)
    assert sum(map(len, seen.batches)) == 40


def test_one_checkpoint_in_turn(spark: SparkSession, broker: KafkaBroker, tmp_path: Path) -> None:
    """The same rows as if one of them had read it all."""
    topic = broker.create_topic(partitions=2)
    options = {"subscribe": topic, "maxOffsetsPerTrigger": "12"}
    alone = Stream(spark, broker.bootstrap_servers, tmp_path, options)
    in_turn = Stream(spark, broker.bootstrap_servers, tmp_path, options)
    for source in ("kafka", "kshare", "kafka", "kshare"):
        broker.produce(topic, numbered(30))
        alone.start("kafka")
        in_turn.start(source)
    assert in_turn.batches == alone.batches


def test_new_partitions(spark: SparkSession, broker: KafkaBroker, tmp_path: Path) -> None:
    topic = broker.create_topic()
    broker.produce(topic, numbered(10))
    queries = streams(spark, broker.bootstrap_servers, tmp_path, {"subscribe": topic})
    for source, stream in queries.items():
        stream.start(source)
    broker.add_partitions(topic, 3)
    for partition in range(3):
        broker.produce(topic, numbered(5), partition=partition)
    for source, stream in queries.items():
        stream.start(source)
    assert len(assert_same(queries).batches[-1]) == 15


def test_new_topics(spark: SparkSession, broker: KafkaBroker, tmp_path: Path) -> None:
    first = broker.create_topic()
    broker.produce(first, numbered(10))
    pattern = {"subscribePattern": f"{first}.*"}
    queries = streams(spark, broker.bootstrap_servers, tmp_path, pattern)
    for source, stream in queries.items():
        stream.start(source)
    second = broker.create_topic(f"{first}-second")
    broker.produce(second, numbered(7))
    for source, stream in queries.items():
        stream.start(source)
    assert len(assert_same(queries).batches[-1]) == 7


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_trimmed_log(spark: SparkSession, broker: KafkaBroker, tmp_path: Path, fail: str) -> None:
    topic = broker.create_topic()
    broker.produce(topic, numbered(10))
    options = {"subscribe": topic, "failOnDataLoss": fail}
    queries = streams(spark, broker.bootstrap_servers, tmp_path, options)
    for source, stream in queries.items():
        stream.start(source)
    broker.produce(topic, numbered(30))
    broker.trim(topic, 0, 25)
    if fail == "true":
        for source, stream in queries.items():
            error = error_of(partial(stream.start, source))
            assert "failOnDataLoss" in error
            assert "25" in error
        return
    for source, stream in queries.items():
        stream.start(source)
    spark_rows, our_rows = queries["kafka"].batches, queries["kshare"].batches
    assert our_rows == spark_rows
    assert len(our_rows[-1]) == 15


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_deleted_topic(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path, fail: str
) -> None:
    kept = broker.create_topic()
    pattern = {"subscribePattern": f"{kept}.*", "failOnDataLoss": fail}
    queries = streams(spark, broker.bootstrap_servers, tmp_path, pattern)
    deleted = broker.create_topic(f"{kept}-deleted")
    for topic in (kept, deleted):
        broker.produce(topic, numbered(10))
    for source, stream in queries.items():
        stream.start(source)
    broker.delete_topic(deleted)
    broker.produce(kept, numbered(5))
    for source, stream in queries.items():
        if fail == "true":
            error = error_of(partial(stream.start, source))
            assert "failOnDataLoss" in error
            assert deleted in error
        else:
            stream.start(source)
    assert queries["kshare"].batches == queries["kafka"].batches


def test_a_topic_made_anew(spark: SparkSession, broker: KafkaBroker, tmp_path: Path) -> None:
    """It ends before what was read of the old one."""
    topic = broker.create_topic()
    broker.produce(topic, numbered(20))
    queries = streams(spark, broker.bootstrap_servers, tmp_path, {"subscribe": topic})
    for source, stream in queries.items():
        stream.start(source)
    broker.delete_topic(topic)
    broker.create_topic(topic)
    broker.produce(topic, numbered(5))
    for source, stream in queries.items():
        error = error_of(partial(stream.start, source))
        assert "failOnDataLoss" in error
        assert topic in error


REFUSED: dict[str, tuple[Options, str, str]] = {
    "endingOffsets": ({"endingOffsets": "latest"}, "ending", "endingOffsets"),
    "endingOffsetsByTimestamp": (
        {"endingOffsetsByTimestamp": '{"t": {"0": 1}}'},
        "ending",
        "endingOffsetsByTimestamp",
    ),
    "maxOffsetsPerTrigger is no number": (
        {"maxOffsetsPerTrigger": "few"},
        "",
        "maxOffsetsPerTrigger",
    ),
    "minOffsetsPerTrigger above max": (
        {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "3"},
        "minOffsetsPerTrigger|maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
    ),
    "maxTriggerDelay is no time": (
        {"minOffsetsPerTrigger": "9", "maxTriggerDelay": "soon"},
        "",
        "maxTriggerDelay",
    ),
    "offsets beyond the end": (
        {"startingOffsets": "PER_PARTITION"},
        "(?i)failOnDataLoss|offset",
        "999",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(spark: SparkSession, world: World, tmp_path: Path, case: str) -> None:
    options, by_spark, by_us = REFUSED[case]
    options = {"subscribe": world.dated, **options}
    if options.get("startingOffsets") == "PER_PARTITION":
        options["startingOffsets"] = per_partition(world.dated, 999)
    queries = streams(spark, world.servers, tmp_path, options)
    errors = {source: error_of(partial(queries[source].start, source)) for source in FORMATS}
    assert re.search(by_spark, errors["kafka"]), errors["kafka"]
    assert re.search(by_us, errors["kshare"]), errors["kshare"]
