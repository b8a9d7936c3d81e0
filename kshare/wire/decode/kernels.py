"""The compiled kernels: record batches v2, from bytes to columns.

Law: whatever the bytes are, a kernel reads only what lies in the buffer it was given, writes only
where there is room, ends, and says what it found: every length of the wire is checked before it is
used. Cost: some 60 ns for a record of 100 bytes that is copied, 20 ns for one that is not, whatever
the size of its value.

One file, because numba's cache watches one file; ``NATIVE_DIGEST`` stands for ``native.py``. The
formats: https://kafka.apache.org/documentation/#recordbatch and #record.
"""

from typing import Any, TypeAlias

from numba import types, uint64

from kshare.wire.decode.native import (
    BYTES,
    COPY_SLACK,
    STATE,
    TABLE,
    copy,
    copy_short,
    helper,
    kernel,
    load_i16_be,
    load_i32,
    load_i32_be,
    load_i64,
    load_i64_be,
    load_u8,
    load_u32_be,
    load_u64,
    store_i32,
    store_i64,
    store_u8,
)

__all__ = [
    "ATTRIBUTES",
    "BAND",
    "BASE_OFFSET",
    "BATCH",
    "BATCH_FIELDS",
    "BYTES_MAX",
    "CHECKSUM",
    "COLUMNS_SLACK",
    "COUNTING",
    "DATA",
    "DONE",
    "END",
    "END_OFFSET",
    "FAULTS",
    "FLOOR",
    "FULL",
    "HEADERS",
    "KEYS",
    "LASTS",
    "LAST_DELTA",
    "NATIVE_DIGEST",
    "NEED",
    "NULLS",
    "OFFSETS",
    "OLD_FORMAT",
    "PRODUCER",
    "RECORD",
    "RECORDS",
    "RECORD_OFFSETS",
    "ROOM",
    "ROWS",
    "ROWS_MAX",
    "START",
    "STATE_SIZE",
    "TIMESTAMPS",
    "TIMESTAMP_TYPES",
    "UNKNOWN_FORMAT",
    "USED",
    "VALID",
    "VALUES",
    "copy_headers",
    "find_marks",
    "index",
    "measure_headers",
    "murmur",
    "scan",
]

Int: TypeAlias = Any
"""int64, from another helper: type checkers do not know what these return."""

Word: TypeAlias = Any
"""uint64, as all words that are hashed."""

Array: TypeAlias = Any
"""BYTES, a TABLE, a row of one, or a STATE of :mod:`kshare.wire.decode.native`."""

NATIVE_DIGEST = "a08696ac3f191f1c"
"""Of the text of ``native.py``: SHA-256, the first 16 digits. A test compares it."""

COLUMNS_SLACK = COPY_SLACK
"""Bytes that a column's data must have behind its room."""

# The columns of a table of batches, as :func:`index` writes it and :func:`scan` reads it.
START = 0  # of the records, in the buffer
END = 1
BASE_OFFSET = 2
LAST_DELTA = 3  # of the batch's last offset
RECORDS = 4
ATTRIBUTES = 5
FIRST_TIMESTAMP = 6
MAX_TIMESTAMP = 7
PRODUCER = 8
CHECKSUM = 9
BATCH_FIELDS = 10

# A binary column under construction: these fields, from KEYS, VALUES or HEADERS on.
OFFSETS = 0  # address of int32 offsets; 0: there is no such column
DATA = 1  # address of the bytes
VALID = 2  # address of the validity bits, all set at first
ROOM = 3  # bytes that fit
USED = 4  # bytes so far
NEED = 5  # after FULL: bytes with the next value
NULLS = 6  # rows that are null

# The state of :func:`scan`.
BATCH = 0  # where it stands: the batch,
RECORD = 1  # the record in it,
_POSITION = 2  # the record's place in the buffer (if it is not the first)
_DELTA = 3  # and the offset delta of the one before
FLOOR = 4  # offsets below it are passed over
_BANDS = 5  # how many bands are wanted
_STARTS = 6  # address: the first offset of each
_ENDS = 7  # address: the end of each
_FIRSTS = 8  # address: which hash ranges are whose; a band with none wants all hashes
_LOWS = 9  # address: the first hash of each range
LASTS = 10  # address: the last hash of each
BAND = 11  # the first band that does not end before where the scan stands
ROWS = 12
ROWS_MAX = 13
BYTES_MAX = 14  # of all columns together; a row of its own may have more
END_OFFSET = 15  # the offset after the last row
COUNTING = 16  # not 0: rows are counted, no more
RECORD_OFFSETS = 17  # address of the column, as of the next two; 0: there is no such column
TIMESTAMPS = 18
TIMESTAMP_TYPES = 19
KEYS = 20
VALUES = 27
HEADERS = 34
STATE_SIZE = 41

