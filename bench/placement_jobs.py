"""Where Spark runs key ranges: how often ranges of a partition share an executor, and how often they stay.

``python -m bench.placement_jobs`` runs a stream of small batches on 2 executors of 2 slots each
(``local-cluster``, real executors on one machine), 2 partitions in 2 key ranges, once with tasks
in the order of their numbers, and once as the default task assignor orders them.
"""

import argparse
import os
import shutil
import tempfile
from itertools import pairwise
from pathlib import Path

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from integration.kafka import KafkaBroker
from integration.spark import start_spark
from kshare.assignment import ApplicationState, KafkaStreamsAssignment, TaskAssignment
from kshare.testing import Record

EXECUTORS, SLOTS = 2, 2
RECORDS = 40  # of a batch and a partition


def executor_name(_: int) -> str:
    """Return the executor of a task that takes a while, so that Spark uses all slots."""
    import time

    from spark_plugin.task_side import this_executor

    time.sleep(0.02)
    return this_executor().name


def where_ranges_ran(
    spark: SparkSession, broker: KafkaBroker, batches: int, **options: str
) -> list[dict[tuple[int, int], str]]:
    """For each batch the executor of each (partition, number of its range)."""
    topic = broker.create_topic(partitions=2)
    for partition in (0, 1):
        broker.produce(topic, _records() * batches, partition=partition)
    seen: list[dict[tuple[int, int], str]] = []
    with tempfile.TemporaryDirectory() as checkpoint:
        reader = spark.readStream.format("kshare").options(**options)
        frame = (
            reader.option("kafka.bootstrap.servers", broker.bootstrap_servers)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("keyRanges", "2")
            .option("maxOffsetsPerTrigger", 2 * RECORDS)
            .load()
        )

        def keep(rows: DataFrame, _: int) -> None:
            name = F.udf(executor_name, "string")("partition")
            placed = rows.select("partition", "key", name)
            halves: dict[tuple[int, int], str] = {}
            for partition, key, executor in placed.distinct().collect():
                halves[partition, int(bytes(key) >= b"m")] = executor
            seen.append(halves)

        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
    return seen


def _records() -> list[Record]:
    """Keys of both halves of the hash space: lower case of one, upper case of the other."""
    from kshare.core.hashing import HASH_SPACE, key_hash

    low = [b"a%d" % n for n in range(400) if key_hash(b"a%d" % n, 0) < HASH_SPACE // 2]
    high = [b"z%d" % n for n in range(400) if key_hash(b"z%d" % n, 0) >= HASH_SPACE // 2]
    return [Record(key, b"v") for key in (low[: RECORDS // 2] + high[: RECORDS // 2])]


def shares(seen: list[dict[tuple[int, int], str]]) -> tuple[float, float]:
    """How often both halves of a partition had one executor, and how often a half stayed."""
    together = [one[p, 0] == one[p, 1] for one in seen for p in (0, 1)]
    stayed = [before[half] == after[half] for before, after in pairwise(seen) for half in before]
    return sum(together) / len(together), sum(stayed) / max(len(stayed), 1)


def measure(batches: int) -> dict[str, tuple[float, float]]:
    """Shares by name; the first batches, before executors are known, are left out."""
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    results: dict[str, tuple[float, float]] = {}
    with KafkaBroker() as broker:
        spark = start_spark(
            master=f"local-cluster[{EXECUTORS},{SLOTS},1024]",
            config={
                "spark.executor.memory": "600m",
                "spark.executorEnv.PYTHONPATH": str(Path.cwd()),
            },
            quick=False,
            keep_home=True,
        )
        try:
            # An assignor that keeps the order of numbers: what there would be without one.
            plain = {"taskAssignor": "bench.placement_jobs.InTurn"}
            for name, options in (("by number", plain), ("by rounds", {})):
                seen = where_ranges_ran(spark, broker, batches + 4, **options)
                results[name] = shares(seen[4:])
        finally:
            spark.stop()
            # local-cluster keeps its executors' files there, regardless of its settings.
            shutil.rmtree(Path(pyspark.__file__).parent / "work", ignore_errors=True)
    return results


class InTurn:
    """Keeps the order of numbers: it leaves all tasks out, and they are added in order."""

    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        states = application_state.kafka_streams_states()
        return TaskAssignment(tuple(KafkaStreamsAssignment(process) for process in states))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=40)
    for order, (together, stayed) in measure(parser.parse_args().batches).items():
        print(f"{order}: siblings together {together:.0%}, a range stayed {stayed:.0%}")
