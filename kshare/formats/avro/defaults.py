"""Defaults of fields: from the JSON of a schema to the bytes that a writer would have written."""

import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from kshare.formats.avro.schema import (
    NO_DEFAULT,
    Array,
    Enum,
    Fixed,
    Map,
    Primitive,
    Record,
    Schema,
    Union,
    described,
)

__all__ = ["encoded"]


def encoded(value: Any, schema: Schema) -> bytes:
    """Encode a default.

    Args:
        value: The JSON. Bytes are a string of characters up to U+00FF.
        schema: What it is a value of. Of a union, the first type that fits counts.

    Raises:
        ValueError: It is none.
    """
    if isinstance(schema, Union):
        for number, one in enumerate(schema.branches):
            with suppress(ValueError):
                return _varint(number) + encoded(value, one)
        raise _no_default(value, schema)
    if isinstance(schema, Record):
        return _record(value, schema)
    if isinstance(schema, Array):
        if not isinstance(value, list):
            raise _no_default(value, schema)
        return _block(b"".join(encoded(one, schema.items) for one in value), len(value))
    if isinstance(schema, Map):
        if not isinstance(value, Mapping):
            raise _no_default(value, schema)
        pairs = [_text(key) + encoded(one, schema.values) for key, one in value.items()]
        return _block(b"".join(pairs), len(value))
    return _leaf(value, schema)


def _no_default(value: Any, schema: Schema) -> ValueError:
    return ValueError(f"the default {value!r} is no {described(schema)}")


def _varint(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    coded = bytearray()
    while number > 0x7F:
        coded.append(number & 0x7F | 0x80)
        number >>= 7
    coded.append(number)
    return bytes(coded)


def _block(items: bytes, count: int) -> bytes:
    return _varint(count) + items + b"\0" if count else b"\0"


def _text(text: str) -> bytes:
    data = text.encode()
    return _varint(len(data)) + data


def _record(value: Any, schema: Record) -> bytes:
    if not isinstance(value, Mapping):
        raise _no_default(value, schema)
    parts = []
    for field in schema.fields:
        one = value.get(field.name, field.default)
        if one is NO_DEFAULT:
            raise ValueError(f"a default of {described(schema)} lacks {field.name}")
        parts.append(encoded(one, field.type))
    return b"".join(parts)


def _leaf(value: Any, schema: Primitive | Fixed | Enum) -> bytes:
    if isinstance(schema, Enum):
        if value not in schema.symbols:
            raise _no_default(value, schema)
        return _varint(schema.symbols.index(value))
    kind = schema.kind
    if kind in ("bytes", "fixed") and isinstance(value, str):
        return _bytes(value, schema)
    if kind == "string" and isinstance(value, str):
        return _text(value)
    if kind == "null" and value is None:
        return b""
    if kind == "boolean" and isinstance(value, bool):
        return bytes([value])
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number(value, schema)
    raise _no_default(value, schema)


def _bytes(value: str, schema: Primitive | Fixed | Enum) -> bytes:
    try:
        data = value.encode("latin-1")
    except UnicodeEncodeError:
        raise _no_default(value, schema) from None
    if isinstance(schema, Fixed):
        if len(data) != schema.size:
            raise _no_default(value, schema)
        return data
    return _varint(len(data)) + data


def _number(value: float, schema: Primitive | Fixed | Enum) -> bytes:
    bits = {"int": 31, "long": 63}.get(schema.kind)
    if bits is not None and isinstance(value, int) and -(2**bits) <= value < 2**bits:
        return _varint(value)
    with suppress(OverflowError):
        if schema.kind == "float":
            return struct.pack("<f", value)
        if schema.kind == "double":
            return struct.pack("<d", value)
    raise _no_default(value, schema)
