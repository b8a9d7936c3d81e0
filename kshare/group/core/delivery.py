"""What a consumer has handed out of one partition, and what of that is processed.

::

    span start                          position              end of the chunk
        |  handed out, acknowledged or not  |  still to be handed out  |
        +----+------+--+--------------------+--------------------------+--> offsets
             unacknowledged: gaps

All that is owned is read in one pass, in offset order. So everything below the position has been
handed out, or was processed before, or is not there; and *processed* is everything below it but
what has been handed out and is not acknowledged. In implicit mode, what the last call returned is
not acknowledged; a call acknowledges what the calls before it returned.

The records of parked keys are not handed out, and stay pending from where their keys were parked.
When they are unparked, another delivery goes on there, as after a rebalance.

A seek is one of the key hashes that are owned then. Hashes that come later begin from what is
committed, and those of the seek go on where they were, also after they were parked: what it has
passed over stays pending.

Guarantees: no record counts as processed that was not handed out, or that was and is not
acknowledged. Cost: a byte a record until all of its chunk are acknowledged.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kshare.core.hashing import WHOLE, HashRange, common, key_hash, merged, minus
from kshare.core.offsets import Bounds, OffsetRange, from_pairs, since, subtract, union
from kshare.core.packed_bounds import OFFSET_MAX
from kshare.core.progress import Progress, Rectangle, Stripe, TopicPartition
from kshare.core.region import canonical, clip, overlay
from kshare.group.core.handed_out import HandedOut, Offsets, OpenChunks, is_of, is_open
from kshare.group.message import ACKNOWLEDGED, Chunk, Rows

__all__ = ["Carried", "Delivery", "Sought"]


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
            again: As of :meth:`Delivery.park`.
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
        return Carried(clip(self.pieces, hashes), self.chunks, _within(self.sought, hashes))


class Delivery:
    """What is handed out of one partition, from one start on.

    Not for use by several threads at a time, but for :attr:`.Chunk.acknowledged`.

    Args:
        topic_partition: The partition.
        start: What had been processed when delivery started.
        hashes: The key hashes that the consumer owns; empty for all.
        explicit: Whether records are acknowledged one by one.
        carried: What was handed out before, of hashes that the consumer has kept.
        parked: The key hashes of parked keys that the consumer owns.

    Attributes:
        start: What had been processed when delivery started.
        explicit: Whether records are acknowledged one by one.
        owned: The key hashes that the consumer owns, ascending, parked or not.
        parked: Those of parked keys.
        is_provisional: Whether it goes on with what a consumer keeps until its next claim is in
            place, from which another delivery begins.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        start: Progress,
        hashes: Sequence[HashRange],
        *,
        explicit: bool,
        carried: Carried | None = None,
        parked: tuple[HashRange, ...] = (),
    ) -> None:
        carried = carried or Carried(())
        self.topic_partition = topic_partition
        self.start = start
        self.explicit = explicit
        self.owned = tuple(sorted(hashes)) or (WHOLE,)
        self.is_provisional = False
        self.parked = parked
        # Those that go on from what is committed.
        self._unsought: tuple[HashRange, ...] = minus(self.owned, parked) if parked else self.owned
        self._sought = _within(carried.sought, self._unsought)
        self._sought_before = _within(carried.sought, parked)  # they were parked
        self._unsought = minus(
            self._unsought, [part for each in self._sought for part in each.hashes]
        )
        done = start.commit(carried.pieces)
        self._first = self._lowest(start, [each.offset for each in self._sought])
        self._settled = self._lowest(done, [each.position for each in self._sought])
        self._handed_out = HandedOut(self._settled)
        self._open = OpenChunks(carried.chunks)  # explicit mode
        self._carried = carried.pieces
        # Up to here something may be processed, or handed out, ahead of the position.
        ends = [stripe.bounds[-1] for stripe in start.stripes if stripe.bounds]
        self._ahead_end = max([*ends, *(piece.offsets.end for piece in self._carried)], default=0)
        self._looked = -1  # the position for which it is known what is beyond it

    # -- what to read -----------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The offset after the last record that was handed out."""
        return self._handed_out.position

    @property
    def returned(self) -> int:
        """The offset after the last record that was returned, and is not only collected."""
        return self._handed_out.returned

    @property
    def handed_out(self) -> int:
        """Number of records that were handed out."""
        return self._handed_out.records

    def wanted(self, end: int) -> tuple[Stripe, ...]:
        """What is still to be read of the offsets below ``end``; empty if all keys are parked."""
        position = self.position
        again = tuple(
            Stripe(part, rest)
            for each in self._sought
            if (rest := each.rest(position, end))
            for part in each.hashes
        )
        if not self._unsought:
            return again
        unread = self.start.advance(position).commit(self._carried)
        return (*unread.pending_stripes(end, self._unsought), *again)

    def carry(self, hashes: Sequence[HashRange]) -> Carried | None:
        """What a delivery of other key hashes takes over from this one, which has ended.

        Args:
            hashes: The key hashes of the other one.

        Returns:
            None if it has to begin from what is committed, as the keys of records that are not
            acknowledged are not known.
        """
        self.stop()
        chunks = self._open.chunks()
        if any("key" not in chunk.batch.schema.names for chunk in chunks):
            return None
        return self._carried_on(chunks).within(hashes)

    def park(self, again: Mapping[HashRange, Bounds]) -> Carried:
        """What a delivery takes over that owns the same hashes, of which others are parked.

        Args:
            again: Of keys with records that were kept back or released, the offsets that are to be
                handed out again.
        """
        self.stop()
        carried = self._carried_on(self._open.chunks())
        pieces, sought = list(carried.pieces), carried.sought
        if again:
            pieces = [part for piece in pieces for part in _without(piece, again)]
            sought = tuple(part for each in sought for part in each.without(again))
        return replace(carried, pieces=canonical(pieces), sought=sought)

    def _carried_on(self, chunks: tuple[Chunk, ...]) -> Carried:
        end = self.position
        pieces = [Rectangle(OffsetRange(0, end), part) for part in self._unsought] if end else []
        sought = (each.since(end) for each in self._sought)
        return Carried((*self._carried, *pieces), chunks, (*_joined(sought), *self._sought_before))

    def seek(self, offset: int) -> None:
        """Hand out what comes from an offset on, whether it is processed or not.

        What is passed over is not processed: it comes again after a restart.
        """
        passed = overlay(self._layers(self._processed()))
        hashes = minus(self.owned, self.parked)
        sought = _within((Sought(self.owned, offset, offset, passed),), hashes)
        self.stop()
        # In this order, an interrupt lets nothing count that is not processed.
        self._first = self._settled = offset
        self._sought, self._unsought, self._looked = sought, (), -1
        self._carried = clip(self._carried, self.parked)  # of the others, it is handed out again
        self._handed_out.seek(offset)
        # What is handed out again counts then; what is parked now is not.
        self._open.acknowledge_between(offset, OFFSET_MAX, self.parked)

    # -- handing out ------------------------------------------------------------------------

    def begin(self, chunk: Chunk, end: int) -> Rows:
        """Hand out the next chunk: messages that are taken are handed out.

        Args:
            chunk: The rows; the chunk before is handed out.
            end: The offset up to which everything is handed out with it.
        """
        rows = self._handed_out.begin(chunk, end)
        if self.explicit:
            self._open.add(chunk)
        return rows

    def hand_out(self, chunk: Chunk, end: int) -> None:
        """A chunk is handed out as a whole.

        Another thread may commit meanwhile: rows are not acknowledged before they are passed.
        """
        if self.explicit:
            self._open.add(chunk)
        self._handed_out.add(chunk, end)

    def pass_to(self, offset: int) -> None:
        """All up to an offset is handed out; what was not holds no record that is wanted.

        So it is processed, too, if what was handed out before is. What the delivery before has
        handed out beyond it is passed as well.
        """
        offset = self._beyond(max(offset, self.position))
        if self._settled == self.position < offset:
            self._settled = offset
        self._handed_out.pass_to(offset)

    def _beyond(self, position: int) -> int:
        """The first offset from a position on of which something is still to be handed out."""
        if position == self._looked:
            return position
        self._looked = position
        first = [each.rest(position, OFFSET_MAX)[0] for each in self._sought]
        if self._unsought:
            if self._ahead_end <= position:
                return position
            unread = self.start.advance(position).commit(self._carried)
            first.append(unread.position_of(self._unsought))
        return min(first, default=position)

    def stop(self) -> None:
        """Hand out no more of the current chunk: what is left of it is to be read again."""
        self._handed_out.stop()

    @property
    def is_collected(self) -> bool:
        """True if a call has collected records that it has not returned."""
        return self._handed_out.is_collected

    def collect(self) -> None:
        """What is handed out from now on is collected by a call, which may return it later.

        Until it is confirmed, no commit counts it.
        """
        self._handed_out.collect()

    def confirm(self) -> None:
        """Count as returned what was collected."""
        self._handed_out.confirm()

    def take_back(self) -> None:
        """Hand out again what was collected, and what is left of the current chunk."""
        self.stop()
        for chunk, first in self._handed_out.take_back():  # what was not handed out is no gap
            chunk.close_rows(first)
        self._handed_out.closed()

    def settle(self) -> None:
        """In implicit mode, what was returned so far is processed."""
        self._settled = self.returned

    # -- what comes again -------------------------------------------------------------------

    def release(self, key: bytes | None, first: int) -> None:
        """Mark the records of a key from an offset on that are not acknowledged.

        They come again once a delivery follows that takes over from :meth:`park`; until then they
        count as handed out.
        """
        self._open.release(key, first)

    def come_again(self) -> tuple[dict[HashRange, Bounds], list[int]]:
        """What was released, for :meth:`park`, and its offsets; it counts as not handed out then.

        What is not handed out of the current chunk was no part of it.
        """
        self.stop()
        bounds, offsets = dict[HashRange, list[Bounds]](), list[int]()
        for key, listed, among in self._open.come_again():
            point = key_hash(key, listed[0])
            bounds.setdefault(HashRange.of(point), []).append(among)
            offsets += listed
        return {hashes: union(listed) for hashes, listed in bounds.items()}, offsets

    # -- what is processed ------------------------------------------------------------------

    def those_processed(self, records: Mapping[int, int]) -> list[int]:
        """Those of some records that are owned and processed.

        What a seek hands out again is, once it is processed since.

        Args:
            records: Key hashes by offset.
        """
        if not records:
            return []
        done = self.start.union(self.processed(is_batch=True))
        again = Progress.of_stripes(0, self._layers(self._processed(), with_passed=False))
        return [
            offset
            for offset, point in records.items()
            if any(point in part for part in self.owned)
            and not self._is_pending(offset, (HashRange.of(point),), done, again)
        ]

    def _is_pending(
        self, offset: int, hashes: tuple[HashRange, ...], done: Progress, again: Progress
    ) -> bool:
        """True if some record with an offset and one of some hashes is not processed.

        Args:
            offset: The offset.
            hashes: The hashes.
            done: What is processed, if no seek hands it out again.
            again: What is processed of what a seek hands out again.
        """
        sought = [
            part
            for each in (*self._sought, *self._sought_before)
            if offset >= each.offset
            for part in each.hashes
        ]
        of_seek = tuple(sorted(common(sought, hashes)))
        return any(
            offset in piece.offsets
            for progress, some in ((done, minus(hashes, of_seek)), (again, of_seek))
            if some
            for piece in progress.pending_of(offset + 1, some)
        )

    def acknowledge(self, offsets: Offsets, chunks: Collection[int] = ()) -> Offsets:
        """Records are acknowledged, by their offsets; unknown ones change nothing.

        Args:
            offsets: The offsets.
            chunks: Numbers of the chunks that they are of; none: of any.

        Returns:
            Those that were found.
        """
        return self._open.acknowledge(offsets, chunks)

    def acknowledge_below(self, offset: int) -> None:
        """What was returned below an offset is processed, in both modes.

        Raises:
            ValueError: Nothing was returned there.
        """
        position = self.returned
        if offset > position:
            raise ValueError(
                f"{self.topic_partition}: cannot commit offset {offset}, which is beyond the "
                f"position {position}"
            )
        self._settled = max(self._settled, offset)
        self._open.acknowledge_between(0, offset)

    def processed(self, *, is_batch: bool) -> Progress:
        """What is processed, apart from what had been before the start.

        Args:
            is_batch: Implicit mode: whether all that was handed out since :meth:`settle` was
                returned by one call, so that none of it is processed. Else only the last record
                is not.
        """
        layers = self._layers(self._processed(is_batch=is_batch))
        return Progress.of_stripes(self.start.stable, layers)

    def _layers(self, bounds: Bounds, *, with_passed: bool = True) -> list[Stripe]:
        """What is processed, if these are the offsets since the start or the last seek.

        Args:
            bounds: The offsets.
            with_passed: Whether to say what was processed before the seek, too.
        """
        layers = [Stripe(part, bounds) for part in self._unsought if bounds]
        for each in self._sought:
            again = since(bounds, each.offset)
            layers += [Stripe(part, again) for part in each.hashes if again]
        if with_passed:
            for each in (*self._sought, *self._sought_before):
                layers += each.passed
        return [*layers, *self._ahead(), *self._before_parking()]

    def _before_parking(self) -> Iterator[Stripe]:
        """What was handed out of parked keys, and is processed."""
        pieces = [*clip(self._carried, self.parked)] if self.parked else []
        for each in self._sought_before:
            pieces += [
                Rectangle(OffsetRange(start, end), part)
                for start, end in _ranges(each.handed_out)
                for part in each.hashes
            ]
        if not pieces:
            return
        offsets = self._open.offsets().tolist() if self.explicit else []
        waiting = from_pairs(offsets, [offset + 1 for offset in offsets])
        for piece in pieces:
            bounds = subtract((piece.offsets.start, piece.offsets.end), waiting)
            if bounds:
                yield Stripe(piece.hashes, bounds)

    def _ahead(self) -> Iterator[Stripe]:
        """What the delivery before has handed out beyond the position, and is processed."""
        position = self.position
        ahead: list[tuple[Bounds, Sequence[HashRange], Sequence[HashRange]]] = [
            (
                (max(piece.offsets.start, position), piece.offsets.end),
                (piece.hashes,),
                self._unsought,
            )
            for piece in self._carried
            if piece.offsets.end > position
        ]
        ahead += [
            (bounds, each.hashes, each.hashes)
            for each in self._sought
            if (bounds := since(each.handed_out, position))
        ]
        if not ahead:
            return
        offsets = self._open.offsets().tolist() if self.explicit else []
        waiting = from_pairs(offsets, [offset + 1 for offset in offsets])
        for handed_out, hashes, of in ahead:
            bounds = subtract(handed_out, waiting)
            for part in common(hashes, of) if bounds else ():
                yield Stripe(part, bounds)

    def processed_offsets(self, *, is_batch: bool) -> Bounds:
        """The offsets that are processed since the start or the last seek, as :meth:`processed`."""
        return self._processed(is_batch=is_batch)

    @property
    def gaps(self) -> int:
        """Number of stretches that are handed out and not acknowledged (explicit mode)."""
        waiting = self._open.offsets()
        waiting = waiting[waiting < self.position]
        return int(np.count_nonzero(np.diff(waiting) > 1)) + bool(len(waiting))

    @property
    def oldest_unacknowledged_ms(self) -> int | None:
        """Timestamp of the first record that is handed out and not acknowledged (explicit mode)."""
        return self._open.oldest_ms(self.position)

    @property
    def unacknowledged(self) -> int:
        """Number of records that are handed out and not acknowledged (explicit mode)."""
        return self._open.records

    def in_flight(self, *, is_batch: bool) -> int:
        """Number of records that are handed out and not processed.

        In implicit mode, of the offsets among which they are.

        Args:
            is_batch: As for :meth:`processed`.
        """
        if self.explicit:
            return self.unacknowledged - self._handed_out.left
        processed = self._processed(is_batch=is_batch)
        return self.position - max(processed[-1] if processed else 0, self._first)

    def _processed(self, *, is_batch: bool = False) -> Bounds:
        if not self.explicit:
            end = self._settled
            if not is_batch and not self._handed_out.is_collected:
                end = max(end, self._handed_out.before_last)
            return (self._first, end) if self._first < end else ()
        position = self.position
        waiting = self._open.offsets()
        waiting = waiting[(waiting >= self._first) & (waiting < position)]
        starts = np.append(self._first, waiting + 1)
        ends = np.append(waiting, position)
        filled = starts < ends
        flat: Bounds = tuple(np.stack([starts[filled], ends[filled]], 1).ravel().tolist())
        return flat

    def _lowest(self, done: Progress, sought: list[int]) -> int:
        """The lowest one of seeks' offsets and of where the other hashes stand."""
        positions = [done.position_of(self._unsought)] if self._unsought else []
        return min([*positions, *sought], default=done.stable)  # of none, if all keys are parked


def _within(sought: Iterable[Sought], hashes: Sequence[HashRange]) -> tuple[Sought, ...]:
    """The parts of some seeks that are of some key hashes."""
    return tuple(part for each in sought if (part := each.within(hashes)) is not None)


def _joined(sought: Iterable[Sought]) -> list[Sought]:
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
        for start, end in _ranges(subtract((piece.offsets.start, piece.offsets.end), again[part])):
            yield Rectangle(OffsetRange(start, end), part)


def _ranges(bounds: Bounds) -> Iterator[tuple[int, int]]:
    return zip(bounds[::2], bounds[1::2], strict=True)
