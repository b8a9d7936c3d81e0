"""Typed rows of the source, without Spark: columns, bad records, and what the checkpoint says."""

import json
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql.types import (
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from kshare.errors import BadRecordError, OptionsError, SchemaRegistryError
from kshare.testing import FakeCluster, FakeRegistry, Record
from spark_plugin.readers import StreamReader
from spark_plugin.source import KshareDataSource

STRINGS = {"valueFormat": "string", "keyFormat": "string"}
GOOD = [Record("k1", "v1"), Record(None, "v2"), Record("k3", None)]
BAD = [Record("a", "good"), Record(b"b", b"ba\xffd"), Record("c", "fine"), Record(b"\xfe", "x")]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1, "others": 2, "bad": 1}) as fake:
        yield fake


def source(cluster: FakeCluster, **more: str) -> KshareDataSource:
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "orders"}
    return KshareDataSource({**options, **STRINGS, **more})


def sent(made: KshareDataSource) -> KshareDataSource:
    """The source where Spark makes readers: another process."""
    again: KshareDataSource = pickle.loads(pickle.dumps(made))
    return again


def batch_rows(made: KshareDataSource) -> list[dict[str, Any]]:
    schema = made.schema()
    reader: Any = sent(made).reader(schema)
    tasks = reader.partitions()
    task: Any = pickle.loads(pickle.dumps(reader))
    batches = [batch for each in tasks for batch in task.read(each)]
    return pa.Table.from_batches(batches).to_pylist() if batches else []


def test_columns_have_the_types_of_the_formats(cluster: FakeCluster) -> None:
    names = "valueBytes,value,offset,key,valueError"
    assert source(cluster, columns=names, badRecords="null").schema() == StructType(
        [
            StructField("valueBytes", BinaryType()),
            StructField("value", StringType()),
            StructField("offset", LongType()),
            StructField("key", StringType()),
            StructField("valueError", StringType()),
        ]
    )


def test_a_batch_has_typed_rows(cluster: FakeCluster) -> None:
    cluster.produce("orders", GOOD)
    rows = batch_rows(source(cluster))
    found = [(row["key"], row["value"]) for row in rows]
    assert found == [
        ("k1", "v1"),
        (None, "v2"),
        ("k3", None),
    ]
    assert list(rows[0]) == [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
    ]
    rows = batch_rows(source(cluster, columns="value,offset"))
    assert rows == [
        {"value": "v1", "offset": 0},
        {"value": "v2", "offset": 1},
        {"value": None, "offset": 2},
    ]


def test_several_topics_in_a_task(cluster: FakeCluster) -> None:
    cluster.produce("orders", GOOD)
    cluster.produce("others", [Record("k", "v"), Record(b"k", b"\xff")], partition=1)
    options = {"subscribe": "orders,others", "maxTasks": "1"}
    assert len(batch_rows(source(cluster, **options, columns="value", badRecords="null"))) == 5
    with pytest.raises(BadRecordError, match=r"^others-1 at offset 1: value is not UTF-8"):
        batch_rows(source(cluster, **options))


def test_a_bad_record_fails_the_query_by_name(cluster: FakeCluster) -> None:
    cluster.produce("orders", BAD)
    with pytest.raises(BadRecordError) as raised:
        batch_rows(source(cluster, columns="value"))
    assert str(raised.value) == (
        "orders-0 at offset 1: value is not UTF-8: byte 2 is wrong, read as string. "
        "badRecords=null gives such records a null, badRecords=deadLetter=<topic> sets them aside"
    )
    error = raised.value
    assert (error.topic, error.partition, error.offset) == ("orders", 0, 1)
    assert (error.column, error.field) == ("value", "")


def test_a_column_that_nobody_asks_for_is_not_decoded(cluster: FakeCluster) -> None:
    cluster.produce("orders", BAD)
    assert batch_rows(source(cluster, columns="offset")) == [{"offset": k} for k in range(4)]


