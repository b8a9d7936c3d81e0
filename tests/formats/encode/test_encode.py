"""What rows are encoded to is read again by the formats' own libraries, and by kshare."""

import base64
import datetime as dt
import decimal
import io
import json
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import compute

from kshare.formats.avro.decoder import AvroDecoder
from kshare.formats.encode.avro import AvroEncoder, avro_schema
from kshare.formats.encode.json import JsonEncoder
from kshare.formats.encode.parts import EncodeError, varints
from kshare.formats.encode.protobuf import ProtobufEncoder
from kshare.formats.encode.zones import arrow_zone
from kshare.formats.payloads import Payloads
from kshare.formats.protobuf.decoder import ProtobufDecoder
from kshare.formats.protobuf.schema import arrow_type, read_schema
from kshare.formats.protobuf.varints import varint
from kshare.formats.variant_type import VARIANT
from tests.support.protobuf_messages import Schema, enum, field, message, payloads

UTC = pa.timestamp("us", "UTC")
ITEM = pa.struct([("sku", pa.string()), ("n", pa.int64())])
ROW = pa.struct(
    [
        ("b", pa.bool_()),
        ("i", pa.int32()),
        ("l", pa.int64()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("s", pa.string()),
        ("y", pa.binary()),
        ("m", pa.decimal128(12, 3)),
        ("day", pa.date32()),
        ("at", UTC),
        ("local", pa.timestamp("us")),
        ("item", ITEM),
        ("items", pa.list_(ITEM)),
        ("numbers", pa.list_(pa.int32())),
        ("lists", pa.list_(pa.list_(pa.string()))),
        ("counts", pa.map_(pa.string(), pa.int32())),
        ("by_name", pa.map_(pa.string(), ITEM)),
    ]
)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
INT32, INT64 = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
TIMES = st.integers(-(2**51), 2**52).map(
    lambda micros: (EPOCH + dt.timedelta(microseconds=micros)).replace(tzinfo=None)
)


def pairs(entries: dict[Any, Any]) -> list[Any]:
    return list(entries.items())


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


ITEMS = st.fixed_dictionaries({"sku": maybe(TEXTS), "n": maybe(INT64)})
ROWS = st.fixed_dictionaries(
    {
        "b": maybe(st.booleans()),
        "i": maybe(INT32),
        "l": maybe(INT64),
        "f": maybe(st.floats(width=32, allow_nan=False)),
        "d": maybe(st.floats(allow_nan=False)),
        "s": maybe(TEXTS),
        "y": maybe(st.binary(max_size=8)),
        "m": maybe(st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: decimal.Decimal(n) / 1000)),
        "day": maybe(st.dates(dt.date(1900, 1, 1), dt.date(2200, 1, 1))),
        "at": maybe(TIMES.map(lambda time: time.replace(tzinfo=dt.UTC))),
        "local": maybe(TIMES),
        "item": maybe(ITEMS),
        "items": maybe(st.lists(maybe(ITEMS), max_size=3)),
        "numbers": maybe(st.lists(maybe(INT32), max_size=3)),
        "lists": maybe(st.lists(maybe(st.lists(maybe(TEXTS), max_size=2)), max_size=2)),
        "counts": maybe(st.dictionaries(TEXTS, maybe(INT32), max_size=3).map(pairs)),
        "by_name": maybe(
            st.dictionaries(TEXTS, maybe(ITEMS), max_size=2).map(pairs)
        ),
    }
)  # fmt: skip
BATCHES = st.lists(maybe(ROWS), max_size=6)


def column(rows: list[Any], kind: pa.DataType) -> pa.Array:
    """The rows in the middle of more, as slices are."""
    return pa.array([rows[0] if rows else None, *rows, None], kind).slice(1, len(rows))


def payloads_of(encoded: pa.Array) -> Payloads:
    return payloads(encoded.to_pylist())


# -- Avro ---------------------------------------------------------------------------------------


def in_fastavro(row: Any) -> Any:
    maps = {name: dict(row[name]) for name in ("counts", "by_name") if row[name] is not None}
    return {**row, **maps}


@given(BATCHES)
def test_avro_is_read_again(rows: list[Any]) -> None:
    schema = avro_schema(ROW)
    encoded = AvroEncoder(ROW, schema).encode(column(rows, ROW))
    parsed = fastavro.parse_schema(json.loads(schema))
    for row, data in zip(rows, encoded.to_pylist(), strict=True):
        if row is None:
            assert data is None
            continue
        stream = io.BytesIO(data)
        assert fastavro.schemaless_reader(stream, parsed) == in_fastavro(row)
        assert stream.read() == b""
    decoded = AvroDecoder(schema).decode(payloads_of(encoded))
    assert decoded.faults == ()
    assert decoded.values.to_pylist() == rows


