"""A sink encodes its columns: schemas are found before a task starts, rows in tasks."""

import io
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pool, message_factory

from kshare.errors import KafkaError, OptionsError
from kshare.formats.encodings import encoded, found_encodings
from kshare.formats.registry import SchemaRegistry, registry_of
from kshare.options import KafkaConfig, SinkOptions, parse_sink_options
from kshare.options.frozen import Properties
from kshare.options.typed_rows import RegistryConfig
from kshare.query.produce import write_rows
from kshare.testing import FakeCluster, FakeRegistry
from tests.support.clock import Clock
from tests.support.options import SERVERS
from tests.support.protobuf_messages import Schema, field, message

KIND = pa.struct([("user", pa.string()), ("qty", pa.int32())])
ROWS = [{"user": "a", "qty": 1}, None, {"user": None, "qty": 2}]
COLUMNS = pa.schema([("value", KIND), ("key", pa.string())])
BATCH = pa.RecordBatch.from_arrays(
    [pa.array(ROWS, KIND), pa.array(["k1", "k2", "k3"])], schema=COLUMNS
)
SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "user", "type": ["null", "string"]},
            {"name": "qty", "type": "int"},
        ],
    }
)
PROTOBUF = Schema(message("Order", "string user = 1", "int32 qty = 2"))


def options_of(given: dict[str, str], columns: pa.Schema = COLUMNS, **servers: str) -> SinkOptions:
    options = {**SERVERS, **servers, "topic": "orders", **given}
    parsed = parse_sink_options(options, streaming=False).options
    assert parsed.formats is not None
    encodings = found_encodings(parsed.formats, columns, parsed.kafka)
    return SinkOptions(
        topic="orders", kafka=parsed.kafka, producer=parsed.producer, encodings=encodings
    )


def values(given: dict[str, str]) -> list[Any]:
    made = encoded(BATCH, options_of(given).encodings)
    assert made.column("key") == BATCH.column("key")
    found: list[Any] = made.column("value").to_pylist()
    return found


def test_formats_without_a_registry() -> None:
    assert values({"valueFormat": "json"}) == [b'{"user":"a","qty":1}', None, b'{"qty":2}']
    assert values({"valueFormat": "avro"}) == [b"\0\x02a\0\x02", None, b"\x02\0\x04"]
    assert values({"valueFormat": "avro", "valueSchema": SCHEMA}) == [
        b"\x02\x02a\x02",
        None,
        b"\0\x04",
    ]
    given = {"valueFormat": "protobuf", "valueSchema": f"Order {PROTOBUF.text}"}
    assert values(given) == [b"\x0a\x01a\x10\x01", None, b"\x10\x02"]


def test_a_registered_schema_stands_in_front() -> None:
    with FakeRegistry(first_id=7) as registry:
        given = {"valueFormat": "avro", "schemaRegistry.url": registry.url}
        with pytest.raises(OptionsError, match=r"valueSchema: .*orders-value.*autoRegister=true"):
            options_of(given)
        inline = {**given, "valueSchema": SCHEMA}
        with pytest.raises(OptionsError, match=r"valueSchema: .*such a schema.*autoRegister=true"):
            options_of(inline)
        assert values({**inline, "autoRegister": "true"})[0] == b"\0\0\0\0\x07\x02\x02a\x02"
        registry_of.cache_clear()  # as in another process
        assert values(inline)[2] == b"\0\0\0\0\x07\0\x04"
        assert values(given)[1:] == [None, b"\0\0\0\0\x07\0\x04"]
        asked = len(registry.requests)
        assert values(inline)[0] == b"\0\0\0\0\x07\x02\x02a\x02"
        assert len(registry.requests) == asked


