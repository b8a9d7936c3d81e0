"""A stream and a consumer, in a process of their own: ``python -m integration.portable ARGUMENTS``.

The arguments are SERVERS TOPIC CHECKPOINT USE_DAEMON. It reads all of a topic by a stream of four
key ranges, and again by a member of a group, and prints what each had as a line of JSON:
``{"stream": [[task, key, offset], ...], "consumer": [[key, offset], ...]}``.
"""

import json
import sys

from pyspark.sql import DataFrame
from pyspark.sql.functions import spark_partition_id

from integration.spark import INTERPRETED, QUERY_S, start_spark
from kshare.group import KeySharedConsumer

RANGES = 4


def streamed(servers: str, topic: str, checkpoint: str, use_daemon: str) -> list[list[object]]:
    """The rows of a stream, with the task that read each, in the order of the task."""
    config = {**INTERPRETED, "spark.python.use.daemon": use_daemon}
    spark = start_spark(config=config)
    found: list[list[object]] = []

    def keep(rows: DataFrame, _: int) -> None:
        wanted = rows.select(spark_partition_id(), "key", "offset")
        found.extend([task, bytes(key).decode(), offset] for task, key, offset in wanted.collect())

    reader = spark.readStream.format("kshare").option("subscribe", topic)
    reader = reader.option("kafka.bootstrap.servers", servers).option("keyRanges", RANGES)
    rows = reader.option("startingOffsets", "earliest").load()
    query = rows.writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint).start()
    query.processAllAvailable()
    query.stop()
    spark.stop()
    return found


def consumed(servers: str, topic: str, records: int) -> list[list[object]]:
    """The records that the member of a group was given, until they are so many."""
    config = {"bootstrap.servers": servers, "group.id": topic, "auto.offset.reset": "earliest"}
    found: list[list[object]] = []
    with KeySharedConsumer(config) as consumer:
        consumer.subscribe([topic])
        while len(found) < records:
            some = consumer.consume(1_000, QUERY_S)
            found.extend([(each.key() or b"").decode(), each.offset()] for each in some)
    return found


def main(servers: str, topic: str, checkpoint: str, use_daemon: str) -> None:
    stream = streamed(servers, topic, checkpoint, use_daemon)
    print(json.dumps({"stream": stream, "consumer": consumed(servers, topic, len(stream))}))


if __name__ == "__main__":
    main(*sys.argv[1:])
