"""``keys``: the rows of ``format("kafka")`` with a filter of the same keys, batch by batch."""

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from integration.differential import FORMATS, World, both, read
from integration.spark import QUERY_S

KEYS = ["key-3", "key-5", "nobody"]
COLUMNS = ["offset", "value", "partition"]


def only_keys(frame: DataFrame) -> DataFrame:
    return frame.where(F.col("key").cast("string").isin(KEYS))


@pytest.mark.parametrize("ranges", ["1", "5"])
def test_a_batch_query(spark: SparkSession, world: World, ranges: str) -> None:
    options = {"subscribe": f"{world.plain},{world.codecs['lz4']}", "includeHeaders": "true"}
    kafka = both(spark, world.servers, options, only_keys)["kafka"]
    options |= {"keys": json.dumps(KEYS), "minPartitions": ranges}
    kshare = both(spark, world.servers, options)["kshare"]
    assert kshare == kafka
    assert len(kafka[1]) > 20


def test_a_batch_query_with_columns(spark: SparkSession, world: World) -> None:
    """The key need not be one of the columns."""
    kafka = only_keys(read(spark, "kafka", world.servers, {"subscribe": world.plain}))
    options = {"subscribe": world.plain, "keys": json.dumps(KEYS), "columns": ",".join(COLUMNS)}
    kshare = read(spark, "kshare", world.servers, options)
    assert kshare.columns == COLUMNS
    rows = {tuple(row) for row in kshare.collect()}
    assert rows == {tuple(row) for row in kafka.select(*COLUMNS).collect()}
    assert len(rows) == kshare.count() > 10


@pytest.mark.parametrize("columns", [None, COLUMNS], ids=["all columns", "some"])
def test_a_streaming_query(
    spark: SparkSession, world: World, tmp_path: Path, columns: list[str] | None
) -> None:
    batches: dict[str, list[list[str]]] = {source: [] for source in FORMATS}
    for source, seen in batches.items():
        reader = spark.readStream.format(source).option("subscribe", world.plain)
        reader = reader.option("kafka.bootstrap.servers", world.servers)
        reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "30")
        if source == "kshare":
            reader = reader.option("keys", json.dumps(KEYS)).option("keyRanges", 2)
            if columns is not None:
                reader = reader.option("columns", ",".join(columns))
            frame = reader.load()
        else:
            frame = only_keys(reader.load())
        if columns is not None:
            frame = frame.select(*columns)

        def keep(rows: DataFrame, _: int, seen: list[list[str]] = seen) -> None:
            seen.append(sorted(repr(tuple(row)) for row in rows.collect()))

        writer = frame.writeStream.foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(tmp_path / source))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(QUERY_S), query.lastProgress
    assert batches["kshare"] == batches["kafka"]
    assert len(batches["kafka"]) == 4
    assert sum(map(len, batches["kafka"])) > 10
