"""``available_now`` beside ``format("kafka")`` with Spark's trigger, on each version of Spark.

A scenario runs once for each format, on topics of its own, start after start. What the sink gets,
what each start ends with, and what is in the logs of offsets and of commits have to be the same.
"""

import json
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from integration.differential import FORMATS, T0, error_of, run_available_now
from integration.kafka import KafkaBroker
from integration.spark import QUERY_S
from kshare.core.checkpoint import EXTRA_KEY
from kshare.errors import KshareError
from kshare.testing import Record
from spark_plugin import available_now
from spark_plugin.spark_api import TELLS_START
from tests.support.groups import eventually

FAILS = "the sink fails"
# Spark 4.1's own source (connector 4.1.1) ends a start that finishes an earlier batch so, once that
# batch is committed: a NullPointerException in KafkaMicroBatchStream.metrics. The next one goes on.
FAULT_OF_4_1 = 'the return value of "scala.Option.get()" is null'


class Job:
    """One job of a user's: a scenario's topics, its options, and each start's outcome.

    Attributes:
        calls: What ``foreachBatch`` got: the number of the batch, and its rows, sorted.
        ends: What each start ended with: None, or the first line of its error.
    """

    def __init__(
        self, spark: SparkSession, broker: KafkaBroker, folder: Path, source: str, topics: int = 1
    ) -> None:
        self.spark, self.broker, self.source, self.folder = spark, broker, source, folder / source
        self.topics = [broker.create_topic(partitions=2) for _ in range(topics)]
        self.calls: list[tuple[int, list[tuple[Any, ...]]]] = []
        self.ends: list[str | None] = []
        self.on_batch: Callable[[int], object] = lambda number: None

    def produce(self, count: int, seconds: int = 0, topic: int = 0) -> None:
        """Produce records to both partitions of a topic, a second apart."""
        records = [
            Record(b"k", b"%d" % i, timestamp=T0 + 1000 * (seconds + i)) for i in range(count)
        ]
        for partition in (0, 1):
            self.broker.produce(self.topics[topic], records, partition=partition)

    def load(self, **options: str) -> DataFrame:
        """All topics of the job, each with a source of its own."""
        frames = [
            self.spark.readStream.format(self.source)
            .option("kafka.bootstrap.servers", self.broker.bootstrap_servers)
            .options(**{"startingOffsets": "earliest", **options}, subscribe=topic)
            .load()
            for topic in self.topics
        ]
        return reduce(DataFrame.union, frames).select(
            "partition", "offset", "timestamp", f.col("value").cast("string")
        )

    def writer(self, frame: DataFrame) -> DataStreamWriter:
        return frame.writeStream.option("checkpointLocation", str(self.folder / "checkpoint"))

    def run(self, frame: DataFrame, mode: str = "append") -> None:
        """A start of the job, whose sink is ``foreachBatch``."""
        writer = self.writer(frame).outputMode(mode).foreachBatch(self._keep)
        try:
            query = run_available_now(writer, self.source)
        except StreamingQueryException as error:
            if FAULT_OF_4_1 in str(error) and self.source == "kafka":
                self.run(frame, mode)
            else:
                self.ends.append(FAILS if FAILS in str(error) else str(error))
        else:
            assert not query.isActive
            self.ends.append(None)

    def _keep(self, rows: DataFrame, number: int) -> None:
        self.calls.append((number, sorted(map(tuple, rows.collect()))))
        self.on_batch(number)

    def logs(self) -> dict[str, Any]:
        """The offsets of each batch by the order of topics, and the batches that are committed."""
        found: dict[str, Any] = {}
        for log in ("offsets", "commits"):
            files = (self.folder / "checkpoint" / log).iterdir()
            numbers = sorted(int(each.name) for each in files if each.name.isdecimal())
            found[log] = {n: self._offsets(n) if log == "offsets" else None for n in numbers}
        return found

    def _offsets(self, number: int) -> list[Any]:
        lines = (self.folder / "checkpoint" / "offsets" / str(number)).read_text().splitlines()[2:]
        sources = [json.loads(line) for line in lines]
        for offsets in sources:
            offsets.pop(EXTRA_KEY, None)
        return [
            offsets.get(topic, "") for offsets, topic in zip(sources, self.topics, strict=False)
        ]


Scenario = Callable[[Job], None]


def limited_batches(job: Job) -> None:
    """Restarted with nothing new, and with more."""
    job.produce(15)
    for _ in range(2):
        job.run(job.load(maxOffsetsPerTrigger="7"))
    job.produce(4)
    job.run(job.load(maxOffsetsPerTrigger="7"))


def an_unfinished_batch(job: Job) -> None:
    """The next start finishes it, and reads on."""
    job.produce(15)
    job.on_batch = fail_at(1)
    job.run(job.load(maxOffsetsPerTrigger="8"))
    job.produce(3)
    job.on_batch = lambda number: None
    job.run(job.load(maxOffsetsPerTrigger="8"))


def an_unfinished_first_batch(job: Job) -> None:
    job.produce(5)
    job.on_batch = fail_at(0)
    job.run(job.load())
    job.run(job.load())
    job.on_batch = lambda number: None
    job.produce(3)
    job.run(job.load())


def rows_behind_a_watermark(job: Job) -> None:
    """The last batch, which has no records, lets them out."""
    for start in (0, 60):
        job.produce(12, seconds=start)
        marked = job.load(maxOffsetsPerTrigger="10").withWatermark("timestamp", "1 second")
        counted = marked.groupBy(f.window("timestamp", "5 seconds")).count()
        job.run(counted.select(f.col("window.start").cast("long"), "count"))


