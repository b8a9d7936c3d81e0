"""Rows of Protobuf messages are those of Spark's ``from_protobuf``, whatever the bytes are."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kshare.formats.decoder import Decoded, Fault
from kshare.formats.payloads import Payloads
from kshare.formats.protobuf import decoder as decoder_module
from kshare.formats.protobuf.decoder import ProtobufDecoder
from kshare.formats.protobuf.schema import arrow_type, read_schema
from kshare.formats.protobuf.varints import varint
from tests.support.guards import Fence, guarded_columns
from tests.support.protobuf_messages import (
    BadError,
    NotKnownError,
    Schema,
    enum,
    field,
    message,
    payloads,
    row_of,
)

SCALARS = (
    *("int32", "int64", "uint32", "uint64", "sint32", "sint64", "bool", "float", "double"),
    *("fixed32", "fixed64", "sfixed32", "sfixed64", "string", "bytes"),
)
COLOURS = enum("Colour", RED=0, GREEN=1, BLUE=5, MINUS=-7)
ITEM = message(
    "Item", "string sku = 1", "int32 n = 2", ".shop.Colour colour = 7", "optional double p = 3"
)
ORDER = message(
    "Order",
    *(f"{kind} a_{kind} = {number}" for number, kind in enumerate(SCALARS, 1)),
    *(f"optional {kind} o_{kind} = {number}" for number, kind in enumerate(SCALARS, 21)),
    *(f"repeated {kind} r_{kind} = {number}" for number, kind in enumerate(SCALARS, 41)),
    ".shop.Colour colour = 61",
    "repeated .shop.Colour colours = 62",
    ".shop.Item item = 63",
    "repeated .shop.Item items = 64",
    "map string int32 counts = 65",
    "map int64 .shop.Item by_id = 66",
    "map bool .shop.Colour named = 67",
    ".google.protobuf.Timestamp at = 68",
    "repeated .google.protobuf.Duration times = 69",
    ".google.protobuf.StringValue wrapped = 70",
    field("string one = 71", oneof=0),
    field("sint32 other = 72", oneof=0),
    field(".shop.Item third = 73", oneof=0),
    "map int32 .google.protobuf.Timestamp seen = 1000",
    oneofs=["choice"],
)  # fmt: skip
SHOP = Schema(ORDER, ITEM, enums=[COLOURS])
ORDERS = SHOP.kind("Order")
ORDER_SCHEMA = read_schema(f"shop.Order {SHOP.text}")
ORDER_DECODER = ProtobufDecoder(ORDER_SCHEMA)
FENCE = Fence(1 << 16)

INT32, INT64 = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
NUMBERS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(["int32", "sint32", "sfixed32"], INT32),
    **dict.fromkeys(["int64", "sint64", "sfixed64"], INT64),
    **dict.fromkeys(["uint32", "fixed32"], st.integers(0, (1 << 32) - 1)),
    **dict.fromkeys(["uint64", "fixed64"], st.integers(0, (1 << 64) - 1)),
    "bool": st.booleans(),
    "float": st.floats(width=32),
    "double": st.floats(),
    "string": st.text(max_size=20),
    "bytes": st.binary(max_size=20),
}
SMALL = st.sampled_from([0, 1, -1])
ENUMS = st.sampled_from([0, 1, 5, -7, 3, 1 << 30, -(1 << 31)])
ITEMS = st.fixed_dictionaries(
    {}, optional={"sku": st.text(max_size=5), "n": INT32, "colour": ENUMS, "p": st.floats()}
)
MOMENTS = st.fixed_dictionaries(
    {"seconds": st.integers(-(10**13), 10**13) | SMALL},
    optional={"nanos": INT32},
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    **{f"a_{kind}": NUMBERS[kind] for kind in SCALARS},
    **{f"o_{kind}": NUMBERS[kind] for kind in SCALARS},
    **{f"r_{kind}": st.lists(NUMBERS[kind], max_size=4) for kind in SCALARS},
    "colour": ENUMS,
    "colours": st.lists(ENUMS, max_size=4),
    "item": ITEMS,
    "items": st.lists(ITEMS, max_size=4),
    "counts": st.dictionaries(st.text(max_size=4), INT32, max_size=3),
    "by_id": st.dictionaries(INT64, ITEMS, max_size=3),
    "named": st.dictionaries(st.booleans(), ENUMS),
    "at": MOMENTS,
    "times": st.lists(MOMENTS, max_size=3),
    "wrapped": st.fixed_dictionaries({"value": st.text(max_size=3)}),
    "one": st.text(max_size=3),
    "other": INT32,
    "third": ITEMS,
    "seen": st.dictionaries(INT32, MOMENTS, max_size=2),
}


@st.composite
def orders(draw: st.DrawFn) -> bytes:
    """A message, of some of the fields, as any serializer writes it."""
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=12, unique=True))
    made = {name: draw(VALUES[name]) for name in names}
    by_id = made.pop("by_id", {})
    seen = made.pop("seen", {})
    order = ORDERS(**made)
    for key, item in by_id.items():
        order.by_id[key].MergeFrom(SHOP.kind("Item")(**item))
    for key, moment in seen.items():
        order.seen[key].seconds = moment["seconds"]
        order.seen[key].nanos = moment.get("nanos", 0)
    data: bytes = order.SerializeToString()
    return data


def in_python(value: pa.Array) -> list[Any]:
    """Rows as the oracle has them: times in microseconds, floats as text, maps as dicts."""
    return [None if row is None else _plain(row, value.type) for row in _raw(value)]


def _raw(value: pa.Array) -> list[Any]:
    return list(value)


def _plain(scalar: Any, kind: pa.DataType) -> Any:
    if not scalar.is_valid:
        return None
    if pa.types.is_struct(kind):
        return {one.name: _plain(scalar[one.name], one.type) for one in kind}
    if pa.types.is_map(kind):
        entries = scalar.values
        keys = [_plain(one, kind.key_type) for one in entries.field(0)]
        values = [_plain(one, kind.item_type) for one in entries.field(1)]
        return dict(zip(keys, values, strict=True))
    if pa.types.is_list(kind):
        return [_plain(one, kind.value_type) for one in scalar.values]
    if pa.types.is_temporal(kind):
        return scalar.cast(pa.int64()).as_py()
    return repr(scalar.as_py()) if pa.types.is_floating(kind) else scalar.as_py()


def check(decoded: Decoded, messages: list[bytes], kind: Any) -> None:
    """The rows are the oracle's, and what it refuses is a fault."""
    decoded.values.validate(full=True)
    rows = in_python(decoded.values)
    wanted: list[Any] = []
    refused: list[int] = []
    for number, one in enumerate(messages):
        try:
            wanted.append(row_of(kind, one))
        except BadError:
            wanted.append(None)
            refused.append(number)
    assert [fault.row for fault in decoded.faults] == refused
    assert rows == wanted


