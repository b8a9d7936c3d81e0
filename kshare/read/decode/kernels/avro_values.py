"""The values of Avro records: read where they lie, checked, and appended to the output.

Each returns (DONE, FULL or a fault; the address behind what was read, or of what is wrong; the
number that is wrong, where a fault has one).
"""

from typing import Any, TypeAlias

from numba import float32, float64

from kshare.read.decode import avro_step, status
from kshare.read.decode.kernels.native import (
    Int,
    Record,
    bits_of_f32,
    bits_of_f64,
    f32_of_bits,
    helper,
    load_i32,
    load_i64,
    load_u8,
    varint,
)
from kshare.read.decode.kernels.output import put_boolean, put_bytes, put_fixed, put_pair
from kshare.read.decode.kernels.text import is_utf8

__all__ = ["bytes_step", "length", "number_step", "skip_step"]

_Read: TypeAlias = Any
"""The answer of a step: three int64."""

_INT_MAX = 2**31 - 1
_MILLIS_MAX = (2**63 - 1) // 1000
_INT64_MIN = -(2**63)


@helper
def _varint_step(at: int, end: int, step: Record, node: Record) -> _Read:
    """A step up to LAST_VARINT."""
    value, behind = varint(at, end)
    if behind == 0:
        return _short_number(at, end), at, 0
    operation = step.operation
    bits = value
    if operation == avro_step.MILLIS:
        if value > _MILLIS_MAX or value < -_MILLIS_MAX:
            return avro_step.TIME, at, value
        bits = value * 1000
    elif operation == avro_step.NANOS:
        bits = value // 1000
    elif operation == avro_step.LONG_TO_FLOAT:
        bits = bits_of_f32(float32(value))
    elif operation == avro_step.LONG_TO_DOUBLE:
        bits = bits_of_f64(float64(value))
    elif operation != avro_step.LONG:
        if value > _INT_MAX or value < -_INT_MAX - 1:
            return avro_step.INT_RANGE, at, value
        if operation == avro_step.INT_TO_FLOAT:
            bits = bits_of_f32(float32(value))
        elif operation == avro_step.INT_TO_DOUBLE:
            bits = bits_of_f64(float64(value))
    return put_fixed(node, bits), behind, 0


@helper
def _short_number(at: int, end: int) -> Int:
    """The fault where there is no number: its bytes end, or there are more than ten."""
    return avro_step.NUMBER if end - at >= 10 else avro_step.CUT_SHORT


@helper
def number_step(at: int, end: int, step: Record, node: Record) -> _Read:
    """A step up to LAST_NUMBER."""
    operation = step.operation
    if operation <= avro_step.LAST_VARINT:
        return _varint_step(at, end, step, node)
    size = 4
    if operation == avro_step.DOUBLE:
        size = 8
    elif operation == avro_step.BOOLEAN:
        size = 1
    if size > end - at:
        return avro_step.CUT_SHORT, at, 0
    if operation == avro_step.BOOLEAN:
        value = load_u8(at)
        if value > 1:
            return avro_step.NO_BOOLEAN, at, value
        return put_boolean(node, value), at + 1, 0
    bits = load_i64(at) if operation == avro_step.DOUBLE else load_i32(at)
    if operation == avro_step.FLOAT_TO_DOUBLE:
        bits = bits_of_f64(float64(f32_of_bits(bits)))
    return put_fixed(node, bits), at + size, 0


@helper
def length(at: int, end: int) -> _Read:
    """A length, and that many bytes are there.

    Returns:
        DONE or a fault; the address behind the length; the length.
    """
    size, behind = varint(at, end)
    if behind == 0:
        return _short_number(at, end), at, 0
    if size < 0:
        return avro_step.NEGATIVE, at, size
    if size > end - behind:
        return avro_step.CUT_SHORT, at, 0
    return status.DONE, behind, size


@helper
def _integer(at: int, size: int) -> tuple[int, int, bool]:
    """A big-endian number of some bytes: its low and high 64 bits, and whether 128 hold it."""
    sign = 0xFF if load_u8(at) >= 0x80 else 0
    while size > 16:
        if load_u8(at) != sign:
            return 0, 0, False
        at += 1
        size -= 1
    # Its highest bit may be lost with what was dropped.
    fits = (load_u8(at) >= 0x80) == (sign != 0)
    low = -(sign & 1)
    high = low
    while size > 0:
        high = (high << 8) | ((low >> 56) & 0xFF)
        low = (low << 8) | load_u8(at)
        at += 1
        size -= 1
    return low, high, fits


@helper
def _below(low: int, high: int, limit: int) -> bool:
    """True if a number's absolute value is below the 128 bits at an address."""
    if high < 0:
        low = -low
        high = -high if low == 0 else ~high
    top = load_i64(limit + 8)
    if high != top:
        return bool(high < top and high >= 0)
    return bool((low ^ _INT64_MIN) < (load_i64(limit) ^ _INT64_MIN))


@helper
def _decimal(at: int, size: int, limit: int, node: Record) -> Int:
    """Append a decimal whose absolute value is below the limit at an address."""
    if size == 0:
        return avro_step.DIGITS
    low, high, fits = _integer(at, size)
    if not fits or not _below(low, high, limit):
        return avro_step.DIGITS
    return put_pair(node, low, high)


@helper
def _enum(
    at: int, end: int, step: Record, node: Record, constants: int, constants_end: int
) -> _Read:
    symbol, behind = varint(at, end)
    if behind == 0:
        return _short_number(at, end), at, 0
    if symbol < 0 or symbol >= step.two:
        return avro_step.NO_SYMBOL, at, symbol
    place = load_i64(constants + step.one + 16 * symbol)
    if place < 0:
        return avro_step.OTHER_SYMBOL, at, symbol
    size = load_i64(constants + step.one + 16 * symbol + 8)
    return put_bytes(node, constants + place, size, constants_end), behind, 0


@helper
def bytes_step(
    at: int, end: int, room: int, step: Record, node: Record, constants: int, constants_end: int
) -> _Read:
    """A step from STRING to LAST_BYTES.

    Args:
        at: Where the record stands.
        end: Where it ends.
        room: Where the buffer ends that it is in.
        step: The step.
        node: Its node.
        constants: Where constants are.
        constants_end: Where they end.
    """
    operation = step.operation
    if operation == avro_step.ENUM:
        return _enum(at, end, step, node, constants, constants_end)
    begin = at
    size = step.one
    if operation == avro_step.FIXED or (operation == avro_step.DECIMAL and size >= 0):
        if size > end - at:
            return avro_step.CUT_SHORT, at, 0
    else:
        fault, begin, size = length(at, end)
        if fault != status.DONE:
            return fault, at, size
    behind = begin + size
    if operation == avro_step.STRING and not is_utf8(begin, behind):
        return avro_step.NO_TEXT, at, 0
    if operation == avro_step.DECIMAL:
        return _decimal(begin, size, constants + step.two, node), behind, 0
    return put_bytes(node, begin, size, room), behind, 0


@helper
def skip_step(at: int, end: int, step: Record) -> _Read:
    """A step from SKIP_NUMBER to LAST_SKIP."""
    operation = step.operation
    if operation == avro_step.SKIP_NUMBER:
        _, behind = varint(at, end)
        if behind == 0:
            return _short_number(at, end), at, 0
        return status.DONE, behind, 0
    if operation == avro_step.SKIP_FIXED:
        if step.one > end - at:
            return avro_step.CUT_SHORT, at, 0
        return status.DONE, at + step.one, 0
    fault, begin, size = length(at, end)
    if fault != status.DONE:
        return fault, at, size
    return status.DONE, begin + size, 0
