"""Rows as Protobuf messages, as Spark's ``to_protobuf`` writes them.

A field that is null is left out, and so is one of proto3 that has its default value. A field of the
rows that the message does not have is refused, as is a type that is not the message's.

Guarantee: a value that the schema does not allow is an error that names row and field.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
from pyarrow import compute, types

from kshare.formats.encode.parts import Cells, in_lists, joined, prefixed, sized, struct_of, varints
from kshare.formats.protobuf.schema import WIRE_TYPES, Field, Message, arrow_type
from kshare.formats.protobuf.varints import varint

__all__ = ["ProtobufEncoder"]

_Encode = Callable[[Cells], pa.Array]
_EMPTY: Final = pa.scalar(b"", pa.binary())
_BYTES: Final = 2
_NUMBERS: Final = {
    "int32": (pa.int32(), False),
    "uint32": (pa.int32(), False),
    "int64": (pa.int64(), False),
    "uint64": (pa.int64(), False),
    "sint32": (pa.int32(), True),
    "sint64": (pa.int64(), True),
}
_FIXED: Final = ("double", "fixed32", "fixed64", "float", "sfixed32", "sfixed64")


class ProtobufEncoder:
    """Makes messages of structs.

    Args:
        kind: The type of the rows.
        message: The schema.

    Raises:
        ValueError: The schema is none of the rows; the text says why.
    """

    def __init__(self, kind: pa.DataType, message: Message) -> None:
        self._encode = _of_message(kind, message, "")

    def encode(self, column: pa.Array) -> pa.Array:
        """Return a column of bytes; null stays null.

        Raises:
            EncodeError: A value is none of the schema.
        """
        return Cells.of(column).encode(self._encode)


def _of_message(kind: pa.DataType, message: Message, path: str) -> _Encode:
    if not types.is_struct(kind):
        raise ValueError(f"has message {message.name} where {path or 'the value'} is {kind}")
    prefix = f"{path}." if path else ""
    known = {field.name: field for field in message.fields}
    extra = [name for name in kind.names if name not in known]
    if extra:
        raise ValueError(f"has no field {prefix}{extra[0]}, which the rows have")
    for field in message.fields:
        if field.required and field.name not in kind.names:
            raise ValueError(f"requires field {prefix}{field.name}, which the rows do not have")
    order = sorted(range(len(kind)), key=lambda place: known[kind[place].name].number)
    steps = [
        (place, _of_field(kind[place].type, known[kind[place].name], f"{prefix}{kind[place].name}"))
        for place in order
    ]

    def encode(cells: Cells) -> pa.Array:
        fields = cells.fields()
        return struct_of([one(fields[place]) for place, one in steps], len(cells))

    return encode


def _of_field(kind: pa.DataType, field: Field, path: str) -> _Encode:
    """The encoder of a field's values, with nulls: tag and value, or none."""
    if field.is_map:
        return _of_map(kind, field, path)
    if field.repeated:
        return _of_list(kind, field, path)
    inner = _of_value(kind, field, path)
    tag = varint(field.number << 3 | WIRE_TYPES[field.kind])
    default = _default_bytes(field)

    def encode(cells: Cells) -> pa.Array:
        if field.required:
            cells.refuse_nulls("is null, and required")
        return cells.encode(one, b"")

    def one(cells: Cells) -> pa.Array:
        value = inner(cells)
        written = joined(tag, value)
        if not field.implicit:
            return written
        return compute.if_else(
            compute.equal(value, pa.scalar(default, pa.binary())), _EMPTY, written
        )

    return encode


def _default_bytes(field: Field) -> bytes:
    """The bytes of the value that a field has where nothing is written."""
    return {1: bytes(8), 5: bytes(4)}.get(WIRE_TYPES[field.kind], b"\0")


def _of_list(kind: pa.DataType, field: Field, path: str) -> _Encode:
    if not types.is_list(kind):
        raise _refuse(kind, field, path)
    inner = _of_value(kind.value_type, field, path)
    wire_type = WIRE_TYPES[field.kind]
    tag = varint(field.number << 3 | (wire_type if wire_type == _BYTES else _BYTES))

    def one(cells: Cells) -> pa.Array:
        offsets, items = cells.items()
        items.refuse_nulls("has a null in its list, which Protobuf does not have")
        values = inner(items)
        if wire_type == _BYTES:
            return in_lists(offsets, joined(tag, values))
        packed = joined(tag, prefixed(in_lists(offsets, values)))
        return compute.if_else(pa.array(np.diff(offsets) > 0), packed, _EMPTY)

    return lambda cells: cells.encode(one, b"")


