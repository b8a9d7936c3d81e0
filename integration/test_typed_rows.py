"""Typed rows in real queries: batch, stream, restarts, bad records, and a registry that is down."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from pyspark.sql import SparkSession

from integration.differential import error_of
from integration.kafka import KafkaBroker
from integration.orders import NEWER, NOTE, ORDER, Orders, log_of, row
from integration.spark import QUERY_S
from kshare.testing import FakeRegistry, Record


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry(first_id=100) as fake:
        yield fake


@pytest.fixture
def orders(spark: SparkSession, broker: KafkaBroker, topic: str, registry: FakeRegistry) -> Orders:
    return Orders(spark, broker, topic, registry.url)


def test_a_batch(orders: Orders) -> None:
    orders.write(ORDER, range(5))
    orders.write(NEWER, range(5, 7), note="n")
    frame = orders.batch(minPartitions="4")
    assert frame.select("key", "value").schema.simpleString() == (
        "struct<key:string,value:struct<user:string,qty:int,items:array<struct<sku:bigint>>,"
        "note:string>>"
    )
    found = [tuple(each) for each in frame.orderBy("offset").select("value.*").collect()]
    assert found == [*(row(n, "-") for n in range(5)), row(5, "n"), row(6, "n")]
    chosen = orders.batch(valueFields="user,items.sku", columns="value")
    assert [each[0] for each in chosen.selectExpr("sum(value.items[0].sku)").collect()] == [21]
    few = frame.where("value.qty > 4 AND offset < 6").select("key")
    assert [each[0] for each in few.collect()] == ["k5"]


def test_a_stream_reads_newer_records_and_shows_new_fields_after_a_restart(
    orders: Orders, tmp_path: Path
) -> None:
    orders.write(ORDER, range(3))
    rows = orders.run(tmp_path, lambda: orders.write(NEWER, range(3, 5), note="n"))
    assert rows == [row(n) for n in range(5)]
    orders.write(NEWER, range(5, 6), note="n")
    assert orders.run(tmp_path) == [row(5, "n")]
    written = [json.loads(each.read_text().splitlines()[-1]) for each in log_of(tmp_path)]
    assert [each["@kshare"]["schemas"]["value"] for each in written] == [
        "avro id:100",
        "avro id:100",
        "avro id:101",
    ]


def test_known_ids_go_on_while_the_registry_is_down(
    orders: Orders, registry: FakeRegistry, tmp_path: Path
) -> None:
    orders.write(ORDER, range(2))
    orders.write(NEWER, range(2, 3), note="n")

    def known_alone() -> None:
        orders.write(ORDER, range(3, 4))
        orders.write(NEWER, range(4, 5), note="n")
        registry.stop()

    rows = orders.run(tmp_path, known_alone, valueSchema="id:100")
    assert rows == [row(n) for n in range(5)]
    asked = [each for each in registry.requests if each == "GET /schemas/ids/101"]
    assert len(asked) == 1
    registry.start()


def test_bad_records_fail_by_name_or_are_null_or_dead_letters(
    orders: Orders, broker: KafkaBroker, tmp_path: Path
) -> None:
    orders.write(ORDER, range(2))
    orders.write_bad(b"{}")
    orders.write(ORDER, range(3, 4))
    orders.write_bad(b"\0\0\0\0\x64\xff")
    wanted = (
        f"{orders.topic}-0 at offset 2: value begins with 0x7b, where the framing confluent has "
        "0x00, read as avro id 100 (version 1 of "
    )
    assert wanted in error_of(lambda: orders.batch().collect())
    assert wanted in error_of(lambda: orders.run(tmp_path / "failing"))

    frame = orders.batch(
        badRecords="null", columns="offset,value,valueError,valueBytes,valueSchemaId"
    )
    rows = frame.orderBy("offset").collect()
    assert [each.value is None for each in rows] == [False, False, True, False, True]
    assert [each.valueSchemaId for each in rows] == [100, 100, None, 100, 100]
    assert [each.valueBytes for each in rows if each.valueError] == [b"{}", b"\0\0\0\0\x64\xff"]

    letters = broker.create_topic()
    rows = orders.run(tmp_path / "letters", badRecords=f"deadLetter={letters}")
    assert rows == [row(0), row(1), row(3)]
    found = consumed(broker, letters, 2)
    assert [value for value, _ in found] == [b"{}", b"\0\0\0\0\x64\xff"]
    assert [headers["__connect.errors.offset"] for _, headers in found] == [b"2", b"4"]
    assert found[0][1]["__connect.errors.exception.message"].decode().startswith(wanted)


def consumed(broker: KafkaBroker, topic: str, number: int) -> list[tuple[Any, dict[str, bytes]]]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": topic,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    try:
        found = consumer.consume(number, QUERY_S)
    finally:
        consumer.close()
    return [(each.value(), dict(each.headers() or ())) for each in found]  # type: ignore[arg-type]


def test_strings(spark: SparkSession, broker: KafkaBroker, topic: str, tmp_path: Path) -> None:
    broker.produce(topic, [Record("k", "grün"), Record(None, None), Record(b"k", "x")])
    options = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "valueFormat": "string",
    }
    frame = spark.read.format("kshare").options(**options).load()
    assert [each.value for each in frame.orderBy("offset").collect()] == ["grün", None, "x"]
    stream = spark.readStream.format("kshare").options(**options).load()
    writer = stream.select("value").writeStream.format("json")
    places = {"checkpointLocation": str(tmp_path / "c"), "path": str(tmp_path / "o")}
    writer = writer.options(**places)
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(QUERY_S)
    rows = spark.read.schema("value STRING").json(str(tmp_path / "o")).collect()
    assert sorted(each.value or "" for each in rows) == ["", "grün", "x"]


def test_records_of_several_names(orders: Orders, registry: FakeRegistry, tmp_path: Path) -> None:
    paid = {**ORDER, "name": "Paid", "fields": [*ORDER["fields"], NOTE]}
    other = {**ORDER, "name": "Other"}
    for schema in (ORDER, paid):
        registry.register(schema["name"], json.dumps(schema))
    orders.write(ORDER, range(2))
    orders.write(paid, range(2, 4), note="n")
    orders.write(other, range(4, 6))
    orders.write(ORDER, range(6, 7))
    names: dict[str, Any] = {"valueSubject": "Order,Paid", "valueOtherRecords": "skip"}
    frame = orders.batch(**names, minPartitions="3")
    assert frame.select("value").schema.simpleString() == (
        "struct<value:struct<Order:struct<user:string,qty:int,items:array<struct<sku:bigint>>>,"
        "Paid:struct<user:string,qty:int,items:array<struct<sku:bigint>>,note:string>>>"
    )
    assert frame.count() == 5
    paid_rows = frame.where("value.Paid IS NOT NULL").orderBy("offset").select("value.Paid.*")
    assert [tuple(each) for each in paid_rows.collect()] == [row(n, "n") for n in (2, 3)]

    def more() -> None:
        orders.write(other, range(7, 9))
        orders.write(NEWER, range(9, 10), note="n")

    rows = orders.run(tmp_path, more, **names)
    wanted = [row(0), row(1), None, None, row(6), row(9)]
    assert [each[0] and tuple(each[0]) for each in rows] == wanted
    orders.write(paid, range(10, 11), note="n")
    assert orders.run(tmp_path, **names) == [(None, row(10, "n"))]
    last = json.loads(log_of(tmp_path)[-1].read_text().splitlines()[-1])
    assert last["@kshare"]["schemas"]["value"] == "avro Order id:100, Paid id:101"
    assert last[orders.topic] == {"0": 11}


SHOP = """
    syntax = "proto3";
    package shop;
    message Placed { string user = 1; int32 qty = 2; }
    message Paid { string user = 1; int64 cents = 2; }
    message Cancelled { string user = 1; }
