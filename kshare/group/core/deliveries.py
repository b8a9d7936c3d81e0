"""Decides which records a consumer reads of its partitions, and from where.

::

    assigned --started--> delivered --assigned otherwise--> the next delivery takes over
                           |  ^                                         |
        parked, sought, ...|  | reading begins anew (`FetchedRows.anew`) <---+
                           v  |
                        given up: what is fetched and not handed out is read again

A partition is listed as to be read anew before anything of it changes, and until the reader has
begun: after an interrupt at any moment it is read from where delivery is.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

from kshare.core.hashing import ALL_HASHES, NO_HASHES, HashRange, KeyRanges, key_hash
from kshare.core.progress import Stripe, TopicPartition
from kshare.core.region import EMPTY, Region
from kshare.group.core.delivery import Delivery
from kshare.group.core.ended import EndedDeliveries
from kshare.group.core.fetched_rows import FetchedRows
from kshare.group.core.handed_out import Offsets
from kshare.group.core.left_out import LeftOut, ParkedHashes
from kshare.group.core.open_chunks import OpenChunks
from kshare.group.core.position import NextDelivery, Position
from kshare.group.core.work import LateWork
from kshare.group.delivery_start import DeliveryStart
from kshare.group.message import Message
from kshare.group.protocol.membership.subscription import Assigned

__all__ = ["Deliveries", "MayCount", "Starts"]

Starts: TypeAlias = Mapping[TopicPartition, DeliveryStart]
"""From where each partition is delivered."""

MayCount: TypeAlias = Callable[[TopicPartition, DeliveryStart], bool]
"""Tells whether what was handed out of a partition from a start may still be committed."""


class Deliveries:
    """The deliveries of a consumer's partitions.

    For one thread at a time.

    Args:
        left_out: The keys that are not read.
        explicit: Whether records are acknowledged one by one.
        is_transactional: Whether what is processed has to belong to a claim.

    Attributes:
        assignment: The partitions that are claimed, and their key hashes.
        paused: Partitions that are not read for now.
        by_partition: What is handed out of the partitions that have started.
        ended: What was returned before deliveries have ended.
        left_out: As given.
        fetched: What is fetched, and what is to be fetched anew.
    """

    def __init__(self, left_out: LeftOut, *, explicit: bool, is_transactional: bool) -> None:
        self.assignment: dict[TopicPartition, KeyRanges] = {}
        self.paused: set[TopicPartition] = set()
        self.by_partition: dict[TopicPartition, Delivery] = {}
        self.ended = EndedDeliveries()
        self.left_out = left_out
        self.fetched = FetchedRows()
        self._explicit = explicit
        self._is_transactional = is_transactional
        self._next: dict[TopicPartition, NextDelivery] = {}  # of partitions that have not started

    # -- which partitions -------------------------------------------------------------------

    def keep(self, assignment: Assigned) -> None:
        """Go on with these key hashes only, while the rest is given up, until the next claim."""
        before = self.assignment
        self.assign(assignment, keeps=True)
        for tp, hashes in assignment.items():
            is_narrowed = before.get(tp, ALL_HASHES) != hashes
            if is_narrowed and tp not in self.by_partition:  # should it start before that
                self._next[tp] = replace(self._next.get(tp, NextDelivery()), is_provisional=True)

    def assign(self, assignment: Assigned, *, keeps: bool = False) -> None:
        """Read these partitions, as soon as the session has started them, and no others.

        Args:
            assignment: The partitions, with their key hashes.
            keeps: Whether hashes that stay are read on: what was handed out of them is not handed
                out again. Else only partitions are whose hashes are the same.
        """
        before, self._next = self._next, {}
        for topic_partition, hashes in assignment.items():
            delivery, begins = self.by_partition.get(topic_partition), before.get(topic_partition)
            if delivery is not None and keeps:
                self._keep(topic_partition, hashes)
            elif delivery is not None and delivery.owned != hashes:
                self._stop(topic_partition)  # now: a seek that follows is of what begins
            elif begins is not None and keeps:
                self._next[topic_partition] = begins.within(hashes)
            elif begins is not None and self.assignment.get(topic_partition) == hashes:
                self._next[topic_partition] = begins
        for topic_partition in self.by_partition.keys() - assignment.keys():
            self._stop(topic_partition)
        for topic_partition in self.assignment:
            self.left_out.released.keep(topic_partition, assignment.get(topic_partition, NO_HASHES))
        self.paused &= assignment.keys()
        self.assignment = dict(assignment)

    def _keep(self, topic_partition: TopicPartition, hashes: KeyRanges) -> None:
        """The key hashes of a partition change: go on with those that stay.

        Nobody else gets them, so there is no need to wait until they are claimed again. But for
        transactions: what they process has to belong to a claim.
        """
        delivery = self.by_partition[topic_partition]
        if delivery.owned == hashes:
            return
        self._go_on(topic_partition, hashes)
        stay = delivery.owned & hashes
        if stay and topic_partition in self._next and not self._is_transactional:
            self._start(topic_partition, delivery.start, stay)
            self.by_partition[topic_partition].is_provisional = True

    def is_settled(self) -> bool:
        """True if what is read is claimed."""
        # Another thread may seek meanwhile.
        return not any(delivery.is_provisional for delivery in list(self.by_partition.values()))

    def is_claimed(self, topic_partition: TopicPartition) -> bool:
        """True if all that is assigned of a partition is claimed, so that its delivery begins."""
        delivery = self.by_partition.get(topic_partition)
        return delivery is not None and not delivery.is_provisional

    def _go_on(self, topic_partition: TopicPartition, hashes: KeyRanges) -> None:
        """End a delivery; the next one goes on where it was."""
        delivery = self.by_partition[topic_partition]
        self._stop(topic_partition)
        kept = delivery.kept(hashes)
        if kept is not None:
            self._next[topic_partition] = NextDelivery(kept, delivery.start)

    def _start(
        self, topic_partition: TopicPartition, start: DeliveryStart, hashes: KeyRanges
    ) -> None:
        begins = self._next.get(topic_partition, NextDelivery())
        for chunk in begins.position.chunks:
            chunk.belongs_to(start)
        delivery = self._new_delivery(topic_partition, start, hashes, begins.position)
        delivery.is_provisional = begins.is_provisional and not self._is_transactional
        if begins.sought is not None:
            # What was handed out before, and comes again, must not count if an interrupt comes now.
            self._next[topic_partition] = replace(begins, position=Position())
            delivery.seek(begins.sought)
        self.fetched.anew[topic_partition] = None
        self.by_partition[topic_partition] = delivery
        self._next.pop(topic_partition, None)  # last: after an interrupt, another one begins so

    def _new_delivery(
        self,
        topic_partition: TopicPartition,
        start: DeliveryStart,
        hashes: KeyRanges,
        before: Position,
    ) -> Delivery:
        return Delivery(
            topic_partition,
            start,
            hashes,
            explicit=self._explicit,
            before=before,
            left_out=self.left_out.hashes(topic_partition, hashes),
        )

    def _stop(self, topic_partition: TopicPartition) -> None:
        self._give_up(topic_partition)
        self.ended.stops += 1
        self.ended.add(self.by_partition[topic_partition])
        self._next.pop(topic_partition, None)
        del self.by_partition[topic_partition]

    # -- what is read -----------------------------------------------------------------------

    @property
    def read_on(self) -> set[TopicPartition]:
        """The partitions that have started and are not paused."""
        return set(self.by_partition) - self.paused

    def to_read(self, topic_partition: TopicPartition, end: int) -> tuple[Stripe, ...]:
        """Return the part to read of a partition whose reading begins anew; empty for none.

        Args:
            topic_partition: The partition.
            end: Up to where it is read.
        """
        if topic_partition not in self.by_partition:
            return ()
        self._give_up(topic_partition)  # again: an interrupt may have come amid that
        if topic_partition in self.paused:
            return ()
        return self.by_partition[topic_partition].wanted(end)  # nothing if all of it is left out

    def pause(self, topic_partition: TopicPartition) -> None:
        """Read a partition no more for now."""
        self.paused.add(topic_partition)
        if topic_partition in self.by_partition:
            self._give_up(topic_partition)

    def resume(self, topic_partition: TopicPartition) -> None:
        """Read a partition again; one that is not paused is read on."""
        if topic_partition in self.paused:
            self.fetched.anew[topic_partition] = None
            self.paused.discard(topic_partition)

    def seek(
        self,
        topic_partition: TopicPartition,
        offset: int,
        started: Starts,
        *,
        is_batch: bool = True,
    ) -> None:
        """Go on at an offset.

        Args:
            topic_partition: The partition.
            offset: The offset.
            started: What the session has started.
            is_batch: As for :meth:`.Delivery.processed`.
        """
        delivery = self.by_partition.get(topic_partition)
        hashes = self.assignment[topic_partition]
        if delivery is not None and not delivery.is_provisional:
            if started.get(topic_partition) == delivery.start:
                self._seek(topic_partition, offset, hashes, is_batch=is_batch)
                return
            self._stop(topic_partition)  # as the next look would: what begins goes on there
            delivery = None
        self.left_out.released.keep(topic_partition, NO_HASHES)
        awaits_claim = False
        if delivery is not None:  # hashes that were gained go there too
            awaits_claim = started.get(topic_partition) == delivery.start
            self._give_up(topic_partition)
            # Itself, too: the next one takes what came before for processed.
            delivery.seek(offset, is_batch=is_batch)
            self._go_on(topic_partition, hashes)
        begins = self._next.get(topic_partition, NextDelivery())
        self._next[topic_partition] = replace(
            begins,
            sought=offset,
            sought_of=hashes,
            is_provisional=begins.is_provisional or awaits_claim,
        )

    def _seek(
        self,
        topic_partition: TopicPartition,
        offset: int,
        hashes: KeyRanges,
        *,
        is_batch: bool,
    ) -> None:
        """Go on at an offset with a delivery whose claim is in place."""
        self._give_up(topic_partition)
        # None amid this: after an interrupt, another one begins there.
        self._next[topic_partition] = NextDelivery(sought=offset, sought_of=hashes)
        delivery = self.by_partition.pop(topic_partition)
        self.left_out.released.keep(topic_partition, NO_HASHES)
        if self.left_out.hashes(topic_partition, delivery.owned) != delivery.left_out:
            delivery = self._next_of(delivery)  # what was left out goes there, too
        delivery.seek(offset, is_batch=is_batch)
        self.by_partition[topic_partition] = delivery
        self._next.pop(topic_partition, None)

    def read_anew(self) -> None:
        """Read all partitions anew from where they are."""
        for topic_partition in self.by_partition:
            self._give_up(topic_partition)

    def _give_up(self, topic_partition: TopicPartition) -> None:
        """Drop the records that are read and not handed out: they are to be read again."""
        self.fetched.anew[topic_partition] = None
        self.by_partition[topic_partition].stop()
        self.fetched.drop(topic_partition)

    # -- following the session --------------------------------------------------------------

    def refresh(
        self,
        started: Starts,
        now: float,
        parked: ParkedHashes | None,
        may_count: MayCount,
        *,
        continues: bool = False,
        begins: bool = False,
    ) -> None:
        """Follow the session: start what has started, drop what has not; park and unpark keys.

        Args:
            started: What the session has started.
            now: The time.
            parked: The parked keys; None until they are known: then nothing begins.
            may_count: What was handed out from a start that counts no more comes again, also if its
                delivery was to go on with the next claim.
            continues: Whether a call has got records that it has not returned yet: then a
                provisional delivery goes on. Its successor would take them for processed.
            begins: Whether a transaction begins: amid one, no key is parked or unparked.
        """
        may_park = not continues and (begins or not self._is_transactional)
        if may_park or self.left_out.parked is None:
            self._obey_parking(parked)
        if not continues:
            self._obey_releases(now)
        for topic_partition, hashes in self.assignment.items():
            start = started.get(topic_partition)
            delivery = self.by_partition.get(topic_partition)
            self._forget_next(topic_partition, may_count)
            goes_on = (
                delivery is not None
                and delivery.is_provisional
                and may_count(topic_partition, delivery.start)
            )
            if delivery is not None and goes_on:
                if start is None or start == delivery.start or continues:
                    continue  # its next claim is not in place, or not even made
                self._go_on(topic_partition, hashes)
                delivery = None
            elif delivery is not None and (start != delivery.start or delivery.owned != hashes):
                self._stop(topic_partition)
                delivery = None
            if delivery is None and start is not None and self.left_out.parked is not None:
                self._start(topic_partition, start, hashes)

    def _forget_next(self, topic_partition: TopicPartition, may_count: MayCount) -> None:
        """Have what was handed out before come again if it counts no more."""
        begins = self._next.get(topic_partition)
        if begins is None or begins.start is None or may_count(topic_partition, begins.start):
            return
        self._next[topic_partition] = replace(begins, position=Position(), start=None)

    def _obey_parking(self, parked: ParkedHashes | None) -> None:
        """Rebuild the deliveries whose keys were parked or unparked."""
        left_out = self.left_out
        if parked is left_out.obeyed:
            return
        left_out.parked = parked
        for topic_partition, delivery in list(self.by_partition.items()):
            if left_out.hashes(topic_partition, delivery.owned) != delivery.left_out:
                self._begin_again(topic_partition)
        left_out.obeyed = parked  # last: after an interrupt, the others follow

    def next_due(self) -> float:
        """The time at which keys are to be left out or let go; infinite if there are none."""
        return self.left_out.next_due(list(self.by_partition))

    def awaits_call(self, now: float, parked: ParkedHashes | None) -> bool:
        """True if a look would leave out keys, or let them go, were it not amid a call.

        Args:
            now: As for :meth:`refresh`.
            parked: As for that.
        """
        is_parked = not self._is_transactional and parked is not self.left_out.obeyed
        return is_parked or self.next_due() <= now

    def _obey_releases(self, now: float) -> None:
        """Rebuild deliveries after keys were released or became due, now and then."""
        if self.next_due() <= now:
            self.left_out.released.due(now)
            self._follow_released()
            self.left_out.followed(now)

    def _follow_released(self) -> None:
        released = self.left_out.released
        for topic_partition in list(self.by_partition) if released.has_new else ():
            if released.is_new(topic_partition):
                self._begin_again(topic_partition)
                # Last: after an interrupt amid this, it has still to follow.
                released.followed(topic_partition)

    def _begin_again(self, topic_partition: TopicPartition) -> None:
        """Go on with other keys left out; what is forgotten of them is pending again."""
        self._give_up(topic_partition)
        # None while rows count as processed that come again: after an interrupt amid this,
        # another one begins where the session says.
        delivery = self.by_partition.pop(topic_partition)
        self.by_partition[topic_partition] = self._next_of(delivery)

    def _next_of(self, delivery: Delivery) -> Delivery:
        """The delivery that goes on in place of one, with other keys left out."""
        topic_partition = delivery.topic_partition
        self.ended.stops += 1
        before = delivery.without_released()
        again = self._new_delivery(topic_partition, delivery.start, delivery.owned, before)
        again.is_provisional = delivery.is_provisional
        return again

    # -- what was handed out ----------------------------------------------------------------

    def settle(self) -> None:
        """In implicit mode, what was returned so far is processed."""
        for delivery in self.by_partition.values():
            delivery.settle()

    def take_back(self, topic_partition: TopicPartition) -> None:
        """Hand records out again that were collected, as if they had not been fetched."""
        self._give_up(topic_partition)
        self.by_partition[topic_partition].take_back()

    def acknowledge_rows(
        self, topic_partition: TopicPartition, offsets: Offsets, chunks: Collection[int]
    ) -> None:
        """Records are processed, as :meth:`.Delivery.acknowledge`; also before the next claim."""
        known = self.by_partition.get(topic_partition) or self._next.get(topic_partition)
        if known is not None:
            known.acknowledge(offsets, chunks)

    def acknowledge_below(
        self, topic_partition: TopicPartition, offset: int, point: int | None = None
    ) -> LateWork | None:
        """What was returned of a partition below an offset is processed.

        Args:
            topic_partition: The partition.
            offset: The offset.
            point: The key hash of the record before it, if that was returned and its key is known.

        Returns:
            What of it was returned before it has gone, with its partition or its key hashes; None
            if nothing was.

        Raises:
            ValueError: It has not started, or nothing was returned there.
        """
        delivery = self.by_partition.get(topic_partition)
        end = self.ended.end(topic_partition)
        if delivery is None and end < 0:
            raise ValueError(f"{topic_partition} is not assigned, or has not started")
        if delivery is None and offset > end:
            raise ValueError(
                f"{topic_partition}: cannot commit offset {offset}: what was returned ends at {end}"
            )
        own = -1 if delivery is None else delivery.furthest
        if delivery is not None:
            delivery.acknowledge_below(min(offset, own) if offset <= end else offset)
        if own < offset:
            gone = Region.product(ALL_HASHES, (0, offset) if offset else ())
        elif point is not None and delivery is not None and not delivery.owned.holds(point):
            gone = Region.of([Stripe(HashRange.of(point), (offset - 1, offset))])
        else:
            return None
        kept = EMPTY if delivery is None else delivery.all_returned
        return self.ended.work(topic_partition, gone - kept)

    @property
    def late_partitions(self) -> frozenset[TopicPartition]:
        """The partitions of deliveries that have ended, and are of interest: none."""
        return frozenset()

    def keep_late(self, may_count: MayCount) -> None:
        """Forget deliveries that have ended and will never be committed."""

    def late_work(
        self,
        partitions: Collection[TopicPartition],  # noqa: ARG002
        *,
        is_batch: bool,  # noqa: ARG002
    ) -> tuple[LateWork, ...]:
        """What is processed of deliveries that have ended: with key order, that counts no more.

        Args:
            partitions: The partitions.
            is_batch: As for :meth:`.Delivery.processed`.
        """
        return ()

    def release(self, message: Message, due: float | None) -> bool:
        """A record comes again, and all later ones of its key that are not acknowledged.

        Args:
            message: The record; it was returned.
            due: When, by the clock of :meth:`refresh`; None: when its key is let go.

        Returns:
            Whether it does so; False if it is acknowledged, or not this consumer's any more.
        """
        chunk, row, topic_partition = message.chunk, message.row, message.topic_partition
        if not chunk.is_open(row) or topic_partition not in self.assignment:
            return False
        key, offset = message.key(), message.offset()
        delivery, begins = self.by_partition.get(topic_partition), self._next.get(topic_partition)
        # First that it waits: what the thread that reads begins meanwhile is marked, too.
        self.left_out.released.defer(topic_partition, key_hash(key, offset), due)
        if delivery is not None:
            delivery.release(key, offset)
        elif begins is not None:
            OpenChunks(begins.position.chunks).release(key, offset)
        return message.is_released()

    def release_all(self, messages: Iterable[Message]) -> None:
        """As :meth:`release`, for many records, each until its key is let go. In one pass."""
        by_partition = dict[TopicPartition, tuple[dict[bytes, int], set[int]]]()
        for message in messages:
            partition, key, offset = message.topic_partition, message.key(), message.offset()
            if not message.chunk.is_open(message.row) or partition not in self.assignment:
                continue
            firsts, alone = by_partition.setdefault(partition, ({}, set()))
            self.left_out.released.defer(partition, key_hash(key, offset), None)
            if key is None:
                alone.add(offset)
            else:
                firsts[key] = min(offset, firsts.get(key, offset))
        for partition, (firsts, alone) in by_partition.items():
            # After that: what the thread that reads begins meanwhile is marked, too.
            delivery, begins = self.by_partition.get(partition), self._next.get(partition)
            if delivery is not None:
                delivery.release_all(firsts, alone)
            elif begins is not None:
                OpenChunks(begins.position.chunks).release_all(firsts, alone)
