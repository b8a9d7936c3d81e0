"""Several schemas in a topic: columns by the names of records, and rows of other names."""

import json
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from kshare.errors import BadRecordError, OptionsError
from kshare.formats.avro.fingerprint import fingerprint
from kshare.testing import FakeCluster, FakeRegistry, Record
from spark_plugin.source import KshareDataSource

PLACED: dict[str, Any] = {
    "type": "record",
    "name": "Placed",
    "namespace": "shop",
    "fields": [{"name": "user", "type": "string"}, {"name": "qty", "type": "int"}],
}
NEWER = {
    **PLACED,
    "fields": [*PLACED["fields"], {"name": "note", "type": "string", "default": "-"}],
}
PAID: dict[str, Any] = {
    "type": "record",
    "name": "Paid",
    "namespace": "shop",
    "fields": [{"name": "user", "type": "string"}, {"name": "cents", "type": "long"}],
}
CANCELLED = {**PLACED, "name": "Cancelled"}
SUBJECTS = "orders-shop.Placed,orders-shop.Paid"
PLACED_ROW, PAID_ROW = {"user": "a", "qty": 1}, {"user": "b", "cents": 250}


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1, "bad": 1}) as fake:
        yield fake


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry() as fake:
        yield fake


def source(cluster: FakeCluster, **options: str) -> KshareDataSource:
    servers = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "orders"}
    return KshareDataSource({**servers, "valueFormat": "avro", "columns": "value", **options})


def of_registry(cluster: FakeCluster, registry: FakeRegistry, **options: str) -> KshareDataSource:
    found = {"schemaRegistry.url": registry.url, "valueSubject": SUBJECTS, **options}
    return source(cluster, **found)


def sent(made: Any) -> Any:
    """What Spark makes of it in another process."""
    return pickle.loads(pickle.dumps(made))


def rows_of(made: KshareDataSource) -> list[Any]:
    reader = sent(made).reader(made.schema())
    tasks = reader.partitions()
    batches = [batch for each in tasks for batch in sent(reader).read(each)]
    return pa.Table.from_batches(batches).to_pylist() if batches else []


def values(made: KshareDataSource) -> list[Any]:
    return [row["value"] for row in rows_of(made)]


def written(
    cluster: FakeCluster, registry: FakeRegistry, schema: Any, *rows: dict[str, Any]
) -> None:
    """Write records as Confluent's serializer does by TopicRecordNameStrategy."""

    def subject(context: SerializationContext | None, name: str | None) -> str:
        assert context is not None
        return f"{context.topic}-{name}"

    with SchemaRegistryClient({"url": registry.url}) as client:
        context = SerializationContext("orders", MessageField.VALUE)
        config = {"subject.name.strategy": subject}
        serialize = AvroSerializer(client, json.dumps(schema), conf=config)
        cluster.produce("orders", [Record("k", serialize(row, context)) for row in rows])


@pytest.fixture
def topic(cluster: FakeCluster, registry: FakeRegistry) -> None:
    """Records of three names, and a tombstone."""
    written(cluster, registry, PLACED, PLACED_ROW)
    written(cluster, registry, PAID, PAID_ROW)
    written(cluster, registry, CANCELLED, {"user": "c", "qty": 3})
    cluster.produce("orders", [Record("k", None)])
    written(cluster, registry, PLACED, {"user": "d", "qty": 4})


def test_a_column_for_each_name(cluster: FakeCluster, registry: FakeRegistry, topic: None) -> None:
    made = of_registry(cluster, registry, valueOtherRecords="null")
    assert made.schema().simpleString() == (
        "struct<value:struct<Placed:struct<user:string,qty:int>,Paid:struct<user:string,cents:"
        "bigint>>>"
    )
    assert values(made) == [
        {"Placed": PLACED_ROW, "Paid": None},
        {"Placed": None, "Paid": PAID_ROW},
        None,
        None,
        {"Placed": {"user": "d", "qty": 4}, "Paid": None},
    ]
    names = "offset,valueError,valueSchemaId"
    rows = rows_of(of_registry(cluster, registry, valueOtherRecords="null", columns=names))
    assert [row["valueError"] for row in rows] == [None] * 5
    assert [row["valueSchemaId"] for row in rows] == [1, 2, 3, None, 1]


