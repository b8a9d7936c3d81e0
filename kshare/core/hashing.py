"""The key hash, and ranges of it.

Guarantees: the hash of a record depends on nothing but its key (its offset, if it has none), so a
key is in exactly one of the ranges that a space is split into.
Cost: one MurmurHash3 a key; a split is linear in its parts, and cached. Of sets of hashes, ``&`` is
linear in the smaller one, and ``-`` in the left one, but for bisection. :func:`in_both` is linear.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from operator import attrgetter
from typing import Final, Self, TypeVar

import mmh3

__all__ = [
    "ALL_HASHES",
    "HASH_SPACE",
    "NO_HASHES",
    "WHOLE",
    "HashRange",
    "KeyRanges",
    "hash_ranges",
    "in_both",
    "key_hash",
    "split",
]

_OneT = TypeVar("_OneT")
_TwoT = TypeVar("_TwoT")

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
        ValueError: The bounds break that rule.
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

    def __str__(self) -> str:
        return f"[{self.lo},{self.hi})"

    def as_percent(self) -> str:
        """Return the shares of the hash space, which are easier to read than 19 digits.

        Two decimals, such as ``25.00 % to 50.00 %``; a narrow range gets as many as tell its ends
        apart, so ranges that tile the space have different texts. A range of one hash shows that
        hash.
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
        # The answer is mostly one of the two; making a third doubles the cost.
        if self.lo <= other.lo and other.hi <= self.hi:
            return other
        if other.lo <= self.lo and self.hi <= other.hi:
            return self
        lo, hi = max(self.lo, other.lo), min(self.hi, other.hi)
        return HashRange(lo, hi) if lo < hi else None


WHOLE: Final = HashRange(0, HASH_SPACE)
"""The whole hash space."""


class KeyRanges(tuple[HashRange, ...]):
    """A set of key hashes: disjoint ranges, ascending, of which no two touch.

    Equal sets are equal, also to the tuple of the same ranges; ``&``, ``|`` and ``-`` are those of
    sets. ``len`` and iteration are those of the ranges; ``width`` is the number of hashes, and
    ``holds`` asks for one of them: ``in`` is refused. Parts of a partition that touch and are to
    stay apart are a ``tuple[HashRange, ...]``.

    Args:
        ranges: The ranges, in any order; they may overlap.
    """

    __slots__ = ()
    # A tuple's would look for a range, and find no hash.
    __contains__: None = None  # type: ignore[assignment]

    def __new__(cls, ranges: Iterable[HashRange] = ()) -> Self:  # noqa: D102
        if type(ranges) is cls:
            return ranges
        parts = list(ranges)
        if len(parts) > 1:
            parts.sort(key=_lo)
            parts = _joined(parts)
        return tuple.__new__(cls, parts)

    @classmethod
    def of_hashes(cls, hashes: Iterable[int]) -> "KeyRanges":
        """Some hashes, in any order."""
        return cls(map(HashRange.of, sorted(hashes)))  # at once: other threads may change them

    @classmethod
    def checked(cls, ranges: Iterable[HashRange]) -> "KeyRanges":
        """A set from the ranges that it is to have.

        Raises:
            ValueError: They are not ascending, or two of them touch.
        """
        given = tuple(ranges)
        if (hashes := cls(given)) != given:
            shown = ", ".join(map(str, given[:3]))
            raise ValueError(f"wanted ascending hash ranges with gaps between them, found: {shown}")
        return hashes

    @property
    def pairs(self) -> list[list[int]]:
        """For JSON: ``[[lo, hi], ...]``."""
        return [[part.lo, part.hi] for part in self]

    @property
    def width(self) -> int:
        """The number of hashes."""
        return sum(part.width for part in self)

    @property
    def is_all(self) -> bool:
        """True if it is the whole hash space."""
        return len(self) == 1 and self[0].is_whole

    @property
    def span(self) -> HashRange:
        """From the first hash to the last; there is at least one."""
        return HashRange(self[0].lo, self[-1].hi)

    def holds(self, hash_: int) -> bool:
        """True if a hash is in the set."""
        i = bisect_right(self, hash_, key=_lo) - 1
        return i >= 0 and hash_ < self[i].hi

    def overlapping(self, part: HashRange) -> tuple[HashRange, ...]:
        """The ranges of the set that overlap one; none is cut."""
        first = bisect_right(self, part.lo, key=_hi)
        return self[first : bisect_left(self, part.hi, first, key=_lo)]

    def isdisjoint(self, others: "KeyRanges") -> bool:
        """True if no hash is in both."""
        return not any(map(others.overlapping, self))

    def __and__(self, others: Iterable[HashRange]) -> "KeyRanges":
        few, many = self, KeyRanges(others)
        if len(many) < len(few):
            few, many = many, few
        return _trusted(
            [
                both
                for part in few
                for cut in many.overlapping(part)
                if (both := part.intersect(cut)) is not None
            ]
        )

    def __or__(self, others: Iterable[HashRange]) -> "KeyRanges":
        return KeyRanges([*self, *others])

    def __sub__(self, others: Iterable[HashRange]) -> "KeyRanges":
        cuts, left = KeyRanges(others), list[HashRange]()
        if not cuts:
            return self
        for part in self:
            lo = part.lo
            for cut in cuts.overlapping(part):
                if lo < cut.lo:
                    left.append(HashRange(lo, cut.lo))
                lo = cut.hi
            if lo < part.hi:
                left.append(part if lo == part.lo else HashRange(lo, part.hi))
        return _trusted(left)