@given(st.lists(orders(), max_size=6))
def test_messages_are_the_rows_that_spark_makes_of_them(messages: list[bytes]) -> None:
    check(ORDER_DECODER.decode(payloads(messages, b"\0" * 6)), messages, ORDERS)


@given(orders(), orders(), orders())
def test_fields_in_several_parts(one: bytes, two: bytes, third: bytes) -> None:
    """Messages that follow one another are merged; so are those that are fields of them."""
    inner = b"".join(varint(number << 3 | 2) + varint(4) + b"\x0a\x02ab" for number in (63, 73, 64))
    messages = [one + two + third, two, inner + one + inner + b"\xfa\x03\x02\x10\x05", b""]
    check(ORDER_DECODER.decode(payloads(messages)), messages, ORDERS)


ENTRIES = [
    b"\x92\x04\x00",  # an entry without key and value
    b"\x92\x04\x02\x08\x05",  # without value
    b"\x92\x04\x04\x12\x02\x10\x03",  # without key
    b"\x92\x04\x08\x12\x02\x10\x03\x12\x02\x0a\x00",  # with a value in two parts
    b"\x9a\x04\x00",  # of an enum
    b"\xc2\x3e\x00",  # of a timestamp
]


@pytest.mark.parametrize("data", ENTRIES)
def test_entries_of_maps_that_lack_something(data: bytes) -> None:
    check(ORDER_DECODER.decode(payloads([data, data[:-1]])), [data, data[:-1]], ORDERS)


