"""Values of a variant: scalars, and the heads of objects and arrays.

There is room for all of a record before it is begun, so nothing here asks for any.
"""

from numba import types, uint64

from kshare.read.decode import json_kind, status, variant_kind
from kshare.read.decode.kernels.json_numbers import DIGITS_MAX, NUMBER_MAX, double
from kshare.read.decode.kernels.json_text import (
    ESCAPES,
    HIGH_BYTES,
    has_half_pair,
    skip_string,
    unescape,
)
from kshare.read.decode.kernels.json_values import BOOLEAN, NULL, SCALAR_FAULT, skip_word
from kshare.read.decode.kernels.native import (
    Int,
    Record,
    Word,
    copy,
    copy_short,
    helper,
    load_i32,
    load_u8,
    move,
    store_i16,
    store_i32,
    store_i64,
    store_u8,
    variant_key_at,
)
from kshare.read.decode.kernels.text import is_utf8
from kshare.read.decode.kernels.variant_keys import HARD, key_id, sort_fields
from kshare.read.decode.layout import COPY_SLACK, VARIANT_FIELD, VARIANT_KEY

__all__ = ["FLAGS", "put_head", "put_metadata", "put_scalar"]

FLAGS = json_kind.NO_SINGLE_QUOTES | json_kind.NO_NON_NUMBERS

_FIELD_SIZE = VARIANT_FIELD.itemsize
_KEY_SIZE = VARIANT_KEY.itemsize
_INT64_MAX = 0x7FFFFFFFFFFFFFFF
_SIGN_64 = -0x8000000000000000
_SHORT = 256  # bytes that are copied in blocks
_U24_MAX = 0xFFFFFF


@helper
def _copy(target: int, at: int, size: int, end: int) -> None:
    if size <= _SHORT and end - at >= size + COPY_SLACK:
        copy_short(target, at, size)
    else:
        copy(target, at, size)


@helper
def _primitive(target: int, kind: int) -> Int:
    store_u8(target, kind << 2)
    return target + 1


@helper
def _put_string_head(target: int, size: int) -> Int:
    if size <= variant_kind.SHORT_STRING_MAX:
        store_u8(target, size << 2 | variant_kind.SHORT_STRING)
        return target + 1
    store_i32(_primitive(target, variant_kind.LONG_STRING), size)
    return target + 5


@helper
def _put_string(target: int, at: int, stop: int, found: int, end: int) -> Int:
    """Write a string that was checked; return the address behind it, or HARD."""
    if found & HIGH_BYTES != 0 and not is_utf8(at, stop):
        return HARD
    size = stop - at
    if found & ESCAPES == 0:
        target = _put_string_head(target, size)
        _copy(target, at, size, end)
        return target + size
    if has_half_pair(at, stop):
        return HARD
    begin = target + 1 if size <= variant_kind.SHORT_STRING_MAX else target + 5
    size = unescape(at, stop, begin)
    behind = _put_string_head(target, size)
    if behind != begin:
        move(behind, begin, size)
    return behind + size


@helper
def _put_integer(target: int, value: int) -> Int:
    if -0x80 <= value <= 0x7F:
        store_u8(_primitive(target, variant_kind.INT8), value)
        return target + 2
    if -0x8000 <= value <= 0x7FFF:
        store_i16(_primitive(target, variant_kind.INT16), value)
        return target + 3
    if -0x80000000 <= value <= 0x7FFFFFFF:
        store_i32(_primitive(target, variant_kind.INT32), value)
        return target + 5
    store_i64(_primitive(target, variant_kind.INT64), value)
    return target + 9


@helper
def _put_decimal(target: int, mantissa: Word, count: int, scale: int, negative: bool) -> Int:
    """Write a decimal of at most 19 digits and a scale that fits."""
    most = max(count, scale)
    value: Int = types.int64(mantissa)
    if negative:
        value = -value
    kind = variant_kind.DECIMAL16
    if most <= variant_kind.DECIMAL4_MAX:
        kind = variant_kind.DECIMAL4
    elif most <= variant_kind.DECIMAL8_MAX:
        kind = variant_kind.DECIMAL8
    target = _primitive(target, kind)
    store_u8(target, scale)
    target += 1
    if kind == variant_kind.DECIMAL4:
        store_i32(target, value)
        return target + 4
    store_i64(target, value)
    if kind == variant_kind.DECIMAL8:
        return target + 8
    # 19 digits need 64 bits without a sign: the sign is not the number's upper bit.
    store_i64(target + 8, -1 if negative and mantissa != uint64(0) else 0)
    return target + 16


@helper
def _has_exponent(at: int, behind: int) -> bool:
    while at < behind:
        if load_u8(at) | 0x20 == 0x65:
            return True
        at += 1
    return False


