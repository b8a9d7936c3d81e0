"""The scan: from the records of some batches to columns.

A record is read only as far as it takes to know that it is not wanted:

    length, attributes, timestamp, offset, size of the key
      | they do not fit into the batch -> a fault; with more of it, the same record again
      | offset below the band ------------------------------------------> next record
      | offset behind the last band ------------------------------------> DONE
    key (only if keys or hash ranges are asked for)
      | its last byte, its hash or its bytes are of no wanted key ------> next record
      | its hash is in no range of the band ----------------------------> next record
    value, headers
      | they do not fit into the record --------------------------------> a fault
      | no room in the columns -> FULL; the same record again with the next call
    appended -----------------------------------------------------------> next record

Cost: some 60 ns for a record of 100 bytes that is copied, 20 ns for one that is not, whatever the
size of its value.
"""

from kshare.read.decode import status
from kshare.read.decode.kernels.binary import append, headers_fault
from kshare.read.decode.kernels.native import (
    Int,
    Record,
    batch_at,
    hash_key,
    hash_offset,
    helper,
    load_i64,
    load_u8,
    store_i32,
    store_i64,
    varint,
)
from kshare.read.decode.layout import BATCH

__all__ = ["scan"]

_LOG_APPEND_TIME = 0x08
_BATCH_SIZE = BATCH.itemsize
_MILLIS_MAX = (2**63 - 1) // 1000


@helper
def _in_ranges(hash_: int, first: int, end: int, wanted: Record) -> bool:
    """True if one of the hash ranges ``first`` to ``end``, ascending, holds a hash."""
    while end - first > 1:
        middle = (first + end) >> 1
        if load_i64(wanted.lows + 8 * middle) <= hash_:
            first = middle
        else:
            end = middle
    return bool(load_i64(wanted.lows + 8 * first) <= hash_ <= load_i64(wanted.lasts + 8 * first))


@helper
def _may_be_wanted(key: int, key_size: int, wanted: Record) -> bool:
    """True if a key is not ruled out by its last byte, which is cheaper to tell than its hash."""
    if key_size < 0:
        return False
    last = load_u8(key + key_size - 1) if key_size > 0 else 0
    return bool(load_u8(wanted.last_bytes + last) != 0)


@helper
def _is_wanted(hash_: int, key: int, key_size: int, wanted: Record) -> bool:
    """True if a key, by its hash and then its bytes, is one of those that are wanted."""
    first = 0
    end = wanted.keys
    while first < end:
        middle = (first + end) >> 1
        if load_i64(wanted.key_hashes + 8 * middle) < hash_:
            first = middle + 1
        else:
            end = middle
    while first < wanted.keys and load_i64(wanted.key_hashes + 8 * first) == hash_:
        start = load_i64(wanted.key_ends + 8 * first)
        size = load_i64(wanted.key_ends + 8 * first + 8) - start
        if size == key_size and _same(key, wanted.key_bytes + start, size):
            return True
        first += 1
    return False


@helper
def _same(one: int, other: int, size: int) -> bool:
    """True if the bytes at two addresses are the same."""
    at = 0
    while at < size and load_u8(one + at) == load_u8(other + at):
        at += 1
    return bool(at == size)


@helper
def _holds(band: int, key: int, key_size: int, buffer_end: int, offset: int, wanted: Record) -> Int:
    """True if a band holds a record, by its key; -1 is the size of none."""
    first = load_i64(wanted.range_counts + 8 * band)
    end = load_i64(wanted.range_counts + 8 * band + 8)
    of_keys = wanted.keys != 0
    if of_keys and not _may_be_wanted(key, key_size, wanted):
        return False
    if first == end and not of_keys:
        return True
    hash_ = hash_offset(offset) if key_size < 0 else hash_key(key, key_size, buffer_end)
    if of_keys and not _is_wanted(hash_, key, key_size, wanted):
        return False
    return first == end or _in_ranges(hash_, first, end, wanted)


@helper
def _has_room(key_size: int, value_size: int, headers_size: int, state: Record) -> bool:
    """True if a record of these sizes can be appended; if not, say what it needs."""
    keys = state.keys.used + key_size
    values = state.values.used + value_size
    headers = state.headers.used + headers_size
    rows = state.rows
    if (
        rows < state.max_rows
        and keys <= state.keys.capacity
        and values <= state.values.capacity
        and headers <= state.headers.capacity
        and (rows == 0 or keys + values + headers <= state.max_bytes)
    ):
        return True
    state.keys.needed = keys
    state.values.needed = values
    state.headers.needed = headers
    return False


@helper
def _put_numbers(row: int, offset: int, millis: int, time_type: int, state: Record) -> None:
    """Write those columns of fixed width that there are."""
    if state.offsets != 0:
        store_i64(state.offsets + 8 * row, offset)
    if state.timestamps != 0:
        store_i64(state.timestamps + 8 * row, millis * 1000)
    if state.timestamp_types != 0:
        store_i32(state.timestamp_types + 4 * row, time_type)


