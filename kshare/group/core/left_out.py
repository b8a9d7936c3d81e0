"""The keys that are left out of what is read: parked or released.

::

    read --> left out: parked (by an operator) ---unparked---------> read again, from the log
                       released (by the user) ---due, or let go----> the same

What is left out stays pending, and memory holds nothing of it. Times are of any clock that is
never set.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from kshare.core.hashing import NO_HASHES, KeyRanges, key_hash
from kshare.core.progress import TopicPartition
from kshare.group.core.open_chunks import OpenChunks
from kshare.group.message import Chunk

__all__ = ["LeftOut", "ParkedHashes", "Released"]


@dataclass(slots=True)
class _WaitingKeys:
    """The keys of one partition that wait.

    Attributes:
        due: Their hashes, each with the time until when it waits; None: until it is let go.
        over: The hashes of those that wait no more, and that the delivery still leaves out.
        is_changed: Whether the delivery is to be changed for it.
        first: A time before which none of them is due.
    """

    due: dict[int, float | None] = field(default_factory=dict)
    over: set[int] = field(default_factory=set)
    is_changed: bool = False
    first: float = math.inf


class Released:
    """The keys of a consumer's partitions that wait, as a record of them was released.

    ::

        release --> new: the delivery goes on without the key --> waits --due, or let go--> over:
                                                                         read again from the log

    Not for use by several threads at a time.
    """

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, _WaitingKeys] = {}

    def defer(self, partition: TopicPartition, point: int, due: float | None) -> None:
        """A key waits; if it does so already, until the later one of both times.

        Args:
            partition: The partition.
            point: The key's hash.
            due: Until when; None: until it is let go.
        """
        waiting = self._partitions.setdefault(partition, _WaitingKeys())
        before = waiting.due.get(point, 0.0)
        waiting.due[point] = None if due is None or before is None else max(due, before)
        waiting.first = min(waiting.first, math.inf if due is None else due)
        waiting.is_changed = True

    def let_go(self, partition: TopicPartition, point: int) -> None:
        """A key waits no more."""
        waiting = self._partitions.get(partition)
        if waiting is not None and point in waiting.due:
            waiting.over.add(point)
            waiting.is_changed = True
            del waiting.due[point]  # last: after an interrupt amid this, it waits still

    def is_new(self, partition: TopicPartition) -> bool:
        """True if the delivery has still to follow what was deferred or let go."""
        waiting = self._partitions.get(partition)
        return waiting is not None and waiting.is_changed

    @property
    def has_new(self) -> bool:
        """True if the delivery of some partition has still to follow."""
        # No generator: an interrupt as it is closed would be passed over.
        return bool([each for each in list(self._partitions.values()) if each.is_changed])

    def hashes(self, partition: TopicPartition) -> KeyRanges:
        """The hashes of the keys that wait."""
        waiting = self._partitions.get(partition)
        return NO_HASHES if waiting is None else KeyRanges.of_hashes(waiting.due)

    def is_unapplied(self, partition: TopicPartition, point: int) -> bool:
        """True if the delivery may not have applied yet what became of a key, by its hash.

        Keys are so that wait, or that wait no more and were released since its last change. What is
        read of them before that is behind what is read again after it.
        """
        waiting = self._partitions.get(partition)
        return waiting is not None and (point in waiting.due or point in waiting.over)

    @property
    def count(self) -> int:
        """Number of keys that wait."""
        return sum([len(waiting.due) for waiting in self._partitions.values()])

    def due(self, now: float) -> None:
        """Let go the keys whose time has come."""
        for waiting in [each for each in self._partitions.values() if each.first <= now]:
            over = [point for point, due in waiting.due.items() if due is not None and due <= now]
            waiting.over.update(over)
            waiting.is_changed |= bool(over)
            for point in over:  # last: after an interrupt amid this, they wait still
                del waiting.due[point]
            left = [due for due in waiting.due.values() if due is not None]
            waiting.first = min(left, default=math.inf)

    def next_due(self) -> float:
        """A time before which no key is due; infinite if none waits for a time."""
        # A list: other threads add to them.
        return min([each.first for each in list(self._partitions.values())], default=math.inf)

    def followed(self, partition: TopicPartition) -> None:
        """The delivery of a partition has followed."""
        waiting = self._partitions[partition]
        waiting.is_changed = False
        waiting.over.clear()

    def keep(self, partition: TopicPartition, hashes: KeyRanges) -> None:
        """Forget what is not of some key hashes: it is not this consumer's any more."""
        waiting = self._partitions.get(partition)
        if waiting is None:
            return
        waiting.due = {point: due for point, due in waiting.due.items() if hashes.holds(point)}
        if not waiting.due and not waiting.is_changed:
            del self._partitions[partition]


ParkedHashes: TypeAlias = Mapping[str, KeyRanges]
"""The hashes of parked keys by topic."""

_RELEASED_SECONDS: Final = 0.1
"""The shortest time between two changes of these keys: each fetches anew what is on its way."""
_KEY_SECONDS: Final = 0.000_25
"""The same for each key that waits: a change takes a quarter of that, or less."""


class LeftOut:
    """The keys of a consumer's partitions that are left out.

    Attributes:
        released: The keys that wait, as a record of them was released.
        parked: The parked keys; None until they are known. Without them, all deliveries go on.
        obeyed: The same, once all deliveries do so.
    """

    def __init__(self) -> None:
        self.released = Released()
        self.parked: ParkedHashes | None = None
        self.obeyed: ParkedHashes | None = None
        self._pause_until = -math.inf

    def hashes(self, partition: TopicPartition, owned: KeyRanges) -> KeyRanges:
        """The owned hashes that are not read."""
        parked = (self.parked or {}).get(partition.topic, NO_HASHES)
        return owned & (parked | self.released.hashes(partition))

    def mark(self, chunk: Chunk) -> None:
        """Mark a chunk's rows of released keys until their delivery goes on without these keys.

        Older chunks are marked by a release: behind the first offset of this one, which may begin
        with what is read again, they have records of such keys that do not come again.
        """
        released, partition = self.released, chunk.topic_partition
        for key in set(chunk.column("key")) if released.is_new(partition) else ():
            if key is not None and released.is_unapplied(partition, key_hash(key, 0)):
                OpenChunks((chunk,)).release(key, int(chunk.offsets[0]))

    # -- what changes with time ---------------------------------------------------------------

    def next_due(self, partitions: Collection[TopicPartition]) -> float:
        """The time at which deliveries are to follow what was released; infinite if there is none.

        Until then, what they hand out of keys that were released since is marked.

        Args:
            partitions: Those of the deliveries.
        """
        # A list, as of `has_new`.
        new = [partition for partition in partitions if self.released.is_new(partition)]
        return max(-math.inf if new else self.released.next_due(), self._pause_until)

    def followed(self, now: float) -> None:
        """Deliveries have followed what was released: not again for a while."""
        self._pause_until = now + max(_RELEASED_SECONDS, self.released.count * _KEY_SECONDS)

    def follow_at_once(self) -> None:
        """Have deliveries follow with the next look: batches are handed out without marks."""
        self._pause_until = -math.inf
