"""One batch DataFrame, many actions: each has its own rows, and which records are the latest.

Spark 4.1 and later have a Python source plan once for a ``load()``, and keep the plan for all that
is made of it.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from integration.differential import FORMATS, read
from integration.kafka import KafkaBroker
from kshare.testing import Record

COUNT = 22
KEEPS_PLAN = not pyspark.__version__.startswith("4.0.")
MENDED = (
    f"Spark {pyspark.__version__} plans a Python source again for each action, as it should: take "
    "the limit out of README.md and docs (migrating.md, design/spark.md), and turn this test round"
)


def fill(broker: KafkaBroker, topic: str, count: int, value: bytes = b"v") -> None:
    broker.produce(topic, [Record(b"k-%d" % (i % 5), value) for i in range(count)])


def loaded(spark: SparkSession, broker: KafkaBroker, topic: str, source: str) -> DataFrame:
    return read(spark, source, broker.bootstrap_servers, {"subscribe": topic})


# -- rows -----------------------------------------------------------------------------------------


def offsets(frame: DataFrame) -> list[Any]:
    return sorted(row[0] for row in frame.select("offset").collect())


def cached(frame: DataFrame) -> list[Any]:
    kept = frame.where("offset >= 18").cache()
    try:
        return [offsets(kept), frame.count(), kept.count(), offsets(kept.where("offset < 20"))]
    finally:
        kept.unpersist(blocking=True)


def all_cached(frame: DataFrame) -> list[Any]:
    frame.where("offset = 3").count()
    frame.cache()
    try:
        return [frame.where("offset >= 20").count(), frame.count(), offsets(frame)]
    finally:
        frame.unpersist(blocking=True)


def viewed(frame: DataFrame) -> list[Any]:
    frame.createOrReplaceTempView("reused")
    queries = (
        "SELECT count(*) FROM reused WHERE offset BETWEEN 4 AND 6",
        "SELECT count(*) FROM reused",
        "SELECT count(*) FROM reused a JOIN reused b USING (offset) WHERE a.offset > 19",
        "SELECT (SELECT count(*) FROM reused WHERE offset < 4), count(*) FROM reused",
        "SELECT count(*) FROM reused WHERE offset < 4 UNION ALL SELECT count(*) FROM reused",
        "SELECT count(*) FROM reused WHERE offset IN (SELECT offset + 20 FROM reused)",
    )
    return [[tuple(row) for row in frame.sparkSession.sql(query).collect()] for query in queries]


# In this order: what one action leaves out, the next one asks for.
ACTIONS: dict[str, Callable[[DataFrame], Any]] = {
    "a filter": lambda f: f.where("offset >= 15").count(),
    "no filter": lambda f: f.count(),
    "another filter": lambda f: offsets(f.where("offset < 5")),
    "of a partition that is not there": lambda f: f.where("partition = 7").count(),
    "of a topic": lambda f: f.where(~F.col("topic").isin("nowhere")).count(),
    "rows": offsets,
    "a union of filters": lambda f: f.where("offset >= 15").union(f.where("offset < 5")).count(),
    "a union with all": lambda f: offsets(f.where("offset = 21").union(f)),
    "a union with itself": lambda f: offsets(f.union(f)),
    "a join of filters": lambda f: offsets(
        f.where("offset < 9").select("key").distinct().join(f.where("offset >= 16"), "key")
    ),
    "a join with itself": lambda f: f.alias("a").join(f.alias("b"), "offset").count(),
    "those that are not in the other": lambda f: offsets(
        f.join(f.where("offset >= 3").select("offset"), "offset", "left_anti")
    ),
    "a limit": lambda f: f.limit(3).count(),
    "a limit of a filter": lambda f: f.where("offset >= 15").limit(100).count(),
    "a limit, then a filter": lambda f: f.limit(100).where("offset < 20").count(),
    "the first": lambda f: offsets(f.orderBy("offset").limit(2)),
    "take": lambda f: len(f.where("offset > 10").take(100)),
    "no filter any more": lambda f: f.count(),
    "a filter that is cached": cached,
    "all is cached": all_cached,
    "a view": viewed,
    "at last": offsets,
}


@dataclass(frozen=True)
class Wanted:
    """A topic, and what the actions find there with Spark's own source."""

    topic: str
    found: dict[str, Any]


@pytest.fixture(scope="module")
def wanted(spark: SparkSession, broker: KafkaBroker) -> Wanted:
    topic = broker.create_topic()
    fill(broker, topic, COUNT)
    frame = loaded(spark, broker, topic, "kafka")
    return Wanted(topic, {name: action(frame) for name, action in ACTIONS.items()})


def test_every_action_on_a_frame_has_its_own_rows(
    spark: SparkSession, broker: KafkaBroker, wanted: Wanted, pushed: bool
) -> None:
    frame = loaded(spark, broker, wanted.topic, "kshare")
    assert {name: action(frame) for name, action in ACTIONS.items()} == wanted.found
    assert wanted.found["at last"] == list(range(COUNT))


def test_the_setting_may_change_between_actions(
    spark: SparkSession, broker: KafkaBroker, topic: str
) -> None:
    fill(broker, topic, COUNT)
    frame = loaded(spark, broker, topic, "kshare")
    counts = []
    try:
        for enabled in ("true", "false", "true"):
            spark.conf.set("spark.sql.python.filterPushdown.enabled", enabled)
            counts += [frame.where("offset >= 15").count(), frame.count()]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert counts == [7, COUNT] * 3


