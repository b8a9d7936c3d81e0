"""The heads of record batches, and where decompressed ones end."""

from kshare.read.decode import status
from kshare.read.decode.kernels.native import (
    Int,
    Record,
    batch_at,
    helper,
    load_i16_be,
    load_i32_be,
    load_i64,
    load_i64_be,
    load_u8,
    load_u32_be,
    store_i64,
    varint,
)
from kshare.read.decode.layout import BATCH

__all__ = ["find_marks", "index"]

_INT64_MAX = 2**63 - 1
_MAGIC = 2
_MAGIC_AT = 16
_HEAD_BYTES = 61  # of a batch, to the first record
_UNCOUNTED_BYTES = 12  # offset and length, which the length does not count
_MARK_BYTES = 16
_BATCH_SIZE = BATCH.itemsize


@helper
def _head_fault(at: int, room: int, next_offset: int) -> Int:
    """The fault of a batch's head at an address; FULL: the batch is cut off.

    Args:
        at: The address.
        room: Number of bytes from there to the end of the response, more than ``_MAGIC_AT``.
        next_offset: The offset after the batch before.
    """
    magic = load_u8(at + _MAGIC_AT)
    if magic != _MAGIC:
        return status.OLD_FORMAT if magic < _MAGIC else status.UNKNOWN_FORMAT
    length = load_i32_be(at + 8)
    if length < _HEAD_BYTES - _UNCOUNTED_BYTES:
        return status.BATCH_LENGTH
    if length > room - _UNCOUNTED_BYTES:
        return status.FULL
    base = load_i64_be(at)
    delta = load_i32_be(at + 23)
    if base < next_offset or delta < 0 or base > _INT64_MAX - 1 - delta:
        return status.BATCH_OFFSETS
    if load_i32_be(at + 57) < 0:
        return status.BATCH_COUNT
    return status.DONE


def index(source: int, size: int, batches: int, rows: int, found: Record) -> Int:
    """Read the heads of batches; see :func:`kshare.read.decode.compiled.index`.

    Args:
        source: Address of the response's records.
        size: Their size.
        batches: Address of the table of batches to write.
        rows: Number of batches that fit; more are counted, but not written.
        found: BatchCount to write.

    Returns:
        DONE or a fault.
    """
    count = 0
    position = 0
    next_offset = 0
    fault = status.DONE
    while size - position > _MAGIC_AT:
        at = source + position
        fault = _head_fault(at, size - position, next_offset)
        if fault != status.DONE:
            break
        length = _UNCOUNTED_BYTES + load_i32_be(at + 8)
        if count < rows:
            batch = batch_at(batches + _BATCH_SIZE * count)
            batch.start = position + _HEAD_BYTES
            batch.end = position + length
            batch.base_offset = load_i64_be(at)
            batch.checksum = load_u32_be(at + 17)
            batch.attributes = load_i16_be(at + 21)
            batch.last_delta = load_i32_be(at + 23)
            batch.first_timestamp = load_i64_be(at + 27)
            batch.max_timestamp = load_i64_be(at + 35)
            batch.producer_id = load_i64_be(at + 43)
            batch.records = load_i32_be(at + 57)
        next_offset = load_i64_be(at) + load_i32_be(at + 23) + 1
        count += 1
        position += length
    if fault > status.DONE:
        found.batches = 0
        found.end = 0
        found.next_offset = load_i64_be(source + position)
        return fault
    found.batches = count
    found.end = position
    found.next_offset = next_offset
    return status.DONE


def find_marks(
    source: int, size: int, start: int, batches: int, counts: int, low: int, high: int
) -> Int:
    """Find where batches end; see :func:`kshare.read.decode.compiled.find_marks`.

    Args:
        source: Address of the buffer that they are in.
        size: Its size.
        start: Position of the first one.
        batches: Number of batches.
        counts: Address of the number of records of each, int64; replaced by where they end.
        low: The first 8 bytes of the mark.
        high: The others.
    """
    end = source + size
    at = source + start
    for batch in range(batches):
        for _ in range(load_i64(counts + 8 * batch)):
            length, at = varint(at, end)
            if at == 0 or length < 0 or length > end - at:
                return -1
            at += length
        if end - at < _MARK_BYTES or load_i64(at) != low or load_i64(at + 8) != high:
            return -1
        store_i64(counts + 8 * batch, at - source)
        at += _MARK_BYTES
    return at - source
