"""The batches of a query with both formats, event by event: which there are, and the rows of each.

Spark runs a batch whenever a source's offsets differ from those of the batch before, and calls
``foreachBatch`` for it: in complete mode with all rows again.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

from integration.differential import AVAILABLE_NOW, FORMATS, T0, run_available_now
from integration.kafka import KafkaBroker
from integration.spark import QUERY_S
from kshare.core.checkpoint import EXTRA_KEY
from kshare.testing import Record
from tests.docs.test_examples import examples

DEFAULT: Mapping[str, Any] = {}
INTERVAL: Mapping[str, Any] = {"processingTime": "50 milliseconds"}
ONCE: Mapping[str, Any] = {"once": True}
JOBS = (AVAILABLE_NOW, ONCE)


def rows(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("topic", "offset", "cast(value as string) value")


def counts(frame: DataFrame) -> DataFrame:
    return frame.groupBy("topic", f.col("key").cast("string").alias("key")).count()


def windows(frame: DataFrame) -> DataFrame:
    """Rows come when the watermark passes; so Spark runs batches without new records, too."""
    marked = frame.withWatermark("timestamp", "1 second")
    counted = marked.groupBy(f.window("timestamp", "5 seconds")).count()
    return counted.select(f.col("window.start").cast("long").alias("start"), "count")


class Program(NamedTuple):
    """What a user writes: all but the format, the topics and where the checkpoint is."""

    shape: Callable[[DataFrame], DataFrame]
    mode: str
    sink: str
    trigger: Mapping[str, Any]
    options: Mapping[str, Any] = {}


class Query:
    """A query, start after start, and what its sink and its listeners get.

    Attributes:
        seen: For each start a list: of each batch that ran its number, the rows that the sources
            say they have read, and those of the sink (sorted, in ``foreachBatch``; else how many).
    """

    def __init__(
        self,
        spark: SparkSession,
        source: str,
        folder: Path,
        program: Program,
        options: Sequence[Mapping[str, Any]],
    ) -> None:
        self._spark, self._source, self._options = spark, source, options
        self._program = program
        self._checkpoint = folder / f"{source}-checkpoint"
        self._calls: dict[int, list[tuple[Any, ...]]] = {}
        self._running: StreamingQuery | None = None
        self.seen: list[list[tuple[Any, ...]]] = []

    def start(self) -> None:
        shape, mode, sink, trigger, given = self._program
        frames = [
            self._spark.readStream.format(self._source).options(**given, **each).load()
            for each in self._options
        ]
        writer = shape(reduce(DataFrame.union, frames)).writeStream.outputMode(mode)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        if sink == "foreachBatch":
            writer = writer.foreachBatch(self._call)
        else:
            writer = writer.format(sink).option("numRows", 1)
        if trigger == AVAILABLE_NOW:
            self._running = run_available_now(writer, self._source)
        else:
            self._running = (writer.trigger(**trigger) if trigger else writer).start()

    def _call(self, batch: DataFrame, number: int) -> None:
        assert number not in self._calls
        self._calls[number] = sorted(map(tuple, batch.collect()))

    def settle(self) -> None:
        """Read all there is."""
        assert self._running is not None
        if self._program.trigger in JOBS:
            assert self._running.awaitTermination(QUERY_S), self._running.lastProgress
        else:
            self._running.processAllAvailable()

    def wait_for(self, topic: str) -> None:
        """Wait until the offsets have a topic."""
        assert self._running is not None
        deadline = time.monotonic() + QUERY_S
        while not ((last := self._running.lastProgress) and topic in last.sources[0].endOffset):
            assert time.monotonic() < deadline, last
            time.sleep(0.05)

    def stop(self) -> None:
        """End this start. What the listeners were told goes with what the sink got."""
        running, self._running = self._running, None
        if running is None:
            return
        running.stop()
        ran = [each for each in running.recentProgress if "addBatch" in each.durationMs]
        calls = [
            (one.batchId, one.numInputRows, self._calls.pop(one.batchId, one.sink.numOutputRows))
            for one in ran
        ]
        assert not self._calls
        self.seen.append(calls)

    def newest(self) -> dict[str, Any]:
        """The newest offsets in the checkpoint, of the first source."""
        files = [file for file in (self._checkpoint / "offsets").iterdir() if file.name.isdecimal()]
        newest = max(files, key=lambda file: int(file.name))
        offsets: dict[str, Any] = json.loads(newest.read_text().splitlines()[2])
        return offsets


def run(queries: Sequence[Query], *steps: Callable[[], object]) -> None:
    """Run queries beside each other; let things happen, and read what there is after each."""
    try:
        for query in queries:
            query.start()
        for step in (lambda: None, *steps):
            step()
            for query in queries:
                query.settle()
    finally:
        for query in queries:
            query.stop()


def fill(broker: KafkaBroker, topic: str, count: int, seconds: int) -> None:
    """Produce records of some keys, a second apart."""
    broker.produce(
        topic,
        [
            Record(b"key-%d" % (i % 5), b"%d" % i, timestamp=T0 + 1000 * (seconds + i))
            for i in range(count)
        ],
    )


CASES: Mapping[str, Program] = {
    "append, a stream": Program(rows, "append", "foreachBatch", DEFAULT),
    "complete, a stream": Program(counts, "complete", "foreachBatch", INTERVAL),
    "append with a watermark, jobs": Program(windows, "append", "foreachBatch", AVAILABLE_NOW),
    "update, jobs of one batch": Program(counts, "update", "console", ONCE),
    "append with a watermark, a stream": Program(windows, "append", "foreachBatch", DEFAULT),
    "update, a stream": Program(counts, "update", "foreachBatch", INTERVAL),
    "append, jobs": Program(rows, "append", "console", AVAILABLE_NOW, {"minPartitions": "6"}),
    "complete, jobs": Program(counts, "complete", "foreachBatch", AVAILABLE_NOW),
    "complete, jobs of one batch": Program(counts, "complete", "foreachBatch", ONCE),
    "complete on the console": Program(counts, "complete", "console", DEFAULT),
    "a limit": Program(rows, "append", "foreachBatch", DEFAULT, {"maxOffsetsPerTrigger": "5"}),
    "a minimum": Program(rows, "append", "foreachBatch", INTERVAL, {"minOffsetsPerTrigger": "1"}),
}
SHORT = tuple(CASES)[:4]


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in SHORT else pytest.mark.long) for case in CASES]
)
def test_batches_and_calls_are_those_of_sparks_source(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path, case: str
) -> None:
    """First run, records, a topic that comes up, restarts; beside a source with nothing new."""
    first, beside = broker.create_topic(), broker.create_topic()
    # Spark 4.0's own source fails where an empty topic comes up while it waits for a minimum.
    grows = "minOffsetsPerTrigger" not in CASES[case].options
    second = f"{first}-second" if grows else first
    fill(broker, first, 12, 0)
    fill(broker, beside, 3, 1)
    common = {"kafka.bootstrap.servers": broker.bootstrap_servers, "startingOffsets": "earliest"}
    options = [{**common, "subscribePattern": f"{first}.*"}, {**common, "subscribe": beside}]
    queries = [Query(spark, source, tmp_path, CASES[case], options) for source in FORMATS]
    is_job = CASES[case].trigger in JOBS

    def topic_comes_up() -> None:
        broker.create_topic(second)
        for query in () if is_job else queries:
            query.wait_for(second)

    steps: list[Callable[[], object]] = [
        lambda: None,
        lambda: fill(broker, first, 1, 20),  # one: each query sees all or nothing
        topic_comes_up if grows else lambda: None,
        lambda: fill(broker, second, 1, 40),
    ]
    if is_job:
        run(queries)
        for step in steps:
            step()
            run(queries)
    else:
        run(queries, *steps)
        run(queries)  # nothing is new
    fill(broker, first, 4, 60)
    run(queries)
    kafka, kshare = queries
    assert kshare.seen == kafka.seen
    assert sum(read for start in kshare.seen for _, read, _ in start) == 12 + 3 + 1 + 1 + 4
    assert kshare.newest() == kafka.newest()  # and so that goes on from here


ALONE: Mapping[str, tuple[Mapping[str, str], list[list[int]]]] = {
    "keyRanges": ({"keyRanges": "3"}, [[40], [], [10]]),
    "parkedKeys": ({"parkedKeys": '["key-1"]'}, [[32], [], [8]]),
    "limits that nothing reaches": (
        {"keyRanges": "3", "maxRecordsPerTask": "50"},
        [[40], [], [10]],
    ),
    # Where tasks ended is written down at once: the log may not hold their records for long.
    "limits": ({"keyRanges": "1", "maxRecordsPerTask": "15"}, [[15, 15, 10], [], [10]]),
    "limits that are reached last": (
        {"keyRanges": "1", "maxRecordsPerTask": "20"},
        [[20, 20], [], [10]],
    ),
    "a limit of a range": ({"keyRanges": "2", "maxRecordsPerTask": "30"}, [[40, 0], [], [10]]),
}


@pytest.mark.parametrize("case", ALONE)
def test_batches_of_queries_that_sparks_source_does_not_have(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path, case: str
) -> None:
    given, wanted = ALONE[case]
    topic = broker.create_topic()
    fill(broker, topic, 40, 0)
    program = Program(rows, "append", "foreachBatch", AVAILABLE_NOW, given)
    options = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "startingOffsets": "earliest",
        "subscribe": topic,
    }
    query = Query(spark, "kshare", tmp_path, program, [options])
    run([query])
    run([query])
    fill(broker, topic, 10, 40)
    run([query])
    assert [[len(called) for _, _, called in start] for start in query.seen] == wanted
    assert [number for start in query.seen for number, _, _ in start] == list(
        range(sum(map(len, wanted)))
    )


class Told(StreamingQueryListener):
    """Keeps the events of a query's progress."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        self.events.append(event)

    def onQueryTerminated(self, event: Any) -> None:
        self.events.append(None)