def test_records_of_other_names_may_be_left_out(
    cluster: FakeCluster, registry: FakeRegistry, topic: None
) -> None:
    made = of_registry(cluster, registry, valueOtherRecords="skip", columns="value,offset")
    assert [row["offset"] for row in rows_of(made)] == [0, 1, 3, 4]
    few = of_registry(cluster, registry, valueOtherRecords="skip", columns="offset")
    assert [row["offset"] for row in rows_of(few)] == [0, 1, 3, 4]


def test_nothing_is_wrong_with_a_row_that_is_left_out(
    cluster: FakeCluster, registry: FakeRegistry
) -> None:
    written(cluster, registry, CANCELLED, {"user": "c", "qty": 3})
    written(cluster, registry, PLACED, PLACED_ROW)
    skip = {"valueOtherRecords": "skip", "valueSubject": "orders-shop.Placed"}
    keys = {"keyFormat": "json", "keySchema": "a INT"}  # "k" is no JSON
    made = of_registry(cluster, registry, **skip, **keys, keyFraming="none")
    assert values(made) == [PLACED_ROW]
    named = of_registry(cluster, registry, **skip, **keys, keyFraming="none", columns="key,value")
    with pytest.raises(BadRecordError, match=r"^orders-0 at offset 1: key "):
        rows_of(named)


def test_records_of_other_names_are_bad_unless_an_option_says_otherwise(
    cluster: FakeCluster, registry: FakeRegistry, topic: None
) -> None:
    with pytest.raises(BadRecordError) as raised:
        rows_of(of_registry(cluster, registry))
    text = str(raised.value)
    assert text.startswith(
        "orders-0 at offset 2: value is of schema id 3, which is of record shop.Cancelled, where "
        "these are read: shop.Placed, shop.Paid, read as avro shop.Placed id 1 (version 1 of "
        "orders-shop.Placed), shop.Paid id 2 (version 1 of orders-shop.Paid). "
    )
    made = of_registry(cluster, registry, badRecords="deadLetter=bad", columns="offset,value")
    assert [row["offset"] for row in rows_of(made)] == [0, 1, 3, 4]
    assert letters_of(cluster) == [b"2"]


def letters_of(cluster: FakeCluster) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "test",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["bad"])
    found = consumer.consume(1, 30.0)
    consumer.close()
    headers: list[Any] = [dict(each.headers() or ()) for each in found]
    return [each["__connect.errors.offset"] for each in headers]


def test_letters_and_rows_that_are_left_out_in_a_batch(
    cluster: FakeCluster, registry: FakeRegistry, topic: None
) -> None:
    cluster.produce("orders", [Record("k", "{}")])
    made = of_registry(
        cluster,
        registry,
        valueOtherRecords="skip",
        badRecords="deadLetter=bad",
        columns="offset",
    )
    assert [row["offset"] for row in rows_of(made)] == [0, 1, 3, 4]
    assert letters_of(cluster) == [b"5"]


def test_one_name_alone_has_the_columns_of_its_record(
    cluster: FakeCluster, registry: FakeRegistry, topic: None
) -> None:
    one = {"valueSubject": "orders-shop.Placed"}
    made = of_registry(cluster, registry, **one, valueOtherRecords="skip")
    assert made.schema().simpleString() == "struct<value:struct<user:string,qty:int>>"
    assert values(made) == [PLACED_ROW, None, {"user": "d", "qty": 4}]
    # Without the option, names are not compared, as in Java's Avro.
    with pytest.raises(BadRecordError, match=r"offset 1: value.*schema id 2"):
        rows_of(of_registry(cluster, registry, **one))


