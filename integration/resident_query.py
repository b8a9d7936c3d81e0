"""A query that runs for as long as a soak.

``python -m integration.resident_query SERVERS TOPIC OUTPUT DIR``

It reads a topic by 3 key ranges, a batch a second, and writes key and offset of each record to
OUTPUT, with ``exactlyOnce``, until there is a file ``DIR/stop``; then it reads what is left.
"""

import sys
import time
from pathlib import Path

from integration.spark import INTERPRETED, start_spark


def main(servers: str, topic: str, output: str, folder: str) -> None:
    """Run it."""
    spark = start_spark(config=INTERPRETED)
    where, kafka = Path(folder), {"kafka.bootstrap.servers": servers}
    options = {"subscribe": topic, "keyRanges": "3", "startingOffsets": "earliest"}
    frame = spark.readStream.format("kshare").options(**kafka, **options).load()
    rows = frame.selectExpr("key", "CAST(offset AS STRING) AS value")
    writer = (
        rows.writeStream.format("kshare")
        .options(**kafka, topic=output, exactlyOnce="true")
        .option("checkpointLocation", f"{where}/checkpoint")
    )
    query = writer.trigger(processingTime="1 second").start()
    while not (where / "stop").exists():
        if not query.isActive:
            query.awaitTermination()  # it raises what has ended it
        time.sleep(0.5)
    query.stop()
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
