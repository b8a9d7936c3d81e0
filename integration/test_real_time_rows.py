"""``realTime`` in Spark: rows are at Spark's own sink amid the micro-batch that reads them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from integration.kafka import KafkaBroker
from kshare.cli import main as kshare_command
from kshare.core.hashing import HASH_SPACE, WHOLE, key_hash
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Rectangle, Slice
from kshare.testing.records import watermarks
from kshare.typed_slices import read_slice
from tests.support.clock import until

WAIT_S = 240.0
LONG = "30 min"
"""Longer than a test waits: what comes out does so amid a micro-batch."""


@contextmanager
def copying(
    spark: SparkSession, broker: KafkaBroker, topics: tuple[str, str], folder: Path, **options: str
) -> Iterator[StreamingQuery]:
    """A query that copies records from one topic to another one as they come."""
    servers = broker.bootstrap_servers
    reader = spark.readStream.format("kshare").option("kafka.bootstrap.servers", servers)
    frame = reader.options(subscribe=topics[0], realTime=LONG, **options).load()
    writer = frame.select("key", "value").writeStream.format("kafka").option("topic", topics[1])
    writer = writer.option("kafka.bootstrap.servers", servers)
    query = writer.option("checkpointLocation", str(folder)).start()
    try:
        yield query
    finally:
        query.stop()


def test_rows_leave_amid_a_batch_and_parked_keys_wait(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path, capsys: Any
) -> None:
    """The last row, too."""
    topic, out = broker.create_topic(), broker.create_topic()
    servers = broker.bootstrap_servers
    started = {"startingOffsets": "earliest", "keyRanges": "2"}

    # Of the same half of the hashes, so one task reads both, in the order of the log.
    half = key_hash(b"waits", 0) // (HASH_SPACE // 2)
    names = (f"goes-{number}" for number in count())
    goes = next(name for name in names if key_hash(name.encode(), 0) // (HASH_SPACE // 2) == half)

    def values() -> list[str]:
        end = int(watermarks(servers, out, 0)[1])
        if not end:
            return []
        whole = Slice(out, 0, (Rectangle(OffsetRange(0, end), WHOLE),))
        batches = read_slice(whole, {"kafka.bootstrap.servers": servers})
        return [value.decode() for batch in batches for value in batch.column("value").to_pylist()]

    def goes_out(number: int) -> None:
        broker.produce(topic, [("waits", f"w{number}"), (goes, f"g{number}")], partition=0)
        until(lambda: f"g{number}" in values(), WAIT_S)

    with copying(spark, broker, (topic, out), tmp_path, **started) as query:
        for number in range(3):  # one after the other: no row waits for the next one
            goes_out(number)
        assert {"w0", "w1", "w2"} < set(values())
        where = ["--bootstrap-servers", servers, "--topic", topic]
        assert kshare_command(["park", *where, "waits"]) == 0
        numbers = count(3)

        def is_held() -> bool:
            goes_out(number := next(numbers))
            return f"w{number}" not in values()

        until(is_held, WAIT_S)
        assert query.exception() is None
        assert not (tmp_path / "commits" / "0").exists()
    assert kshare_command(["unpark", *where, "waits"]) == 0
    offsets = (tmp_path / "offsets" / "0").read_text().splitlines()[-1]
    assert json.loads(offsets)["@kshare"]["open"]["ms"] == 1_800_000
    capsys.readouterr()
