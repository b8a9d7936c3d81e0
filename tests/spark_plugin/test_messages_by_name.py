"""Several messages of Protobuf in a topic, beside Confluent's serializer: columns by names."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from kshare.errors import BadRecordError, OptionsError
from kshare.testing import FakeCluster, FakeRegistry, Record
from tests.spark_plugin.test_typed_rows import batch_rows, sent, source
from tests.support.protobuf_messages import Schema, message

LINE = message("Line", "string sku = 1")
SHOP = Schema(
    message("Placed", "string user = 1", "int32 qty = 2", nested=[LINE]),
    message("Paid", "string user = 1", "int64 cents = 2"),
    message("Cancelled", "string user = 1"),
)
NEWER = Schema(
    message("Paid", "string user = 1", "int64 cents = 2", "string note = 3"),
    message("Placed", "string user = 1", "int32 qty = 2"),
)
HEADERS = {"schema.id.serializer": header_schema_id_serializer}
SUBJECTS = "orders-shop.Placed,orders-shop.Paid"
PLACED_ROW, PAID_ROW = {"user": "a", "qty": 1}, {"user": "b", "cents": 250}


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1}) as fake:
        yield fake


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry() as fake:
        yield fake


def by_topic_and_record(context: SerializationContext | None, name: str | None) -> str:
    """TopicRecordNameStrategy."""
    assert context is not None
    return f"{context.topic}-{name}"


def write(
    cluster: FakeCluster,
    registry: FakeRegistry,
    schema: Schema,
    name: str,
    row: Mapping[str, object],
    **config: Any,
) -> None:
    kind = schema.kind(name)
    config = {"subject.name.strategy": by_topic_and_record, **config}
    headers: list[Any] = []
    with SchemaRegistryClient({"url": registry.url}) as client:
        context = SerializationContext("orders", MessageField.VALUE, headers)
        data = ProtobufSerializer(kind, client, config)(kind(**row), context)
    cluster.produce("orders", [Record("k", data, headers=headers)])


@pytest.fixture
def topic(cluster: FakeCluster, registry: FakeRegistry) -> None:
    """Messages of four names, by indexes and by headers, and a tombstone."""
    write(cluster, registry, SHOP, "Placed", PLACED_ROW)
    write(cluster, registry, SHOP, "Paid", PAID_ROW)
    write(cluster, registry, SHOP, "Cancelled", {"user": "c"})
    cluster.produce("orders", [Record("k", None)])
    write(cluster, registry, SHOP, "Paid", {"user": "d", "cents": 4}, **HEADERS)
    write(cluster, registry, SHOP, "Cancelled", {"user": "e"}, **HEADERS)
    write(cluster, registry, SHOP, "Placed.Line", {"sku": "s"})


def options(registry: FakeRegistry, **more: str) -> dict[str, str]:
    given = {"valueFormat": "protobuf", "schemaRegistry.url": registry.url, "columns": "value"}
    return {**given, **more}


def values(cluster: FakeCluster, registry: FakeRegistry, **more: str) -> list[Any]:
    return [row["value"] for row in batch_rows(source(cluster, **options(registry, **more)))]


ROWS = [
    {"Placed": PLACED_ROW, "Paid": None},
    {"Placed": None, "Paid": PAID_ROW},
    None,
    {"Placed": None, "Paid": {"user": "d", "cents": 4}},
]


@pytest.mark.parametrize(
    "named",
    [
        {"valueSubject": SUBJECTS},
        {"valueSubject": "orders-shop.Cancelled", "valueSchema": "shop.Placed,shop.Paid latest"},
        {"valueSchema": "Placed, Paid id:1"},
        {"valueSchema": f"shop.Placed,shop.Paid {SHOP.text}"},
    ],
    ids=["subjects", "messages", "id", "inline"],
)
def test_a_column_for_each_name(
    cluster: FakeCluster, registry: FakeRegistry, topic: None, named: dict[str, str]
) -> None:
    given = options(registry, valueOtherRecords="skip", **named)
    made = source(cluster, **given)
    assert made.schema().simpleString() == (
        "struct<value:struct<Placed:struct<user:string,qty:int>,Paid:struct<user:string,"
        "cents:bigint>>>"
    )
    assert values(cluster, registry, **given) == ROWS
    given |= {"valueOtherRecords": "null", "columns": "value,valueError,valueSchemaId"}
    rows = list(batch_rows(source(cluster, **given)))
    assert [row["value"] for row in rows] == [*ROWS[:2], None, None, ROWS[3], None, None]
    assert [row["valueError"] for row in rows] == [None] * 7
    assert [row["valueSchemaId"] for row in rows] == [1, 1, 1, None, None, None, 1]


def test_messages_of_other_names_are_bad_unless_an_option_says_otherwise(
    cluster: FakeCluster, registry: FakeRegistry, topic: None
) -> None:
    with pytest.raises(BadRecordError) as raised:
        values(cluster, registry, valueSubject=SUBJECTS)
    assert str(raised.value).startswith(
        "orders-0 at offset 2: value has message shop.Cancelled, where these are read: "
        "shop.Placed, shop.Paid (schema id 1), read as protobuf shop.Placed id 1 (version 1 of "
        "orders-shop.Placed), shop.Paid id 1 (version 1 of orders-shop.Paid). "
    )
    assert str(raised.value).endswith(", valueOtherRecords=skip leaves out those of other names")
    more = {"badRecords": "null", "columns": "offset,valueError", "valueSubject": SUBJECTS}
    rows = list(batch_rows(source(cluster, **options(registry, **more))))
    bad = {row["offset"]: row["valueError"] for row in rows if row["valueError"]}
    assert sorted(bad) == [2, 5, 6]
    assert bad[5].startswith("value is of schema GUID ")
    assert ", which has message shop.Cancelled, where these are read: shop.Placed" in bad[5]


def test_rows_without_a_registry_are_told_apart_by_indexes_and_headers(
    cluster: FakeCluster, registry: FakeRegistry, topic: None
) -> None:
    given = {
        "valueFormat": "protobuf",
        "valueFraming": "confluent",
        "valueSchema": f"shop.Paid, shop.Placed {SHOP.text}",
        "valueOtherRecords": "skip",
        "valueFields": "Placed.qty,Paid",
        "columns": "value",
    }
    assert [row["value"] for row in batch_rows(source(cluster, **given))] == [
        {"Paid": None, "Placed": {"qty": 1}},
        {"Paid": PAID_ROW, "Placed": None},
        None,
        {"Paid": {"user": "d", "cents": 4}, "Placed": None},
    ]
    one = {**given, "valueSchema": f"shop.Placed {SHOP.text}", "valueFields": "qty"}
    assert [row["value"] for row in batch_rows(source(cluster, **one))] == [{"qty": 1}, None]


def test_a_subject_that_is_named_by_a_message_is_of_that_message(
    cluster: FakeCluster, registry: FakeRegistry, topic: None
) -> None:
    given = {"valueSubject": "orders-shop.Paid"}
    made = source(cluster, **options(registry, **given))
    assert made.schema().simpleString() == "struct<value:struct<user:string,cents:bigint>>"
    assert made.schemas is not None
    assert made.schemas.pins["value"] == "protobuf shop.Paid id:1"
    found = values(cluster, registry, **given, valueOtherRecords="skip")
    assert found == [PAID_ROW, None, {"user": "d", "cents": 4}]
    first = source(cluster, **options(registry, valueSubject="orders-shop.Placed"))
    first.schema()
    assert first.schemas is not None
    assert first.schemas.pins["value"] == "protobuf id:1"  # as it was before names counted


def test_newer_files_are_read_and_a_restart_says_what_is_new(
    cluster: FakeCluster,
    registry: FakeRegistry,
    topic: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def started(**more: str) -> Any:
        given = {"valueSubject": SUBJECTS, "valueOtherRecords": "skip", **more}
        given = options(registry, **given)
        made = source(cluster, **given, startingOffsets="earliest")
        return sent(made).streamReader(made.schema())

    reader = started()
    first = reader.initialOffset()
    end = reader.latestOffset(first, reader.getDefaultReadLimit())
    pin = "protobuf shop.Placed id:1, shop.Paid id:1"
    assert end["@kshare"]["schemas"]["value"] == pin
    write(cluster, registry, NEWER, "Paid", {"user": "f", "cents": 6, "note": "n"})
    write(cluster, registry, NEWER, "Placed", {"user": "g", "qty": 7})
    last = reader.latestOffset(end, reader.getDefaultReadLimit())
    assert last["orders"] == {"0": 9}  # rows that are left out are read, and done
    rows = [
        row["value"]
        for task in reader.partitions(end, last)
        for batch in reader.read(task)
        for row in batch.to_pylist()
    ]
    assert rows == [
        {"Placed": None, "Paid": {"user": "f", "cents": 6}},
        {"Placed": {"user": "g", "qty": 7}, "Paid": None},
    ]
    reader.stop()
    assert caplog.records == []
    cluster.produce("orders", [Record("k", None)])
    one = {"valueSchema": "shop.Paid latest", "valueSubject": "orders-shop.Paid"}
    gone = ("value.Placed is gone", "value.Paid is gone", "value.note is new (string)")
    for more, changes in (({}, ("value.Paid.note is new (string)",)), (one, gone)):
        caplog.clear()
        again = started(**more)
        again.latestOffset(last, again.getDefaultReadLimit())
        again.stop()
        (text,) = [each.getMessage() for each in caplog.records]
        assert text.startswith(f"value was read with the schema {pin}, and is")
        assert all(change in text for change in changes), text


def test_what_cannot_be_read_is_said_at_load(
    cluster: FakeCluster, registry: FakeRegistry, topic: None
) -> None:
    registry.register(
        "alike", 'syntax = "proto3"; package web; message placed { int32 a = 1; }', "PROTOBUF"
    )
    registry.register("avro", '"int"')
    with pytest.raises(OptionsError) as raised:
        source(cluster, **options(registry, valueSubject="orders-shop.Placed,alike")).schema()
    assert raised.value.problems == (
        (
            "valueSubject: records shop.Placed and web.placed would have the same column "
            "value.Placed; name one of them"
        ),
    )
    given = options(registry, valueSubject="orders-shop.Placed,avro,gone")
    with pytest.raises(OptionsError) as raised:
        source(cluster, **given).schema()
    assert [each.partition(" ")[0] for each in raised.value.problems] == [
        "valueFormat:",
        "valueSchema:",
    ]
    for schema in ("Nothing,shop.Paid,None latest", f"Nothing,shop.Paid,None {SHOP.text}"):
        given = options(registry, valueSubject="orders-shop.Paid", valueSchema=schema)
        with pytest.raises(OptionsError) as raised:
            source(cluster, **given).schema()
        for problem, name in zip(raised.value.problems, ("Nothing", "None"), strict=True):
            assert problem.startswith("valueSchema: ")
            assert f"has no message {name}; there are " in problem
