"""JSON without a schema as VARIANT, in real queries, beside ``parse_json`` over Spark's source."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from integration.differential import read, run_available_now
from integration.kafka import KafkaBroker
from kshare.testing import Record

TEXTS = [
    *(f'{{"user":"u{n}","qty":{n},"items":[{{"sku":"s{n}"}}],"price":{n}.25}}' for n in range(20)),
    *("[1, 2.5, null]", '"text"', "null", "12", '{"qty": 1e3, "big": 123456789012345678901}'),
]
BAD = ['{"user":', '{"user":"a","user":"b"}', ""]


def options_of(broker: KafkaBroker, topic: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "keyFormat": "string",
        "valueFormat": "json",
    }


def seen(frame: DataFrame) -> list[Any]:
    """The variants as bytes, and what Spark's functions make of them, in offset order."""
    taken = frame.select(
        "offset",
        "value",
        F.expr("try_variant_get(value, '$.user', 'string')").alias("user"),
        F.expr("try_variant_get(value, '$.qty', 'int')").alias("qty"),
        F.expr("try_variant_get(value, '$.items[0].sku', 'string')").alias("sku"),
        F.expr("to_json(value)").alias("json"),
        F.expr("schema_of_variant(value)").alias("kind"),
    )
    rows = taken.orderBy("offset").collect()
    return [
        (row.value and (bytes(row.value.value), bytes(row.value.metadata)), *row[2:])
        for row in rows
    ]


def test_a_batch_is_what_parse_json_gives(
    spark: SparkSession, broker: KafkaBroker, topic: str
) -> None:
    broker.produce(topic, [Record(b"k", text.encode()) for text in TEXTS] + [Record(b"k", None)])
    frame = spark.read.format("kshare").options(**options_of(broker, topic)).load()
    assert frame.schema["value"].dataType.simpleString() == "variant"
    by_spark = read(spark, "kafka", broker.bootstrap_servers, {"subscribe": topic})
    theirs = by_spark.select("offset", F.parse_json(F.col("value").cast("string")).alias("value"))
    found = seen(frame)
    assert found == seen(theirs)
    assert [row[1:4] for row in found[:20]] == [(f"u{n}", n, f"s{n}") for n in range(20)]
    assert found[-1] == (None,) * 6
    assert frame.where("variant_get(value, '$.qty', 'int') = 7").count() == 1
    again = spark.read.format("kshare").options(**options_of(broker, topic), keySchema="VARIANT")
    keys = (
        again.option("keyFormat", "json")
        .option("valueSchema", "user STRING")
        .option("badRecords", "null")
    )
    assert keys.load().schema["key"].dataType.simpleString() == "variant"


def test_bad_records_are_null_and_say_why(
    spark: SparkSession, broker: KafkaBroker, topic: str
) -> None:
    broker.produce(topic, [Record(b"k", text.encode()) for text in [*TEXTS[:2], *BAD]])
    options = options_of(broker, topic)
    columns = {"badRecords": "null", "columns": "offset,value,valueError,valueBytes"}
    frame = spark.read.format("kshare").options(**options, **columns).load()
    texts = frame.selectExpr("to_json(value)", "valueError", "CAST(valueBytes AS STRING)", "offset")
    rows = [tuple(row[:3]) for row in sorted(texts.collect(), key=lambda row: row.offset)]
    assert rows == [
        *((frame_text(n), None, None) for n in range(2)),
        (None, "value is cut short", BAD[0]),
        (None, "value has an object with two fields user", BAD[1]),
        (None, "value is empty", BAD[2]),
    ]
    failing = spark.read.format("kshare").options(**options).load()
    with pytest.raises(Exception, match=f"{topic}-0 at offset 2: value is cut short, read as json"):
        failing.collect()


def frame_text(number: int) -> str:
    """What ``to_json`` gives of a record: fields by their names."""
    return (
        f'{{"items":[{{"sku":"s{number}"}}],"price":{number}.25,"qty":{number},"user":"u{number}"}}'
    )


