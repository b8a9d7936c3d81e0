"""Typed columns of ``consume_batch``: the rows, bad records, and a registry that is down."""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kshare.core.progress import Progress, TopicPartition
from kshare.errors import BadRecordError, KafkaError, OptionsError, SchemaRegistryError
from kshare.formats.schemas import found_schemas
from kshare.formats.typed_columns import RowTyper
from kshare.group.config.consumer_config import consumer_config
from kshare.group.consumer.async_consumer import AsyncKeySharedConsumer
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.testing import FakeCluster, FakeRegistry, Record
from tests.support.clock import WAIT_S
from tests.support.fake_session import FakeSessions
from tests.support.groups import eventually
from tests.support.policies import FakePolicies

ORDERS = TopicPartition("orders", 0)
JSON = {"value.format": "json", "value.schema": "qty INT"}
EXPLICIT = {"acknowledgement.mode": "explicit"}
DEAD = {"bad.records": "deadLetter=dlq"}

Make = Callable[..., KeySharedConsumer]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 2, "dlq": 1}) as running:
        yield running


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry() as fake:
        yield fake


def rows_of(qty: list[Any], key: str | None = "k") -> list[Record]:
    return [Record(key, json.dumps({"qty": each})) for each in qty]


def quantities(batch: pa.RecordBatch | None) -> list[Any]:
    assert batch is not None
    return [row["value"] and row["value"]["qty"] for row in batch.to_pylist()]


def all_batches(consumer: KeySharedConsumer, records: int) -> list[pa.RecordBatch]:
    found: list[pa.RecordBatch] = []
    while sum(batch.num_rows for batch in found) < records:
        batch = consumer.consume_batch(WAIT_S)
        assert batch is not None
        found.append(batch)
    return found


def test_batches_have_typed_columns_and_messages_bytes(cluster: FakeCluster, make: Make) -> None:
    cluster.produce("orders", [*rows_of([1, 2]), Record("k", None)], partition=0)
    consumer = make(**JSON, **{"key.format": "string"})
    consumer.assign({ORDERS: []})
    batch = consumer.consume_batch(WAIT_S)
    assert batch is not None
    assert batch.schema.field("value").type == pa.struct([("qty", pa.int32())])
    assert batch.column("key").to_pylist() == ["k", "k", "k"]
    assert quantities(batch) == [1, 2, None]
    assert batch.schema.names == (
        ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    )
    consumer.seek((*ORDERS,), 0)
    message = consumer.poll(WAIT_S)
    assert message is not None
    assert (message.key(), message.value(), message.headers()) == (b"k", b'{"qty": 1}', None)


PAYLOADS = st.one_of(
    st.none(),
    st.integers(-5, 5).map(lambda n: json.dumps({"qty": n}).encode()),
    st.sampled_from([b"{", b'{"qty": "x"}', b"\xff", b"{}", b""]),
)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(PAYLOADS, min_size=1, max_size=30),
    columns=st.sampled_from(
        ["", "value,offset", "valueError,valueBytes,offset", "valueError,key,offset,value"]
    ),
)
def test_typed_batches_are_the_bytes_of_untyped_ones_decoded(
    values: list[bytes | None], columns: str
) -> None:
    """The law, over bad records and columns: typing and taking commute."""
    typed = {**JSON, "bad.records": "null"} | ({"columns": columns} if columns else {})
    with FakeCluster(topics={"orders": 1}) as cluster:
        cluster.produce("orders", [Record("k", value) for value in values], partition=0)
        given = {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "g",
            "auto.offset.reset": "earliest",
        }
        tables = []
        for more in ({}, typed):
            with KeySharedConsumer(
                {**given, **more}, session=FakeSessions(), policies=FakePolicies()
            ) as consumer:
                consumer.assign({ORDERS: []})
                tables.append(pa.Table.from_batches(all_batches(consumer, len(values))))
        config = consumer_config({**given, **typed})
    assert config.typed_rows is not None
    raw, found = tables
    typer = RowTyper(
        found_schemas(config.typed_rows, config.kafka, "law"),
        config.kafka,
        config.columns or raw.schema.names,
    )
    (batch,) = raw.combine_chunks().to_batches()
    expected = typer.typed(batch)
    assert found.to_pylist() == expected.to_pylist()
    assert [field.type for field in found.schema] == [field.type for field in expected.schema]


