"""Writing to Kafka through Spark: 1 M rows of 100 bytes, against Spark's own sink.

``python -m bench.sink_jobs [--runs N] [--bootstrap-servers HOST:PORT]``
"""

import argparse
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

ROWS = 1_000_000
KEYS = 100_000
PARTITIONS = 4
TASKS = 2
ROW_BYTES = 100  # key and value

Times = tuple[list[float], list[float]]


def make_rows(spark: SparkSession, folder: str) -> str:
    """Parquet files of keys and values, one for each task; where they are."""
    number = F.col("id") % KEYS
    key = F.format_string("key-%08d", number)
    # Half of a value is noise, so that codecs behave as they do with real payloads.
    value = F.concat(F.lit("{'user': 'someone', 'action': 'click'}      "), F.sha2(key, 256))
    path = str(Path(folder) / "rows")
    rows = spark.range(0, ROWS, 1, TASKS).select(
        key.cast("binary").alias("key"),
        F.substring(value, 1, ROW_BYTES - 12).cast("binary").alias("value"),
    )
    rows.write.parquet(path)
    return path


@contextmanager
def new_topic(servers: str) -> Iterator[str]:
    """A topic for one run, deleted after it; every row must be in it by then."""
    admin = AdminClient({"bootstrap.servers": servers})
    topic = f"bench-sink-{uuid.uuid4().hex[:12]}"
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    try:
        yield topic
        ends = {
            TopicPartition(topic, number): OffsetSpec.latest()  # type: ignore[no-untyped-call]
            for number in range(PARTITIONS)
        }
        written = sum(end.result(30).offset for end in admin.list_offsets(ends).values())
        if written < ROWS:
            raise SystemExit(f"{topic} holds {written:,} records, not {ROWS:,}")
    finally:
        admin.delete_topics([topic])[topic].result(30)


def batch_write(rows: DataFrame, sink: str, servers: str) -> float:
    """Seconds to write all rows in a batch query."""
    with new_topic(servers) as topic:
        began = time.perf_counter()
        writer = rows.write.format(sink).mode("append").option("topic", topic)
        writer.option("kafka.bootstrap.servers", servers).save()
        return time.perf_counter() - began


def stream_write(spark: SparkSession, path: str, sink: str, servers: str, **options: str) -> float:
    """Seconds of the one trigger that writes all rows, without the start of the query."""
    with new_topic(servers) as topic, tempfile.TemporaryDirectory() as checkpoint:
        stream = spark.readStream.schema("key binary, value binary").parquet(path)
        writer = stream.writeStream.format(sink).option("topic", topic).options(**options)
        writer = writer.option("kafka.bootstrap.servers", servers)
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        query = writer.start()
        query.awaitTermination()
        took: list[int] = [
            progress["durationMs"]["triggerExecution"] for progress in query.recentProgress
        ]
        return max(took) / 1000


def measure(
    servers: str, runs: int, interleaved: Callable[..., Times]
) -> Iterator[tuple[str, int, Times, float]]:
    """Rows of the table: what, how many records, times of both sides, and the target."""
    from integration.spark import start_spark

    spark = start_spark(quick=False)
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = make_rows(spark, folder)
            rows = spark.read.parquet(path)
            for name, peer, ours, target in (
                (
                    "sink, batch",
                    lambda: batch_write(rows, "kafka", servers),
                    lambda: batch_write(rows, "kshare", servers),
                    1.0,
                ),
                (
                    "sink, streaming",
                    lambda: stream_write(spark, path, "kafka", servers),
                    lambda: stream_write(spark, path, "kshare", servers),
                    1.0,
                ),
                (
                    "sink, streaming, exactlyOnce=true (the peer: at least once)",
                    lambda: stream_write(spark, path, "kafka", servers),
                    lambda: stream_write(spark, path, "kshare", servers, exactlyOnce="true"),
                    0.8,
                ),
            ):
                yield name, ROWS, interleaved(peer, ours, runs), target
    finally:
        spark.stop()


def main() -> int:
    """Run and print the table's rows."""
    from bench.rows import interleaved, speed_row
    from integration.kafka import KafkaBroker

    parser = argparse.ArgumentParser(prog="python -m bench.sink_jobs", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--bootstrap-servers", help="a running broker, instead of one made here")
    arguments = parser.parse_args()
    met = True
    with ExitStack() as stack:
        servers = arguments.bootstrap_servers
        if not servers:
            servers = stack.enter_context(KafkaBroker()).bootstrap_servers
        for row in measure(servers, arguments.runs, interleaved):
            shown = speed_row(*row)
            print(shown, flush=True)
            met &= shown.met
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
