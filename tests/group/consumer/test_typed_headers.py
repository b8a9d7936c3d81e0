"""Typed columns of ``consume_batch`` whose schemas headers name, and Protobuf of a registry."""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from kshare.core.progress import Progress, TopicPartition
from kshare.errors import BadRecordError, SchemaRegistryError
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.testing import FakeCluster, FakeRegistry, Record
from tests.support.clock import WAIT_S
from tests.support.fake_session import FakeSessions
from tests.support.groups import eventually

ORDERS = TopicPartition("orders", 0)
AVRO = '{"type": "record", "name": "R", "fields": [{"name": "qty", "type": "int"}]}'
REFUND = AVRO.replace('"R"', '"Refund"')
PROTO = """
    syntax = "proto3";
    package shop;
    message Refund { int32 cents = 1; }
    message Order { int32 qty = 1; }
"""

Make = Callable[..., KeySharedConsumer]


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry() as fake:
        yield fake


def config(registry: FakeRegistry, form: str, **more: Any) -> dict[str, Any]:
    return {
        "value.format": form,
        "value.subject": "orders-value",
        "schema.registry.url": registry.url,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def in_front(number: int, payload: bytes) -> Record:
    return Record("k", b"\0" + number.to_bytes(4, "big") + payload)


def in_header(number: int, payload: bytes | None, indexes: bytes = b"") -> Record:
    header = b"\0" + number.to_bytes(4, "big") + indexes
    return Record("k", payload, headers=[("__value_schema_id", header)])


def rows_of(consumer: KeySharedConsumer, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while len(found) < count:
        batch: pa.RecordBatch | None = consumer.consume_batch(WAIT_S)
        assert batch is not None
        found += batch.to_pylist()
    return found


def test_ids_are_in_headers_or_in_front_and_headers_are_no_column_unless_asked_for(
    cluster: FakeCluster, registry: FakeRegistry, make: Make
) -> None:
    number = registry.register("orders-value", AVRO)
    records = [in_header(number, b"\x02"), in_front(number, b"\x04"), in_header(number, None)]
    cluster.produce("orders", records, partition=0)
    consumer = make(**config(registry, "avro", columns="value,valueSchemaId"))
    consumer.assign({ORDERS: []})
    assert rows_of(consumer, 3) == [
        {"value": {"qty": 1}, "valueSchemaId": number},
        {"value": {"qty": 2}, "valueSchemaId": number},
        {"value": None, "valueSchemaId": None},
    ]
    headed = make(**config(registry, "avro", columns="value,headers"))
    headed.assign({ORDERS: []})
    first, second, _ = rows_of(headed, 3)
    assert [each["key"] for each in first["headers"]] == ["__value_schema_id"]
    assert second["headers"] is None


def test_protobuf_of_a_registry_by_indexes_and_headers(
    cluster: FakeCluster, registry: FakeRegistry, make: Make
) -> None:
    number = registry.register("orders-value", PROTO, "PROTOBUF")
    order, refund = b"\x02\x02", b"\0"
    records = [
        in_front(number, order + b"\x08\x07"),
        in_header(number, b"\x08\x08", order),
        in_header(number, b"\x08\x09", refund),
    ]
    cluster.produce("orders", records, partition=0)
    given = config(registry, "protobuf", value_schema="shop.Order latest", columns="value,offset")
    consumer = make(**given)
    consumer.assign({ORDERS: []})
    assert [row["value"] for row in rows_of(consumer, 2)] == [{"qty": 7}, {"qty": 8}]
    with pytest.raises(BadRecordError) as raised:
        consumer.consume_batch(WAIT_S)
    assert raised.value.offset == 2
    assert "value is message shop.Refund, and shop.Order is wanted (schema id 1)" in str(
        raised.value
    )


def test_headers_name_records_of_other_names(
    cluster: FakeCluster, registry: FakeRegistry, make: Make, group: FakeSessions
) -> None:
    own, other = registry.register("orders-value", AVRO), registry.register("refunds", REFUND)
    records = [in_header(other, b"\x02"), in_header(own, b"\x04"), in_front(other, b"\x06")]
    cluster.produce("orders", records, partition=0)
    consumer = make(**config(registry, "avro", value_other_records="skip", columns="value,offset"))
    consumer.assign({ORDERS: []})
    assert rows_of(consumer, 1) == [{"value": {"qty": 2}, "offset": 1}]
    consumer.commit()
    assert group.done[ORDERS] == Progress.at(3)


def test_a_registry_that_is_down_is_waited_for_by_ids_of_headers_too(
    cluster: FakeCluster, registry: FakeRegistry, make: Make
) -> None:
    number = registry.register("orders-value", AVRO)
    newer = registry.register("orders-value", AVRO.replace('"int"', '"int", "default": 0'))
    consumer = make(**config(registry, "avro", value_schema=f"id:{number}", columns="value,offset"))
    consumer.assign({ORDERS: []})
    cluster.produce("orders", [in_header(number, b"\x02")], partition=0)
    assert rows_of(consumer, 1) == [{"value": {"qty": 1}, "offset": 0}]
    registry.stop()
    cluster.produce("orders", [in_header(number, b"\x04"), in_header(newer, b"\x06")], partition=0)
    for _ in range(3):
        assert consumer.consume_batch(0.05) is None
    registry.start()
    assert rows_of(consumer, 2) == [
        {"value": {"qty": 2}, "offset": 1},
        {"value": {"qty": 3}, "offset": 2},
    ]


def test_the_error_of_a_header_names_the_record(
    cluster: FakeCluster, registry: FakeRegistry, make: Make
) -> None:
    number = registry.register("orders-value", AVRO)
    limits = {"default_api_timeout_ms": 200, "request_timeout_ms": 200}
    consumer = make(**config(registry, "avro", value_schema=f"id:{number}", **limits))
    consumer.assign({ORDERS: []})
    cluster.produce("orders", [in_front(number, b"\x02")], partition=0)
    assert rows_of(consumer, 1)[0]["value"] == {"qty": 1}
    registry.stop()
    cluster.produce("orders", [in_header(99, b"\x06")], partition=0)
    with pytest.raises(SchemaRegistryError) as raised:
        eventually(lambda: consumer.consume_batch(0.02) is not None)
    assert str(raised.value).startswith("orders-0 at offset 1 names a schema, and schema registry")
    assert raised.value.schema_id == 99
