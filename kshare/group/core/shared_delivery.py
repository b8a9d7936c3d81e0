"""What a consumer has handed out of a partition without key order, and what of it is processed.

::

    held by leases:   [  0 ....... 99 ]        [ 300 ..... 399 ]        [ 700 ....
    parts:            handed out, done         handed out now           not begun yet

A part is what was held and not begun when the part before had been handed out. It is delivered as
any partition is (:class:`.Delivery`). It is forgotten when the log says that it is processed. No
I/O, no clock.

When its lease ends, what was returned of it may still be processed, and counts then: its delivery
ends, and is kept among the late ones (:mod:`.shared_deliveries`).
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from kshare.core.hashing import ALL_HASHES, WHOLE, KeyRanges
from kshare.core.offsets import Bounds, complement, intersect, subtract, union
from kshare.core.progress import Progress, Stripe, TopicPartition
from kshare.core.region import Region
from kshare.group.core.delivery import Delivery
from kshare.group.core.handed_out import Offsets
from kshare.group.core.position import Position
from kshare.group.delivery_start import DeliveryStart
from kshare.group.message import Chunk, Rows
from kshare.group.protocol.owners.leases import Share

__all__ = ["SharedDelivery"]


@dataclass(slots=True)
class _Part:
    """Some offsets that are delivered in order.

    Attributes:
        offsets: The offsets.
        delivery: What is handed out of them.
        is_counted: Whether it is known to be processed.
    """

    offsets: Bounds
    delivery: Delivery
    is_counted: bool = False

    @property
    def end(self) -> int:
        return self.offsets[-1]

    @property
    def is_handed_out(self) -> bool:
        return self.delivery.position >= self.end

    @property
    def is_processed(self) -> bool:
        processed = self.delivery.processed_offsets(is_batch=True)
        return not subtract(self.offsets, processed)


class SharedDelivery(Delivery):
    """What is handed out of one partition without key order, from one start on.

    Args:
        topic_partition: The partition.
        start: From where it is delivered.
        explicit: Whether records are acknowledged one by one.

    Attributes:
        finished: Number of parts that have been processed.
    """

    def __init__(
        self, topic_partition: TopicPartition, start: DeliveryStart, *, explicit: bool
    ) -> None:
        super().__init__(topic_partition, start, ALL_HASHES, explicit=explicit)
        self.finished = 0
        self._parts: list[_Part] = []  # all but the last one are handed out
        self._past = start.done.stable  # up to it, parts that are forgotten were returned
        self._new: Bounds = ()  # held, and of no part
        self._done = start.done

    # -- what to read -----------------------------------------------------------------------

    def update(self, share: Share, known: Bounds = ()) -> None:
        """Leases have come or gone, or others have processed something.

        Args:
            share: What may be delivered.
            known: What is processed and not committed yet of deliveries before this one.
        """
        over = [
            part
            for part in self._parts
            if part.is_counted and not intersect(part.offsets, share.held)
        ]
        self._past = max([self._past, *(part.end for part in over)])
        self._parts = [part for part in self._parts if part not in over]
        self._new = subtract(share.held, union([known, *(part.offsets for part in self._parts)]))
        self._done = share.done

    @property
    def done(self) -> Progress:
        """All that is known to be processed, by others too: the log says so."""
        return self._done

    @property
    def uncommitted(self) -> int:
        """Number of parts that are processed, though the log does not say so yet."""
        return sum(part.is_counted for part in self._parts)

    @property
    def has_new(self) -> bool:
        """True if there is something to read after the part that is handed out now."""
        return bool(self._new)

    @property
    def is_handed_out(self) -> bool:
        """True if all parts are handed out."""
        return not self._parts or self._parts[-1].is_handed_out

    @property
    def end(self) -> int:
        """The end of the last part."""
        return self._parts[-1].end if self._parts else 0

    def next_part(self) -> None:
        """Go on with what is new; there is some, and all else is handed out."""
        new, self._new = self._new, ()
        others = complement(new, new[0], new[-1])
        layers = [*self._done.stripes, *([Stripe(WHOLE, others)] if others else [])]
        start = Progress.of_stripes(max(new[0], self._done.stable), layers)
        delivery = Delivery(
            self.topic_partition, DeliveryStart.new(start), ALL_HASHES, explicit=self.explicit
        )
        self._parts.append(_Part(new, delivery))

    def wanted(self, end: int) -> tuple[Stripe, ...]:
        """What is still to be read of the last part."""
        if self.is_handed_out:
            return ()
        part = self._parts[-1]
        return part.delivery.wanted(min(end, part.end))

    def kept(self, hashes: KeyRanges) -> Position | None:  # noqa: ARG002
        """Nothing: leases are taken again."""
        return None

    # -- when it has ended --------------------------------------------------------------------

    def leave(self) -> None:
        """Hand out nothing more: what was not returned is no part of it any more."""
        self.take_back()
        self.stop()
        parts = []
        for part in self._parts:
            returned = intersect(part.offsets, (0, part.delivery.returned))
            if returned:
                part.delivery.slim()
                parts.append(_Part(returned, part.delivery, part.is_counted))
        self._parts, self._new = parts, ()

    def forget(self, processed: Bounds) -> None:
        """Forget the parts that the log says are processed."""
        self._parts = [part for part in self._parts if subtract(part.offsets, processed)]

    @property
    def is_over(self) -> bool:
        """True if nothing that it has returned is of interest any more."""
        return not self._parts

    @property
    def offsets(self) -> Bounds:
        """The offsets of its parts."""
        return union(part.offsets for part in self._parts)

    # -- handing out ------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The offset after the last record that was handed out."""
        return self._parts[-1].delivery.position if self._parts else self.start.done.stable

    @property
    def returned(self) -> int:
        """The offset after the last record that was returned, and is not only collected."""
        return self._parts[-1].delivery.returned if self._parts else self.start.done.stable

    def collect(self) -> None:
        """What is handed out of the last part from now on is collected by a call."""
        self._parts[-1].delivery.collect()

    def confirm(self) -> None:
        """Count as returned what was collected."""
        for part in self._parts:
            part.delivery.confirm()

    def take_back(self) -> None:
        """What was collected is handed out again: the parts that were begun meanwhile are new.

        After an interrupt amid this, another call ends it.
        """
        collected = [
            number for number, part in enumerate(self._parts) if part.delivery.is_collected
        ]
        if collected:
            parts, later = self._parts[: collected[0] + 1], self._parts[collected[0] + 1 :]
            finished = self.finished - sum(part.is_counted for part in later)
            new = union([self._new, *(part.offsets for part in later)])
            # From here on without a call, so that no interrupt comes between.
            self._parts, self.finished, self._new = parts, finished, new
        for part in self._parts:
            part.delivery.take_back()

    def begin(self, chunk: Chunk, end: int) -> Rows:
        """Hand out the next chunk of the last part."""
        return self._parts[-1].delivery.begin(chunk, end)

    def hand_out(self, chunk: Chunk, end: int) -> None:
        """A chunk of the last part is handed out as a whole."""
        self._parts[-1].delivery.hand_out(chunk, end)

    def pass_to(self, offset: int) -> None:
        """All of the last part up to an offset is handed out."""
        if self._parts:
            self._parts[-1].delivery.pass_to(offset)

    def stop(self) -> None:
        """Hand out no more of the current chunk."""
        for part in self._parts:
            part.delivery.stop()

    def settle(self) -> None:
        """In implicit mode, what was returned so far is processed."""
        for part in self._parts:
            part.delivery.settle()
        self.count()

    def count(self) -> None:
        """Count the parts that are processed."""
        for part in self._parts:
            if not part.is_counted and part.is_handed_out and part.is_processed:
                part.is_counted = True
                self.finished += 1

    # -- what is processed ------------------------------------------------------------------

    def acknowledge(self, offsets: Offsets, chunks: Collection[int] = ()) -> None:
        """Records are acknowledged, by their offsets, of some chunks or of any."""
        for part in self._parts:
            part.delivery.acknowledge(offsets, chunks)

    @property
    def furthest(self) -> int:
        """The offset after the last record that was returned of any part."""
        return max([self._past, *(part.delivery.returned for part in self._parts)])

    @property
    def all_returned(self) -> Region:
        """All that was returned of the parts that are not forgotten."""
        returned = union(
            intersect(part.offsets, (0, part.delivery.returned)) for part in self._parts
        )
        return Region.product(ALL_HASHES, returned)

    def acknowledge_below(self, offset: int) -> None:
        """What was returned below an offset is processed.

        Raises:
            ValueError: Nothing was returned there.
        """
        if offset > self.furthest:
            raise ValueError(
                f"{self.topic_partition}: cannot commit offset {offset}: what was returned ends "
                f"at {self.furthest}"
            )
        for part in self._parts:
            part.delivery.acknowledge_below(min(offset, part.delivery.returned))

    def processed(self, *, is_batch: bool) -> Progress:
        """What is processed, apart from what had been before the start."""
        bounds = self.processed_offsets(is_batch=is_batch)
        return Progress.of_stripes(
            self.start.done.stable, [Stripe(WHOLE, bounds)] if bounds else []
        )

    def processed_offsets(self, *, is_batch: bool) -> Bounds:
        """The offsets that are processed."""
        return union(
            intersect(part.delivery.processed_offsets(is_batch=is_batch), part.offsets)
            for part in self._parts
        )

    @property
    def unacknowledged_ranges(self) -> int:
        """Number of stretches that are handed out and not acknowledged (explicit mode)."""
        return sum(part.delivery.unacknowledged_ranges for part in self._parts)

    @property
    def ranges(self) -> Offsets:
        """The rows ``(start, end)`` processed behind one that is not, ascending (explicit mode)."""
        rows = np.concatenate(
            [np.empty((0, 2), np.int64), *(p.delivery.ranges for p in self._parts)]
        )
        return rows[np.argsort(rows[:, 0])]

    @property
    def unacknowledged(self) -> int:
        """Number of records that are handed out and not acknowledged (explicit mode)."""
        return sum(part.delivery.unacknowledged for part in self._parts)

    @property
    def unacknowledged_at_most(self) -> int:
        """The same or more, without counting."""
        return sum(part.delivery.unacknowledged_at_most for part in self._parts)

    @property
    def has_unacknowledged(self) -> bool:
        """True if some record is handed out and not acknowledged (explicit mode)."""
        return any(part.delivery.has_unacknowledged for part in self._parts)

    @property
    def oldest_unacknowledged_ms(self) -> int | None:
        """Timestamp of a record that is handed out and not acknowledged, of the lowest part."""
        parts = sorted(self._parts, key=lambda part: part.offsets)
        oldest = (part.delivery.oldest_unacknowledged_ms for part in parts)
        return next((each for each in oldest if each is not None), None)

    def in_flight(self, *, is_batch: bool) -> int:
        """Number of records that are handed out and not processed, as of :class:`.Delivery`."""
        return sum(part.delivery.in_flight(is_batch=is_batch) for part in self._parts)
