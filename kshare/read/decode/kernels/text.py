"""Tells if bytes are text. Cost: 8 bytes a nanosecond of ASCII; 2 ns a character else."""

from kshare.read.decode.kernels.native import helper, load_i64, load_u8

__all__ = ["is_utf8"]

_HIGH_BITS = -0x7F7F7F7F7F7F7F80  # 0x8080808080808080, the highest bit of each byte


@helper
def _follow(at: int, count: int) -> bool:
    """True if this number of bytes continue a character."""
    while count > 0 and load_u8(at) & 0xC0 == 0x80:
        at += 1
        count -= 1
    return bool(count == 0)


@helper
def _character(at: int, end: int) -> int:
    """The size of the character of two to four bytes at an address; 0: there is none.

    RFC 3629: none is longer than it must be, a surrogate, or above U+10FFFF.
    """
    first = load_u8(at)
    size = 2
    low = 0x80
    high = 0xBF
    if first < 0xC2 or first > 0xF4:
        return 0
    if first >= 0xF0:
        size = 4
        low = 0x90 if first == 0xF0 else 0x80
        high = 0x8F if first == 0xF4 else 0xBF
    elif first >= 0xE0:
        size = 3
        low = 0xA0 if first == 0xE0 else 0x80
        high = 0x9F if first == 0xED else 0xBF
    if size > end - at:
        return 0
    second = load_u8(at + 1)
    if second < low or second > high or not _follow(at + 2, size - 2):
        return 0
    return size


@helper
def is_utf8(at: int, end: int) -> bool:
    """True if the bytes from an address to another are UTF-8."""
    while at < end:
        while end - at >= 8 and load_i64(at) & _HIGH_BITS == 0:
            at += 8
        if at < end:
            if load_u8(at) < 0x80:
                at += 1
            else:
                size = _character(at, end)
                if size == 0:
                    return False
                at += size
    return True
