"""One batch DataFrame, many actions: each has its own rows.

Spark has a Python source plan once for a ``load()`` and keeps the plan for all that is made of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from integration.differential import read
from integration.kafka import KafkaBroker
from kshare.testing import Record

COUNT = 22


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
    found = []
    try:
        for enabled in ("true", "false", "true"):
            spark.conf.set("spark.sql.python.filterPushdown.enabled", enabled)
            found += [frame.where("offset >= 15").count(), frame.count()]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert found == [7, COUNT] * 3