def test_fields_of_each_name(cluster: FakeCluster, registry: FakeRegistry, topic: None) -> None:
    skip = {"valueOtherRecords": "skip"}
    made = of_registry(cluster, registry, **skip, valueFields="Placed.qty,Paid")
    assert values(made)[:2] == [
        {"Placed": {"qty": 1}, "Paid": None},
        {"Placed": None, "Paid": PAID_ROW},
    ]
    with pytest.raises(OptionsError) as raised:
        of_registry(cluster, registry, valueFields="qty,Placed.user").schema()
    assert raised.value.problems == (
        "valueFields: qty begins with no record: there are Placed, Paid",
        (
            "valueFields: names no field of Paid, which valueSubject asks for; Paid alone is all "
            "of them"
        ),
    )
    with pytest.raises(OptionsError, match="valueSchema: there is no field nothing"):
        of_registry(cluster, registry, valueFields="Placed.nothing,Paid").schema()


def test_a_bad_record_names_its_column(cluster: FakeCluster, registry: FakeRegistry) -> None:
    written(cluster, registry, PLACED, PLACED_ROW)
    written(cluster, registry, PAID, PAID_ROW)
    cluster.produce("orders", [Record("k", b"\0\0\0\0\2\2b")])
    names = "value,valueError"
    rows = rows_of(of_registry(cluster, registry, badRecords="null", columns=names))
    assert [row["valueError"] for row in rows] == [
        None,
        None,
        "value.Paid.cents is cut short (schema id 2)",
    ]
    assert rows[2]["value"] is None