CENTS = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
SHAPES = {
    "name": "Shape",
    "type": "record",
    "fields": [
        {"name": "extra", "type": ["string", "null"]},
        {"name": "e", "type": {"name": "E", "type": "enum", "symbols": ["A", "B"]}},
        {"name": "n", "type": "long"},
        {"name": "d", "type": CENTS},
        {"name": "h", "type": {"name": "H", "type": "fixed", "size": 2}},
        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}  # fmt: skip
SHAPE = pa.struct(
    [
        ("t", UTC),
        ("h", pa.binary()),
        ("d", pa.decimal128(9, 2)),
        ("n", pa.int32()),
        ("e", pa.string()),
    ]
)
GOOD = {
    "t": dt.datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=dt.UTC),
    "h": b"ab",
    "d": decimal.Decimal("-1.28"),
    "n": -3,
    "e": "B",
}


def test_avro_by_a_schema_of_another_shape() -> None:
    """Other order, wider numbers, a field that the rows lack; half a millisecond is cut off."""
    encoded = AvroEncoder(SHAPE, json.dumps(SHAPES)).encode(pa.array([GOOD], SHAPE))
    read = fastavro.schemaless_reader(io.BytesIO(encoded[0].as_py()), SHAPES)
    time = dt.datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=dt.UTC)
    assert read == {**GOOD, "t": time, "extra": None}


@given(st.lists(st.integers(-(10**9) + 1, 10**9 - 1), max_size=5))
def test_decimals_are_as_short_as_they_can_be(numbers: list[int]) -> None:
    schema = '{"type":"bytes","logicalType":"decimal","precision":9,"scale":0}'
    values = pa.array([decimal.Decimal(one) for one in numbers], pa.decimal128(9, 0))
    record = f'{{"type":"record","name":"R","fields":[{{"name":"d","type":{schema}}}]}}'
    encoded = AvroEncoder(pa.struct([("d", values.type)]), record).encode(
        pa.StructArray.from_arrays([values], ["d"])
    )
    for number, data in zip(numbers, encoded.to_pylist(), strict=True):
        size = (number if number >= 0 else ~number).bit_length() // 8 + 1
        assert data == varint(2 * size) + number.to_bytes(size, "big", signed=True)


def test_a_schema_of_rows_that_evolves_reads_rows_of_before() -> None:
    before = pa.struct([("user", pa.string()), ("items", pa.list_(pa.struct([("n", pa.int32())])))])
    more = pa.struct([("n", pa.int32()), ("note", pa.string())])
    now = pa.struct([*before.fields[:1], ("items", pa.list_(more)), ("qty", pa.int64())])
    rows = [{"user": "a", "items": [{"n": 1}, None]}, {"user": None, "items": None}]
    schemas = [avro_schema(kind, evolves=True) for kind in (before, now)]
    data = AvroEncoder(before, schemas[0]).encode(pa.array(rows, before)).to_pylist()
    writer, reader = map(fastavro.parse_schema, map(json.loads, schemas))
    found = [fastavro.schemaless_reader(io.BytesIO(each), writer, reader) for each in data]
    assert found == [
        {"user": "a", "items": [{"n": 1, "note": None}, None], "qty": None},
        {"user": None, "items": None, "qty": None},
    ]


@pytest.mark.parametrize(
    ("change", "field_", "reason"),
    [
        ({"n": None}, "n", "is null, and its schema is long"),
        ({"e": "C"}, "e", "is 'C', which enum E lacks"),
        ({"h": b"abc"}, "h", "has 3 bytes, where fixed H has 2"),
    ],
)
def test_values_that_the_avro_schema_does_not_allow(
    change: dict[str, Any], field_: str, reason: str
) -> None:
    rows = pa.array([GOOD, None, {**GOOD, **change}], SHAPE)
    with pytest.raises(EncodeError) as raised:
        AvroEncoder(SHAPE, json.dumps(SHAPES)).encode(rows)
    assert (raised.value.row, raised.value.field, raised.value.reason) == (2, field_, reason)


def test_a_fault_in_a_list_names_its_row() -> None:
    kind = pa.struct([("l", pa.list_(pa.struct([("e", pa.string())])))])
    schema = {
        "type": "record", "name": "R",
        "fields": [{"name": "l", "type": {"type": "array", "items": {
            "type": "record", "name": "I",
            "fields": [{"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A"]}}]}}}],
    }  # fmt: skip
    rows = pa.array(
        [{"l": [{"e": "A"}] * 3}, {"l": []}, None, {"l": [{"e": "A"}, {"e": "X"}]}], kind
    )
    with pytest.raises(EncodeError, match=r"row 3: l\.e is 'X', which enum E lacks"):
        AvroEncoder(kind, json.dumps(schema)).encode(rows)


