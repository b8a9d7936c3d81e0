"""The cache of fetched chunks: what 8 ranges of a partition fetch, and whether it slows 4 down.

``python -m bench --only chunks``. Bytes are counted between the broker and Spark, by a proxy that a
broker of this job's own advertises.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from bench import data
from bench.spark_jobs import batch_ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CACHE = "max.bytes.key.range.results"
SCALE = 0.2
"""Of the benchmark's topic: 600,000 records, so that each record counts in bytes, not in time."""

Timed = Callable[[Callable[[], float], Callable[[], float], int], tuple[list[float], list[float]]]


def measure_bytes(spark: "SparkSession") -> tuple[str, str, str, str, str, bool]:
    """A row: bytes that the broker sends to 8 ranges, and to one."""
    from integration.kafka import KafkaBroker
    from integration.proxy import CountingProxy

    broker = KafkaBroker()
    with CountingProxy(broker.ports["PLAINTEXT"]) as proxy:
        broker.config["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{proxy.port}"
        with broker as running:
            servers = running.bootstrap_servers
            data.make_topics(servers, SCALE)

            def fetched(ranges: int, **options: str) -> int:
                before = proxy.received
                batch_ranges(spark, servers, data.MAIN, ranges, **options)
                return proxy.received - before

            one, eight = fetched(1), fetched(8)
            without = fetched(8, **{CACHE: "0"})
    ratio = eight / one
    return (
        "bytes fetched for 8 ranges of a partition / for 1",
        f"{one / 1e6:.1f} MB (8 without the cache: {without / 1e6:.1f} MB)",
        f"{eight / 1e6:.1f} MB",
        f"{ratio:.2f}",
        "<= 1.3",
        ratio <= 1.3,
    )


def measure_speed(
    spark: "SparkSession", servers: str, runs: int, timed: Timed
) -> tuple[str, int, tuple[list[float], list[float]], float]:
    """A row: 4 ranges without the cache, and with it."""
    times = timed(
        lambda: batch_ranges(spark, servers, data.MAIN, 4, **{CACHE: "0"}),
        lambda: batch_ranges(spark, servers, data.MAIN, 4),
        runs,
    )
    name = "4 ranges of a partition, without the cache of chunks / with it"
    return name, data.MAIN_RECORDS, times, 1.0
