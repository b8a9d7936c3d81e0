"""Jobs through Spark, with either source: ``format("kafka")`` or ``format("kshare")``."""

import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from bench.data import new_topic
from kshare.testing.records import watermarks

TRIGGER_ROWS = 100
TRIGGERS = 60
ARRIVALS = 30
FULL_TRIGGERS = 7  # with a record for each of many partitions


def _batch(spark: SparkSession, source: str, servers: str, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format(source).option("kafka.bootstrap.servers", servers)
    return reader.option("subscribe", topic).options(**options).load()


def _noop(frame: DataFrame) -> float:
    """Seconds to read a DataFrame into the noop sink."""
    started = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def _chosen(
    spark: SparkSession, source: str, servers: str, topic: str, columns: str, **options: str
) -> DataFrame:
    """A DataFrame of some columns, as each source's user asks for them; none named: all."""
    if source == "kshare" and columns:
        options["columns"] = columns
    frame = _batch(spark, source, servers, topic, **options)
    return frame.select(*columns.split(",")) if source == "kafka" and columns else frame


def batch_one_task(
    spark: SparkSession, source: str, servers: str, topic: str, columns: str = ""
) -> float:
    """Seconds to read the topic with one task into the noop sink."""
    return _noop(_chosen(spark, source, servers, topic, columns))


def batch_two_ranges(
    spark: SparkSession, source: str, servers: str, topic: str, columns: str = ""
) -> float:
    """Seconds to read the topic with two tasks that keep the order of keys.

    kshare: two key ranges. Spark: two offset ranges, then a shuffle by key, which is what a user
    does today (and which does not even keep the order).
    """
    frame = _chosen(spark, source, servers, topic, columns, minPartitions="2")
    if source == "kafka":
        frame = frame.repartition(2, "key")
    return _noop(frame)


def batch_ranges(
    spark: SparkSession, servers: str, topic: str, ranges: int, **options: str
) -> float:
    """Seconds to read the topic in a number of key ranges."""
    return _noop(_batch(spark, "kshare", servers, topic, keyRanges=str(ranges), **options))


def available_now(
    spark: SparkSession, source: str, servers: str, topic: str, **options: str
) -> float:
    """Seconds of a streaming query over the topic with Trigger.AvailableNow, one task."""
    with tempfile.TemporaryDirectory(prefix="kshare-bench-") as folder:
        return _available_now(_stream(spark, source, servers, topic, **options), folder)


def _available_now(frame: DataFrame, checkpoint: str) -> float:
    writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
    started = time.perf_counter()
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return time.perf_counter() - started


def available_later(
    spark: SparkSession, source: str, servers: str, topic: str, checkpoint: Path
) -> float:
    """The same of a query that has run before: its checkpoint is a copy of :func:`a_checkpoint`."""
    with tempfile.TemporaryDirectory(prefix="kshare-bench-") as folder:
        shutil.copytree(checkpoint, folder, dirs_exist_ok=True)
        return _available_now(_stream(spark, source, servers, topic), folder)


def a_checkpoint(spark: SparkSession, servers: str, topic: str, folder: Path) -> Path:
    """Make a checkpoint whose first batch has ended at offset 100; either source goes on from it."""
    _available_now(_stream(spark, "kafka", servers, topic), str(folder))
    (folder / "offsets" / ".0.crc").unlink()
    offsets = folder / "offsets" / "0"
    head = offsets.read_text().splitlines()[:-1]
    offsets.write_text("\n".join([*head, json.dumps({topic: {"0": 100}})]))
    return folder


def batch_read(spark: SparkSession, source: str, servers: str, topic: str) -> float:
    """Seconds to read a topic of many partitions; kshare packs small ones into tasks."""
    options = {} if source == "kafka" else {"maxTasks": "auto"}
    return _noop(_batch(spark, source, servers, topic, **options))


def batch_keys(
    spark: SparkSession, servers: str, topic: str, columns: str, keys: str = ""
) -> float:
    """Seconds to read the records of some keys, a JSON array, with one task; all if none given."""
    options = {"keys": keys} if keys else {}
    return _noop(_chosen(spark, "kshare", servers, topic, columns, **options))


def one_record_each(spark: SparkSession, source: str, servers: str, topic: str) -> float:
    """Median trigger time in seconds where each partition has one new record."""
    count = len(
        AdminClient({"bootstrap.servers": servers}).list_topics(topic).topics[topic].partitions
    )
    # Not "latest": a query looks for that while the first records are being written.
    ends = {str(number): watermarks(servers, topic, number)[1] for number in range(count)}
    starts = json.dumps({topic: ends})
    options = {"startingOffsets": starts, "minOffsetsPerTrigger": str(count)}
    if source == "kshare":
        options["maxTasks"] = "auto"
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 1})
    times: dict[int, float] = {}
    with _running(_stream(spark, source, servers, topic, **options)) as query:
        for round_ in range(1, FULL_TRIGGERS + 1):
            for partition in range(count):
                producer.produce(topic, b"v", b"k", partition)
            producer.flush()
            while len(times) < round_:
                _raise_failure(query)
                time.sleep(0.1)
                times |= _times_of(query, count)
    # The first triggers load classes and start Python workers, on both sides.
    return statistics.median(list(times.values())[2:])


