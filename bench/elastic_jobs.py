"""``minPartitions=auto`` while an executor is added: ``python -m bench.elastic_jobs``.

A stream reads one partition, and each record takes 2 ms, on real executors on one machine
(``local-cluster``): first on one executor of 2 slots, then on two. The query is not restarted.
"""

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from integration.kafka import KafkaBroker
from integration.spark import start_spark
from kshare.testing import Record

EXECUTORS, SLOTS = 2, 2
RECORD_SECONDS = 0.002
BATCH = 4_000  # records: at 2 ms each, more than what a batch costs anyhow
KEYS = 400
TIMEOUT_SECONDS = 120.0


@dataclass
class Batch:
    """A micro-batch: how many tasks read it, its rows, and how long it took."""

    tasks: int
    rows: int
    seconds: float


def work(_: bytes) -> int:
    """Take a while."""
    time.sleep(RECORD_SECONDS)
    return 1


@contextmanager
def running(
    spark: SparkSession, broker: KafkaBroker, topic: str, **options: str
) -> Iterator[list[Batch]]:
    """Run a stream over a topic; the list grows with each batch."""
    batches: list[Batch] = []

    def process(rows: DataFrame, _: int) -> None:
        started = time.perf_counter()
        worked = rows.select(F.spark_partition_id().alias("task"), F.udf(work, "int")("value"))
        counts = worked.groupBy("task").agg(F.sum(worked.columns[1])).collect()
        rows_seen = sum(count for _, count in counts)
        batches.append(Batch(len(counts), rows_seen, time.perf_counter() - started))

    with tempfile.TemporaryDirectory() as checkpoint:
        reader = spark.readStream.format("kshare").options(**options)
        frame = (
            reader.option("kafka.bootstrap.servers", broker.bootstrap_servers)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("minPartitions", "auto")
            .option("maxOffsetsPerTrigger", BATCH)
            .load()
        )
        writer = frame.writeStream.foreachBatch(process).option("checkpointLocation", checkpoint)
        query = writer.start()
        try:
            yield batches
        finally:
            query.stop()


def wait_for(batches: list[Batch], is_enough: Callable[[], bool], what: str) -> None:
    """Wait until the batches say enough.

    Raises:
        TimeoutError: they still do not after two minutes.
    """
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not is_enough():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not seen: {what}; tasks: {[batch.tasks for batch in batches]}")
        time.sleep(0.2)


def measure(measured: int) -> dict[str, list[Batch]]:
    """The batches on one executor and on two, so many of each.

    Raises:
        TimeoutError: tasks did not follow the slots.
    """
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    config = {
        "spark.executor.cores": str(SLOTS),
        "spark.executor.memory": "600m",
        "spark.executorEnv.PYTHONPATH": str(Path.cwd()),
        # One executor to begin with; Spark does not ask for another by itself.
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.initialExecutors": "1",
        "spark.dynamicAllocation.minExecutors": "1",
        "spark.dynamicAllocation.schedulerBacklogTimeout": "1h",
        "spark.dynamicAllocation.executorIdleTimeout": "1h",
    }
    master = f"local-cluster[{EXECUTORS},{SLOTS},1024]"
    with KafkaBroker() as broker:
        topic = broker.create_topic()
        records = [Record(b"key-%d" % (n % KEYS), b"v") for n in range(30 * BATCH)]
        broker.produce(topic, records)
        spark = start_spark(master=master, config=config, quick=False, keep_home=True)
        try:
            context = spark.sparkContext._jsc.sc()  # noqa: SLF001
            return _phases(spark, broker, topic, context, measured)
        finally:
            spark.stop()
            # local-cluster keeps its executors' files there, regardless of its settings.
            shutil.rmtree(Path(pyspark.__file__).parent / "work", ignore_errors=True)


def _phases(
    spark: SparkSession, broker: KafkaBroker, topic: str, context: Any, measured: int
) -> dict[str, list[Batch]]:
    phases: dict[str, list[Batch]] = {}
    with running(spark, broker, topic) as batches:
        for number in range(1, EXECUTORS + 1):
            slots = number * SLOTS

            def settled(slots: int = slots) -> bool:
                last = [batch.tasks for batch in batches[-measured:]]
                return last == [slots] * measured

            wait_for(batches, settled, f"{slots} tasks in {measured} batches")
            phases[f"{number} executor(s)"] = batches[-measured:]
            if number < EXECUTORS:
                assert context.requestExecutors(1)
    return phases


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print the batches")
    arguments = parser.parse_args()
    for phase, seen in measure(arguments.batches).items():
        if arguments.json:
            print(json.dumps([asdict(batch) for batch in seen]))
        else:
            rate = sum(batch.rows for batch in seen) / sum(batch.seconds for batch in seen)
            print(f"{phase}: {seen[-1].tasks} tasks, {rate:,.0f} records/s")