# What a kernel says.
FULL = -1  # there are ROWS_MAX rows, or there is no room for the next record
DONE = 0
OLD_FORMAT = 1
UNKNOWN_FORMAT = 2
_BATCH_LENGTH = 3
_BATCH_OFFSETS = 4
_BATCH_COUNT = 5
_RECORD_LENGTH = 6
_RECORD_FIELD = 7
_RECORD_OFFSET = 8
_KEY_LENGTH = 9
_VALUE_LENGTH = 10
_HEADER = 11
_RECORD_REST = 12
_BATCH_REST = 13
_TIMESTAMP = 14
FAULTS = {
    OLD_FORMAT: "message format v0 or v1",
    UNKNOWN_FORMAT: "a message format later than v2",
    _BATCH_LENGTH: "its length is impossible",
    _BATCH_OFFSETS: "its offsets are impossible, or not above those of the batch before",
    _BATCH_COUNT: "its number of records is impossible",
    _RECORD_LENGTH: "a record does not fit into the batch",
    _RECORD_FIELD: "a number in a record's head is cut short or too long",
    _RECORD_OFFSET: "a record's offset is not within the batch, or not above the one before",
    _KEY_LENGTH: "a key does not fit into its record",
    _VALUE_LENGTH: "a value does not fit into its record",
    _HEADER: "a header does not fit into its record",
    _RECORD_REST: "a record is longer than its fields",
    _BATCH_REST: "there are bytes behind the last record",
    _TIMESTAMP: "a record's timestamp is beyond what microseconds in 64 bits can hold",
}

_LOG_APPEND_TIME = 0x08
_MILLIS_MAX = (2**63 - 1) // 1000
_INT64_MAX = 2**63 - 1
_MAGIC = 2
_MAGIC_AT = 16
_HEAD_BYTES = 61  # of a batch, to the first record
_UNCOUNTED_BYTES = 12  # offset and length, which the length does not count
_SHORT = 256  # bytes that are copied in blocks


# -- numbers ------------------------------------------------------------------------------------


@helper
def _varint(at: int, end: int) -> tuple[int, int]:
    """A zigzag varint of 64 bits at most, at an address below ``end``.

    Returns:
        The number and the address behind it; address 0: it is cut short, or longer than 10 bytes.
    """
    if at < end:
        byte = load_u8(at)
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), at + 1
        value = uint64(byte & 0x7F)
        shift = 7
        at += 1
        while at < end and shift < 64:
            byte = load_u8(at)
            at += 1
            value |= uint64(byte & 0x7F) << uint64(shift)
            if byte < 0x80:
                half = types.int64(value >> uint64(1))
                return half ^ -types.int64(value & uint64(1)), at
            shift += 7
    return 0, 0


@helper
def _rotl(value: Word, bits: int) -> Word:
    return (value << uint64(bits)) | (value >> uint64(64 - bits))


@helper
def _fmix(value: Word) -> Word:
    value ^= value >> uint64(33)
    value *= uint64(0xFF51AFD7ED558CCD)
    value ^= value >> uint64(33)
    value *= uint64(0xC4CEB9FE1A85EC53)
    return value ^ (value >> uint64(33))


@helper
def _finish(h1: Word, h2: Word, size: int) -> Int:
    """The end of MurmurHash3: of 128 bits the first 64, shifted right by one."""
    h1 ^= uint64(size)
    h2 ^= uint64(size)
    h1 += h2
    h2 += h1
    return types.int64((_fmix(h1) + _fmix(h2)) >> uint64(1))


@helper
def _mix1(word: Word) -> Word:
    return _rotl(word * uint64(0x87C37B91114253D5), 31) * uint64(0x4CF5AD432745937F)


@helper
def _mix2(word: Word) -> Word:
    return _rotl(word * uint64(0x4CF5AD432745937F), 33) * uint64(0x87C37B91114253D5)