def test_bad_records_may_be_null_with_their_reason_and_bytes(cluster: FakeCluster) -> None:
    cluster.produce("orders", BAD)
    columns = "key,keyError,keyBytes,value,valueError,valueBytes"
    rows = batch_rows(source(cluster, columns=columns, badRecords="null"))
    why = "is not UTF-8: byte"
    assert [tuple(row.values()) for row in rows] == [
        ("a", None, None, "good", None, None),
        ("b", None, None, None, f"value {why} 2 is wrong", b"ba\xffd"),
        ("c", None, None, "fine", None, None),
        (None, f"key {why} 0 is wrong", b"\xfe", "x", None, None),
    ]


def test_json_keeps_the_fields_of_a_bad_record_that_can_be_read(cluster: FakeCluster) -> None:
    values = ['{"user": "u", "qty": 2}', '{"user": "x", "qty": "many"}', "nothing", None]
    cluster.produce("orders", [Record("k", value) for value in values])
    options = {"valueFormat": "json", "valueSchema": "user STRING, qty INT"}
    made = source(cluster, **options, columns="value,valueError", badRecords="null")
    assert [tuple(row.values()) for row in batch_rows(made)] == [
        ({"user": "u", "qty": 2}, None),
        ({"user": "x", "qty": None}, 'value.qty has "many" where an int is wanted'),
        ({"user": None, "qty": None}, "value is nothing, where an object is wanted"),
        (None, None),
    ]
    some = source(cluster, **options, columns="value", badRecords="null", valueFields="user")
    users = [row["value"] and row["value"]["user"] for row in batch_rows(some)]
    assert users == ["u", "x", None, None]


def test_dead_letters_are_in_their_topic_in_order_and_no_rows(cluster: FakeCluster) -> None:
    cluster.produce("orders", BAD * 40)
    rows = batch_rows(source(cluster, columns="key,value,offset", badRecords="deadLetter=bad"))
    assert [row["offset"] for row in rows] == list(range(0, 160, 2))
    letters = consumed(cluster, "bad", 80)
    assert [int(headers["__connect.errors.offset"]) for *_, headers in letters] == list(
        range(1, 160, 2)
    )
    key, value, headers = letters[0]
    assert (key, value) == (b"b", b"ba\xffd")
    assert headers["__connect.errors.topic"] == b"orders"
    assert headers["__connect.errors.exception.class.name"] == b"kshare.errors.BadRecordError"
    assert headers["__connect.errors.exception.message"] == (
        b"orders-0 at offset 1: value is not UTF-8: byte 2 is wrong, read as string"
    )
    assert headers["kshare.attempts"] == b"1"
    assert letters[1][0] == b"\xfe"


def consumed(
    cluster: FakeCluster, topic: str, number: int
) -> list[tuple[Any, Any, dict[str, bytes]]]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "test",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    found: list[Any] = []
    while len(found) < number:
        found += consumer.consume(number - len(found), 1.0)
    consumer.close()
    return [(each.key(), each.value(), dict(each.headers())) for each in found]


# -- streams --------------------------------------------------------------------------------------


def test_a_stream_has_typed_rows_and_says_which_schemas(cluster: FakeCluster) -> None:
    cluster.produce("orders", GOOD)
    made = source(cluster, startingOffsets="earliest", columns="value")
    schema = made.schema()
    reader: Any = sent(made).streamReader(schema)
    assert isinstance(reader, StreamReader)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert end["@kshare"]["schemas"] == {"key": "string", "value": "string"}
    (task,) = reader.partitions(start, end)
    copy: Any = pickle.loads(pickle.dumps(reader))
    assert [batch.to_pydict() for batch in copy.read(task)] == [{"value": ["v1", "v2", None]}]
    reader.stop()


