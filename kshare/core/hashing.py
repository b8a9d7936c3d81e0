"""The key hash, and ranges of it.

Guarantees: the hash of a record depends on nothing but its key (its offset, if it has none), so a
key is in exactly one of the ranges that a space is split into.
Cost: one MurmurHash3 a key; a split is linear in its parts, and cached.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from itertools import islice
from typing import Final

import mmh3

__all__ = [
    "HASH_SPACE",
    "WHOLE",
    "HashRange",
    "common",
    "complement",
    "key_hash",
    "merged",
    "minus",
    "span",
    "split",
    "without",
]

HASH_SPACE: Final = 1 << 63
"""Key hashes are integers in ``[0, HASH_SPACE)``."""


def key_hash(key: bytes | None, offset: int) -> int:
    """The hash of a record's key.

    The first 64 bits of MurmurHash3 x64-128, seed 0, shifted right by one. Not murmur2: that
    already chose the partition, so it would leave most ranges of a partition empty.

    Args:
        key: The record's key; None for a record without one. An empty key is a key.
        offset: The record's offset. A record without a key hashes it (as 8 bytes, little-endian),
            so that such records spread evenly.

    Returns:
        An integer in ``[0, HASH_SPACE)``.
    """
    hashed = offset.to_bytes(8, "little") if key is None else key
    return mmh3.mmh3_x64_128_utupledigest(hashed, 0)[0] >> 1


@dataclass(frozen=True, order=True, slots=True)
class HashRange:
    """Key hashes ``[lo, hi)``, never empty: ``0 <= lo < hi <= HASH_SPACE``.

    Raises:
        ValueError: The bounds are not such.
    """

    lo: int
    hi: int

    def __post_init__(self) -> None:
        if not 0 <= self.lo < self.hi <= HASH_SPACE:
            raise ValueError(
                f"not a hash range: [{self.lo},{self.hi}); wanted 0 <= lo < hi <= {HASH_SPACE}"
            )

    @classmethod
    def of(cls, hash_: int) -> "HashRange":
        """The range of one hash."""
        return cls(hash_, hash_ + 1)

    @classmethod
    def each(cls, hashes: Iterable[int]) -> "tuple[HashRange, ...]":
        """The ranges of some hashes, each of one hash, ascending."""
        return tuple(cls.of(hash_) for hash_ in sorted(hashes))

    def __str__(self) -> str:
        return f"[{self.lo},{self.hi})"

    def as_percent(self) -> str:
        """Return the shares of the hash space, which are easier to read than 19 digits.

        Two decimals, such as ``25.00 % to 50.00 %``; a thin range has as many as tell its ends
        apart, so ranges that tile the space have texts of their own. A range of one hash is named
        by it.
        """
        if self.width == 1:
            return f"hash {self.lo}"
        decimals = max(2, 19 - len(str(self.width)))  # a width of 19 digits is 10 % or more
        lo, hi = (Decimal(100 * bound) / HASH_SPACE for bound in (self.lo, self.hi))
        return f"{lo:.{decimals}f} % to {hi:.{decimals}f} %"

    def __contains__(self, hash_: int) -> bool:
        return self.lo <= hash_ < self.hi

    @property
    def width(self) -> int:
        """The number of hashes in the range."""
        return self.hi - self.lo

    @property
    def is_whole(self) -> bool:
        """True if the range is the whole hash space."""
        return self.lo == 0 and self.hi == HASH_SPACE

    def intersect(self, other: "HashRange") -> "HashRange | None":
        """The hashes that are in both ranges; None if there are none."""
        # One of the two is mostly the answer, and making another costs as much as all the rest.
        if self.lo <= other.lo and other.hi <= self.hi:
            return other
        if other.lo <= self.lo and self.hi <= other.hi:
            return self
        lo, hi = max(self.lo, other.lo), min(self.hi, other.hi)
        return HashRange(lo, hi) if lo < hi else None


WHOLE: Final = HashRange(0, HASH_SPACE)
"""The whole hash space."""


def span(hashes: Sequence[HashRange]) -> HashRange:
    """From the first hash of ascending ranges to the last; there is at least one."""
    return HashRange(hashes[0].lo, hashes[-1].hi)


@lru_cache(maxsize=256)
def split(hashes: HashRange, parts: int) -> tuple[HashRange, ...]:
    """Cut a range into equal parts, whose widths differ by one at most.

    Args:
        hashes: The range to cut.
        parts: Number of parts; at least 1, at most the width of the range.

    Returns:
        The parts, ascending. Part ``i`` begins at ``lo + width * i // parts``.

    Raises:
        ValueError: There cannot be that number of parts.
    """
    if not 1 <= parts <= hashes.width:
        raise ValueError(f"cannot cut {hashes} into {parts} parts")
    cuts = [hashes.lo + hashes.width * i // parts for i in range(parts + 1)]
    return tuple(HashRange(cuts[i], cuts[i + 1]) for i in range(parts))


def without(hashes: Sequence[HashRange], points: Collection[int]) -> tuple[HashRange, ...]:
    """Remove single hashes from hash ranges.

    Args:
        hashes: Disjoint ranges, ascending.
        points: Key hashes, in any order; those that are in no range change nothing.

    Returns:
        What is left, disjoint and ascending: ``[5, 9)`` without 7 is ``[5, 7)`` and ``[8, 9)``.
    """
    if not points:
        return tuple(hashes)
    cuts = sorted(set(points))
    left: list[HashRange] = []
    i = 0
    for part in hashes:
        i = bisect_left(cuts, part.lo, i)
        lo = part.lo
        while i < len(cuts) and cuts[i] < part.hi:
            if lo < cuts[i]:
                left.append(HashRange(lo, cuts[i]))
            lo = cuts[i] + 1
            i += 1
        if lo < part.hi:
            left.append(part if lo == part.lo else HashRange(lo, part.hi))
    return tuple(left)


def complement(hashes: Sequence[HashRange]) -> tuple[HashRange, ...]:
    """The key hashes that are in none of some disjoint ranges, ascending."""
    return minus((WHOLE,), hashes)


def common(hashes: Sequence[HashRange], others: Sequence[HashRange]) -> tuple[HashRange, ...]:
    """Key hashes that are in both."""
    return tuple(
        both for one in hashes for other in others if (both := one.intersect(other)) is not None
    )


def merged(hashes: Iterable[HashRange]) -> tuple[HashRange, ...]:
    """Hash ranges that may overlap as disjoint ones: ascending, neighbours joined."""
    ascending = sorted(hashes)
    if len(ascending) < 2:
        return tuple(ascending)
    parts: list[HashRange] = []
    for part in ascending:
        if parts and part.lo <= parts[-1].hi:
            parts[-1] = HashRange(parts[-1].lo, max(parts[-1].hi, part.hi))
        else:
            parts.append(part)
    return tuple(parts)


def minus(hashes: Iterable[HashRange], taken: Iterable[HashRange]) -> tuple[HashRange, ...]:
    """Hash ranges without others, which may overlap; as of :func:`merged`."""
    cuts, left, first = merged(taken), list[HashRange](), 0
    for part in merged(hashes):
        lo = part.lo
        while first < len(cuts) and cuts[first].hi <= lo:
            first += 1
        for cut in islice(cuts, first, None):
            if cut.lo >= part.hi:
                break
            if lo < cut.lo:
                left.append(HashRange(lo, cut.lo))
            lo = cut.hi
        if lo < part.hi:
            left.append(HashRange(lo, part.hi))
    return tuple(left)
