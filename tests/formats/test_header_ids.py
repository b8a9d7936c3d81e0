"""Ids of schemas in headers are read as Confluent's own deserializers read them.

Of several headers of a name, Java's takes the last; a null there means that the id stands in front
of the payload. confluent-kafka's takes the first, so it is asked about that one header alone.
"""

import struct
import uuid
from typing import Any, Literal

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import dual_schema_id_deserializer
from confluent_kafka.schema_registry.serde import SchemaId
from confluent_kafka.serialization import MessageField, SerializationContext, SerializationError
from hypothesis import example, given
from hypothesis import strategies as st

from kshare.formats.header_ids import HeaderId, rows_by_header
from kshare.formats.schema_files import GlobalId
from kshare.options.typed_rows import Framing

Header = tuple[str, bytes | None]
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
GUID = uuid.UUID("79c46427-21cd-5957-8cbb-8a6406964cc7")
ID, BY_GUID = b"\0\0\0\0\7", b"\1" + GUID.bytes

NAMES = st.sampled_from(["__value_schema_id", "__key_schema_id", "__value_schema_iD", "", "trace"])
VALUES = st.none() | st.sampled_from(
    [ID, BY_GUID, ID + b"\0", BY_GUID + b"\4\2\4", BY_GUID[:9], b"", b"\2abcd", ID + b"\1"]
)
ROWS = st.lists(st.none() | st.lists(st.tuples(NAMES, VALUES), max_size=4), max_size=30)


def column(rows: list[list[Header] | None]) -> pa.Array:
    entries: list[Any] = [
        row and [{"key": name, "value": value} for name, value in row] for row in rows
    ]
    return pa.array(entries, HEADERS)


def named(
    headers: pa.Array,
    which: Literal["key", "value"],
    framing: Framing = "confluent",
    *,
    indexed: bool,
) -> dict[int, Any]:
    found = rows_by_header(headers, which, framing, indexed=indexed)
    by_row = {row: each.named for each in found for row in each.rows.tolist()}
    assert len(by_row) == sum(len(each.rows) for each in found)
    assert len({each.named for each in found if isinstance(each.named, HeaderId)}) <= len(found)
    return by_row


def confluents(row: list[Header] | None, field: MessageField, kind: str) -> HeaderId | str | None:
    """What Confluent's deserializer finds in the headers of a record; a text: an error."""
    schema, payload = SchemaId(kind), b"\0\0\0\0\1\0 a payload"
    name = f"__{field}_schema_id"
    headers: Any = [header for header in row or [] if header[0] == name][-1:]
    try:
        left = dual_schema_id_deserializer(
            payload, SerializationContext("t", field, headers), schema
        )
    except (SerializationError, EOFError, struct.error, ValueError):
        return "an error"
    if left.read() != payload:
        return None
    path = schema.message_indexes
    number = schema.id if schema.id is not None else str(schema.guid)
    return HeaderId(number, None if path is None else tuple(path))


@given(ROWS, st.integers(0, 3))
@example([[("__value_schema_id", None), ("__value_schema_id", ID)]], 0)
@example([[("__value_schema_id", ID), ("__value_schema_id", None)]], 0)
@example([None, [], [("__value_schema_id", BY_GUID), ("__value_schema_id", ID)]], 1)
def test_headers_name_what_confluents_deserializer_reads(
    rows: list[list[Header] | None], first: int
) -> None:
    headers = column(rows)[first:]
    columns: tuple[tuple[MessageField, Literal["key", "value"]], ...] = (
        (MessageField.KEY, "key"),
        (MessageField.VALUE, "value"),
    )
    for field, which in columns:
        for kind, indexed in (("AVRO", False), ("PROTOBUF", True)):
            found = named(headers, which, indexed=indexed)
            wanted = {
                row: name
                for row, one in enumerate(rows[first:])
                if (name := confluents(one, field, kind)) is not None
            }
            if indexed:  # Confluent's takes negative indexes for such
                assert found.keys() == wanted.keys()
            assert {row: name for row, name in found.items() if isinstance(name, HeaderId)} == {
                row: name
                for row, name in wanted.items()
                if isinstance(name, HeaderId) and min(name.path or (0,)) >= 0
            }


def test_apicurios_headers() -> None:
    number, other = (n.to_bytes(8, "big") for n in (7, 8))
    global_, content = "apicurio.value.globalId", "apicurio.value.contentId"
    rows: Any = [
        [(global_, number)],
        [(content, number)],
        [(content, other), (global_, number)],
        [(global_, other), (global_, number)],  # the last one counts
        [(content, None), ("apicurio.key.globalId", number)],
        None,
        [(global_, b"\0\7")],
    ]
    headers = column(rows)
    found = named(headers, "value", "apicurio", indexed=False)
    assert found == {
        0: HeaderId(GlobalId(7)),
        1: HeaderId(7),
        2: HeaderId(GlobalId(7)),
        3: HeaderId(GlobalId(7)),
        6: f"has a header {global_} that has 2 bytes, where 8 are wanted",
    }
    assert named(headers, "key", "apicurio", indexed=False) == {4: HeaderId(GlobalId(7))}
    assert named(headers, "value", indexed=False) == {}


def test_any_number_of_distinct_values() -> None:
    ids = [number * 7919 % 50 for number in range(400)]
    rows: Any = [
        [("trace", b"x"), ("__value_schema_id", b"\0" + i.to_bytes(4, "big"))] for i in ids
    ]
    found = named(column(rows), "value", indexed=False)
    assert [found[row] for row in range(400)] == [HeaderId(number) for number in ids]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "is empty"),
        (b"\2abcd", "begins with 0x02, where 0x00 or 0x01 is"),
        (b"\0abc", "has 4 bytes, where 5 are needed"),
        (b"\1abc", "has 4 bytes, where 17 are needed"),
        (b"\0" * 2000, "has more than 1200 bytes"),
        (ID, "has no message indexes behind the id: a number is cut short, or longer than 10"),
    ],
)
def test_headers_that_name_nothing_say_why(value: bytes, reason: str) -> None:
    found = named(column([[("__value_schema_id", value)]]), "value", indexed=True)
    assert found[0].startswith(f"has a header __value_schema_id that {reason}")
