"""Handlers of 10 ms in Spark: ``process_by_key`` against ``mapInArrow`` with a plain loop.

``python -m bench.handler_jobs [--runs N]``; two slots, 1,000 keys.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from bench.rows import Row, interleaved
from kshare.processing import Processor, Record, process_by_key

KEYS = 1_000
TASKS = 2
WORK_SECONDS = 0.01
OURS, PLAIN = 100_000, 600
"""Number of rows on either side; a plain loop does 100 a second and slot."""
CONCURRENCY = 500


async def work(_: Record) -> int:
    """A request that takes 10 ms."""
    await asyncio.sleep(WORK_SECONDS)
    return time.time_ns()


def rows(spark: SparkSession, count: int) -> DataFrame:
    """Rows of 1,000 keys, each key in one task."""
    task = F.floor(F.col("id") / (count // TASKS))
    key = task * (KEYS // TASKS) + F.col("id") % (KEYS // TASKS)
    frame = spark.range(0, count, 1, TASKS)
    return frame.select(key.cast("string").alias("key"), F.col("id").alias("value"))


def by_key(spark: SparkSession, count: int = OURS) -> DataFrame:
    """The outcomes of so many rows."""
    processor = Processor(work, concurrency=CONCURRENCY)
    outcomes: DataFrame = process_by_key(rows(spark, count), processor, result="bigint")
    return outcomes


def plain_loop(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same work, one row after another."""
    for batch in batches:
        for _ in range(batch.num_rows):
            time.sleep(WORK_SECONDS)
        yield batch


def rate(frame: DataFrame, count: int) -> float:
    """Rows a second."""
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return count / (time.perf_counter() - began)


def overtaking(spark: SparkSession) -> int:
    """Number of rows that were done before an earlier one of their key."""
    before = F.lag("result").over(Window.partitionBy("key").orderBy("value"))
    return by_key(spark, OURS // 5).select(before.alias("before"), "result").where(
        "before > result"
    ).count()  # fmt: skip


def measure(spark: SparkSession, runs: int) -> Row:
    """The row of the table."""
    schema = "key string, value bigint"
    plain = rows(spark, PLAIN).mapInArrow(plain_loop, schema)
    theirs, ours = interleaved(lambda: rate(plain, PLAIN), lambda: rate(by_key(spark), OURS), runs)
    late = overtaking(spark)
    ratio = statistics.median(ours) / statistics.median(theirs)
    return Row(
        "a handler of 10 ms in Spark: process_by_key / mapInArrow with a loop",
        f"{statistics.median(theirs):,.0f} records/s",
        f"{statistics.median(ours):,.0f} records/s" + (f", {late} OUT OF ORDER" if late else ""),
        f"{max(ours) / max(theirs):.0f}x ({ratio:.0f}x)",
        ">= 100x",
        ratio >= 100 and not late,
    )


def main() -> int:
    """Run and print the row."""
    from integration.driver_pandas import pandas_folder
    from integration.spark import start_spark

    sys.path.append(str(pandas_folder()))
    parser = argparse.ArgumentParser(prog="python -m bench.handler_jobs", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    spark = start_spark(quick=False)
    try:
        row = measure(spark, parser.parse_args().runs)
    finally:
        spark.stop()
    print(row)
    return 0 if row.met else 1


if __name__ == "__main__":
    sys.exit(main())
