"""The words of JSON, as bytes: blanks, strings, names.

Addresses go from ``at`` to ``end``, the end of the record. A fault is an address of 0, with what
is wrong in ``json_kind``. Cost: 8 bytes of a string a nanosecond.
"""

from numba import uint64

from kshare.read.decode import json_kind
from kshare.read.decode.kernels.native import (
    Int,
    Record,
    Word,
    helper,
    json_field_at,
    json_step_at,
    load_i64,
    load_u8,
    load_u64,
    store_u8,
    trailing_zeros,
)
from kshare.read.decode.layout import JSON_FIELD, JSON_STEP

__all__ = [
    "compact",
    "find_field",
    "first_word",
    "has_half_pair",
    "is_same",
    "is_word",
    "skip_space",
    "skip_string",
    "step_of",
    "unescape",
]

ESCAPES = 1  # in what skip_string finds
HIGH_BYTES = 2

_STEP_SIZE = JSON_STEP.itemsize
_FIELD_SIZE = JSON_FIELD.itemsize
_ONES = 0x0101010101010101
_HIGHS = 0x8080808080808080
_BACKSLASH = 0x5C


@helper
def step_of(state: Record, number: int) -> Record:
    """The step of a node."""
    return json_step_at(state.steps + _STEP_SIZE * number)


@helper
def skip_space(at: int, end: int) -> Int:
    """The address of the first byte that is no blank."""
    while at < end:
        byte = load_u8(at)
        if byte > 0x20 or byte not in (0x20, 0x0A, 0x0D, 0x09):
            break
        at += 1
    return at


@helper
def _zero_bytes(word: Word) -> Word:
    """The upper bit of each byte that is 0; bits above the first such byte may be wrong."""
    return (word - uint64(_ONES)) & ~word & uint64(_HIGHS)


@helper
def _stops(word: Word, quotes: Word) -> Word:
    """The upper bit of the bytes that are a quote, a backslash or a control character.

    Only the lowest of them is certain.
    """
    controls = (word - uint64(0x2020202020202020)) & ~word & uint64(_HIGHS)
    return _zero_bytes(word ^ quotes) | _zero_bytes(word ^ uint64(0x5C5C5C5C5C5C5C5C)) | controls


@helper
def _hex(byte: int) -> Int:
    """The value of a hexadecimal digit; -1: it is none."""
    if 0x30 <= byte <= 0x39:
        return byte - 0x30
    byte |= 0x20
    return byte - 0x57 if 0x61 <= byte <= 0x66 else -1


@helper
def _hex4(at: int) -> Int:
    """The number of four hexadecimal digits; negative: they are none."""
    one, two = _hex(load_u8(at)), _hex(load_u8(at + 1))
    three, four = _hex(load_u8(at + 2)), _hex(load_u8(at + 3))
    if one < 0 or two < 0 or three < 0 or four < 0:
        return -1
    return (one << 12) | (two << 8) | (three << 4) | four


@helper
def _skip_escape(at: int, end: int, flags: int) -> tuple[int, int]:
    """The address behind an escape, whose backslash is here; 0, and what is wrong."""
    if end - at < 2:
        return 0, json_kind.CUT_SHORT
    byte = load_u8(at + 1)
    if byte == 0x75:
        if end - at < 6:
            return 0, json_kind.CUT_SHORT
        if _hex4(at + 2) < 0:
            return 0, json_kind.MALFORMED
        return at + 6, 0
    if byte in (0x22, _BACKSLASH, 0x2F, 0x62, 0x66, 0x6E, 0x72, 0x74) or (
        byte == 0x27 and flags & json_kind.NO_SINGLE_QUOTES == 0
    ):
        return at + 2, 0
    return 0, json_kind.MALFORMED


@helper
def skip_string(at: int, end: int, quote: int, flags: int) -> tuple[int, int]:
    """Check a string.

    Args:
        at: The address behind its opening quote.
        end: The end of the record.
        quote: The quote.
        flags: Of the state.

    Returns:
        The address of its closing quote; whether it has ESCAPES and HIGH_BYTES. 0: what is wrong.
    """
    quotes = uint64(_ONES) * uint64(quote)
    found = 0
    highs = uint64(0)
    while True:
        word = uint64(0)
        stops = uint64(0)
        while end - at >= 8:
            word = load_u64(at)
            stops = _stops(word, quotes)
            if stops != uint64(0):
                break
            highs |= word
            at += 8
        if stops != uint64(0):
            count = trailing_zeros(stops) >> 3
            # Only what lies before the stop belongs to the string, as far as is known.
            highs |= word & ((uint64(1) << uint64(8 * count)) - uint64(1))
            at += count
        else:
            while at < end:
                byte = load_u8(at)
                if byte in (quote, _BACKSLASH) or byte < 0x20:
                    break
                highs |= uint64(byte)
                at += 1
            if at >= end:
                return 0, json_kind.CUT_SHORT
        byte = load_u8(at)
        if byte == quote:
            if highs & uint64(_HIGHS) != uint64(0):
                found |= HIGH_BYTES
            return at, found
        if byte != _BACKSLASH:
            return 0, json_kind.MALFORMED
        at, fault = _skip_escape(at, end, flags)
        if at == 0:
            return 0, fault
        found |= ESCAPES


