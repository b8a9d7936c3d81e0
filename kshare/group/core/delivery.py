"""What a consumer has handed out of one partition, and what of that is processed.

::

    span start                          position              end of the chunk
        |  handed out, acknowledged or not  |  still to be handed out  |
        +----+------+--+--------------------+--------------------------+--> offsets
             unacknowledged

All that is owned is read in one pass, in offset order. So everything below the position has been
handed out, or was processed before, or is not there; and *processed* is everything below it but
what has been handed out and is not acknowledged. In implicit mode, what the last call returned is
not acknowledged; a call acknowledges what the calls before it returned.

The records of keys that are left out (:mod:`.left_out`) are not handed out, and stay pending from
where that began. When it ends, another delivery goes on there, as after a rebalance.

A seek is one of the key hashes that are owned then. Hashes that come later begin from what is
committed, and those of the seek go on where they were, also after they were left out: what it has
passed over stays pending.

Guarantees: no record counts as processed that was not handed out, or that was and is not
acknowledged. Cost: two bytes a record until all of its chunk are acknowledged, and what is kept of
those that are not (:mod:`.kept_rows`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from kshare.core.hashing import ALL_HASHES, NO_HASHES, HashRange, KeyRanges, key_hash
from kshare.core.offsets import OFFSET_MAX, Bounds
from kshare.core.progress import Progress, Stripe, TopicPartition
from kshare.core.region import EMPTY, Region
from kshare.group.core.handed_out import HandedOut, Offsets
from kshare.group.core.open_chunks import OpenChunks
from kshare.group.core.position import ALL_OFFSETS, Position
from kshare.group.delivery_start import DeliveryStart
from kshare.group.message import Chunk, Rows

__all__ = ["Delivery"]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The offsets and key hashes that are to be handed out.

    Attributes:
        hashes: The key hashes that are read.
        gone: Of these, what is not: it was processed, handed out, or passed over by a seek.
        gone_end: The offset from which on all of the hashes are wanted.
    """

    hashes: KeyRanges
    gone: Region
    gone_end: int

    @classmethod
    def of(cls, hashes: KeyRanges, start: DeliveryStart, before: Position) -> Self:
        """Those from a start on, apart from what was handed out before."""
        done = start.done.region - before.again
        gone = (done | before.skip | before.out) & Region.product(hashes, ALL_OFFSETS)
        return cls(hashes, gone, gone.end)

    def within(self, position: int, end: int) -> tuple[Stripe, ...]:
        """Those from a position up to an end."""
        if position >= self.gone_end:  # with many keys left out, a region takes four times as long
            return tuple(Stripe(part, (position, end)) for part in self.hashes)
        return (Region.product(self.hashes, (position, end)) - self.gone).stripes

    def first_from(self, offset: int) -> int | None:
        """The first offset from one on; None if no key hashes are read."""
        return self.gone.first_missing(self.hashes, offset)


