"""Typed rows with a real schema registry: Apicurio, with what Confluent's serializers write."""

import io
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import fastavro
import pytest
from confluent_kafka import Consumer, Message
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import SparkSession

from integration.apicurio import ApicurioRegistry
from integration.differential import error_of
from integration.kafka import KafkaBroker
from integration.members import eventually
from integration.orders import NEWER, NOTE, ORDER, Orders, log_of, row
from integration.spark import QUERY_S
from kshare.group import KeySharedConsumer
from kshare.testing import FakeRegistry, Record
from tests.support import protobuf_messages
from tests.support.protobuf_messages import message

USERS = {"user": "ada", "qty": 3}
FLAT: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "user", "type": "string"}, {"name": "qty", "type": "int"}],
}
IN_JSON = {
    "title": "Order",
    "type": "object",
    "properties": {"user": {"type": "string"}, "qty": {"type": "integer"}},
}
IN_PROTOBUF = protobuf_messages.Schema(
    message("Line", "string sku = 1"), message("Order", "string user = 1", "int32 qty = 2")
)


@pytest.fixture(scope="module")
def registry() -> Iterator[ApicurioRegistry]:
    with ApicurioRegistry() as running:
        yield running


@pytest.fixture
def client(registry: ApicurioRegistry) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry.url}) as made:
        yield made


@pytest.fixture
def orders(
    spark: SparkSession, broker: KafkaBroker, topic: str, registry: ApicurioRegistry
) -> Orders:
    return Orders(spark, broker, topic, registry.url)


def avro(client: SchemaRegistryClient) -> Callable[..., bytes | None]:
    made: Callable[..., bytes | None] = AvroSerializer(client, json.dumps(FLAT))
    return made


def in_json(client: SchemaRegistryClient) -> Callable[..., bytes | None]:
    made: Callable[..., bytes | None] = JSONSerializer(json.dumps(IN_JSON), client)
    return made


def protobuf(client: SchemaRegistryClient) -> Callable[..., bytes | None]:
    kind = IN_PROTOBUF.kind("Order")
    serialize = ProtobufSerializer(kind, client)
    return lambda values, context: serialize(kind(**values), context)


@pytest.mark.parametrize(
    ("form", "serializer", "schema"),
    [
        ("avro", avro, "latest"),
        ("json", in_json, "latest"),
        ("protobuf", protobuf, "shop.Order latest"),
    ],
)
def test_what_confluents_serializers_write_is_read(
    spark: SparkSession,
    broker: KafkaBroker,
    topic: str,
    registry: ApicurioRegistry,
    client: SchemaRegistryClient,
    form: str,
    serializer: Callable[[SchemaRegistryClient], Callable[..., bytes | None]],
    schema: str,
) -> None:
    context = SerializationContext(topic, MessageField.VALUE)
    values = [serializer(client)({**USERS, "qty": n}, context) for n in (1, 2, 3)]
    broker.produce(topic, [Record("k", value) for value in [*values, None]], partition=0)
    number = client.get_latest_version(f"{topic}-value").schema_id
    options = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "valueFormat": form,
        "valueSchema": schema,
        "schemaRegistry.url": registry.url,
        "columns": "value,valueSchemaId,offset",
    }
    frame = spark.read.format("kshare").options(**options).load()
    rows = frame.orderBy("offset").selectExpr("value.user", "value.qty", "valueSchemaId")
    wanted = [*(("ada", n, number) for n in (1, 2, 3)), (None, None, None)]
    assert [tuple(each) for each in rows.collect()] == wanted

    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "value.format": form,
        "value.schema": schema,
        "value.subject": f"{topic}-value",
        "schema.registry.url": registry.url,
        "columns": "value,valueSchemaId",
    }
    found: list[dict[str, Any]] = []
    with closing(KeySharedConsumer(config)) as consumer:
        consumer.subscribe([topic])

        def has_all() -> bool:
            batch = consumer.consume_batch(1.0)
            found.extend(batch.to_pylist() if batch is not None else [])
            return len(found) >= len(wanted)

        eventually(has_all)
    shown = [(each["value"] or {}, each["valueSchemaId"]) for each in found]
    assert [(each.get("user"), each.get("qty"), number) for each, number in shown] == wanted


