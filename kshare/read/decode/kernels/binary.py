"""Columns that kernels append to, and the headers of a record."""

from kshare.read.decode import status
from kshare.read.decode.kernels.native import (
    Int,
    Record,
    copy,
    copy_short,
    helper,
    load_i32,
    load_u8,
    store_i32,
    store_u8,
    varint,
)
from kshare.read.decode.layout import COPY_SLACK

__all__ = ["append", "copy_headers", "headers_fault", "measure_headers"]

_SHORT = 256  # bytes that are copied in blocks


@helper
def append(column: Record, row: int, at: int, size: int, end: int) -> None:
    """Append a value to a binary column that has room for it.

    Args:
        column: The column.
        row: Number of the row.
        at: Address of the value.
        size: Its size; -1 is null.
        end: End of the buffer that it is in.
    """
    used = column.used
    if size > 0:
        target = column.data + used
        if size <= _SHORT and end - at >= size + COPY_SLACK:
            copy_short(target, at, size)
        else:
            copy(target, at, size)
        used += size
        column.used = used
    elif size < 0:
        validity = column.validity + (row >> 3)
        store_u8(validity, load_u8(validity) & ~(1 << (row & 7)))
        column.nulls += 1
    store_i32(column.offsets + 4 * row + 4, used)


@helper
def _header(at: int, end: int) -> tuple[int, int, int, int]:
    """One header.

    Returns:
        The sizes of key and value (-1: null) and their addresses; both sizes -2: a fault.
    """
    key_size, key = varint(at, end)
    if key == 0 or key_size < 0 or key_size > end - key:
        return -2, -2, 0, 0
    value_size, value = varint(key + key_size, end)
    if value == 0 or value_size < -1 or value_size > end - value:
        return -2, -2, 0, 0
    return key_size, value_size, key, value


@helper
def headers_fault(at: int, end: int) -> Int:
    """Check the headers that fill the rest of a record."""
    count, at = varint(at, end)
    if at == 0 or count < 0:
        return status.HEADER
    while count > 0:
        key_size, value_size, _, value = _header(at, end)
        if key_size < 0:
            return status.HEADER
        at = value + max(value_size, 0)
        count -= 1
    return status.DONE if at == end else status.RECORD_REST


def measure_headers(offsets: int, data: int, rows: int, sizes: Record) -> Int:
    """Tell how much room headers need that a scan has checked and collected.

    Args:
        offsets: Address of the int32 offsets of their raw bytes.
        data: Address of these.
        rows: Number of rows.
        sizes: HeaderSizes to add to.

    Returns:
        DONE.
    """
    for row in range(rows):
        at = data + load_i32(offsets + 4 * row)
        end = data + load_i32(offsets + 4 * row + 4)
        if at == end:
            continue
        count, at = varint(at, end)
        sizes.headers += count
        for _ in range(count):
            key_size, value_size, _, value = _header(at, end)
            value_size = max(value_size, 0)
            at = value + value_size
            sizes.key_bytes += key_size
            sizes.value_bytes += value_size
    return status.DONE


def copy_headers(
    offsets: int, data: int, rows: int, lists: int, keys: Record, values: Record
) -> Int:
    """Make columns of the headers that :func:`measure_headers` has measured.

    Args:
        offsets: As there.
        data: As there.
        rows: As there.
        lists: Address of the int32 offsets to write: which headers are whose.
        keys: BinaryColumn with room for all keys.
        values: BinaryColumn with room for all values.

    Returns:
        The number of headers.
    """
    header = 0
    store_i32(lists, 0)
    for row in range(rows):
        at = data + load_i32(offsets + 4 * row)
        end = data + load_i32(offsets + 4 * row + 4)
        if at < end:
            count, at = varint(at, end)
            for _ in range(count):
                key_size, value_size, key, value = _header(at, end)
                append(keys, header, key, key_size, end)
                append(values, header, value, value_size, end)
                header += 1
                at = value + max(value_size, 0)
        store_i32(lists + 4 * row + 4, header)
    return header
