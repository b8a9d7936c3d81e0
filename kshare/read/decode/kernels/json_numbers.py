"""Numbers in decimal digits: integers, doubles, decimals.

A double is the nearest to the digits, by Clinger's way for few of them and by Lemire's ("Number
Parsing at a Gigabyte per Second", 2021) for up to 19. What neither decides is left to the caller:
more digits, and doubles near zero.
"""

from numba import types, uint64

from kshare.read.decode import json_kind
from kshare.read.decode.kernels.native import (
    Int,
    Record,
    Word,
    bits_of_f64,
    f64_of_bits,
    helper,
    leading_zeros,
    load_i64,
    load_u8,
    load_u64,
    multiply_high,
)

__all__ = ["DIGITS_MAX", "NUMBER_MAX", "double", "scaled", "skip_number"]

DIGITS_MAX = 19  # that 64 bits hold
NUMBER_MAX = 1000  # bytes; the plain readers know how many digits there may be
_EXPONENT_MAX = 9_999
_EXACT = 1 << 53
_LEAST_POWER = -342
_GREATEST_POWER = 308


@helper
def _digits(at: int, end: int, mantissa: Word, count: int) -> tuple[int, Word, int]:
    """Read digits on, to the mantissa and the number of those in it but zeros in front.

    Digits behind the 19th are counted, and not taken.
    """
    while at < end:
        digit = load_u8(at) - 0x30
        if digit < 0 or digit > 9:
            break
        if count < DIGITS_MAX:
            mantissa = mantissa * uint64(10) + uint64(digit)
        if count > 0 or digit > 0:
            count += 1
        at += 1
    return at, mantissa, count


@helper
def skip_number(at: int, end: int) -> tuple[int, Word, int, int, bool]:
    """Read a number whose sign is passed over.

    Returns:
        The address behind it; its digits as a number, as far as they fit; how many there are but
        zeros in front; the power of ten to multiply with; whether it has a fraction or an exponent.
        The address is 0: it is none, and CUT_SHORT or MALFORMED is in place of the digits' number.
    """
    begin = at
    mantissa = uint64(0)
    at, mantissa, count = _digits(at, end, mantissa, 0)
    if at == begin:
        wrong = json_kind.CUT_SHORT if at >= end else json_kind.MALFORMED
        return 0, uint64(0), wrong, 0, False
    if load_u8(begin) == 0x30 and at - begin > 1:
        return 0, uint64(0), json_kind.MALFORMED, 0, False
    exponent = 0
    is_float = False
    if at < end and load_u8(at) == 0x2E:
        is_float = True
        begin = at + 1
        at, mantissa, count = _digits(begin, end, mantissa, count)
        if at == begin:
            wrong = json_kind.CUT_SHORT if at >= end else json_kind.MALFORMED
            return 0, uint64(0), wrong, 0, False
        exponent = begin - at
    if at < end and (load_u8(at) | 0x20) == 0x65:
        is_float = True
        at += 1
        negative = False
        if at < end and (load_u8(at) == 0x2D or load_u8(at) == 0x2B):
            negative = load_u8(at) == 0x2D
            at += 1
        begin = at
        power = 0
        while at < end:
            digit = load_u8(at) - 0x30
            if digit < 0 or digit > 9:
                break
            if power <= _EXPONENT_MAX:
                power = power * 10 + digit
            at += 1
        if at == begin:
            wrong = json_kind.CUT_SHORT if at >= end else json_kind.MALFORMED
            return 0, uint64(0), wrong, 0, False
        exponent += -power if negative else power
    return at, mantissa, count, exponent, is_float


@helper
def _lemire(state: Record, mantissa: Word, exponent: int) -> Int:
    """The bits of the double nearest to mantissa * 10 ** exponent; -1: it is not certain."""
    if exponent < _LEAST_POWER or exponent > _GREATEST_POWER:
        return -1
    zeros = leading_zeros(mantissa)
    shifted = mantissa << uint64(zeros)
    power = state.powers + 16 * (exponent - _LEAST_POWER)
    factor = load_u64(power)
    low = shifted * factor
    high = multiply_high(shifted, factor)
    if high & uint64(0x1FF) == uint64(0x1FF):
        more = multiply_high(shifted, load_u64(power + 8))
        low += more
        if low < more:
            high += uint64(1)
    if low == uint64(0xFFFFFFFFFFFFFFFF) and (exponent < -27 or exponent > 55):
        return -1
    upper = types.int64(high >> uint64(63))
    bits = high >> uint64(upper + 9)
    binary = ((152170 + 65536) * exponent >> 16) + 63 + upper - zeros + 1023
    if binary <= 0 or binary >= 0x7FE:
        return -1
    if (
        low <= uint64(1)
        and -4 <= exponent <= 23
        and bits & uint64(3) == uint64(1)
        and bits << uint64(upper + 9) == high
    ):
        bits &= ~uint64(1)  # half way between two: the even one
    bits += bits & uint64(1)
    bits >>= uint64(1)
    if bits >= uint64(2 << 52):
        bits = uint64(1 << 52)
        binary += 1
    return (binary << 52) | (types.int64(bits) & ((1 << 52) - 1))


@helper
def double(state: Record, mantissa: Word, count: int, exponent: int) -> Int:
    """The bits of the double that is nearest to digits; -1: it is not decided.

    Args:
        state: JsonState.
        mantissa: The digits.
        count: How many there are.
        exponent: Of ten, to multiply with.
    """
    if count == 0:
        return 0
    if count > DIGITS_MAX:
        return -1
    if -22 <= exponent <= 22 and mantissa <= uint64(_EXACT):
        whole: Int = types.int64(mantissa)
        number: Int = types.float64(whole)
        if exponent < 0:
            number /= f64_of_bits(load_i64(state.tens - 8 * exponent))
        else:
            number *= f64_of_bits(load_i64(state.tens + 8 * exponent))
        return bits_of_f64(number)
    return _lemire(state, mantissa, exponent)


@helper
def _ten_to(power: int) -> Int:
    """A power of ten that 63 bits hold: 0 to 18."""
    found = 1
    while power > 0:
        found *= 10
        power -= 1
    return found


@helper
def scaled(  # noqa: PLR0911
    mantissa: Word, count: int, exponent: int, precision: int, scale: int
) -> tuple[int, int]:
    """A decimal's digits at its scale, rounded half up.

    Returns:
        0 and the number; HARD: it is not decided; TYPE: it has more digits than the precision.
    """
    if count == 0:
        return 0, 0
    if count > 18:
        return json_kind.HARD, 0
    shift = exponent + scale
    number = types.int64(mantissa)
    if shift >= 0:
        if count + shift > precision:
            return json_kind.TYPE, 0
        if count + shift > 18:
            return json_kind.HARD, 0
        number *= _ten_to(shift)
    elif shift < -18:
        return 0, 0
    else:
        divisor = _ten_to(-shift)
        quotient = number // divisor
        if 2 * (number - quotient * divisor) >= divisor:
            quotient += 1
        number = quotient
    if precision <= 18 and number >= _ten_to(precision):
        return json_kind.TYPE, 0
    return 0, number