@helper
def _little(at: int, size: int, end: int) -> Word:
    """1 to 8 bytes as a little-endian number, in a buffer that ends at ``end``."""
    if end - at >= 8:
        return load_u64(at) & (uint64(0xFFFFFFFFFFFFFFFF) >> uint64(64 - 8 * size))
    word = uint64(0)
    for byte in range(size):
        word |= uint64(load_u8(at + byte)) << uint64(8 * byte)
    return word


@helper
def _hash(at: int, size: int, end: int) -> Int:
    """The key hash of some bytes: MurmurHash3 x64-128 by Austin Appleby (public domain), seed 0."""
    h1 = uint64(0)
    h2 = uint64(0)
    rest = size
    while rest >= 16:
        h1 ^= _mix1(load_u64(at))
        h1 = (_rotl(h1, 27) + h2) * uint64(5) + uint64(0x52DCE729)
        h2 ^= _mix2(load_u64(at + 8))
        h2 = (_rotl(h2, 31) + h1) * uint64(5) + uint64(0x38495AB5)
        at += 16
        rest -= 16
    if rest > 8:
        h2 ^= _mix2(_little(at + 8, rest - 8, end))
    if rest > 0:
        h1 ^= _mix1(_little(at, min(rest, 8), end))
    return _finish(h1, h2, size)


@helper
def _offset_hash(offset: int) -> Int:
    """The hash of a record without a key: of its offset as 8 bytes, little-endian."""
    return _finish(_mix1(uint64(offset)), uint64(0), 8)


@kernel(BYTES, types.int64)
def murmur(key: Array, offset: int) -> Int:
    """The key hash, for tests: of a key, or (``offset`` not negative) of a record without one."""
    begin = key.ctypes.data
    size = len(key)
    return _offset_hash(offset) if offset >= 0 else _hash(begin, size, begin + size)


# -- the heads of batches -----------------------------------------------------------------------


@helper
def _batch_fault(at: int, after: int) -> int:
    """What is wrong with the head of a complete batch at an address.

    Args:
        at: the address.
        after: the offset after the batch before.
    """
    base = load_i64_be(at)
    delta = load_i32_be(at + 23)
    if base < after or delta < 0 or base > _INT64_MAX - 1 - delta:
        return _BATCH_OFFSETS
    if load_i32_be(at + 57) < 0:
        return _BATCH_COUNT
    return DONE


@helper
def _put_batch(at: int, start: int, end: int, row: Array) -> None:
    row[START] = start
    row[END] = end
    row[BASE_OFFSET] = load_i64_be(at)
    row[CHECKSUM] = load_u32_be(at + 17)
    row[ATTRIBUTES] = load_i16_be(at + 21)
    row[LAST_DELTA] = load_i32_be(at + 23)
    row[FIRST_TIMESTAMP] = load_i64_be(at + 27)
    row[MAX_TIMESTAMP] = load_i64_be(at + 35)
    row[PRODUCER] = load_i64_be(at + 43)
    row[RECORDS] = load_i32_be(at + 57)


@kernel(BYTES, TABLE, STATE)
def index(source: Array, batches: Array, found: Array) -> int:
    """Read the heads of the complete batches of a response.

    Args:
        source: the response's records.
        batches: gets a row per batch, as many as fit.
        found: gets how many batches there are, where the last one ends in ``source``, and the
            offset after it (0: there is none); after a fault that of the bad batch.

    Returns:
        DONE or a fault.
    """
    begin = source.ctypes.data
    size = len(source)
    count = 0
    place = 0
    after = 0
    found[:] = 0
    while size - place > _MAGIC_AT:
        at = begin + place
        length = load_i32_be(at + 8)
        magic = load_u8(at + _MAGIC_AT)
        fault = DONE
        if magic < _MAGIC:
            fault = OLD_FORMAT
        elif magic > _MAGIC:
            fault = UNKNOWN_FORMAT
        elif length < _HEAD_BYTES - _UNCOUNTED_BYTES:
            fault = _BATCH_LENGTH
        elif length > size - place - _UNCOUNTED_BYTES:
            break
        else:
            fault = _batch_fault(at, after)
        if fault != DONE:
            found[2] = load_i64_be(at)
            return fault
        end = place + _UNCOUNTED_BYTES + length
        if count < len(batches):
            _put_batch(at, place + _HEAD_BYTES, end, batches[count])
        after = load_i64_be(at) + load_i32_be(at + 23) + 1
        count += 1
        place = end
    found[0] = count
    found[1] = place
    found[2] = after
    return DONE