@pytest.mark.parametrize("choice", ["latest", "version:1", "id:7", SCHEMA])
def test_the_registry_is_asked_once_for_the_sinks_of_all_batches(
    choice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    with FakeRegistry(first_id=7) as fake:
        fake.register("orders-value", SCHEMA)
        given = {"valueFormat": "avro", "schemaRegistry.url": fake.url, "valueSchema": choice}
        config = RegistryConfig(Properties({"url": fake.url}))
        registry = SchemaRegistry(config, KafkaConfig(bootstrap_servers=()), clock=clock)
        monkeypatch.setattr("kshare.formats.encodings.registry_of", lambda *_: registry)
        first = values(given)
        (asked,) = fake.requests
        clock.now += 59.0
        assert values(given) == values(given) == first
        assert fake.requests == (asked,)
        clock.now += 1.0
        assert values(given) == first
        assert len(fake.requests) == (2 if choice == "latest" else 1)


def test_protobuf_with_a_registry_is_read_by_confluents_deserializer(tmp_path: Path) -> None:
    made = Schema(
        message("Other", "int32 x = 1"),
        message("Order", "string user = 1", "int32 qty = 2"),
    )
    money = made.set.file.add(name="common/money.proto", package="common", syntax="proto3")
    money.message_type.append(message("Money", "int64 units = 1"))
    made.set.file[-2].dependency.append(money.name)
    made.set.file[-2].message_type[1].field.append(field(".common.Money price = 3"))
    file = tmp_path / "shop.desc"
    file.write_bytes(made.set.SerializeToString())
    pool = descriptor_pool.DescriptorPool()
    for one in (*made.set.file[:-2], money, made.set.file[-2]):
        pool.AddSerializedFile(one.SerializeToString())
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    context = SerializationContext("orders", MessageField.VALUE)
    with FakeRegistry(first_id=7) as registry:
        given = {"valueFormat": "protobuf", "schemaRegistry.url": registry.url}
        inline = {**given, "valueSchema": f"shop.Order {file}"}
        with pytest.raises(OptionsError, match=r"valueSchema: .*autoRegister=true"):
            options_of(inline)
        found = values({**inline, "autoRegister": "true"})
        assert found[:2] == [b"\0\0\0\0\x08\x02\x02\x0a\x01a\x10\x01", None]
        registry_of.cache_clear()  # as in another process
        assert values(inline) == found
        assert values({**given, "valueSchema": "Order latest"}) == found
        assert values({**given, "valueSchema": "shop.Order id:8"}) == found
        with SchemaRegistryClient({"url": registry.url}) as client:
            (reference,) = client.get_latest_version("orders-value").schema.references or []
            assert (reference.name, reference.subject) == (money.name, money.name)
            read = ProtobufDeserializer(order, schema_registry_client=client)
            assert read(found[0], context) == order(user="a", qty=1)
            # Confluent's serializer finds the same schema there.
            write = ProtobufSerializer(order, client, {"auto.register.schemas": False})
            assert write(order(user="a", qty=1), context) == found[0]
        with pytest.raises(OptionsError, match="valueSchema: has no field user, which the rows"):
            options_of(given)  # the first message
        (data, [(_, named)]), *_ = headed({**inline, "valueFraming": "confluentHeader"})
        headers: Any = [("__value_schema_id", named)]
        in_header = SerializationContext("orders", MessageField.VALUE, headers)
        with SchemaRegistryClient({"url": registry.url}) as client:
            read = ProtobufDeserializer(order, schema_registry_client=client)
            assert (len(named), read(data, in_header)) == (19, order(user="a", qty=1))
        options = {**inline, "valueFraming": "none"}
        assert values(options) == [found[0][7:], None, found[2][7:]]
        file.unlink()
        assert encoded(BATCH, options_of(inline | {"valueSchema": "Order latest"}).encodings)


def headed(given: dict[str, str], batch: pa.RecordBatch = BATCH) -> list[Any]:
    made = encoded(batch, options_of(given, batch.schema).encodings)
    rows = made.to_pylist()
    return [
        (row["value"], [(each["key"], each["value"]) for each in row["headers"]]) for row in rows
    ]


@pytest.mark.parametrize("has_guids", [True, False])
def test_a_header_names_the_schema(has_guids: bool) -> None:
    with FakeRegistry(first_id=7) as registry:
        registry.guids = has_guids
        number = registry.register("orders-value", SCHEMA)
        given = {
            "valueFormat": "avro",
            "schemaRegistry.url": registry.url,
            "valueFraming": "confluentHeader",
        }
        # Confluent's refuses less than 6 bytes, also where nothing stands in front of them.
        orders = [{"user": "a long name", "qty": 1}, None, {"user": "another one", "qty": 2}]
        batch = pa.RecordBatch.from_arrays(
            [pa.array(orders, KIND), BATCH.column(1)], schema=COLUMNS
        )
        rows = headed(given, batch)
        (name, value) = rows[0][1][0]
        assert name == "__value_schema_id"
        assert value[:1] == (b"\1" if has_guids else b"\0")
        assert has_guids or value == b"\0" + number.to_bytes(4, "big")
        assert rows[1] == (None, [])  # a tombstone has no schema
        with SchemaRegistryClient({"url": registry.url}) as client:
            deserialize = AvroDeserializer(client)
            for (data, headers), row in zip(rows, orders, strict=True):
                context = SerializationContext("orders", MessageField.VALUE, headers)
                assert deserialize(data, context) == row


def test_a_header_of_before_does_not_name_the_schema_of_now() -> None:
    old = ("__value_schema_id", b"\0\0\0\0\x63")
    own: list[Any] = [[("trace", b"a"), old, ("trace", None)], None, [old]]
    headers = pa.array(own, pa.map_(pa.string(), pa.binary())).cast(
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    )
    batch = BATCH.append_column("headers", headers)
    with FakeRegistry(first_id=7) as registry:
        registry.register("orders-value", SCHEMA)
        given = {"valueFormat": "avro", "schemaRegistry.url": registry.url}
        traces = [("trace", b"a"), ("trace", None)]
        assert [each for _, each in headed(given, batch)] == [traces, [], []]
        found = headed({**given, "valueFraming": "confluentHeader"}, batch)
    now = found[2][1][0]
    assert [each for _, each in found] == [[*traces, now], [], [now]]
    assert now != old
    assert now[0] == old[0]


def test_an_id_is_that_of_the_registry_that_is_asked() -> None:
    given = {"valueFormat": "avro", "valueSchema": "id:9"}
    found = []
    for union in ('["null", "string"]', '["string", "null"]'):
        with FakeRegistry(first_id=9) as registry:
            registry.register("s", SCHEMA.replace('["null", "string"]', union))
            found.append(values({**given, "schemaRegistry.url": registry.url})[0])
    assert found == [b"\0\0\0\0\x09\x02\x02a\x02", b"\0\0\0\0\x09\0\x02a\x02"]


def test_the_schema_of_the_rows_is_registered() -> None:
    with FakeRegistry(first_id=3) as registry:
        given = {"valueFormat": "avro", "schemaRegistry.url": registry.url, "autoRegister": "true"}
        first = values(given)[0]
        options = options_of(given)
        schema = fastavro.parse_schema(json.loads(options.encodings[0].schema))
    assert first[:5] == b"\0\0\0\0\x03"
    assert fastavro.schemaless_reader(io.BytesIO(first[5:]), schema) == ROWS[0]


def test_faults_come_before_a_task_and_together() -> None:
    columns = pa.schema([("value", KIND), ("key", pa.struct([("x", pa.duration("us"))]))])
    given = {"valueFormat": "avro", "valueSchema": '"string"', "keyFormat": "json"}
    with pytest.raises(OptionsError) as raised:
        options_of(given, columns)
    assert sorted(raised.value.problems) == [
        "column key: has field x of type duration[us], which JSON does not have",
        f"valueSchema: has string where rows of type {KIND} is to be written",
    ]


def test_a_value_that_cannot_be_written_is_named() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"value": pa.array([ROWS[0], {"user": "b", "qty": None}], KIND)}
    )
    options = options_of({"valueFormat": "avro", "valueSchema": SCHEMA})
    with pytest.raises(
        KafkaError, match=r"row 1 of its batch as avro: value\.qty is null, and its"
    ):
        encoded(batch, options.encodings)


def test_large_strings_are_strings() -> None:
    large = pa.struct([("user", pa.large_string()), ("qty", pa.int32())])
    batch = pa.RecordBatch.from_pydict({"value": pa.array(ROWS, large)})
    made = encoded(batch, options_of({"valueFormat": "json"}).encodings)
    assert made.column("value")[0].as_py() == b'{"user":"a","qty":1}'


def test_rows_are_written() -> None:
    with FakeCluster() as cluster:
        cluster.create_topic("orders")
        options = options_of(
            {"valueFormat": "json"}, **{"kafka.bootstrap.servers": cluster.bootstrap_servers}
        )
        assert write_rows([BATCH], options) == 3
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": "g",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.assign([TopicPartition("orders", 0, 0)])
        with closing(consumer):
            written = [(one.key(), one.value()) for one in consumer.consume(3, 60)]
    assert sorted(written) == [
        (b"k1", b'{"user":"a","qty":1}'),
        (b"k2", None),
        (b"k3", b'{"qty":2}'),
    ]
