"""Alignment in event time, against ``format("kafka")``, where nothing needs to be aligned.

Four partitions hold the same records of three hours. Both sides count windows behind a watermark, in
five batches of ``maxOffsetsPerTrigger``; kshare with ``maxTimeAhead``, and so with one more read of
each partition and one more request a batch.
"""

import statistics
import tempfile
from functools import partial
from pathlib import Path

from bench.rows import Row, interleaved, shown_seconds
from integration.event_time import ALIGNED, count_windows, fill, spread
from integration.spark import start_spark
from integration.topics import Topics

PARTITIONS, RECORDS, BATCHES = 4, 1_000_000, 5


class _Running(Topics):
    """A broker that somebody else has started."""

    is_calm = True

    def __init__(self, servers: str) -> None:
        self._servers = servers

    @property
    def bootstrap_servers(self) -> str:
        return self._servers


def rows(servers: str, runs: int) -> list[Row]:
    """One row: even data."""
    broker = _Running(servers)
    each = RECORDS // PARTITIONS
    topic = fill(broker, [list(spread(each, number)) for number in range(PARTITIONS)])
    limits = {"maxOffsetsPerTrigger": str(RECORDS // BATCHES)}
    spark = start_spark(quick=False)

    def run(source: str, options: dict[str, str]) -> float:
        with tempfile.TemporaryDirectory(prefix="kshare-bench-") as folder:
            found = count_windows(
                spark, broker, topic, Path(folder), source=source, options=limits | options
            )
        if found.counted != RECORDS:
            raise AssertionError(f"{source} counted {found.counted} of {RECORDS} records")
        return found.seconds

    try:
        peer, ours = interleaved(partial(run, "kafka", {}), partial(run, "kshare", ALIGNED), runs)
    finally:
        spark.stop()
    ratio = statistics.median(ours) / statistics.median(peer)
    return [
        Row(
            "maxTimeAhead, even partitions, windows behind a watermark: time",
            shown_seconds(peer),
            shown_seconds(ours),
            f"{min(ours) / min(peer):.2f}x ({ratio:.2f}x)",
            "<= 1.1x",
            ratio <= 1.1,
        )
    ]
