"""What a Spark Connect client does with kshare: batch, stream with a listener, sink.

``python connect_client.py SERVERS TOPIC SINK FOLDER`` runs with ``pyspark-client`` alone, so it
imports nothing of the tests. It prints what it has seen, as JSON.
"""

import asyncio
import json
import sys
import time
from typing import Any

from pyspark.sql import SparkSession

from kshare.processing import Processor, Record, Retry, process_by_key
from spark_plugin import KshareListener


async def handled(record: Record) -> int:
    """When the record was handled; every seventh one fails at first."""
    await asyncio.sleep(0.001 * (record.offset % 3))
    if record.offset % 7 == 0 and record.attempt == 1:
        raise ConnectionError("once")
    return time.monotonic_ns()


def handled_by_key(frame: Any) -> list[tuple[Any, ...]]:
    """Key, offset, status and attempts of each row, in the order in which they were handled."""
    processor = Processor(handled, concurrency=64, retry=Retry(first="5ms", most="20ms"))
    rows = process_by_key(frame, processor, result="bigint").collect()
    return [
        (bytes(row.key).decode(), row.offset, row.status, row.attempts)
        for row in sorted(rows, key=lambda row: row.result)
    ]


def main(servers: str, topic: str, sink: str, folder: str) -> dict[str, Any]:
    """Run, and return what was seen."""
    spark = SparkSession.builder.getOrCreate()
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "keyRanges": "2"}
    seen: dict[str, Any] = {"client": type(spark).__module__}
    batch = spark.read.format("kshare").options(**options).load()
    seen["columns"] = batch.columns
    seen["rows"] = sorted(
        (row.partition, row.offset, bytes(row.key).decode()) for row in batch.collect()
    )
    seen["handled"] = handled_by_key(batch)
    typed = {**options, "valueFormat": "string", "columns": "value", "badRecords": "null"}
    frame = spark.read.format("kshare").options(**typed).load()
    seen["typed"] = [frame.schema.simpleString(), sorted(row.value for row in frame.collect())]
    listener = KshareListener()
    spark.streams.addListener(listener)
    stream = (
        spark.readStream.format("kshare")
        .options(**options, startingOffsets="earliest", maxOffsetsPerTrigger="40")
        .load()
    )
    query = (
        stream.select("key", "value")
        .writeStream.format("kshare")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", sink)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    deadline = time.monotonic() + 30
    report = None
    while time.monotonic() < deadline and (report is None or report.partitions == {}):
        report = listener.last.get(str(query.id))
        time.sleep(0.05)
    assert report is not None
    seen["stable"] = [each.stable for each in report.partitions.values()]
    seen["batches"] = len(query.recentProgress)
    written = spark.read.format("kshare").options(**{**options, "subscribe": sink}).load()
    seen["written"] = sorted(bytes(row.value).decode() for row in written.collect())
    spark.streams.removeListener(listener)
    spark.stop()
    return seen


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
