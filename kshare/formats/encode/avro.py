"""Rows as Avro, as Spark's ``to_avro`` writes them.

A field of the schema that the rows do not have is null, if the schema allows it; a field of the
rows that the schema does not have is refused, as is a type that is not the schema's.

Guarantees: a null, a number or a text that the schema does not allow is an error that names row and
field. Of unions there may be those of null and one type.
"""

import json
import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import compute, types

from kshare.formats.avro import schema as avro
from kshare.formats.encode.parts import (
    Cells,
    bytes_of,
    in_lists,
    joined,
    prefixed,
    sized,
    struct_of,
    varints,
)

__all__ = ["AvroEncoder", "avro_schema"]

_Encode = Callable[[Cells], pa.Array]

_MILLIS: Final = ("timestamp-millis", "local-timestamp-millis")
_TIMES: Final = {
    "timestamp-millis": True,
    "timestamp-micros": True,
    "local-timestamp-millis": False,
    "local-timestamp-micros": False,
}
"""The times that Spark knows, and whether they have a zone."""
_NAME: Final = re.compile(r"[^\W\d]\w*")
"""Avro's names, as Java checks them: a dot would begin another namespace."""


class AvroEncoder:
    """Makes Avro of structs.

    Args:
        kind: The type of the rows.
        text: The schema, in JSON.

    Raises:
        ValueError: The schema is none, or is none of the rows; the text says why.
    """

    def __init__(self, kind: pa.DataType, text: str) -> None:
        self._encode = _encoder(kind, avro.parse(text), "", nullable=True)

    def encode(self, column: pa.Array) -> pa.Array:
        """Return a column of bytes; null stays null.

        Raises:
            EncodeError: A value is none of the schema.
        """
        return Cells.of(column).encode(self._encode)


def avro_schema(kind: pa.DataType, *, evolves: bool = False) -> str:
    """Return the schema that ``to_avro`` gives rows, in JSON.

    Args:
        kind: The type of the rows.
        evolves: Whether fields have the default null, which ``to_avro`` gives none: then rows of
            before can be read by a schema with more fields.

    Raises:
        ValueError: A field's type or name is none of Avro.
    """
    return json.dumps(_schema(kind, "topLevelRecord", "", evolves))


def _schema(kind: pa.DataType, name: str, namespace: str, evolves: bool) -> Any:
    if types.is_struct(kind):
        inner = f"{namespace}.{name}" if namespace else name
        fields = [
            _field(each.name, _schema(each.type, each.name, inner, evolves), evolves)
            for each in kind
        ]
        named = {"type": "record", "name": name, "fields": fields}
        return {**named, "namespace": namespace} if namespace else named
    if types.is_list(kind):
        return {
            "type": "array",
            "items": [_schema(kind.value_type, name, namespace, evolves), "null"],
        }
    if types.is_map(kind):
        return {
            "type": "map",
            "values": [_schema(kind.item_type, name, namespace, evolves), "null"],
        }
    if types.is_decimal(kind):
        # What Spark names a fixed, and the bytes that its digits take.
        inner = f"{namespace}.{name}" if namespace else name
        size = (10**kind.precision - 1).bit_length() // 8 + 1
        number = {"precision": kind.precision, "scale": kind.scale, "logicalType": "decimal"}
        return {"type": "fixed", "name": "fixed", "namespace": inner, "size": size, **number}
    return _leaf_schema(kind, name)


def _field(name: str, kind: Any, evolves: bool) -> dict[str, Any]:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"has field {name!r}, which is no name in Avro: letters, digits and _ are, and no "
            "digit comes first"
        )
    if evolves:  # a default is of a union's first type
        return {"name": name, "type": ["null", kind], "default": None}
    return {"name": name, "type": [kind, "null"]}


def _leaf_schema(kind: pa.DataType, name: str) -> Any:
    if types.is_timestamp(kind):
        local = "" if kind.tz else "local-"
        return {"type": "long", "logicalType": f"{local}timestamp-micros"}
    if types.is_date32(kind):
        return {"type": "int", "logicalType": "date"}
    for is_kind, plain in _PLAIN:
        if is_kind(kind):
            return plain
    raise ValueError(f"has field {name} of type {kind}, which Avro does not have")


_PLAIN: Final[tuple[tuple[Callable[[pa.DataType], bool], str], ...]] = (
    (types.is_boolean, "boolean"),
    (types.is_int8, "int"),
    (types.is_int16, "int"),
    (types.is_int32, "int"),
    (types.is_int64, "long"),
    (types.is_float32, "float"),
    (types.is_float64, "double"),
    (types.is_string, "string"),
    (types.is_binary, "bytes"),
)


