"""Values of JSON that are no objects and no arrays: from their words to a node of the output."""

from numba import types, uint64

from kshare.read.decode import json_kind, status
from kshare.read.decode.kernels.json_numbers import NUMBER_MAX, double, scaled, skip_number
from kshare.read.decode.kernels.json_patterns import by_pattern
from kshare.read.decode.kernels.json_text import (
    ESCAPES,
    HIGH_BYTES,
    is_word,
    unescape,
)
from kshare.read.decode.kernels.json_times import date, timestamp
from kshare.read.decode.kernels.native import (
    Int,
    Record,
    Word,
    bits_of_f32,
    f64_of_bits,
    helper,
    load_u8,
    store_u8,
)
from kshare.read.decode.kernels.output import (
    begin_bytes,
    end_bytes,
    put_boolean,
    put_bytes,
    put_fixed,
    put_pair,
)
from kshare.read.decode.kernels.text import is_utf8

__all__ = ["HARD", "SCALAR_FAULT", "WRONG", "put_string", "put_word", "skip_word"]

# The results of what puts a value, besides DONE and FULL.
WRONG = 100  # it is of another type
HARD = 101

# The kinds of words.
NULL = 0
BOOLEAN = 1
NUMBER = 2
NON_NUMBER = 3
SCALAR_FAULT = 4

_TRUE = 0x65757274
_FALSE = 0x65736C6166
_NULL = 0x6C6C756E
_NAN = 0x4E614E
_INF = 0x464E49
_INFINITY = 0x7974696E69666E49
_F64_NAN = 0x7FF8000000000000
_F64_INFINITY = 0x7FF0000000000000
_F32_NAN = 0x7FC00000
_F32_INFINITY = 0x7F800000
_SIGN_64 = -0x8000000000000000
_INT64_MAX = 0x7FFFFFFFFFFFFFFF
_SHORT_MAX = 15  # digits that come out of a double as they went in


@helper
def _skip_non_number(at: int, end: int) -> tuple[int, int]:
    """NaN, Infinity and the like: the address behind it, and the bits of the double; 0: none."""
    if is_word(at, end, _NAN, 3):
        return at + 3, _F64_NAN
    begin = at
    negative = load_u8(at) == 0x2D
    if negative or load_u8(at) == 0x2B:
        at += 1
    bits = _F64_INFINITY | _SIGN_64 if negative else _F64_INFINITY
    if is_word(at, end, _INFINITY, 8):
        return at + 8, bits
    if at > begin and is_word(at, end, _INF, 3):
        return at + 3, bits
    return 0, 0


@helper
def skip_word(at: int, end: int, flags: int) -> tuple[int, int, Word, int, int, bool]:  # noqa: PLR0911
    """Read a word that is no string, at an address below ``end``.

    Returns:
        The address behind it; its kind; and of a number what ``skip_number`` gives, of true, NaN
        and the like a value in place of the digits. SCALAR_FAULT: what is wrong is in place of the
        digits' number.
    """
    byte = load_u8(at)
    if 0x30 <= byte <= 0x39 or byte == 0x2D:
        begin = at + 1 if byte == 0x2D else at
        if begin < end and load_u8(begin) == 0x49:
            behind, bits = _skip_non_number(at, end)
            if behind != 0 and flags & json_kind.NO_NON_NUMBERS == 0:
                return behind, NON_NUMBER, uint64(bits), 0, 0, False
            return 0, SCALAR_FAULT, uint64(0), json_kind.MALFORMED, 0, False
        behind, mantissa, count, exponent, is_float = skip_number(begin, end)
        kind = NUMBER if behind != 0 else SCALAR_FAULT
        return behind, kind, mantissa, count, exponent, is_float
    if is_word(at, end, _TRUE, 4):
        return at + 4, BOOLEAN, uint64(1), 0, 0, False
    if is_word(at, end, _FALSE, 5):
        return at + 5, BOOLEAN, uint64(0), 0, 0, False
    if is_word(at, end, _NULL, 4):
        return at + 4, NULL, uint64(0), 0, 0, False
    behind, bits = _skip_non_number(at, end)
    if behind != 0 and flags & json_kind.NO_NON_NUMBERS == 0:
        return behind, NON_NUMBER, uint64(bits), 0, 0, False
    return 0, SCALAR_FAULT, uint64(0), json_kind.MALFORMED, 0, False


@helper
def _put_float(node: Record, bits: int) -> Int:
    """Append the bits of a double to a node of floats; HARD: it may not be the nearest."""
    value = f64_of_bits(bits)
    size = abs(value)
    if bits & 0x1FFFFFFF == 0x10000000 or (size < 1.2e-38 and size != 0.0):
        return HARD
    if size > 3.4e38:
        return HARD
    return put_fixed(node, bits_of_f32(types.float32(value)))


