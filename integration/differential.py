"""One program, two formats: what ``format("kafka")`` does is what ``format("kshare")`` must do."""

import itertools
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from integration.kafka import KafkaBroker
from integration.spark import QUERY_S
from kshare.testing import Record, produce_all
from spark_plugin import available_now

FORMATS = ("kafka", "kshare")
DAY_MS = 86_400_000
T0 = 1_700_000_000_000  # of the first record with a timestamp of its own; then one a second
KEYS = 7
AVAILABLE_NOW: Mapping[str, Any] = {"availableNow": True}
_numbers = itertools.count()


@dataclass(frozen=True)
class World:
    """Topics that no test changes, filled once.

    Attributes:
        plain: two partitions; keys, null keys, null and empty values, headers.
        dated: one partition, 20 records, a second apart from ``T0`` on.
        transactions: committed, aborted and open transactions, and records without one.
        compacted: with holes.
        stamped: LogAppendTime.
        trimmed: begins at offset 60 of 100.
        empty: two partitions, no record.
        codecs: a topic for each codec.
    """

    servers: str
    plain: str
    dated: str
    transactions: str
    compacted: str
    stamped: str
    trimmed: str
    empty: str
    codecs: Mapping[str, str]


def make_world(broker: KafkaBroker) -> World:
    plain = broker.create_topic(partitions=2)
    for partition in (0, 1):
        broker.produce(plain, _varied(40 + 20 * partition), partition=partition)
    dated = broker.create_topic()
    broker.produce(dated, [Record(b"k", b"%d" % i, timestamp=T0 + 1000 * i) for i in range(20)])
    trimmed = broker.create_topic()
    broker.produce(trimmed, _varied(100))
    broker.trim(trimmed, 0, 60)
    stamped = broker.create_topic(config={"message.timestamp.type": "LogAppendTime"})
    broker.produce(stamped, _varied(10))
    codecs = {}
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        codecs[codec] = broker.create_topic()
        broker.produce(codecs[codec], _varied(50), config={"compression.type": codec})
    return World(
        servers=broker.bootstrap_servers,
        plain=plain,
        dated=dated,
        transactions=_transactions(broker),
        compacted=_compacted(broker),
        stamped=stamped,
        trimmed=trimmed,
        empty=broker.create_topic(partitions=2),
        codecs=codecs,
    )


def _varied(count: int) -> list[Record]:
    """Records of a few keys, some of them without key, value or headers."""
    return [
        Record(
            None if i % 5 == 4 else b"key-%d" % (i % KEYS),
            None if i % 11 == 10 else b"" if i % 13 == 12 else b"value-%d" % i,
            headers=[("a", b"%d" % i), ("b", None), ("a", b"")] if i % 3 == 0 else (),
        )
        for i in range(count)
    ]


def _transactions(broker: KafkaBroker) -> str:
    topic = broker.create_topic()
    records = [Record(b"k%d" % (i % KEYS), b"v%d" % i) for i in range(10)]
    broker.produce(topic, records)
    broker.produce_transaction(topic, records)
    broker.produce_transaction(topic, records, commit=False)
    broker.produce(topic, records)
    broker.produce_transaction(topic, records)
    # Broker and client allow no more; one that timed out would be aborted, and the log longer.
    left_open = broker.transaction(config={"transaction.timeout.ms": 900_000})
    produce_all(left_open, topic, records)
    left_open.flush(30)
    broker.produce(topic, records)
    _kept_open.append(left_open)
    return topic


_kept_open: list[Any] = []  # a producer that is gone aborts


def _compacted(broker: KafkaBroker) -> str:
    config = {
        "cleanup.policy": "compact",
        "segment.ms": 1,
        "min.cleanable.dirty.ratio": 0.001,
        "max.compaction.lag.ms": 1,
    }
    topic = broker.create_topic(config=config)
    for value in range(20):
        broker.produce(topic, [Record(b"key-%d" % k, b"%d" % value) for k in range(KEYS)])
    segments = broker.data_dir / "log" / f"{topic}-0"
    deadline = time.monotonic() + 60
    # Cleaned when the first segment has lost most of what was in it.
    while sum(f.stat().st_size for f in segments.glob("*.log")) > 4 * 20 * KEYS * 20 // 3:
        broker.produce(topic, [Record(b"key-0", b"more")])
        if time.monotonic() > deadline:
            raise TimeoutError(f"{topic} was not compacted")
        time.sleep(0.1)
    return topic


