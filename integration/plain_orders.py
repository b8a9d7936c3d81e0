"""A stream of typed rows as a user writes it, which prints each row, and what is logged.

``python plain_orders.py SERVERS TOPIC REGISTRY CHECKPOINT``
"""

import logging
import sys

from pyspark.sql import DataFrame, SparkSession

logging.basicConfig(level=logging.INFO)
servers, topic, registry, folder = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
orders = (
    spark.readStream.format("kshare")
    .option("kafka.bootstrap.servers", servers)
    .option("kafka.default.api.timeout.ms", "45000")
    .option("subscribe", topic)
    .option("startingOffsets", "earliest")
    .option("valueFormat", "avro")
    .option("schemaRegistry.url", registry)
    .load()
)


def show(batch: DataFrame, _: int) -> None:
    for row in batch.orderBy("offset").select("value.user", "value.qty").collect():
        print(f"order {row.qty} of {row.user}", flush=True)


query = orders.writeStream.foreachBatch(show).option("checkpointLocation", folder).start()
query.awaitTermination()
