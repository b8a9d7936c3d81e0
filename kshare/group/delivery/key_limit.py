"""Keeping a key's next records back until earlier ones are acknowledged.

For ``max.in.flight.per.key``. No I/O, no clock. Cost: a dictionary entry for each record in flight,
and for each key of them.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from threading import Lock

from kshare.core.hashing import HashRange, key_hash
from kshare.core.progress import TopicPartition
from kshare.group.message import Message

__all__ = ["KeyLimit", "KeyLimits"]


class KeyLimit:
    """Keeps a key's next records back while some of it are not acknowledged.

    One thread reads; any thread acknowledges.

    Args:
        most: Maximum number of unacknowledged records of a key. Records without a key have none.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._in_flight: dict[int, bytes] = {}  # keys by offset
        self._counts: dict[bytes, int] = {}
        self._waiting: dict[bytes, deque[Message]] = {}
        self._kept_back = 0  # how many are waiting
        self._lock = Lock()
        self.ready: deque[Message] = deque()

    @property
    def held(self) -> int:
        """Number of records that are kept back or not handed out yet."""
        with self._lock:
            return len(self.ready) + self._kept_back

    @property
    def is_waiting(self) -> bool:
        """Whether records are kept back, and none may go out."""
        return not self.ready and self._kept_back > 0

    def take(self) -> list[Message]:
        """All that may go out now."""
        with self._lock:
            ready = list(self.ready)
            self.ready.clear()
            return ready

    def put(self, messages: Iterable[Message]) -> None:
        """Take the next records, in offset order; :attr:`ready` has those that may go out."""
        with self._lock:
            for message in messages:
                key = message.key()
                if key is None:
                    self.ready.append(message)
                elif key in self._waiting or self._counts.get(key, 0) >= self._most:
                    self._waiting.setdefault(key, deque()).append(message)
                    self._kept_back += 1
                else:
                    self._admit(key, message)

    def keep(self, hashes: Sequence[HashRange]) -> None:
        """Forget what is not of some key hashes: it is not this consumer's any more."""
        with self._lock:
            self.ready = deque(m for m in self.ready if _is_of(m.key(), m.offset(), hashes))
            kept = {key for key in self._counts if _is_of(key, 0, hashes)}
            self._counts = {key: count for key, count in self._counts.items() if key in kept}
            self._waiting = {key: each for key, each in self._waiting.items() if key in kept}
            self._in_flight = {at: key for at, key in self._in_flight.items() if key in kept}
            self._kept_back = sum(map(len, self._waiting.values()))

    def take_out(self, hashes: Sequence[HashRange]) -> list[Message]:
        """Forget what is kept back of some key hashes; those in flight stay so.

        Returns:
            The messages, in offset order for each key.
        """
        with self._lock:
            taken = [m for m in self.ready if _is_of(m.key(), m.offset(), hashes)]
            offsets = {m.offset() for m in taken}
            self.ready = deque(m for m in self.ready if m.offset() not in offsets)
            for offset in offsets & self._in_flight.keys():  # let out, and not handed out
                key = self._in_flight.pop(offset)
                self._counts[key] -= 1
                if not self._counts[key]:
                    del self._counts[key]
            for key in [key for key in self._waiting if _is_of(key, 0, hashes)]:
                taken += self._waiting.pop(key)
            return taken

    def acknowledge(self, offset: int) -> None:
        """A record is acknowledged; it may be so already, or unknown."""
        with self._lock:
            key = self._in_flight.pop(offset, None)
            if key is None:
                return
            self._counts[key] -= 1
            waiting = self._waiting.get(key)
            if waiting:
                self._admit(key, waiting.popleft())
                self._kept_back -= 1
            if not waiting:
                self._waiting.pop(key, None)
                if not self._counts[key]:
                    del self._counts[key]

    def _admit(self, key: bytes, message: Message) -> None:
        self._counts[key] = self._counts.get(key, 0) + 1
        self._in_flight[message.offset()] = key
        self.ready.append(message)


class KeyLimits:
    """The limits of a consumer's partitions; there are none without ``max.in.flight.per.key``.

    Args:
        most: Maximum number of unacknowledged records of a key; None for no limit.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
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
            self._limits[partition] = KeyLimit(self._most)

    def end(self, partition: TopicPartition) -> None:
        """Forget a partition."""
        self._limits.pop(partition, None)

    @property
    def is_waiting(self) -> bool:
        """Whether records are kept back, and none may go out."""
        limits = self._limits.values()
        return any(limit.is_waiting for limit in limits) and not any(
            limit.ready for limit in limits
        )

    @property
    def held(self) -> int:
        """Number of records that are kept back or not handed out yet."""
        return sum(limit.held for limit in self._limits.values())


def _is_of(key: bytes | None, offset: int, hashes: Sequence[HashRange]) -> bool:
    hashed = key_hash(key, offset)
    return any(hashed in part for part in hashes)