def _encoder(kind: pa.DataType, schema: avro.Schema, path: str, *, nullable: bool) -> _Encode:
    """The encoder of values that are there; with nulls, if it is of a union.

    Args:
        kind: The type of the values.
        schema: Their schema.
        path: Their field.
        nullable: Whether the caller deals with nulls.
    """
    if isinstance(schema, avro.Union):
        return _of_union(kind, schema, path)
    if isinstance(schema, avro.Record):
        made = _of_record(kind, schema, path)
    elif isinstance(schema, avro.Array):
        made = _of_array(kind, schema, path)
    elif isinstance(schema, avro.Map):
        made = _of_map(kind, schema, path)
    elif isinstance(schema, avro.Enum):
        made = _of_enum(kind, schema, path)
    else:
        made = _of_leaf(kind, schema, path)
    if nullable:
        return made

    def without_nulls(cells: Cells) -> pa.Array:
        cells.refuse_nulls(f"is null, and its schema is {avro.described(schema)}")
        return made(cells)

    return without_nulls


def _refuse(kind: pa.DataType, schema: avro.Schema, path: str) -> ValueError:
    what = f"field {path}" if path else "rows"
    return ValueError(f"has {avro.described(schema)} where {what} of type {kind} is to be written")


def _of_union(kind: pa.DataType, union: avro.Union, path: str) -> _Encode:
    values = [one for one in union.branches if one.kind != "null"]
    if len(values) != 1 or len(union.branches) > 2:
        raise ValueError(f"has a union of several types for field {path}, which is not built")
    inner = _encoder(kind, values[0], path, nullable=True)
    of_value = bytes([2 * union.branches.index(values[0])])
    if len(union.branches) == 1:
        return _with_nulls_refused(inner, of_value)
    of_null = bytes([2 - 2 * union.branches.index(values[0])])
    return lambda cells: cells.encode(lambda one: joined(of_value, inner(one)), of_null)


def _with_nulls_refused(inner: _Encode, head: bytes) -> _Encode:
    def encode(cells: Cells) -> pa.Array:
        cells.refuse_nulls("is null, and its schema is a union without null")
        return joined(head, inner(cells))

    return encode


def _of_record(kind: pa.DataType, record: avro.Record, path: str) -> _Encode:
    if not types.is_struct(kind):
        raise _refuse(kind, record, path)
    prefix = f"{path}." if path else ""
    extra = [name for name in kind.names if name not in {one.name for one in record.fields}]
    if extra:
        raise ValueError(f"has no field {prefix}{extra[0]}, which the rows have")
    steps: list[tuple[int, _Encode] | bytes] = []
    for field in record.fields:
        place = kind.get_field_index(field.name)
        if place >= 0:
            below = f"{prefix}{field.name}"
            steps.append((place, _encoder(kind[place].type, field.type, below, nullable=False)))
            continue
        branches = field.type.branches if isinstance(field.type, avro.Union) else ()
        nulls = [number for number, one in enumerate(branches) if one.kind == "null"]
        if not nulls:
            raise ValueError(f"has field {prefix}{field.name}, which the rows do not have")
        steps.append(bytes([2 * nulls[0]]))

    def encode(cells: Cells) -> pa.Array:
        fields = cells.fields()
        pieces = [one if isinstance(one, bytes) else one[1](fields[one[0]]) for one in steps]
        return struct_of(pieces, len(cells))

    return encode


def _of_array(kind: pa.DataType, array: avro.Array, path: str) -> _Encode:
    if not types.is_list(kind):
        raise _refuse(kind, array, path)
    inner = _encoder(kind.value_type, array.items, path, nullable=False)

    def encode(cells: Cells) -> pa.Array:
        offsets, items = cells.items()
        return _block(offsets, inner(items))

    return encode


def _of_map(kind: pa.DataType, entries: avro.Map, path: str) -> _Encode:
    if not types.is_map(kind) or not types.is_string(kind.key_type):
        raise _refuse(kind, entries, path)
    inner = _encoder(kind.item_type, entries.values, path, nullable=False)

    def encode(cells: Cells) -> pa.Array:
        offsets, keys, values = cells.entries()
        names = prefixed(keys.values.cast(pa.binary()), zigzag=True)
        return _block(offsets, joined(names, inner(values)))

    return encode


def _block(offsets: Any, items: pa.Array) -> pa.Array:
    """One block of items, and the end; no items are the end alone."""
    counts = np.diff(offsets)
    heads = compute.if_else(pa.array(counts > 0), varints(2 * counts), pa.scalar(b"", pa.binary()))
    return joined(heads, in_lists(offsets, items), b"\0")


def _of_enum(kind: pa.DataType, enum: avro.Enum, path: str) -> _Encode:
    if not types.is_string(kind):
        raise _refuse(kind, enum, path)
    symbols = pa.array(enum.symbols, pa.string())

    def encode(cells: Cells) -> pa.Array:
        numbers = compute.index_in(cells.values, symbols)
        unknown = numbers.is_null().to_numpy(zero_copy_only=False)
        cells.fail(unknown, lambda value: f"is {value!r}, which {avro.described(enum)} lacks")
        return varints(2 * numbers.to_numpy().astype(np.int64))

    return encode


