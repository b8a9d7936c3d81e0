"""What the sink encodes is what Spark's own functions write, and what they read again."""

import io
import json
from typing import Any
from urllib.request import urlopen

import fastavro
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from integration.differential import error_of, read
from integration.kafka import KafkaBroker
from kshare.testing import FakeRegistry

ROWS = """
    SELECT id AS n, CAST(id AS INT) AS i, CAST(id AS STRING) AS s, id % 2 = 0 AS b,
        IF(id % 3 = 0, NULL, CAST(id * 1.25 AS DOUBLE)) AS d, CAST(id / 7 AS FLOAT) AS f,
        CAST(id AS DECIMAL(12, 3)) AS m, CAST(CAST(id AS STRING) AS BINARY) AS y,
        DATE'2020-02-28' + CAST(id AS INT) AS day,
        TIMESTAMP_MICROS(400000000123456 * (id - 15)) AS at,
        CAST(TIMESTAMP_MICROS(id * 999) AS TIMESTAMP_NTZ) AS local,
        STRUCT(id AS x, IF(id = 1, NULL, 'q"\\n') AS t) AS inner,
        ARRAY(1, NULL, CAST(id AS INT)) AS items, ARRAY(STRUCT(id AS x)) AS structs,
        MAP('k', id, 'none', NULL) AS m2
    FROM RANGE(20)
"""


def rows(spark: SparkSession) -> DataFrame:
    return spark.sql(ROWS).select(
        F.col("s").alias("key"),
        F.when(F.col("n") != 7, F.struct("*")).alias("value"),
    )


def registry_schema(registry: FakeRegistry) -> str:
    with urlopen(f"{registry.url}/schemas/ids/42") as answer:
        return str(json.load(answer)["schema"])


def write(frame: DataFrame, servers: str, **options: Any) -> None:
    writer = frame.coalesce(1).write.format("kshare").mode("append")
    writer.option("kafka.bootstrap.servers", servers).options(**options).save()


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_json_is_that_of_to_json(
    spark: SparkSession, broker: KafkaBroker, topic: str, zone: str
) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", str(zone))
    try:
        frame = rows(spark)
        write(frame, broker.bootstrap_servers, topic=topic, valueFormat="json")
        wanted = [row[0] for row in frame.select(F.to_json("value")).collect()]
        written = read(spark, "kafka", broker.bootstrap_servers, {"subscribe": topic})
        schema = frame.schema["value"].dataType.simpleString()
        text = written.orderBy("offset").select(F.col("value").cast("string").alias("value"))
        found = [row[0] for row in text.collect()]
        assert [one and json.loads(one) for one in found] == [
            one and json.loads(one) for one in wanted
        ]
        again = text.select(F.from_json("value", schema)).collect()
        by_spark = frame.select(F.from_json(F.to_json("value"), schema)).collect()
        assert again == by_spark
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))


def test_avro_with_a_registry(spark: SparkSession, broker: KafkaBroker, topic: str) -> None:
    """The schema of the rows is registered, and Confluent's framing stands in front."""
    frame = rows(spark)
    with FakeRegistry(first_id=42) as registry:
        options = {"topic": topic, "valueFormat": "avro", "schemaRegistry.url": registry.url}
        said = error_of(lambda: write(frame, broker.bootstrap_servers, **options))
        assert f"{topic}-value" in said
        assert "autoRegister=true" in said
        assert broker.latest(topic) == 0
        write(frame, broker.bootstrap_servers, autoRegister="true", **options)
        written = read(spark, "kafka", broker.bootstrap_servers, {"subscribe": topic})
        found = [row.value for row in written.orderBy("offset").collect()]
        schema = fastavro.parse_schema(json.loads(registry_schema(registry)))
    wanted = [row.value for row in frame.collect()]
    for one, row in zip(found, wanted, strict=True):
        if row is not None:
            record: Any = fastavro.schemaless_reader(io.BytesIO(one[5:]), schema)
            assert record["n"] == row.n
            assert record["m"] == row.m
            assert record["day"] == row.day
            assert record["inner"] == row.inner.asDict()
            assert record["items"] == row["items"]
            assert record["m2"] == row.m2
            assert record["at"].timestamp() == row["at"].timestamp()
    assert found[7] is None
    assert {bytes(one[:5]) for one in found if one is not None} == {b"\0\0\0\0\x2a"}


def test_values_that_cannot_be_written(
    spark: SparkSession, broker: KafkaBroker, topic: str
) -> None:
    schema = fastavro.schema.to_parsing_canonical_form(
        {
            "type": "record",
            "name": "R",
            "fields": [{"name": "d", "type": "double"}],
        }
    )
    frame = spark.sql(ROWS).select(F.struct("d").alias("value"))
    options = {"topic": topic, "valueFormat": "avro", "valueSchema": schema}
    said = error_of(lambda: write(frame, broker.bootstrap_servers, **options))
    assert "as avro: value.d is null, and its schema is double" in said
    assert broker.latest(topic) == 0
    said = error_of(
        lambda: write(
            frame, broker.bootstrap_servers, **{**options, "valueSchema": '"int"'}, keyFormat="x"
        )
    )
    assert "keyFormat: " in said
