"""Keeping a key's next records back until earlier ones are acknowledged.

For ``max.in.flight.per.key``::

    read --> kept back --acknowledged--> ready --> handed out
                 |
                 +-- too many: put aside, which is forgotten from an offset on
                          ^                        |
                          |                        v
                          +---- read again <-- few are left

Cost: a dictionary entry for each record in flight, for each key of them, and for
each key that is put aside.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Final, TypeAlias

from kshare.core.hashing import KeyRanges, key_hash
from kshare.core.progress import TopicPartition
from kshare.group.core.handed_out import is_of
from kshare.group.core.in_hand import InHand
from kshare.group.message import Message, rows_of

__all__ = ["KeyLimit", "KeyLimits"]

Lock: TypeAlias = AbstractContextManager[object]

_HELD_MAX: Final = 10_000
"""Number of records that are kept back, above which nothing more is read."""
_CHUNKS_MAX: Final = 64
"""The same of the chunks that they keep in memory."""
_ASIDE_MAX: Final = 1_000
"""Number of keys that are put aside at a time."""
_FEW: Final = 8
"""A key put aside is read again when few of its kept-back records remain: 1 in this number."""


class KeyLimit:
    """Keeps a key's next records back while some of it are not acknowledged.

    One thread reads; any thread acknowledges.

    Args:
        most: Maximum number of unacknowledged records of a key. Records without a key have none.
        lock: Keeps the two from each other, if there are several threads.

    Attributes:
        ready: What may go out.
        is_changed: Whether other keys are put aside, or something is forgotten, since
            :meth:`follow`.
    """

    def __init__(self, most: int, lock: Lock | None = None) -> None:
        self._most = most
        self._in_flight: dict[int, tuple[bytes, int]] = {}  # by offset: key, number of the chunk
        self._counts: dict[bytes, int] = {}
        self._waiting: dict[bytes, deque[Message]] = {}
        self._kept_back: dict[int, int] = {}  # how many are waiting, by their chunks' numbers
        self._aside: dict[bytes, int] = {}  # how many were left of the keys that are put aside
        self._lock = lock or nullcontext()
        self._forgotten: list[Message] = []
        self._returned: list[Message] = []  # what is being put back
        self.ready: deque[Message] = deque()
        self.is_changed = False

    @property
    def held(self) -> int:
        """Number of records that are kept back or not handed out yet."""
        with self._lock:
            return len(self.ready) + sum(self._kept_back.values())

    @property
    def chunks(self) -> int:
        """Number of chunks with records that are kept back."""
        return len(self._kept_back)

    @property
    def is_waiting(self) -> bool:
        """True if records are kept back or put aside, and none may go out."""
        return not self.ready and bool(self._kept_back or self._aside)

    @property
    def waiting_keys(self) -> int:
        """Number of keys with records that are kept back."""
        return len(self._waiting)

    @property
    def aside(self) -> KeyRanges:
        """The hashes of the keys that are put aside."""
        return KeyRanges.of_hashes(key_hash(key, 0) for key in self._aside)

    def let_out(self, hand: InHand) -> None:
        """Have all in hand that may go out now; nothing is in hand."""
        with self._lock:
            rows, ready = rows_of(list(self.ready)), deque[Message]()
            # From here on without a call, so that no interrupt comes between.
            hand.rows, self.ready = rows, ready

    def take(self, into: list[Message]) -> None:
        """Add all that may go out now; after an interrupt it may be there, and here, too."""
        with self._lock:
            into.extend(self.ready)
            self.ready.clear()

    def put_back(self, messages: Iterable[Message]) -> None:
        """What was let out, and is not returned, comes next; some of it may be here already.

        After an interrupt amid this, the next call goes on with what this one has taken.
        """
        with self._lock:
            self._returned.extend(messages)
            ready = deque({m.offset(): m for m in (*self._returned, *self.ready)}.values())
            # From here on without a call, so that no interrupt comes between.
            self.ready, self._returned = ready, []

    def put(self, messages: Iterable[Message]) -> None:
        """Take the next records, in offset order; :attr:`ready` has those that may go out.

        After an interrupt amid this, the others are still to be put, which :meth:`without_known`
        says.
        """
        with self._lock:
            for message in messages:
                self._put(message)

    def _put(self, message: Message) -> None:
        key, offset, number = message.key(), message.offset(), message[0].number
        if key is None:
            self.ready.append(message)
            return
        count = self._counts.get(key, 0)
        if key in self._waiting or count >= self._most:
            waiting, kept_back = self._waiting.get(key, deque()), self._kept_back.get(number, 0)
            # In both cases without a call but the last one, so that no interrupt comes between.
            self._waiting[key] = waiting
            self._kept_back[number] = kept_back + 1
            waiting.append(message)
        else:
            self._counts[key] = count + 1
            self._in_flight[offset] = key, number
            self.ready.append(message)

    def without_known(self, messages: Iterable[Message]) -> list[Message]:
        """The records among some that were not put, and are not acknowledged."""
        with self._lock:
            waiting = (message for each in self._waiting.values() for message in each)
            known = {message.offset() for message in (*self.ready, *waiting)}
            known |= self._in_flight.keys()
            return [
                each for each in messages if each.offset() not in known and each[0].is_open(each[1])
            ]

    def keep(self, hashes: KeyRanges) -> None:
        """Forget what is not of some key hashes: it is not this consumer's any more."""
        with self._lock:
            self.ready = deque(m for m in self.ready if is_of(m.key(), m.offset(), hashes))
            kept = {key for key in self._counts if is_of(key, 0, hashes)}
            self._counts = {key: count for key, count in self._counts.items() if key in kept}
            self._waiting = {key: each for key, each in self._waiting.items() if key in kept}
            self._in_flight = {at: each for at, each in self._in_flight.items() if each[0] in kept}
            self._aside = {key: left for key, left in self._aside.items() if is_of(key, 0, hashes)}
            self._forgotten = [m for m in self._forgotten if is_of(m.key(), m.offset(), hashes)]
            self._count()

    def follow(self) -> list[Message]:
        """What was forgotten, for a delivery that is to read it again.

        Returns:
            The messages, in offset order for each key.
        """
        forgotten, self._forgotten, self.is_changed = self._forgotten, [], False
        return forgotten

    def take_out(self, hashes: KeyRanges) -> None:
        """Forget what is kept back of some key hashes; those in flight stay so."""
        with self._lock:
            self.is_changed = True
            taken = [m for m in self.ready if is_of(m.key(), m.offset(), hashes)]
            self._forgotten += taken
            offsets = {m.offset() for m in self._forgotten}  # also after an interrupt amid this
            self.ready = deque(m for m in self.ready if m.offset() not in offsets)
            for offset in offsets & self._in_flight.keys():  # let out, and not handed out
                self._land(offset)
            for key in [key for key in self._waiting if is_of(key, 0, hashes)]:
                self._forgotten += self._waiting[key]
                del self._waiting[key]
            for key in [key for key in self._aside if is_of(key, 0, hashes)]:
                del self._aside[key]
            self._count()

    def put_aside(self, most: int, chunks: int, keys: int) -> int:
        """Forget what is kept back of the keys that have most of it, but for their first records.

        From the first forgotten record of a key on, its records must not be put before
        :meth:`bring_back` has returned it.

        Args:
            most: Number of records of a key that may be left.
            chunks: Number of chunks that the records that are left may be of.
            keys: Maximum number of keys to put aside.

        Returns:
            Number of keys with records that are forgotten.
        """
        with self._lock:
            listed = sorted(self._kept_back)
            last = listed[min(chunks, len(listed)) - 1] if listed else 0
            found = []
            for key, waiting in self._waiting.items():
                left = sum(message[0].number <= last for message in waiting)
                left = min(left, most)
                if left < len(waiting):
                    found.append((len(waiting) - left, left, key))
            found.sort(reverse=True)
            for _, left, key in found[:keys]:
                messages = list(self._waiting[key])
                kept = deque(messages[:left])
                # From here on without a call, so that no interrupt comes between.
                self.is_changed = True
                self._forgotten += messages[left:]
                self._aside[key] = left
                self._waiting[key] = kept
                if not left:
                    del self._waiting[key]
            self._count()
            return len(found[:keys])

    def can_bring_back(self) -> bool:
        """True if records of a key that is put aside are to be read again."""
        with self._lock:
            return any(self._is_due(key, left) for key, left in self._aside.items())

    def bring_back(self) -> None:
        """Put keys aside no longer once few of their records are left."""
        with self._lock:
            due = [key for key, left in self._aside.items() if self._is_due(key, left)]
            for key in due:
                self.is_changed = True
                del self._aside[key]

    def _is_due(self, key: bytes, left: int) -> bool:
        waiting = len(self._waiting.get(key, ()))
        if left >= _FEW:
            return waiting <= left // _FEW
        return not waiting and self._counts.get(key, 0) < self._most

    def acknowledge(self, offset: int, chunk: int | None = None) -> None:
        """A record is acknowledged; it may be so already, or unknown, as after an interrupt.

        Args:
            offset: Its offset.
            chunk: Number of the chunk that it is of; None: of any. A record that comes again, as
                it was released or sought, is in another one.
        """
        with self._lock:
            key, number = self._in_flight.get(offset, (b"", -1))
            if number < 0 or chunk not in {None, number}:
                return
            waiting = self._waiting.get(key)
            if not waiting:
                self._land(offset)
                return
            message = waiting[0]
            number, following = message[0].number, message.offset()
            # From here on without a call but the last one, so that no interrupt comes between.
            del self._in_flight[offset], waiting[0]
            self._in_flight[following] = key, number
            self._kept_back[number] -= 1
            if not self._kept_back[number]:
                del self._kept_back[number]
            if not waiting:
                del self._waiting[key]
            self.ready.append(message)

    def _land(self, offset: int) -> None:
        """A record is in flight no more."""
        key, _ = self._in_flight[offset]
        # From here on without a call, so that no interrupt comes between.
        del self._in_flight[offset]
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]

    def _count(self) -> None:
        waiting = (message for each in self._waiting.values() for message in each)
        self._kept_back = dict(Counter(message[0].number for message in waiting))