@given(orders(), st.integers(0, 1 << 20), st.integers(0, 255), st.booleans())
@example(b"", 0, 0, False)
def test_damaged_messages_are_bad_rows(data: bytes, at: int, byte: int, cut: bool) -> None:
    """A kernel that reads beyond its bytes would end this process: there is a guard page."""
    if data:
        at %= len(data)
        data = data[:at] if cut else data[:at] + bytes([byte]) + data[at + 1 :]
    with guarded_columns():
        one = Payloads(
            FENCE.put(data), np.zeros(1, np.int64), np.array([len(data)]), np.zeros(1, np.int32)
        )
        decoded = ORDER_DECODER.decode(one)
    decoded.values.validate(full=True)
    try:
        wanted = row_of(ORDERS, data)
    except NotKnownError:
        return
    except BadError:
        assert len(decoded.faults) == 1
        assert decoded.values.null_count == 1
    else:
        assert decoded.faults == ()
        assert in_python(decoded.values) == [wanted]


@given(st.binary(max_size=60))
def test_any_bytes_are_rows_or_faults(data: bytes) -> None:
    with guarded_columns():
        one = Payloads(
            FENCE.put(data), np.zeros(1, np.int64), np.array([len(data)]), np.zeros(1, np.int32)
        )
        decoded = ORDER_DECODER.decode(one)
    decoded.values.validate(full=True)
    assert len(decoded.faults) == decoded.values.null_count


# -- what a schema may be -----------------------------------------------------------------------


def test_names_and_types() -> None:
    kind = arrow_type(read_schema(f"Item {SHOP.text}"))
    assert kind == pa.struct(
        [("sku", pa.string()), ("n", pa.int32()), ("colour", pa.string()), ("p", pa.float64())]
    )
    item = kind
    types = {one.name: one.type for one in ORDER_DECODER.type}
    assert types["a_uint32"] == pa.int32()
    assert types["a_fixed64"] == pa.int64()
    assert types["r_bytes"] == pa.list_(pa.field("element", pa.binary()))
    assert types["by_id"] == pa.map_(pa.int64(), item)
    assert types["at"] == pa.timestamp("us", "UTC")
    assert types["times"] == pa.list_(pa.field("element", pa.duration("us")))
    assert types["wrapped"] == pa.struct([("value", pa.string())])
    assert types["third"] == item


def test_a_schema_by_path_or_without_a_name(tmp_path: Path) -> None:
    file = tmp_path / "the shop.desc"
    file.write_bytes(SHOP.set.SerializeToString())
    assert read_schema(f"Item {file}") == read_schema(f".shop.Item {SHOP.text}")
    assert read_schema(str(file)) == ORDER_SCHEMA
    assert read_schema(SHOP.text) == ORDER_SCHEMA


NODE = message("Node", "int32 v = 1", ".shop.Node next = 2", "map string .shop.Node more = 3")
SHAPES = Schema(
    NODE,
    message("Empty"),
    message("Box", ".shop.Empty empty = 1", "int32 n = 2"),
    message("Outer", "int32 n = 1", nested=[message("Item", "string a = 1")]),
    message("Item", "string b = 1"),
)


