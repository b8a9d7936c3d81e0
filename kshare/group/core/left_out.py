"""The keys that are left out of what is read: parked, put aside, or released.

::

    read --> left out: parked (by an operator) ---unparked---------> read again, from the log
                       put aside (``max.in.flight.per.key``) --few are left--> the same
                       released (by the user) ---due, or let go----> the same

What is left out stays pending, and memory holds nothing of it. Times are of any clock that is
never set.
"""

from collections.abc import Collection, Container, Mapping, Sequence
from typing import Final, TypeAlias

from kshare.core.hashing import HashRange, common, key_hash, minus
from kshare.core.offsets import OFFSET_MAX, Bounds, union
from kshare.core.progress import TopicPartition
from kshare.group.core.delivery import Delivery
from kshare.group.core.handed_out import OpenChunks
from kshare.group.core.key_limit import KeyLimits, Lock
from kshare.group.core.released import Released
from kshare.group.message import ACKNOWLEDGED, Chunk

__all__ = ["LeftOut", "ParkedHashes"]

ParkedHashes: TypeAlias = Mapping[str, tuple[HashRange, ...]]
"""The hashes of parked keys by topic: ranges of one hash each, ascending."""

_ASIDE_SECONDS: Final = 0.1
"""Keys are put aside, or read again, so often at most: what is on its way is fetched anew."""


class LeftOut:
    """The keys of a consumer's partitions that are left out.

    Args:
        most: Maximum number of unacknowledged records of a key; None for no limit.
        lock: As for :class:`.KeyLimit`.

    Attributes:
        limits: What is kept back for its key, or put aside.
        released: The keys that wait, as a record of them was released.
        parked: The parked keys; None until they are known. Without them, all deliveries go on.
        obeyed: The same, once all deliveries do so.
    """

    def __init__(self, most: int | None, lock: Lock | None = None) -> None:
        self.limits = KeyLimits(most, lock)
        self.released = Released()
        self.parked: ParkedHashes | None = None
        self.obeyed: ParkedHashes | None = None
        self._aside_until = self._released_until = 0.0

    def hashes(
        self, partition: TopicPartition, owned: Sequence[HashRange]
    ) -> tuple[HashRange, ...]:
        """The owned hashes that are not read."""
        out = (self.parked or {}).get(partition.topic, ())
        limit = self.limits.of(partition)
        for more in (limit.aside if limit is not None else (), self.released.hashes(partition)):
            if more:
                out = (*out, *minus(more, out))
        return tuple(sorted(common(owned, out)))

    def come_again(self, partition: TopicPartition, delivery: Delivery) -> dict[HashRange, Bounds]:
        """The offsets of keys that are handed out again, for :meth:`.Delivery.park`.

        They are what was kept back and is forgotten, and what was released: neither is handed out
        any more.
        """
        kept_back, limit = dict[HashRange, int](), self.limits.of(partition)
        for message in () if limit is None else limit.follow():
            message[0].acknowledged[message[1]] = ACKNOWLEDGED  # not handed out: no gap
            hashes = HashRange.of(key_hash(message.key(), message.offset()))
            kept_back[hashes] = min(message.offset(), kept_back.get(hashes, message.offset()))
        again, offsets = delivery.come_again()
        for hashes, first in kept_back.items():
            again[hashes] = union([again.get(hashes, ()), (first, OFFSET_MAX)])
        self.limits.acknowledge(partition, offsets)  # they hold no others of their keys back
        return again

    def mark(self, chunk: Chunk) -> None:
        """Of keys that wait, or did so, nothing that is still read is returned at first.

        Older chunks are marked by a release: behind the first offset of this one, which may begin
        with what is read again, they have records of such keys that do not come again.
        """
        if not self.released.is_new(chunk.topic_partition):
            return
        held = self.released.unfollowed(chunk.topic_partition)
        for key in set(chunk.column("key")):
            if key is not None and common(held, (HashRange.of(key_hash(key, 0)),)):
                OpenChunks((chunk,)).release(key, int(chunk.offsets[0]))

    # -- what changes with time ---------------------------------------------------------------

    def make_room(
        self,
        read: Collection[TopicPartition],
        started: Container[TopicPartition],
        now: float,
        *,
        has_rows: bool,
    ) -> list[TopicPartition]:
        """Put keys aside while what waits for them lets nothing be read, or end that.

        Args:
            read: The partitions that are read.
            started: Those that have a delivery.
            now: The time.
            has_rows: Whether something may be handed out.

        Returns:
            The partitions whose delivery has to follow.
        """
        limits = self.limits
        here = [(at, limit) for at, limit in limits if at in started]
        if not here:
            return []
        is_full = limits.are_full(read) and not limits.have_ready(read) and not has_rows
        # What has changed and is not followed is so at once: after an interrupt amid this.
        if not [at for at, limit in here if limit.is_changed]:
            due = [at for at, limit in here if limit.can_bring_back()]
            if not (due or is_full) or now < self._aside_until:
                return []
        self._aside_until = now + _ASIDE_SECONDS
        for _, limit in here:
            limit.bring_back()
        if is_full:
            limits.put_aside(read)
        return [at for at, limit in here if limit.is_changed]

    def let_go(self, now: float) -> None:
        """Let the keys go whose time has come, now and then."""
        if now >= self._released_until:
            self._released_until = now + _ASIDE_SECONDS
            self.released.due(now)

    def next_due(self) -> float | None:
        """The time at which the next key is due that was released; None if there is none."""
        due = self.released.next_due()
        return None if due is None else max(due, self._released_until)
