"""Sets of (offset, key hash), in two forms.

- **Rectangles**, an offset range by a hash range each: what is written and read by people.
- **Stripes**, a hash range with its offsets each: what the arithmetic is done with. A million gaps
  are two million integers there, and a million objects as rectangles.

Guarantees: these functions return each form canonical, one tuple for one set, so ``==`` is set
equality. Converting one form to the other loses nothing.
Cost: a sort of the pieces. Where stripes overlap, their offsets are merged once for each hash range
between two cuts, so it is linear in the pieces as long as few of them overlap.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import TypeAlias

from kshare.core.hashing import HASH_SPACE, HashRange, KeyRanges
from kshare.core.offsets import Bounds, OffsetRange, from_pairs, union

__all__ = [
    "Rectangle",
    "Segment",
    "Stripe",
    "canonical",
    "clip",
    "filled",
    "hull",
    "overlay",
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
