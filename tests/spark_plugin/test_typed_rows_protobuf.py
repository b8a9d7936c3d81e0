"""Typed rows of Protobuf with a registry, and ids in headers, beside Confluent's serializers."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from kshare.errors import BadRecordError, OptionsError
from kshare.formats.protobuf.files import file_text
from kshare.testing import FakeCluster, FakeRegistry, Record
from tests.spark_plugin.test_typed_rows import batch_rows, sent, source
from tests.support import protobuf_messages
from tests.support.protobuf_messages import message

LINE = message("Line", "string sku = 1", "int32 n = 2")
FIRST = protobuf_messages.Schema(
    message("Order", "string user = 1", "int32 qty = 2", nested=[LINE]),
    message("Refund", "string user = 1"),
)
NEWER = protobuf_messages.Schema(
    message("Refund", "string user = 1"),
    message("Order", "string user = 1", "int64 amount = 2", "string note = 3"),
)
ALIEN = protobuf_messages.Schema(message("Order", "int32 user = 1"))
HEADERS = {"schema.id.serializer": header_schema_id_serializer}


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as made:
        made.create_topic("orders", partitions=1)
        yield made


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry() as fake:
        yield fake


def record(
    registry: FakeRegistry,
    schema: protobuf_messages.Schema,
    name: str,
    values: Mapping[str, object],
    config: Mapping[str, Any] | None = None,
) -> Record:
    """A record as Confluent's serializer writes it, with the schema's file in the registry."""
    kind = schema.kind(name)
    with SchemaRegistryClient({"url": registry.url}) as client:
        serialize = ProtobufSerializer(kind, client, dict(config or {}))
        return written(lambda context: serialize(kind(**values), context))


def written(serialize: Callable[[SerializationContext], bytes | None]) -> Record:
    headers: list[Any] = []
    data = serialize(SerializationContext("orders", MessageField.VALUE, headers))
    return Record(None, data, headers=headers)


def options(registry: FakeRegistry, **more: str) -> dict[str, str]:
    given = {"valueFormat": "protobuf", "schemaRegistry.url": registry.url, "columns": "value"}
    return {**given, **more}


def values(cluster: FakeCluster, registry: FakeRegistry, **more: str) -> list[Any]:
    return [row["value"] for row in batch_rows(source(cluster, **options(registry, **more)))]


def test_the_first_message_of_the_newest_file_or_the_one_that_is_named(
    cluster: FakeCluster, registry: FakeRegistry
) -> None:
    cluster.produce("orders", [record(registry, FIRST, "Order", {"user": "a", "qty": 1})])
    cluster.produce("orders", [Record("k", None)])
    made = source(cluster, **options(registry))
    assert made.schema().simpleString() == "struct<value:struct<user:string,qty:int>>"
    assert values(cluster, registry) == [{"user": "a", "qty": 1}, None]
    nested = record(registry, FIRST, "Order.Line", {"sku": "s", "n": 3})
    cluster.produce("orders", [nested, record(registry, FIRST, "Refund", {"user": "b"})])
    with pytest.raises(BadRecordError, match=r"value is message shop\.Order\.Line, and shop"):
        values(cluster, registry)
    more = {"badRecords": "null", "columns": "value,valueError,valueSchemaId"}
    rows = batch_rows(source(cluster, **options(registry, valueSchema="Order.Line latest", **more)))
    assert [(row["value"], row["valueError"], row["valueSchemaId"]) for row in rows] == [
        (None, "value is message shop.Order, and shop.Order.Line is wanted (schema id 1)", 1),
        (None, None, None),
        ({"sku": "s", "n": 3}, None, 1),
        (None, "value is message shop.Refund, and shop.Order.Line is wanted (schema id 1)", 1),
    ]


@pytest.mark.parametrize("choice", ["version:1", "id:1", f"shop.Order {FIRST.text}"])
def test_versions_of_a_message_are_read_by_the_numbers_of_fields(
    cluster: FakeCluster, registry: FakeRegistry, choice: str
) -> None:
    cluster.produce(
        "orders",
        [
            record(registry, FIRST, "Order", {"user": "a", "qty": 1}),
            record(registry, NEWER, "Order", {"user": "b", "amount": 2, "note": "n"}),
        ],
    )
    assert values(cluster, registry, valueSchema=choice, valueFields="user,qty") == [
        {"user": "a", "qty": 1},
        {"user": "b", "qty": 2},
    ]
    assert values(cluster, registry, valueSchema="shop.Order latest") == [
        {"user": "a", "amount": 1, "note": None},
        {"user": "b", "amount": 2, "note": "n"},
    ]


def test_a_stream_asks_once_for_each_id_and_a_restart_says_what_is_new(
    cluster: FakeCluster, registry: FakeRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.produce("orders", [record(registry, FIRST, "Order", {"user": "a", "qty": 1})])
    made = source(cluster, **options(registry), startingOffsets="earliest")
    reader: Any = sent(made).streamReader(made.schema())
    start, rows = reader.initialOffset(), []
    for schema, given in ((NEWER, {"user": "b", "amount": 2}), (ALIEN, {"user": 3})):
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        for task in reader.partitions(start, end):
            rows += [row for batch in reader.read(task) for row in batch.to_pylist()]
        cluster.produce("orders", [record(registry, schema, "Order", given)])
        start = end
    assert rows == [{"value": {"user": "a", "qty": 1}}, {"value": {"user": "b", "qty": 2}}]
    assert end["@kshare"]["schemas"]["value"] == "protobuf id:1"
    assert registry.requests.count("GET /schemas/ids/2") == 1
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    (task,) = reader.partitions(start, end)
    with pytest.raises(BadRecordError) as raised:
        list(reader.read(task))
    assert "orders-0 at offset 2: value.user is int32 where string is wanted (schema id 3)" in str(
        raised.value
    )
    reader.stop()
    assert caplog.records == []
    made = source(cluster, **options(registry, valueSchema="shop.Order version:2"))
    reader = made.streamReader(made.schema())
    reader.partitions(start, end)
    reader.stop()
    (text,) = [each.getMessage() for each in caplog.records]
    assert text.startswith(
        "value was read with the schema protobuf id:1, and is with protobuf shop.Order of id 2 "
        "(version 2 of orders-value) now: value.qty is gone, value.amount is new (int64), "
        "value.note is new (string). Rows"
    )


@pytest.mark.parametrize("in_text", [False, True], ids=["descriptors", "texts"])
def test_files_that_import_others(
    cluster: FakeCluster, registry: FakeRegistry, in_text: bool
) -> None:
    money = 'syntax = "proto3"; package shop; message Money { int64 units = 1; }'
    text = """syntax = "proto3"; package shop; import "money.proto";
        import "google/protobuf/timestamp.proto";
        message Order { Money price = 1; google.protobuf.Timestamp at = 2; }"""
    registry.register("prices", money, "PROTOBUF")
    reference = {"name": "money.proto", "subject": "prices", "version": 1}
    number = registry.register("orders-value", text, "PROTOBUF", [reference])
    registry.serialized = not in_text
    data = b"\0" + number.to_bytes(4, "big") + b"\0\x0a\x02\x08\x07"
    cluster.produce("orders", [Record(None, data)])
    assert values(cluster, registry) == [{"price": {"units": 7}, "at": None}]


def test_what_cannot_be_read_is_said_at_load(cluster: FakeCluster, registry: FakeRegistry) -> None:
    registry.register("orders-value", file_text(FIRST.set.file[-1]), "PROTOBUF")
    made = source(cluster, **options(registry, valueSchema="Nothing latest"))
    with pytest.raises(OptionsError, match=r"valueSchema: has no message Nothing; there are shop"):
        made.schema()
    made = source(cluster, **options(registry, valueFormat="avro", valueSchema="Order latest"))
    with pytest.raises(OptionsError, match="message Order, which only valueFormat=protobuf has"):
        made.schema()


# -- ids in headers -------------------------------------------------------------------------------

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "user", "type": "string"}, {"name": "qty", "type": "int"}],
}
ORDER_JSON = {
    "title": "Order",
    "type": "object",
    "properties": {"user": {"type": "string"}, "qty": {"type": "integer"}},
}


def avro(registry: FakeRegistry, **config: Any) -> Record:
    with SchemaRegistryClient({"url": registry.url}) as client:
        serialize = AvroSerializer(client, json.dumps(ORDER), conf=config)
        return written(lambda context: serialize({"user": "a", "qty": 1}, context))


def in_json(registry: FakeRegistry, **config: Any) -> Record:
    with SchemaRegistryClient({"url": registry.url}) as client:
        serialize = JSONSerializer(json.dumps(ORDER_JSON), client, conf=config)
        return written(lambda context: serialize({"user": "a", "qty": 1}, context))


def protobuf(registry: FakeRegistry, **config: Any) -> Record:
    return record(registry, FIRST, "Order", {"user": "a", "qty": 1}, config)


@pytest.mark.parametrize(
    ("form", "made"), [("avro", avro), ("json", in_json), ("protobuf", protobuf)]
)
def test_ids_in_headers_and_in_front_of_payloads(
    cluster: FakeCluster, registry: FakeRegistry, form: str, made: Callable[..., Record]
) -> None:
    headed = made(registry, **HEADERS)
    name, guid = headed.headers[0]
    assert guid is not None
    by_id = guid.replace(guid[:17], b"\0\0\0\0\1")
    assert name == "__value_schema_id"
    cluster.produce(
        "orders",
        [
            headed,
            made(registry),
            Record(None, headed.value, headers=[("trace", b"t"), (name, by_id)]),
            Record(None, headed.value, headers=[(name, b"\7")]),
            Record(None, None, headers=[(name, guid)]),
        ],
    )
    more = {"valueFormat": form, "badRecords": "null"}
    more["columns"] = "value,valueError,valueSchemaId"
    rows = batch_rows(source(cluster, **options(registry, **more)))
    reason = "value has a header __value_schema_id that begins with 0x07, where 0x00 or 0x01 is"
    assert [(row["value"], row["valueSchemaId"], row["valueError"]) for row in rows] == [
        ({"user": "a", "qty": 1}, None, None),
        ({"user": "a", "qty": 1}, 1, None),
        ({"user": "a", "qty": 1}, 1, None),
        (None, None, reason),
        (None, None, None),
    ]
    if form != "json":
        assert sum("/schemas/guids/" in each for each in registry.requests) == 1


def test_a_guid_that_the_registry_does_not_have_and_keys(
    cluster: FakeCluster, registry: FakeRegistry
) -> None:
    headed = avro(registry, **HEADERS)
    (_, guid), key = headed.headers[0], "__key_schema_id"
    unknown = b"\1" + bytes(16)
    registry.register("orders-key", json.dumps(ORDER))
    cluster.produce(
        "orders",
        [
            Record(headed.value, headed.value, headers=[(key, guid), *headed.headers]),
            Record(headed.value, headed.value, headers=[(key, unknown), *headed.headers]),
            Record(headed.value, b"\x02", headers=[(key, guid), *headed.headers]),
        ],
    )
    more = {"valueFormat": "avro", "keyFormat": "avro", "badRecords": "null"}
    more["columns"] = "key,keyError,value,valueError"
    rows = batch_rows(source(cluster, **options(registry, **more)))
    good = {"user": "a", "qty": 1}
    assert [(row["key"], row["value"]) for row in rows] == [
        (good, good),
        (None, good),
        (good, None),
    ]
    name = "GUID 00000000-0000-0000-0000-000000000000"
    assert rows[1]["keyError"].startswith(
        f"key names schema {name}, and schema registry {registry.url} has no schema {name}"
    )
    own = next(each for each in registry.requests if "/guids/" in each).rpartition("/")[2]
    assert rows[2]["valueError"].endswith(f"(schema GUID {own})")


def test_protobuf_of_a_schema_that_is_given_and_headers(
    cluster: FakeCluster, registry: FakeRegistry
) -> None:
    headed = protobuf(registry, **HEADERS)
    other = record(registry, FIRST, "Refund", {"user": "a"}, HEADERS)
    cluster.produce("orders", [headed, protobuf(registry), other])
    given = {"valueFormat": "protobuf", "valueSchema": f"Order {FIRST.text}", "badRecords": "null"}
    given |= {"valueFraming": "confluent", "columns": "value,valueError"}
    rows = batch_rows(source(cluster, **given))
    assert [row["value"] for row in rows] == [{"user": "a", "qty": 1}] * 2 + [None]
    assert rows[2]["valueError"] == "value is message shop.Refund, and shop.Order is wanted"


def test_avro_that_refers_to_others_by_guid(cluster: FakeCluster, registry: FakeRegistry) -> None:
    user = {"type": "record", "name": "User", "fields": [{"name": "id", "type": "long"}]}
    registry.register("user", json.dumps(user))
    text = json.dumps({**ORDER, "fields": [{"name": "user", "type": "User"}]})
    refers = Schema(text, "AVRO", [SchemaReference("User", "user", 1)])
    with SchemaRegistryClient({"url": registry.url}) as client:
        serialize = AvroSerializer(client, refers, conf=HEADERS)
        one = written(lambda context: serialize({"user": {"id": 7}}, context))
    cluster.produce("orders", [one])
    assert values(cluster, registry, valueFormat="avro") == [{"user": {"id": 7}}]
