"""Several schemas in a topic, where headers name them: by records of Avro, and titles of JSON."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kshare.testing import FakeCluster, FakeRegistry, Record
from tests.spark_plugin.test_typed_rows import batch_rows, source


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1}) as fake:
        yield fake


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry() as fake:
        yield fake


def headed(number: int, payload: bytes) -> Record:
    return Record("k", payload, headers=[("__value_schema_id", b"\0" + number.to_bytes(4, "big"))])


def framed(number: int, payload: bytes) -> Record:
    return Record("k", b"\0" + number.to_bytes(4, "big") + payload)


def record(name: str, field: str) -> str:
    fields = [{"name": field, "type": "int"}]
    return json.dumps({"type": "record", "name": name, "namespace": "shop", "fields": fields})


def title(name: str, field: str, **more: Any) -> str:
    properties = {field: {"type": "integer"}}
    return json.dumps({"title": name, "type": "object", "properties": properties, **more})


def rows_of(
    cluster: FakeCluster, registry: FakeRegistry, form: str, columns: str, others: str = "skip"
) -> list[dict[str, Any]]:
    given = {"valueFormat": form, "schemaRegistry.url": registry.url, "columns": columns}
    given |= {"valueSubject": "placed,paid", "valueOtherRecords": others, "badRecords": "null"}
    return list(batch_rows(source(cluster, **given)))


def test_a_column_for_each_name_of_avro(cluster: FakeCluster, registry: FakeRegistry) -> None:
    placed = registry.register("placed", record("Placed", "qty"))
    paid = registry.register("paid", record("Paid", "cents"))
    other = registry.register("other", record("Cancelled", "qty"))
    records = [headed(placed, b"\x02"), headed(other, b"\x04"), framed(other, b"\x04")]
    records += [framed(paid, b"\x06"), headed(paid, b"\x08"), headed(placed, b"")]
    cluster.produce("orders", records)
    rows = rows_of(cluster, registry, "avro", "value,valueError,valueSchemaId,offset")
    assert [(row["offset"], row["value"], row["valueSchemaId"]) for row in rows] == [
        (0, {"Placed": {"qty": 1}, "Paid": None}, placed),
        (3, {"Placed": None, "Paid": {"cents": 3}}, paid),
        (4, {"Placed": None, "Paid": {"cents": 4}}, paid),
        (5, None, placed),
    ]
    assert rows[3]["valueError"].endswith(f"(schema id {placed})")


def test_a_column_for_each_title_of_json(cluster: FakeCluster, registry: FakeRegistry) -> None:
    """A writer's schema may refer to others: only its title counts."""
    placed = registry.register("placed", title("Placed", "qty"), "JSON")
    paid = registry.register("paid", title("Paid", "cents"), "JSON")
    text = title("Placed", "qty", description="newer")
    refers = [{"name": "paid", "subject": "paid", "version": 1}]
    newer = registry.register("elsewhere", text, "JSON", references=refers)
    alien = registry.register("alien", record("Placed", "qty"))
    records = [headed(placed, b'{"qty": 1}'), headed(newer, b'{"qty": 2}')]
    records += [framed(paid, b'{"cents": 3}'), headed(alien, b"{}")]
    cluster.produce("orders", records)
    rows = rows_of(cluster, registry, "json", "value,valueError")
    assert [row["value"] for row in rows] == [
        {"Placed": {"qty": 1}, "Paid": None},
        {"Placed": {"qty": 2}, "Paid": None},
        {"Placed": None, "Paid": {"cents": 3}},
        None,
    ]
    assert rows[3]["valueError"] == (
        f"value is of schema id {alien}, which is of type AVRO, and valueFormat=json"
    )
