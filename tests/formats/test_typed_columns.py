"""Typed columns: ids and writers, faults of each stage, the policies, and the columns added."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.errors import BadRecordError
from kshare.formats.avro.fingerprint import fingerprint
from kshare.formats.decoder import Decoded, Fault
from kshare.formats.payloads import Payloads
from kshare.formats.registry import SchemaRegistry
from kshare.formats.schema_files import RegisteredSchema
from kshare.formats.schemas import ReaderSchema, ReaderSchemas
from kshare.formats.typed_columns import BadRow, RowTyper, raw_columns
from kshare.formats.typed_values import TypedColumn
from kshare.formats.writers import UnansweredError
from kshare.options import SOURCE_COLUMNS, KafkaConfig
from kshare.options.frozen import Properties
from kshare.options.typed_rows import BadRecords, RegistryConfig, RowFormat, TypedRows
from kshare.testing import FakeRegistry
from tests.support.clock import Clock

KAFKA = KafkaConfig(bootstrap_servers=())
NO_INTS = '"?"'


class Writers:
    """Stands in for Avro: a row is its writer's text and its payload; "?" in either is bad."""

    def __init__(self) -> None:
        self.added = ["the reader"]

    @property
    def type(self) -> pa.DataType:
        return pa.string()

    def add_writer(self, text: str, _: tuple[int, ...] | None = None) -> int:
        self.added.append(text)
        return len(self.added) - 1

    def decode(self, payloads: Payloads) -> Decoded:
        rows: list[str | None] = []
        faults = []
        bounds = zip(payloads.starts.tolist(), payloads.ends.tolist(), strict=True)
        for row, (start, end) in enumerate(bounds):
            if start < 0:
                rows.append(None)
                continue
            text = payloads.data[start:end].tobytes().decode()
            text = f"{self.added[payloads.writers[row]]}:{text}"
            if "?" in text:
                faults.append(Fault(row, "a.b", "is a question"))
                rows.append(None)
            else:
                rows.append(text)
        return Decoded(pa.array(rows, pa.string()), tuple(faults))


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry() as fake:
        yield fake


def column(fake: FakeRegistry, decoder: Writers) -> TypedColumn:
    config = RegistryConfig(Properties({"url": fake.url}))
    form = RowFormat(column="value", format="avro", framing="confluent")
    schema = ReaderSchema(form, '"int"', RegisteredSchema(1, "AVRO", '"int"'))
    return TypedColumn(schema, decoder, SchemaRegistry(config, KAFKA, clock=Clock()))


def framed(number: int, text: str = "x") -> bytes:
    return b"\0" + number.to_bytes(4, "big") + text.encode()


def test_rows_are_decoded_by_the_schemas_that_they_name(registry: FakeRegistry) -> None:
    first, second = registry.register("s", '"int"'), registry.register("s", '"long"')
    decoder = Writers()
    typed = column(registry, decoder)
    values = [framed(second), None, framed(first), framed(second, "?"), framed(first, "y")]
    for _ in range(2):
        found = typed.decoded(pa.array(values, pa.binary()))
        assert found.values.to_pylist() == ['"long":x', None, '"int":x', None, '"int":y']
        assert found.faults == (Fault(3, "a.b", "is a question (schema id 2)"),)
        assert found.ids().to_pylist() == [second, None, first, second, first]
    assert decoder.added == ["the reader", '"long"', '"int"']
    assert registry.requests == ("GET /schemas/ids/2", "GET /schemas/ids/1")


@pytest.fixture(scope="module")
def thirty() -> Iterator[TypedColumn]:
    """Of a registry with ids 1 to 30."""
    with FakeRegistry() as fake:
        for number in range(1, 31):
            fake.register("s", f"[{number}]")
        yield column(fake, Writers())


@given(ids=st.lists(st.integers(1, 30), max_size=60))
def test_any_number_of_ids_in_a_column(thirty: TypedColumn, ids: list[int]) -> None:
    found = thirty.decoded(pa.array([framed(number) for number in ids], pa.binary()))
    assert found.values.to_pylist() == [f"[{number}]:x" for number in ids]


@pytest.mark.parametrize(
    ("ids", "row", "number", "extent"),
    [
        ([1, 2], 1, 2, "One record of this batch names it"),
        ([1, 9, 3, 9], 1, 9, "2 records of this batch name it, and records name another schema"),
        ([5, *range(20, 40)], 0, 5, "and records name 20 other schemas that nobody has asked"),
    ],
)
def test_schemas_that_are_not_said_name_the_first_record(
    registry: FakeRegistry, ids: list[int], row: int, number: int, extent: str
) -> None:
    registry.register("s", '"int"')
    typed = column(registry, Writers())
    typed.decoded(pa.array([framed(1)], pa.binary()))
    registry.stop()
    with pytest.raises(UnansweredError) as raised:
        typed.decoded(pa.array([framed(each) for each in ids], pa.binary()))
    assert int(raised.value.rows[0]) == row
    assert raised.value.error.schema_id == number
    assert extent in raised.value.extent


