"""Offset ranges, and sets of offsets: as flat integers, and as few bytes.

Guarantees: :data:`Bounds` are one tuple for one set, so ``==`` is set equality; every function
returns them so. As sets of integers they obey the laws of ``set``.
Cost: linear in the bounds, at the speed of C (sorting of what is nearly sorted, slices);
:func:`since`, :func:`within` and :func:`complement` look up by bisection, and copy.

Checkpoints and the individual commits of consumer groups hold sets as bytes: the differences
between their bounds, as LEB128. ``unpack(pack(bounds, base), base) == bounds``, and one set has one
text. A gap costs 2 bytes while it and what follows it are shorter than 128 offsets; both directions
then run at the speed of C.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import sub
from typing import Final, TypeAlias

__all__ = [
    "OFFSET_MAX",
    "START_MAX",
    "Bounds",
    "OffsetRange",
    "complement",
    "from_pairs",
    "intersect",
    "length",
    "pack",
    "since",
    "subtract",
    "union",
    "unpack",
    "within",
]

Bounds: TypeAlias = tuple[int, ...]
"""A set of integers: start, end, start, end, ... of half-open ranges, strictly ascending.

Ranges that touch are one range: ``(3, 5, 5, 7)`` is written ``(3, 7)``. The empty set is ``()``.
"""


@dataclass(frozen=True, order=True, slots=True)
class OffsetRange:
    """Offsets ``[start, end)``, never empty: ``0 <= start < end``.

    Raises:
        ValueError: The bounds are not such.
    """

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(
                f"not an offset range: [{self.start},{self.end}); wanted 0 <= start < end"
            )

    def __str__(self) -> str:
        return f"[{self.start},{self.end})"

    def __len__(self) -> int:
        return self.end - self.start

    def __contains__(self, offset: int) -> bool:
        return self.start <= offset < self.end


def from_pairs(starts: Iterable[int], ends: Iterable[int]) -> Bounds:
    """The union of half-open ranges, in any order, overlapping or not.

    Args:
        starts: The first integer of each range.
        ends: The end of each range, in the order of ``starts``, and greater than its start.
    """
    # With both sorted, a range begins a new stretch exactly if as many have ended before it as
    # have begun: which of the ends belongs to which start does not matter.
    begun, ended = sorted(starts), sorted(ends)
    if not begun:
        return ()
    bounds = [begun[0]]
    for end, start in zip(ended, begun[1:], strict=False):
        if end < start:
            bounds += (end, start)
    bounds.append(ended[-1])
    return tuple(bounds)


def union(layers: Iterable[Bounds]) -> Bounds:
    """The union of some sets."""
    some = sorted((bounds for bounds in layers if bounds), key=_first)
    if len(some) < 2:
        return some[0] if some else ()
    if all(lower[-1] <= upper[0] for lower, upper in pairwise(some)):
        return _joined(some)
    starts: list[int] = []
    ends: list[int] = []
    for bounds in some:
        starts += bounds[::2]
        ends += bounds[1::2]
    return from_pairs(starts, ends)


def _joined(some: Sequence[Bounds]) -> Bounds:
    """The union of sets that follow each other; neighbours may touch."""
    joined = list(some[0])
    for bounds in some[1:]:
        if joined[-1] == bounds[0]:
            joined.pop()
            joined += bounds[1:]
        else:
            joined += bounds
    return tuple(joined)


def _first(bounds: Bounds) -> int:
    return bounds[0]


def complement(bounds: Bounds, start: int, end: int) -> Bounds:
    """The part of ``[start, end)`` that is not in a set; nothing if ``end <= start``."""
    if end <= start:
        return ()
    # An odd number of bounds at or below ``start`` says that it is in the set: then what follows
    # is the end of a range, which is where a gap begins. The same for ``end``, from the other side.
    first, last = bisect_right(bounds, start), bisect_left(bounds, end)
    lead = () if first % 2 else (start,)
    tail = () if last % 2 else (end,)
    return (*lead, *bounds[first:last], *tail)


def intersect(one: Bounds, other: Bounds) -> Bounds:
    """The intersection of two sets."""
    if not one or not other:
        return ()
    return subtract(one, complement(other, one[0], one[-1]))


def subtract(bounds: Bounds, taken: Bounds) -> Bounds:
    """The part of a set that is not in another."""
    if not bounds or not taken or taken[-1] <= bounds[0] or bounds[-1] <= taken[0]:
        return bounds
    if taken[0] < bounds[0] or taken[-1] > bounds[-1]:
        taken = within(taken, bounds[0], bounds[-1])
    if not taken:
        return bounds
    # A commit differs from the one before at its end, so most ranges are the same in both.
    same = _same_ranges(bounds, taken)
    bounds, taken = bounds[same:], taken[same:]
    if not bounds or not taken:
        return bounds
    start, end = bounds[0], bounds[-1]
    return complement(union([complement(bounds, start, end), taken]), start, end)


def _same_ranges(one: Bounds, other: Bounds) -> int:
    """Number of leading bounds, of whole ranges, that are the same in two sets."""
    if one[0] != other[0]:
        return 0
    same, most = 1, min(len(one), len(other))
    while same < most:  # found by halves, each compared at the speed of C
        middle = (same + most + 1) // 2
        if one[same:middle] == other[same:middle]:
            same = middle
        else:
            most = middle - 1
    return same - same % 2


def since(bounds: Bounds, offset: int) -> Bounds:
    """The part of a set that is not below an offset."""
    if not bounds or offset <= bounds[0]:
        return bounds
    first = bisect_right(bounds, offset)
    return (offset, *bounds[first:]) if first % 2 else bounds[first:]


def within(bounds: Bounds, start: int, end: int) -> Bounds:
    """The part of a set that is in ``[start, end)``; nothing if ``end <= start``."""
    if end <= start:
        return ()
    first, last = bisect_right(bounds, start), bisect_left(bounds, end)
    lead = (start,) if first % 2 else ()
    tail = (end,) if last % 2 else ()
    return (*lead, *bounds[first:last], *tail)


def length(bounds: Bounds) -> int:
    """The number of integers in a set."""
    return sum(bounds[1::2]) - sum(bounds[::2])


OFFSET_MAX: Final = 2**63 - 1
"""The highest offset that Kafka can express."""
START_MAX: Final = 2**62
"""No log is so long: whoever waited there for a record would wait for ever."""

_VARINT_MAX: Final = 9  # bytes: 63 bits


def pack(bounds: Bounds, base: int) -> bytes:
    """Write a set of offsets.

    Args:
        bounds: The set; no offset is below ``base``.
        base: What the first bound is written as the difference to.
    """
    steps = list(map(sub, bounds, (base, *bounds)))
    if not steps or max(steps) < 128:  # the common case, at the speed of C
        return bytes(steps)
    packed = bytearray()
    for step in steps:
        while step > 127:
            packed.append(step & 127 | 128)
            step >>= 7  # noqa: PLW2901
        packed.append(step)
    return bytes(packed)


def unpack(packed: bytes, base: int) -> Bounds:
    """Read what :func:`pack` has written.

    Args:
        packed: The bytes; at least one range.
        base: As it was given to :func:`pack`.

    Raises:
        ValueError: No set is written so; the text says what was wanted and what was found.
    """
    # Bytes below 128 are differences as they are: then all of it runs at the speed of C.
    steps = packed if packed.isascii() else _varints(packed)
    if not steps or len(steps) % 2:
        raise ValueError(f"wanted starts and ends in pairs, found {len(steps)}")
    if 0 in steps[1:]:
        raise ValueError("wanted ascending offsets, found 'two that are equal'")
    bounds = tuple(accumulate(steps, initial=base))[1:]
    if bounds[-1] > OFFSET_MAX:
        raise ValueError(f"wanted offsets up to {OFFSET_MAX}, found {bounds[-1]}")
    return bounds


def _varints(packed: bytes) -> list[int]:
    """LEB128: 7 bits a byte, the lowest first; the highest bit says that there is more."""
    steps = []
    value = shift = 0
    for byte in packed:
        if byte > 127:
            value |= (byte & 127) << shift
            shift += 7
            if shift >= 7 * _VARINT_MAX:
                raise ValueError(
                    f"wanted numbers of at most {_VARINT_MAX} bytes, found 'a longer one'"
                )
        elif shift:
            if not byte:
                wanted = "numbers in as few bytes as they need"
                raise ValueError(f"wanted {wanted}, found 'one with a zero at its end'")
            steps.append(value | byte << shift)
            value = shift = 0
        else:
            steps.append(byte)
    if shift:
        raise ValueError("wanted whole numbers, found 'one that is cut off'")
    return steps