class Delivery:
    """What is handed out of one partition, from one start on.

    Not for use by several threads at a time, but for :attr:`.Chunk.acknowledged`.

    Args:
        topic_partition: The partition.
        start: From where it is delivered.
        owned: The key hashes that the consumer owns.
        explicit: Whether records are acknowledged one by one.
        before: What was handed out before, of hashes that the consumer has kept.
        left_out: The owned key hashes that are not handed out.

    Attributes:
        topic_partition: The partition.
        start: From where it is delivered.
        owned: The key hashes that the consumer owns, left out or not.
        left_out: Those that are not handed out: of keys parked or released.
        explicit: Whether records are acknowledged one by one.
        is_provisional: Whether it goes on with what a consumer keeps until its next claim is in
            place, from which another delivery begins.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        start: DeliveryStart,
        owned: KeyRanges,
        *,
        explicit: bool,
        before: Position | None = None,
        left_out: KeyRanges = NO_HASHES,
    ) -> None:
        self.topic_partition = topic_partition
        self.explicit = explicit
        self.is_provisional = False
        self.start = start
        self.owned = owned
        self.left_out = left_out
        self._before = before or Position()
        self._open = OpenChunks(self._before.chunks)  # explicit mode
        self._wanted = _Wanted.of(owned - left_out, start, self._before)
        first = self._wanted.first_from(0)
        self._settled = start.done.stable if first is None else first
        self._handed_out = HandedOut(self._settled)
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
    def done(self) -> Progress:
        """All that is known to be processed without it."""
        return self.start.done

    @property
    def furthest(self) -> int:
        """The offset after the last record that was ever returned."""
        return self.returned

    @property
    def all_returned(self) -> Region:
        """All that was returned, with what came before it of hashes that have stayed."""
        mine = self._out((0, self.returned) if self.returned else ())
        return self._before.passed | self._before.out | mine

    @property
    def handed_out(self) -> int:
        """Number of records that were handed out."""
        return self._handed_out.records

    def wanted(self, end: int) -> tuple[Stripe, ...]:
        """What is still to be read of the offsets below ``end``; empty if all keys are left out."""
        position = self.position
        return self._wanted.within(position, end) if position < end else ()

    def _out(self, bounds: Bounds) -> Region:
        """What it hands out itself, if these are the offsets."""
        return Region.product(self._wanted.hashes, bounds) - self._before.skip

    def _now(self) -> Position:
        """What is handed out by now, for the delivery that goes on; hand out no more."""
        self.stop()
        position = self.position
        out = self._before.out | self._out((0, position) if position else ())
        return replace(self._before, out=out, chunks=self._open.chunks())

    def kept(self, hashes: KeyRanges) -> Position | None:
        """End, and say what is handed out of key hashes with which another delivery goes on.

        Args:
            hashes: The key hashes of the other one.

        Returns:
            None if it has to begin from what is committed, as the keys of records that are not
            acknowledged are not known.
        """
        now = self._now()
        if not all(chunk.has_keys for chunk in now.chunks):
            return None
        return now.within(hashes)

    def without_released(self) -> Position:
        """End, and say what is handed out to a delivery of the same hashes that leaves out others.

        What was released counts as not handed out. What is not handed out of the current chunk was
        no part of it.
        """
        self.stop()
        again = [
            Stripe(HashRange.of(key_hash(key, first)), among)
            for key, first, among in self._open.come_again()
        ]
        return self._now().without(again)

    def seek(self, offset: int, *, is_batch: bool = True) -> None:
        """Hand out what comes from an offset on, whether it is processed or not.

        What is passed over is not processed: it comes again after a restart. What was returned
        before and lies below the offset is processed once it is acknowledged.

        Args:
            offset: The offset.
            is_batch: As for :meth:`processed`.
        """
        returned = self._out((0, self.returned) if self.returned else ())
        waiting = self._waiting()
        now = replace(self._before, out=self._before.out | returned)
        if not self.explicit:  # what the last call has returned is open, too
            counted = self._out(self._processed(is_batch=is_batch))
            waiting |= returned - counted - self._before.out
            now = replace(now, open=waiting)
        now = now.seek(offset, self._wanted.hashes, waiting)
        wanted = _Wanted.of(self._wanted.hashes, self.start, now)
        self.stop()
        # In this order, an interrupt lets nothing count that is not processed.
        self._before, self._wanted = now, wanted
        self._settled, self._looked = offset, -1
        self._handed_out.seek(offset)
        # What is handed out again counts then; what is left out now is not.
        self._open.acknowledge_between(offset, OFFSET_MAX, self.left_out)
        self._open.replace_from(offset, self.left_out)

    # -- handing out ------------------------------------------------------------------------

    def begin(self, chunk: Chunk, end: int) -> Rows:
        """Hand out the next chunk: messages that are taken are handed out.

        Args:
            chunk: The rows; the chunk before is handed out.
            end: The offset up to which everything is handed out with it.
        """
        rows = self._handed_out.begin(chunk, end)
        if self.explicit:
            self._open.add(chunk, self._wanted.gone_end)
        return rows

    def hand_out(self, chunk: Chunk, end: int) -> None:
        """A chunk is handed out as a whole.

        Another thread may commit meanwhile: rows are not acknowledged before they are passed.
        """
        self._handed_out.will_add(chunk)
        if self.explicit:
            self._open.add(chunk, self._wanted.gone_end)
        self._handed_out.add(chunk, end)

    def pass_to(self, offset: int) -> None:
        """Advance the position: what is skipped holds no wanted record.

        So it is processed, too, if what was handed out before is. What the delivery before has
        handed out beyond it is passed as well.
        """
        offset = max(offset, self.position)
        if offset != self._looked:
            self._looked = offset
            if offset < self._wanted.gone_end:
                offset = self._wanted.first_from(offset) or offset
        if self._settled == self.position < offset:
            self._settled = offset
        self._handed_out.pass_to(offset)

    def stop(self) -> None:
        """Hand out no more of the current chunk: what is left of it is to be read again."""
        self._handed_out.stop()

    def slim(self) -> None:
        """Keep rows that are not acknowledged without their values."""
        self._open.slim()

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
        if self._before.open:
            self._before = replace(self._before, open=EMPTY)

    # -- what comes again -------------------------------------------------------------------

    def release(self, key: bytes | None, first: int) -> None:
        """Mark the records of a key from an offset on that are not acknowledged.

        They come again once a delivery follows that takes over from :meth:`without_released`; until
        then they count as handed out.
        """
        self._open.release(key, first)

    def release_all(self, firsts: Mapping[bytes, int], alone: Collection[int]) -> None:
        """As :meth:`release`, for many keys: see :meth:`.OpenChunks.release_all`."""
        self._open.release_all(firsts, alone)

    # -- what is processed ------------------------------------------------------------------

    def those_committed(self, records: Mapping[int, int], committed: Progress) -> list[int]:
        """The offsets of the records among some that are committed.

        A record that a seek hands out again is so once it is processed since, too.

        Args:
            records: Key hashes by offset.
            committed: What was committed of :meth:`processed`.
        """
        if not records:
            return []
        done = self.start.done.union(committed).region
        again, since = self._before.again, Region.of(self._processed_since(is_batch=False))
        return [
            offset
            for offset, point in records.items()
            if (offset, point) in done
            and ((offset, point) not in again or (offset, point) in since)
        ]

    def acknowledge(self, offsets: Offsets, chunks: Collection[int] = ()) -> None:
        """Records are acknowledged, by their offsets, as :meth:`.OpenChunks.acknowledge`."""
        self._open.acknowledge(offsets, chunks)

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
        if self._before.open:
            rest = Region.product(ALL_HASHES, (offset, OFFSET_MAX))
            self._before = replace(self._before, open=self._before.open & rest)
        self._open.acknowledge_between(0, offset)

    def processed(self, *, is_batch: bool) -> Progress:
        """What is processed, apart from what had been before the start.

        Args:
            is_batch: Implicit mode: whether all that was handed out since :meth:`settle` was
                returned by one call, so that none of it is processed. Else only the last record
                is not.
        """
        layers = [*self._before.passed.stripes, *self._processed_since(is_batch=is_batch)]
        return Progress.of_stripes(self.start.done.stable, layers)

    def _processed_since(self, *, is_batch: bool) -> list[Stripe]:
        """What is handed out and acknowledged, but for what a seek hands out again."""
        # The position first: what another thread hands out meanwhile is open.
        mine, before = self._out(self._processed(is_batch=is_batch)), self._before.out
        if before:  # what it has handed out itself, too, is in both: without its gaps it is cheap
            before -= self._out((0, mine.end) if mine else ())
        return [*(before - self._waiting() if before else before).stripes, *mine.stripes]

    def _waiting(self) -> Region:
        """What is not acknowledged; in implicit mode, of what was returned before a seek."""
        if not self.explicit:
            return self._before.open
        return Region.product(ALL_HASHES, _stretches(self._open.offsets()))

    def processed_offsets(self, *, is_batch: bool) -> Bounds:
        """The offsets that are processed since the start or the last seek, as :meth:`processed`."""
        return self._processed(is_batch=is_batch)

    @property
    def unacknowledged_ranges(self) -> int:
        """Number of stretches that are handed out and not acknowledged (explicit mode)."""
        waiting = self._open.offsets()
        waiting = waiting[waiting < self.position]
        return int(np.count_nonzero(np.diff(waiting) > 1)) + bool(len(waiting))

    @property
    def ranges(self) -> Offsets:
        """The rows ``(start, end)`` processed behind one that is not, ascending (explicit mode)."""
        position, waiting = self.position, self._open.offsets()
        waiting = waiting[waiting < position]
        return _filled(waiting + 1, np.append(waiting[1:], position)[: len(waiting)])

    @property
    def oldest_unacknowledged_ms(self) -> int | None:
        """Timestamp of the first record that is handed out and not acknowledged (explicit mode)."""
        return self._open.oldest_ms(self.position)

    @property
    def unacknowledged(self) -> int:
        """Number of records that are handed out and not acknowledged (explicit mode)."""
        return self._open.records

    @property
    def unacknowledged_at_most(self) -> int:
        """The same or more, without counting: see :attr:`.OpenChunks.records_at_most`."""
        return self._open.records_at_most

    @property
    def has_unacknowledged(self) -> bool:
        """True if some record is handed out and not acknowledged (explicit mode)."""
        return self._open.has_more_than(self._handed_out.left)

    def in_flight(self, *, is_batch: bool) -> int:
        """Number of records that are handed out and not processed.

        In implicit mode, of the offsets among which they are.

        Args:
            is_batch: As for :meth:`processed`.
        """
        if self.explicit:
            return self.unacknowledged - self._handed_out.left
        return self.position - self._counted(is_batch=is_batch)

    def _counted(self, *, is_batch: bool) -> int:
        """Implicit mode: below it, what it has handed out is processed."""
        if is_batch or self._handed_out.is_collected:
            return self._settled
        return max(self._settled, self._handed_out.before_last)

    def _processed(self, *, is_batch: bool) -> Bounds:
        """The offsets below its position that are processed."""
        if not self.explicit:
            end = self._counted(is_batch=is_batch)
            return (0, end) if end else ()
        position = self.position
        waiting = self._open.offsets()
        waiting = waiting[waiting < position]
        filled = _filled(np.append(0, waiting + 1), np.append(waiting, position))
        flat: Bounds = tuple(filled.ravel().tolist())
        return flat


def _filled(starts: Offsets, ends: Offsets) -> Offsets:
    """The ranges that are not empty, as rows ``(start, end)``."""
    filled = starts < ends
    return np.stack([starts[filled], ends[filled]], 1)


def _stretches(ascending: Offsets) -> Bounds:
    """Some offsets, each once, as the ranges without a gap that they are."""
    begins = np.diff(ascending, prepend=-2) > 1
    ends = np.append(begins[1:], True)[: len(ascending)]
    flat: Bounds = tuple(np.stack([ascending[begins], ascending[ends] + 1], 1).ravel().tolist())
    return flat
