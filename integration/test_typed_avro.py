"""Avro rows beside Spark's own from_avro: names, types, nullability, rows, what is refused."""

import io
import json
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.pandas.types import from_arrow_schema

from kshare.formats.avro.decoder import AvroDecoder
from kshare.formats.decoder import Decoded
from kshare.formats.payloads import Payloads

Schema = Any


def record(*fields: tuple[str, Schema], **more: Any) -> Schema:
    listed = [{"name": name, "type": kind} for name, kind in fields]
    return {"type": "record", "name": "Order", "fields": listed, **more}


def logical(kind: str, name: str, **more: Any) -> Schema:
    return {"type": kind, "logicalType": name, **more}


FIXED = {"type": "fixed", "name": "Amount", "size": 8}
ITEM = record(("sku", "string"), ("price", ["null", "double"]), name="Item")
COLOURS = {"type": "enum", "name": "Colour", "symbols": ["RED", "GREEN"]}

CASES: dict[str, tuple[Schema, list[Any]]] = {
    "primitives": (
        record(
            *((f"{kind}1", kind) for kind in ("boolean", "int", "long", "float", "double")),
            ("text", "string"),
            ("raw", "bytes"),
        ),
        [
            {
                "boolean1": True,
                "int1": -5,
                "long1": 1 << 60,
                "float1": 1.5,
                "double1": -2.25,
                "text": "grün",
                "raw": b"\0\xff",
            },
        ],
    ),
    "dates and times": (
        record(
            ("date", logical("int", "date")),
            ("at1", logical("long", "timestamp-millis")),
            ("at2", logical("long", "timestamp-micros")),
            ("local1", logical("long", "local-timestamp-millis")),
            ("local2", logical("long", "local-timestamp-micros")),
        ),
        [
            {
                "date": 19000,
                "at1": 1_700_000_000_123,
                "at2": 1_700_000_000_123_456,
                "local1": -1,
                "local2": 5,
            },
        ],
    ),
    "decimals, uuids, durations": (
        record(
            ("d1", logical("bytes", "decimal", precision=10, scale=2)),
            ("d2", logical("bytes", "decimal", precision=38, scale=0)),
            ("d3", {**FIXED, "logicalType": "decimal", "precision": 16, "scale": 4}),
            ("id", logical("string", "uuid")),
            ("took", {"type": "fixed", "name": "Took", "size": 12, "logicalType": "duration"}),
        ),
        [
            {
                "d1": b"\x04\xd2",
                "d2": (10**37).to_bytes(16, "big"),
                "d3": b"\xff" * 8,
                "id": "6f2a8b6e-5c0f-4f5e-9d0e-3a4b5c6d7e8f",
                "took": bytes(range(12)),
            },
            {
                "d1": b"\xff\xff\xff\x85",
                "d2": b"\xff",
                "d3": bytes(7) + b"\x07",
                "id": "",
                "took": bytes(12),
            },
        ],
    ),
    "unions": (
        record(
            ("maybe", ["null", "string"]),
            ("last", ["int", "null"]),
            ("number", ["int", "long"]),
            ("real", ["null", "float", "double"]),
            ("single", ["string"]),
            ("many", ["null", "string", "long", {**FIXED}]),
            ("none", "null"),
        ),
        [
            {
                "maybe": None,
                "last": 4,
                "number": ("int", 5),
                "real": ("double", 0.5),
                "single": "a",
                "many": ("long", 8),
                "none": None,
            },
            {
                "maybe": "x",
                "last": None,
                "number": ("long", 1 << 40),
                "real": None,
                "single": "b",
                "many": None,
                "none": None,
            },
            {
                "maybe": "x",
                "last": 0,
                "number": ("long", 1),
                "real": ("float", 0.5),
                "single": "b",
                "many": ("Amount", b"12345678"),
                "none": None,
            },
        ],
    ),
    "nested": (
        record(
            ("items", {"type": "array", "items": ITEM}),
            ("tags", {"type": "map", "values": ["null", "int"]}),
            ("rows", {"type": "array", "items": {"type": "array", "items": ["null", "long"]}}),
            ("colour", COLOURS),
            ("inner", ["null", record(("colour", "Colour"), name="Inner")]),
            ("empty", record(name="Empty")),
        ),
        [
            {
                "items": [{"sku": "a", "price": 1.0}, {"sku": "b", "price": None}],
                "tags": {"k": 1},
                "rows": [[1, None], []],
                "colour": "GREEN",
                "inner": {"colour": "RED"},
                "empty": {},
            },
            {
                "items": [],
                "tags": {"n": None},
                "rows": [],
                "colour": "RED",
                "inner": None,
                "empty": {},
            },
        ],
    ),
    "no record": ({"type": "array", "items": "int"}, [[1, 2], []]),
}

OLD = record(
    ("a", "int"), ("b", "string"), ("gone", {"type": "array", "items": "string"}), ("c", COLOURS)
)
EVOLUTIONS: dict[str, Schema] = {
    "a field more": {**OLD, "fields": [*OLD["fields"], {"name": "d", "type": "int", "default": 7}]},
    "a field less": record(("a", "int"), ("c", COLOURS)),
    "another order, wider types": record(("c", COLOURS), ("b", "bytes"), ("a", "double")),
    "aliases": {
        **OLD,
        "fields": [{"name": "new", "type": "long", "aliases": ["a"]}, *OLD["fields"][1:]],
    },
    "nullable": record(("a", ["null", "long"]), ("b", ["string", "null"])),
    "several types": record(("b", ["null", "long", "string"])),
    "a default for symbols": record(
        ("c", {**COLOURS, "symbols": ["RED", "OTHER"], "default": "OTHER"})
    ),
    "defaults of all kinds": record(
        fields=[
            {"name": "n", "type": ["null", "int"], "default": None},
            {"name": "l", "type": {"type": "array", "items": "string"}, "default": ["x", "y"]},
            {"name": "m", "type": {"type": "map", "values": "long"}, "default": {"k": 5}},
            {"name": "r", "type": ITEM, "default": {"sku": "s", "price": None}},
            {"name": "x", "type": "bytes", "default": "\u00ff"},
            {"name": "e", "type": COLOURS, "default": "GREEN"},
        ],
    ),
}
ROW = {"a": 3, "b": "text", "gone": ["p", "q"], "c": "GREEN"}


