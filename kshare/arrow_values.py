"""Arrow values from Python's, and numbers from Arrow's, without pandas.

``pa.array`` of a list, ``pa.scalar`` and ``to_numpy`` import pandas where it is installed: 0.4 s
and 40 MB in each task and consumer.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["int64_array", "int64_numbers", "scalar", "string_array"]


def int64_array(values: npt.ArrayLike) -> pa.Array:
    """Return an array of integers; none of them is null."""
    numbers = np.ascontiguousarray(values, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)], 0)


def int64_numbers(array: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return what ``to_numpy`` does: a view of an array of ``int64`` without nulls."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if array.type != pa.int64() or array.null_count or not len(array):
        other: npt.NDArray[np.int64] = array.to_numpy()
        return other
    return np.frombuffer(array.buffers()[1], np.int64, len(array), array.offset * 8)


def string_array(texts: Iterable[str]) -> pa.Array:
    """Return an array of strings; none of them is null."""
    encoded = [text.encode() for text in texts]
    offsets = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers, 0)


def scalar(value: str | int) -> pa.Scalar:
    """Return a string, or an integer of 32 bits."""
    if isinstance(value, str):
        return string_array([value])[0]
    number = pa.py_buffer(np.array([value], np.int32))
    return pa.Array.from_buffers(pa.int32(), 1, [None, number], 0)[0]