class KeyLimits:
    """The limits of a consumer's partitions; there are none without ``max.in.flight.per.key``.

    Args:
        most: Maximum number of unacknowledged records of a key; None for no limit.
        lock: As for :class:`KeyLimit`; it is never taken twice.
    """

    def __init__(self, most: int | None, lock: Lock | None = None) -> None:
        self._most = most
        self._lock = lock
        self._limits: dict[TopicPartition, KeyLimit] = {}

    def __iter__(self) -> Iterator[tuple[TopicPartition, KeyLimit]]:
        return iter(self._limits.items())

    def of(self, partition: TopicPartition) -> KeyLimit | None:
        """The limit of a partition; None if it has none."""
        return self._limits.get(partition)

    def begin(self, partition: TopicPartition, limit: KeyLimit | None = None) -> None:
        """Limit a partition from now on: as before, or with nothing in flight yet."""
        if limit is not None:
            self._limits[partition] = limit
        elif self._most is not None:
            self._limits[partition] = KeyLimit(self._most, self._lock)

    def end(self, partition: TopicPartition) -> None:
        """Forget a partition."""
        self._limits.pop(partition, None)

    def acknowledge(
        self, partition: TopicPartition, offsets: Iterable[int], chunk: int | None = None
    ) -> None:
        """Records of a partition are acknowledged, as :meth:`KeyLimit.acknowledge`."""
        limit = self.of(partition)
        if limit is not None:
            for offset in offsets:
                limit.acknowledge(offset, chunk)

    def are_waiting(self, of: Collection[TopicPartition]) -> bool:
        """True if records of some partitions are kept back or put aside, and none may go out."""
        limits = self._of(of).values()
        return any(limit.is_waiting for limit in limits) and not self.have_ready(of)

    def have_ready(self, of: Collection[TopicPartition]) -> bool:
        """True if a record of some partitions may go out."""
        return any(limit.ready for limit in self._of(of).values())

    def are_full(self, of: Collection[TopicPartition]) -> bool:
        """True if nothing more is to be read, as so much is kept back, or not handed out yet.

        Args:
            of: The partitions that are read: what is kept back of others holds none of them back.
        """
        limits = self._of(of).values()
        if sum(limit.chunks for limit in limits) >= _CHUNKS_MAX:
            return True
        return sum(limit.held for limit in limits) >= _HELD_MAX

    def put_aside(self, of: Collection[TopicPartition]) -> None:
        """Make room for others' records: half of what may be kept back, or the keys that fit.

        Args:
            of: The partitions that are read.
        """
        limits = self._of(of)
        keys = sum(limit.waiting_keys for limit in limits.values())
        room = _ASIDE_MAX - sum(len(limit.aside) for limit in limits.values())
        chunks = max(_CHUNKS_MAX // 2 // max(len(limits), 1), 1)
        for limit in limits.values():
            room -= limit.put_aside(_HELD_MAX // 2 // max(keys, 1), chunks, max(room, 0))

    def _of(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, KeyLimit]:
        # Another thread may seek meanwhile.
        return {at: limit for at, limit in list(self._limits.items()) if at in partitions}
