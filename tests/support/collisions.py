"""Different keys with the same hash: MurmurHash3 of one block, run backwards.

It maps 16 bytes to 128 bits one to one, and the key hash is the first 64 of these. So each choice
of the others leads back to another key.
"""

import struct

_WORD = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
_F1, _F2 = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53


def _rotr(value: int, bits: int) -> int:
    return (value >> bits | value << (64 - bits)) & _WORD


def _divided(value: int, factor: int) -> int:
    return value * pow(factor, -1, 1 << 64) & _WORD


def _unmixed(value: int) -> int:
    """The inverse of ``fmix64``."""
    value ^= value >> 33
    value = _divided(value, _F2)
    value ^= value >> 33
    value = _divided(value, _F1)
    return value ^ value >> 33


def key_of(hash_: int, other: int) -> bytes:
    """A key of 16 bytes with this key hash; one for each ``other``, a number of 64 bits."""
    total = hash_ << 1
    h1, h2 = _unmixed(total - other & _WORD), _unmixed(other)
    h2 = h2 - h1 & _WORD
    h1 = h1 - h2 & _WORD
    h1, h2 = h1 ^ 16, h2 ^ 16
    h2 = _rotr(_divided(h2 - 0x38495AB5 & _WORD, 5) - h1 & _WORD, 31)
    h1 = _rotr(_divided(h1 - 0x52DCE729 & _WORD, 5), 27)
    k1 = _divided(_rotr(_divided(h1, _C2), 31), _C1)
    k2 = _divided(_rotr(_divided(h2, _C1), 33), _C2)
    return struct.pack("<QQ", k1, k2)
