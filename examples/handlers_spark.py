"""A slow call for each record of a query: python examples/handlers_spark.py SERVERS TOPIC FOLDER

Each task has 100 calls at a time, one after another for each key. Records that fail for good go to
the topic TOPIC.dlq; the outcomes are Parquet files. The driver needs pandas.
"""

import asyncio
import json
import sys

from pyspark.sql import SparkSession

from kshare.processing import DeadLetter, Processor, Record, Retry, process_by_key


async def score(order: Record) -> float:
    amount = float(json.loads(order.value)["amount"])
    await asyncio.sleep(0.01)  # a model is asked, or a service
    return amount / 100


def main(servers: str, topic: str, folder: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    kafka = {"kafka.bootstrap.servers": servers}
    orders = (
        spark.readStream.format("kshare")
        .options(**kafka)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("minPartitions", 4)
        .load()
    )
    processor = Processor(
        score,
        concurrency=100,
        timeout="10s",
        retry=Retry(attempts=3, on=(OSError,)),  # an order that is no JSON stays so
        on_failure=DeadLetter(f"{topic}.dlq"),
    )
    outcomes = process_by_key(orders, processor, result="double", options=kafka)
    query = (
        outcomes.writeStream.format("parquet")
        .option("path", f"{folder}/scores")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
