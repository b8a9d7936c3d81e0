"""Protobuf of a registry: files in both forms, other versions of a message, other messages."""

from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2

from kshare.formats.payloads import Payloads
from kshare.formats.protobuf.decoder import ProtobufDecoder
from kshare.formats.protobuf.files import (
    file_text,
    find_message,
    inline_set,
    named_files,
    parts_of,
    registry_set,
)
from kshare.formats.protobuf.indexes import index_bytes
from kshare.formats.protobuf.proto_text import parse_file
from kshare.formats.protobuf.schema import read_schema
from kshare.testing.proto_files import registry_forms
from tests.formats.test_protobuf import ORDER_SCHEMA, SHOP
from tests.support.protobuf_messages import Schema, message, payloads

# -- files ----------------------------------------------------------------------------------------

PROTO2 = r"""syntax = "proto2";
package shop;
message Old {
  required int32 a = 1;
  optional sint64 b = 2 [default = -5];
  optional string c = 3 [default = "it\"s " "\303\251"];
  optional bytes d = 4 [default = "\001\377"];
  optional Kind kind = 5 [default = TWO];
  optional double e = 6 [default = -inf];
  repeated Inner inner = 7;
  message Inner { optional bool yes = 1 [default = true]; }
  enum Kind { ONE = 1; TWO = 2; }
}
"""


@pytest.mark.parametrize("given", [file_text(SHOP.set.file[-1]), PROTO2], ids=["proto3", "proto2"])
def test_a_file_means_the_same_as_a_text_and_as_a_descriptor(given: str) -> None:
    descriptor, text = registry_forms(given)
    assert registry_forms(text) == registry_forms(descriptor) == (descriptor, text)
    wanted = read_schema(registry_set(given, {}))
    assert read_schema(registry_set(text, {})) == wanted
    assert read_schema(registry_set(descriptor, {})) == wanted


WRITTEN = """
// A file as people write it.
syntax = "proto3";
package shop.v1;
import "shop/common.proto"; import public 'google/protobuf/timestamp.proto';
option java_package = "com.shop"; /* of
many lines */
message Order {
  option (my.option) = { a: 1 b: [2, 3] };
  reserved 8, 10 to max; reserved "gone";
  Kind kind = 1 [deprecated = true, (my.field).x = "]", json_name = "sort"];
  optional string user = 0x2;
  map<string, common.Money> prices = 3;
  oneof choice { option (x) = 1; bytes raw = 4; Line line = 5 ; }
  repeated int32 numbers = 06 [packed = false];
  message Line { common . Money price = 1; Line next = 2; }
  enum Kind { option allow_alias = true; NONE = 0; NIL = 0; BAD = -1 [deprecated = true]; }
  google.protobuf.Timestamp message = 7;;
}
service Orders { rpc Get (Order) returns (stream Order) { option (http) = { get: "/x" }; } }
extend google.protobuf.FieldOptions { string mine = 50000; }
""".replace("common . Money", "common.Money")
COMMON = 'syntax = "proto3"; package shop.common; message Money { int64 units = 1; }'


