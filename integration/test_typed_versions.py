"""Typed rows of all types through sink and source, on each version of Spark.

How rows cross into the JVM differs by version: a type that one of them takes for another one is
seen here, in batches and streams, beside what Spark's own functions read.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from integration.differential import error_of, read, run_available_now
from integration.kafka import KafkaBroker
from kshare.testing import FakeRegistry, Record
from tests.support.protobuf_messages import Schema, message

# Times to the millisecond: JSON has no more.
ALL_FORMATS = """
    SELECT id AS n, CAST(id AS INT) AS i, CAST(id AS STRING) AS s, id % 2 = 0 AS b,
        IF(id % 3 = 0, NULL, CAST(id * 1.25 AS DOUBLE)) AS d, CAST(id / 8 AS FLOAT) AS f,
        CAST(CAST(id AS STRING) AS BINARY) AS y, TIMESTAMP_MILLIS(400000000123 * (id - 15)) AS at,
        STRUCT(id AS x, IF(id = 1, NULL, 'q"\\n') AS t) AS inner,
        ARRAY(1, CAST(id AS INT)) AS items, ARRAY(STRUCT(id AS x, 't' AS t)) AS structs,
        MAP('k', id) AS m
    FROM RANGE(20)
"""
MORE = {
    "dec": "CAST(n AS DECIMAL(12, 3))",
    "day": "DATE'2020-02-28' + i",
    "local": "CAST(TIMESTAMP_MILLIS(n * 999) AS TIMESTAMP_NTZ)",
    "gaps": "ARRAY(1, NULL, i)",
    "holes": "MAP('k', n, 'none', NULL)",
    "deep": "MAP('k', ARRAY(STRUCT(n AS x)))",
}
ROW = Schema(
    message(
        "Row",
        "optional int64 n = 1",
        "optional int32 i = 2",
        "optional string s = 3",
        "optional bool b = 4",
        "optional double d = 5",
        "optional float f = 6",
        "optional bytes y = 7",
        ".google.protobuf.Timestamp at = 8",
        ".shop.Inner inner = 9",
        "repeated int32 items = 10",
        "repeated .shop.Inner structs = 11",
        "map string int64 m = 12",
    ),
    message("Inner", "optional int64 x = 1", "optional string t = 2"),
)
FORMATS = ("avro", "json", "protobuf")


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry() as fake:
        yield fake


def rows(spark: SparkSession, form: str) -> DataFrame:
    """Rows of all types that a format has; one of them is null."""
    frame = spark.sql(ALL_FORMATS)
    for name, expression in MORE.items() if form != "protobuf" else ():
        frame = frame.withColumn(name, F.expr(expression))
    key, value = F.col("s").alias("key"), F.when(F.col("n") != 7, F.struct("*")).alias("value")
    return frame.coalesce(1).select(key, value)


def ddl(kind: Any) -> str:
    assert isinstance(kind, StructType)
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in kind)


class Pipe:
    """A topic of rows in a format: the options of its sink and of its source."""

    def __init__(self, broker: KafkaBroker, registry: FakeRegistry, form: str, kind: Any) -> None:
        self.topic, self._servers = broker.create_topic(), broker.bootstrap_servers
        if form == "avro":
            both = {"schemaRegistry.url": registry.url}
            self._sink = {**both, "autoRegister": "true"}
            self._source = {**both, "keyFraming": "none"}
        elif form == "json":
            self._sink, self._source = {}, {"valueSchema": ddl(kind)}
        else:
            self._sink = self._source = {"valueSchema": f"shop.Row {ROW.text}"}
        self._form = {"valueFormat": form, "kafka.bootstrap.servers": self._servers}

    @property
    def sink(self) -> dict[str, str]:
        return {**self._form, **self._sink, "topic": self.topic}

    @property
    def source(self) -> dict[str, str]:
        options = {"subscribe": self.topic, "keyFormat": "string", "startingOffsets": "earliest"}
        return {**self._form, **self._source, **options}

    def frame(self, spark: SparkSession) -> DataFrame:
        """What is in the topic."""
        return spark.read.format("kshare").options(**self.source).load()


def values(frame: DataFrame) -> list[Any]:
    """Keys and values, in offset order."""
    return [(row.key, row.value) for row in frame.orderBy("offset").collect()]


@pytest.mark.parametrize("form", FORMATS)
def test_a_batch_of_all_types(
    spark: SparkSession, broker: KafkaBroker, registry: FakeRegistry, form: str
) -> None:
    wanted = rows(spark, form)
    kind = wanted.schema["value"].dataType
    pipe = Pipe(broker, registry, form, kind)
    wanted.write.format("kshare").mode("append").options(**pipe.sink).save()
    found = pipe.frame(spark)
    assert found.schema["value"].dataType.simpleString() == kind.simpleString()
    assert values(found) == [(row.key, row.value) for row in wanted.collect()]
    few = found.where("value.n > 15").selectExpr("value.inner.x AS x", "value.items[1] AS i")
    assert sorted(tuple(row) for row in few.collect()) == [(n, n) for n in range(16, 20)]
    if form == "json":
        by_spark = read(spark, "kafka", broker.bootstrap_servers, {"subscribe": pipe.topic})
        made = F.from_json(F.col("value").cast("string"), ddl(kind)).alias("value")
        theirs = by_spark.select(F.col("key").cast("string").alias("key"), made, "offset")
        assert found.schema["value"] == theirs.schema["value"]
        assert values(found) == values(theirs)


@pytest.mark.parametrize("form", FORMATS)
def test_a_stream_of_all_types_and_its_restart(
    spark: SparkSession, broker: KafkaBroker, registry: FakeRegistry, tmp_path: Path, form: str
) -> None:
    """From typed rows to typed rows, some records a batch, in two starts of one checkpoint."""
    frame = rows(spark, form)
    wanted = [(row.key, row.value) for row in frame.collect()]
    kind = frame.schema["value"].dataType
    first, second = (Pipe(broker, registry, form, kind) for _ in range(2))

    def start() -> int:
        frame.write.format("kshare").mode("append").options(**first.sink).save()
        limited = {**first.source, "maxOffsetsPerTrigger": "13"}
        stream = spark.readStream.format("kshare").options(**limited).load()
        assert stream.schema["value"].dataType.simpleString() == kind.simpleString()
        writer = stream.select("key", "value").writeStream.format("kshare").options(**second.sink)
        query = run_available_now(writer.option("checkpointLocation", str(tmp_path)), "kshare")
        return sum(progress.numInputRows > 0 for progress in query.recentProgress)

    assert start() == 2
    assert values(second.frame(spark)) == wanted
    assert start() == 2
    assert values(second.frame(spark)) == [*wanted, *wanted]


def test_bad_json_in_a_stream(spark: SparkSession, broker: KafkaBroker, tmp_path: Path) -> None:
    """It fails the query by name, or is a row with the reason and the bytes."""
    topic = broker.create_topic()
    broker.produce(topic, [Record("k", '{"a": 1}'), Record("k", '{"a": "x"}'), Record("k", None)])
    options = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "valueFormat": "json",
        "valueSchema": "a INT",
    }

    def run(**more: str) -> list[Any]:
        stream = spark.readStream.format("kshare").options(**{**options, **more}).load()
        found: list[Any] = []
        writer = stream.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
        place = str(tmp_path / more.get("badRecords", "fail"))
        run_available_now(writer.option("checkpointLocation", place), "kshare")
        return [tuple(row) for row in found]

    assert f"{topic}-0 at offset 1: value.a has" in error_of(run)
    found = run(badRecords="null", columns="offset,value,valueError,valueBytes")
    found.sort()
    assert [(offset, row and row.a, raw) for offset, row, _, raw in found] == [
        (0, 1, None),
        (1, None, b'{"a": "x"}'),
        (2, None, None),
    ]
    assert [reason is not None for _, _, reason, _ in found] == [False, True, False]