@helper
def _put_number(
    state: Record,
    target: int,
    at: int,
    behind: int,
    mantissa: Word,
    count: int,
    exponent: int,
    is_float: bool,
) -> Int:
    """Write a number; return the address behind it, or HARD."""
    if count > DIGITS_MAX or behind - at >= NUMBER_MAX:
        return HARD
    negative = load_u8(at) == 0x2D
    if not is_float:
        limit = uint64(_INT64_MAX)
        if negative:
            limit += uint64(1)
        if mantissa <= limit:
            value: Int = types.int64(mantissa)
            return _put_integer(target, -value if negative else value)
        return _put_decimal(target, mantissa, count, 0, negative)
    if -exponent <= variant_kind.DECIMAL16_MAX and not _has_exponent(at, behind):
        return _put_decimal(target, mantissa, count, -exponent, negative)
    bits = double(state, mantissa, count, exponent)
    if bits == -1:
        return HARD
    store_i64(_primitive(target, variant_kind.DOUBLE), bits | _SIGN_64 if negative else bits)
    return target + 9


@helper
def put_scalar(state: Record, target: int, at: int, end: int) -> tuple[int, int, int]:
    """Read a value that is no object and no array, at an address below ``end``; write it.

    Returns:
        DONE, HARD or a fault; the address behind it, or of what is wrong; that behind what is
        written.
    """
    if load_u8(at) == 0x22:
        stop, found = skip_string(at + 1, end, 0x22, FLAGS)
        if stop == 0:
            return found, at, target
        target = _put_string(target, at + 1, stop, found, end)
        return HARD if target == HARD else status.DONE, stop + 1, target
    behind, kind, mantissa, count, exponent, is_float = skip_word(at, end, FLAGS)
    if kind == SCALAR_FAULT:
        return count, at, target
    if kind == NULL:
        return status.DONE, behind, _primitive(target, variant_kind.NULL)
    if kind == BOOLEAN:
        value = variant_kind.FALSE if mantissa == uint64(0) else variant_kind.TRUE
        return status.DONE, behind, _primitive(target, value)
    target = _put_number(state, target, at, behind, mantissa, count, exponent, is_float)
    return HARD if target == HARD else status.DONE, behind, target


# -- objects, arrays, metadata ---------------------------------------------------------------------


@helper
def _width(value: int) -> Int:
    """Bytes of an unsigned number that is at most 2^24 - 1."""
    if value <= 0xFF:
        return 1
    return 2 if value <= 0xFFFF else 3


@helper
def _put_width(target: int, value: int, width: int) -> Int:
    store_u8(target, value)
    if width > 1:
        store_u8(target + 1, value >> 8)
    if width > 2:
        store_u8(target + 2, value >> 16)
    return target + width


@helper
def put_head(state: Record, level: Record, target: int) -> Int:
    """Write the head of an object or array in front of its values, which are moved if need be.

    Args:
        state: VariantState.
        level: Its VARIANT_LEVEL.
        target: Address behind its values.

    Returns:
        The address behind all of it; HARD: a name is there twice; 0: it is too large.
    """
    fields = state.fields + _FIELD_SIZE * level.first
    count = state.field_count - level.first
    values = level.start + level.reserved
    size = target - values
    if size > _U24_MAX or count > _U24_MAX:
        return 0
    ids = 0
    greatest = 0
    if level.is_object != 0:
        greatest = sort_fields(state, fields, count)
        if greatest < 0:
            return HARD
        ids = _width(greatest)
    offsets = _width(size)
    large = 1 if count > 0xFF else 0
    counts = 4 if large != 0 else 1
    header = 1 + counts + count * ids + (count + 1) * offsets
    if header != level.reserved:
        move(level.start + header, values, size)
    level.header = header
    at = level.start
    if level.is_object != 0:
        store_u8(at, large << 6 | (ids - 1) << 4 | (offsets - 1) << 2 | variant_kind.OBJECT)
    else:
        store_u8(at, large << 4 | (offsets - 1) << 2 | variant_kind.ARRAY)
    if large != 0:
        store_i32(at + 1, count)
    else:
        store_u8(at + 1, count)
    at += 1 + counts
    field = fields
    behind = fields + _FIELD_SIZE * count
    if level.is_object != 0:
        while field < behind:
            at = _put_width(at, key_id(state, load_i32(field)), ids)
            field += _FIELD_SIZE
        field = fields
    while field < behind:
        at = _put_width(at, load_i32(field + 4), offsets)
        field += _FIELD_SIZE
    _put_width(at, size, offsets)
    state.field_count = level.first
    return level.start + header + size


@helper
def put_metadata(state: Record, target: int) -> Int:
    """Write the names of a record; return the address behind them, 0: they are too large."""
    count = state.id_count
    total = 0
    place = 0
    while place < count:
        total += variant_key_at(state.keys + _KEY_SIZE * load_i32(state.ids + 4 * place)).size
        place += 1
    if max(total, count) > _U24_MAX:
        return 0
    width = _width(max(total, count))
    store_u8(target, variant_kind.VERSION | (width - 1) << 6)
    at = _put_width(target + 1, count, width)
    name = at + width * (count + 1)
    first = name
    end = state.names + state.names_capacity + COPY_SLACK
    place = 0
    while place < count:
        key = variant_key_at(state.keys + _KEY_SIZE * load_i32(state.ids + 4 * place))
        at = _put_width(at, name - first, width)
        _copy(name, state.names + key.name, key.size, end)
        name += key.size
        place += 1
    _put_width(at, total, width)
    return name