def test_new_fields_need_no_restart_and_show_after_one(orders: Orders, tmp_path: Path) -> None:
    orders.write(ORDER, range(3))
    rows = orders.run(tmp_path, lambda: orders.write(NEWER, range(3, 5), note="n"))
    assert rows == [row(n) for n in range(5)]
    orders.write(NEWER, range(5, 6), note="n")
    assert orders.run(tmp_path) == [row(5, "n")]
    pins = [
        json.loads(each.read_text().splitlines()[-1])["@kshare"]["schemas"]["value"]
        for each in log_of(tmp_path)
    ]
    assert len(set(pins)) == 2
    assert pins[-1] != pins[0]


def test_a_sink_registers_its_schema_and_an_incompatible_one_is_refused_by_name(
    spark: SparkSession,
    broker: KafkaBroker,
    topic: str,
    registry: ApicurioRegistry,
    client: SchemaRegistryClient,
) -> None:
    subject = f"{topic}-value"
    options = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "topic": topic,
        "valueFormat": "avro",
        "schemaRegistry.url": registry.url,
        "autoRegister": "true",
    }

    def write(struct: str) -> None:
        frame = spark.sql(f"SELECT {struct} AS value")
        frame.write.format("kshare").options(**options).mode("append").save()

    write("STRUCT('ada' AS user, 3 AS qty)")
    client.set_compatibility(subject, "BACKWARD")
    write("STRUCT('bob' AS user, 4 AS qty, nullif('n', '') AS note)")
    assert client.get_versions(subject) == [1, 2]
    said = error_of(lambda: write("STRUCT(1.5D AS user, 5 AS qty)"))
    assert f"schema registry {registry.url} does not say such a schema of subject {subject}" in said
    assert "ncompatible" in said
    assert broker.latest(topic) == 2

    reading = {**options, "subscribe": topic, "startingOffsets": "earliest"}
    del reading["topic"], reading["autoRegister"]
    frame = spark.read.format("kshare").options(**reading).load()
    rows = frame.orderBy("offset").select("value.*").collect()
    assert [tuple(each) for each in rows] == [("ada", 3, None), ("bob", 4, "n")]
    raw = spark.read.format("kafka").options(**reading).load().orderBy("offset").collect()
    context = SerializationContext(topic, MessageField.VALUE)
    deserialize = AvroDeserializer(client)
    assert deserialize(bytes(raw[0].value), context) == {"user": "ada", "qty": 3}


def test_protobuf_of_a_text_is_written_by_its_id(
    spark: SparkSession,
    broker: KafkaBroker,
    topic: str,
    registry: ApicurioRegistry,
    client: SchemaRegistryClient,
) -> None:
    file = """syntax = "proto3"; package shop;
        message Line { string sku = 1; } message Order { string user = 1; int32 qty = 2; }"""
    client.register_schema(f"{topic}-value", Schema(file, "PROTOBUF"))
    options = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "valueFormat": "protobuf",
        "valueSchema": "shop.Order latest",
        "schemaRegistry.url": registry.url,
    }
    frame = spark.sql("SELECT STRUCT('ada' AS user, 3 AS qty) AS value")
    frame.write.format("kshare").options(**options, topic=topic).mode("append").save()
    found = spark.read.format("kshare").options(**options, subscribe=topic).load()
    assert [tuple(each) for each in found.select("value.*").collect()] == [("ada", 3)]