def test_a_stream_and_its_restart(
    spark: SparkSession, broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    """To texts by ``to_json``, some records a batch, in two starts of one checkpoint."""
    second = broker.create_topic()
    limited = {**options_of(broker, topic), "maxOffsetsPerTrigger": "13"}

    def start() -> None:
        stream = spark.readStream.format("kshare").options(**limited).load()
        writer = stream.selectExpr("key", "to_json(value) AS value").writeStream.format("kshare")
        writer = writer.option("kafka.bootstrap.servers", broker.bootstrap_servers)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        run_available_now(writer.option("topic", second), "kshare")

    broker.produce(topic, [Record(b"k", text.encode()) for text in TEXTS[:20]])
    start()
    broker.produce(topic, [Record(b"k", text.encode()) for text in TEXTS[:20]])
    start()
    written = read(spark, "kafka", broker.bootstrap_servers, {"subscribe": second})
    rows = written.selectExpr("offset", "CAST(value AS STRING) AS v").orderBy("offset").collect()
    assert [row.v for row in rows] == [frame_text(n) for n in range(20)] * 2


WRITTEN = r"""
    parse_json('{"b": [1, 2.50, {"c": null, "z": {}}], "a": "x\\n\\u0001\\u00e9", "e": -1.5e-9}')
    parse_json('[[], {}, "", -7, 300, 70000, 5000000000, 12345678901234567890, true, false, null]')
    parse_json('123456789012345678901234567890.1230')
    parse_json('0.00000001')
    parse_json('100.00')
    parse_json(concat('["', repeat('y', 70000), '"]'))
    parse_json(concat('[', repeat('{"name": 1},', 300), '1]'))
    to_variant_object(struct(1.5D AS d, CAST(0.1 AS FLOAT) AS f, 12345678.9D AS b, 1e-5D AS s))
    to_variant_object(array(0D, -0D, 1e22D, 1e7D, 9999999D, 0.001D, 0.00099D, 1.797693134862E308D))
    to_variant_object(array(CAST(16777216 AS FLOAT), CAST(3.4e38 AS FLOAT), CAST(1e-3 AS FLOAT)))
    to_variant_object(array(CAST('NaN' AS DOUBLE), CAST('Infinity' AS DOUBLE)))
    to_variant_object(array(CAST('NaN' AS FLOAT), CAST('-Infinity' AS FLOAT)))
    to_variant_object(array(DATE'2024-02-29', DATE'0001-01-01', DATE'9999-12-31'))
    to_variant_object(array(TIMESTAMP'2024-02-29 00:00:00Z', TIMESTAMP'1969-12-31 01:02:59.12045Z'))
    to_variant_object(array(TIMESTAMP_NTZ'2024-02-29 00:00:00', TIMESTAMP_NTZ'0001-01-01 00:00:01'))
    to_variant_object(array(X'00FF10', X''))
    to_variant_object(array(CAST('-1.2300' AS DECIMAL(20, 4)), CAST('0' AS DECIMAL(20, 4))))
    CAST('text' AS VARIANT)
    CAST(NULL AS VARIANT)
"""


@pytest.mark.parametrize("nested", [False, True], ids=["value", "nested"])
def test_a_sink_writes_what_to_json_gives(
    spark: SparkSession, broker: KafkaBroker, topic: str, nested: bool
) -> None:
    listed = [each.strip() for each in WRITTEN.strip().splitlines()]
    made = " UNION ALL ".join(f"SELECT {n} AS n, {each} AS v" for n, each in enumerate(listed))
    value = "struct(v, array(v, v) AS items, map('k', v) AS m)" if nested else "v"
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    rows = (
        spark.sql(made).repartition(2).selectExpr("CAST(n AS STRING) AS key", f"{value} AS value")
    )
    rows = rows.cache()
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": topic}
    writer = rows.write.format("kshare").mode("append")
    writer.options(**options, valueFormat="json").save()
    wanted = {row.key: row.json for row in rows.selectExpr("key", "to_json(value) json").collect()}
    found = read(spark, "kafka", broker.bootstrap_servers, {"subscribe": topic}).collect()
    texts = {bytes(row.key).decode(): row.value and bytes(row.value).decode() for row in found}
    differ = {key: (texts.get(key), text) for key, text in wanted.items() if texts.get(key) != text}
    assert differ == {}
    assert len(texts) == len(listed)


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_a_sink_of_another_format_refuses_variants_by_name(
    spark: SparkSession, broker: KafkaBroker, topic: str, form: str
) -> None:
    value = "struct(1 AS n, array(parse_json('1')) AS any)"
    frame = spark.range(1).selectExpr(f"{value} AS value").write.format("kshare").mode("append")
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": topic}
    path = r"value\.any"
    reason = rf"column {path}: has type variant, which only JSON has; write to_json\({path}\) in"
    with pytest.raises(Exception, match=reason):
        frame.options(**options, valueFormat=form, valueSchema="M a.desc").save()
