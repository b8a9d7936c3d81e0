"""The Arrow types in which Spark hands its rows over. Spark's own functions differ by version."""

from typing import Final

import pyarrow as pa
from pyspark.sql import types

__all__ = ["arrow_schema"]

_LEAVES: Final = (
    (types.BooleanType, pa.bool_()),
    (types.ByteType, pa.int8()),
    (types.ShortType, pa.int16()),
    (types.IntegerType, pa.int32()),
    (types.LongType, pa.int64()),
    (types.FloatType, pa.float32()),
    (types.DoubleType, pa.float64()),
    (types.StringType, pa.string()),
    (types.BinaryType, pa.binary()),
    (types.DateType, pa.date32()),
    (types.TimestampType, pa.timestamp("us", "UTC")),
    (types.TimestampNTZType, pa.timestamp("us")),
    (types.DayTimeIntervalType, pa.duration("us")),
    (types.NullType, pa.null()),
)


def arrow_schema(schema: types.StructType, names: tuple[str, ...]) -> pa.Schema:
    """Return the Arrow schema of some columns, if they are there.

    Args:
        schema: Spark's.
        names: The columns.

    Raises:
        ValueError: A column has a type that no format has.
    """
    return pa.schema(
        [(one.name, _type(one.dataType, one.name)) for one in schema.fields if one.name in names]
    )


def _type(kind: types.DataType, path: str) -> pa.DataType:
    if isinstance(kind, types.StructType):
        return pa.struct(
            [(one.name, _type(one.dataType, f"{path}.{one.name}")) for one in kind.fields]
        )
    if isinstance(kind, types.ArrayType):
        return pa.list_(pa.field("element", _type(kind.elementType, path)))
    if isinstance(kind, types.MapType):
        return pa.map_(_type(kind.keyType, path), _type(kind.valueType, path))
    if isinstance(kind, types.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    for of_spark, of_arrow in _LEAVES:
        if isinstance(kind, of_spark):
            return of_arrow
    hint = f"; write to_json({path}) in its place" if isinstance(kind, types.VariantType) else ""
    raise ValueError(f"column {path}: has type {kind.simpleString()}, which no format has{hint}")