def test_progress_events_have_the_start_until_the_next_records(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path
) -> None:
    """And a listener as docs/migrating.md has it adds up the same offsets with both formats."""
    (text,) = (
        each.text for each in examples("docs/migrating.md") if "def end_offsets" in each.text
    )
    names: dict[str, Any] = {}
    exec(compile(text, "docs/migrating.md", "exec"), names)
    topic = broker.create_topic()
    fill(broker, topic, 6, 0)
    told = Told()
    spark.streams.addListener(told)
    try:
        for source in FORMATS:
            frame = (
                spark.readStream.format(source)
                .option("kafka.bootstrap.servers", broker.bootstrap_servers)
                .option("startingOffsets", "earliest")
                .option("subscribePattern", f"{topic}.*")
                .load()
            )
            writer = frame.writeStream.format("noop").queryName(f"{source} {topic}")
            query = writer.option("checkpointLocation", str(tmp_path / source)).start()
            try:
                query.processAllAvailable()
                if source == "kshare":
                    fill(broker, topic, 1, 10)
                    query.processAllAvailable()
                    broker.create_topic(f"{topic}-second")
                    fill(broker, f"{topic}-second", 1, 20)
                    query.processAllAvailable()
            finally:
                query.stop()
        deadline = time.monotonic() + QUERY_S
        while told.events.count(None) < len(FORMATS):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        spark.streams.removeListener(told)
    events = [each for each in told.events if each and "addBatch" in each.progress.durationMs]
    ends = {
        source: [end for each in events if (end := names["end_offsets"](each, f"{source} {topic}"))]
        for source in FORMATS
    }
    assert ends["kafka"] == [{topic: {"0": 6}}]
    assert ends["kshare"][:2] == [{topic: {"0": 6}}, {topic: {"0": 7}}]
    assert ends["kshare"][-1] == {topic: {"0": 7}, f"{topic}-second": {"0": 1}}
    shown = [
        EXTRA_KEY in each.progress.sources[0].endOffset
        for each in events
        if each.progress.name == f"kshare {topic}"
    ]
    assert shown == [True] + [False] * (len(shown) - 1)
