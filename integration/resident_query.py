"""A query that runs for as long as a soak.

``python -m integration.resident_query SERVERS TOPIC DIR``

It reads a topic by 3 key ranges every 2 s, and writes each batch to ``DIR/out/batch=ID``, until
there is a file ``DIR/stop``; then it reads what is left.
"""

import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from integration.spark import INTERPRETED, start_spark


def main(servers: str, topic: str, folder: str) -> None:
    """Run it."""
    spark = start_spark(config=INTERPRETED)
    where = Path(folder)
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "keyRanges": "3"}
    options |= {"startingOffsets": "earliest", "maxRecordsPerTask": "50"}

    def write(rows: DataFrame, batch: int) -> None:
        columns = rows.select("topic", "partition", "offset", "key")
        placed = columns.withColumn("task", F.spark_partition_id())
        placed.write.mode("overwrite").parquet(f"{where}/out/batch={batch}")

    writer = (
        spark.readStream.format("kshare")
        .options(**options)
        .load()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", f"{where}/checkpoint")
    )
    query = writer.trigger(processingTime="2 seconds").start()
    while not (where / "stop").exists():
        if not query.isActive:
            query.awaitTermination()  # it raises what has ended it
        time.sleep(0.5)
    query.stop()
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