def a_producer_that_goes_on(job: Job) -> None:
    """Each start ends with what was there when it began."""
    job.produce(10)
    job.on_batch = lambda number: job.produce(6) if number < 4 else None
    for _ in range(3):
        job.run(job.load(maxOffsetsPerTrigger="9"))


def partitions_that_come_meanwhile(job: Job) -> None:
    """They are read by the next start."""
    new = Record(b"k", b"new", timestamp=T0)
    job.produce(6)

    def grow(number: int) -> None:
        if number == 0:
            job.broker.add_partitions(job.topics[0], 3)
            job.broker.produce(job.topics[0], [new] * 4, partition=2)

    job.on_batch = grow
    for _ in range(2):
        job.run(job.load(maxOffsetsPerTrigger="5"))


def two_topics_and_files(job: Job) -> None:
    """Two sources, and one of Spark's."""
    files = job.folder / "files"
    files.mkdir(parents=True)
    for start in range(2):
        (files / f"{start}.txt").write_text("of a file\n")
        job.produce(9)
        job.produce(4, topic=1)
        lines = job.spark.readStream.text(str(files)).select(
            f.lit(-1).alias("partition"),
            f.lit(-1).cast("long").alias("offset"),
            f.lit(None).cast("timestamp").alias("timestamp"),
            "value",
        )
        job.run(job.load(maxOffsetsPerTrigger="8").union(lines))


def from_the_latest_offsets(job: Job) -> None:
    job.produce(5)
    for _ in range(2):
        job.run(job.load(startingOffsets="latest"))
        job.produce(3)


def less_than_the_minimum(job: Job) -> None:
    """It stays for later."""
    for _ in range(3):
        job.produce(6)
        job.run(
            job.load(minOffsetsPerTrigger="10", maxOffsetsPerTrigger="16", maxTriggerDelay="9h")
        )


def counts_of_all(job: Job) -> None:
    """Complete mode: all rows at each batch."""
    for _ in range(2):
        job.produce(8)
        job.run(job.load(maxOffsetsPerTrigger="10").groupBy("partition").count(), "complete")


def fail_at(failing: int) -> Callable[[int], object]:
    def fail(number: int) -> None:
        if number == failing:
            raise RuntimeError(FAILS)

    return fail


SCENARIOS: Sequence[Scenario] = (
    limited_batches,
    an_unfinished_batch,
    an_unfinished_first_batch,
    rows_behind_a_watermark,
    a_producer_that_goes_on,
    partitions_that_come_meanwhile,
    two_topics_and_files,
    from_the_latest_offsets,
    less_than_the_minimum,
    counts_of_all,
)


SHORT = (an_unfinished_batch, rows_behind_a_watermark, a_producer_that_goes_on)


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(each, id=each.__name__, marks=() if each in SHORT else pytest.mark.long)
        for each in SCENARIOS
    ],
)
def test_it_is_as_with_sparks_source(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path, scenario: Scenario
) -> None:
    topics = 2 if scenario is two_topics_and_files else 1
    jobs = {each: Job(spark, broker, tmp_path, each, topics) for each in FORMATS}
    for job in jobs.values():
        scenario(job)
    kafka, kshare = jobs["kafka"], jobs["kshare"]
    assert kshare.calls == kafka.calls
    assert kshare.ends == kafka.ends
    assert kshare.logs() == kafka.logs()
    assert len(kafka.calls) > 1


@pytest.mark.long
def test_tables(spark: SparkSession, broker: KafkaBroker, tmp_path: Path) -> None:
    rows = {}
    for source in FORMATS:
        job = Job(spark, broker, tmp_path, source)
        job.produce(9)
        table = f"of_{source}"
        writer = job.writer(job.load(maxOffsetsPerTrigger="7")).format("parquet")
        query = run_available_now(writer.option("path", str(job.folder / "table")), source, table)
        batches = [each.batchId for each in query.recentProgress if each.numInputRows]
        rows[source] = sorted(map(tuple, spark.table(table).collect())), batches
        spark.sql(f"DROP TABLE {table}")
    assert rows["kshare"] == rows["kafka"]
    assert len(rows["kafka"][0]) == 18


@pytest.mark.long
def test_another_query_of_the_same_frame_goes_on(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path
) -> None:
    """One that starts meanwhile stops at its ends until ``available_now`` is done."""
    job = Job(spark, broker, tmp_path, "kshare")
    job.produce(4)
    frame, others = job.load(), []

    def start(number: int) -> None:
        if number == 0:
            writer = frame.writeStream.format("memory").queryName("other")
            others.append(writer.trigger(processingTime="0 seconds").start())
            eventually(lambda: spark.table("other").count() == 8, QUERY_S)
            job.produce(4)

    job.on_batch = start
    job.run(frame)
    try:
        eventually(lambda: spark.table("other").count() == 16, QUERY_S)
    finally:
        others[0].stop()
    assert [len(rows) for _, rows in job.calls] == [8]


@pytest.mark.long
def test_a_source_that_never_ends_is_refused_before_spark_4_2(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path
) -> None:
    if TELLS_START:  # there, Spark decides
        return
    job = Job(spark, broker, tmp_path, "kshare")
    rate = spark.readStream.format("rate").load().selectExpr("1 x", "value", "timestamp", "'' v")
    error = error_of(lambda: available_now(job.writer(job.load().union(rate)).format("noop")))
    assert error.startswith(f"{KshareError.__name__}: available_now: the query also reads rate")