@helper
def _put_character(target: int, code: int) -> Int:
    """Write a character as UTF-8; the address behind it."""
    if code < 0x80:
        store_u8(target, code)
        return target + 1
    if code < 0x800:
        store_u8(target, 0xC0 | (code >> 6))
        store_u8(target + 1, 0x80 | (code & 0x3F))
        return target + 2
    if code < 0x10000:
        store_u8(target, 0xE0 | (code >> 12))
        store_u8(target + 1, 0x80 | ((code >> 6) & 0x3F))
        store_u8(target + 2, 0x80 | (code & 0x3F))
        return target + 3
    store_u8(target, 0xF0 | (code >> 18))
    store_u8(target + 1, 0x80 | ((code >> 12) & 0x3F))
    store_u8(target + 2, 0x80 | ((code >> 6) & 0x3F))
    store_u8(target + 3, 0x80 | (code & 0x3F))
    return target + 4


@helper
def _short_escape(byte: int) -> Int:
    """The meaning of a letter behind a backslash."""
    if byte == 0x6E:
        return 0x0A
    if byte == 0x74:
        return 0x09
    if byte == 0x72:
        return 0x0D
    if byte == 0x62:
        return 0x08
    return 0x0C if byte == 0x66 else byte


@helper
def unescape(at: int, end: int, target: int) -> Int:
    """Write a string that ``skip_string`` has checked, without its escapes.

    Half of a surrogate pair becomes a question mark, as in Java.

    Returns:
        How many bytes that are; never more than before.
    """
    begin = target
    while at < end:
        byte = load_u8(at)
        if byte != _BACKSLASH:
            store_u8(target, byte)
            target += 1
            at += 1
        elif load_u8(at + 1) != 0x75:
            store_u8(target, _short_escape(load_u8(at + 1)))
            target += 1
            at += 2
        else:
            code = _hex4(at + 2)
            at += 6
            if 0xD800 <= code < 0xE000:
                low = -1
                if code < 0xDC00 and end - at >= 6 and load_u8(at) == _BACKSLASH:
                    low = _hex4(at + 2) if load_u8(at + 1) == 0x75 else -1
                if 0xDC00 <= low < 0xE000:
                    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
                    at += 6
                else:
                    code = 0x3F
            target = _put_character(target, code)
    return target - begin


@helper
def has_half_pair(at: int, end: int) -> bool:
    """True if a string that ``skip_string`` has checked escapes half a surrogate pair."""
    while at < end:
        if load_u8(at) != _BACKSLASH:
            at += 1
            continue
        if load_u8(at + 1) != 0x75:
            at += 2
            continue
        code = _hex4(at + 2)
        at += 6
        if 0xD800 <= code < 0xE000:
            if code >= 0xDC00 or end - at < 6:
                return True
            if load_u8(at) != _BACKSLASH or load_u8(at + 1) != 0x75:
                return True
            if not 0xDC00 <= _hex4(at + 2) < 0xE000:
                return True
            at += 6
    return False


@helper
def is_word(at: int, end: int, word: int, size: int) -> bool:
    """True if the bytes here are those of a word, the first one lowest."""
    if end - at < size:
        return False
    byte = 0
    while byte < size and load_u8(at + byte) == (word >> (8 * byte)) & 0xFF:
        byte += 1
    return bool(byte == size)


@helper
def first_word(at: int, size: int, end: int) -> Int:
    """Up to 8 bytes as a number, the first one lowest, zeros behind."""
    if end - at >= 8:
        word = load_i64(at)
        return word if size >= 8 else word & ((1 << (8 * size)) - 1)
    word = 0
    byte = 0
    while byte < size and byte < 8:
        word |= load_u8(at + byte) << (8 * byte)
        byte += 1
    return word


@helper
def is_same(one: int, other: int, size: int) -> bool:
    """True if bytes are the same, of which the first 8 are known to be."""
    at = 8
    while at < size and load_u8(one + at) == load_u8(other + at):
        at += 1
    return bool(at >= size)


@helper
def find_field(state: Record, step: Record, guess: int, at: int, size: int, end: int) -> Int:
    """The number of the field of a name, among those of a struct; -1: it has none.

    Args:
        state: JsonState.
        step: The struct's.
        guess: The field to compare first; those behind it follow.
        at: Address of the name.
        size: Its size.
        end: The end of the record.
    """
    count = step.second
    word = first_word(at, size, end)
    left = count
    while left > 0:
        field = json_field_at(state.fields + _FIELD_SIZE * (step.first + guess))
        name = state.names + field.name
        if field.word == word and field.size == size and is_same(at, name, size):
            return guess
        guess += 1
        if guess == count:
            guess = 0
        left -= 1
    return -1


@helper
def compact(at: int, end: int, target: int) -> Int:
    """Write a value that was checked as Jackson writes it: without blanks.

    Returns:
        How many bytes that are, never more than before; -1: it has escapes, fractions or the like,
        which Jackson would write in another way.
    """
    begin = target
    quoted = False
    while at < end:
        byte = load_u8(at)
        at += 1
        if quoted:
            if byte == _BACKSLASH:
                return -1
            quoted = byte != 0x22
        elif byte == 0x22:
            quoted = True
        elif byte <= 0x20:
            continue
        elif (
            byte == 0x2E  # a fraction, an exponent, a zero with a sign, NaN, a single quote
            or byte in (0x45, 0x49, 0x4E, 0x2B, 0x27)
            or (byte == 0x2D and load_u8(at) == 0x30)
            or (byte == 0x65 and 0x30 <= load_u8(at - 2) <= 0x39)
        ):
            return -1
        store_u8(target, byte)
        target += 1
    return target - begin
