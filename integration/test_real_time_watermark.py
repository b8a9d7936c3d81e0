"""``realTime`` with ``maxTimeAhead`` behind a watermark of Spark's: no row is dropped as late.

A backlog of an hour, then records of now, of one partition in four key ranges; one key is slower
than its records come, so its range falls behind while the others are up to date.
"""

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from integration.event_time import HOT
from integration.kafka import KafkaBroker
from integration.members import eventually
from kshare.testing import Record

BACKLOG = 300
LIVE_SECONDS = 25.0
PER_SECOND = 150
SLOW_SECONDS = 0.012


def records(count: int, begin_ms: int, span_ms: int) -> Iterator[Record]:
    """Records of seven keys, of which one has three of five."""
    chance = random.Random(begin_ms)
    for number in range(count):
        key = HOT if chance.random() < 0.6 else b"key-%d" % chance.randrange(1, 7)
        yield Record(key, b"v", timestamp=begin_ms + number * span_ms // count)


class Producer(threading.Thread):
    """Writes records of now, a tenth of a second's at a time.

    Attributes:
        written: How many records it has written.
    """

    def __init__(self, broker: KafkaBroker, topic: str) -> None:
        super().__init__(daemon=True)
        self._broker, self._topic = broker, topic
        self.written = 0

    def run(self) -> None:
        until = time.monotonic() + LIVE_SECONDS
        while time.monotonic() < until:
            now = time.time_ns() // 1_000_000
            self._broker.produce(self._topic, records(PER_SECOND // 10, now - 100, 100))
            self.written += PER_SECOND // 10
            time.sleep(0.1)


def started(
    spark: SparkSession, broker: KafkaBroker, topic: str, folder: Path, counts: dict[Any, int]
) -> StreamingQuery:
    """A query that counts records by windows of two seconds, behind a watermark of ten."""

    # Not annotated: with annotations Spark asks for pandas.
    def work(key):  # type: ignore[no-untyped-def]
        if bytes(key) == HOT:
            time.sleep(SLOW_SECONDS)
        return True

    def keep(frame: Any, _: int) -> None:
        counts.update({row["window"]: row["count"] for row in frame.collect()})

    options = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "keyRanges": "4",
        "maxTasks": "4",
        "realTime": "5s",
        "maxTimeAhead": "10s",
    }
    frame = spark.readStream.format("kshare").options(**options).load()
    frame = frame.where(F.udf(work, "boolean", useArrow=False)("key")).withWatermark(
        "timestamp", "10 seconds"
    )
    counted = frame.groupBy(F.window("timestamp", "2 seconds")).count()
    writer = counted.writeStream.outputMode("update").foreachBatch(keep)
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start()


def dropped(query: StreamingQuery) -> int:
    """Rows that Spark has dropped as late."""
    progress = [each for each in query.recentProgress if each["stateOperators"]]
    return sum(each["stateOperators"][0]["numRowsDroppedByWatermark"] for each in progress)


def watermarks(query: StreamingQuery) -> set[str]:
    """Those of its batches."""
    return {each["eventTime"].get("watermark", "") for each in query.recentProgress}


@pytest.mark.long
def test_no_row_is_dropped_behind_a_watermark(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path
) -> None:
    topic = broker.create_topic()
    now = time.time_ns() // 1_000_000
    broker.produce(topic, records(BACKLOG, now - 3_600_000, 3_600_000))
    counts: dict[Any, int] = {}
    producer = Producer(broker, topic)
    query = started(spark, broker, topic, tmp_path, counts)
    try:
        producer.start()
        producer.join()
        eventually(lambda: sum(counts.values()) >= BACKLOG + producer.written, 120)
        eventually(lambda: len(watermarks(query)) > 3, 60)
    finally:
        query.stop()
    assert sum(counts.values()) == BACKLOG + producer.written
    assert dropped(query) == 0
    assert len(watermarks(query)) > 3
