"""The values of nested Arrow arrays as plain lists: what kernels have in hand, in no other form."""

from itertools import pairwise
from typing import Any

import pyarrow as pa


def found(kind: pa.DataType, array: pa.Array) -> list[Any]:
    """The values of an array: structs as dicts, maps as pairs, dates and decimals as numbers."""
    if pa.types.is_struct(kind):
        fields = [found(field.type, array.field(n)) for n, field in enumerate(kind)]
        rows = zip(*fields, strict=True) if fields else ((),) * len(array)
        made: list[Any] = [dict(zip(kind.names, row, strict=True)) for row in rows]
    elif pa.types.is_map(kind):
        pairs = list(
            zip(found(kind.key_type, array.keys), found(kind.item_type, array.items), strict=True)
        )
        made = _cut(pairs, array.offsets)
    elif pa.types.is_list(kind):
        made = _cut(found(kind.value_type, array.values), array.offsets)
    elif pa.types.is_decimal(kind):
        made = [_integer(array.buffers()[1], row) for row in range(len(array))]
    elif pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return found(pa.int64(), array.view(pa.int64() if kind.bit_width == 64 else pa.int32()))
    else:
        plain: list[Any] = array.to_pylist()
        return plain
    nulls = array.is_null().to_pylist()
    return [None if null else one for one, null in zip(made, nulls, strict=True)]


def _cut(items: list[Any], offsets: pa.Array) -> list[Any]:
    ends = offsets.to_pylist()
    return [items[begin:end] for begin, end in pairwise(ends)]


def _integer(buffer: pa.Buffer, row: int) -> int:
    return int.from_bytes(buffer.to_pybytes()[16 * row : 16 * row + 16], "little", signed=True)
