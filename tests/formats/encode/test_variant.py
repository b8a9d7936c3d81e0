"""Variants as JSON: what was parsed is written, and what is no variant is named."""

import json
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kshare.formats.encode import variant as encode_variant
from kshare.formats.encode.json import JsonEncoder
from kshare.formats.encode.parts import EncodeError
from kshare.formats.json.variant_decoder import VariantDecoder
from kshare.formats.variant_type import VARIANT
from kshare.read.decode import variant_kind as kinds
from tests.support.json_payloads import payloads

NO_NAMES = b"\x01\x00\x00"


def column(*rows: tuple[bytes, bytes] | None) -> pa.Array:
    return pa.array([row and {"value": row[0], "metadata": row[1]} for row in rows], VARIANT)


def texts(values: pa.Array) -> list[Any]:
    return list(JsonEncoder(values.type).encode(values).to_pylist())


def scalar(kind: int, content: bytes = b"") -> tuple[bytes, bytes]:
    return bytes([kind << 2]) + content, NO_NAMES


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**37), 10**37)
    | st.text(max_size=80)
    | st.sampled_from(["", '\x00\x1f"\\/\b\f\n\r\t\x7f', "\ue000\U0001f600"])
)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=30,
)


@given(st.lists(st.none() | st.tuples(JSON), max_size=8), st.integers(0, 3))
@example([({"a": [{"b": {}}, []], "": 0},), None, (None,)], 1)
def test_what_is_parsed_is_written(rows: list[Any], first: int) -> None:
    given_rows = [None if row is None else json.dumps(row[0]).encode() for row in rows]
    decoded = VariantDecoder().decode(payloads(given_rows))
    assert decoded.faults == ()
    found = texts(decoded.values.slice(first))
    wanted = [None if row is None else row[0] for row in rows[first:]]
    is_null = [row is None for row in rows[first:]]
    assert [text is None for text in found] == is_null
    assert [None if text is None else json.loads(text) for text in found] == wanted
    if decoded.values.null_count == 0 and rows:  # the same within structs and lists
        whole = pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), decoded.values)
        lists = whole.take(pa.array([0] * len(rows)))
        fields = [pa.field("v", VARIANT), pa.field("w", pa.list_(VARIANT))]
        nested = pa.StructArray.from_arrays([decoded.values, lists], fields=fields)
        for text, row in zip(texts(nested), rows, strict=True):
            assert json.loads(text) == {"v": row[0], "w": [each[0] for each in rows]}


@given(st.floats(), st.floats(width=32))
def test_floats_are_as_java_writes_them_and_equal(double: float, single: float) -> None:
    of_double = scalar(kinds.DOUBLE, struct.pack("<d", double))
    of_single = scalar(kinds.FLOAT, struct.pack("<f", single))
    first, second = (json.loads(text) for text in texts(column(of_double, of_single)))
    assert str(float(first)) == str(double)
    assert str(np.float32(second)) == str(np.float32(single))


@pytest.mark.parametrize(
    ("double", "text"),
    [
        (0.0, b"0.0"),
        (-0.0, b"-0.0"),
        (1.0, b"1.0"),
        (0.001, b"0.001"),
        (0.00099, b"9.9E-4"),
        (9999999.0, b"9999999.0"),
        (1e7, b"1.0E7"),
        (-12345678.9, b"-1.23456789E7"),
        (1e300, b"1.0E300"),
        (5e-324, b"5.0E-324"),
        (float("nan"), b'"NaN"'),
        (float("-inf"), b'"-Infinity"'),
    ],
)
def test_java_writes_numbers_so(double: float, text: bytes) -> None:
    assert texts(column(scalar(kinds.DOUBLE, struct.pack("<d", double)))) == [text]


@given(st.integers(-(10**38) + 1, 10**38 - 1), st.integers(0, 38))
def test_decimals_are_plain_and_without_zeros_behind(unscaled: int, scale: int) -> None:
    content = bytes([scale]) + unscaled.to_bytes(16, "little", signed=True)
    (text,) = texts(column(scalar(kinds.DECIMAL16, content)))
    whole, _, part = text.decode().partition(".")
    assert int(whole + part.ljust(scale, "0")) == unscaled
    assert not part.endswith("0")
    assert bool(part) == ("." in text.decode())


TIMES = [
    (kinds.DATE, struct.pack("<i", 0), b'"1970-01-01"'),
    (kinds.TIMESTAMP, struct.pack("<q", -1), b'"1969-12-31 23:59:59.999999+00:00"'),
    (kinds.TIMESTAMP, struct.pack("<q", 1_500_000), b'"1970-01-01 00:00:01.5+00:00"'),
    (kinds.TIMESTAMP_NTZ, struct.pack("<q", 0), b'"1970-01-01 00:00:00"'),
    (kinds.BINARY, b"\x02\0\0\0\xff\0", b'"/wA="'),
]


@pytest.mark.parametrize(("kind", "content", "text"), TIMES)
def test_times_and_bytes(kind: int, content: bytes, text: bytes) -> None:
    assert texts(column(scalar(kind, content))) == [text]


# -- damage ---------------------------------------------------------------------------------------

A = b"\x01\x01\x00\x01a"  # metadata with the name a
OBJECT_OF_A = b"\x02\x01\x00\x00\x02\x0c\x07"  # {"a": 7}

