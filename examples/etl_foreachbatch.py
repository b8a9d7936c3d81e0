"""A topic to Parquet files: python examples/etl_foreachbatch.py SERVERS TOPIC FOLDER

A batch that runs again has the same number and the same records, so it overwrites its own folder.
"""

import sys

from pyspark.sql import DataFrame, SparkSession


def main(servers: str, topic: str, folder: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    orders = (
        spark.readStream.format("kshare")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("columns", "key,value,timestamp")
        .option("minPartitions", 4)
        .load()
        .selectExpr(
            "CAST(key AS STRING) AS customer", "CAST(value AS STRING) AS order", "timestamp"
        )
    )

    def write(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").parquet(f"{folder}/orders/batch={number}")

    query = (
        orders.writeStream.foreachBatch(write)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)  # read what is there, and end; run it again for what comes
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