# -- bad records ----------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, EXPLICIT])
def test_what_comes_before_a_bad_record_is_returned_and_then_it_is_an_error(
    cluster: FakeCluster, make: Make, group: FakeSessions, more: dict[str, Any]
) -> None:
    cluster.produce("orders", rows_of([0, 1, "x", 3]), partition=0)
    consumer = make(**JSON, **more)
    consumer.assign({ORDERS: []})
    batch = consumer.consume_batch(WAIT_S)
    assert quantities(batch) == [0, 1]
    if more:
        consumer.acknowledge_batch(batch)
    for _ in range(2):  # nothing is lost: it comes again
        with pytest.raises(BadRecordError) as raised:
            consumer.consume_batch(WAIT_S)
        error = raised.value
        assert (error.topic, error.partition, error.offset) == ("orders", 0, 2)
        assert (error.column, error.field) == ("value", "qty")
        assert str(error) == (
            'orders-0 at offset 2: value.qty has "x" where an int is wanted, read as json, given '
            "inline. bad.records=null gives such records a null, bad.records=deadLetter=<topic> "
            "sets them aside"
        )
    consumer.commit()
    assert group.done[ORDERS] == Progress.at(2)
    consumer.seek((*ORDERS,), 3)
    assert quantities(consumer.consume_batch(WAIT_S)) == [3]


def test_a_message_can_be_taken_where_a_batch_cannot(cluster: FakeCluster, make: Make) -> None:
    cluster.produce("orders", rows_of(["x", 1]), partition=0)
    consumer = make(**JSON)
    consumer.assign({ORDERS: []})
    with pytest.raises(BadRecordError):
        consumer.consume_batch(WAIT_S)
    message = consumer.poll(WAIT_S)
    assert message is not None
    assert message.value() == b'{"qty": "x"}'
    assert quantities(consumer.consume_batch(WAIT_S)) == [1]


def test_a_bad_record_far_behind_costs_no_record(cluster: FakeCluster, make: Make) -> None:
    cluster.produce("orders", rows_of([*range(5_000), "x", 5_001]), partition=0)
    consumer = make(**JSON)
    consumer.assign({ORDERS: []})
    found = [each for batch in all_batches(consumer, 5_000) for each in quantities(batch)]
    assert found == [*range(5_000)]
    with pytest.raises(BadRecordError, match="offset 5000"):
        consumer.consume_batch(WAIT_S)


def letters(cluster: FakeCluster, number: int) -> list[tuple[Any, ...]]:
    """All dead letters: key, value, and from which offset."""
    reader = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "letters",
            "auto.offset.reset": "earliest",
        }
    )
    reader.subscribe(["dlq"])
    found = reader.consume(number, WAIT_S)
    reader.close()
    return [
        (each.key(), each.value(), dict(each.headers() or ())["__connect.errors.offset"])
        for each in found
    ]


@pytest.mark.parametrize("more", [{}, EXPLICIT])
def test_dead_letters_are_written_first_and_count_as_processed(
    cluster: FakeCluster, make: Make, group: FakeSessions, more: dict[str, Any]
) -> None:
    cluster.produce("orders", rows_of(["a", 1, "b", 3]), partition=0)
    consumer = make(**JSON, **DEAD, **more)
    consumer.assign({ORDERS: []})
    batch = consumer.consume_batch(WAIT_S)
    assert quantities(batch) == [1, 3]
    assert letters(cluster, 2) == [
        (b"k", b'{"qty": "a"}', b"0"),
        (b"k", b'{"qty": "b"}', b"2"),
    ]
    if more:
        consumer.acknowledge_batch(batch)
    consumer.commit()
    assert group.done[ORDERS] == Progress.at(4)


def test_a_batch_of_dead_letters_alone_is_none(
    cluster: FakeCluster, make: Make, group: FakeSessions
) -> None:
    cluster.produce("orders", rows_of(["a", "b"]), partition=0)
    consumer = make(**JSON, **DEAD, **EXPLICIT)
    consumer.assign({ORDERS: []})
    eventually(lambda: (consumer.consume_batch(0.1), consumer.commit()) == (None, {ORDERS: 2}))
    assert group.done[ORDERS] == Progress.at(2)
    assert len(letters(cluster, 2)) == 2


