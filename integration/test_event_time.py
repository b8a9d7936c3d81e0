"""``maxTimeAhead`` on a real broker: a watermark of Spark's, and topics of every kind.

The timestamps are those of a night in 2023, so that nothing depends on today.
"""

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from integration.event_time import (
    ALIGNED,
    BEGIN_MS,
    SPAN_MS,
    Outcome,
    count_windows,
    fill,
    one_partition,
    other_hours,
    spread,
    uneven_partitions,
    windows_of,
)
from integration.kafka import KafkaBroker
from kshare.cli.query import observed_status
from kshare.cli.show import Note, late_rows
from kshare.core.progress import TopicPartition
from kshare.kafka.cluster import Cluster
from kshare.kafka.protocol import broker_pool
from kshare.options import parse_options
from kshare.query.planner import StreamPlanner
from kshare.read.reader.read_slice import read_slice
from kshare.testing import Record
from tests.support.fake_logs import NoFeedback, NothingParked

COUNT = 6_000
LAYOUTS = {
    "a hot key": (one_partition, {"keyRanges": "4", "maxRecordsPerTask": str(COUNT // 9)}),
    "a large partition": (uneven_partitions, {"maxRecordsPerTask": str(COUNT // 7)}),
    "other hours": (other_hours, {"maxOffsetsPerTrigger": str(COUNT // 5)}),
}


@pytest.mark.parametrize(
    "layout", ["a hot key", *(pytest.param(n, marks=pytest.mark.long) for n in [*LAYOUTS][1:])]
)
def test_no_row_is_dropped_behind_a_watermark(
    spark: SparkSession, broker: KafkaBroker, layout: str, tmp_path: Path
) -> None:
    make, options = LAYOUTS[layout]
    partitions = make(COUNT)
    topic, records = fill(broker, partitions), sum(map(len, partitions))
    without = count_windows(
        spark, broker, topic, tmp_path / "off", options=options | {"maxTimeAhead": "off"}
    )
    aligned = count_windows(spark, broker, topic, tmp_path / "on", options=options | ALIGNED)
    assert without.counted < 0.9 * records
    assert without.dropped > 0
    assert (aligned.counted, aligned.dropped) == (records, 0)
    assert aligned.batches <= 1.5 * without.batches
    if "maxRecordsPerTask" in options:
        notes = {
            name: [*notes_of(broker, tmp_path / name / "checkpoint")] for name in ("off", "on")
        }
        assert any(note.is_sure for note in notes["off"])
        assert not any(note.is_sure for note in notes["on"])
        assert notes["on"]


def notes_of(broker: KafkaBroker, checkpoint: Path) -> Iterator[Note]:
    """What commands say of late rows, at each of a query's batches."""
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "t"}
    kafka = parse_options(given, streaming=False).options.kafka
    for batch in range(len(list((checkpoint / "offsets").glob("[0-9]*")))):
        then = checkpoint.with_name(f"{checkpoint.name}-{batch}")
        for kind, last in (("offsets", batch), ("commits", batch - 1)):
            (then / kind).mkdir(parents=True)
            for number in range(last + 1):
                shutil.copy(checkpoint / kind / str(number), then / kind)
        note = late_rows(observed_status(str(then), kafka))
        if note is not None:
            yield note


def test_what_is_unparked_comes_late_and_a_batch_query_counts_it(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path
) -> None:
    topic = fill(broker, one_partition(COUNT))
    windows: dict[Any, int] = {}

    def run(**options: str) -> Outcome:
        return count_windows(spark, broker, topic, tmp_path, windows=windows, options=options)

    parked = run(parkedKeys='["key-0"]')
    assert parked.counted < 0.5 * COUNT
    waited = (
        spark.read.format("kshare")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("subscribe", topic)
        .option("keys", '["key-0"]')
        .load()
    )
    closed = windows_of(waited).where(
        F.col("window.end") <= F.lit(parked.watermark).cast("timestamp")
    )
    for row in closed.collect():
        windows[row["window"]] += row["count"]
    assert sum(windows.values()) < COUNT
    unparked = run()
    assert unparked.dropped > 0
    assert unparked.counted == COUNT


# -- topics of every kind, without Spark ----------------------------------------------------------


def batches(
    broker: KafkaBroker, topic: str, options: Mapping[str, str]
) -> Iterator[list[tuple[TopicPartition, int]]]:
    """What the batches of a query read, one after the other: partitions and timestamps.

    A batch that only writes down where the one before has ended reads nothing, and is left out.
    """
    given = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        **options,
    }
    parsed = parse_options(given, streaming=True).options
    planner = StreamPlanner(
        parsed, Cluster(parsed.kafka), parking=NothingParked(), feedback=NoFeedback()
    )
    with closing(planner):
        at = planner.initial_offsets()
        while (end := planner.latest_offsets(at, parsed.max_offsets_per_trigger)) != at:
            read = [
                (planned.slice.topic_partition, int(stamp.timestamp() * 1000))
                for task in planner.tasks(at, end)
                for planned in task.slices
                for rows in read_slice(planned.slice, given, max_records=planned.max_records)
                for stamp in rows.column("timestamp").to_pylist()
            ]
            if read:
                yield read
            at = end
    broker_pool.close_idle()


def late(found: list[list[tuple[TopicPartition, int]]], delay_ms: int) -> int:
    """How many records come behind a watermark."""
    latest = count = 0
    for batch in found:
        count += sum(ms < latest - delay_ms for _, ms in batch)
        latest = max(latest, *(ms for _, ms in batch), 0)
    return count


def test_timestamps_in_the_future_are_read_last(broker: KafkaBroker) -> None:
    topic = broker.create_topic(partitions=2, config={"message.timestamp.after.max.ms": 2**62})
    tomorrow = int(time.time() * 1000) + 86_400_000
    early = [*spread(50, 0, span_ms=SPAN_MS // 6), Record(b"k", b"v", timestamp=tomorrow)]
    broker.produce(topic, early, partition=0)
    broker.produce(topic, spread(300, 1), partition=1)
    found = list(batches(broker, topic, {"maxRecordsPerTask": "40", **ALIGNED}))
    assert sum(map(len, found)) == 351
    assert (late(found, 600_000), late(found[:-1], 600_000)) == (0, 0)
    assert tomorrow in {ms for _, ms in found[-1]}


def test_times_of_brokers_count(broker: KafkaBroker) -> None:
    topic = broker.create_topic(partitions=2, config={"message.timestamp.type": "LogAppendTime"})
    for turn in range(4):  # the producer's times say the contrary
        broker.produce(topic, spread(30, 0, BEGIN_MS - turn * SPAN_MS), partition=0)
        time.sleep(0.02)
    broker.produce(topic, spread(200, 1), partition=1)
    limits = {"maxRecordsPerTask": "25"}
    found = list(batches(broker, topic, {**limits, "maxTimeAhead": "1ms"}))
    assert sum(map(len, found)) == 320
    assert late(found, 1) == 0
    assert late(list(batches(broker, topic, {**limits, "maxTimeAhead": "off"})), 1) > 0


def test_a_compacted_topic_is_aligned(broker: KafkaBroker) -> None:
    topic = broker.create_topic(partitions=2, config={"cleanup.policy": "compact"})
    broker.produce(topic, spread(300, 0), partition=0)
    broker.produce(topic, spread(60, 1), partition=1)
    limits = {"maxRecordsPerTask": "40", "keyRanges": "2"}
    found = list(batches(broker, topic, {**limits, **ALIGNED}))
    assert sum(map(len, found)) == 360
    assert late(found, 600_000) == 0
    assert late(list(batches(broker, topic, {**limits, "maxTimeAhead": "off"})), 600_000) > 0


def test_a_processed_outlier_is_looked_behind(broker: KafkaBroker) -> None:
    """The broker's index of times stops at it: then the log itself is read."""
    topic = broker.create_topic(partitions=2)
    outlier = Record(b"k", b"v", timestamp=BEGIN_MS + SPAN_MS)
    broker.produce(topic, [outlier, *spread(300, 0)], partition=0)
    broker.produce(topic, spread(300, 1, BEGIN_MS + SPAN_MS // 2), partition=1)
    starting = f'{{"{topic}": {{"0": 1, "1": 0}}}}'
    options = {"maxOffsetsPerTrigger": "60", "startingOffsets": starting}
    found = list(batches(broker, topic, {**options, **ALIGNED}))
    assert sum(map(len, found)) == 600
    assert late(found, 600_000) == 0
    assert late(list(batches(broker, topic, {**options, "maxTimeAhead": "off"})), 600_000) > 0


def test_a_partition_that_waits_for_its_time_and_is_then_empty_holds_nobody(
    broker: KafkaBroker,
) -> None:
    """Retention deletes what it has waited for."""
    topic = broker.create_topic(partitions=2)
    broker.produce(topic, spread(300, 0), partition=0)
    broker.produce(topic, spread(100, 1, BEGIN_MS + SPAN_MS // 2), partition=1)
    options = {"maxRecordsPerTask": "40", "keyRanges": "2", "failOnDataLoss": "false", **ALIGNED}
    coming = batches(broker, topic, options)
    found = [next(coming), next(coming)]
    assert not any(at.partition for batch in found for at, _ in batch)  # it is held back
    broker.trim(topic, 1, 100)
    found += coming
    assert sum(map(len, found)) == 300
    assert late(found, 600_000) == 0
