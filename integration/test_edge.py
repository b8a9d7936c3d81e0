"""Spark's edge as users see it: an error's first screen, tables of SQL, threads that write."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from integration.spark import QUERY_S
from kshare.testing import FakeCluster
from spark_plugin import use_in_thread

FRAMES_MAX = 3
"""Two of PySpark's, which cannot be cut, and that of the edge."""
SENTENCE = "UnknownTopicError: topic nope does not exist"


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"in": 1, "left": 1, "right": 1}) as running:
        yield running


def options(fake: FakeCluster, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": fake.bootstrap_servers, **more}


def stream_of(spark: SparkSession, fake: FakeCluster, topic: str) -> DataFrame:
    given = options(fake, subscribe=topic, startingOffsets="earliest")
    return spark.readStream.format("kshare").options(**given).load()


def assert_first_screen(error: PySparkException) -> None:
    before, found, _ = str(error).partition(SENTENCE)
    assert found
    assert before.count('  File "') <= FRAMES_MAX
    assert before.count("/kshare/edge.py") <= 1
    assert "/kshare/kafka/" not in str(error)


@pytest.mark.parametrize("wait", ["processAllAvailable", "awaitTermination"])
def test_the_first_screen_of_a_stream_shows_the_sentence(
    spark: SparkSession, fake: FakeCluster, wait: str
) -> None:
    query = stream_of(spark, fake, "nope").writeStream.format("noop").start()
    waits: dict[str, Callable[[], Any]] = {
        "processAllAvailable": query.processAllAvailable,
        "awaitTermination": lambda: query.awaitTermination(QUERY_S),
    }
    with pytest.raises(PySparkException) as caught:
        waits[wait]()
    assert_first_screen(caught.value)


def test_exactly_once_without_transactions_is_refused_before_a_task_runs(
    spark: SparkSession, fake: FakeCluster, tmp_path: Path
) -> None:
    fake.produce("in", [(b"k", b"v")])
    fake.limit_api_version("EndTxn", -1, -1)
    tracker = spark.sparkContext.statusTracker()
    writer = stream_of(spark, fake, "in").select("key", "value").writeStream.format("kshare")
    given = options(fake, topic="left", exactlyOnce="true", checkpointLocation=str(tmp_path))
    query = writer.options(**given).start()
    with pytest.raises(PySparkException, match=r"exactlyOnce: leave it out.*does not know EndTxn"):
        query.awaitTermination(QUERY_S)
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(str(query.runId))]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    assert sum(stage.numCompletedTasks + stage.numFailedTasks for stage in stages if stage) == 0


def test_the_first_screen_of_a_batch_shows_the_sentence(
    spark: SparkSession, fake: FakeCluster
) -> None:
    with pytest.raises(PySparkException) as caught:
        spark.read.format("kshare").options(**options(fake, subscribe="nope")).load().collect()
    assert_first_screen(caught.value)


def test_a_table_is_told_of_the_view_that_works(spark: SparkSession, fake: FakeCluster) -> None:
    fake.produce("in", [(b"k", b"v")])
    using = f"""USING kshare OPTIONS (
        'kafka.bootstrap.servers' '{fake.bootstrap_servers}', subscribe 'in')"""
    spark.sql(f"CREATE TEMPORARY VIEW kshare_view {using}")
    assert spark.sql("SELECT value FROM kshare_view").count() == 1
    spark.sql(f"CREATE TABLE kshare_table {using}")
    try:
        with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
            spark.sql("SELECT * FROM kshare_table").collect()
        with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
            spark.sql("INSERT INTO kshare_table SELECT * FROM kshare_view").collect()
    finally:
        spark.sql("DROP TABLE kshare_table")
        spark.catalog.dropTempView("kshare_view")


def test_a_batch_is_written_to_two_targets_by_threads_of_a_pool(
    spark: SparkSession, fake: FakeCluster, tmp_path: Path
) -> None:
    fake.produce("in", [(b"%d" % each, b"v") for each in range(20)])

    def to_both(batch: DataFrame, _: int) -> None:
        def write(topic: str) -> None:
            to = options(fake, topic=topic)
            batch.select("key", "value").write.format("kshare").mode("append").options(**to).save()

        with ThreadPoolExecutor(
            2, initializer=use_in_thread, initargs=(batch.sparkSession,)
        ) as pool:
            list(pool.map(write, ["left", "right"]))

    writer = stream_of(spark, fake, "in").writeStream.foreachBatch(to_both)
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(QUERY_S)
    for topic in ("left", "right"):
        read = spark.read.format("kshare").options(**options(fake, subscribe=topic)).load()
        assert read.count() == 20


def test_a_session_without_a_jvm_needs_nothing() -> None:
    """As one of Spark Connect has no ``_jsparkSession``."""
    use_in_thread(object())  # type: ignore[arg-type]
