"""Each record once, to a topic: python examples/exactly_once.py SERVERS TOPIC OUTPUT FOLDER

Read the output with ``isolation.level=read_committed``.
"""

import sys

from pyspark.sql import SparkSession


def main(servers: str, topic: str, output: str, folder: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    orders = (
        spark.readStream.format("kshare")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("columns", "key,value")
        .option("minPartitions", 4)
        .load()
    )
    query = (
        orders.selectExpr("key", "upper(CAST(value AS STRING)) AS value")
        .writeStream.format("kshare")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", output)
        .option("exactlyOnce", "true")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
