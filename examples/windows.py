"""Count JSON records in windows of event time: python examples/windows.py SERVERS TOPIC FOLDER

``maxTimeAhead`` is the watermark's delay, so no range of keys runs so far ahead that the records of
others come too late.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from spark_plugin import available_now


def main(servers: str, topic: str, folder: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    orders = (
        spark.readStream.format("kshare")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("columns", "value,timestamp")
        .option("keyRanges", 4)
        .option("maxRecordsPerTask", 10_000)
        .option("maxTimeAhead", "10m")
        .load()
    )
    amounts = orders.select(
        f.from_json(f.col("value").cast("string"), "country STRING, amount DOUBLE").alias("order"),
        "timestamp",
    )
    counts = (
        amounts.withWatermark("timestamp", "10 minutes")
        .groupBy(f.window("timestamp", "5 minutes"), "order.country")
        .agg(f.count("*").alias("orders"), f.sum("order.amount").alias("amount"))
    )
    writer = (
        counts.writeStream.format("parquet")
        .outputMode("append")  # a window is written when the watermark has passed its end
        .option("path", f"{folder}/counts")
        .option("checkpointLocation", f"{folder}/checkpoint")
    )
    available_now(writer)  # on Spark 4.0 and 4.1 its own trigger would end after one batch


if __name__ == "__main__":
    main(*sys.argv[1:])
