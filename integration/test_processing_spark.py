"""Handlers by key in Spark: ``process_by_key`` and ``run_batch`` on streams and batches."""

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from integration.driver_pandas import pandas_folder
from integration.kafka import KafkaBroker
from integration.spark import QUERY_S
from kshare.processing import DeadLetter, Processor, Record, Retry, process_by_key
from kshare.testing import Record as Produced

RECORDS, KEYS = 600, 20


@pytest.fixture(autouse=True)
def pandas_in_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(pandas_folder()))


async def ended(record: Record) -> int:
    """When the record was handled; every seventh one fails at first."""
    await asyncio.sleep(0.001)
    if record.offset % 7 == 0 and record.attempt == 1:
        raise ConnectionError("once")
    return time.monotonic_ns()


def refuse(record: Record) -> None:
    """Each hundredth record fails for good."""
    if record.offset % 100 == 99:
        raise ValueError("no")


def processor() -> Processor:
    return Processor(ended, concurrency=64, retry=Retry(first="5ms", most="20ms"))


def fill(broker: KafkaBroker, topic: str) -> None:
    produced = [Produced(b"k%d" % (i % KEYS), b"%d" % i) for i in range(RECORDS)]
    broker.produce(topic, produced)


def check(outcomes: DataFrame) -> None:
    """Each record was done once, and each key in order."""
    rows = outcomes.collect()
    assert sorted(row["offset"] for row in rows) == list(range(RECORDS))
    assert {row["status"] for row in rows} == {"done"}
    assert sum(row["attempts"] for row in rows) == RECORDS + len(range(0, RECORDS, 7))
    for key in {bytes(row["key"]) for row in rows}:
        of_key = [row for row in rows if bytes(row["key"]) == key]
        by_time = sorted(of_key, key=lambda row: row["result"])
        offsets = [row["offset"] for row in by_time]
        assert offsets == sorted(offsets)


def test_a_stream_and_a_batch(
    spark: SparkSession, broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    fill(broker, topic)
    options = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "minPartitions": "2",
    }
    batch = spark.read.format("kshare").options(**options).load()
    check(process_by_key(batch, processor(), result="bigint"))

    stream = spark.readStream.format("kshare").options(**options)
    frame = stream.option("maxOffsetsPerTrigger", "250").load()
    results = process_by_key(frame, processor(), result="bigint")
    out = str(tmp_path / "out")
    query = (
        results.writeStream.format("parquet")
        .option("path", out)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(QUERY_S)
    check(spark.read.parquet(out))


def test_each_batch_of_a_stream(
    spark: SparkSession, broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    """Spark's ``foreachBatch``; what fails for good is in the dead-letter topic."""
    fill(broker, topic)
    where = {"kafka.bootstrap.servers": broker.bootstrap_servers}
    options = {**where, "subscribe": topic, "startingOffsets": "earliest"}
    letters = broker.create_topic()
    failing = Processor(
        refuse, retry=Retry(attempts=2, first="1ms"), on_failure=DeadLetter(letters)
    )
    counted: Counter[str] = Counter()

    def process(rows: DataFrame, _: int) -> None:
        counted.update(failing.run_batch(rows, options=where))

    frame = spark.readStream.format("kshare").options(**options).load()
    query = (
        frame.writeStream.foreachBatch(process)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(QUERY_S)
    refused = [offset for offset in range(RECORDS) if offset % 100 == 99]
    assert counted == {"done": RECORDS - len(refused), "dead_lettered": len(refused)}
    read = spark.read.format("kshare").options(**where).option("subscribe", letters)
    rows = read.option("includeHeaders", "true").load().collect()
    assert sorted(int(row["value"]) for row in rows) == refused
    for row in rows:
        told = {header["key"]: bytes(header["value"]) for header in row["headers"]}
        assert told["__connect.errors.topic"] == topic.encode()
        assert told["__connect.errors.offset"] == row["value"]
        assert told["kshare.attempts"] == b"2"


def charge(record: Record) -> int:
    """What a handler does with typed rows: the value is a dict."""
    if record.value is None:
        return 0
    if record.value["qty"] < 0:
        raise ValueError("no")
    total: int = sum(item["sku"] * record.value["qty"] for item in record.value["items"])
    return total


def test_typed_rows(spark: SparkSession, broker: KafkaBroker, topic: str, tmp_path: Path) -> None:
    """Structs and tombstones go through handlers; a letter of a struct is JSON, and says so."""
    values = [b'{"qty": %d, "items": [{"sku": %d}]}' % (n % 5 - 1, n) for n in range(40)]
    broker.produce(topic, [Produced(b"k%d" % (n % 4), v) for n, v in enumerate(values)])
    broker.produce(topic, [Produced(b"k0", None)])
    where = {"kafka.bootstrap.servers": broker.bootstrap_servers}
    options = {**where, "subscribe": topic, "startingOffsets": "earliest"}
    typed = {"valueFormat": "json", "valueSchema": "qty INT, items ARRAY<STRUCT<sku: BIGINT>>"}
    letters = broker.create_topic()
    made = Processor(charge, retry=Retry(attempts=1), on_failure=DeadLetter(letters))
    frame = spark.readStream.format("kshare").options(**options, **typed, keyFormat="string").load()
    outcomes = process_by_key(frame, made, result="bigint", options=where)
    rows: list[Any] = []
    writer = outcomes.writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(QUERY_S)
    assert sorted(row["offset"] for row in rows) == list(range(41))
    refused = [n for n in range(40) if n % 5 == 0]
    for row in rows:
        n = row["offset"]
        bad = n in refused
        assert row["status"] == ("dead_lettered" if bad else "done")
        assert row["result"] == (None if bad else 0 if n == 40 else n * (n % 5 - 1))
        assert row["value"] == (None if n == 40 else (n % 5 - 1, [(n,)]))
    read = spark.read.format("kshare").options(**where).option("subscribe", letters)
    found = read.option("includeHeaders", "true").load().collect()
    texts = sorted(bytes(row["value"]).decode() for row in found)
    assert texts == sorted(f'{{"qty":-1,"items":[{{"sku":{n}}}]}}' for n in refused)
    for row in found:
        told = {header["key"]: bytes(header["value"]) for header in row["headers"]}
        assert told["kshare.rewritten"] == b"value"
        assert told["__connect.errors.topic"] == topic.encode()
