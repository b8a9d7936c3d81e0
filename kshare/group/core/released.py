"""Keys whose records wait, as one of them was released: until a time, or until they are let go.

::

    release --> new: the delivery goes on without the key --> waits --due, or let go--> over:
                                                                     read again from the log

Not for use by several threads at a time. Times are of any clock that is never set.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kshare.core.hashing import HashRange
from kshare.core.progress import TopicPartition

__all__ = ["Released"]


@dataclass(slots=True)
class _Waiting:
    """The keys of one partition that wait.

    Attributes:
        due: Their hashes, each with the time until when it waits; None: until it is let go.
        over: The hashes of those that wait no more, and that the delivery still leaves out.
        is_changed: Whether the delivery is to be changed for it now.
    """

    due: dict[int, float | None] = field(default_factory=dict)
    over: set[int] = field(default_factory=set)
    is_changed: bool = False


class Released:
    """The keys of a consumer's partitions that wait."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, _Waiting] = {}

    def hold(self, partition: TopicPartition, point: int, due: float | None) -> None:
        """A key waits; if it does so already, until the later one of both times.

        Args:
            partition: The partition.
            point: The key's hash.
            due: Until when; None: until it is let go.
        """
        waiting = self._partitions.setdefault(partition, _Waiting())
        before = waiting.due.get(point, 0.0)
        waiting.due[point] = None if due is None or before is None else max(due, before)
        waiting.is_changed = True

    def let_go(self, partition: TopicPartition, point: int) -> None:
        """A key waits no more."""
        waiting = self._partitions.get(partition)
        if waiting is not None and waiting.due.pop(point, 0.0) != 0.0:
            waiting.over.add(point)
            waiting.is_changed = True

    def is_new(self, partition: TopicPartition) -> bool:
        """True if the delivery has still to follow what was held or let go."""
        waiting = self._partitions.get(partition)
        return waiting is not None and waiting.is_changed

    @property
    def has_new(self) -> bool:
        """True if the delivery of some partition has still to follow."""
        return any(waiting.is_changed for waiting in self._partitions.values())

    def hashes(self, partition: TopicPartition) -> tuple[HashRange, ...]:
        """The hashes of the keys that wait, ascending, one hash each."""
        waiting = self._partitions.get(partition)
        return () if waiting is None else HashRange.each(waiting.due)

    def unfollowed(self, partition: TopicPartition) -> tuple[HashRange, ...]:
        """Those, and the ones that wait no more, until the delivery has followed.

        What is read of them before that is behind what is read again after it.
        """
        waiting = self._partitions.get(partition)
        return () if waiting is None else HashRange.each(waiting.due.keys() | waiting.over)

    def due(self, now: float) -> None:
        """Let go the keys whose time has come."""
        for waiting in self._partitions.values():
            over = [point for point, due in waiting.due.items() if due is not None and due <= now]
            for point in over:
                del waiting.due[point]
            waiting.over.update(over)
            waiting.is_changed |= bool(over)

    def next_due(self) -> float | None:
        """The time at which the next key is due; None if none is."""
        times = [
            due
            for waiting in list(self._partitions.values())  # other threads add to them
            for due in list(waiting.due.values())
            if due is not None
        ]
        return min(times, default=None)

    def follow(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Those of some partitions whose delivery has to follow; it is taken to do so."""
        found = [partition for partition in partitions if self.is_new(partition)]
        for partition in found:
            self._partitions[partition].is_changed = False
            self._partitions[partition].over.clear()
        return found

    def keep(self, partition: TopicPartition, hashes: Sequence[HashRange]) -> None:
        """Forget what is not of some key hashes: it is not this consumer's any more."""
        waiting = self._partitions.get(partition)
        if waiting is None:
            return
        waiting.due = {
            point: due
            for point, due in waiting.due.items()
            if any(point in part for part in hashes)
        }
        if not waiting.due and not waiting.is_changed:
            del self._partitions[partition]
