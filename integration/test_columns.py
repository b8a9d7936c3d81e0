"""``columns``: the schema and rows of ``format("kafka")`` with a ``select`` of the same."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from integration.differential import World, error_of, read
from integration.kafka import KafkaBroker
from integration.spark import QUERY_S
from kshare.options.model import SOURCE_COLUMNS
from kshare.testing import Record

CHOICES = [
    ("key", "value"),
    ("value",),
    ("offset", "key"),
    ("headers",),
    ("timestamp", "timestampType", "topic", "partition"),
    tuple(reversed(SOURCE_COLUMNS)),
]
IDS = [",".join(names) for names in CHOICES]


def both(spark: SparkSession, world: World, names: tuple[str, ...], **options: str) -> list[Any]:
    """The DataFrames of both sources."""
    settings = {"subscribe": world.plain, **options}
    kafka = read(spark, "kafka", world.servers, {**settings, "includeHeaders": "true"})
    kshare = read(spark, "kshare", world.servers, {**settings, "columns": ",".join(names)})
    return [kafka.select(*names), kshare]


def rows_of(frame: DataFrame) -> list[str]:
    """All rows, in an order that needs no offsets."""
    return sorted(repr(tuple(row)) for row in frame.collect())


@pytest.mark.parametrize("names", CHOICES, ids=IDS)
def test_a_batch_query(spark: SparkSession, world: World, names: tuple[str, ...]) -> None:
    kafka, kshare = both(spark, world, names)
    assert kshare.schema == kafka.schema
    expected = rows_of(kafka)
    assert len(expected) == 100
    assert rows_of(kshare) == expected


def test_key_ranges_and_limited_offsets(spark: SparkSession, world: World) -> None:
    """Ranges of keys do not depend on the key column."""
    for names in (("value",), ("key", "offset")):
        ends = f'{{"{world.plain}": {{"0": 30, "1": 45}}}}'
        kafka, kshare = both(spark, world, names, minPartitions="6", endingOffsets=ends)
        expected = rows_of(kafka)
        assert len(expected) == 75
        assert rows_of(kshare) == expected


def test_filters(spark: SparkSession, world: World, pushed: bool) -> None:
    conditions = ["offset >= 15 AND offset < 30", "key = 'key-3'", "key IS NULL AND offset > 3"]
    for condition in conditions:
        kafka, kshare = (f.where(condition) for f in both(spark, world, ("offset", "key")))
        expected = rows_of(kafka)
        assert expected
        assert rows_of(kshare) == expected


def test_a_column_that_was_left_out(spark: SparkSession, world: World) -> None:
    kshare = both(spark, world, ("key",))[1]
    assert "UNRESOLVED_COLUMN" in error_of(lambda: kshare.select("value").collect())


@pytest.mark.parametrize(
    "names",
    [
        CHOICES[0],
        *(pytest.param(names, marks=pytest.mark.long) for names in CHOICES[1:-1]),
        CHOICES[-1],
    ],
    ids=IDS,
)
def test_a_streaming_query(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path, names: tuple[str, ...]
) -> None:
    """Batch by batch, and other columns after a restart on the same checkpoint."""
    topic = broker.create_topic(partitions=2)
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "8"}
    seen: dict[str, list[list[str]]] = {"kafka": [], "kshare": []}
    schemas: dict[str, Any] = {}

    def run(source: str, names: tuple[str, ...]) -> None:
        """Read what there is."""
        more = {"includeHeaders": "true"} if source == "kafka" else {"columns": ",".join(names)}
        reader = spark.readStream.format(source).options(**options, **more)
        frame = reader.option("kafka.bootstrap.servers", broker.bootstrap_servers).load()
        if source == "kafka":
            frame = frame.select(*names)
        schemas[source] = frame.schema

        def keep(rows: DataFrame, _: int) -> None:
            collected = rows_of(rows)
            if collected:
                seen[source].append(collected)

        writer = frame.writeStream.foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(tmp_path / source))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(QUERY_S), query.lastProgress

    for chosen in (names, ("offset", "value")):
        for number in range(10):
            record = Record(b"k%d" % number, b"v%d" % number, headers=[("h", b"%d" % number)])
            broker.produce(topic, [record], partition=number % 2)
        for source in seen:
            run(source, chosen)
        assert schemas["kshare"] == schemas["kafka"]
    assert seen["kshare"] == seen["kafka"]
    assert sum(map(len, seen["kafka"])) == 20