def trigger_times(
    spark: SparkSession, source: str, servers: str, topic: str, tasks: int = 2
) -> float:
    """Median trigger time in seconds of 100-row batches of a backlog, noop sink."""
    limits = {"maxOffsetsPerTrigger": str(TRIGGER_ROWS), "minPartitions": str(tasks)}
    return _trigger_times(_stream(spark, source, servers, topic, **limits))


def arrival_times(spark: SparkSession, source: str, servers: str) -> float:
    """Median trigger time in seconds of 100 rows that come while the query waits for them."""
    topic = new_topic(servers, "arrivals")
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 1000})  # 100 in a batch
    times: dict[int, float] = {}
    with _running(_stream(spark, source, servers, topic)) as query:
        for round_ in range(1, ARRIVALS + 1):
            for number in range(TRIGGER_ROWS):
                producer.produce(topic, b"v" * 88, b"key-%d" % number)
            producer.flush()
            while len(times) < round_:
                _raise_failure(query)
                time.sleep(0.1)
                times |= _times_of(query, TRIGGER_ROWS)
    return statistics.median(list(times.values())[ARRIVALS // 3 :])


def trigger_floor(spark: SparkSession) -> float:
    """The same for a Python source that makes rows up: the time that Spark itself needs."""
    spark.dataSource.register(MadeUp)
    return _trigger_times(spark.readStream.format(MadeUp.name()).load())


def _trigger_times(frame: DataFrame) -> float:
    times: dict[int, float] = {}
    with _running(frame) as query:
        while len(times) < TRIGGERS and query.isActive:
            time.sleep(0.2)
            times |= {n: t for n, t in _times_of(query, TRIGGER_ROWS).items() if n >= 10}
        _raise_failure(query)
    return statistics.median(times.values())


@contextmanager
def _running(frame: DataFrame) -> Iterator[StreamingQuery]:
    """Run a query into the noop sink, a batch after the other."""
    with tempfile.TemporaryDirectory(prefix="kshare-bench-") as folder:
        writer = frame.writeStream.format("noop").option("checkpointLocation", folder)
        query = writer.trigger(processingTime="0 seconds").start()
        try:
            yield query
        finally:
            query.stop()


def _raise_failure(query: StreamingQuery) -> None:
    if query.exception() is not None:
        raise RuntimeError(str(query.exception()))


def _times_of(query: StreamingQuery, rows: int) -> dict[int, float]:
    """Seconds of each recent trigger that has so many rows, by the number of its batch."""
    return {
        progress.batchId: progress.durationMs["triggerExecution"] / 1000
        for progress in query.recentProgress
        if progress.numInputRows == rows
    }


class MadeUp(DataSource):
    """A source of 100 made-up rows a batch, in two tasks."""

    @classmethod
    def name(cls) -> str:
        return "bench-made-up"

    def schema(self) -> str:
        return "value binary"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        return _MadeUpReader()


class _MadeUpReader(DataSourceStreamReader):
    def __init__(self) -> None:
        self._end = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"at": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # noqa: N802
        self._end += TRIGGER_ROWS
        return {"at": self._end}

    def partitions(self, *_: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(0), InputPartition(1)]

    def read(self, _: InputPartition) -> Iterator[Any]:
        rows = [b"x" * 100] * (TRIGGER_ROWS // 2)
        return iter([pa.record_batch({"value": pa.array(rows, pa.binary())})])


def _stream(
    spark: SparkSession, source: str, servers: str, topic: str, **options: str
) -> DataFrame:
    reader = spark.readStream.format(source).option("kafka.bootstrap.servers", servers)
    return (
        reader.option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .options(**options)
        .load()
    )


def worker_rss_mib(spark: SparkSession, servers: str, topic: str) -> float:
    """Peak resident memory of a Python worker that reads the whole topic, in MiB."""
    peak = 0.0
    frame = _batch(spark, "kshare", servers, topic)
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.02):
            for pid in _workers():
                peak = max(peak, _rss(pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        _noop(frame)
    finally:
        done.set()
        watcher.join()
    assert peak, "no Python worker was seen"
    return peak


def _workers() -> list[int]:
    """The Python workers below this process's JVM (daemons' children)."""
    children = psutil.Process().children(recursive=True)
    return [child.pid for child in children if "pyspark.worker" in _command(child)]


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def _rss(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0
