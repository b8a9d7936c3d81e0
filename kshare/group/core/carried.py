"""What a delivery of a partition takes over from the one before, with the seeks that go on."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kshare.core.hashing import HashRange, common, merged, minus
from kshare.core.offsets import Bounds, OffsetRange, subtract, union
from kshare.core.progress import Rectangle, Stripe
from kshare.core.region import canonical, clip
from kshare.group.core.handed_out import is_of, is_open
from kshare.group.message import ACKNOWLEDGED, Chunk

__all__ = ["Carried", "Sought", "joined", "ranges", "within"]


@dataclass(frozen=True, slots=True)
class Sought:
    """What a seek was to, and how far delivery is since.

    Attributes:
        hashes: The key hashes that go on at the seek's offset, whether processed or not.
        offset: The seek's offset.
        position: From here on their records are still to be handed out.
        passed: What of them was processed before the seek.
        ahead: The offsets beyond the position that are handed out, too.
    """

    hashes: tuple[HashRange, ...]
    offset: int
    position: int
    passed: tuple[Stripe, ...] = ()
    ahead: Bounds = ()

    def without(self, again: Mapping[HashRange, Bounds]) -> Iterator["Sought"]:
        """The same where some offsets of keys are handed out again.

        Args:
            again: As of :meth:`.Delivery.park`.
        """
        held = [part for part in again if common(self.hashes, (part,))]
        rest = self.within(minus(self.hashes, held))
        if rest is not None:
            yield rest
        for part in held:
            of_key = self.within((part,))
            assert of_key is not None
            yield of_key.at(subtract(self.handed_out, again[part]))

    def at(self, handed_out: Bounds) -> "Sought":
        """The same with other offsets that are handed out since the seek."""
        first = handed_out[:2] if handed_out[:1] == (self.offset,) else ()
        position = first[1] if first else self.offset
        return replace(self, position=position, ahead=handed_out[len(first) :])

    def since(self, position: int) -> "Sought":
        """The same where all up to a position is handed out."""
        below = [(self.offset, position)] if self.offset < position else []
        return self.at(union([self.handed_out, *below]))

    @property
    def handed_out(self) -> Bounds:
        """The offsets that are handed out since the seek."""
        return (
            (self.offset, self.position, *self.ahead) if self.offset < self.position else self.ahead
        )

    def rest(self, start: int, end: int) -> Bounds:
        """The offsets ``[start, end)`` that are still to be handed out."""
        start = max(start, self.position)
        return subtract((start, end), self.ahead) if start < end else ()

    def within(self, hashes: Sequence[HashRange]) -> "Sought | None":
        """The part of it that is of some key hashes; None if there is none."""
        kept = common(self.hashes, hashes)
        passed = tuple(
            Stripe(part, stripe.bounds)
            for stripe in self.passed
            for part in common((stripe.hashes,), hashes)
        )
        return replace(self, hashes=kept, passed=passed) if kept else None


@dataclass(frozen=True, slots=True)
class Carried:
    """What was handed out of key hashes that a consumer keeps while others come or go.

    Attributes:
        pieces: Offsets and hashes that are not to be handed out again.
        chunks: Explicit mode: with rows that are not acknowledged.
        sought: What is handed out since a seek, of disjoint hashes.
    """

    pieces: tuple[Rectangle, ...]
    chunks: tuple[Chunk, ...] = ()
    sought: tuple[Sought, ...] = ()

    def within(self, hashes: Sequence[HashRange]) -> "Carried":
        """The part of it that is of some key hashes; rows of others will not be acknowledged."""
        for chunk in self.chunks:
            for row in np.flatnonzero(is_open(chunk)).tolist():
                key = chunk.column("key")[row]
                if not is_of(key, int(chunk.offsets[row]), hashes):
                    chunk.acknowledged[row] = ACKNOWLEDGED
        return Carried(clip(self.pieces, hashes), self.chunks, within(self.sought, hashes))

    def without(self, again: Mapping[HashRange, Bounds]) -> "Carried":
        """The same where some offsets of keys are handed out again.

        Args:
            again: As of :meth:`.Delivery.park`.
        """
        pieces, sought = list(self.pieces), self.sought
        if again:
            pieces = [part for piece in pieces for part in _without(piece, again)]
            sought = tuple(part for each in sought for part in each.without(again))
        return replace(self, pieces=canonical(pieces), sought=sought)


def within(sought: Iterable[Sought], hashes: Sequence[HashRange]) -> tuple[Sought, ...]:
    """The parts of some seeks that are of some key hashes."""
    return tuple(part for each in sought if (part := each.within(hashes)) is not None)


def joined(sought: Iterable[Sought]) -> list[Sought]:
    """The same with one for all hashes that stand at the same offsets."""
    joined: dict[tuple[int, Bounds], Sought] = {}
    for each in sought:
        at = each.offset, each.handed_out
        one = joined.get(at)
        if one is not None:
            each = replace(  # noqa: PLW2901
                each, hashes=merged([*one.hashes, *each.hashes]), passed=(*one.passed, *each.passed)
            )
        joined[at] = each
    return list(joined.values())


def _without(piece: Rectangle, again: Mapping[HashRange, Bounds]) -> Iterator[Rectangle]:
    """A piece without some offsets of some hashes."""
    cut = [part for part in again if piece.hashes.intersect(part) is not None]
    for part in minus((piece.hashes,), cut):
        yield Rectangle(piece.offsets, part)
    for part in cut:
        for start, end in ranges(subtract((piece.offsets.start, piece.offsets.end), again[part])):
            yield Rectangle(OffsetRange(start, end), part)


def ranges(bounds: Bounds) -> Iterator[tuple[int, int]]:
    """Bounds as pairs of start and end."""
    return zip(bounds[::2], bounds[1::2], strict=True)
