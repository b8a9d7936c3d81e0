"""``maxBytesPerTrigger``: batches of a stream, in bytes of the log, on each version of Spark."""

import random
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from integration.kafka import KafkaBroker
from kshare.testing import Record
from spark_plugin import available_now

MOST = 100_000


@pytest.mark.parametrize(
    "options",
    [{}, {"keyRanges": "2", "maxRecordsPerTask": "60", "maxOffsetsPerTrigger": "5000"}],
    ids=["alone", "beside other limits"],
)
def test_batches_have_the_size_that_was_asked_for(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path, options: dict[str, str]
) -> None:
    """Records of 1 KB, then one of 150 KB, which is a batch, then small ones again."""
    topic, chance = broker.create_topic(partitions=2), random.Random(3)
    # Values that do not compress: what Kafka stores is what they have, and a little more.
    small = [Record(b"k%d" % i, chance.randbytes(1_000)) for i in range(150)]
    config = {"batch.size": 8_000}
    for partition in (0, 1):
        large = [Record(b"large", chance.randbytes(150_000))] if partition else []
        for records in (small, large, small):
            broker.produce(topic, records, partition=partition, config=config)
    sizes: list[int] = []

    def keep(rows: DataFrame, _: int) -> None:
        size = rows.agg(F.sum(F.length("value"))).collect()[0][0]
        if size:
            sizes.append(size)

    reader = spark.readStream.format("kshare").option("subscribe", topic)
    reader = reader.option("kafka.bootstrap.servers", broker.bootstrap_servers)
    reader = reader.option("startingOffsets", "earliest").option("maxBytesPerTrigger", "100000b")
    writer = reader.options(**options).load().writeStream.foreachBatch(keep)
    writer = writer.option("checkpointLocation", str(tmp_path))
    available_now(writer)
    assert sum(sizes) == 2 * 300_000 + 150_000
    assert sizes.count(150_000) == 1
    assert all(size <= MOST for size in sizes if size != 150_000)
    if not options:
        even = [size for size in sizes if size != 150_000]
        assert sum(size >= 0.8 * MOST for size in even) >= len(even) - 3, sizes
