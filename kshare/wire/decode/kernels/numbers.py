"""Varints, and the hash of a key."""

from numba import types, uint64

from kshare.wire.decode.kernels.native import Int, Word, helper, load_u8, load_u64

__all__ = ["hash_key", "hash_offset", "varint"]


@helper
def varint(at: int, end: int) -> tuple[int, int]:
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
def _rotl(value: Word, bits: Word) -> Word:
    return (value << bits) | (value >> (uint64(64) - bits))


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
    return _rotl(word * uint64(0x87C37B91114253D5), uint64(31)) * uint64(0x4CF5AD432745937F)


@helper
def _mix2(word: Word) -> Word:
    return _rotl(word * uint64(0x4CF5AD432745937F), uint64(33)) * uint64(0x87C37B91114253D5)


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
def hash_key(at: int, size: int, end: int) -> Int:
    """The key hash of some bytes, in a buffer that ends at ``end``.

    MurmurHash3 x64-128 by Austin Appleby (public domain), seed 0.
    """
    h1 = uint64(0)
    h2 = uint64(0)
    rest = size
    while rest >= 16:
        h1 ^= _mix1(load_u64(at))
        h1 = (_rotl(h1, uint64(27)) + h2) * uint64(5) + uint64(0x52DCE729)
        h2 ^= _mix2(load_u64(at + 8))
        h2 = (_rotl(h2, uint64(31)) + h1) * uint64(5) + uint64(0x38495AB5)
        at += 16
        rest -= 16
    if rest > 8:
        h2 ^= _mix2(_little(at + 8, rest - 8, end))
    if rest > 0:
        h1 ^= _mix1(_little(at, min(rest, 8), end))
    return _finish(h1, h2, size)


@helper
def hash_offset(offset: int) -> Int:
    """The hash of a record without a key: of its offset as 8 bytes, little-endian."""
    return _finish(_mix1(uint64(offset)), uint64(0), 8)
