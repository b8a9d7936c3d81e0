"""Which key hashes a delivery hands out, and from which offsets on.

::

    Scope of a delivery --carried_on--> Carried --NextDelivery, until it starts--> the next Scope
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kshare.core.hashing import NO_HASHES, HashRange, KeyRanges
from kshare.core.offsets import OFFSET_MAX, Bounds, OffsetRange, intersect, since, subtract, union
from kshare.core.progress import Progress, Rectangle, Stripe
from kshare.core.region import canonical, clip, overlay
from kshare.group.core.handed_out import Offsets, OpenChunks, is_of
from kshare.group.message import Chunk

__all__ = ["Carried", "NextDelivery", "Scope", "Sought", "joined", "ranges", "within"]


@dataclass(frozen=True, slots=True)
class Sought:
    """What a seek was to, and how far delivery is since.

    Attributes:
        hashes: The key hashes that go on at the seek's offset, whether processed or not.
        offset: The seek's offset.
        position: From here on their records are still to be handed out.
        passed: What of them was processed before the seek.
        ahead: The offsets beyond the position that are handed out, too.
        earlier: What of them was returned before the seek, of offsets below its own: it does not
            come again, and is processed once it is acknowledged.
    """

    hashes: KeyRanges
    offset: int
    position: int
    passed: tuple[Stripe, ...] = ()
    ahead: Bounds = ()
    earlier: tuple[Stripe, ...] = ()

    def settle(self, below: int) -> "Sought":
        """The same once what was returned before the seek is acknowledged, below an offset."""
        if not self.earlier:
            return self
        settled = _below(self.earlier, below)
        rest = [Stripe(each.hashes, since(each.bounds, below)) for each in self.earlier]
        return replace(
            self,
            passed=overlay([*self.passed, *settled]),
            earlier=tuple(each for each in rest if each.bounds),
        )

    def without(self, again: Mapping[HashRange, Bounds]) -> Iterator["Sought"]:
        """The same where some offsets of keys are handed out again.

        Args:
            again: As of :meth:`.Delivery.carry_without`.
        """
        held = [part for part in again if self.hashes.overlapping(part)]
        rest = self.within(self.hashes - held)
        if rest is not None:
            yield rest
        for part in held:
            of_key = self.within(KeyRanges([part]))
            assert of_key is not None
            # Their rows do not wait to be acknowledged any more, and are not processed.
            rest_of = [(each.hashes, subtract(each.bounds, again[part])) for each in of_key.earlier]
            earlier = tuple(Stripe(hashes, bounds) for hashes, bounds in rest_of if bounds)
            of_key = replace(of_key, earlier=earlier)
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

    def within(self, hashes: KeyRanges) -> "Sought | None":
        """The part of it that is of some key hashes; None if there is none."""
        kept = self.hashes & hashes
        passed, earlier = (
            tuple(
                Stripe(part, stripe.bounds)
                for stripe in stripes
                for part in hashes & [stripe.hashes]
            )
            for stripes in (self.passed, self.earlier)
        )
        return replace(self, hashes=kept, passed=passed, earlier=earlier) if kept else None


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

    def within(self, hashes: KeyRanges) -> "Carried":
        """The part of it that is of some key hashes; rows of others will not be acknowledged."""
        for chunk in self.chunks:
            for row in np.flatnonzero(chunk.open_rows()).tolist():
                key = chunk.column("key")[row]
                if not is_of(key, int(chunk.offsets[row]), hashes):
                    chunk.close(row)
        return Carried(clip(self.pieces, hashes), self.chunks, within(self.sought, hashes))

    def without(self, again: Mapping[HashRange, Bounds]) -> "Carried":
        """The same where some offsets of keys are handed out again.

        Args:
            again: As of :meth:`.Delivery.carry_without`.
        """
        pieces, sought = list(self.pieces), self.sought
        if again:
            parts = sorted(again, key=lambda each: each.lo)  # of single keys, so they are disjoint
            lows = [part.lo for part in parts]
            pieces = [
                part
                for piece in pieces
                for part in _without(piece, again, _among(parts, lows, piece.hashes))
            ]
            sought = tuple(part for each in sought for part in each.without(again))
        return replace(self, pieces=canonical(pieces), sought=sought)


def within(sought: Iterable[Sought], hashes: KeyRanges) -> tuple[Sought, ...]:
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
                each,
                hashes=one.hashes | each.hashes,
                passed=(*one.passed, *each.passed),
                earlier=(*one.earlier, *each.earlier),
            )
        joined[at] = each
    return list(joined.values())


def _among(parts: Sequence[HashRange], lows: Sequence[int], hashes: HashRange) -> list[HashRange]:
    """The ones of disjoint ranges, ascending, that have hashes of another one."""
    first = max(bisect_right(lows, hashes.lo) - 1, 0)
    near = parts[first : bisect_left(lows, hashes.hi)]
    return [part for part in near if hashes.intersect(part) is not None]


def _without(
    piece: Rectangle, again: Mapping[HashRange, Bounds], cut: Sequence[HashRange]
) -> Iterator[Rectangle]:
    """A piece without some offsets of some hashes, which it has."""
    for part in KeyRanges([piece.hashes]) - cut:
        yield Rectangle(piece.offsets, part)
    for part in cut:
        for start, end in ranges(subtract((piece.offsets.start, piece.offsets.end), again[part])):
            yield Rectangle(OffsetRange(start, end), part)


def _below(stripes: Iterable[Stripe], end: int) -> list[Stripe]:
    """The parts of stripes that are of offsets below one."""
    parts = ((each.hashes, intersect(each.bounds, (0, end))) for each in stripes)
    return [Stripe(hashes, bounds) for hashes, bounds in parts if bounds]


def ranges(bounds: Bounds) -> Iterator[tuple[int, int]]:
    """Bounds as pairs of start and end."""
    return zip(bounds[::2], bounds[1::2], strict=True)


@dataclass(frozen=True, slots=True)
class Scope:
    """The key hashes of a delivery, and where each of them stood when it, or a seek, began.

    Attributes:
        start: What had been processed when delivery started.
        owned: The key hashes that the consumer owns, left out or not.
        left_out: Those that are not handed out.
        unsought: Those that go on from what is committed.
        sought: Those that go on from a seek.
        sought_before: Those that did, and are left out now.
        pieces: What was handed out before, of hashes that the consumer has kept.
        ahead_end: Up to here something may be processed, or handed out, ahead of the position.
    """

    start: Progress
    owned: KeyRanges
    left_out: KeyRanges
    unsought: KeyRanges
    sought: tuple[Sought, ...]
    sought_before: tuple[Sought, ...]
    pieces: tuple[Rectangle, ...]
    ahead_end: int

    @classmethod
    def of(
        cls,
        start: Progress,
        owned: KeyRanges,
        carried: Carried,
        left_out: KeyRanges,
    ) -> "Scope":
        """The scope of a new delivery; for its arguments, see :class:`.Delivery`."""
        read = owned - left_out
        sought = within(carried.sought, read)
        ends = [stripe.bounds[-1] for stripe in start.stripes if stripe.bounds]
        ends += [each.handed_out[-1] for each in sought if each.handed_out]
        return cls(
            start=start,
            owned=owned,
            left_out=left_out,
            unsought=read - [part for each in sought for part in each.hashes],
            sought=sought,
            sought_before=within(carried.sought, left_out),
            pieces=carried.pieces,
            ahead_end=max([*ends, *(piece.offsets.end for piece in carried.pieces)], default=0),
        )

    def seek(self, offset: int, passed: tuple[Stripe, ...], returned: Iterable[Stripe]) -> "Scope":
        """The same after a seek of all that is owned.

        Args:
            offset: The seek's offset.
            passed: What was processed before it.
            returned: What was returned before it, since the start or the last seek.
        """
        hashes = self.owned - self.left_out
        before = [stripe for each in self.sought for stripe in each.earlier]
        # What the delivery before has handed out was returned, too.
        before += [Stripe(part, each.handed_out) for each in self.sought for part in each.hashes]
        for piece in clip(self.pieces, self.unsought):
            before.append(Stripe(piece.hashes, (piece.offsets.start, piece.offsets.end)))
        earlier = overlay(_below([*before, *returned], offset))
        return replace(
            self,
            unsought=NO_HASHES,
            sought=within((Sought(self.owned, offset, offset, passed, earlier=earlier),), hashes),
            pieces=clip(self.pieces, self.left_out),  # of the others, it is handed out again
        )

    def settle(self, below: int = OFFSET_MAX) -> "Scope":
        """The same once what was returned before seeks is acknowledged, below an offset."""
        # No generator: as it is closed, it would swallow what a signal handler raises.
        if not [each for each in (*self.sought, *self.sought_before) if each.earlier]:
            return self
        return replace(
            self,
            sought=tuple(each.settle(below) for each in self.sought),
            sought_before=tuple(each.settle(below) for each in self.sought_before),
        )

    def carried_on(self, position: int, chunks: tuple[Chunk, ...]) -> Carried:
        """Hand over to another delivery, once all up to a position is handed out.

        Args:
            position: The position.
            chunks: Explicit mode: chunks with rows that are not acknowledged.
        """
        rest = self.unsought if position else ()
        pieces = [Rectangle(OffsetRange(0, position), part) for part in rest]
        sought = (each.since(position) for each in self.sought)
        return Carried((*self.pieces, *pieces), chunks, (*joined(sought), *self.sought_before))

    # -- what to read -----------------------------------------------------------------------

    @property
    def first(self) -> int:
        """The lowest offset from which hashes are handed out."""
        return self._lowest(self.start, [each.offset for each in self.sought])

    @property
    def position(self) -> int:
        """The lowest offset with something still to be handed out, at the beginning."""
        done = self.start.commit(self.pieces)
        return self._lowest(done, [each.position for each in self.sought])

    def _lowest(self, done: Progress, sought: list[int]) -> int:
        """The lowest one of seeks' offsets and of where the other hashes stand."""
        positions = [done.position_of(self.unsought)] if self.unsought else []
        return min([*positions, *sought], default=done.stable)  # of none, if all keys are left out

    def wanted(self, position: int, end: int) -> tuple[Stripe, ...]:
        """The stripes that are still to be read of the offsets ``[position, end)``."""
        again = tuple(
            Stripe(part, rest)
            for each in self.sought
            if (rest := each.rest(position, end))
            for part in each.hashes
        )
        if not self.unsought:
            return again
        unread = self.start.advance(position).commit(self.pieces)
        return (*unread.pending_stripes(end, self.unsought), *again)

    def beyond(self, position: int) -> int:
        """The first offset from a position on with something still to be handed out."""
        first = [each.rest(position, OFFSET_MAX)[0] for each in self.sought]
        if self.unsought:
            if self.ahead_end <= position:
                return position
            unread = self.start.advance(position).commit(self.pieces)
            first.append(unread.position_of(self.unsought))
        return min(first, default=position)

    # -- what is processed ------------------------------------------------------------------

    def processed(
        self,
        bounds: Bounds,
        end: int,
        waiting: Callable[[], Bounds],
        *,
        with_passed: bool = True,
    ) -> list[Stripe]:
        """The stripes that are processed.

        Args:
            bounds: The offsets that are processed since the start or the last seek.
            end: Below this offset, all is processed that is not waiting.
            waiting: The offsets that are handed out and not acknowledged.
            with_passed: Whether to say what was processed before the seek, too.
        """
        layers = self.since_seeks(bounds)
        if with_passed:
            for each in (*self.sought, *self.sought_before):
                layers += each.passed
        return [*layers, *self._ahead(end, waiting), *self._before_left_out(waiting)]

    def since_seeks(self, bounds: Bounds) -> list[Stripe]:
        """Offsets since the start, or of sought hashes since the seek, as stripes."""
        layers = [Stripe(part, bounds) for part in self.unsought if bounds]
        for each in self.sought:
            again = since(bounds, each.offset)
            layers += [Stripe(part, again) for part in each.hashes if again]
        return layers

    def earlier(self, waiting: Callable[[], Bounds]) -> list[Stripe]:
        """What was returned before seeks, and is acknowledged since, one record after the other.

        Args:
            waiting: The offsets that are handed out and not acknowledged.
        """
        stripes = [
            stripe for each in (*self.sought, *self.sought_before) for stripe in each.earlier
        ]
        open_offsets = waiting() if stripes else ()
        parts = ((each.hashes, subtract(each.bounds, open_offsets)) for each in stripes)
        return [Stripe(hashes, bounds) for hashes, bounds in parts if bounds]

    def _before_left_out(self, waiting: Callable[[], Bounds]) -> Iterator[Stripe]:
        """What was handed out of keys before they were left out, and is processed."""
        pieces = [*clip(self.pieces, self.left_out)] if self.left_out else []
        for each in self.sought_before:
            pieces += [
                Rectangle(OffsetRange(start, end), part)
                for start, end in ranges(each.handed_out)
                for part in each.hashes
            ]
        if not pieces:
            return
        open_offsets = waiting()
        for piece in pieces:
            bounds = subtract((piece.offsets.start, piece.offsets.end), open_offsets)
            if bounds:
                yield Stripe(piece.hashes, bounds)

    def _ahead(self, end: int, waiting: Callable[[], Bounds]) -> Iterator[Stripe]:
        """What the delivery before has handed out beyond an offset, and is processed."""
        ahead: list[tuple[Bounds, KeyRanges]] = [
            ((max(piece.offsets.start, end), piece.offsets.end), hashes)
            for piece in self.pieces
            if piece.offsets.end > end and (hashes := self.unsought & [piece.hashes])
        ]
        ahead += [
            (bounds, each.hashes) for each in self.sought if (bounds := since(each.handed_out, end))
        ]
        if not ahead:
            return
        open_offsets = waiting()
        for handed_out, hashes in ahead:
            bounds = subtract(handed_out, open_offsets)
            for part in hashes if bounds else ():
                yield Stripe(part, bounds)

    def is_pending(self, offset: int, point: int, done: Progress, again: Progress) -> bool:
        """True if a record is not processed.

        Args:
            offset: Its offset.
            point: Its key hash.
            done: What is processed, whether a seek hands it out again or not.
            again: What is processed since of what a seek hands out again.
        """
        is_sought = any(
            offset >= each.offset and each.hashes.holds(point)
            for each in (*self.sought, *self.sought_before)
        )
        return any(
            offset in piece.offsets
            for each in ((done, again) if is_sought else (done,))
            for piece in each.pending(offset + 1, HashRange.of(point))
        )


@dataclass(frozen=True, slots=True)
class NextDelivery:
    """How the next delivery of a partition begins.

    Attributes:
        carried: What was handed out before, of hashes that stay; None: nothing is known of it.
        sought: The offset to go on at; None: where it is.
        sought_of: The key hashes that were assigned when it was sought.
        is_provisional: Whether some of what is claimed is being given up: another claim follows.
    """

    carried: Carried | None = None
    sought: int | None = None
    sought_of: KeyRanges = NO_HASHES
    is_provisional: bool = False

    def acknowledge(self, offsets: Offsets, chunks: Collection[int]) -> None:
        """Records of before are acknowledged, as :meth:`.Delivery.acknowledge`."""
        handed_out = OpenChunks(() if self.carried is None else self.carried.chunks)
        handed_out.acknowledge(offsets, chunks)

    def within(self, hashes: KeyRanges) -> "NextDelivery":
        """The same for some key hashes; a seek does not hold for quite different ones."""
        sought = None if hashes.isdisjoint(self.sought_of) else self.sought
        carried = self.carried and self.carried.within(hashes)
        return replace(self, carried=carried, sought=sought, is_provisional=False)
