"""A query with key ranges, and its metrics: spark-submit query.py SERVERS TOPIC CHECKPOINT [PORT]

customer-7 is slow, and so is its range; the others go on.
"""

import sys
import time

from prometheus_client import start_http_server
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_plugin import KshareListener


def handle(order: Row) -> None:
    if order.key == b"customer-7":
        time.sleep(0.01)  # its address is looked up somewhere


def start(spark: SparkSession, servers: str, topic: str, checkpoint: str) -> StreamingQuery:
    orders = (
        spark.readStream.format("kshare")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("columns", "key,value")
        .option("keyRanges", 4)
        .option("targetTaskDuration", "2s")
        .option("maxTimeAhead", "off")  # there is no watermark behind it
        .load()
    )
    return (
        orders.writeStream.queryName("orders")
        .foreach(handle)
        .option("checkpointLocation", checkpoint)
        .start()
    )


def main(servers: str, topic: str, checkpoint: str, port: str = "9400") -> None:
    spark = SparkSession.builder.getOrCreate()
    spark.streams.addListener(KshareListener(prometheus=True))
    start_http_server(int(port))  # at all addresses: Prometheus comes from outside of the container
    start(spark, servers, topic, checkpoint).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
