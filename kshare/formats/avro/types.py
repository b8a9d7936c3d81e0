"""The Arrow types of Avro schemas: those that Spark's ``from_avro`` gives its columns.

| Avro | Arrow (Spark) |
|---|---|
| int; date | int32; date32 (date) |
| long; timestamp-millis, -micros; local-timestamp-millis, -micros | int64; timestamp (us, UTC); timestamp (us) (timestamp_ntz) |
| bytes, fixed; decimal of either | binary; decimal128 |
| enum, uuid of a string | string |
| union of null and a type | that type |
| union of int and long; of float and double | int64; double |
| union of other types | struct of member0, member1, ... |

Times, durations, nanoseconds and a uuid of a fixed are what they annotate, as in Spark.
"""  # noqa: E501 - a table

from typing import Final

import pyarrow as pa

from kshare.formats.avro.schema import (
    Array,
    Enum,
    Fixed,
    Map,
    Primitive,
    Record,
    Schema,
    Union,
    short_name,
)

__all__ = ["arrow_type", "is_split", "members", "refuse_recursion"]

_PLAIN: Final = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: Final = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}
_MOST_DIGITS: Final = 38
_RECURSIVE: Final = pa.dictionary(pa.int8(), pa.string())
"""Stands where a record has itself among its fields, until fields are selected."""


def members(union: Union) -> tuple[Schema, ...]:
    """Return the types of a union but null."""
    return tuple(one for one in union.branches if one.kind != "null")


def is_split(union: Union) -> bool:
    """Return whether a union is a struct with a field for each of its types."""
    kinds = [one.kind for one in members(union)]
    is_number = len(kinds) == 2 and set(kinds) in ({"int", "long"}, {"float", "double"})
    return len(kinds) > 1 and not is_number


def arrow_type(schema: Schema) -> pa.DataType:
    """Return the type of a schema's values; call :func:`refuse_recursion` when fields are selected.

    Raises:
        ValueError: There is none: a decimal has more than 38 digits.
    """
    return _type(schema, ())


def refuse_recursion(kind: pa.DataType, path: str = "") -> None:
    """See that no record has itself among the selected fields.

    Args:
        kind: The type.
        path: Where it is.

    Raises:
        ValueError: One has.
    """
    if kind == _RECURSIVE:
        raise ValueError(
            f"the Avro type of {path} is recursive: it has itself among its fields, which no "
            "column of Spark can; select fields without it"
        )
    if pa.types.is_struct(kind):
        for field in kind:
            refuse_recursion(field.type, f"{path}.{field.name}".removeprefix("."))
    elif pa.types.is_list(kind):
        refuse_recursion(kind.value_type, path)
    elif pa.types.is_map(kind):
        refuse_recursion(kind.item_type, path)


def _type(schema: Schema, around: tuple[str, ...]) -> pa.DataType:
    """The type of a schema in records of these names."""
    if isinstance(schema, Record):
        if schema.name in around:
            return _RECURSIVE
        inner = (*around, schema.name)
        return pa.struct([(field.name, _type(field.type, inner)) for field in schema.fields])
    if isinstance(schema, Array):
        return pa.list_(pa.field("element", _type(schema.items, around)))
    if isinstance(schema, Map):
        return pa.map_(pa.string(), _type(schema.values, around))
    if isinstance(schema, Union):
        return _union(schema, around)
    return pa.string() if isinstance(schema, Enum) else _leaf(schema)


def _leaf(schema: Primitive | Fixed) -> pa.DataType:
    plain = pa.binary() if isinstance(schema, Fixed) else _PLAIN[schema.kind]
    logical = schema.logical
    if logical is None:
        return plain
    if logical.name != "decimal":
        return _LOGICAL.get(logical.name, plain)
    if logical.precision > _MOST_DIGITS:
        name = f" of fixed {short_name(schema.name)}" if isinstance(schema, Fixed) else ""
        raise ValueError(
            f"a decimal{name} has {logical.precision} digits; Spark's have {_MOST_DIGITS} at most"
        )
    return pa.decimal128(logical.precision, logical.scale)


def _union(union: Union, around: tuple[str, ...]) -> pa.DataType:
    kinds = members(union)
    if is_split(union):
        return pa.struct([(f"member{n}", _type(one, around)) for n, one in enumerate(kinds)])
    if not kinds:
        return pa.null()
    if len(kinds) == 1:
        return _type(kinds[0], around)
    return pa.int64() if kinds[0].kind in ("int", "long") else pa.float64()
