"""One key is slow, the others go on: python examples/slow_key.py SERVERS TOPIC FOLDER

Each batch takes about as long as the target, and the listener names the keys of the slowest range.
"""

import sys
import time

from pyspark.sql import Row, SparkSession

from spark_plugin import KshareListener, available_now
from spark_plugin.listener import QueryReport


def handle(order: Row) -> None:
    if order.key == b"customer-7":
        time.sleep(0.01)  # its address is looked up somewhere


def show(report: QueryReport) -> None:
    if report.slowest is not None:
        partition, slow = report.slowest
        keys = ", ".join(f"{hot.key!r} {hot.share:.0%}" for hot in slow.hot_keys)
        took = f"{slow.records} records in {slow.seconds} s"
        print(f"batch {report.batch}, {partition}: {took}; keys: {keys}")


def main(servers: str, topic: str, folder: str) -> KshareListener:
    spark = SparkSession.builder.getOrCreate()
    listener = KshareListener(show)
    spark.streams.addListener(listener)
    orders = (
        spark.readStream.format("kshare")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("columns", "key,value")
        .option("keyRanges", 4)
        .option("targetTaskDuration", "2s")
        .option("rangeAssignor", "adaptive")
        .option("maxTimeAhead", "off")  # there is no watermark behind it
        .load()
    )
    writer = orders.writeStream.foreach(handle)
    # On Spark 4.0 and 4.1 its own trigger would end after the records of one batch.
    available_now(writer.option("checkpointLocation", f"{folder}/checkpoint"))
    return listener


if __name__ == "__main__":
    main(*sys.argv[1:])
    SparkSession.builder.getOrCreate().stop()  # or Spark's listeners meet a Python that has ended