# -- Protobuf -----------------------------------------------------------------------------------

PROTOBUF = Schema(
    message("Item", "string sku = 1", "optional sint64 n = 2"),
    message(
        "Row",
        *("bool b = 1", "int32 i = 2", "sint32 z = 3", "uint32 u = 4", "fixed64 x = 5"),
        *("double d = 6", "optional string s = 7", "bytes y = 8", "float f = 20"),
        *(".google.protobuf.Timestamp at = 9", ".google.protobuf.Duration took = 10"),
        *(".shop.Item item = 11", "repeated .shop.Item items = 12", "repeated sint32 numbers = 13"),
        *("repeated string texts = 14", "map string .shop.Item by_name = 15"),
        *(".shop.Colour colour = 16", "map int32 .shop.Colour colours = 17"),
        *("repeated .shop.Colour all = 18", "uint64 big = 19"),
    ),
    enums=[enum("Colour", RED=0, GREEN=1, MINUS=-1)],
)
COLOURS = st.sampled_from(["RED", "GREEN", "MINUS"])
PROTO_ITEMS = st.fixed_dictionaries({"sku": maybe(TEXTS), "n": maybe(INT64)})
PROTO_ROWS = st.fixed_dictionaries(
    {
        "b": maybe(st.booleans()),
        **dict.fromkeys(["i", "z", "u"], maybe(INT32)),
        **dict.fromkeys(["x", "big"], maybe(INT64)),
        "d": maybe(st.floats(allow_nan=False)),
        "f": maybe(st.floats(width=32, allow_nan=False)),
        "s": maybe(TEXTS),
        "y": maybe(st.binary(max_size=5)),
        "at": maybe(TIMES.map(lambda time: time.replace(tzinfo=dt.UTC))),
        "took": maybe(st.timedeltas(dt.timedelta(days=-9999), dt.timedelta(days=9999))),
        "item": maybe(PROTO_ITEMS),
        "items": st.lists(PROTO_ITEMS, max_size=3),
        "numbers": st.lists(INT32, max_size=3),
        "texts": st.lists(TEXTS, max_size=3),
        "by_name": st.dictionaries(TEXTS, PROTO_ITEMS, max_size=2).map(lambda d: [*d.items()]),
        "colour": maybe(COLOURS),
        "colours": st.dictionaries(INT32, COLOURS, max_size=2).map(lambda d: [*d.items()]),
        "all": st.lists(COLOURS, max_size=3),
    }
)
PROTO_SCHEMA = read_schema(f"Row {PROTOBUF.text}")
PROTO_TYPE = arrow_type(PROTO_SCHEMA)


def without_defaults(row: Any) -> Any:
    """A row as it is read again: the default value of a field of proto3 is none."""
    if row is None:
        return None

    def plain(item: Any) -> Any:
        return item and {**item, "sku": item["sku"] or None}

    made = {**row, "item": plain(row["item"]), "items": [plain(one) for one in row["items"]]}
    made["by_name"] = [(key, plain(one)) for key, one in row["by_name"]]
    for name in ("b", "i", "z", "u", "x", "big", "y", "d", "f"):
        if not row[name] and str(row[name]) != "-0.0":
            made[name] = None
    made["colour"] = None if row["colour"] == "RED" else row["colour"]
    return made


@given(st.lists(maybe(PROTO_ROWS), max_size=5))
def test_protobuf_is_read_again(rows: list[Any]) -> None:
    encoded = ProtobufEncoder(PROTO_TYPE, PROTO_SCHEMA).encode(column(rows, PROTO_TYPE))
    decoded = ProtobufDecoder(PROTO_SCHEMA).decode(payloads_of(encoded))
    assert decoded.faults == ()
    names = PROTO_TYPE.names
    wanted = [row and {name: row[name] for name in names} for row in map(without_defaults, rows)]
    assert decoded.values.to_pylist() == wanted
    for data in encoded.drop_null().to_pylist():
        by_library = PROTOBUF.kind("Row").FromString(data)
        assert len(by_library.SerializeToString()) == len(data)  # nothing is there that is left out


