"""The Arrow types in which Spark hands its rows over. Spark's own functions differ by version."""

from collections.abc import Container
from typing import Final

import pyarrow as pa
from pyspark.sql import types

from kshare.formats.variant_type import VARIANT

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


def arrow_schema(
    schema: types.StructType, names: tuple[str, ...], json: Container[str] = ()
) -> pa.Schema:
    """Return the Arrow schema of some columns, if they are there.

    Args:
        schema: Spark's.
        names: The columns.
        json: Those that become JSON, which may have variants.

    Raises:
        ValueError: A column has a type that no format has.
    """
    return pa.schema(
        [
            (one.name, _type(one.dataType, one.name, one.name in json))
            for one in schema.fields
            if one.name in names
        ]
    )


def _type(kind: types.DataType, path: str, is_json: bool) -> pa.DataType:
    if isinstance(kind, types.StructType):
        return pa.struct(
            [(one.name, _type(one.dataType, f"{path}.{one.name}", is_json)) for one in kind.fields]
        )
    if isinstance(kind, types.ArrayType):
        return pa.list_(pa.field("element", _type(kind.elementType, path, is_json)))
    if isinstance(kind, types.MapType):
        return pa.map_(_type(kind.keyType, path, is_json), _type(kind.valueType, path, is_json))
    if isinstance(kind, types.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    is_variant = isinstance(kind, types.VariantType)
    if is_variant and is_json:
        return VARIANT
    for of_spark, of_arrow in _LEAVES:
        if isinstance(kind, of_spark):
            return of_arrow
    which = f"only JSON has; write to_json({path}) in its place" if is_variant else "no format has"
    raise ValueError(f"column {path}: has type {kind.simpleString()}, which {which}")
