"""Queries with several sources, and with sources that have names: as with format("kafka")."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from integration.differential import FORMATS, World, read_all, rows_of
from kshare.cli.checkpoint import drop_ranges
from kshare.core.progress import TopicPartition
from kshare.monitor.status import read_checkpoint

EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


def source_of(
    spark: SparkSession, source: str, world: World, topic: str, name: str | None
) -> DataFrame:
    reader = spark.readStream.format(source).option("kafka.bootstrap.servers", world.servers)
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "17")
    if name is not None:
        reader = reader.name(name)
    return reader.option("subscribe", topic).load()


@pytest.mark.parametrize(
    "names",
    [
        pytest.param((None, None), id="unnamed", marks=pytest.mark.long),
        pytest.param(("orders", "a_b"), id="named"),
    ],
)
def test_two_sources(
    spark: SparkSession, world: World, tmp_path: Path, names: tuple[str | None, str | None]
) -> None:
    """Of which one ends long before the other; a second start reads nothing."""
    spark.conf.set(EVOLUTION, str(names[0] is not None).lower())
    batches: dict[str, list[list[object]]] = {}
    for source in FORMATS:
        seen: list[list[object]] = []

        def keep(rows: DataFrame, _: int, seen: list[list[object]] = seen) -> None:
            seen.append(list(rows_of(rows)))

        first = source_of(spark, source, world, world.plain, names[0])
        second = source_of(spark, source, world, world.dated, names[1])
        writer = first.union(second).writeStream.foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(tmp_path / source))
        for _ in range(2):
            read_all(writer.trigger(availableNow=True).start(), {"availableNow": True})
        batches[source] = [rows for rows in seen if rows]
    spark.conf.unset(EVOLUTION)
    assert batches["kshare"] == batches["kafka"]
    assert sum(map(len, batches["kshare"])) == 120
    checkpoint = str(tmp_path / "kshare")
    status = read_checkpoint(checkpoint)
    reached = {tp: done.stable for one in status.sources for tp, done in one.done.items()}
    assert reached == {
        TopicPartition(world.plain, 0): 40,
        TopicPartition(world.plain, 1): 60,
        TopicPartition(world.dated, 0): 20,
    }
    assert {one.name for one in status.sources} == set(names)
    assert drop_ranges(checkpoint).dropped == ()