@helper
def _is_short(begin: int, at: int, count: int) -> bool:
    """True if a fraction is written as Java writes a double: a point, few digits, no exponent."""
    if count > _SHORT_MAX or at - begin > _SHORT_MAX + 2:
        return False
    point = begin
    while point < at and load_u8(point) != 0x2E:
        point += 1
    whole = point - begin
    digits = at - point - 1
    if digits < 1 or whole > 7 or (load_u8(at - 1) | 0x20) == 0x65:
        return False
    byte = begin
    while byte < at:
        if (load_u8(byte) | 0x20) == 0x65:
            return False
        byte += 1
    if load_u8(at - 1) == 0x30 and digits > 1:
        return False
    if load_u8(begin) != 0x30 or count == 0:
        return True
    # Below a thousandth Java writes an exponent.
    return bool(
        load_u8(point + 1) != 0x30
        or (digits > 1 and load_u8(point + 2) != 0x30)
        or (digits > 2 and load_u8(point + 3) != 0x30)
    )


@helper
def _put_number_text(
    node: Record, at: int, behind: int, stop: int, count: int, is_float: bool
) -> Int:
    """Append the text of a number, as Jackson writes it; HARD: in another way."""
    negative = load_u8(at) == 0x2D
    digits = at + 1 if negative else at
    if is_float:
        if not _is_short(digits, behind, count):
            return HARD
        return put_bytes(node, at, behind - at, stop)
    if count == 0:
        return put_bytes(node, behind - 1, 1, stop)  # a zero has no sign
    return put_bytes(node, at, behind - at, stop)


@helper
def _put_integer(node: Record, step: Record, mantissa: Word, count: int, negative: bool) -> Int:
    """Append an integer, if its type has room for it."""
    if count > 19:
        return WRONG
    limit = uint64(_INT64_MAX)
    if negative:
        limit += uint64(1)
    if mantissa > limit:
        return WRONG
    value: Int = types.int64(mantissa)
    if negative:
        value = -value
    if value < step.first or value > step.second:
        return WRONG
    return put_fixed(node, value)


@helper
def _put_decimal(
    node: Record, step: Record, mantissa: Word, count: int, exponent: int, negative: bool
) -> Int:
    result, number = scaled(mantissa, count, exponent, step.first, step.second)
    if result == json_kind.HARD:
        return HARD
    if result != 0:
        return WRONG
    value = -number if negative else number
    return put_pair(node, value, value >> 63)


@helper
def _put_number(  # noqa: PLR0911
    state: Record,
    node: Record,
    step: Record,
    at: int,
    behind: int,
    mantissa: Word,
    count: int,
    exponent: int,
    is_float: bool,
) -> Int:
    kind = step.kind
    negative = load_u8(at) == 0x2D
    if behind - at >= NUMBER_MAX:
        return HARD
    if kind == json_kind.INTEGER:
        return WRONG if is_float else _put_integer(node, step, mantissa, count, negative)
    if kind in (json_kind.DOUBLE, json_kind.FLOAT):
        bits = double(state, mantissa, count, exponent)
        if bits < 0:
            return HARD
        # An integer that is 0 has no sign, as it is made by way of an integer.
        if negative and (is_float or count > 0):
            bits |= _SIGN_64
        if kind == json_kind.FLOAT:
            return _put_float(node, bits)
        return put_fixed(node, bits)
    if kind == json_kind.STRING:
        stop = state.rows.source + state.rows.size
        return _put_number_text(node, at, behind, stop, count, is_float)
    if kind == json_kind.DECIMAL:
        return _put_decimal(node, step, mantissa, count, exponent, negative)
    if kind == json_kind.TIMESTAMP and not is_float:
        return _put_seconds(node, mantissa, count, negative)
    return HARD if kind == json_kind.PATTERN else WRONG


@helper
def _put_seconds(node: Record, mantissa: Word, count: int, negative: bool) -> Int:
    """Append a timestamp in seconds; HARD: it may be none, or beyond 64 bits."""
    if count > 12:
        return WRONG if count > 19 else HARD
    seconds: Int = types.int64(mantissa)
    return put_fixed(node, (-seconds if negative else seconds) * 1_000_000)


@helper
def put_word(  # noqa: PLR0911
    state: Record,
    node: Record,
    step: Record,
    kind: int,
    at: int,
    behind: int,
    mantissa: Word,
    count: int,
    exponent: int,
    is_float: bool,
) -> Int:
    """Append a word that ``skip_word`` has read, but null.

    Returns:
        DONE, FULL, WRONG or HARD.
    """
    if kind == NUMBER:
        return _put_number(state, node, step, at, behind, mantissa, count, exponent, is_float)
    wanted = step.kind
    if kind == BOOLEAN:
        if wanted == json_kind.BOOLEAN:
            return put_boolean(node, types.int64(mantissa))
        if wanted == json_kind.STRING:
            return put_bytes(node, at, behind - at, state.rows.source + state.rows.size)
        return WRONG
    # NaN and its kind
    if wanted == json_kind.DOUBLE:
        return put_fixed(node, types.int64(mantissa))
    if wanted == json_kind.FLOAT:
        return _put_non_float(node, types.int64(mantissa))
    return HARD if wanted == json_kind.STRING else WRONG


@helper
def _put_non_float(node: Record, bits: int) -> Int:
    if bits == _F64_NAN:
        return put_fixed(node, _F32_NAN)
    return put_fixed(node, _F32_INFINITY if bits > 0 else _F32_INFINITY | 0x80000000)