def test_a_file_as_people_write_it() -> None:
    text = registry_set(WRITTEN, {"shop/common.proto": COMMON}, "Order.Line")
    with pytest.raises(ValueError, match="which is recursive"):
        read_schema(text)
    whole = read_schema(text.replace("Order.Line", "shop.v1.Order"), ["kind", "user", "numbers"])
    assert [(each.name, each.number, each.kind) for each in whole.fields] == [
        ("kind", 1, "enum"),
        ("user", 2, "string"),
        ("numbers", 6, "int32"),
    ]
    assert whole.fields[0].enum is not None
    assert whole.fields[0].enum.values == ((0, "NONE"), (-1, "BAD"))
    others = read_schema(text.replace("Order.Line", "Order"), ["prices", "raw", "message"])
    assert [(each.name, each.kind, each.oneof) for each in others.fields] == [
        ("prices", "message", ""),
        ("raw", "bytes", "choice"),
        ("message", "timestamp", ""),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('edition = "2023";', "line 1: it is of an edition"),
        ("message A {\n group B = 1 {} }", "line 2: it has a group"),
        ("message A { repeated group B = 1 {} }", "it has a group"),
        ("message A { int32 a = ; }", "';' is where a number is wanted"),
        ("message A { int32 a 1; }", "'1' is where '=' is wanted"),
        ("message A { int32 a = 1", "it ends too early"),
        ("message 1 {}", "'1' is where a name is wanted"),
        ("nothing", "'nothing' begins nothing"),
        ("message A { 1 a = 1; }", "'1' is no type of a field"),
        ("message A {" * 101, "more than 100 messages"),
        ("%", "line 1: '%'"),
        ('syntax = "proto3"', "it ends too early"),
        ("message A { B b = 1; }", "do not go together"),
        ("", "is no descriptor set"),
        ('import "other.proto"; message A { int32 a = 1; }', "lacks other.proto"),
    ],
)
def test_texts_that_are_no_file(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_schema(registry_set(text, {}))


def test_imports_of_confluent_and_google_come_with_packages() -> None:
    text = """syntax = "proto3"; import "google/protobuf/field_mask.proto";
        import "confluent/type/decimal.proto";
        message A { google.protobuf.FieldMask mask = 1; confluent.type.Decimal price = 2; }"""
    assert [each.name for each in read_schema(registry_set(text, {})).fields] == ["mask", "price"]
    with pytest.raises(ValueError, match=r"lacks google/protobuf/os\.proto"):
        read_schema(registry_set('import "google/protobuf/os.proto";', {}))


def test_the_parts_of_a_set_are_those_that_its_message_needs(tmp_path: Any) -> None:
    files = descriptor_pb2.FileDescriptorSet()
    files.file.extend(SHOP.set.file)
    for name, needs in (("a.proto", ()), ("b.proto", ("a.proto",)), ("c.proto", ("b.proto",))):
        file = files.file.add(name=name, package=name[0], syntax="proto3", dependency=needs)
        file.message_type.add(name="M").field.add(name="x", number=1, type=5, json_name="x")
    path = tmp_path / "all.desc"
    path.write_bytes(files.SerializeToString())
    parts = parts_of(f"b.M {path}")
    assert [(each.name, each.imports) for each in parts] == [
        ("a.proto", ()),
        ("b.proto", ("a.proto",)),
    ]
    (made,), _ = named_files(parts[0].text)
    assert made.message_type[0].field[0].json_name == ""
    (own,) = parts_of(f"shop.Item {path}")
    assert own.imports == ()
    inline = inline_set(f"b.M {path}")
    path.unlink()
    assert read_schema(inline).name == "b.M"
    assert find_message(named_files(inline)[0], "c.M")[1] == (0,)


# -- other versions of a message ------------------------------------------------------------------

READER = Schema(
    message(
        "Order",
        "int32 qty = 1",
        "string user = 2",
        "repeated int32 numbers = 3",
        "repeated .shop.Item items = 4",
        "map string int64 counts = 5",
        ".google.protobuf.Timestamp at = 6",
        "fixed32 f = 7",
    ),
    message("Item", "string sku = 1"),
)


def file_of(*fields: Any, before: int = 0, item: Any = None) -> str:
    """A writer's file, in which the message is behind others."""
    others = [message(f"Other{number}", "int32 x = 1") for number in range(before)]
    item = item or message("Item", "string sku = 1", "int32 n = 2")
    file = Schema(*others, message("Order", *fields), item).set.file[-1]
    return registry_set(file_text(file), {})


def decoded(writers: list[str], messages: list[tuple[int, bytes]]) -> tuple[list[Any], list[Any]]:
    decoder = ProtobufDecoder(
        read_schema(registry_set(file_text(READER.set.file[-1]), {})), framed=True
    )
    numbers = [decoder.add_writer(text) for text in writers]
    assert numbers == [decoder.add_writer(text) for text in writers]
    made = payloads([data for _, data in messages])
    which = [numbers[number] for number, _ in messages]
    given = Payloads(made.data, made.starts, made.ends, np.array(which, np.int32))
    found = decoder.decode(given)
    return found.values.to_pylist(), [(each.row, each.field, each.reason) for each in found.faults]


def test_each_writers_message_is_where_its_file_has_it() -> None:
    first = file_of("int32 qty = 1")
    third = file_of("int64 quantity = 1", "string note = 9", before=2)
    nested = Schema(message("Order", nested=[message("Order", "int32 qty = 1")])).set.file[-1]
    other = registry_set(file_text(nested), {})
    rows, faults = decoded(
        [first, third, other],
        [
            (0, b"\0\x08\x05"),
            (1, index_bytes((2,)) + b"\x08\x06\x4a\x01a"),
            (1, b"\2\4\x08\x07"),
            (1, b"\2\2\x08\x07"),
            (1, b"\0\x08\x07"),
            (0, b"\2\x10\x08\x07"),
            (2, b"\4\0\0\x08\x07"),
            (0, b"\2\0\x08\x09"),
            (1, b""),
        ],
    )
    assert [row and row["qty"] for row in rows] == [5, 6, 7, None, None, None, None, 9, None]
    assert [(row, reason) for row, _, reason in faults] == [
        (3, "is message shop.Other1, and shop.Order is wanted"),
        (4, "is message shop.Other0, and shop.Order is wanted"),
        (5, "is message 8 of its file, which has no such message"),
        (6, "is message shop.Order.Order, and shop.Order is wanted"),
        (8, "begins with no message indexes: a number is cut short, or longer than 10 bytes"),
    ]


@pytest.mark.parametrize(
    ("fields", "path", "reason"),
    [
        (("string qty = 1",), "qty", "is string where int32 is wanted"),
        (("sint32 qty = 1",), "qty", "is sint32 where int32 is wanted"),
        (("repeated int32 qty = 1",), "qty", "is a list where one is wanted"),
        (("int32 numbers = 3",), "numbers", "is one where a list is wanted"),
        ((".shop.Item at = 6",), "at", "is message where timestamp is wanted"),
        ((".google.protobuf.Duration at = 6",), "at", "is duration where timestamp is wanted"),
        (("map string string counts = 5",), "counts.value", "is string where int64 is wanted"),
        (("float f = 7",), "f", "is float where fixed32 is wanted"),
    ],
)
def test_numbers_that_mean_something_else_are_bad_by_name(
    fields: tuple[str, ...], path: str, reason: str
) -> None:
    rows, faults = decoded([file_of(*fields), file_of("int32 qty = 1")], [(0, b"\0"), (1, b"\0")])
    assert faults == [(0, path, reason)]
    assert rows[0] is None
    assert rows[1] is not None


@pytest.mark.parametrize(
    "fields",
    [
        ("uint64 qty = 1", "bytes user = 2", "sfixed32 f = 7"),
        ("bool qty = 1", "repeated string user = 2", ".shop.Item items = 4"),
        ("int32 renamed = 1", "int64 more = 99"),
    ],
)
def test_what_protobuf_reads_alike_is_read(fields: tuple[str, ...]) -> None:
    rows, faults = decoded([file_of(*fields)], [(0, b"\0\x08\x01\x22\x03\x0a\x01s")])
    assert faults == []
    assert (rows[0]["qty"], rows[0]["items"]) == (1, [{"sku": "s"}])


def test_a_nested_field_of_another_type_names_its_path() -> None:
    item = message("Item", "int64 sku = 1")
    text = file_of("repeated .shop.Item items = 4", item=item)
    assert decoded([text], [(0, b"\0")])[1] == [(0, "items.sku", "is int64 where string is wanted")]


def test_schemas_that_cannot_be_used_are_bad_rows() -> None:
    damaged = "aGVsbG8="
    lacking = registry_set(
        'import "gone.proto"; package shop; message Order { int32 qty = 1; }', {}
    )
    _, faults = decoded([damaged, lacking], [(0, b"\0"), (1, b"\0")])
    assert [reason.partition(";")[0] for _, _, reason in faults] == [
        "has a schema that is no descriptor set",
        "has a schema that lacks gone.proto, which default imports",
    ]


def test_a_message_that_a_header_names_has_no_indexes() -> None:
    decoder = ProtobufDecoder(ORDER_SCHEMA, framed=True)
    text = inline_set(SHOP.text)
    order, item, none = (decoder.add_writer(text, path) for path in ((0,), (1,), (9,)))
    made = payloads([b"\x08\x05", b"", b"\x08\x06", b"\0\x08\x07"])
    given = Payloads(made.data, made.starts, made.ends, np.array([order, item, none, 0], np.int32))
    found = decoder.decode(given)
    assert [row and row["a_int32"] for row in found.values.to_pylist()] == [5, None, None, 7]
    assert [fault.reason for fault in found.faults] == [
        "is message shop.Item, and shop.Order is wanted",
        "is a message that its file does not have, and shop.Order is wanted",
    ]


def test_a_required_field_that_the_writer_does_not_know() -> None:
    reader = read_schema(registry_set(PROTO2, {}))
    assert [each.default for each in reader.fields] == [
        *(None, -5, 'it"s \u00e9', b"\1\xff", "TWO", float("-inf"), None)
    ]
    writer = 'syntax = "proto2"; package shop; message Old { optional sint64 b = 2; }'
    decoder = ProtobufDecoder(reader, framed=True)
    made = payloads([b"\0"])
    number = decoder.add_writer(registry_set(writer, {}))
    found = decoder.decode(Payloads(made.data, made.starts, made.ends, made.writers + number))
    assert [(each.field, each.reason) for each in found.faults] == [
        ("a", "is missing, and required")
    ]


def test_the_parser_keeps_what_a_default_says() -> None:
    file = parse_file("message A { optional string a = 1 [default = \"x\" 'y\\n']; }")
    assert file.message_type[0].field[0].default_value == "xy\n"
