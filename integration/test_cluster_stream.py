"""A streaming query on several brokers: leaders move, and one broker is killed and comes back."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from integration.cluster import KafkaCluster
from kshare.testing import Record, check_order

PARTITIONS, AT_ONCE = 2, 1500


@pytest.fixture(scope="module")
def brokers() -> Iterator[KafkaCluster]:
    """One that is the controller, and one to be killed."""
    with KafkaCluster(2) as running:
        yield running


def fill(brokers: KafkaCluster, topic: str) -> None:
    for partition in range(PARTITIONS):
        records = [Record(b"key-%d" % (number % 53), b"v") for number in range(AT_ONCE)]
        brokers.produce(topic, records, partition=partition)


def test_a_query_goes_on_while_leaders_move_and_die(
    spark: SparkSession, brokers: KafkaCluster, tmp_path: Path
) -> None:
    topic = brokers.create_topic(partitions=PARTITIONS, replication=2)
    fill(brokers, topic)
    received: list[pa.Table] = []

    def keep(rows: DataFrame, batch: int) -> None:
        named = rows.selectExpr(
            "key", "partition", "offset", f"{batch} AS batch", "spark_partition_id() AS task"
        )
        received.append(named.toArrow())

    stream = (
        spark.readStream.format("kshare")
        .option("kafka.bootstrap.servers", brokers.bootstrap_servers)
        .option("fetchOffset.numRetries", "1")  # whoever fails once, fails the query
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("keyRanges", "2")
        .option("maxOffsetsPerTrigger", "1000")
        .load()
    )
    writer = stream.writeStream.option("checkpointLocation", str(tmp_path)).foreachBatch(keep)
    query = writer.start()
    try:
        query.processAllAvailable()
        for partition in range(PARTITIONS):
            leader = brokers.leader(topic, partition).node_id
            brokers.move_leader(topic, partition, 3 - leader)
        fill(brokers, topic)
        query.processAllAvailable()
        brokers.wait_until_in_sync(topic)  # else partitions wait for broker 2 to come back
        brokers.brokers[2].kill9()
        brokers.brokers[2].start()
        fill(brokers, topic)
        query.processAllAvailable()
    finally:
        query.stop()
    report = check_order(
        pa.concat_tables(received), dict.fromkeys(range(PARTITIONS), (0, 3 * AT_ONCE))
    )
    assert report.ok, str(report)
