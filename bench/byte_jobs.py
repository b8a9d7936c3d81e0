"""The cost of ``maxBytesPerTrigger``: the planner fetches what a batch will hold, to count its bytes.

AvailableNow in about five batches, by bytes and by offsets; kafka's source has offsets only.
"""

import statistics
from functools import partial

from bench import data
from bench.rows import Row, shown_seconds
from bench.spark_jobs import available_now
from integration.spark import start_spark

BATCHES = 5
BYTES = 36_000_000
"""The size of the log of ``data.MAIN``, about."""


def rows(servers: str, runs: int) -> list[Row]:
    """Two rows: against the same with a limit of offsets, and against kafka's source."""
    data.make_topics(servers)
    spark = start_spark(quick=False)
    by_offsets = {"maxOffsetsPerTrigger": str(data.MAIN_RECORDS // BATCHES)}
    by_bytes = {"maxBytesPerTrigger": str(BYTES // BATCHES)}
    job = partial(available_now, spark, servers=servers, topic=data.MAIN)
    ways = {
        "kafka": partial(job, source="kafka", **by_offsets),
        "offsets": partial(job, source="kshare", **by_offsets),
        "bytes": partial(job, source="kshare", **by_bytes),
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    try:
        for _ in range(runs + 1):
            for way, run in ways.items():
                times[way].append(run())
    finally:
        spark.stop()
    ours = times["bytes"][1:]
    found = []
    for way, name, target in (
        ("offsets", "maxBytesPerTrigger / maxOffsetsPerTrigger: time", 1.3),
        ("kafka", "maxBytesPerTrigger / kafka's maxOffsetsPerTrigger: time", 1.0),
    ):
        peer = times[way][1:]
        best, ratio = min(ours) / min(peer), statistics.median(ours) / statistics.median(peer)
        shown = shown_seconds(peer), shown_seconds(ours), f"{best:.2f}x ({ratio:.2f}x)"
        found.append(Row(name, *shown, f"<= {target}x", ratio <= target))
    return found