PAIR = Schema(
    message("Pair", "required int32 a = 1", field(".shop.K b = 2"), "repeated int32 c = 3"),
    enums=[enum("K", X=1)],
    syntax="proto2",
)
PAIR_SCHEMA = read_schema(f"Pair {PAIR.text}")
PAIR_TYPE = pa.struct([("a", pa.int32()), ("b", pa.string()), ("c", pa.list_(pa.int32()))])


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"a": None}, "row 1: a is null, and required"),
        ({"a": 1, "b": "Y"}, "row 1: b is 'Y', which enum K lacks"),
        ({"a": 1, "c": [1, None]}, "row 1: c has a null in its list, which Protobuf does not have"),
    ],
)
def test_values_that_the_message_does_not_allow(row: dict[str, Any], said: str) -> None:
    encoder = ProtobufEncoder(PAIR_TYPE, PAIR_SCHEMA)
    with pytest.raises(EncodeError, match=said):
        encoder.encode(pa.array([{"a": 0, "b": "X", "c": [1]}, row], PAIR_TYPE))


# -- JSON ---------------------------------------------------------------------------------------


def in_json(value: Any, kind: pa.DataType) -> Any:
    """A value as ``to_json`` writes it, parsed again."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {
            one.name: in_json(value[one.name], one.type)
            for one in kind
            if value[one.name] is not None
        }
    if pa.types.is_map(kind):
        return {key: in_json(one, kind.item_type) for key, one in value}
    if pa.types.is_list(kind):
        return [in_json(one, kind.value_type) for one in value]
    if isinstance(value, dt.datetime):
        zone = "" if value.tzinfo is None else "Z"
        text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        return text[:-3] + zone
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, decimal.Decimal):
        return float(value)
    if value in {float("inf"), float("-inf")}:
        return "Infinity" if value > 0 else "-Infinity"
    if pa.types.is_float32(kind):
        return np.float32(value)
    return value


@given(BATCHES)
def test_json_is_read_again(rows: list[Any]) -> None:
    encoded = JsonEncoder(ROW).encode(column(rows, ROW))
    for row, data in zip(rows, encoded.to_pylist(), strict=True):
        if row is None:
            assert data is None
            continue
        read = json.loads(data)
        if isinstance(read.get("f"), float | int):
            read["f"] = np.float32(read["f"])
        assert read == in_json(row, ROW)


def test_json_to_the_letter() -> None:
    kind = pa.struct(
        [
            ('a"b', pa.string()),
            ("at", pa.timestamp("us", "Europe/Paris")),
            ("d", pa.float64()),
            ("none", pa.struct([("x", pa.int8())])),
        ]
    )
    time = dt.datetime(2020, 7, 1, 12, 0, 0, 1_999, tzinfo=dt.UTC)
    rows = [
        {'a"b': '"\\/\b\f\n\r\t\x01\x1fé🎈', "at": time, "d": float("nan"), "none": {"x": None}},
        {'a"b': None, "at": None, "d": 0.5, "none": None},
        {'a"b': None, "at": None, "d": None, "none": None},
    ]
    assert JsonEncoder(kind).encode(pa.array(rows, kind)).to_pylist() == [
        b'{"a\\"b":"\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001F'
        + "é🎈".encode()
        + b'","at":"2020-07-01T14:00:00.001+02:00","d":"NaN","none":{}}',
        b'{"d":0.5}',
        b"{}",
    ]


def test_a_name_with_a_dot_is_no_path() -> None:
    inner = pa.struct([("a.b", pa.int64()), ("b", pa.int64()), (".", pa.string())])
    kind = pa.struct(
        [
            *inner,
            ("user.name", inner),
            ("of.list", pa.list_(inner)),
            ("of.map", pa.map_(pa.string(), inner)),
        ]
    )
    one = {"a.b": 1, "b": 2, ".": "x"}
    row = {**one, "user.name": one, "of.list": [one], "of.map": [("k.v", one)]}
    text = '{"a.b":1,"b":2,".":"x"}'
    assert JsonEncoder(kind).encode(pa.array([row], kind)).to_pylist() == [
        f'{text[:-1]},"user.name":{text},"of.list":[{text}],"of.map":{{"k.v":{text}}}}}'.encode()
    ]


def test_a_time_before_there_were_time_zones() -> None:
    kind = pa.struct([("at", pa.timestamp("us", "America/New_York"))])
    rows = pa.array([{"at": dt.datetime(1716, 6, 28, 9, 46, 39, tzinfo=dt.UTC)}], kind)
    assert JsonEncoder(kind).encode(rows).to_pylist() == [
        b'{"at":"1716-06-28T04:50:37.000-04:56:02"}'
    ]


@pytest.mark.parametrize(
    ("zone", "local"),
    [
        *((zone, "20:00:00.000+08:00") for zone in ("GMT+08:00", "UTC+8", "UT+8", "+08", "+8:00")),
        *((zone, "14:00:00.000+02:00") for zone in ("UTC+02:00", "GMT+2", "+2:0", "+02:0")),
        *((zone, "12:00:00.000Z") for zone in ("Z", "UT", "UTC", "GMT", "UTC+0", "GMT0")),
        ("-3", "09:00:00.000-03:00"),
        ("-00:30", "11:30:00.000-00:30"),
        ("PST", "05:00:00.000-07:00"),  # Java's short names: Los Angeles, in summer
        ("ACT", "21:30:00.000+09:30"),
        ("EST", "07:00:00.000-05:00"),
        ("+08:00:30", "12:00:00.000Z"),  # Arrow has no such zone
        ("SystemV/AST4", "12:00:00.000Z"),  # of Java's own database
    ],
)
def test_zones_of_sessions(zone: str, local: str) -> None:
    at = pa.timestamp("us", zone)
    inner = pa.struct([("x", at)])
    kind = pa.struct(
        [
            ("at", at),
            ("times", pa.list_(at)),
            ("by", pa.map_(pa.string(), inner)),
            ("v", VARIANT),
            ("local", pa.timestamp("us")),
        ]
    )
    noon = dt.datetime(2020, 7, 1, 12, tzinfo=dt.UTC)
    variant = {"value": b"\x0c\x07", "metadata": b"\x01\x00\x00"}
    row = {"at": noon, "times": [noon, None], "by": [("k", {"x": noon})], "v": variant}
    rows = pa.array([{**row, "local": noon.replace(tzinfo=None)}, None], kind)
    text = f'"2020-07-01T{local}"'
    assert JsonEncoder(kind).encode(rows).to_pylist() == [
        f'{{"at":{text},"times":[{text},null],"by":{{"k":{{"x":{text}}}}},"v":7,'
        '"local":"2020-07-01T12:00:00.000"}'.encode(),
        None,
    ]


def test_a_zone_that_arrow_lacks_is_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the system's database, or an offset (Arrow before 22)."""

    def refuse(_: pa.Scalar) -> None:
        raise pa.ArrowInvalid("Cannot locate or parse timezone")

    monkeypatch.setattr(compute, "local_timestamp", refuse)
    for name in ("Europe/Paris", "UTC+2", "EST"):
        assert arrow_zone.__wrapped__(name) == "UTC"