# -- records ------------------------------------------------------------------------------------


@helper
def _in_ranges(hash_: int, first: int, end: int, state: Array) -> bool:
    """Whether one of the hash ranges ``first`` to ``end``, ascending, holds a hash."""
    lows = state[_LOWS]
    lasts = state[LASTS]
    while end - first > 1:
        middle = (first + end) >> 1
        if load_i64(lows + 8 * middle) <= hash_:
            first = middle
        else:
            end = middle
    return bool(load_i64(lows + 8 * first) <= hash_ <= load_i64(lasts + 8 * first))


@helper
def _holds(band: int, key: int, key_size: int, end: int, offset: int, state: Array) -> Int:
    """Whether a band holds a record, by its key; -1 is the size of none."""
    first = load_i64(state[_FIRSTS] + 8 * band)
    end = load_i64(state[_FIRSTS] + 8 * band + 8)
    if first == end:
        return True
    hash_ = _offset_hash(offset) if key_size < 0 else _hash(key, key_size, end)
    return _in_ranges(hash_, first, end, state)


@helper
def _header(at: int, end: int) -> tuple[int, int, int, int]:
    """One header.

    Returns:
        The sizes of key and value (-1: null) and where they begin; both sizes -2: a fault.
    """
    key_size, key = _varint(at, end)
    if key == 0 or key_size < 0 or key_size > end - key:
        return -2, -2, 0, 0
    value_size, value = _varint(key + key_size, end)
    if value == 0 or value_size < -1 or value_size > end - value:
        return -2, -2, 0, 0
    return key_size, value_size, key, value


@helper
def _headers_fault(at: int, end: int) -> int:
    """Check the headers that fill the rest of a record."""
    count, at = _varint(at, end)
    if at == 0 or count < 0:
        return _HEADER
    while count > 0:
        key_size, value_size, _, value = _header(at, end)
        if key_size < 0:
            return _HEADER
        at = value + max(value_size, 0)
        count -= 1
    return DONE if at == end else _RECORD_REST


@helper
def _append(column: int, row: int, at: int, size: int, end: int, state: Array) -> None:
    """Append a value to a binary column that has room for it; size -1 is null.

    Args:
        column: which one: KEYS, VALUES or HEADERS.
        row: the number of the row.
        at: where the value is.
        size: its size.
        end: where the buffer ends that it is in.
        state: of the scan.
    """
    used = state[column + USED]
    if size > 0:
        target = state[column + DATA] + used
        if size <= _SHORT and end - at >= size + COPY_SLACK:
            copy_short(target, at, size)
        else:
            copy(target, at, size)
        used += size
        state[column + USED] = used
    elif size < 0:
        place = state[column + VALID] + (row >> 3)
        store_u8(place, load_u8(place) & ~(1 << (row & 7)))
        state[column + NULLS] += 1
    store_i32(state[column + OFFSETS] + 4 * row + 4, used)


@helper
def _has_room(key_size: int, value_size: int, headers_size: int, state: Array) -> bool:
    """Whether a record of these sizes can be appended; if not, say what it needs."""
    keys = state[KEYS + USED] + key_size
    values = state[VALUES + USED] + value_size
    headers = state[HEADERS + USED] + headers_size
    rows = state[ROWS]
    if (
        rows < state[ROWS_MAX]
        and keys <= state[KEYS + ROOM]
        and values <= state[VALUES + ROOM]
        and headers <= state[HEADERS + ROOM]
        and (rows == 0 or keys + values + headers <= state[BYTES_MAX])
    ):
        return True
    state[KEYS + NEED] = keys
    state[VALUES + NEED] = values
    state[HEADERS + NEED] = headers
    return False


@helper
def _put_numbers(row: int, offset: int, millis: int, time_type: int, state: Array) -> None:
    """Write those columns of fixed width that there are."""
    if state[RECORD_OFFSETS] != 0:
        store_i64(state[RECORD_OFFSETS] + 8 * row, offset)
    if state[TIMESTAMPS] != 0:
        store_i64(state[TIMESTAMPS] + 8 * row, millis * 1000)
    if state[TIMESTAMP_TYPES] != 0:
        store_i32(state[TIMESTAMP_TYPES] + 4 * row, time_type)