def test_a_letter_that_cannot_be_written_loses_nothing(
    cluster: FakeCluster, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise KafkaError("refused")

    monkeypatch.setattr("kshare.dead_letters.writer.DeadLetters.write", refuse)
    cluster.produce("orders", rows_of(["a", 1]), partition=0)
    consumer = make(**JSON, **DEAD)
    consumer.assign({ORDERS: []})
    for _ in range(2):
        with pytest.raises(KafkaError, match="refused"):
            consumer.consume_batch(WAIT_S)
    message = consumer.poll(WAIT_S)
    assert message is not None
    assert message.offset() == 0


# -- a registry -----------------------------------------------------------------------------------

FIRST = '{"type": "record", "name": "R", "fields": [{"name": "qty", "type": "int"}]}'
SECOND = (
    '{"type": "record", "name": "R", "fields": [{"name": "qty", "type": "int"}, '
    '{"name": "note", "type": "string", "default": ""}]}'
)


def avro(registry: FakeRegistry, **more: Any) -> dict[str, Any]:
    return {
        "value.format": "avro",
        "value.subject": "orders-value",
        "schema.registry.url": registry.url,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def of_schema(number: int, qty: int, more: bytes = b"") -> Record:
    return Record("k", b"\0" + number.to_bytes(4, "big") + bytes([2 * qty]) + more)


def test_ids_are_those_of_the_registry_and_new_ones_need_no_restart(
    cluster: FakeCluster, registry: FakeRegistry, make: Make
) -> None:
    first = registry.register("orders-value", FIRST)
    consumer = make(**avro(registry, columns="value,valueSchemaId,offset"))
    consumer.assign({ORDERS: []})
    assert not registry.requests  # a consumer that is made has contacted nothing
    cluster.produce("orders", [of_schema(first, 1)], partition=0)
    batch = consumer.consume_batch(WAIT_S)
    assert batch is not None
    assert batch.to_pylist() == [{"value": {"qty": 1}, "valueSchemaId": first, "offset": 0}]
    second = registry.register("orders-value", SECOND)
    cluster.produce("orders", [of_schema(second, 2, b"\x02a"), of_schema(first, 3)], partition=0)
    found = all_batches(consumer, 2)
    assert [each for batch in found for each in quantities(batch)] == [2, 3]
    assert registry.requests == (
        "GET /subjects/orders-value/versions/latest",
        f"GET /schemas/ids/{second}",
    )


@pytest.mark.parametrize("more", [{}, EXPLICIT])
def test_records_of_other_names_are_left_out_and_count_as_processed(
    cluster: FakeCluster,
    registry: FakeRegistry,
    make: Make,
    group: FakeSessions,
    more: dict[str, Any],
) -> None:
    own = registry.register("orders-value", FIRST)
    other = registry.register("orders-other", FIRST.replace('"R"', '"Refund"'))
    config = avro(registry, columns="value,offset") | {"value.other.records": "skip"} | DEAD
    consumer = make(**config, **more)
    consumer.assign({ORDERS: []})
    bad = Record("k", b"\0" + own.to_bytes(4, "big"))
    rows = [of_schema(other, 1), of_schema(own, 2), bad, of_schema(own, 3), of_schema(other, 4)]
    cluster.produce("orders", rows, partition=0)
    batch = consumer.consume_batch(WAIT_S)
    assert quantities(batch) == [2, 3]
    assert len(letters(cluster, 1)) == 1
    if more:
        consumer.acknowledge_batch(batch)
    consumer.commit()
    assert group.done[ORDERS] == Progress.at(5)


def test_while_the_registry_is_down_calls_return_in_time_and_nothing_is_lost(
    cluster: FakeCluster, registry: FakeRegistry, make: Make
) -> None:
    first = registry.register("orders-value", FIRST)
    second = registry.register("orders-value", SECOND)
    cluster.produce("orders", [of_schema(first, 1), of_schema(second, 2, b"\x00")], partition=0)
    registry.stop()
    consumer = make(**avro(registry))
    consumer.assign({ORDERS: []})
    for _ in range(3):
        assert consumer.consume_batch(0.0) is None
        assert consumer.consume_batch(0.05) is None
    registry.start()
    assert quantities(consumer.consume_batch(WAIT_S)) == [1, 2]


def test_a_registry_that_stays_down_is_an_error_that_a_later_call_raises(
    cluster: FakeCluster, registry: FakeRegistry, make: Make
) -> None:
    number = registry.register("orders-value", FIRST)
    cluster.produce("orders", [of_schema(number, 1)], partition=0)
    registry.stop()
    consumer = make(**avro(registry, default_api_timeout_ms=200, request_timeout_ms=200))
    consumer.assign({ORDERS: []})
    with pytest.raises(SchemaRegistryError) as raised:
        eventually(lambda: consumer.consume_batch(0.02) is not None)
    assert "the newest version of subject orders-value, after 0.2 s" in str(raised.value)
    registry.start()
    assert quantities(consumer.consume_batch(WAIT_S)) == [1]


def test_the_error_of_an_id_names_the_record(
    cluster: FakeCluster, registry: FakeRegistry, make: Make
) -> None:
    first = registry.register("orders-value", FIRST)
    cluster.produce("orders", [of_schema(first, 1)], partition=0)
    consumer = make(**avro(registry, default_api_timeout_ms=200, request_timeout_ms=200))
    consumer.assign({ORDERS: []})
    assert quantities(consumer.consume_batch(WAIT_S)) == [1]
    second = registry.register("orders-value", SECOND)
    cluster.produce("orders", [of_schema(first, 2), of_schema(second, 3, b"\x00")], partition=0)
    registry.stop()
    found: list[int] = []

    def taken() -> bool:
        batch = consumer.consume_batch(0.02)
        found.extend(quantities(batch) if batch is not None else [])
        return False

    with pytest.raises(SchemaRegistryError) as raised:
        eventually(taken)
    assert str(raised.value).startswith("orders-0 at offset 2 names a schema, and schema registry")
    assert (raised.value.schema_id, raised.value.url) == (second, registry.url)
    registry.start()
    while len(found) < 2:
        found.extend(quantities(consumer.consume_batch(WAIT_S)))
    assert found == [2, 3]


def test_close_does_not_wait_for_a_registry(
    cluster: FakeCluster, registry: FakeRegistry, make: Make, group: FakeSessions
) -> None:
    number = registry.register("orders-value", FIRST)
    cluster.produce("orders", [of_schema(number, 1)], partition=0)
    registry.stop()
    consumer = make(**avro(registry))
    consumer.assign({ORDERS: []})
    assert consumer.consume_batch(0.0) is None
    consumer.close()
    assert group.done.get(ORDERS, Progress.at(0)) == Progress.at(0)


def test_asyncio_gets_the_same_and_a_cancelled_call_loses_nothing(
    cluster: FakeCluster, registry: FakeRegistry, group: FakeSessions
) -> None:
    number = registry.register("orders-value", FIRST)
    cluster.produce("orders", [of_schema(number, 1)], partition=0)
    registry.stop()
    config = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g", **avro(registry)}

    async def cancelled() -> None:
        make = partial(KeySharedConsumer, session=group, policies=FakePolicies())
        async with AsyncKeySharedConsumer(config, consumer=make) as consumer:
            await consumer.assign({ORDERS: []})
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.consume_batch(), 0.05)
            registry.start()
            assert quantities(await consumer.consume_batch(WAIT_S)) == [1]

    asyncio.run(cancelled())


def test_in_a_loop_that_runs_dead_letters_are_written_too(cluster: FakeCluster, make: Make) -> None:
    """As in a notebook's cell, whose thread has a loop."""
    cluster.produce("orders", rows_of(["a", 1]), partition=0)

    async def cell() -> list[Any]:
        consumer = make(**JSON, **DEAD)
        consumer.assign({ORDERS: []})
        return quantities(consumer.consume_batch(WAIT_S))

    assert asyncio.run(cell()) == [1]


# -- configurations -------------------------------------------------------------------------------


def test_a_schema_that_cannot_be_read_is_a_fault_of_the_configuration(make: Make) -> None:
    with pytest.raises(OptionsError) as raised:
        make(**{"value.format": "json", "value.schema": "qty NUMBER"})
    (problem,) = raised.value.problems
    assert problem.startswith("value.schema: ")
    assert "the consumer's configuration" in str(raised.value)


def test_a_subject_that_is_not_there_is_a_fault_of_the_first_call(
    cluster: FakeCluster, registry: FakeRegistry, make: Make
) -> None:
    cluster.produce("orders", rows_of([1]), partition=0)
    consumer = make(**avro(registry))
    consumer.assign({ORDERS: []})
    for _ in range(2):
        with pytest.raises(OptionsError, match=r"value\.schema: .*value\.subject=orders-value"):
            consumer.consume_batch(WAIT_S)


def test_no_secret_is_shown(registry: FakeRegistry, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    given = {**avro(registry), "schema.registry.basic.auth.user.info": "user:TOPSECRET"}
    config = consumer_config({"bootstrap.servers": "b:1", "group.id": "g", **given})
    assert "TOPSECRET" not in repr(config)
    assert "TOPSECRET" not in caplog.text