def test_a_restart_with_other_formats_says_so_once(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.produce("orders", GOOD)

    def planned(start: Any, **more: str) -> Any:
        made = source(cluster, startingOffsets="earliest", **more)
        reader: Any = made.streamReader(made.schema())
        end = reader.latestOffset(start or reader.initialOffset(), reader.getDefaultReadLimit())
        reader.latestOffset(end, reader.getDefaultReadLimit())
        reader.stop()
        return end

    first = planned(None)
    cluster.produce("orders", GOOD)
    second = planned(first)
    assert caplog.records == []
    bytes_again = {"valueFormat": "string"}
    made = KshareDataSource(
        {
            "kafka.bootstrap.servers": cluster.bootstrap_servers,
            "subscribe": "orders",
            **bytes_again,
        }
    )
    reader: Any = made.streamReader(made.schema())
    reader.latestOffset(second, reader.getDefaultReadLimit())
    reader.latestOffset(second, reader.getDefaultReadLimit())
    reader.stop()
    (text,) = [each.getMessage() for each in caplog.records]
    assert text.startswith("key was read as string, and is bytes now. Rows have the columns of now")


# -- schemas that cannot be had -------------------------------------------------------------------


def test_a_schema_of_ones_own_is_refused(cluster: FakeCluster) -> None:
    own = StructType([StructField("value", StringType())])
    with pytest.raises(OptionsError, match=r"as the schemas say: string, string; leave out \.sch"):
        source(cluster).reader(own)


def test_a_registry_that_does_not_answer_is_said_at_load(cluster: FakeCluster) -> None:
    with FakeRegistry() as registry:
        registry.stop()
        options = {
            "valueFormat": "avro",
            "schemaRegistry.url": registry.url,
            "kafka.default.api.timeout.ms": "200",
        }
        made = source(cluster, **options)
        with pytest.raises(SchemaRegistryError, match="newest version of subject orders-value"):
            made.schema()
        reader: Any = made.streamReader(StructType([]))
        with pytest.raises(SchemaRegistryError, match="newest version of subject orders-value"):
            reader.initialOffset()


def test_what_the_registry_does_not_have(cluster: FakeCluster) -> None:
    with FakeRegistry() as registry:
        registry.register("orders-value", '{"type": "object"}', "JSON")
        options = {"valueFormat": "avro", "schemaRegistry.url": registry.url}
        with pytest.raises(OptionsError) as raised:
            source(cluster, keyFormat="avro", **options).schema()
        assert raised.value.problems == (
            (
                f"keySchema: schema registry {registry.url} has no newest version of subject "
                "orders-key: Subject 'orders-key' not found. "
                "(keySubject=orders-key, keySchema=latest)"
            ),
            (
                "valueFormat: is avro, and the registry's id 1 (version 1 of orders-value) is of "
                "type JSON"
            ),
        )


# -- Avro, with a registry ------------------------------------------------------------------------

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "user", "type": "string"}, {"name": "qty", "type": "int"}],
}
NEWER = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": "string", "default": "-"}]}
ALIEN = {"type": "record", "name": "Order", "fields": [{"name": "user", "type": "int"}]}


def avro(registry: FakeRegistry, schema: object, *rows: dict[str, object]) -> list[Record]:
    """Records as Confluent's serializer writes them."""
    with SchemaRegistryClient({"url": registry.url}) as client:
        serialize = AvroSerializer(client, json.dumps(schema))
        context = SerializationContext("orders", MessageField.VALUE)
        return [Record(None, serialize(row, context)) for row in rows]


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry() as fake:
        yield fake


def avro_source(cluster: FakeCluster, registry: FakeRegistry, **more: str) -> KshareDataSource:
    options = {"valueFormat": "avro", "schemaRegistry.url": registry.url, "columns": "value"}
    return source(cluster, **options, **more)