@helper
def _put_text(node: Record, at: int, end: int, stop: int, found: int) -> Int:
    """Append the content of a string."""
    if found & HIGH_BYTES != 0 and not is_utf8(at, end):
        return HARD
    if found & ESCAPES == 0:
        return put_bytes(node, at, end - at, stop)
    target = begin_bytes(node, end - at)
    if target == 0:
        return status.FULL
    end_bytes(node, unescape(at, end, target))
    return status.DONE


@helper
def _sextet(byte: int) -> Int:
    """The value of a digit of base 64; -1: it is none."""
    if 0x41 <= byte <= 0x5A:
        return byte - 0x41
    if 0x61 <= byte <= 0x7A:
        return byte - 0x47
    if 0x30 <= byte <= 0x39:
        return byte + 4
    if byte == 0x2B:
        return 62
    return 63 if byte == 0x2F else -1


@helper
def _put_base64(node: Record, at: int, end: int) -> Int:
    """Append what base 64 says; HARD: it is no groups of four, or has blanks."""
    if (end - at) & 3 != 0:
        return HARD
    target = begin_bytes(node, end - at)
    if target == 0:
        return status.FULL
    begin = target
    while at < end:
        one, two = _sextet(load_u8(at)), _sextet(load_u8(at + 1))
        three, four = _sextet(load_u8(at + 2)), _sextet(load_u8(at + 3))
        if one < 0 or two < 0 or three < 0 or four < 0:
            # Padding, blanks between groups, or what is wrong.
            ends = load_u8(at + 3) == 0x3D
            if not ends or end - at > 4 or one < 0 or two < 0:
                return HARD if ends or load_u8(at) <= 0x20 else WRONG
            if three < 0 and load_u8(at + 2) != 0x3D:
                return HARD
            store_u8(target, (one << 2) | (two >> 4))
            target += 1
            if three >= 0:
                store_u8(target, ((two << 4) | (three >> 2)) & 0xFF)
                target += 1
            break
        store_u8(target, (one << 2) | (two >> 4))
        store_u8(target + 1, ((two << 4) | (three >> 2)) & 0xFF)
        store_u8(target + 2, ((three << 6) | four) & 0xFF)
        target += 3
        at += 4
    end_bytes(node, target - begin)
    return status.DONE


@helper
def _put_decimal_text(node: Record, step: Record, at: int, end: int) -> Int:
    begin = at
    negative = load_u8(at) == 0x2D
    if negative:
        at += 1
    behind, mantissa, count, exponent, _ = skip_number(at, end)
    if behind == end:
        return _put_decimal(node, step, mantissa, count, exponent, negative)
    while begin < end:
        byte = load_u8(begin)
        # A digit, a comma, a point, a sign or an exponent; Java knows digits that are not ASCII.
        if not (0x2B <= byte <= 0x39 and byte != 0x2F) and byte | 0x20 != 0x65 and byte < 0x80:
            return WRONG
        begin += 1
    return HARD


@helper
def _put_special(node: Record, wanted: int, at: int, end: int, flags: int) -> Int:
    """Append NaN and its kind, written as strings, to floats or doubles."""
    if flags & json_kind.NO_NON_NUMBERS != 0:
        return WRONG
    behind, bits = _skip_non_number(at, end)
    if behind != end:
        return WRONG
    return _put_non_float(node, bits) if wanted == json_kind.FLOAT else put_fixed(node, bits)


@helper
def put_string(state: Record, node: Record, step: Record, at: int, end: int, found: int) -> Int:  # noqa: PLR0911
    """Append a string that ``skip_string`` has checked.

    Args:
        state: JsonState.
        node: Where to.
        step: The node's.
        at: Address behind the opening quote.
        end: Address of the closing one.
        found: Whether it has ESCAPES and HIGH_BYTES.

    Returns:
        DONE, FULL, WRONG or HARD.
    """
    wanted = step.kind
    if wanted == json_kind.STRING:
        return _put_text(node, at, end, state.rows.source + state.rows.size, found)
    if wanted in (json_kind.BOOLEAN, json_kind.INTEGER, json_kind.STRUCT) or (
        wanted in (json_kind.LIST, json_kind.MAP)
    ):
        return WRONG
    if found & ESCAPES != 0:
        return HARD
    if wanted == json_kind.BINARY:
        return _put_base64(node, at, end)
    if at == end:
        return WRONG
    if wanted in (json_kind.DOUBLE, json_kind.FLOAT):
        return _put_special(node, wanted, at, end, state.flags)
    if wanted == json_kind.DECIMAL:
        return _put_decimal_text(node, step, at, end)
    value = 0
    if wanted == json_kind.PATTERN:
        if step.second == 0 or found & HIGH_BYTES != 0:
            return HARD
        result, value = by_pattern(state, step, at, end)
    elif wanted == json_kind.DATE:
        result, value = date(at, end)
    else:
        result, value = timestamp(state, at, end, wanted == json_kind.LOCAL_TIMESTAMP)
    if result != 0:
        return HARD if result == json_kind.HARD else WRONG
    return put_fixed(node, value)