# -- the latest -----------------------------------------------------------------------------------


def test_a_frame_ends_where_the_topic_did_at_its_first_action(
    spark: SparkSession, broker: KafkaBroker, topic: str
) -> None:
    """A new ``load()`` finds what came since."""
    fill(broker, topic, 5)
    kafka, kshare = (loaded(spark, broker, topic, source) for source in FORMATS)
    assert (kafka.count(), kshare.count()) == (5, 5)
    fill(broker, topic, 5)
    assert (kafka.count(), loaded(spark, broker, topic, "kshare").count()) == (10, 10)
    assert kshare.count() == (5 if KEEPS_PLAN else 10), MENDED


def joined(
    spark: SparkSession,
    broker: KafkaBroker,
    folder: Path,
    source: str = "kshare",
    *,
    each_batch: bool = False,
) -> list[tuple[int, bytes]]:
    """A stream joined with a topic that grows between two batches: its offsets, their values.

    Args:
        each_batch: each batch is joined with a new ``load()``; False: the stream is, with one.
    """
    static, live = broker.create_topic(), broker.create_topic()
    broker.produce(static, [Record(b"k", b"old")])
    reader = spark.readStream.format(source).option("subscribe", live)
    reader = reader.option("kafka.bootstrap.servers", broker.bootstrap_servers)
    stream = reader.option("startingOffsets", "earliest").load().selectExpr("key", "offset AS at")
    if not each_batch:
        stream = stream.join(loaded(spark, broker, static, source), "key")
    rows: list[tuple[int, bytes]] = []

    def keep(batch: DataFrame, _: int) -> None:
        if each_batch:
            batch = batch.join(loaded(spark, broker, static, source), "key")
        rows.extend((row["at"], bytes(row["value"])) for row in batch.collect())

    writer = stream.writeStream.foreachBatch(keep)
    query = writer.option("checkpointLocation", str(folder / static)).start()
    try:
        broker.produce(live, [Record(b"k", b"")])
        query.processAllAvailable()
        broker.produce(static, [Record(b"k", b"new")])
        broker.produce(live, [Record(b"k", b"")])
        query.processAllAvailable()
    finally:
        query.stop()
    return sorted(rows)


OLD = [(0, b"old"), (1, b"old")]
FRESH = [(0, b"old"), (1, b"new"), (1, b"old")]


def test_the_static_side_of_a_join_ends_where_its_topic_did(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path
) -> None:
    assert joined(spark, broker, tmp_path, "kafka") == FRESH
    assert joined(spark, broker, tmp_path) == (OLD if KEEPS_PLAN else FRESH), MENDED


def test_a_load_in_each_batch_is_fresh(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path
) -> None:
    assert joined(spark, broker, tmp_path, each_batch=True) == FRESH


# -- where filters are pushed, Spark plans again ------------------------------------------------


@pytest.fixture
def handed_over(spark: SparkSession) -> Iterator[None]:
    """Spark hands filters to Python sources."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.usefixtures("handed_over")
def test_a_frame_with_a_filter_is_planned_anew(
    spark: SparkSession, broker: KafkaBroker, topic: str
) -> None:
    fill(broker, topic, 5)
    frame = loaded(spark, broker, topic, "kshare").where("offset >= 0")
    assert frame.count() == 5
    fill(broker, topic, 5)
    assert frame.count() == 10


@pytest.mark.usefixtures("handed_over")
@pytest.mark.parametrize(("source", "again"), [("kafka", 10), ("kshare", 5)])
def test_rows_that_are_collected_again_are_those_of_before(
    spark: SparkSession, broker: KafkaBroker, topic: str, source: str, again: int
) -> None:
    """Spark keeps the plan by which a DataFrame is collected; its own source's plan has no end."""
    fill(broker, topic, 5)
    frame = loaded(spark, broker, topic, source).where("offset >= 0")
    collected = [len(frame.collect())]
    fill(broker, topic, 5)
    collected += [len(frame.collect()), frame.toArrow().num_rows, frame.rdd.count()]
    assert collected == [5, again, again, again]
    assert len(frame.select("*").collect()) == frame.count() == 10


@pytest.mark.usefixtures("handed_over")
def test_the_static_side_of_an_inner_join_is_planned_anew(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path
) -> None:
    """Spark adds the filter that the key is not null."""
    assert joined(spark, broker, tmp_path) == FRESH


@pytest.mark.usefixtures("handed_over")
def test_all_parts_of_one_action_end_at_the_same_offset(
    spark: SparkSession, broker: KafkaBroker, topic: str
) -> None:
    fill(broker, topic, 5)
    frame = loaded(spark, broker, topic, "kshare")
    twice = frame.where("offset >= 0").union(frame.where("offset > -1")).union(frame)
    ended = threading.Event()
    produced = threading.Semaphore(0)

    def produce() -> None:
        while not ended.is_set():
            fill(broker, topic, 1)
            produced.release()

    def count() -> list[int]:
        rows = twice.groupBy("offset").count().select("count").collect()
        while produced.acquire(blocking=False):
            pass
        for _ in range(2):  # the first may have been under way, the second comes after the action
            assert produced.acquire(timeout=60)
        return [row[0] for row in rows]

    with ThreadPoolExecutor(1) as pool:
        producing = pool.submit(produce)
        try:
            counts = [count() for _ in range(3)]
        finally:
            ended.set()
        producing.result()
    assert [set(found) for found in counts] == [{3}] * 3
    assert len(counts[0]) < len(counts[1]) < len(counts[2])
