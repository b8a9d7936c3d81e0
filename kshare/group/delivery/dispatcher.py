"""What a consumer reads of its partitions: where the session lets it start, and on from there.

Guarantees: what is handed out comes from a start of the session, is not processed by it, and comes
once. What an interrupted call has fetched is fetched again. Cost: one fetch for all ranges of a
partition; buffers are those of :class:`~kshare.wire.reader.tail_reader.TailReader`.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from threading import Lock

import pyarrow as pa

from kshare.core.hashing import WHOLE, HashRange, common, key_hash, minus
from kshare.core.leader_epochs import LeaderEpochs
from kshare.core.offsets import union
from kshare.core.packed_bounds import OFFSET_MAX
from kshare.core.progress import Progress, Slice, TopicPartition
from kshare.group.batch_mark import marked
from kshare.group.config.table import ConsumerConfig
from kshare.group.core.delivery import Carried, Delivery
from kshare.group.core.handed_out import Offsets, OpenChunks
from kshare.group.core.key_limit import KeyLimits
from kshare.group.core.next_delivery import NextDelivery
from kshare.group.core.released import Released
from kshare.group.delivery.in_hand import InHand
from kshare.group.delivery.load_meter import LoadMeter
from kshare.group.delivery.metrics import delivery_metrics
from kshare.group.delivery.parking import ParkedHashes, Parking
from kshare.group.delivery.read_options import read_options
from kshare.group.message import ACKNOWLEDGED, NO_ROWS, Chunk, Message, Rows, batch_of, rows_of
from kshare.group.metrics import PartitionMetrics
from kshare.group.session.interface import Session
from kshare.options import DEFAULT_COLUMNS
from kshare.wire.protocol.waker import Waker
from kshare.wire.reader.tail_reader import NO_END, TailReader, TailRecords

__all__ = ["Assignment", "Dispatcher"]

Assignment = Mapping[TopicPartition, tuple[HashRange, ...]]
"""Key hashes of each partition; empty for all."""

_UNACKNOWLEDGED_MAX = 1_000_000
"""Number of records that are handed out and not acknowledged, above which nothing more is read."""
_ASIDE_SECONDS = 0.1
"""Keys are put aside, or read again, so often at most: what is on its way is fetched anew."""


class Dispatcher:
    """Hands out the records of some partitions, chunk by chunk.

    For one thread at a time.

    Args:
        config: The consumer's configuration.
        session: Says where to start.
        waker: What ends waiting.

    Attributes:
        assignment: The partitions that are claimed, and their key hashes.
        paused: Partitions that are not read for now.
        deliveries: What is handed out of the partitions that have started.
        stops: How often the delivery of a partition has ended, or was begun again.
        meter: Measures the load; None if nobody looks at it.
        parking: The parked keys; None if nobody parks any.
        released: The keys that wait, as a record of them was released.
        release_count: For :attr:`.Chunk.release_count`.
    """

    def __init__(self, config: ConsumerConfig, session: Session, waker: Waker) -> None:
        self.assignment: dict[TopicPartition, tuple[HashRange, ...]] = {}
        self.paused: set[TopicPartition] = set()
        self.deliveries: dict[TopicPartition, Delivery] = {}
        self.stops = 0
        self.meter: LoadMeter | None = None
        self.parking: Parking | None = None
        self.released = Released()
        self.release_count: Callable[[TopicPartition, int], int] | None = None
        self._parked: ParkedHashes | None = None  # without them, or with them again, all go on
        self._obeyed: ParkedHashes | None = None  # the same once all do so
        self._config = config
        self._session = session
        self._reader = TailReader(read_options(config), config.offset_reset, waker)
        self._limits = KeyLimits(config.in_flight_per_key, Lock())
        self._aside_until = self._released_until = 0.0  # by the monotonic clock
        self._next: dict[TopicPartition, NextDelivery] = {}  # of partitions that have not started
        self._hand = InHand()

    @property
    def rows(self) -> Rows:
        """Messages that may be handed out now; those that are taken from it are."""
        return self._hand.rows

    def take_turns(self) -> None:
        """Hand out some hundred records of each partition in turn, from now on."""
        self._reader.takes_turns = True
        # Partitions that are read one after another share a buffer: in turns each has its own.
        with self._reading_anew():
            for topic_partition in self._read_on:
                self._give_up(topic_partition)
                self._read(topic_partition)

    # -- which partitions -------------------------------------------------------------------

    def keep(self, assignment: Assignment) -> None:
        """Read on these key hashes, until they are claimed without the others, and no others."""
        before = self.assignment
        self.assign(assignment, keeps=True)
        narrowed = {
            tp
            for tp, hashes in assignment.items()
            if (before.get(tp) or (WHOLE,)) != (hashes or (WHOLE,))
        }
        for tp in narrowed - self.deliveries.keys():  # should they start before that
            self._next[tp] = replace(self._next.get(tp, NextDelivery()), is_provisional=True)

    def assign(self, assignment: Assignment, *, keeps: bool = False) -> None:
        """Read these partitions, as soon as the session has started them, and no others.

        Args:
            assignment: The partitions, with their key hashes.
            keeps: Whether hashes that stay are read on: what was handed out of them is not handed
                out again.
        """
        before, self._next = self._next, {}
        for topic_partition, hashes in assignment.items() if keeps else ():
            if topic_partition in self.deliveries:
                self._keep(topic_partition, hashes or (WHOLE,))
            elif topic_partition in before:
                self._next[topic_partition] = before[topic_partition].within(hashes or (WHOLE,))
                limit = self._limits.of(topic_partition)
                if limit is not None:
                    limit.keep(hashes or (WHOLE,))
        for topic_partition in before.keys() - self._next.keys() - self.deliveries.keys():
            self._limits.end(topic_partition)
        for topic_partition in self.deliveries.keys() - assignment.keys():
            self._stop(topic_partition)
        for topic_partition in self.assignment:
            hashes = (
                assignment[topic_partition] or (WHOLE,) if topic_partition in assignment else ()
            )
            self.released.keep(topic_partition, hashes)
        self.paused &= assignment.keys()
        self.assignment = dict(assignment)

    def _keep(self, topic_partition: TopicPartition, hashes: tuple[HashRange, ...]) -> None:
        """The key hashes of a partition change: go on with those that stay.

        Nobody else gets them, so there is no need to wait until they are claimed again. But for
        transactions: what they process has to belong to a claim.
        """
        delivery = self.deliveries[topic_partition]
        if delivery.owned == hashes:
            return
        self._carry(topic_partition, hashes)
        stay = common(delivery.owned, hashes)
        if stay and topic_partition in self._next and self._config.transactional_id is None:
            self._start(topic_partition, delivery.start, stay)
            self.deliveries[topic_partition].is_provisional = True

    def is_settled(self) -> bool:
        """True if what is read is claimed."""
        # Another thread may seek meanwhile.
        return not any(delivery.is_provisional for delivery in list(self.deliveries.values()))

    def is_claimed(self, topic_partition: TopicPartition) -> bool:
        """True if all that is assigned of a partition is claimed, so that its delivery begins."""
        delivery = self.deliveries.get(topic_partition)
        return delivery is not None and not delivery.is_provisional

    def _carry(self, topic_partition: TopicPartition, hashes: tuple[HashRange, ...]) -> None:
        """End a delivery; the next one goes on where it was."""
        delivery, limit = self.deliveries[topic_partition], self._limits.of(topic_partition)
        self._stop(topic_partition)
        carried = delivery.carry(hashes)
        if carried is None:
            return
        self._next[topic_partition] = NextDelivery(carried)
        if limit is not None:
            limit.keep(hashes)
            self._limits.begin(topic_partition, limit)

    def refresh(self, *, continues: bool = False, begins: bool = False) -> None:
        """Follow the session: start what has started, drop what has not; park and unpark keys.

        Args:
            continues: Whether a call has got records that it has not returned yet: then a delivery
                that is provisional goes on, as the next one takes what came before for processed.
            begins: Whether a transaction begins: amid one, no key is parked or unparked.
        """
        may_park = not continues and (begins or self._config.transactional_id is None)
        if may_park or self._parked is None:
            self._obey_parking()
        if not continues:
            self._make_room()
            self._obey_releases()
        started = self._session.started()
        for topic_partition, hashes in self.assignment.items():
            start = started.get(topic_partition)
            delivery = self.deliveries.get(topic_partition)
            if delivery is not None and delivery.is_provisional:
                if start is None or start is delivery.start or continues:
                    continue  # its next claim is not in place, or not even made
                self._carry(topic_partition, hashes or (WHOLE,))
                delivery = None
            elif delivery is not None and (
                start is not delivery.start or delivery.owned != (hashes or (WHOLE,))
            ):
                self._stop(topic_partition)
                delivery = None
            knows_parked = self.parking is None or self._parked is not None
            if delivery is None and start is not None and knows_parked:
                self._start(topic_partition, start, hashes)

    def _obey_parking(self) -> None:
        """Let the deliveries whose keys were parked or unparked go on without or with them."""
        if self.parking is None or self.parking.hashes is self._obeyed:
            return
        self._parked = parked_now = self.parking.hashes
        for topic_partition, delivery in list(self.deliveries.items()):
            if self._parked_of(topic_partition, delivery.owned) == delivery.parked:
                continue
            parked = common(delivery.owned, (self._parked or {}).get(topic_partition.topic, ()))
            self._take_out(topic_partition, parked)
            self._repark(topic_partition)
        self._obeyed = parked_now  # last: after an interrupt, the others follow

    def _take_out(self, topic_partition: TopicPartition, hashes: Sequence[HashRange]) -> None:
        """Keep nothing back of some key hashes any more: it is pending again."""
        limit = self._limits.of(topic_partition)
        self._put_back_rows(topic_partition)
        if limit is not None:
            limit.take_out(hashes)

    def _obey_releases(self) -> None:
        """Let deliveries go on without the keys that wait, and again with those that do no more."""
        self._follow_released()
        now = time.monotonic()
        if now >= self._released_until:
            self._released_until = now + _ASIDE_SECONDS
            self.released.due(now)
            self._follow_released()

    def _follow_released(self) -> None:
        for topic_partition in list(self.deliveries):
            if self.released.is_new(topic_partition):
                held = self.released.hashes(topic_partition)
                self._take_out(topic_partition, held)
                self._repark(topic_partition)
                # Last: after an interrupt amid this, it has still to follow.
                self.released.follow([topic_partition])

    @property
    def seconds_left(self) -> float:
        """Time until a key is due that was released; infinite if there is none."""
        due = self.released.next_due()
        if due is None:
            return float("inf")
        return max(max(due, self._released_until) - time.monotonic(), 0.0)

    def release(self, message: Message, due: float | None) -> bool:
        """A record comes again, and all later ones of its key that are not acknowledged.

        Args:
            message: The record; it was returned.
            due: When, by the monotonic clock; None: when its key is let go.

        Returns:
            Whether it does so; False if it is acknowledged, or not this consumer's any more.
        """
        chunk, row, topic_partition = message[0], message[1], message.topic_partition
        if chunk.acknowledged[row] & ACKNOWLEDGED or topic_partition not in self.assignment:
            return False
        key, offset = message.key(), message.offset()
        delivery, begins = self.deliveries.get(topic_partition), self._next.get(topic_partition)
        # First that it waits: what the thread that reads begins meanwhile is marked, too.
        self.released.hold(topic_partition, key_hash(key, offset), due)
        if delivery is not None:
            delivery.release(key, offset)
        elif begins is not None and begins.carried is not None:
            OpenChunks(begins.carried.chunks).release(key, offset)
        return message.is_released()

    def _mark_released(self, chunk: Chunk) -> None:
        """Of keys that wait, or did so, nothing that is still read is returned at first.

        Older chunks are marked by :meth:`release`: behind the first offset of this one, which may
        begin with what is read again, they have records of such keys that do not come again.
        """
        if not self.released.is_new(chunk.topic_partition):
            return
        held = self.released.unfollowed(chunk.topic_partition)
        for key in set(chunk.column("key")):
            if key is not None and common(held, (HashRange.of(key_hash(key, 0)),)):
                OpenChunks((chunk,)).release(key, int(chunk.offsets[0]))

    def _make_room(self) -> None:
        """Put keys aside while what waits for them lets nothing be read, and read them again.

        What is put aside stays pending, as of a parked key, and memory holds nothing of it.
        """
        limits, read = self._limits, self._read_on
        is_full = limits.are_full(read) and not limits.have_ready(read) and not self.rows.left
        # What has changed and is not followed: after an interrupt amid this.
        due = [limit for _, limit in limits if limit.is_changed or limit.can_bring_back()]
        if not (due or is_full) or time.monotonic() < self._aside_until:
            return
        read_here = [(at, limit) for at, limit in limits if at in self.deliveries]
        for _, limit in read_here:
            limit.bring_back()
        if is_full:
            limits.put_aside(read)
        for partition, limit in read_here:
            if limit.is_changed:
                self._repark(partition)
        self._aside_until = time.monotonic() + _ASIDE_SECONDS

    def _parked_of(
        self, topic_partition: TopicPartition, owned: Sequence[HashRange]
    ) -> tuple[HashRange, ...]:
        """The owned hashes that are not read: of parked keys, and of keys that are put aside."""
        parked = (self._parked or {}).get(topic_partition.topic, ())
        limit = self._limits.of(topic_partition)
        for more in (
            limit.aside if limit is not None else (),
            self.released.hashes(topic_partition),
        ):
            if more:
                parked = (*parked, *minus(more, parked))
        return tuple(sorted(common(owned, parked)))

    def _repark(self, topic_partition: TopicPartition) -> None:
        """Go on with other keys parked or put aside; what is forgotten of them is pending again."""
        with self._reading_anew():
            self._give_up(topic_partition)
            # None while rows count as processed that come again: after an interrupt amid this,
            # another one begins where the session says.
            delivery, kept_back = self.deliveries.pop(topic_partition), dict[HashRange, int]()
            self.stops += 1
            limit = self._limits.of(topic_partition)
            for message in () if limit is None else limit.follow():
                message[0].acknowledged[message[1]] = ACKNOWLEDGED  # not handed out: no gap
                hashes = HashRange.of(key_hash(message.key(), message.offset()))
                kept_back[hashes] = min(message.offset(), kept_back.get(hashes, message.offset()))
            anew, offsets = delivery.come_again()
            for hashes, first in kept_back.items():
                anew[hashes] = union([anew.get(hashes, ()), (first, OFFSET_MAX)])
            self.acknowledge(topic_partition, offsets)  # they hold no others of their keys back
            carried = delivery.park(anew)
            again = self._new_delivery(topic_partition, delivery.start, delivery.owned, carried)
            again.is_provisional = delivery.is_provisional
            self.deliveries[topic_partition] = again
            self._read(topic_partition)

    def _start(
        self, topic_partition: TopicPartition, start: Progress, hashes: tuple[HashRange, ...]
    ) -> None:
        begins = self._next.pop(topic_partition, NextDelivery())
        if begins.carried is None or begins.sought is not None:
            self._limits.begin(topic_partition)
        delivery = self._new_delivery(topic_partition, start, hashes, begins.carried)
        # With transactions, what they process has to belong to a claim.
        delivery.is_provisional = begins.is_provisional and self._config.transactional_id is None
        self.deliveries[topic_partition] = delivery
        if begins.sought is not None:
            delivery.seek(begins.sought)
        self._read(topic_partition)

    def _new_delivery(
        self,
        topic_partition: TopicPartition,
        start: Progress,
        hashes: tuple[HashRange, ...],
        carried: Carried | None,
    ) -> Delivery:
        explicit = self._config.explicit
        parked = self._parked_of(topic_partition, hashes or (WHOLE,))
        return Delivery(
            topic_partition, start, hashes, explicit=explicit, carried=carried, parked=parked
        )

    def _stop(self, topic_partition: TopicPartition) -> None:
        self._give_up(topic_partition)
        self._limits.end(topic_partition)
        self.stops += 1
        del self.deliveries[topic_partition]

    def pause(self, topic_partition: TopicPartition) -> None:
        """Read a partition no more for now."""
        self.paused.add(topic_partition)
        if topic_partition in self.deliveries:
            self._give_up(topic_partition)

    def resume(self, topic_partition: TopicPartition) -> None:
        """Read a partition again; one that is not paused is read on."""
        if topic_partition not in self.paused:
            return
        self.paused.discard(topic_partition)
        if topic_partition in self.deliveries:
            self._read(topic_partition)

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """Go on at an offset."""
        delivery, hashes = self.deliveries.get(topic_partition), self.assignment[topic_partition]
        self.released.keep(topic_partition, ())
        awaits_claim = False
        if delivery is not None and delivery.is_provisional:  # hashes that were gained go there too
            awaits_claim = self._session.started().get(topic_partition) is delivery.start
            self._carry(topic_partition, hashes or (WHOLE,))
            delivery = None
        if delivery is None:
            begins = self._next.get(topic_partition, NextDelivery())
            self._next[topic_partition] = replace(
                begins,
                sought=offset,
                sought_of=hashes or (WHOLE,),
                is_provisional=begins.is_provisional or awaits_claim,
            )
            return
        with self._reading_anew():
            self._give_up(topic_partition)
            self._limits.begin(topic_partition)
            if self._parked_of(topic_partition, delivery.owned) != delivery.parked:
                self._repark(topic_partition)  # what was put aside goes there, too
                self._give_up(topic_partition)
                delivery = self.deliveries[topic_partition]
            delivery.seek(offset)
            self._read(topic_partition)

    @contextmanager
    def _reading_anew(self) -> Iterator[None]:
        """Amid this, an interrupt lets all be read again: of what is given up, nobody reads on."""
        before, self._hand.is_clean = self._hand.is_clean, False
        yield
        self._hand.is_clean = before

    def _give_up(self, topic_partition: TopicPartition) -> None:
        """What is read and not handed out is to be read again."""
        self._reader.drop(topic_partition)
        self.deliveries[topic_partition].stop()
        self._put_back_rows(topic_partition)
        self._hand.drop(topic_partition)

    def _put_back_rows(self, topic_partition: TopicPartition) -> None:
        if self.limits_keys and self._hand.partition == topic_partition:
            self._put_back(topic_partition, list(self.rows.messages))

    def _put_back(self, topic_partition: TopicPartition, messages: list[Message]) -> None:
        """Messages that were let out for their keys, and are not returned, come next."""
        limit = self._limits.of(topic_partition)
        if limit is not None:
            limit.ready.extendleft(reversed(messages))

    def _read(self, topic_partition: TopicPartition) -> None:
        """Read a partition from its position on."""
        if topic_partition not in self.paused:
            wanted = self.deliveries[topic_partition].wanted(NO_END)
            if not wanted:  # all of it is parked
                return
            is_alone = len(self.assignment) == 1
            self._reader.read(Slice(*topic_partition, stripes=wanted), is_alone=is_alone)

    @property
    def _read_on(self) -> set[TopicPartition]:
        """The partitions that have started and are not paused."""
        return set(self.deliveries) - self.paused

    @property
    def limits_keys(self) -> bool:
        """True if records are kept back for their keys (``max.in.flight.per.key``)."""
        return self._config.in_flight_per_key is not None

    @property
    def finished_chunks(self) -> int:
        """Number of leased chunks that have been processed; 0 with key order."""
        return 0

    @property
    def current(self) -> TopicPartition:
        """The partition of what may be handed out now; there is something."""
        batch = self._hand.batch
        partition = self._hand.partition if batch is None else batch.topic_partition
        assert partition is not None
        return partition

    def end(self, topic_partition: TopicPartition) -> int | None:
        """The end of a partition, as of the last fetch; None if it is not known."""
        return self._reader.end(topic_partition)

    def leader_epochs(self, topic_partition: TopicPartition) -> LeaderEpochs:
        """Which leaders wrote what was read of a partition. May be called by any thread."""
        return self._reader.leader_epochs(topic_partition)

    # -- records ----------------------------------------------------------------------------

    def next_rows(self, seconds: float) -> bool:
        """Put the next messages of one partition into :attr:`rows`, which is exhausted.

        Args:
            seconds: Maximum time to wait. May return False before it is over.
        """
        hand = self._hand
        hand.is_clean &= hand.batch is None
        self._clean()
        hand.is_clean = False
        hand.rows = self._limited() or self._begun() or self._fetched_rows(seconds) or NO_ROWS
        hand.is_clean = True
        return self.rows.left > 0

    def _limited(self) -> Rows | None:
        """What was kept back for its key, and may go out now."""
        for topic_partition, limit in self._limits:
            # Without a delivery, its claim is not in place: nothing could be committed.
            if limit.ready and topic_partition in self._read_on:
                self._hand.partition = topic_partition
                return rows_of(limit.take())
        return None

    def _begun(self) -> Rows | None:
        """The next chunk of the batch that was fetched last; with limits, what of it may go out."""
        for chunk, end in self._hand.rest:
            delivery = self.deliveries[chunk.topic_partition]
            if self.meter is not None:
                self.meter.begun(chunk)
            limit = self._limits.of(chunk.topic_partition)
            chunk.release_count = self.release_count
            if limit is None:
                self._hand.partition = chunk.topic_partition
                begun = delivery.begin(chunk, end)
                self._mark_released(chunk)
                return begun
            delivery.hand_out(chunk, end)
            self._mark_released(chunk)
            limit.put(chunk.messages().messages)
            rows = self._limited()
            if rows is not None or self._is_full():
                return rows
        return None

    def _fetched_rows(self, seconds: float) -> Rows | None:
        self._hand.partition = None
        records = self._fetch(seconds)
        if records is None:
            return None
        self._hand.begin(records)
        return self._begun()

    def fetch_batch(self, seconds: float) -> bool:
        """Have the next record batch of one partition ready for :meth:`collect_batch`.

        What is left of a batch whose messages were handed out comes first.

        Args:
            seconds: Maximum time to wait. May return False before it is over.
        """
        hand = self._hand
        if hand.batch is None:
            hand.is_clean &= not hand.has_rows  # else it was read as messages so far
            self._clean()
            hand.is_clean = False
            hand.batch = self._fetch(seconds)
            hand.is_clean = True
        return hand.batch is not None

    @property
    def has_batch(self) -> bool:
        """True if there is something for :meth:`collect_batch`."""
        return self.rows.left > 0 if self.limits_keys else self._hand.batch is not None

    def collect_batch(self) -> tuple[Delivery, list[Message], pa.RecordBatch]:
        """Hand out the record batch that is ready, until it is known what becomes of it.

        With limits, what :attr:`rows` has, and all of its partition that may go out with it.

        Returns:
            Its delivery, and with limits its messages; and the batch.
        """
        partition, messages = self.current, list[Message]()
        if self.limits_keys:
            limit = self._limits.of(partition)
            assert limit is not None
            messages = [*self.rows.messages, *limit.take()]
            self._hand.rows = NO_ROWS
            batch, chunks = batch_of(messages), [message[0] for message in messages]
        else:
            records, self._hand.batch = self._hand.batch, None
            assert records is not None
            chunk = Chunk(partition, records.batch)
            self.deliveries[partition].collect()
            self.deliveries[partition].hand_out(chunk, records.end)
            if self.meter is not None:
                self.meter.begun(chunk)
            batch, chunks = records.batch, [chunk]
        batch = marked(batch, chunks).select(self._config.columns or DEFAULT_COLUMNS)
        return self.deliveries[partition], messages, batch

    def metrics(self, *, is_batch: bool) -> dict[TopicPartition, PartitionMetrics]:
        """What is owned, and how far it is.

        Args:
            is_batch: As for :meth:`.Delivery.processed`.
        """
        return {
            topic_partition: self._metrics(topic_partition, hashes or (WHOLE,), is_batch=is_batch)
            for topic_partition, hashes in self.assignment.items()
        }

    def _metrics(
        self, topic_partition: TopicPartition, hashes: tuple[HashRange, ...], *, is_batch: bool
    ) -> PartitionMetrics:
        delivery = self.deliveries.get(topic_partition)
        if delivery is None:
            return PartitionMetrics(hashes)
        limit = self._limits.of(topic_partition)
        waiting = 0  # for their keys, and so not handed out
        if limit is not None:
            waiting = limit.held + (
                self.rows.left if self._hand.partition == topic_partition else 0
            )
        log = self._reader.bounds(topic_partition)
        bounds = (None if log is None else log[0], self._reader.end(topic_partition))
        return delivery_metrics(delivery, hashes, bounds, waiting, is_batch=is_batch)

    def _clean(self) -> None:
        """After an error or an interrupt, read again what may have been fetched and lost."""
        if not self._hand.is_clean:
            for topic_partition in self.deliveries:
                self._give_up(topic_partition)
                self._read(topic_partition)
            self._hand.is_clean = True

    def _fetch(self, seconds: float) -> TailRecords | None:
        if self._is_full() or self._hand.has_rest:
            self._reader.wait(seconds)
            return None
        return self._reader.next_records(seconds)

    def _is_full(self) -> bool:
        """True if so much is kept back or not acknowledged that nothing more is to be read."""
        if not self._config.explicit:
            return False
        # Another thread may seek meanwhile, for a call that looks whether it is blocked.
        waiting = sum(delivery.unacknowledged for delivery in list(self.deliveries.values()))
        return self._limits.are_full(self._read_on) or waiting >= _UNACKNOWLEDGED_MAX

    def is_blocked(self) -> bool:
        """True if no record can come before one is acknowledged (``max.in.flight.per.key``).

        At the end of all logs, too: what is kept back is more than what may be written next.
        """
        if not self._limits.are_waiting(self._read_on) or self.rows.left:
            return False
        return self._is_full() or (not self._hand.has_rest and self._is_at_the_end())

    def _is_at_the_end(self) -> bool:
        for topic_partition in self._read_on:
            delivery = self.deliveries.get(topic_partition)
            if delivery is None:  # another thread seeks
                return False
            if not delivery.wanted(NO_END):  # all of it is put aside
                continue
            end = self._reader.end(topic_partition)
            if end is None or self._reader.delivered(topic_partition) < end:
                return False
        return True

    def pass_over(self) -> None:
        """Count offsets as handed out that were read and hold no record of the own hashes.

        For the thread that reads.
        """
        for topic_partition, delivery in self.deliveries.items():
            if self._hand.is_clean and not self._hand.holds(topic_partition):
                delivery.pass_to(self._reader.delivered(topic_partition))

    # -- what a call collects ---------------------------------------------------------------

    def collect(self, most: int) -> tuple[Delivery, list[Message]]:
        """Hand out messages of :attr:`rows`, at least one, until it is known what becomes of them.

        Returns:
            Their delivery, and at most that number of them.
        """
        partition = self.current
        if self._limits.of(partition) is None:
            self.deliveries[partition].collect()
        return self.deliveries[partition], list(islice(self.rows.messages, most))

    def take_back(self, topic_partition: TopicPartition, messages: list[Message]) -> None:
        """What was collected of a partition is handed out again, as if it had not been fetched."""
        with self._reading_anew():
            self._give_up(topic_partition)
            self._put_back(topic_partition, messages)
            self.deliveries[topic_partition].take_back()
            self._read(topic_partition)

    # -- acknowledgement --------------------------------------------------------------------

    def acknowledge_rows(
        self, topic_partition: TopicPartition, offsets: Offsets, chunks: Collection[int]
    ) -> None:
        """Records are processed, as :meth:`.Delivery.acknowledge`; also before the next claim."""
        known = self.deliveries.get(topic_partition) or self._next.get(topic_partition)
        if known is not None:
            found = known.acknowledge(offsets, chunks)
            self.acknowledge(topic_partition, found.tolist())

    def acknowledge(
        self, topic_partition: TopicPartition, offsets: Iterable[int], chunk: int | None = None
    ) -> None:
        """Let the next records of some records' keys out (``max.in.flight.per.key``).

        Args:
            topic_partition: The partition.
            offsets: The records' offsets.
            chunk: Number of the chunk that they are of; None: of any.
        """
        limit = self._limits.of(topic_partition)
        if limit is not None:
            for offset in offsets:
                limit.acknowledge(offset, chunk)

    def close(self) -> None:
        """Give back all connections."""
        if self.parking is not None:
            self.parking.close()
        self._reader.close()