@helper
def _take(
    offset: int,
    millis: int,
    time_type: int,
    key: int,
    key_size: int,
    stop: int,
    end: int,
    state: Record,
) -> Int:
    """Check the rest of a wanted record, and append it to the columns that there are.

    Returns:
        DONE; FULL, with nothing changed but what is needed; or a fault.
    """
    value_size, value = varint(key + max(key_size, 0), stop)
    if value == 0 or value_size < -1 or value_size > stop - value:
        return status.VALUE_LENGTH
    with_key = state.keys.offsets != 0
    with_value = state.values.offsets != 0
    with_headers = state.headers.offsets != 0
    headers = value + max(value_size, 0)
    headers_size = 0
    if stop - headers != 1 or load_u8(headers) != 0:
        fault = headers_fault(headers, stop)
        if fault != status.DONE:
            return fault
        if with_headers and load_u8(headers) != 0:
            headers_size = stop - headers
    if millis > _MILLIS_MAX or millis < -_MILLIS_MAX:
        return status.TIMESTAMP
    key_bytes = max(key_size, 0) if with_key else 0
    value_bytes = max(value_size, 0) if with_value else 0
    if not _has_room(key_bytes, value_bytes, headers_size, state):
        return status.FULL
    row = state.rows
    _put_numbers(row, offset, millis, time_type, state)
    if with_key:
        append(state.keys, row, key, key_size, end)
    if with_value:
        append(state.values, row, value, value_size, end)
    if with_headers:
        append(state.headers, row, headers, headers_size, end)
    return status.DONE


@helper
def _record_head(at: int, end: int) -> tuple[int, int, int, int, int, int]:
    """A record up to its key, at an address below ``end``.

    Returns:
        DONE or a fault, where the record ends, the deltas of timestamp and offset, where its key
        is, and the key's size (-1: it has none).
    """
    length, at = varint(at, end)
    if at == 0 or length < 1 or length > end - at:
        return status.RECORD_LENGTH, 0, 0, 0, 0, 0
    stop = at + length
    time_delta, at = varint(at + 1, stop)  # behind the attributes, which v2 does not use
    if at == 0:
        return status.RECORD_FIELD, 0, 0, 0, 0, 0
    offset_delta, at = varint(at, stop)
    if at == 0:
        return status.RECORD_FIELD, 0, 0, 0, 0, 0
    key_size, at = varint(at, stop)
    if at == 0 or key_size < -1 or key_size > stop - at:
        return status.KEY_LENGTH, 0, 0, 0, 0, 0
    return status.DONE, stop, time_delta, offset_delta, at, key_size


@helper
def _save(record: int, position: int, delta: int, band: int, state: Record) -> None:
    """Remember where in a batch the scan stands."""
    state.record = record
    state.position = position
    state.delta = delta
    state.band = band


@helper
def _ended(result: int, is_end: bool) -> Int:
    """The result of the scan of a batch whose records are read to its end, or not."""
    return status.BATCH_REST if result == status.DONE and not is_end else result


@helper
def _scan_batch(batch: Record, state: Record) -> Int:
    """Go on with the records of one batch; see :func:`scan`."""
    wanted = state.wanted
    source = state.source
    buffer_end = source + state.size
    end = source + batch.end
    base = batch.base_offset
    last_delta = batch.last_delta
    by_log = batch.attributes & _LOG_APPEND_TIME != 0
    time_type = 1 if by_log else 0
    records = batch.records
    record = state.record
    counting = state.counting != 0
    at = source + batch.start
    delta = -1
    if record > 0:
        at = source + state.position
        delta = state.delta
    band = state.band
    band_start = 0
    band_end = -1
    result = status.DONE
    while record < records:
        result, stop, time_delta, offset_delta, key, key_size = _record_head(at, end)
        if result != status.DONE:
            break
        if offset_delta <= delta or offset_delta > last_delta:
            result = status.RECORD_OFFSET
            break
        offset = base + offset_delta
        while offset >= band_end:
            if band_end >= 0:
                band += 1
            if band >= wanted.bands:
                state.band = band
                return status.DONE  # nothing more is wanted
            band_start = max(wanted.floor, load_i64(wanted.starts + 8 * band))
            band_end = load_i64(wanted.ends + 8 * band)
        taken = offset >= band_start and _holds(band, key, key_size, buffer_end, offset, wanted)
        if taken and not counting:
            millis = batch.max_timestamp if by_log else batch.first_timestamp + time_delta
            result = _take(offset, millis, time_type, key, key_size, stop, buffer_end, state)
            if result != status.DONE:
                break
        delta = offset_delta
        at = stop
        record += 1
        if taken:
            state.rows += 1
            state.end_offset = offset + 1
            if state.rows >= state.max_rows:
                result = status.FULL
                break
    # Also after a fault: of a record that does not fit, there may be more.
    _save(record, at - source, delta, band, state)
    return _ended(result, at == end)


def scan(state: Record) -> Int:
    """Go on through the records of some batches; see :func:`kshare.read.decode.compiled.scan`.

    Args:
        state: ScanState.
    """
    while state.batch < state.batch_count:
        batch = batch_at(state.batches + _BATCH_SIZE * state.batch)
        if batch.start < 0 or batch.end < batch.start or batch.end > state.size:
            return status.BATCH_LENGTH
        result = _scan_batch(batch, state)
        if result != status.DONE:
            return result
        state.record = 0
        state.batch += 1
    return status.DONE
