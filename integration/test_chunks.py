"""Ranges of a partition on one host fetch it about once, from a real broker, through Spark."""

import random
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import spark_partition_id

from integration.kafka import KafkaBroker
from integration.members import eventually
from integration.proxy import CountingProxy
from kshare.read.sharing.files import opened_index
from kshare.read.sharing.group import LostGroupError
from kshare.testing import Record

COUNT, KEYS, RANGES = 24_000, 997, 8


def test_eight_ranges_of_a_partition_fetch_it_about_once(
    proxied: tuple[KafkaBroker, CountingProxy], spark: SparkSession
) -> None:
    broker, proxy = proxied
    topic = broker.create_topic()
    chance = random.Random(1)
    keys = [b"key-%d" % chance.randrange(KEYS) for _ in range(COUNT)]
    broker.produce(topic, [Record(key, chance.randbytes(1000)) for key in keys])

    def read(ranges: int) -> tuple[int, list[list[tuple[bytes, int]]]]:
        """Bytes that the broker sent, and what each task read."""
        before = proxy.received
        reader = spark.read.format("kshare").option("subscribe", topic)
        reader = reader.option("kafka.bootstrap.servers", broker.bootstrap_servers)
        rows = reader.option("keyRanges", ranges).load()
        tasks: defaultdict[int, list[tuple[bytes, int]]] = defaultdict(list)
        for task, key, offset in rows.select(spark_partition_id(), "key", "offset").collect():
            tasks[task].append((bytes(key), offset))
        return proxy.received - before, [*tasks.values()]

    alone, (whole,) = read(1)
    assert whole == [*zip(keys, range(COUNT), strict=True)]
    assert alone > COUNT * 1000
    for _ in range(3):  # a task that waits for another one for long fetches by itself
        shared, tasks = read(RANGES)
        if shared <= 1.3 * alone:
            break
    print(f"bytes: {shared} / {alone} = {shared / alone:.3f}")
    assert len(tasks) == RANGES
    assert all(offsets == sorted(offsets) for task in tasks for offsets in [[o for _, o in task]])
    assert sorted((row for task in tasks for row in task), key=lambda row: row[1]) == whole
    assert sum(len({key for key, _ in task}) for task in tasks) == len(set(keys))
    assert shared <= 1.3 * alone
    eventually(lambda: not is_indexed(topic))


def test_a_backlog_is_fetched_about_once_in_real_time(
    proxied: tuple[KafkaBroker, CountingProxy], spark: SparkSession, tmp_path: Path
) -> None:
    """What was there when the micro-batch was planned."""
    broker, proxy = proxied
    topic = broker.create_topic()
    chance = random.Random(2)
    keys = [b"key-%d" % chance.randrange(KEYS) for _ in range(COUNT)]
    broker.produce(topic, [Record(key, chance.randbytes(1000)) for key in keys])
    reader = spark.readStream.format("kshare").option("subscribe", topic)
    reader = reader.option("kafka.bootstrap.servers", broker.bootstrap_servers)
    reader = reader.option("startingOffsets", "earliest").option("realTime", "5s")
    rows = reader.option("keyRanges", RANGES).option("maxTasks", RANGES // 2).load()
    for attempt in range(3):  # a task that waits for another one for long fetches by itself
        before = proxy.received
        found = first_micro_batch(rows.select("key", "offset"), tmp_path / f"run-{attempt}")
        shared = proxy.received - before
        assert sorted(found, key=lambda row: row[1]) == [*zip(keys, range(COUNT), strict=True)]
        if shared <= 1.3 * COUNT * 1000:
            break
    print(f"bytes: {shared} / {COUNT * 1000}")
    assert shared <= 1.3 * COUNT * 1000


def first_micro_batch(rows: DataFrame, checkpoint: Path) -> list[tuple[bytes, int]]:
    """The rows of a query's first micro-batch; the query is stopped then."""
    found: list[list[tuple[bytes, int]]] = []

    def take(batch: DataFrame, _: int) -> None:
        found.append([(bytes(key), offset) for key, offset in batch.collect()])

    writer = rows.writeStream.foreachBatch(take)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        eventually(lambda: found or query.exception(), seconds=120)
    finally:
        query.stop()
    return found[0]


def is_indexed(topic: str) -> bool:
    """Whether there are chunks of a topic."""
    with suppress(LostGroupError), opened_index() as index:
        return any(key.topic == topic for key in index.keys)
    return False


def test_a_streaming_query_leaves_nothing_with_a_name(
    broker: KafkaBroker, spark: SparkSession
) -> None:
    """Spark kills its planner, and its tasks too if it is stopped in the middle of a batch."""
    topic = broker.create_topic()
    broker.produce(topic, [Record(b"key-%d" % n, bytes(200)) for n in range(COUNT)])
    folder = Path(tempfile.gettempdir())
    before = {*folder.glob("kshare-chunks*")}
    reader = spark.readStream.format("kshare").option("subscribe", topic)
    reader = reader.option("kafka.bootstrap.servers", broker.bootstrap_servers)
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 600)
    rows = reader.option("keyRanges", RANGES).load()
    shared = False
    query = rows.writeStream.format("noop").start()
    try:
        deadline = time.monotonic() + 120
        while not (shared and query.lastProgress):
            assert query.isActive
            assert time.monotonic() < deadline
            assert {*folder.glob("kshare-chunks*")} <= before
            shared |= is_indexed(topic)
            time.sleep(0.02)
    finally:
        query.stop()
    assert {*folder.glob("kshare-chunks*")} <= before
