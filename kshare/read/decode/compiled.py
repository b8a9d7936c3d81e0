"""The compiled code: its functions, as Python calls them. This is the only door to it.

Guarantees: whatever the bytes are, a kernel reads only what lies in the buffer it was given, writes
only where there is room, ends, and says what it found: every length of the wire is checked before
it is used. An argument of another type is an error, never a conversion.

Numba makes the machine code when a wheel is built; :mod:`kshare.read.decode.kernel_library` finds
it. Cost: 0.5 ms to load; some microseconds a call. Other threads run meanwhile.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kshare.read.decode import kernel_library
from kshare.read.decode.layout import (
    BATCH,
    SIGNATURES,
    AvroState,
    BatchCount,
    BinaryColumn,
    HeaderSizes,
    JsonState,
    MessageDecoding,
    ScanState,
    VariantState,
)

__all__ = [
    "address",
    "begin_scan",
    "copy_headers",
    "decode_avro",
    "decode_json",
    "decode_messages",
    "decode_variant",
    "find_marks",
    "index",
    "measure_headers",
    "move_scan",
    "scan",
]

Bytes: TypeAlias = npt.NDArray[np.uint8]
Ints: TypeAlias = npt.NDArray[np.int64]
Batches: TypeAlias = npt.NDArray[np.void]
"""An array of BATCH, which :mod:`kshare.read.decode.layout` describes."""


def index(source: Bytes, batches: Batches, found: BatchCount) -> int:
    """Read the heads of the complete batches of a response.

    Args:
        source: The response's records.
        batches: Table to write; more batches than fit are counted, but not written.
        found: Gets the number of batches, and where they end.

    Returns:
        DONE or a fault.
    """
    return _kernel("index")(
        address(source, np.uint8), len(source), address(batches, BATCH), len(batches), found
    )


def begin_scan(state: ScanState, source: Bytes, batches: Batches) -> None:
    """Set a scan to the first record of some batches; all else in its state stays.

    Args:
        state: The state. It keeps addresses: the arrays must live as long as the scan goes on.
        source: The buffer that the records are in, decompressed.
        batches: Where they are in it, and how many.
    """
    state.source, state.size = address(source, np.uint8), len(source)
    state.batches, state.batch_count = address(batches, BATCH), len(batches)
    state.batch = state.record = 0


def move_scan(state: ScanState, source: Bytes) -> None:
    """Let a scan go on in another buffer; its position there is the caller's to set."""
    state.source, state.size = address(source, np.uint8), len(source)


def scan(state: ScanState) -> int:
    """Go on through the records of some batches; append (or count) those that are wanted.

    Returns:
        DONE; FULL, if there are as many rows as there may be, or the record where it stands finds
        no room; or a fault of the batch where it stands. After RECORD_LENGTH, a scan can go on
        with more of that batch.
    """
    return _kernel("scan")(state)


def decode_avro(state: AvroState) -> int:
    """Go on decoding Avro records, each by its writer's steps, from the row where it stands.

    Returns:
        DONE; FULL: a node of the output has no room for that row.
    """
    return _kernel("decode_avro")(state)


def decode_json(state: JsonState) -> int:
    """Go on decoding records of JSON, from the row where it stands.

    Returns:
        DONE; FULL: a node of the output has no room for that row.
    """
    return _kernel("decode_json")(state)


def decode_variant(state: VariantState) -> int:
    """Go on making variants of records of JSON, from the row where it stands.

    Returns:
        DONE; FULL: what ``state.lacking`` says has no room for that row.
    """
    return _kernel("decode_variant")(state)


def find_marks(source: Bytes, start: int, counts: Ints, mark: tuple[int, int]) -> int:
    """Find where batches end that lie one after the other, a mark behind each.

    Args:
        source: The buffer that they are in.
        start: Where the first one begins.
        counts: The number of records of each; replaced by where they end, and its mark begins.
        mark: 16 bytes, as two integers.

    Returns:
        Where the last mark ends; -1: one of them is not where the records before it end.
    """
    buffer, numbers = address(source, np.uint8), address(counts, np.int64)
    return _kernel("find_marks")(buffer, len(source), start, len(counts), numbers, *mark)


def measure_headers(raw: BinaryColumn, rows: int) -> HeaderSizes:
    """The room for headers that a scan has checked and collected."""
    sizes = HeaderSizes()
    _kernel("measure_headers")(raw.offsets, raw.data, rows, sizes)
    return sizes


def copy_headers(
    raw: BinaryColumn, rows: int, lists: int, keys: BinaryColumn, values: BinaryColumn
) -> None:
    """Make columns of the headers that :func:`measure_headers` has measured.

    Args:
        raw: The column of headers, as a scan has collected it.
        rows: Number of rows.
        lists: Address of the 32-bit offsets to write: which headers are whose.
        keys: Has room for all keys.
        values: Has room for all values.
    """
    _kernel("copy_headers")(raw.offsets, raw.data, rows, lists, keys, values)


def decode_messages(state: MessageDecoding) -> int:
    """Go on decoding messages of Protobuf, and append a row for each.

    Returns:
        DONE; FULL, if the row where it stands finds no room in the output.
    """
    return _kernel("decode_messages")(state)


def address(array: npt.NDArray[Any], dtype: npt.DTypeLike) -> int:
    """The address of an array's numbers.

    Raises:
        TypeError: They are of another type.
        BufferError: There are gaps between them.
    """
    if array.dtype != dtype:
        raise TypeError(f"wanted an array of {dtype}; got one of {array.dtype}")
    address: int = pa.py_buffer(array).address  # five times as fast as ``array.ctypes.data``
    return address


@cache
def _library() -> ctypes.CDLL:
    return kernel_library.load()


@cache
def _kernel(name: str) -> Callable[..., int]:
    kinds: list[Any] = [
        ctypes.c_int64 if kind is int else ctypes.POINTER(kind) for kind in SIGNATURES[name]
    ]
    prototype = ctypes.CFUNCTYPE(ctypes.c_int64, *kinds)
    return prototype((name, _library()))
