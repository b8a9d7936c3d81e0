"""Three hours of events, counted by windows behind a watermark: is a record missing?

``python -m integration.event_time`` prints the table of all layouts and options, for
``format("kafka")`` and for kshare without and with ``maxTimeAhead``.
"""

import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from integration.kafka import KafkaBroker
from integration.spark import start_spark
from integration.topics import Topics
from kshare.testing import Record

BEGIN_MS = 1_700_000_000_000
SPAN_MS = 3 * 3600 * 1000
HOT = b"key-0"
ALIGNED = {"maxTimeAhead": "10m"}


@dataclass(frozen=True)
class Outcome:
    """What a query counted.

    Attributes:
        counted: Number of records in all windows.
        batches: Number of batches.
        dropped: Rows after partial aggregation that Spark dropped as late.
        seconds: How long the query ran.
        watermark: The watermark of its last batch, as a timestamp of ISO 8601.
    """

    counted: int
    batches: int
    dropped: int
    seconds: float
    watermark: str


def keys(count: int, hot_share: float = 0.6) -> Iterator[bytes]:
    """Keys of records: eight, of which one is hot."""
    chance = random.Random(5)
    for _ in range(count):
        number = chance.randrange(1, 8)
        yield HOT if chance.random() < hot_share else b"key-%d" % number


def spread(
    count: int, partition: int, begin_ms: int = BEGIN_MS, span_ms: int = SPAN_MS
) -> Iterator[Record]:
    """Records of a partition, evenly over a time, in its order."""
    for number, key in enumerate(keys(count)):
        at = begin_ms + number * span_ms // count
        yield Record(key, b"v", timestamp=at, partition=partition)


def one_partition(count: int) -> list[list[Record]]:
    """A hot key among eight, in one partition."""
    return [list(spread(count, 0))]


def uneven_partitions(count: int) -> list[list[Record]]:
    """Four partitions, one with ten times the records of each other."""
    shares = (10, 1, 1, 1)
    return [list(spread(count * share // 13, n)) for n, share in enumerate(shares)]


def other_hours(count: int) -> list[list[Record]]:
    """Two partitions with the same number of records, of other hours."""
    half = SPAN_MS // 2
    return [list(spread(count // 2, n, BEGIN_MS + n * half, half)) for n in range(2)]


def fill(broker: Topics, partitions: list[list[Record]]) -> str:
    """Make a topic of some partitions' records, and return its name."""
    topic = broker.create_topic(partitions=len(partitions))
    for number, records in enumerate(partitions):
        broker.produce(topic, records, partition=number)
    return topic


def count_windows(
    spark: SparkSession,
    broker: Topics,
    topic: str,
    folder: Path,
    *,
    source: str = "kshare",
    slow: float = 0.0,
    windows: dict[Any, int] | None = None,
    options: Mapping[str, str],
) -> Outcome:
    """Read a topic with AvailableNow, and count its records by windows of five minutes.

    Args:
        spark: The session.
        broker: Where the topic is.
        topic: The topic.
        folder: The checkpoint's.
        source: ``kshare`` or ``kafka``.
        slow: Seconds that a record of the hot key takes.
        windows: What a run before has counted, on the same checkpoint; it is changed.
        options: Options of the source.
    """
    given = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        **options,
    }
    counts: dict[Any, int] = {} if windows is None else windows

    def keep(frame: Any, _: int) -> None:
        counts.update({row["window"]: row["count"] for row in frame.collect()})

    frame = spark.readStream.format(source).options(**given).load()
    if slow:
        frame = frame.where(_slowly(slow)("key"))
    counted = windows_of(frame.withWatermark("timestamp", "10 minutes"))
    writer = counted.writeStream.outputMode("update").foreachBatch(keep)
    began = time.monotonic()
    query = (
        writer.option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    error = query.exception()
    assert error is None, error
    progress: Sequence[Mapping[str, Any]] = query.recentProgress
    dropped = sum(
        int(state["numRowsDroppedByWatermark"])
        for each in progress
        for state in each["stateOperators"]
    )
    batches = sum(1 for each in progress if each["numInputRows"])
    watermark = progress[-1]["eventTime"]["watermark"]
    return Outcome(sum(counts.values()), batches, dropped, time.monotonic() - began, watermark)


def windows_of(frame: DataFrame) -> DataFrame:
    """The number of records of each window of five minutes."""
    return frame.groupBy(F.window("timestamp", "5 minutes")).count()


def _slowly(seconds: float) -> Any:
    """A filter that keeps all, and takes a while for each record of the hot key."""

    # Not annotated: with annotations Spark asks for pandas.
    def work(key):  # type: ignore[no-untyped-def]
        if bytes(key) == HOT:
            time.sleep(seconds)
        return True

    return F.udf(work, "boolean")


class _Row(NamedTuple):
    """A row of the table.

    Attributes:
        name: What it shows.
        partitions: The records of each partition.
        slow: Seconds that a record of the hot key takes.
        given: Options of kshare.
        beside: Options of ``format("kafka")``.
    """

    name: str
    partitions: list[list[Record]]
    slow: float
    given: dict[str, str]
    beside: dict[str, str]


def _rows(count: int) -> Iterator[_Row]:
    limit = {"maxOffsetsPerTrigger": str(count // 10)}
    each_task = {"maxRecordsPerTask": str(count // 18)}
    ranges = {"keyRanges": "4"}
    adaptive = {**ranges, "targetTaskDuration": "2s", "rangeAssignor": "adaptive"}
    one, uneven = one_partition(count), uneven_partitions(count)
    yield _Row("one partition, maxOffsetsPerTrigger", one, 0.0, limit, limit)
    yield _Row("keyRanges=4", one, 0.0, ranges, {})
    yield _Row("keyRanges=4, maxRecordsPerTask", one, 0.0, ranges | each_task, {})
    slow_key = "keyRanges=4, targetTaskDuration=2s, adaptive, a slow key"
    yield _Row(slow_key, one, 0.001, adaptive, {})
    yield _Row("4 partitions, one with 10x: maxRecordsPerTask", uneven, 0.0, each_task, limit)
    timed = {"targetTaskDuration": "1s"}
    yield _Row("4 partitions, one with 10x: targetTaskDuration=1s", uneven, 0.0005, timed, limit)
    other = other_hours(count)
    yield _Row("2 partitions, other hours: maxOffsetsPerTrigger", other, 0.0, limit, limit)


def _table(count: int) -> None:
    print("| | source | missing | batches | rows dropped | seconds |\n|---|---|---|---|---|---|")
    with KafkaBroker() as broker:
        broker.is_calm = True
        spark = start_spark()
        for name, partitions, slow, given, beside in _rows(count):
            topic = fill(broker, partitions)
            records = sum(map(len, partitions))
            cases = [
                ("kafka", "kafka", beside),
                ("kshare", "kshare", given),
                ("kshare, aligned", "kshare", given | ALIGNED),
            ]
            for label, source, options in cases:
                with tempfile.TemporaryDirectory() as folder:
                    try:
                        found = count_windows(
                            spark,
                            broker,
                            topic,
                            Path(folder),
                            source=source,
                            slow=slow,
                            options=options,
                        )
                    except AssertionError as error:
                        print(f"| {name} | {label} | {str(error)[:200]}", flush=True)
                        continue
                missing = records - found.counted
                print(
                    f"| {name} | {label} | {missing} of {records} | {found.batches} "
                    f"| {found.dropped} | {found.seconds:.1f} |",
                    flush=True,
                )
        spark.stop()


if __name__ == "__main__":
    _table(36_000)