def test_a_running_stream_reads_newer_schemas_of_each_name_and_a_restart_says_what_is_new(
    cluster: FakeCluster,
    registry: FakeRegistry,
    topic: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def started() -> Any:
        made = of_registry(cluster, registry, valueOtherRecords="skip", startingOffsets="earliest")
        return sent(made).streamReader(made.schema())

    reader = started()
    first = reader.initialOffset()
    end = reader.latestOffset(first, reader.getDefaultReadLimit())
    assert end["@kshare"]["schemas"] == {"value": "avro shop.Placed id:1, shop.Paid id:2"}
    written(cluster, registry, NEWER, {"user": "e", "qty": 5, "note": "n"})
    written(cluster, registry, CANCELLED, {"user": "c", "qty": 3})
    last = reader.latestOffset(end, reader.getDefaultReadLimit())
    assert last["orders"] == {"0": 7}  # rows that are left out are read, and done
    rows = [
        row["value"]
        for task in reader.partitions(end, last)
        for batch in sent(reader).read(task)
        for row in batch.to_pylist()
    ]
    assert rows == [{"Placed": {"user": "e", "qty": 5}, "Paid": None}]
    reader.stop()
    assert caplog.records == []

    reader = started()
    reader.partitions(end, last)
    reader.stop()
    (text,) = [each.getMessage() for each in caplog.records]
    assert text.startswith(
        "value was read with the schema avro shop.Placed id:1, shop.Paid id:2, and is with avro "
        "shop.Placed id 4 (version 2 of orders-shop.Placed), shop.Paid id 2 (version 1 of "
        "orders-shop.Paid) now: value.Placed.note is new (string). "
    )


def test_a_name_more_is_said_at_a_restart(
    cluster: FakeCluster,
    registry: FakeRegistry,
    topic: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def planned(start: Any, subjects: str) -> Any:
        cluster.produce("orders", [Record("k", None)])
        skip = {"valueOtherRecords": "skip", "startingOffsets": "earliest"}
        made = of_registry(cluster, registry, **skip, valueSubject=subjects)
        reader = sent(made).streamReader(made.schema())
        end = reader.latestOffset(start or reader.initialOffset(), reader.getDefaultReadLimit())
        reader.stop()
        return end

    one = planned(None, "orders-shop.Placed")
    two = planned(one, SUBJECTS)
    planned(two, f"{SUBJECTS},orders-shop.Cancelled")
    planned(two, "orders-shop.Paid")
    texts = [each.getMessage() for each in caplog.records]
    assert [text.partition("now: ")[2].partition(". Rows")[0] for text in texts] == [
        (
            "value.user is gone, value.qty is gone, value.Placed is new (struct), value.Paid is "
            "new (struct)"
        ),
        "value.Cancelled is new (struct)",
        (
            "value.Placed is gone, value.Paid is gone, value.user is new (string), value.cents is "
            "new (int64)"
        ),
    ]


def test_names_of_before_are_read_too(cluster: FakeCluster, registry: FakeRegistry) -> None:
    written(cluster, registry, CANCELLED, {"user": "c", "qty": 3})
    aliased = {**PLACED, "aliases": ["Cancelled"]}
    registry.register("orders-shop.Placed", json.dumps(aliased))
    written(cluster, registry, PAID, PAID_ROW)
    assert [each["Placed"] for each in values(of_registry(cluster, registry))] == [
        {"user": "c", "qty": 3},
        None,
    ]


def test_schemas_that_cannot_be_told_apart(cluster: FakeCluster, registry: FakeRegistry) -> None:
    registry.register("a", json.dumps(PLACED))
    registry.register("b", json.dumps({**PLACED, "namespace": "web", "name": "placed"}))
    registry.register("c", '"int"')
    with pytest.raises(OptionsError) as raised:
        of_registry(cluster, registry, valueSubject="a,b").schema()
    assert raised.value.problems == (
        (
            "valueSubject: records shop.Placed and web.placed would have the same column "
            "value.Placed; name one of them"
        ),
    )
    with pytest.raises(OptionsError) as raised:
        of_registry(cluster, registry, valueSubject="a,c,d").schema()
    first, second = raised.value.problems
    assert first == (
        "valueSchema: id 3 (version 1 of c) is of type int, where a record with a name is wanted"
    )
    assert second.startswith("valueSchema: schema registry ")
    assert second.endswith("(valueSubject=d, valueSchema=latest)")


# -- a schema that is given, single objects -------------------------------------------------------

ITEM = {"type": "record", "name": "Item", "fields": [{"name": "sku", "type": "long"}]}
SOLD = {
    "type": "record",
    "name": "Sold",
    "namespace": "shop",
    "fields": [{"name": "item", "type": ITEM}],
}
RETURNED = {
    "type": "record",
    "name": "Returned",
    "namespace": "shop",
    "fields": [{"name": "item", "type": "Item"}],
}
ALONE = {**RETURNED, "fields": [{"name": "item", "type": ITEM}]}


def single_object(schema: Any, payload: bytes) -> Record:
    own = fingerprint(json.dumps(schema)).to_bytes(8, "little", signed=True)
    return Record("k", b"\xc3\1" + own + payload)


def test_a_given_union_of_records_that_a_registry_has(
    cluster: FakeCluster, registry: FakeRegistry, topic: None
) -> None:
    written(cluster, registry, NEWER, {"user": "e", "qty": 5, "note": "n"})
    made = of_registry(
        cluster,
        registry,
        valueSchema=json.dumps([PAID, PLACED]),
        valueSubject="shop.Placed,shop.Paid",
        valueOtherRecords="skip",
    )
    assert [each and list(each.values()) for each in values(made)] == [
        [PLACED_ROW, None],
        [None, PAID_ROW],
        None,
        [{"user": "d", "qty": 4}, None],
        [{"user": "e", "qty": 5}, None],
    ]


def test_an_id_that_leads_to_no_record_is_bad_whatever_is_left_out(
    cluster: FakeCluster, registry: FakeRegistry, topic: None
) -> None:
    number = registry.register("union", json.dumps(["null", "int"]))
    cluster.produce("orders", [Record("k", b"\0" + number.to_bytes(4, "big"))])
    cluster.produce("orders", [Record("k", b"\0\0\0\0\x63")])
    made = of_registry(
        cluster, registry, valueOtherRecords="skip", badRecords="null", columns="valueError"
    )
    errors = [row["valueError"] for row in rows_of(made)]
    assert errors[:-2] == [None] * 4
    assert errors[-2] == (
        "value is of schema id 4, which is of type union, where a record with a name is wanted"
    )
    assert errors[-1].startswith("value names schema id 99, and schema registry ")


def test_single_objects_of_records_of_a_given_union(cluster: FakeCluster) -> None:
    cluster.produce("orders", [single_object(SOLD, b"\x02"), single_object(ALONE, b"\x04")])
    options = {
        "valueSchema": json.dumps([SOLD, RETURNED, PAID]),
        "valueSubject": "shop.Sold, shop.Returned",
        "valueFraming": "singleObject",
    }
    made = source(cluster, **options)
    assert values(made) == [
        {"Sold": {"item": {"sku": 1}}, "Returned": None},
        {"Sold": None, "Returned": {"item": {"sku": 2}}},
    ]
    assert made.schemas is not None
    assert made.schemas.pins["value"].startswith("avro shop.Sold sha256:")
    # A fingerprint says no name: it may be an older schema of one that is asked for.
    cluster.produce("orders", [single_object(PLACED, b"\x02")])
    with pytest.raises(BadRecordError, match="offset 2: value is of the schema with fingerprint"):
        rows_of(source(cluster, **options, valueOtherRecords="skip"))
    one = {**options, "valueSubject": "shop.Returned", "badRecords": "null"}
    assert values(source(cluster, **one, valueOtherRecords="skip"))[1] == {"item": {"sku": 2}}
    with pytest.raises(OptionsError) as raised:
        source(cluster, **{**options, "valueSubject": "shop.Sold,Gone,Other"}).schema()
    assert raised.value.problems == tuple(
        f"valueSubject: there is no record {name}: valueSchema has shop.Sold, shop.Returned, "
        "shop.Paid"
        for name in ("Gone", "Other")
    )
    with pytest.raises(OptionsError, match="valueSchema: has 'int' beside records"):
        source(cluster, **{**options, "valueSchema": '["int"]'}).schema()


# -- JSON Schema ----------------------------------------------------------------------------------


def json_schema(title: str, **properties: str) -> str:
    kinds = {name: {"type": kind} for name, kind in properties.items()}
    return json.dumps({"title": title, "type": "object", "properties": kinds})


def test_json_by_title(cluster: FakeCluster, registry: FakeRegistry) -> None:
    placed, paid = json_schema("Placed", qty="integer"), json_schema("Paid", cents="integer")
    other = json_schema("Cancelled", qty="integer")
    with SchemaRegistryClient({"url": registry.url}) as client:
        for schema, row in ((placed, {"qty": 1}), (paid, {"cents": 5}), (other, {"qty": 3})):
            title = json.loads(schema)["title"]
            config = {"subject.name.strategy": lambda _, name: name}
            serialize = JSONSerializer(schema, client, conf=config)
            data = serialize(row, SerializationContext("orders", MessageField.VALUE))
            assert registry.requests[-1].endswith(f"/subjects/{title}/versions"), registry.requests
            cluster.produce("orders", [Record("k", data)])
    cluster.produce("orders", [Record("k", b"\0\0\0\0\1{")])
    options = {"valueFormat": "json", "valueSubject": "Placed,Paid", "badRecords": "null"}
    names = "value,valueError"
    made = of_registry(cluster, registry, **options, valueOtherRecords="skip", columns=names)
    rows = rows_of(made)
    assert [row["value"] for row in rows] == [
        {"Placed": {"qty": 1}, "Paid": None},
        {"Placed": None, "Paid": {"cents": 5}},
        {"Placed": {"qty": None}, "Paid": None},
    ]
    assert rows[2]["valueError"] == "value.Placed is cut short (schema id 1)"
    untitled = {"type": "object", "properties": {"a": {"type": "string"}}}
    registry.register("untitled", json.dumps(untitled), "JSON")
    with pytest.raises(OptionsError, match=r"version 1 of untitled\) has no title"):
        of_registry(cluster, registry, **{**options, "valueSubject": "untitled,Paid"}).schema()