_lo, _hi = attrgetter("lo"), attrgetter("hi")


def _trusted(parts: Iterable[HashRange]) -> KeyRanges:
    """A set from ranges that are ascending and do not touch; nothing is checked."""
    return tuple.__new__(KeyRanges, parts)


def _joined(ascending: Iterable[HashRange]) -> list[HashRange]:
    """Ranges that overlap or touch as one."""
    parts: list[HashRange] = []
    for part in ascending:
        if parts and part.lo <= parts[-1].hi:
            parts[-1] = HashRange(parts[-1].lo, max(parts[-1].hi, part.hi))
        else:
            parts.append(part)
    return parts


ALL_HASHES: Final = KeyRanges((WHOLE,))
NO_HASHES: Final = KeyRanges()


def in_both(
    ours: Sequence[tuple[HashRange, _OneT]], theirs: Sequence[tuple[HashRange, _TwoT]]
) -> Iterator[tuple[HashRange, _OneT, _TwoT]]:
    """The hashes that are in two lists, in common pieces, each with what the lists say of it.

    Args:
        ours: Hash ranges, ascending, disjoint.
        theirs: The same.

    Yields:
        Hash ranges, ascending, disjoint.
    """
    i = j = 0
    while i < len(ours) and j < len(theirs):
        (mine, one), (other, two) = ours[i], theirs[j]
        both = mine.intersect(other)
        if both is not None:
            yield both, one, two
        i += mine.hi <= other.hi
        j += other.hi <= mine.hi


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


def hash_ranges(number: int) -> tuple[HashRange, ...]:
    """Divide the hashes of all keys, for processes that claim their key ranges themselves.

    Process ``i`` of ``n`` claims ``hash_ranges(n)[i]`` of each partition::

        consumer.assign({("orders", 0): [kshare.hash_ranges(4)[0]]})

    Args:
        number: Number of ranges; at least 1.

    Returns:
        Half-open ranges ``[lo, hi)`` of hashes, ascending. They tile all hashes, and their widths
        differ by one at most.

    Raises:
        ValueError: There cannot be that number of ranges.
    """
    if not 1 <= number <= HASH_SPACE:
        raise ValueError(f"found {number} hash ranges; wanted at least 1, and no more than hashes")
    return split(WHOLE, number)