def test_apicurios_own_framing_names_its_own_ids(
    orders: Orders, broker: KafkaBroker, registry: ApicurioRegistry, client: SchemaRegistryClient
) -> None:
    """Two subjects with one schema: from then on, global ids and Confluent's ids are others."""
    subject, text = f"{orders.topic}-value", json.dumps(FLAT)
    for each in (f"{subject}-other", subject):
        client.register_schema(each, Schema(text, "AVRO"))
    newer = {**FLAT, "fields": [*FLAT["fields"], NOTE]}
    client.register_schema(subject, Schema(json.dumps(newer), "AVRO"))
    own = f"{registry.root}/apis/registry/v2/groups/default/artifacts/{subject}/versions"
    with urlopen(own) as answer:
        first, second = json.load(answer)["versions"]
    assert first["globalId"] != first["contentId"]

    def payload(schema: Any, user: str, **more: str) -> bytes:
        stream = io.BytesIO()
        row = {"user": user, "qty": 1, **more}
        fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)
        return stream.getvalue()

    def number(version: Any, kind: str) -> bytes:
        return int(version[kind]).to_bytes(8, "big")

    old, new = payload(FLAT, "a"), payload(newer, "b", note="n")
    name = "apicurio.value."
    records = [
        Record("k", b"\0" + number(first, "globalId") + old),
        Record("k", b"\0" + number(second, "globalId") + new),
        Record("k", old, headers=[(f"{name}globalId", number(first, "globalId"))]),
        Record("k", new, headers=[(f"{name}contentId", number(second, "contentId"))]),
        Record("k", b"\0" + (1 << 40).to_bytes(8, "big") + old),
    ]
    broker.produce(orders.topic, records, partition=0)
    columns = "value,valueError,valueSchemaId,offset"
    frame = orders.batch(valueFraming="apicurio", badRecords="null", columns=columns)
    rows = frame.orderBy("offset").collect()
    assert [each.value and tuple(each.value) for each in rows] == [
        ("a", 1, "-"),
        ("b", 1, "n"),
        ("a", 1, "-"),
        ("b", 1, "n"),
        None,
    ]
    assert rows[1].valueSchemaId == second["globalId"]
    assert f"names schema global id {1 << 40}, and schema registry {registry.url} has no" in (
        rows[4].valueError
    )


@pytest.mark.parametrize("with_guids", [True, False])
def test_a_sink_names_schemas_in_headers(
    spark: SparkSession,
    broker: KafkaBroker,
    topic: str,
    registry: ApicurioRegistry,
    with_guids: bool,
) -> None:
    """Apicurio gives no GUIDs, so the header has the id; the fake one gives them."""
    with FakeRegistry(first_id=7) as fake:
        url = fake.url if with_guids else registry.url
        options = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "valueFormat": "avro",
            "keyFormat": "avro",
            "schemaRegistry.url": url,
        }
        writing = {
            "topic": topic,
            "autoRegister": "true",
            "valueFraming": "confluentHeader",
            "keyFraming": "confluentHeader",
        }
        frame = spark.sql(
            "SELECT STRUCT('a-long-key' AS id) AS key, STRUCT('ada lovelace' AS user, 3 AS qty) "
            "AS value, ARRAY(STRUCT('trace' AS key, X'01' AS value)) AS headers"
        )
        frame.write.format("kshare").options(**options, **writing).mode("append").save()
        (raw,) = consumed(broker, topic, 1)
        headers: Any = raw.headers()
        names = [name for name, _ in headers]
        assert names == ["trace", "__key_schema_id", "__value_schema_id"]
        kinds = {value[:1] for name, value in headers if name != "trace"}
        assert kinds == {b"\1" if with_guids else b"\0"}
        with SchemaRegistryClient({"url": url}) as client:
            deserialize = AvroDeserializer(client)
            for field, data, wanted in (
                (MessageField.KEY, raw.key(), {"id": "a-long-key"}),
                (MessageField.VALUE, raw.value(), {"user": "ada lovelace", "qty": 3}),
            ):
                context = SerializationContext(topic, field, headers)
                assert deserialize(data, context) == wanted

        found = spark.read.format("kshare").options(**options, subscribe=topic).load()
        rows = found.selectExpr("key.id", "value.user", "value.qty").collect()
        assert [tuple(each) for each in rows] == [("a-long-key", "ada lovelace", 3)]
        config = {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "value.format": "avro",
            "value.subject": f"{topic}-value",
            "schema.registry.url": url,
            "columns": "value",
        }
        with closing(KeySharedConsumer(config)) as consumer:
            consumer.subscribe([topic])
            batch = eventually(lambda: consumer.consume_batch(1.0))
        assert batch.column("value").to_pylist() == [{"user": "ada lovelace", "qty": 3}]


def consumed(broker: KafkaBroker, topic: str, number: int) -> list[Message]:
    """The first records of a topic."""
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": f"{topic}-raw"}
    with closing(Consumer({**settings, "auto.offset.reset": "earliest"})) as consumer:
        consumer.subscribe([topic])
        return consumer.consume(number, QUERY_S)