def test_faults_of_each_stage_are_in_the_order_of_rows(registry: FakeRegistry) -> None:
    good, bad = registry.register("s", '"int"'), registry.register("s", NO_INTS)
    reference = {"name": "A", "subject": "s", "version": 1}
    refers = registry.register("s", "{}", references=[reference])
    values = [framed(bad), b"{}", framed(good, "?"), framed(77), framed(good), framed(bad)]
    values += [framed(refers)]
    found = column(registry, Writers()).decoded(pa.array(values, pa.binary()))
    assert found.values.to_pylist() == [None, None, None, None, '"int":x', None, None]
    assert [(fault.row, fault.field, fault.reason) for fault in found.faults] == [
        (0, "a.b", "is a question (schema id 2)"),
        (1, "", "begins with 0x7b, where the framing confluent has 0x00"),
        (2, "a.b", "is a question (schema id 1)"),
        (
            3,
            "",
            (
                f"names schema id 77, and schema registry {registry.url} has no schema id 77: "
                "Schema 77 not found"
            ),
        ),
        (5, "a.b", "is a question (schema id 2)"),
        (6, "", "is of schema id 3, which is no schema of Avro: KeyError('type')"),
    ]
    assert found.errors("value").to_pylist()[2:5] == [
        "value.a.b is a question (schema id 1)",
        "value names schema id 77, and " + found.faults[3].reason.partition(", and ")[2],
        None,
    ]
    assert found.bad_bytes(pa.array(values, pa.binary())).to_pylist() == [
        *values[:4],
        None,
        *values[5:],
    ]


def test_single_objects_of_another_schema_are_bad() -> None:
    form = RowFormat(column="value", format="avro", framing="singleObject")
    typed = TypedColumn(ReaderSchema(form, '"int"'), Writers(), None)
    own = fingerprint('"int"').to_bytes(8, "little", signed=True)
    other = fingerprint('"long"').to_bytes(8, "little", signed=True)
    values = [b"\xc3\1" + own + b"x", None, b"\xc3\1" + other + b"x"]
    found = typed.decoded(pa.array(values, pa.binary()))
    assert found.values.to_pylist() == ["the reader:x", None, None]
    (fault,) = found.faults
    assert (fault.row, fault.reason) == (
        2,
        (
            f"is of the schema with fingerprint {other[::-1].hex()}, and the reader schema has "
            f"{own[::-1].hex()}"
        ),
    )


# -- rows -----------------------------------------------------------------------------------------


def strings(policy: Any = "fail") -> ReaderSchemas:
    forms = (RowFormat(column="key", format="string"), RowFormat(column="value", format="string"))
    bad = BadRecords(policy, "t" if policy == "deadLetter" else None)
    rows = TypedRows(formats=forms, bad_records=bad)
    return ReaderSchemas(rows, tuple(map(ReaderSchema, forms)), "t")


TEXTS = st.lists(st.tuples(*[st.sampled_from([b"a", b"\xff", None])] * 2), max_size=12)


def raw_batch(texts: Sequence[tuple[bytes | None, bytes | None]], first: int = 0) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([key for key, _ in texts], pa.binary()),
            "value": pa.array([value for _, value in texts], pa.binary()),
            "topic": ["t"] * len(texts),
            "partition": pa.array([3] * len(texts), pa.int32()),
            "offset": [first + row for row in range(len(texts))],
        }
    )


@given(TEXTS)
def test_each_row_is_typed_null_or_bad_and_never_lost(
    texts: list[tuple[bytes | None, bytes | None]],
) -> None:
    raw = raw_batch(texts, 100)
    bad = [row for row, cells in enumerate(texts) if b"\xff" in cells]
    names = ("offset", "key", "value", "valueError", "keyError")
    nulls = RowTyper(strings("null"), KAFKA, names).typed(raw).to_pylist()
    assert [row["offset"] for row in nulls] == list(range(100, 100 + len(texts)))
    for row, (key, value) in zip(nulls, texts, strict=True):
        assert row["key"] == ("a" if key == b"a" else None)
        assert row["value"] == ("a" if value == b"a" else None)
        assert (row["keyError"] is not None) == (key == b"\xff")
        assert (row["valueError"] is not None) == (value == b"\xff")
    aside: list[BadRow] = []
    letters = RowTyper(
        strings("deadLetter"), KAFKA, names, set_aside=lambda _, rows: aside.extend(rows)
    )
    (typed,) = letters.batches([raw])  # also one without rows: whoever reads for a while is there
    kept = typed["offset"].to_pylist()
    assert [each.row for each in aside] == bad
    assert kept == [100 + row for row in range(len(texts)) if row not in bad]
    failing = RowTyper(strings(), KAFKA, names)
    if bad:
        with pytest.raises(BadRecordError, match=rf"^t-3 at offset {100 + bad[0]}: "):
            failing.typed(raw)
    else:
        assert failing.typed(raw).num_rows == len(texts)


def test_the_raw_columns_are_no_more_than_needed() -> None:
    for policy in ("fail", "null"):
        schemas = strings(policy)
        assert raw_columns(schemas.rows, ("value",), one_partition=True) == ("value", "offset")
        assert raw_columns(schemas.rows, ("keyError", "timestamp"), one_partition=True) == (
            "key",
            "offset",
            "timestamp",
        )
        assert raw_columns(schemas.rows, ("value",), one_partition=False) == (
            "value",
            "topic",
            "partition",
            "offset",
        )
        assert raw_columns(schemas.rows, ("topic",), one_partition=True) == ("topic", "offset")
    assert raw_columns(strings("deadLetter").rows, ("value",), one_partition=True) == SOURCE_COLUMNS