"""


def test_messages_of_several_names(
    spark: SparkSession, broker: KafkaBroker, topic: str, registry: FakeRegistry, tmp_path: Path
) -> None:
    """What the sink writes as messages of three names is read as columns of two."""
    registry.register(f"{topic}-value", SHOP, "PROTOBUF")
    shared = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "valueFormat": "protobuf",
        "schemaRegistry.url": registry.url,
    }

    def write(message: str, row: str) -> None:
        frame = spark.sql(f"SELECT STRUCT({row}) AS value")
        writer = frame.write.format("kshare").options(**shared, topic=topic)
        writer.option("valueSchema", f"{message} latest").mode("append").save()

    write("Placed", "'a' AS user, 1 AS qty")
    write("Paid", "'b' AS user, CAST(250 AS BIGINT) AS cents")
    write("Cancelled", "'c' AS user")
    names = {"valueSchema": "shop.Placed,shop.Paid latest", "valueOtherRecords": "skip"}
    options = {**shared, **names, "subscribe": topic, "startingOffsets": "earliest"}
    frame = spark.read.format("kshare").options(**options).load()
    assert frame.select("value").schema.simpleString() == (
        "struct<value:struct<Placed:struct<user:string,qty:int>,Paid:struct<user:string,"
        "cents:bigint>>>"
    )
    rows = frame.orderBy("offset").select("value.Placed.qty", "value.Paid.cents").collect()
    assert [tuple(each) for each in rows] == [(1, None), (None, 250)]