def test_a_struct_of_the_newest_schema(cluster: FakeCluster, registry: FakeRegistry) -> None:
    cluster.produce("orders", avro(registry, ORDER, {"user": "a", "qty": 1}))
    cluster.produce("orders", [Record("k", None)])
    cluster.produce("orders", avro(registry, NEWER, {"user": "b", "qty": 2, "note": "n"}))
    made = avro_source(cluster, registry)
    assert made.schema().simpleString() == "struct<value:struct<user:string,qty:int,note:string>>"
    assert [row["value"] for row in batch_rows(made)] == [
        {"user": "a", "qty": 1, "note": "-"},
        None,
        {"user": "b", "qty": 2, "note": "n"},
    ]


@pytest.mark.parametrize("choice", ["version:1", "id:1", json.dumps(ORDER)])
def test_an_older_schema_and_some_fields(
    cluster: FakeCluster, registry: FakeRegistry, choice: str
) -> None:
    cluster.produce("orders", avro(registry, ORDER, {"user": "a", "qty": 1}))
    cluster.produce("orders", avro(registry, NEWER, {"user": "b", "qty": 2, "note": "n"}))
    more = {"valueSchema": choice, "valueFields": "qty"}
    rows = batch_rows(avro_source(cluster, registry, **more))
    assert rows == [{"value": {"qty": 1}}, {"value": {"qty": 2}}]


