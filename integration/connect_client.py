"""What a Spark Connect client does with kshare: batch, stream with a listener, sink.

``python connect_client.py SERVERS TOPIC SINK FOLDER`` runs with ``pyspark-client`` alone, so it
imports nothing of the tests. It prints what it has seen, as JSON.
"""

import json
import sys
import time
from typing import Any

from pyspark.sql import SparkSession

from spark_plugin import KshareListener


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
