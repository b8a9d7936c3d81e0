"""``kshare.read_slice`` with typed columns: as the bytes, decoded; faults at the call."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

import kshare
from kshare.core.slice_end import SliceEnd
from kshare.errors import BadRecordError, OptionsError
from kshare.testing import FakeCluster, FakeRegistry, Record

PART = kshare.Slice("orders", 0, (kshare.Rectangle(kshare.OffsetRange(0, 3), kshare.WHOLE),))
JSON = {"valueFormat": "json", "valueSchema": "qty INT"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1, "dlq": 1}) as fake:
        values = ['{"qty": 1}', '{"qty": "x"}', None]
        fake.produce("orders", [Record("k", value) for value in values], partition=0)
        yield fake


def table(cluster: FakeCluster, **more: str) -> pa.Table:
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, **more}
    return pa.Table.from_batches(kshare.read_slice(PART, options))


def test_a_slice_has_typed_columns(cluster: FakeCluster) -> None:
    columns = "value,valueError,offset"
    found = table(cluster, **JSON, badRecords="null", columns=columns)
    assert found.schema.field("value").type == pa.struct([("qty", pa.int32())])
    assert [row["value"] for row in found.to_pylist()] == [{"qty": 1}, {"qty": None}, None]
    assert found.column("valueError").to_pylist() == [
        None,
        'value.qty has "x" where an int is wanted',
        None,
    ]
    assert table(cluster, columns="value").column("value").to_pylist() == [
        b'{"qty": 1}',
        b'{"qty": "x"}',
        None,
    ]


def test_bad_records_are_an_error_or_dead_letters(cluster: FakeCluster) -> None:
    with pytest.raises(BadRecordError, match="orders-0 at offset 1"):
        table(cluster, **JSON)
    found = table(cluster, **JSON, badRecords="deadLetter=dlq", columns="offset")
    assert found.column("offset").to_pylist() == [0, 1, 2]  # value is not read: nothing is wrong
    found = table(cluster, **JSON, badRecords="deadLetter=dlq", columns="value,offset")
    assert found.column("offset").to_pylist() == [0, 2]


def test_batches_of_a_slice_have_rows(cluster: FakeCluster) -> None:
    """Of a slice, whose end is known, nobody waits for a sign of life."""
    part = kshare.Slice("orders", 0, (kshare.Rectangle(kshare.OffsetRange(1, 2), kshare.WHOLE),))
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, **JSON}
    assert list(kshare.read_slice(part, {**options, "badRecords": "deadLetter=dlq"})) == []


def test_the_end_is_told_and_limits_hold(cluster: FakeCluster) -> None:
    ends: list[SliceEnd] = []
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, **JSON}
    batches = list(kshare.read_slice(PART, options, max_records=1, on_end=ends.append))
    assert sum(batch.num_rows for batch in batches) == 1
    assert len(ends) == 1


def test_the_schema_of_a_topic_is_the_default(cluster: FakeCluster) -> None:
    with FakeRegistry() as registry:
        registry.register("orders-value", '{"type": "object"}', "JSON")
        more = {"valueFormat": "avro", "schemaRegistry.url": registry.url}
        with pytest.raises(OptionsError, match="orders-value"):
            table(cluster, **more)


def test_faults_are_those_of_the_call() -> None:
    options = {"kafka.bootstrap.servers": "localhost:1", "valueFormat": "avro"}
    with pytest.raises(OptionsError, match="valueSchema: must be specified"):
        kshare.read_slice(PART, options)
    with pytest.raises(OptionsError, match="valueSchema: "):
        kshare.read_slice(PART, {**options, "valueFormat": "json", "valueSchema": "qty NUMBER"})