@helper
def _take(
    offset: int,
    millis: int,
    time_type: int,
    key: int,
    key_size: int,
    stop: int,
    end: int,
    state: Array,
) -> Int:
    """Check the rest of a wanted record, and append it to the columns that there are.

    Returns:
        DONE; FULL, with nothing changed but what is needed; or a fault.
    """
    value_size, value = _varint(key + max(key_size, 0), stop)
    if value == 0 or value_size < -1 or value_size > stop - value:
        return _VALUE_LENGTH
    headers = value + max(value_size, 0)
    headers_size = 0
    if stop - headers != 1 or load_u8(headers) != 0:
        fault = _headers_fault(headers, stop)
        if fault != DONE:
            return fault
        if state[HEADERS + OFFSETS] != 0 and load_u8(headers) != 0:
            headers_size = stop - headers
    if millis > _MILLIS_MAX or millis < -_MILLIS_MAX:
        return _TIMESTAMP
    with_key = state[KEYS + OFFSETS] != 0
    with_value = state[VALUES + OFFSETS] != 0
    key_bytes = max(key_size, 0) if with_key else 0
    value_bytes = max(value_size, 0) if with_value else 0
    if not _has_room(key_bytes, value_bytes, headers_size, state):
        return FULL
    row = state[ROWS]
    _put_numbers(row, offset, millis, time_type, state)
    if with_key:
        _append(KEYS, row, key, key_size, end, state)
    if with_value:
        _append(VALUES, row, value, value_size, end, state)
    if state[HEADERS + OFFSETS] != 0:
        _append(HEADERS, row, headers, headers_size, end, state)
    return DONE


@helper
def _record_head(at: int, end: int) -> tuple[int, int, int, int, int, int]:
    """A record up to its key, at an address below ``end``.

    Returns:
        DONE or a fault, where the record ends, the deltas of timestamp and offset, where its key
        is, and the key's size (-1: it has none).
    """
    length, at = _varint(at, end)
    if at == 0 or length < 1 or length > end - at:
        return _RECORD_LENGTH, 0, 0, 0, 0, 0
    stop = at + length
    time_delta, at = _varint(at + 1, stop)  # behind the attributes, which v2 does not use
    if at == 0:
        return _RECORD_FIELD, 0, 0, 0, 0, 0
    offset_delta, at = _varint(at, stop)
    if at == 0:
        return _RECORD_FIELD, 0, 0, 0, 0, 0
    key_size, at = _varint(at, stop)
    if at == 0 or key_size < -1 or key_size > stop - at:
        return _KEY_LENGTH, 0, 0, 0, 0, 0
    return DONE, stop, time_delta, offset_delta, at, key_size


@helper
def _save(record: int, position: int, delta: int, band: int, state: Array) -> None:
    """Remember where in a batch the scan stands."""
    state[RECORD] = record
    state[_POSITION] = position
    state[_DELTA] = delta
    state[BAND] = band


@helper
def _scan_batch(begin: int, size: int, batch: Array, state: Array) -> Int:
    """Go on with the records of one batch; see :func:`scan`."""
    end = begin + batch[END]
    base = batch[BASE_OFFSET]
    last_delta = batch[LAST_DELTA]
    by_log = batch[ATTRIBUTES] & _LOG_APPEND_TIME != 0
    time_type = 1 if by_log else 0
    records = batch[RECORDS]
    record = state[RECORD]
    counting = state[COUNTING] != 0
    floor = state[FLOOR]
    at = begin + batch[START]
    delta = -1
    if record > 0:
        at = begin + state[_POSITION]
        delta = state[_DELTA]
    band = state[BAND]
    band_start = 0
    band_end = -1
    while record < records:
        fault, stop, time_delta, offset_delta, key, key_size = _record_head(at, end)
        if fault != DONE:
            return fault
        if offset_delta <= delta or offset_delta > last_delta:
            return _RECORD_OFFSET
        offset = base + offset_delta
        while offset >= band_end:
            if band_end >= 0:
                band += 1
            if band >= state[_BANDS]:
                state[BAND] = band
                return DONE  # nothing more is wanted
            band_start = max(floor, load_i64(state[_STARTS] + 8 * band))
            band_end = load_i64(state[_ENDS] + 8 * band)
        taken = offset >= band_start and _holds(band, key, key_size, stop, offset, state)
        if taken and not counting:
            millis = batch[MAX_TIMESTAMP] if by_log else batch[FIRST_TIMESTAMP] + time_delta
            status = _take(offset, millis, time_type, key, key_size, stop, begin + size, state)
            if status != DONE:
                _save(record, at - begin, delta, band, state)
                return status
        delta = offset_delta
        at = stop
        record += 1
        if taken:
            state[ROWS] += 1
            state[END_OFFSET] = offset + 1
            if state[ROWS] >= state[ROWS_MAX]:
                _save(record, at - begin, delta, band, state)
                return FULL
    state[BAND] = band
    return DONE if at == end else _BATCH_REST