DAMAGED = [
    ((b"", NO_NAMES), "is no variant: it is damaged"),
    ((b"\x0c", NO_NAMES), "is no variant: it is damaged"),  # an integer without its byte
    ((b"\x0d", NO_NAMES), "is no variant: it is damaged"),  # a string of 3 bytes without them
    ((b"\x40\xff\xff\xff\x7f", NO_NAMES), "is no variant: it is damaged"),
    ((b"\x05\xff", NO_NAMES), "has a text that is no UTF-8"),
    ((b"\xfc", NO_NAMES), "has a value of kind 63, which JSON does not have"),
    ((OBJECT_OF_A, NO_NAMES), "is no variant: it is damaged"),  # no such name
    ((OBJECT_OF_A, b"\x02\x01\x00\x01a"), "is a variant of another version than 1"),
    ((OBJECT_OF_A, b"\x01\x01\x00"), "is no variant: it is damaged"),
    ((OBJECT_OF_A, b"\x01\x01\x01\x00a"), "is no variant: it is damaged"),
    ((OBJECT_OF_A, b"\x01\x01\x00\x09a"), "is no variant: it is damaged"),
    ((OBJECT_OF_A, b"\x01\x01\x00\x01\xff"), "has a text that is no UTF-8"),
    ((b"\x02\x01\x00\x09\x02\x0c\x07", A), "is no variant: it is damaged"),  # behind its end
    ((b"\x13\xff\xff\xff\xff", NO_NAMES), "is no variant: it is damaged"),  # 4 billion values
    (scalar(kinds.DECIMAL4, b"\x0a\0\0\0\0"), "has a decimal of a scale of more than 9"),
    (scalar(kinds.DECIMAL4, b"\0\xff\xff\xff\x7f"), "has a decimal of more than 9 digits"),
    (scalar(kinds.DATE, b"\xff\xff\xff\x7f"), "has a time that is not within the years 0 to 9999"),
    (scalar(kinds.TIMESTAMP, b"\xff" * 7 + b"\x7f"), "has a time that is not within the years 0 t"),
]


@pytest.mark.parametrize(("row", "reason"), DAMAGED, ids=range(len(DAMAGED)))
def test_damage_is_named_by_its_row(row: tuple[bytes, bytes], reason: str) -> None:
    good = (OBJECT_OF_A, A)
    assert texts(column(good, None)) == [b'{"a":7}', None]
    with pytest.raises(EncodeError) as raised:
        texts(column(None, good, row, good))
    assert (raised.value.row, raised.value.field) == (2, "")
    assert raised.value.reason.startswith(reason)
    kind = pa.struct([("n", pa.int32()), ("inner", pa.struct([("any", VARIANT)]))])
    variant = {"value": row[0], "metadata": row[1]}
    with pytest.raises(EncodeError) as raised:
        texts(pa.array([{"n": 1}, None, {"n": 2, "inner": {"any": variant}}], kind))
    assert (raised.value.row, raised.value.field) == (2, "inner.any")


@given(st.binary(max_size=40), st.binary(max_size=12), st.integers(0, 39), st.integers(0, 255))
@example(b"", b"", 0, 0)
def test_any_bytes_are_a_text_or_damage(value: bytes, names: bytes, at: int, byte: int) -> None:
    record = b'{"a":[1,"xyz",{"bc":2.5,"a":null}],"d":"' + b"y" * 70 + b'"}'
    (made,) = VariantDecoder().decode(payloads([record])).values.to_pylist()
    bent = bytearray(made["value"])
    bent[at] = byte
    for row in ((value, A), (OBJECT_OF_A, names), (bytes(bent), made["metadata"])):
        try:
            (text,) = texts(column(row))
        except EncodeError:
            continue
        json.loads(text)


def array_in_arrays(depth: int) -> bytes:
    value = b"\x00"
    for _ in range(depth):
        value = b"\x0f\x01\0\0\0\0" + len(value).to_bytes(4, "little") + value
        value = b"\x0f" + b"\x01" + (0).to_bytes(4, "little") + value[6:]
    return value


def test_depth_is_bounded() -> None:
    (text,) = texts(column((array_in_arrays(1_000), NO_NAMES)))
    assert text == b"[" * 1_000 + b"null" + b"]" * 1_000
    with pytest.raises(EncodeError, match="more than 1,000 objects and arrays in each other"):
        texts(column((array_in_arrays(1_001), NO_NAMES)))


def test_values_in_each_other_cannot_make_much_of_little() -> None:
    """Each array has the next one twice: 2^20 values of 100 bytes."""
    value = b"\x00"
    for _ in range(20):
        value = b"\x03\x02\x00\x00" + bytes([min(len(value), 255)]) + value
    with pytest.raises(EncodeError, match="is no variant: it is damaged"):
        texts(column((value, NO_NAMES)))


def test_a_name_that_is_long_and_often_there_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode_variant, "_MOST_NAMES", 1 << 20)
    name = "n" * 10_000
    good, bad = (json.dumps([{name: 1}] * count).encode() for count in (100, 110))
    values = VariantDecoder().decode(payloads([good, bad])).values
    assert texts(values.slice(0, 1)) == [good.replace(b" ", b"")]
    with pytest.raises(EncodeError, match="has more than 1 MiB of names"):
        texts(values)


def test_a_struct_of_the_same_fields_is_no_variant() -> None:
    kind = pa.struct([("value", pa.binary()), ("metadata", pa.binary())])
    assert texts(pa.array([{"value": b"a", "metadata": b"b"}], kind)) == [
        b'{"value":"YQ==","metadata":"Yg=="}'
    ]
