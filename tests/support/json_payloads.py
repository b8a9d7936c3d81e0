"""Records as decoders take them, and rows as they can be compared."""

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from kshare.formats.payloads import Payloads

__all__ = ["numbers", "payloads"]


def payloads(records: list[bytes | None], gap: bytes = b"") -> Payloads:
    """Records that lie one after the other; None: there is nothing to decode."""
    data, starts, ends = bytearray(), [], []
    for record in records:
        data += gap
        starts.append(-1 if record is None else len(data))
        data += record or b""
        ends.append(len(data))
    return Payloads(
        np.frombuffer(bytes(data + gap), np.uint8),
        np.array(starts, np.int64),
        np.array(ends, np.int64),
        np.zeros(len(records), np.int32),
    )


def numbers(values: pa.Array) -> list[Any]:
    """Values as Python's, where times and floats are their bits, and texts bytes."""
    kind = values.type
    rows: list[Any]
    if pa.types.is_struct(kind):
        columns = [numbers(values.field(index)) for index in range(len(kind))]
        rows = list(zip(*columns, strict=True))
    elif pa.types.is_map(kind) or pa.types.is_list(kind):
        is_map = pa.types.is_map(kind)
        below = numbers(values.values)
        if is_map:
            below = list(zip(numbers(values.keys), numbers(values.items), strict=True))
        bounds = values.offsets.to_pylist()
        rows = [below[begin:end] for begin, end in pairwise(bounds)]
    elif pa.types.is_temporal(kind) or pa.types.is_floating(kind):
        rows = values.view({32: pa.int32(), 64: pa.int64()}[kind.bit_width]).to_pylist()
    elif pa.types.is_string(kind):
        rows = values.view(pa.binary()).to_pylist()  # Spark's may be no UTF-8
    else:
        rows = values.to_pylist()
    there = values.is_valid().to_pylist()
    return [row if is_there else None for row, is_there in zip(rows, there, strict=True)]