@kernel(BYTES, TABLE, STATE)
def scan(source: Array, batches: Array, state: Array) -> Int:
    """Go on through the records of some batches; append (or count) those that are wanted.

    A key is hashed and tested before the rest of its record is read. The caller sets BATCH and
    RECORD to 0 for new batches; all else goes on.

    Args:
        source: where the records are, decompressed.
        batches: a row per batch; START and END lie in ``source``, START first.
        state: what is wanted, the columns, and where the scan stands.

    Returns:
        DONE; FULL, if there are as many rows as there may be, or the record where it stands finds
        no room; or a fault of the batch at BATCH.
    """
    begin = source.ctypes.data
    size = len(source)
    batch = state[BATCH]
    while batch < len(batches):
        state[BATCH] = batch
        start = batches[batch, START]
        end = batches[batch, END]
        if start < 0 or end < start or end > size:
            return _BATCH_LENGTH
        status = _scan_batch(begin, size, batches[batch], state)
        if status != DONE:
            return status
        state[RECORD] = 0
        batch += 1
    state[BATCH] = batch
    return DONE


@kernel(BYTES, types.int64, STATE, STATE, STATE)
def find_marks(source: Array, start: int, counts: Array, mark: Array, ends: Array) -> Int:
    """Find where batches end that lie one after the other, a mark behind each.

    Args:
        source: where they are.
        start: where the first one begins.
        counts: how many records each has.
        mark: 16 bytes, as two integers in the processor's order.
        ends: gets where the records of each end, and its mark begins.

    Returns:
        Where the last mark ends; -1: one of them is not where the records before it end.
    """
    begin = source.ctypes.data
    end = begin + len(source)
    at = begin + start
    for batch in range(len(counts)):
        for _ in range(counts[batch]):
            length, at = _varint(at, end)
            if at == 0 or length < 0 or length > end - at:
                return -1
            at += length
        if end - at < 16 or load_i64(at) != mark[0] or load_i64(at + 8) != mark[1]:
            return -1
        ends[batch] = at - begin
        at += 16
    return at - begin


# -- headers ------------------------------------------------------------------------------------


@kernel(types.int64, types.int64, types.int64, STATE, returns=types.void)
def measure_headers(offsets: int, data: int, rows: int, sizes: Array) -> None:
    """How much room headers need that a scan has checked and collected.

    Args:
        offsets: address of the int32 offsets of their raw bytes.
        data: address of these.
        rows: how many rows.
        sizes: gets how many headers there are, the bytes of their keys, and of their values.
    """
    sizes[:] = 0
    for row in range(rows):
        at = data + load_i32(offsets + 4 * row)
        end = data + load_i32(offsets + 4 * row + 4)
        if at == end:
            continue
        count, at = _varint(at, end)
        sizes[0] += count
        for _ in range(count):
            key_size, value_size, _, value = _header(at, end)
            value_size = max(value_size, 0)
            at = value + value_size
            sizes[1] += key_size
            sizes[2] += value_size


@kernel(types.int64, types.int64, types.int64, types.int64, STATE, returns=types.void)
def copy_headers(offsets: int, data: int, rows: int, lists: int, state: Array) -> None:
    """Make columns of the headers that :func:`measure_headers` has measured.

    Args:
        offsets: as there.
        data: as there.
        rows: as there.
        lists: address of the int32 offsets to write: which headers are whose.
        state: KEYS and VALUES are the columns, with room for all.
    """
    state[ROWS] = 0
    store_i32(lists, 0)
    for row in range(rows):
        at = data + load_i32(offsets + 4 * row)
        end = data + load_i32(offsets + 4 * row + 4)
        if at < end:
            count, at = _varint(at, end)
            for _ in range(count):
                key_size, value_size, key, value = _header(at, end)
                header = state[ROWS]
                _append(KEYS, header, key, key_size, end, state)
                _append(VALUES, header, value, value_size, end, state)
                state[ROWS] = header + 1
                at = value + max(value_size, 0)
        store_i32(lists + 4 * row + 4, state[ROWS])
