"""``process_by_key`` of a frame with ``realTime``: handlers run in the reading task."""

import asyncio
import logging
from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from integration.driver_pandas import pandas_folder
from integration.kafka import KafkaBroker
from integration.runs import Driver
from integration.spark_versions import OLDEST
from integration.test_real_time import RealTime
from kshare.core.hashing import WHOLE
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Rectangle, Slice
from kshare.processing import DeadLetter, Processor, Record, Retry, process_by_key
from kshare.testing.records import watermarks
from kshare.typed_slices import read_slice
from tests.support.clock import until

WAIT_S = 240.0
KEYS = 12


@pytest.fixture(autouse=True)
def pandas_in_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(pandas_folder()))


@pytest.mark.timeout(900)  # five Spark processes
@pytest.mark.parametrize("version", [None, OLDEST], ids=["this Spark", "oldest Spark"])
def test_handlers_through_kills(tmp_path: Path, version: str | None) -> None:
    """No record is lost, each key's are handled in order, and none once it is committed.

    What had no outcome when its micro-batch, its worker or its query ended comes again.
    """
    with (
        KafkaBroker() as broker,
        Driver(tmp_path, master="local[3,4]", version=version) as driver,
    ):
        query = RealTime(broker, driver, tmp_path, handles=True)
        with query.producing():
            query.kill("driver", "in-handler", batch=1)
            query.kill("worker", "in-handler", batch=1)
            query.kill("driver", "before-commit-log", batch=1)
            query.kill("planner", "any-time", seconds=5.0)
            with query.running():
                query.go_on(2)
                broker.kill9()
                broker.restart()
                query.go_on(2)
        with query.running():
            until(query.is_all_there, WAIT_S)
    assert not query.judge(), driver.log()
    retried = sum(offset % 11 == 5 for _, offset in query.received())
    assert query.begun_again() > retried


async def handle(record: Record) -> str:
    """What is not the first of its batch of ten takes longer; one fails for good."""
    await asyncio.sleep(0.02 if record.offset % 10 else 0.0)
    if record.raw_value == b"bad":
        raise ValueError("no")
    if record.offset % 7 == 0 and record.attempt == 1:
        raise ConnectionError("once")
    return f"{record.partition}-{record.offset}"


def rows_of(servers: str, topic: str) -> list[tuple[str, str]]:
    """Keys and values of the records of a topic with one partition, in their order."""
    end = int(watermarks(servers, topic, 0)[1])
    if not end:
        return []
    whole = Slice(topic, 0, (Rectangle(OffsetRange(0, end), WHOLE),))
    return [
        (row["key"].decode(), row["value"].decode())
        for batch in read_slice(whole, {"kafka.bootstrap.servers": servers})
        for row in batch.to_pylist()
    ]


def has_rows(servers: str, topic: str, wanted: int) -> bool:
    return len(rows_of(servers, topic)) == wanted


def started(results: DataFrame, servers: str, out: str, folder: Path) -> Any:
    values = F.concat_ws(" ", "status", "result").cast("binary")
    writer = results.select("key", values.alias("value")).writeStream.format("kafka")
    writer = writer.option("kafka.bootstrap.servers", servers).option("topic", out)
    return writer.option("checkpointLocation", str(folder)).start()


def test_outcomes_leave_amid_a_batch(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path
) -> None:
    """The last one, too; retries and dead letters are as ever, and a stop comes at once."""
    topic, out, letters = (broker.create_topic() for _ in range(3))
    servers = broker.bootstrap_servers
    where = {"kafka.bootstrap.servers": servers}
    reader = spark.readStream.format("kshare").options(**where, subscribe=topic, keyRanges="2")
    frame = reader.option("startingOffsets", "earliest").option("realTime", "30 min").load()
    policy = DeadLetter(letters)
    processor = Processor(handle, retry=Retry(2, first="5ms", most="10ms"), on_failure=policy)
    results = process_by_key(frame, processor, result="string", options=where)
    assert results.columns == [*frame.columns, "status", "attempts", "error", "result"]
    query = started(results, servers, out, tmp_path)
    try:
        for number in range(3):
            made = [(f"k{key}", f"{number}") for key in range(KEYS)] + [("k0", "bad")]
            broker.produce(topic, made, partition=0)
            wanted = (KEYS + 1) * (number + 1)
            until(partial(has_rows, servers, out, wanted), WAIT_S)
        assert query.exception() is None
        assert not (tmp_path / "commits" / "0").exists()
    finally:
        query.stop()
    rows = rows_of(servers, out)
    assert Counter(value.split()[0] for _, value in rows) == {"done": KEYS * 3, "dead_lettered": 3}
    assert [value for _, value in rows_of(servers, letters)] == ["bad"] * 3
    for key in {key for key, _ in rows}:
        done = [int(value.split("-")[1]) for of, value in rows if of == key and "done" in value]
        assert all(one < two for one, two in pairwise(done))


async def blocked(record: Record) -> str:
    """One key's handler takes longer than some micro-batches, with their drain."""
    await asyncio.sleep(6 if record.raw_value == b"slow" else 0)
    return f"{record.partition}-{record.offset}"


def test_what_is_not_handled_when_its_batch_ends_comes_again(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path
) -> None:
    """And nothing else does; others go on meanwhile, but for the drain."""
    topic, out = broker.create_topic(), broker.create_topic()
    servers = broker.bootstrap_servers
    where = {"kafka.bootstrap.servers": servers, "startingOffsets": "earliest"}
    made = [("a", "1"), ("stuck", "slow"), ("stuck", "2"), ("b", "3")]
    broker.produce(topic, made, partition=0)

    def run(real_time: str, wanted: int) -> None:
        reader = spark.readStream.format("kshare").options(**where, subscribe=topic)
        frame = reader.option("realTime", real_time).load()
        processor = Processor(blocked, retry=Retry(2, first="5ms"), drain_timeout="100ms")
        results = process_by_key(frame, processor, result="string")
        query = started(results, servers, out, tmp_path)
        try:
            until(
                lambda: query.exception() is not None or len(rows_of(servers, out)) >= wanted,
                WAIT_S,
            )
            if wanted == 2:  # more batches, in none of which it ends
                until((tmp_path / "commits" / "2").exists, WAIT_S)
            assert query.exception() is None
        finally:
            query.stop()

    run("2s", 2)
    assert sorted(rows_of(servers, out)) == [("a", "done 0-0"), ("b", "done 0-3")]
    run("60s", 4)
    assert rows_of(servers, out)[2:] == [("stuck", "done 0-1"), ("stuck", "done 0-2")]


def test_what_lies_between_is_said(
    spark: SparkSession, broker: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    topic = broker.create_topic()
    reader = spark.readStream.format("kshare").option("subscribe", topic)
    reader = reader.option("kafka.bootstrap.servers", broker.bootstrap_servers)
    frame = reader.option("realTime", "60s").load()
    with caplog.at_level(logging.WARNING, "kshare"):
        process_by_key(frame.filter("offset > 3"), Processor(handle))
    assert "between load() and it there is Filter; call it with the frame of load()" in caplog.text