# -- what cannot be -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: JsonEncoder(pa.int32()), "is of type int32, and JSON is made of structs"),
        (
            lambda: JsonEncoder(pa.struct([("a", pa.struct([("t", pa.duration("us"))]))])),
            r"has field a.t of type duration\[us\], which JSON does not have",
        ),
        (
            lambda: JsonEncoder(pa.struct([("m", pa.map_(pa.date32(), pa.int32()))])),
            r"has a map m with keys of type date32",
        ),
        (
            lambda: avro_schema(pa.struct([("t", pa.duration("us"))])),
            r"has field t of type duration\[us\], which Avro does not have",
        ),
        *(
            (
                lambda name=name: avro_schema(pa.struct([("i", pa.struct([(name, pa.int8())]))])),
                f"has field '{name}', which is no name in Avro",
            )
            for name in ("a.b", "1a", "", "a-b")
        ),
        (lambda: AvroEncoder(SHAPE, '"string"'), "has string where rows of type struct"),
        (
            lambda: AvroEncoder(pa.struct([("q", pa.int32())]), json.dumps(SHAPES)),
            "has no field q, which the rows have",
        ),
        (
            lambda: AvroEncoder(pa.struct([("e", pa.string())]), json.dumps(SHAPES)),
            "has field n, which the rows do not have",
        ),
        (
            lambda: AvroEncoder(pa.struct([("e", pa.int32())]), json.dumps(SHAPES)),
            "has enum E where field e of type int32 is to be written",
        ),
        (
            lambda: ProtobufEncoder(pa.struct([("a", pa.int64())]), PAIR_SCHEMA),
            "has int32 where field a is of type int64",
        ),
        (
            lambda: ProtobufEncoder(pa.struct([("b", pa.string())]), PAIR_SCHEMA),
            "requires field a, which the rows do not have",
        ),
        (
            lambda: ProtobufEncoder(pa.struct([("q", pa.string())]), PAIR_SCHEMA),
            "has no field q, which the rows have",
        ),
    ],
)  # fmt: skip
def test_rows_that_a_schema_is_not_of(make: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


@given(st.lists(INT64, max_size=10))
def test_varints(numbers: list[int]) -> None:
    encoded = varints(np.array(numbers, np.int64)).to_pylist()
    assert encoded == [varint(number % (1 << 64)) for number in numbers]
