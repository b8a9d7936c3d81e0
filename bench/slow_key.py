"""One slow key among a thousand: the throughput of the others meanwhile.

``python -m bench.slow_key [--runs N]``. A UDF takes 100 ms over each record of one key, and 0.1 ms
over the others'. What counts is the records/s of the other keys. The slow key has a slot to itself, so
the others have 7 in each case but ``all``:

``alone``   kshare, 8 ranges, nothing is slow, 7 slots: the upper bound
``all``     the same with 8 slots, one for each range
``beside``  kshare, 8 adaptive ranges that follow their times, beside the slow key, 8 slots
``parked``  the same, with the slow key parked, 7 slots
``kafka``   Spark's source, ``repartition(8, "key")``, beside the slow key, 8 slots
"""

import argparse
import json
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from integration.kafka import KafkaBroker
from integration.spark import start_spark
from kshare.testing import Record, produce

TOPIC = "bench-slow-key"
RECORDS = 1_000_000
KEYS = 1_000
SLOW = b"key-slow"
SLOW_SECONDS = 0.1
QUICK_SECONDS = 0.0001
SLOTS = 8
OTHERS_WANTED = 500_000
TIMEOUT = 90.0

Line = tuple[str, str, str, str, bool]


def make_topics(servers: str, count: int) -> None:
    """One partition; each hundredth record is of the slow key."""
    admin = AdminClient({"bootstrap.servers": servers})
    if TOPIC in admin.list_topics(timeout=30).topics:
        return
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)
    chance = random.Random(3)
    produce(
        servers,
        TOPIC,
        (
            Record(SLOW if number % 100 == 7 else b"key-%d" % chance.randrange(KEYS), b"v" * 50)
            for number in range(count)
        ),
    )


def slow_work(folder: str, seconds: float) -> Callable[[Any], int]:
    """A function of a key that counts its calls for other keys, in a file of each process."""

    # Not annotated: with annotations Spark asks for pandas.
    def work(key):  # type: ignore[no-untyped-def]
        import os

        if bytes(key) == SLOW:
            time.sleep(seconds or QUICK_SECONDS)
            return 0
        time.sleep(QUICK_SECONDS)
        with open(f"{folder}/{os.getpid()}", "ab", buffering=0) as out:  # noqa: PTH123
            out.write(b".")
        return 1

    return work


def done(folder: str) -> int:
    """Count the records of other keys that are done."""
    return sum(file.stat().st_size for file in Path(folder).iterdir())


def others_per_second(
    spark: SparkSession,
    source: str,
    servers: str,
    topic: str,
    *,
    slow_seconds: float,
    wanted: int = OTHERS_WANTED,
    timeout: float = TIMEOUT,
    **options: str,
) -> float:
    """Records of other keys a second, until ``wanted`` of them are done or time is out."""
    folder, checkpoint = tempfile.mkdtemp(), tempfile.mkdtemp()
    try:
        reader = spark.readStream.format(source).option("kafka.bootstrap.servers", servers)
        frame = reader.option("subscribe", topic).option("startingOffsets", "earliest")
        rows = frame.options(**options).load()
        if source == "kafka":
            rows = rows.repartition(8, "key")
        worked = rows.withColumn("done", F.udf(slow_work(folder, slow_seconds), "int")("key"))
        writer = worked.writeStream.format("noop").option("checkpointLocation", checkpoint)
        began = time.perf_counter()
        query = writer.trigger(processingTime="0 seconds").start()
        finished = 0
        while finished < wanted and time.perf_counter() - began < timeout and query.isActive:
            time.sleep(0.1)
            finished = done(folder)
        seconds = time.perf_counter() - began
        if query.exception() is not None:
            raise RuntimeError(str(query.exception()))
        query.stop()
        return min(finished, wanted) / seconds
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(checkpoint, ignore_errors=True)


def in_session(slots: int, measure: Callable[[SparkSession], float]) -> float:
    """Measure in a Spark with a number of slots."""
    spark = start_spark(master=f"local[{slots}]", quick=False)
    try:
        return measure(spark)
    finally:
        spark.stop()


def measure(servers: str, runs: int, count: int) -> list[Line]:
    """The lines of the table: name, rate, ratio, target, whether it was met."""
    wanted = count // 2
    paced = {"keyRanges": "8", "rangeAssignor": "adaptive", "targetTaskDuration": "5s"}
    limited = {"maxOffsetsPerTrigger": str(count // 10)}
    parked = {**paced, "parkedKeys": json.dumps([SLOW.decode()])}
    cases: dict[str, tuple[str, int, float, dict[str, str]]] = {
        "alone": ("kshare", SLOTS - 1, 0.0, paced),
        "all": ("kshare", SLOTS, 0.0, paced),
        "beside": ("kshare", SLOTS, SLOW_SECONDS, paced),
        "parked": ("kshare", SLOTS - 1, SLOW_SECONDS, parked),
        "kafka": ("kafka", SLOTS, SLOW_SECONDS, limited),
    }
    rates: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(runs):
        for name, (source, slots, slow, options) in cases.items():
            more: dict[str, Any] = {"slow_seconds": slow, "wanted": wanted, **options}
            run = partial(others_per_second, source=source, servers=servers, topic=TOPIC, **more)
            rates[name].append(in_session(slots, run))
    alone = statistics.median(rates["alone"])

    def line(name: str, shown: str, least: float | None) -> Line:
        rate = statistics.median(rates[name])
        ratio = rate / alone
        target = "printed" if least is None else f">= {least}x"
        return shown, f"{rate:,.0f}", f"{ratio:.2f}x", target, least is None or ratio >= least

    return [
        line("alone", "nothing is slow, 7 slots", None),
        line("all", "nothing is slow, 8 slots", None),
        line("beside", "other keys beside the slow one", 0.8),
        line("parked", "other keys, the slow one parked", 0.95),
        line("kafka", "format(kafka), repartition(8, key)", None),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--records", type=int, default=RECORDS)
    arguments = parser.parse_args()
    with KafkaBroker() as broker:
        make_topics(broker.bootstrap_servers, arguments.records)
        for line in measure(broker.bootstrap_servers, arguments.runs, arguments.records):
            print(*line, sep=" | ")


if __name__ == "__main__":
    main()