def written(schema: Schema, value: Any) -> bytes:
    file = io.BytesIO()
    plain = json.loads(json.dumps(schema).replace('"logicalType"', '"plain"'))
    fastavro.schemaless_writer(file, fastavro.parse_schema(plain), value)
    return file.getvalue()


def decoded(writer: Schema, reader: Schema, rows: list[bytes | None]) -> Decoded:
    decoder = AvroDecoder(json.dumps(reader))
    number = decoder.add_writer(json.dumps(writer))
    column = pa.array(rows, pa.binary())
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32).astype(np.int64)
    starts = np.where(column.is_null().to_numpy(zero_copy_only=False), -1, ends[:-1])
    source = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    writers = np.full(len(rows), number, np.int32)
    return decoder.decode(Payloads(source, starts, ends[1:], writers))


def by_spark(
    spark: SparkSession, writer: Schema, reader: Schema, rows: list[bytes | None], mode: str
) -> DataFrame:
    options = {"mode": mode, "avroSchema": json.dumps(reader)}
    frame = spark.createDataFrame([(n, one) for n, one in enumerate(rows)], "n int, raw binary")
    made = from_avro("raw", json.dumps(writer), options).alias("value")
    return frame.coalesce(1).select("n", made)


def by_kshare(spark: SparkSession, made: Decoded) -> DataFrame:
    numbers = pa.array(range(len(made.values)), pa.int32())
    table = pa.table({"n": numbers, "value": made.values})
    # A table's timestamps without a zone are Spark's without one, as a source's schema has them.
    return spark.createDataFrame(table, from_arrow_schema(table.schema, prefer_timestamp_ntz=True))


def rows_of(frame: DataFrame) -> list[Any]:
    return [row.value for row in frame.sort("n").collect()]


def assert_same(
    spark: SparkSession, writer: Schema, reader: Schema, rows: list[bytes | None]
) -> None:
    made = decoded(writer, reader, rows)
    assert not made.faults
    own = by_kshare(spark, made)
    for mode in ("PERMISSIVE", "FAILFAST"):
        theirs = by_spark(spark, writer, reader, rows, mode)
        if mode == "PERMISSIVE":
            assert own.schema["value"].dataType == theirs.schema["value"].dataType
        assert own.schema["value"].dataType.simpleString() == (
            theirs.schema["value"].dataType.simpleString()
        )
        assert rows_of(own) == rows_of(theirs)


@pytest.mark.parametrize("case", CASES)
def test_rows_and_types_are_those_of_from_avro(spark: SparkSession, case: str) -> None:
    schema, values = CASES[case]
    assert_same(spark, schema, schema, [*(written(schema, one) for one in values), None])


@pytest.mark.parametrize("case", EVOLUTIONS)
def test_a_later_schema_reads_what_from_avro_reads(spark: SparkSession, case: str) -> None:
    assert_same(spark, OLD, EVOLUTIONS[case], [written(OLD, ROW), None])


GOOD = written(OLD, ROW)
BAD = {
    "cut short": GOOD[:-3],
    "empty": b"",
    "a length behind the end": GOOD[:1] + b"\x7e" + GOOD[2:],
    "a negative length": GOOD[:1] + b"\x01" + GOOD[2:],
    "a symbol that is none": GOOD[:-1] + b"\x08",
    "a number without an end": b"\xff" * 12,
}
LENIENT = {"bytes behind the record": GOOD + b"more"}


@pytest.mark.parametrize("case", BAD)
def test_what_from_avro_refuses_is_bad(spark: SparkSession, case: str) -> None:
    rows: list[bytes | None] = [GOOD, BAD[case], GOOD]
    made = decoded(OLD, OLD, rows)
    assert [one.row for one in made.faults] == [1]
    own, theirs = (
        rows_of(frame)
        for frame in (by_kshare(spark, made), by_spark(spark, OLD, OLD, rows, "PERMISSIVE"))
    )
    # Where from_avro makes a struct of nulls of a bad record, kshare makes a null.
    assert own == [theirs[0], None, theirs[2]]
    assert theirs[1] == Row(**dict.fromkeys(("a", "b", "gone", "c")))
    with pytest.raises(Py4JError, match="Malformed records"):
        rows_of(by_spark(spark, OLD, OLD, rows, "FAILFAST"))


@pytest.mark.parametrize("case", LENIENT)
def test_what_from_avro_lets_pass(spark: SparkSession, case: str) -> None:
    assert_same(spark, OLD, OLD, [LENIENT[case]])


def test_a_recursive_type_is_refused_by_both(spark: SparkSession) -> None:
    tree = record(("value", "int"), ("left", ["null", "Order"]))
    with pytest.raises(Py4JError, match="recursive reference"):
        by_spark(spark, tree, tree, [b"\0\0"], "PERMISSIVE").collect()
    with pytest.raises(ValueError, match="the Avro type of left is recursive"):
        AvroDecoder(json.dumps(tree))
