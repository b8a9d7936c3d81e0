"""Sets of (offset, key hash), in two forms, and as one value.

- **Rectangles**, an offset range by a hash range each: what is written and read by people.
- **Stripes**, a hash range with its offsets each: what the arithmetic is done with. A million gaps
  are two million integers there, and a million objects as rectangles.
- A :class:`Region`: stripes that tile the hash space, with ``| - &`` as of sets.

Guarantees: these functions return each form canonical, one tuple for one set, so ``==`` is set
equality. Converting one form to the other loses nothing.
Cost: a sort of the pieces. Where stripes overlap, their offsets are merged once for each hash range
between two cuts, so it is linear in the pieces as long as few of them overlap.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Final, TypeAlias

from kshare.core.hashing import HASH_SPACE, WHOLE, HashRange, KeyRanges
from kshare.core.offsets import (
    Bounds,
    OffsetRange,
    from_pairs,
    intersect,
    subtract,
    union,
)

__all__ = [
    "EMPTY",
    "Rectangle",
    "Region",
    "Segment",
    "Stripe",
    "beside",
    "canonical",
    "clip",
    "filled",
    "hull",
    "overlay",
    "place_of",
    "rectangles",
    "stripes",
    "sweep",
    "tile",
]

Segment: TypeAlias = tuple[int, int, Bounds]
"""Key hashes ``[lo, hi)`` and the offsets that belong to them; or the other way round."""


@dataclass(frozen=True, order=True, slots=True)
class Rectangle:
    """All (offset, key hash) with an offset of one range and a hash of another."""

    offsets: OffsetRange
    hashes: HashRange

    def __str__(self) -> str:
        return f"offsets {self.offsets} x hashes {self.hashes}"

    @property
    def area(self) -> int:
        """The number of (offset, key hash) that it holds."""
        return (self.offsets.end - self.offsets.start) * (self.hashes.hi - self.hashes.lo)


@dataclass(frozen=True, slots=True)
class Stripe:
    """A hash range, and the offsets that belong to each of its hashes."""

    hashes: HashRange
    bounds: Bounds


# -- rectangles ----------------------------------------------------------------------------------


def canonical(pieces: Iterable[Rectangle]) -> tuple[Rectangle, ...]:
    """One tuple for the set that some rectangles hold, in any order, overlapping or not.

    Returns:
        Disjoint rectangles, ascending by offsets, then by hash.
    """
    return rectangles(overlay(stripes(pieces)))


def rectangles(tiling: Iterable[Stripe]) -> tuple[Rectangle, ...]:
    """Stripes as rectangles.

    Args:
        tiling: Disjoint stripes, ascending, no two neighbours alike, as :func:`tile` returns them.

    Returns:
        Disjoint rectangles, ascending by offsets, then by hash. Rectangles that have the same
        offsets and touch are one.
    """
    layers = filled(tiling)
    if len(layers) == 1:  # ascending as it is, and nothing to merge
        hashes, bounds = layers[0].hashes, layers[0].bounds
        return tuple(
            Rectangle(OffsetRange(start, end), hashes)
            for start, end in zip(bounds[::2], bounds[1::2], strict=True)
        )
    pieces = [
        (start, end, stripe.hashes.lo, stripe.hashes)  # the last one is never compared
        for stripe in layers
        for start, end in zip(stripe.bounds[::2], stripe.bounds[1::2], strict=True)
    ]
    pieces.sort()
    return tuple(_stacked(pieces))


def _stacked(pieces: Iterable[tuple[int, int, int, HashRange]]) -> Iterator[Rectangle]:
    """Merge rectangles that touch; each is (start, end, lowest hash, hashes), ascending."""
    ahead = iter(pieces)
    first = next(ahead, None)
    if first is None:
        return
    start, end, lo, hashes = first
    hi = hashes.hi
    offsets = OffsetRange(start, end)
    for next_start, next_end, next_lo, above in ahead:
        same = next_start == start and next_end == end
        if same and next_lo == hi:
            hi = above.hi
            continue
        yield Rectangle(offsets, hashes if hashes.hi == hi else HashRange(lo, hi))
        if not same:
            start, end = next_start, next_end
            offsets = OffsetRange(start, end)
        lo, hi, hashes = next_lo, above.hi, above
    yield Rectangle(offsets, hashes if hashes.hi == hi else HashRange(lo, hi))


def clip(pieces: Iterable[Rectangle], hashes: KeyRanges) -> tuple[Rectangle, ...]:
    """The part of some rectangles that is of some key hashes, in the order of both."""
    return tuple(
        [
            piece if shared is piece.hashes else Rectangle(piece.offsets, shared)
            for piece in pieces
            for part in hashes.overlapping(piece.hashes)
            if (shared := piece.hashes.intersect(part)) is not None
        ]
    )


def hull(pieces: Sequence[Rectangle]) -> OffsetRange:
    """From the first offset of some rectangles to the last end; there is at least one."""
    if len(pieces) == 1:
        return pieces[0].offsets
    return OffsetRange(
        min(piece.offsets.start for piece in pieces), max(piece.offsets.end for piece in pieces)
    )


# -- stripes -------------------------------------------------------------------------------------


def stripes(pieces: Iterable[Rectangle], start: int = 0) -> list[Stripe]:
    """Rectangles as stripes, one for each hash range that occurs; these may overlap.

    Args:
        pieces: Rectangles in any order, overlapping or not.
        start: Offsets below this one are left out.
    """
    bounds: dict[HashRange, tuple[list[int], list[int]]] = {}
    last: HashRange | None = None
    starts: list[int] = []
    ends: list[int] = []
    for piece in pieces:
        offsets = piece.offsets
        if offsets.end <= start:
            continue
        if piece.hashes is not last:
            last = piece.hashes
            starts, ends = bounds.setdefault(last, ([], []))
        starts.append(max(start, offsets.start))
        ends.append(offsets.end)
    return [Stripe(hashes, from_pairs(*pairs)) for hashes, pairs in bounds.items()]


def tile(segments: Iterable[Segment]) -> tuple[Stripe, ...]:
    """Segments as stripes: neighbours with the same offsets are one.

    Args:
        segments: Ascending, each beginning where the one before it ends; offsets may be empty.
    """
    return tuple(Stripe(HashRange(lo, hi), bounds) for lo, hi, bounds in _merged(segments))


def overlay(layers: Iterable[Stripe]) -> tuple[Stripe, ...]:
    """The union of stripes in any order, whose hash ranges may overlap.

    Returns:
        Stripes that tile the whole hash space, ascending, no two neighbours alike. A stripe that no
        layer covers has no offsets.
    """
    cut = [(layer.hashes.lo, layer.hashes.hi, layer.bounds) for layer in layers]
    return tile(sweep(cut, 0, HASH_SPACE))


def filled(tiling: Iterable[Stripe]) -> tuple[Stripe, ...]:
    """The stripes that have offsets: of those of :func:`tile`, one tuple for one set."""
    return tuple(stripe for stripe in tiling if stripe.bounds)


_NOTHING: Final = (Stripe(WHOLE, ()),)


def beside(
    ours: tuple[Stripe, ...], theirs: tuple[Stripe, ...]
) -> Iterator[tuple[int, int, Bounds, Bounds]]:
    """Two tilings of the hash space cut to common pieces, ascending; no stripes: one empty one."""
    left, right = iter(ours or _NOTHING), iter(theirs or _NOTHING)
    ours_now, theirs_now = next(left), next(right)
    lo = 0
    while True:
        hi = min(ours_now.hashes.hi, theirs_now.hashes.hi)
        yield lo, hi, ours_now.bounds, theirs_now.bounds
        if hi == HASH_SPACE:
            return
        lo = hi
        if ours_now.hashes.hi == hi:
            ours_now = next(left)
        if theirs_now.hashes.hi == hi:
            theirs_now = next(right)


def place_of(tiling: tuple[Stripe, ...], point: int) -> int:
    """The place of a key hash in a tiling of the hash space."""
    return bisect_right(tiling, point, key=_lowest) - 1


@dataclass(frozen=True, slots=True)
class Region:
    """A set of (offset, key hash). Equal sets are equal, however they were made.

    ``| - &`` are those of sets, and ``(offset, key hash) in region`` asks for one.

    Args:
        tiling: Its stripes, as :func:`tile` returns them for the whole hash space.
    """

    tiling: tuple[Stripe, ...] = _NOTHING

    @classmethod
    def of(cls, layers: Iterable[Stripe]) -> "Region":
        """The union of stripes in any order, whose hash ranges may overlap."""
        return cls(overlay(layers))

    @classmethod
    def product(cls, hashes: KeyRanges, bounds: Bounds) -> "Region":
        """Some offsets of all of some key hashes."""
        return cls(tuple(_spread(hashes, bounds))) if bounds else EMPTY

    @property
    def stripes(self) -> tuple[Stripe, ...]:
        """The stripes that have offsets, ascending."""
        return filled(self.tiling)

    @property
    def end(self) -> int:
        """The offset after the last one of any hash; 0 if there is none."""
        return max([stripe.bounds[-1] for stripe in self.tiling if stripe.bounds], default=0)

    def first_missing(self, hashes: KeyRanges, offset: int) -> int | None:
        """The first offset from one on that some of the hashes lack; None without hashes."""
        return min(
            [
                _first_missing(stripe.bounds, offset)
                for stripe in self.tiling
                if hashes.overlapping(stripe.hashes)
            ],
            default=None,
        )

    def __bool__(self) -> bool:
        return self.tiling != _NOTHING

    def __contains__(self, at: tuple[int, int]) -> bool:
        offset, point = at
        bounds = self.tiling[place_of(self.tiling, point)].bounds
        return bisect_right(bounds, offset) % 2 == 1

    def __or__(self, other: "Region") -> "Region":
        return self._with(other, _either) if self and other else self or other

    def __and__(self, other: "Region") -> "Region":
        return self._with(other, intersect) if self and other else EMPTY

    def __sub__(self, other: "Region") -> "Region":
        return self._with(other, subtract) if self and other else self

    def _with(self, other: "Region", combined: Callable[[Bounds, Bounds], Bounds]) -> "Region":
        known: dict[tuple[int, int], Bounds] = {}

        def both(ours: Bounds, theirs: Bounds) -> Bounds:
            # A thousand stripes may share a few tuples of offsets, which stay while this runs.
            at = id(ours), id(theirs)
            if at not in known:
                known[at] = combined(ours, theirs)
            return known[at]

        cut = beside(self.tiling, other.tiling)
        return Region(tile((lo, hi, both(ours, theirs)) for lo, hi, ours, theirs in cut))


EMPTY: Final = Region()


def _spread(hashes: KeyRanges, bounds: Bounds) -> Iterator[Stripe]:
    """Stripes that tile the hash space; those of other hashes are empty."""
    end = 0
    for part in hashes:
        if end < part.lo:
            yield Stripe(HashRange(end, part.lo), ())
        yield Stripe(part, bounds)
        end = part.hi
    if end < HASH_SPACE:
        yield Stripe(HashRange(end, HASH_SPACE), ())


def _either(one: Bounds, other: Bounds) -> Bounds:
    return union((one, other))


def _first_missing(bounds: Bounds, offset: int) -> int:
    at = bisect_right(bounds, offset)
    return bounds[at] if at % 2 else offset


def _lowest(stripe: Stripe) -> int:
    return stripe.hashes.lo


# -- both ----------------------------------------------------------------------------------------


def sweep(layers: Sequence[Segment], first: int, last: int) -> Iterator[Segment]:
    """Cut segments that may overlap into segments that tile ``[first, last)``.

    Args:
        layers: Segments within ``[first, last)``, in any order.
        first: Where the tiling begins.
        last: Where the tiling ends.

    Yields:
        Segments, ascending, without a hole; each with the union of its layers, which may be empty.
    """
    begins = sorted(layers, key=_begin)
    cuts = sorted({first, last, *map(_begin, begins), *map(_end, begins)})
    active: list[Segment] = []
    i = 0
    for lo, hi in pairwise(cuts):
        active = [layer for layer in active if layer[1] > lo]
        while i < len(begins) and begins[i][0] == lo:
            active.append(begins[i])
            i += 1
        yield lo, hi, active[0][2] if len(active) == 1 else union(layer[2] for layer in active)


_begin, _end = itemgetter(0), itemgetter(1)


def _merged(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Merge neighbours that touch and are alike."""
    ahead = iter(segments)
    first = next(ahead, None)
    if first is None:
        return
    lo, hi, bounds = first
    for begin, end, more in ahead:
        if begin == hi and more == bounds:
            hi = end
            continue
        yield lo, hi, bounds
        lo, hi, bounds = begin, end, more
    yield lo, hi, bounds