def test_a_running_stream_reads_newer_records_and_a_restart_says_what_is_new(
    cluster: FakeCluster, registry: FakeRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.produce("orders", avro(registry, ORDER, {"user": "a", "qty": 1}))
    made = avro_source(cluster, registry, startingOffsets="earliest")
    reader: Any = sent(made).streamReader(made.schema())
    start, rows = reader.initialOffset(), []
    for more in ((NEWER, {"user": "b", "qty": 2, "note": "n"}), (ALIEN, {"user": 3})):
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        for task in reader.partitions(start, end):
            rows += [row for batch in reader.read(task) for row in batch.to_pylist()]
        cluster.produce("orders", avro(registry, *more))
        start = end
    assert end["@kshare"]["schemas"]["value"] == "avro id:1"
    assert rows == [{"value": {"user": "a", "qty": 1}}, {"value": {"user": "b", "qty": 2}}]
    asked = registry.requests.count("GET /schemas/ids/2")
    assert asked == 1
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    (task,) = reader.partitions(start, end)
    with pytest.raises(BadRecordError, match=r"orders-0 at offset 2: value.* \(schema id 3\)"):
        list(reader.read(task))
    reader.stop()
    assert caplog.records == []

    made = avro_source(cluster, registry, valueSchema="version:2")
    reader = made.streamReader(made.schema())
    reader.partitions(start, end)
    reader.stop()
    (text,) = [each.getMessage() for each in caplog.records]
    assert text.startswith(
        "value was read with the schema avro id:1, and is with avro id 2 (version 2 of "
        "orders-value) now: value.note is new (string). Rows have the columns of now"
    )


def test_known_ids_go_on_while_the_registry_is_down(
    cluster: FakeCluster, registry: FakeRegistry
) -> None:
    cluster.produce("orders", avro(registry, ORDER, {"user": "a", "qty": 1}))
    hasty = avro_source(cluster, registry, **{"kafka.default.api.timeout.ms": "2000"})
    patient = avro_source(cluster, registry)  # a server that has started anew may take a while
    of_hasty: Any = sent(hasty).reader(hasty.schema())
    reader: Any = sent(patient).reader(patient.schema())
    cluster.produce("orders", avro(registry, NEWER, {"user": "b", "qty": 2, "note": "n"}))
    tasks = reader.partitions()
    registry.stop()
    batches: Iterator[Any] = (batch for each in tasks for batch in of_hasty.read(each))
    with pytest.raises(
        SchemaRegistryError,
        match=r"^orders-0 at offset 1 names a schema, and .* schema id 2, after 2 s",
    ):
        list(batches)
    registry.start()
    rows = [row for each in tasks for batch in reader.read(each) for row in batch.to_pylist()]
    registry.stop()
    again = [row for each in tasks for batch in reader.read(each) for row in batch.to_pylist()]
    assert again == rows == [{"value": {"user": "a", "qty": 1}}, {"value": {"user": "b", "qty": 2}}]
    assert registry.requests.count("GET /schemas/ids/2") == 1


def test_schemas_that_refer_to_others(cluster: FakeCluster, registry: FakeRegistry) -> None:
    user = {"type": "record", "name": "User", "fields": [{"name": "id", "type": "long"}]}
    registry.register("user", json.dumps(user))
    text = json.dumps({**ORDER, "fields": [{"name": "user", "type": "User"}]})
    refers = Schema(text, "AVRO", [SchemaReference("User", "user", 1)])
    with SchemaRegistryClient({"url": registry.url}) as client:
        context = SerializationContext("orders", MessageField.VALUE)
        data = AvroSerializer(client, refers)({"user": {"id": 7}}, context)
    cluster.produce("orders", [Record(None, data)])
    made = avro_source(cluster, registry)
    assert made.schema().simpleString() == "struct<value:struct<user:struct<id:bigint>>>"
    assert batch_rows(made) == [{"value": {"user": {"id": 7}}}]


def test_ids_of_schemas_are_a_column(cluster: FakeCluster, registry: FakeRegistry) -> None:
    cluster.produce("orders", avro(registry, ORDER, {"user": "a", "qty": 1}))
    cluster.produce("orders", [Record(None, "{}"), Record(None, None)])
    options = {"valueFormat": "avro", "schemaRegistry.url": registry.url, "badRecords": "null"}
    rows = batch_rows(source(cluster, **options, columns="valueSchemaId,value,valueError"))
    assert rows == [
        {"valueSchemaId": 1, "value": {"user": "a", "qty": 1}, "valueError": None},
        {
            "valueSchemaId": None,
            "value": None,
            "valueError": "value begins with 0x7b, where the framing confluent has 0x00",
        },
        {"valueSchemaId": None, "value": None, "valueError": None},
    ]


def test_a_schema_that_cannot_be_read_is_said_at_load(cluster: FakeCluster) -> None:
    made = source(cluster, valueFormat="avro", valueSchema='{"type": "record"}')
    with pytest.raises(OptionsError) as raised:
        made.schema()
    (problem,) = raised.value.problems
    assert problem.startswith("valueSchema: ")


@pytest.mark.parametrize("is_batch", [True, False])
def test_faults_of_schemas_that_are_given_come_with_all_others(
    cluster: FakeCluster, *, is_batch: bool
) -> None:
    with FakeRegistry() as registry:
        registry.stop()  # it is not asked
        made = source(
            cluster,
            minPartitions="none",
            keyFormat="avro",
            valueFormat="json",
            valueFraming="none",
            keySchema='{"type": "record"}',
            valueSchema="a INT",
            valueFields="a,b",
            **{"schemaRegistry.url": registry.url, "value.json.maxNestingDepth": "x"},
        )
        with pytest.raises(OptionsError) as raised:
            made.schema()
        assert [each.partition(":")[0].partition(" ")[0] for each in raised.value.problems] == [
            "minPartitions",
            "keySchema",
            "value.json.maxNestingDepth",
            "valueSchema",
        ]
        none = StructType([])
        if is_batch:
            with pytest.raises(OptionsError) as again:
                made.reader(none)
        else:
            with pytest.raises(OptionsError) as again:
                made.streamReader(none).initialOffset()
        assert again.value.problems == raised.value.problems


def test_a_schema_that_is_given_is_read_before_a_registry_is_asked(cluster: FakeCluster) -> None:
    with FakeRegistry() as registry:
        options = {"keySchema": '"nothing"', "schemaRegistry.url": registry.url}
        made = source(cluster, keyFormat="avro", valueFormat="avro", **options)
        with pytest.raises(OptionsError, match="keySchema: ") as raised:
            made.schema()
        assert len(raised.value.problems) == 1
        assert registry.requests == ()
