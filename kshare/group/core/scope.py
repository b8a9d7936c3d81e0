"""Which key hashes a delivery hands out, and from which offsets on."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from kshare.core.hashing import WHOLE, HashRange, common, minus
from kshare.core.offsets import OFFSET_MAX, Bounds, OffsetRange, since, subtract
from kshare.core.progress import Progress, Rectangle, Stripe
from kshare.core.region import clip
from kshare.group.core.carried import Carried, Sought, joined, ranges, within
from kshare.group.message import Chunk

__all__ = ["Scope"]


@dataclass(frozen=True, slots=True)
class Scope:
    """The key hashes of a delivery, and where each of them stood when it, or a seek, began.

    Attributes:
        start: What had been processed when delivery started.
        owned: The key hashes that the consumer owns, ascending, parked or not.
        parked: Those of parked keys.
        unsought: Those that go on from what is committed.
        sought: Those that go on from a seek.
        sought_before: Those that did, and are parked now.
        pieces: What was handed out before, of hashes that the consumer has kept.
        ahead_end: Up to here something may be processed, or handed out, ahead of the position.
    """

    start: Progress
    owned: tuple[HashRange, ...]
    parked: tuple[HashRange, ...]
    unsought: tuple[HashRange, ...]
    sought: tuple[Sought, ...]
    sought_before: tuple[Sought, ...]
    pieces: tuple[Rectangle, ...]
    ahead_end: int

    @classmethod
    def of(
        cls,
        start: Progress,
        hashes: Sequence[HashRange],
        carried: Carried,
        parked: tuple[HashRange, ...],
    ) -> "Scope":
        """The scope of a new delivery; for its arguments, see :class:`.Delivery`."""
        owned = tuple(sorted(hashes)) or (WHOLE,)
        unparked = minus(owned, parked) if parked else owned
        sought = within(carried.sought, unparked)
        ends = [stripe.bounds[-1] for stripe in start.stripes if stripe.bounds]
        return cls(
            start=start,
            owned=owned,
            parked=parked,
            unsought=minus(unparked, [part for each in sought for part in each.hashes]),
            sought=sought,
            sought_before=within(carried.sought, parked),
            pieces=carried.pieces,
            ahead_end=max([*ends, *(piece.offsets.end for piece in carried.pieces)], default=0),
        )

    def seek(self, offset: int, passed: tuple[Stripe, ...]) -> "Scope":
        """The same after a seek of all that is owned.

        Args:
            offset: The seek's offset.
            passed: What was processed before it.
        """
        hashes = minus(self.owned, self.parked)
        return replace(
            self,
            unsought=(),
            sought=within((Sought(self.owned, offset, offset, passed),), hashes),
            pieces=clip(self.pieces, self.parked),  # of the others, it is handed out again
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
        """The lowest offset of which something is still to be handed out, at the beginning."""
        done = self.start.commit(self.pieces)
        return self._lowest(done, [each.position for each in self.sought])

    def _lowest(self, done: Progress, sought: list[int]) -> int:
        """The lowest one of seeks' offsets and of where the other hashes stand."""
        positions = [done.position_of(self.unsought)] if self.unsought else []
        return min([*positions, *sought], default=done.stable)  # of none, if all keys are parked

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
        """The first offset from a position on of which something is still to be handed out."""
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
        position: int,
        waiting: Callable[[], Bounds],
        *,
        with_passed: bool = True,
    ) -> list[Stripe]:
        """The stripes that are processed.

        Args:
            bounds: The offsets that are processed since the start or the last seek.
            position: The offset after the last record that was handed out.
            waiting: The offsets that are handed out and not acknowledged.
            with_passed: Whether to say what was processed before the seek, too.
        """
        layers = [Stripe(part, bounds) for part in self.unsought if bounds]
        for each in self.sought:
            again = since(bounds, each.offset)
            layers += [Stripe(part, again) for part in each.hashes if again]
        if with_passed:
            for each in (*self.sought, *self.sought_before):
                layers += each.passed
        return [*layers, *self._ahead(position, waiting), *self._before_parking(waiting)]

    def _before_parking(self, waiting: Callable[[], Bounds]) -> Iterator[Stripe]:
        """What was handed out of parked keys, and is processed."""
        pieces = [*clip(self.pieces, self.parked)] if self.parked else []
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

    def _ahead(self, position: int, waiting: Callable[[], Bounds]) -> Iterator[Stripe]:
        """What the delivery before has handed out beyond the position, and is processed."""
        ahead: list[tuple[Bounds, Sequence[HashRange], Sequence[HashRange]]] = [
            (
                (max(piece.offsets.start, position), piece.offsets.end),
                (piece.hashes,),
                self.unsought,
            )
            for piece in self.pieces
            if piece.offsets.end > position
        ]
        ahead += [
            (bounds, each.hashes, each.hashes)
            for each in self.sought
            if (bounds := since(each.handed_out, position))
        ]
        if not ahead:
            return
        open_offsets = waiting()
        for handed_out, hashes, of in ahead:
            bounds = subtract(handed_out, open_offsets)
            for part in common(hashes, of) if bounds else ():
                yield Stripe(part, bounds)

    def is_pending(self, offset: int, point: int, done: Progress, again: Progress) -> bool:
        """True if a record is not processed.

        Args:
            offset: Its offset.
            point: Its key hash.
            done: What is processed, if no seek hands it out again.
            again: What is processed of what a seek hands out again.
        """
        hashes = (HashRange.of(point),)
        is_sought = any(
            offset >= each.offset and any(point in part for part in each.hashes)
            for each in (*self.sought, *self.sought_before)
        )
        pending = (again if is_sought else done).pending_of(offset + 1, hashes)
        return any(offset in piece.offsets for piece in pending)