@pytest.mark.parametrize(
    ("text", "fields", "said"),
    [
        (f"Nothing {SHOP.text}", [], "has no message Nothing; there are .*shop.Item, shop.Order"),
        (f"Node {SHAPES.text}", [], r"shop.Node, which is recursive \(shop.Node -> shop.Node\)"),
        (f"Empty {SHAPES.text}", [], "names message shop.Empty, which has no fields"),
        (f"Order {SHOP.text}", ["colour.x"], "has field shop.Order.colour of type enum, which"),
        (f"Order {SHOP.text}", ["item.x"], "has no field x in message shop.Item"),
        (f"Item {SHAPES.text}", [], "messages that are named Item; .* shop.Item, shop.Outer.Item"),
        ("no such file.desc", [], "neither the path of a file that can be read .* nor base64"),
        ("Order aGVsbG8=", [], "is no descriptor set"),
        ("%", [], "neither the path"),
        ("shop.Order,shop.Item", [], "; for a registry's schema, write latest, version:3 or id:7 "),
    ],
)
def test_schemas_that_cannot_be_used(text: str, fields: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_schema(text, fields)


def test_a_recursive_message_without_its_recursion() -> None:
    schema = read_schema(f"Node {SHAPES.text}", ["v"])
    decoded = ProtobufDecoder(schema).decode(payloads([b"\x08\x05\x12\x02\x08\x06"]))
    assert decoded.values.to_pylist() == [{"v": 5}]


def test_a_message_without_fields_is_left_out() -> None:
    assert arrow_type(read_schema(f"Box {SHAPES.text}")) == pa.struct([("n", pa.int32())])


@given(st.lists(orders(), max_size=4))
def test_some_fields_are_those_of_all(messages: list[bytes]) -> None:
    fields = ["items.n", "by_id.sku", "a_string", "third.colour", "third", "counts"]
    some = ProtobufDecoder(read_schema(f"shop.Order {SHOP.text}", fields))
    assert some.type.field("items").type.value_type == pa.struct([("n", pa.int32())])
    decoded, all_of_it = some.decode(payloads(messages)), ORDER_DECODER.decode(payloads(messages))
    bad = {fault.row for fault in all_of_it.faults}
    for number, (row, whole) in enumerate(
        zip(in_python(decoded.values), in_python(all_of_it.values), strict=True)
    ):
        if number not in bad:
            assert row["a_string"] == whole["a_string"]
            assert row["third"] == whole["third"]
            assert row["counts"] == whole["counts"]
            assert row["items"] == [{"n": item["n"]} for item in whole["items"]]
            assert row["by_id"] == {
                key: {"sku": item["sku"]} for key, item in whole["by_id"].items()
            }


def test_nulls_and_default_values() -> None:
    schema = read_schema(f"shop.Item {SHOP.text}")
    messages = [None, b"", b"\x0a\x00\x10\x00\x38\x00\x19" + bytes(8)]
    null = {"sku": None, "n": None, "colour": None, "p": None}
    decoded = ProtobufDecoder(schema).decode(payloads(messages))
    assert decoded == Decoded(decoded.values, ())
    assert decoded.values.to_pylist() == [None, null, {**null, "p": 0.0}]
    decoded = ProtobufDecoder(schema, emit_defaults=True).decode(payloads(messages))
    zero = {"sku": "", "n": 0, "colour": "RED", "p": None}
    assert decoded.values.to_pylist() == [None, zero, {**zero, "p": 0.0}]


OLD = Schema(
    message(
        "Old",
        "required int32 id = 1",
        field("string name = 2", default="no name"),
        field(".shop.Kind kind = 3", default="B"),
        field("double d = 4", default="1.5"),
        field("float f = 5", default="-2.5"),
        field("bool b = 6", default="true"),
        field("uint64 u = 7", default="18446744073709551615"),
        "repeated .shop.Kind kinds = 8",
        ".shop.Inner inner = 9",
    ),
    message("Inner", ".shop.Kind kind = 1", "repeated .shop.Kind kinds = 2"),
    enums=[enum("Kind", A=1, B=2)],
    syntax="proto2",
)


def test_proto2() -> None:
    """Default values, what is required, and enums that have no more values than those stated."""
    messages = [
        b"\x08\x07",
        b"\x08\x00\x12\x00\x18\x01\x40\x01\x40\x02",
        b"\x12\x00",
        b"\x08\x01\x18\x09",
        b"\x08\x01\x40\x09",
        b"\x08\x01\x4a\x06\x08\x09\x10\x01\x10\x09",
    ]
    decoded = ProtobufDecoder(read_schema(f"Old {OLD.text}")).decode(payloads(messages))
    check(decoded, messages, OLD.kind("Old"))
    assert decoded.faults == (
        Fault(2, "id", "is missing, and required"),
        Fault(3, "kind", "has 9, which its enum does not have"),
        Fault(4, "kinds", "has 9, which its enum does not have"),
    )
    assert decoded.values[0].as_py()["name"] == "no name"


@pytest.mark.parametrize(
    ("data", "path", "reason"),
    [
        (b"\x0a\x05a", "sku", "is cut short, or longer than the value"),
        (b"\x0a\x01\xff", "sku", "is no UTF-8"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01a", "sku", "is cut short, or longer"),
        (b"\x08\x05", "sku", "has another type than in the schema"),
        (b"\x10\x80", "n", "is cut short"),
        (b"\x19\x00", "p", "is cut short"),
        (b"\x00\x00", "", "is no Protobuf"),
        (b"\x53" * 101, "", "is no Protobuf"),
        (b"\x53\x5c", "", "is no Protobuf"),
        (b"\x57", "", "is no Protobuf"),
        (b"\xa0\x06\x80", "", "is cut short"),
    ],
)
def test_a_fault_says_where_and_what(data: bytes, path: str, reason: str) -> None:
    good = b"\x10\x05"
    decoder = ProtobufDecoder(read_schema(f"shop.Item {SHOP.text}"))
    decoded = decoder.decode(payloads([good, data, good, data]))
    assert [(fault.row, fault.field) for fault in decoded.faults] == [(1, path), (3, path)]
    assert decoded.faults[0].reason.startswith(reason)
    assert [row and row["n"] for row in decoded.values.to_pylist()] == [5, None, 5, None]


def test_unknown_fields_are_passed_over() -> None:
    decoder = ProtobufDecoder(read_schema(f"shop.Item {SHOP.text}"))
    groups = b"\x53" * 100 + b"\x54" * 100
    data = b"\x50\x01\x59" + bytes(8) + b"\x52\x02ab" + groups + b"\x5d" + bytes(4) + b"\x10\x07"
    decoded = decoder.decode(payloads([data]))
    assert decoded.faults == ()
    assert decoded.values[0].as_py()["n"] == 7


def test_a_time_out_of_range_is_bad() -> None:
    schema = read_schema(f"shop.Order {SHOP.text}", ["at"])
    moment = b"\x08" + varint((1 << 63) - 1)
    messages = [b"\xa2\x04" + varint(len(moment)) + moment]
    decoded = ProtobufDecoder(schema).decode(payloads(messages))
    assert decoded.faults == (Fault(0, "at", "is beyond what microseconds in 64 bits can hold"),)


def test_few_bytes_make_no_more_values_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An item of two bytes has four fields; a packed number has one byte."""
    monkeypatch.setattr(decoder_module, "_MOST_VALUES", 2_000)
    items, numbers = b"\x82\x04\x00", b"\xca\x02" + varint(3_000) + bytes(3_000)
    data = [items * 400, items * 100, numbers, b""]
    decoded = ORDER_DECODER.decode(payloads(data))
    assert [(fault.row, fault.field) for fault in decoded.faults] == [(0, ""), (2, "")]
    assert len(decoded.values[1]["items"]) == 100


# -- Confluent's message indexes ----------------------------------------------------------------


def test_message_indexes() -> None:
    messages = [
        b"\0\x10\x05",
        b"\x02\x02\x10\x06",
        b"\x02\0",
        b"\x04\0\x02",
        b"",
        b"\x01",
        b"\x02\x01",
        None,
    ]
    item = ProtobufDecoder(read_schema(f"shop.Item {SHOP.text}"), framed=True)
    decoded = item.decode(payloads(messages))
    assert [row and row["n"] for row in decoded.values.to_pylist()] == [None, 6] + [None] * 6
    assert [(fault.row, fault.reason) for fault in decoded.faults] == [
        (0, "is message 0 of its file, and shop.Item is 1"),
        (2, "is message 0 of its file, and shop.Item is 1"),
        (3, "is message 0.1 of its file, and shop.Item is 1"),
        (4, "begins with no message indexes: a number is cut short, or longer than 10 bytes"),
        (5, "begins with no message indexes: their number is -1"),
        (6, "begins with no message indexes: one is negative"),
    ]
    order = ProtobufDecoder(ORDER_SCHEMA, framed=True)
    decoded = order.decode(payloads([b"\0\x08\x05", b"\x02\0\x08\x06", b"\0\x08\x05\x08\x07"]))
    assert decoded.faults == ()
    assert [row["a_int32"] for row in decoded.values.to_pylist()] == [5, 6, 7]


def test_the_decoder_is_plain_data_for_tasks() -> None:
    item = ProtobufDecoder(read_schema(f"shop.Item {SHOP.text}"), framed=True)
    again = pickle.loads(pickle.dumps(item))
    assert again.decode(payloads([b"\2\2\x10\x05"])).values[0].as_py()["n"] == 5
