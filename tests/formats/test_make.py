"""Decoders as options ask for them: each format, from a schema's text to rows."""

import base64
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from kshare.errors import OptionsError
from kshare.formats.framing import unframed
from kshare.formats.json.options import JSON_OPTIONS as READ
from kshare.formats.make import made_decoder
from kshare.formats.payloads import Payloads
from kshare.options.frozen import FrozenMapping
from kshare.options.row_formats import JSON_OPTIONS
from kshare.options.typed_rows import RowFormat


def rows(form: RowFormat, schema: str, *values: bytes | None) -> tuple[list[Any], list[str]]:
    """The rows of some values, and the reasons of the bad ones."""
    framed = unframed(pa.array(values, pa.binary()), form.framing)
    numbers = (framed.starts * 0).astype("int32")
    payloads = Payloads(framed.data, framed.starts, framed.ends, numbers)
    found = made_decoder(form, schema).decode(payloads)
    return found.values.to_pylist(), [fault.reason for fault in found.faults]


def test_json_by_ddl_and_by_json_schema() -> None:
    form = RowFormat(column="value", format="json", fields=("qty",))
    fields = '{"user": {"type": "string"}, "qty": {"type": "integer"}}'
    schema = f'{{"type": "object", "properties": {fields}}}'
    for text in ("user STRING, qty BIGINT", schema):
        found, bad = rows(form, text, b'{"user": "a", "qty": 2}', None, b'{"qty": "x"}')
        assert found == [{"qty": 2}, None, {"qty": None}]
        assert bad == ['has "x" where a bigint is wanted']


def test_options_of_json() -> None:
    assert set(READ) == set(JSON_OPTIONS)
    options = FrozenMapping({"allowComments": "true"})
    form = RowFormat(column="value", format="json", json=options)
    assert rows(form, "a INT", b'/* */ {"a": 1}') == ([{"a": 1}], [])
    wrong = FrozenMapping({"allowComments": "maybe", "maxNestingDepth": "0"})
    with pytest.raises(OptionsError) as caught:
        made_decoder(RowFormat(column="key", format="json", json=wrong), "a INT")
    assert [each.partition(" ")[0] for each in caught.value.problems] == [
        "key.json.allowComments",
        "key.json.maxNestingDepth",
    ]


def test_protobuf_by_a_descriptor_set() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="o.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    message.field.add(name="qty", number=1, type=5, label=1)
    text = base64.b64encode(file.SerializeToString()).decode()
    plain = RowFormat(column="value", format="protobuf")
    assert rows(plain, f"shop.Order {text}", b"\x08\x05", None) == ([{"qty": 5}, None], [])
    framed = RowFormat(column="value", format="protobuf", framing="confluent")
    assert rows(framed, f"shop.Order {text}", b"\0\0\0\0\7\0\x08\x05") == ([{"qty": 5}], [])


@pytest.mark.parametrize(
    ("form", "schema"), [("json", "a NOTHING"), ("avro", "{}"), ("protobuf", "shop.Order none")]
)
def test_a_schema_that_cannot_be_read_names_its_option(form: Any, schema: str) -> None:
    with pytest.raises(OptionsError, match="keySchema"):
        made_decoder(RowFormat(column="key", format=form), schema)