def per_partition(topic: str, *offsets: int) -> str:
    """Offsets or timestamps of a topic's partitions, in their order, as the options take them."""
    return json.dumps({topic: {str(i): offset for i, offset in enumerate(offsets)}})


# -- running a program with a format ------------------------------------------------------------


def read(spark: SparkSession, source: str, servers: str, options: Mapping[str, Any]) -> DataFrame:
    reader = spark.read.format(source).option("kafka.bootstrap.servers", servers)
    return reader.options(**options).load()


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    """All rows, in the order of topics, partitions and offsets."""
    rows = [tuple(row) for row in frame.collect()]
    at = [frame.columns.index(name) for name in ("topic", "partition", "offset")]
    return sorted(rows, key=lambda row: tuple(row[i] for i in at))


def both(
    spark: SparkSession,
    servers: str,
    options: Mapping[str, Any],
    change: Callable[[DataFrame], DataFrame] = lambda frame: frame,
) -> dict[str, tuple[Any, list[tuple[Any, ...]]]]:
    """Schema and rows of a batch query with each of the formats."""
    results = {}
    for source in FORMATS:
        frame = change(read(spark, source, servers, options))
        results[source] = (frame.schema, rows_of(frame))
    return results


@dataclass
class Stream:
    """A streaming query and its checkpoint, for one start after another.

    Attributes:
        batches: the rows of each batch that has any, in the order of the batches.
        ranges: start and end offsets of each of them, as in the progress reports.
    """

    spark: SparkSession
    servers: str
    folder: Path
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        self.checkpoint = self.folder / f"checkpoint-{next(_numbers)}"
        self.batches: list[list[tuple[Any, ...]]] = []
        self.ranges: list[tuple[Any, Any]] = []

    def start(self, source: str, trigger: Mapping[str, Any] | None = None, **more: Any) -> None:
        """Read all there is; raises what the query fails with."""
        reader = self.spark.readStream.format(source)
        reader = reader.option("kafka.bootstrap.servers", self.servers)
        settings = {"startingOffsets": "earliest", **self.options, **more}
        if "startingTimestamp" in settings or "startingOffsetsByTimestamp" in settings:
            settings.pop("startingOffsets")
        frame = reader.options(**settings).load()

        def keep(rows: DataFrame, _: int) -> None:
            collected = rows_of(rows)
            if collected:
                self.batches.append(collected)

        writer = frame.writeStream.foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        trigger = trigger or AVAILABLE_NOW
        if trigger == AVAILABLE_NOW:
            query = run_available_now(writer, source)
        else:
            query = writer.trigger(**trigger).start()
            read_all(query, trigger)
        self.ranges += [
            (p.sources[0].startOffset, p.sources[0].endOffset)
            for p in query.recentProgress
            if p.numInputRows
        ]


def run_available_now(
    writer: DataStreamWriter, source: str, table: str | None = None
) -> StreamingQuery:
    """Read all that is there, as users of a format write it, and return the ended query."""
    if source == "kshare":
        return available_now(writer, table)
    writer = writer.trigger(**AVAILABLE_NOW)
    query = writer.start() if table is None else writer.toTable(table)
    read_all(query)
    return query


def read_all(query: StreamingQuery, trigger: Mapping[str, Any] = AVAILABLE_NOW) -> None:
    """Let a query with this trigger read all there is, and stop it."""
    try:
        if "processingTime" in trigger:
            query.processAllAvailable()
        else:
            assert query.awaitTermination(QUERY_S), query.lastProgress
    finally:
        query.stop()


def streams(
    spark: SparkSession, servers: str, folder: Path, options: Mapping[str, Any]
) -> dict[str, Stream]:
    """A query for each of the formats."""
    return {source: Stream(spark, servers, folder, options) for source in FORMATS}


def error_of(run: Callable[[], object]) -> str:
    """What an action fails with. AssertionError: it does not fail."""
    try:
        run()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("there was no error")