def _of_map(kind: pa.DataType, field: Field, path: str) -> _Encode:
    if not types.is_map(kind):
        raise _refuse(kind, field, path)
    assert field.message is not None
    key, value = field.message.fields
    of_key, of_value = _of_value(kind.key_type, key, path), _of_value(kind.item_type, value, path)
    tag = varint(field.number << 3 | _BYTES)
    of_keys = varint(1 << 3 | WIRE_TYPES[key.kind])
    of_values = varint(2 << 3 | WIRE_TYPES[value.kind])

    def one(cells: Cells) -> pa.Array:
        offsets, keys, values = cells.entries()
        # As in Spark, a null is the value that a field of its kind has where nothing is said.
        items = values.encode(lambda there: joined(of_values, of_value(there)), b"")
        entries = joined(of_keys, of_key(keys), items)
        return in_lists(offsets, joined(tag, prefixed(entries)))

    return lambda cells: cells.encode(one, b"")


def _refuse(kind: pa.DataType, field: Field, path: str) -> ValueError:
    what = field.message.name if field.message is not None else field.kind
    many = "repeated " if field.repeated else ""
    return ValueError(f"has {many}{what} where field {path} is of type {kind}")


def _of_value(kind: pa.DataType, field: Field, path: str) -> _Encode:
    """The encoder of values that are there, without the tag."""
    if field.message is not None:
        inner = _of_message(kind, field.message, path)
        return lambda cells: prefixed(inner(cells)) if len(cells) else pa.nulls(0, pa.binary())
    if field.kind in {"timestamp", "duration"}:
        return _of_moment(kind, field, path)
    return _of_enum(kind, field, path) if field.enum is not None else _of_leaf(kind, field, path)


def _of_leaf(kind: pa.DataType, field: Field, path: str) -> _Encode:
    wanted = arrow_type(Message("", (Field("x", 1, field.kind),)))[0].type
    narrower = wanted == pa.int32() and (types.is_int8(kind) or types.is_int16(kind))
    if kind != wanted and not narrower:
        raise _refuse(kind, field, path)
    if field.kind in {"string", "bytes"}:
        return lambda cells: prefixed(cells.values.cast(pa.binary()))
    if field.kind == "bool":
        return lambda cells: sized(cells.values.cast(pa.uint8()).to_numpy(zero_copy_only=False))
    if field.kind in _FIXED:
        return lambda cells: sized(cells.values.cast(wanted).to_numpy(zero_copy_only=False))
    return _of_number(field)


def _of_number(field: Field) -> _Encode:
    narrow, zigzag = _NUMBERS[field.kind]
    bits = 31 if narrow == pa.int32() else 63
    unsigned = field.kind == "uint32"

    def encode(cells: Cells) -> pa.Array:
        numbers = cells.values.cast(narrow).to_numpy(zero_copy_only=False).astype(np.int64)
        if zigzag:
            numbers = (numbers << 1) ^ (numbers >> bits)
        elif unsigned:
            numbers = numbers & 0xFFFFFFFF
        return varints(numbers)

    return encode


def _of_enum(kind: pa.DataType, field: Field, path: str) -> _Encode:
    enum = field.enum
    assert enum is not None
    if not types.is_string(kind):
        raise _refuse(kind, field, path)
    names = pa.array([name for _, name in enum.values])
    numbers = np.array([number for number, _ in enum.values], np.int64)

    def encode(cells: Cells) -> pa.Array:
        places = compute.index_in(cells.values, names)
        unknown = places.is_null().to_numpy(zero_copy_only=False)
        cells.fail(unknown, lambda value: f"is {value!r}, which enum {enum.name} lacks")
        return varints(numbers[places.to_numpy(zero_copy_only=False)])

    return encode


def _of_moment(kind: pa.DataType, field: Field, path: str) -> _Encode:
    is_time = field.kind == "timestamp"
    if not (types.is_timestamp(kind) if is_time else types.is_duration(kind)):
        raise _refuse(kind, field, path)
    unit = pa.timestamp("us", kind.tz) if is_time else pa.duration("us")

    def encode(cells: Cells) -> pa.Array:
        micros = cells.values.cast(unit).cast(pa.int64()).to_numpy(zero_copy_only=False)
        # A timestamp's fraction counts onwards; a duration's has its sign.
        sign = 1 if is_time else np.sign(micros)
        seconds = sign * (sign * micros // 1_000_000)
        nanos = (micros - seconds * 1_000_000) * 1000
        pieces = [
            compute.if_else(pa.array(numbers != 0), joined(tag, varints(numbers)), _EMPTY)
            for tag, numbers in ((b"\x08", seconds), (b"\x10", nanos))
        ]
        return prefixed(joined(*pieces))

    return encode