def _zigzag(values: pa.Array) -> pa.Array:
    numbers = values.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return varints((numbers << 1) ^ (numbers >> 63))


def _of_leaf(kind: pa.DataType, schema: avro.Primitive | avro.Fixed, path: str) -> _Encode:
    logical = schema.logical
    if logical is not None and logical.name == "decimal":
        return _of_decimal(kind, schema, logical, path)
    if logical is not None and logical.name in _TIMES:
        return _of_time(kind, schema, logical.name, path)
    if isinstance(schema, avro.Fixed):
        if not types.is_binary(kind):
            raise _refuse(kind, schema, path)
        return _of_fixed(schema)
    if logical is not None and logical.name == "date":
        if not types.is_date32(kind):
            raise _refuse(kind, schema, path)
        return lambda cells: _zigzag(cells.values.cast(pa.int32()))
    found = next((plain for is_kind, plain in _PLAIN if is_kind(kind)), None)
    wide = {"long": "int", "double": "float"}.get(schema.kind)
    if found is None or found not in {schema.kind, wide}:
        raise _refuse(kind, schema, path)
    return _LEAVES[schema.kind]


_LEAVES: Final[dict[str, _Encode]] = {
    "boolean": lambda cells: sized(cells.values.cast(pa.uint8()).to_numpy(zero_copy_only=False)),
    "int": lambda cells: _zigzag(cells.values),
    "long": lambda cells: _zigzag(cells.values),
    "float": lambda cells: sized(cells.values.to_numpy(zero_copy_only=False)),
    "double": lambda cells: sized(cells.values.cast(pa.float64()).to_numpy(zero_copy_only=False)),
    "string": lambda cells: prefixed(cells.values.cast(pa.binary()), zigzag=True),
    "bytes": lambda cells: prefixed(cells.values, zigzag=True),
}


def _of_fixed(schema: avro.Fixed) -> _Encode:
    def encode(cells: Cells) -> pa.Array:
        sizes = compute.binary_length(cells.values).to_numpy(zero_copy_only=False)
        wanted = f"where {avro.described(schema)} has {schema.size}"
        cells.fail(sizes != schema.size, lambda value: f"has {len(value)} bytes, {wanted}")
        return cells.values

    return encode


def _of_time(kind: pa.DataType, schema: avro.Schema, name: str, path: str) -> _Encode:
    if not types.is_timestamp(kind) or (kind.tz is not None) != _TIMES[name]:
        raise _refuse(kind, schema, path)

    def encode(cells: Cells) -> pa.Array:
        micros = cells.values.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
        numbers = micros.to_numpy(zero_copy_only=False)
        return _zigzag(pa.array(numbers // 1000 if name in _MILLIS else numbers))

    return encode


def _of_decimal(
    kind: pa.DataType, schema: avro.Primitive | avro.Fixed, logical: avro.Logical, path: str
) -> _Encode:
    if not types.is_decimal(kind) or kind.scale != logical.scale:
        raise _refuse(kind, schema, path)
    if kind.precision > logical.precision:
        raise ValueError(
            f"has a decimal of {logical.precision} digits where field {path} has {kind.precision}"
        )

    def encode(cells: Cells) -> pa.Array:
        wide = cells.values.cast(pa.decimal128(38, kind.scale))
        words = np.frombuffer(wide.buffers()[1], np.uint8)
        table = words[16 * wide.offset :][: 16 * len(wide)].reshape(-1, 16)[:, ::-1]
        if isinstance(schema, avro.Fixed):
            return sized(_of_size(table, schema.size))
        return prefixed(_shortest(table), zigzag=True)

    return encode


def _of_size(table: Any, size: int) -> Any:
    """Numbers, of big-endian bytes, with fewer or more bytes of sign in front."""
    if size <= table.shape[1]:
        return table[:, table.shape[1] - size :]
    sign = np.where(table[:, :1] & 0x80, np.uint8(0xFF), np.uint8(0))
    return np.hstack([np.repeat(sign, size - table.shape[1], axis=1), table])


def _shortest(table: Any) -> pa.Array:
    """Numbers, of big-endian bytes, as short as they can be with their sign."""
    sign = np.where(table[:, 0] & 0x80, 0xFF, 0)[:, None]
    # A byte is left out if it is but the sign, and so is the first bit behind it.
    same = (table[:, :-1] == sign) & ((table[:, 1:] & 0x80) == (sign & 0x80))
    left_out = np.logical_and.accumulate(same, axis=1).sum(axis=1)
    kept = np.arange(table.shape[1]) >= left_out[:, None]
    return bytes_of(table[kept], table.shape[1] - left_out)
