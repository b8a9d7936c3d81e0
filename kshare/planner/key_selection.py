"""The key hashes of each partition that a query reads: ``assign`` and parked keys narrow them.

A hash that is not assigned holds nothing for the query, and counts as processed. The records of a
parked key stay pending. Cost: linear in the parked keys of a topic, once a batch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from kshare.core.hashing import WHOLE, HashRange, complement, key_hash, without
from kshare.core.progress import Progress, Rectangle, TopicPartition
from kshare.core.region import clip
from kshare.options import Assign, SourceOptions

__all__ = ["KeySelection"]


@dataclass(frozen=True, slots=True)
class KeySelection:
    """The key hashes that a query reads.

    Attributes:
        assigned: The ranges of each partition, ``()`` being the whole; None if the query reads
            whole partitions.
        always_parked: The hashes of the keys that ``parkedKeys`` names.
        parked_by_topic: The hashes of all parked keys; empty until :meth:`with_parked`.
    """

    assigned: Mapping[TopicPartition, tuple[HashRange, ...]] | None = None
    always_parked: frozenset[int] = frozenset()
    parked_by_topic: Mapping[str, frozenset[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, options: SourceOptions) -> "KeySelection":
        """The selection of a query, without the keys that are parked elsewhere."""
        topics = options.topics
        return cls(
            topics.partitions if isinstance(topics, Assign) else None,
            frozenset(key_hash(key, 0) for key in options.parked_keys),
        )

    def with_parked(self, keys: Mapping[str, Iterable[bytes]]) -> "KeySelection":
        """The selection without keys that are parked now.

        Args:
            keys: The parked keys of each topic, also of those without any.
        """
        parked = {
            topic: self.always_parked.union(key_hash(key, 0) for key in keys[topic])
            for topic in keys
        }
        by_topic = {topic: frozenset(hashes) for topic, hashes in parked.items()}
        return KeySelection(self.assigned, self.always_parked, by_topic)

    def allowed(self, partition: TopicPartition) -> tuple[HashRange, ...]:
        """The hashes that the query reads, parked or not: ascending, disjoint."""
        return self._assigned_of(partition) or (WHOLE,)

    def chosen(self, partition: TopicPartition) -> tuple[HashRange, ...] | None:
        """The ranges that the user cut a partition by; None if the planner may choose."""
        return self._assigned_of(partition) or None

    def _assigned_of(self, partition: TopicPartition) -> tuple[HashRange, ...]:
        """Those of the option; all of a partition that only a batch before a restart has."""
        return () if self.assigned is None else self.assigned.get(partition, ())

    def parked(self, partition: TopicPartition) -> frozenset[int]:
        """The hashes of parked keys."""
        return self.parked_by_topic.get(partition.topic, frozenset())

    def readable(self, partition: TopicPartition) -> tuple[HashRange, ...]:
        """The hashes that the query reads now: ascending, disjoint."""
        return _without(self.allowed(partition), self.parked(partition))

    def unassigned(self, partition: TopicPartition) -> tuple[HashRange, ...]:
        """The hashes that the query never reads: ascending, disjoint.

        None of a partition that it does not read at all: that was read before a restart only.
        """
        if self.assigned is not None and partition not in self.assigned:
            return ()
        return complement(self.allowed(partition))

    def own(self, partition: TopicPartition, progress: Progress) -> Progress:
        """The progress of a query that goes on where a group is.

        Hashes that the query never reads stand where its fastest range does.
        """
        allowed = self.allowed(partition)
        if allowed == (WHOLE,):
            return progress
        read = self.within(partition, progress.individual_commits)
        reached = Progress.of(progress.position_of(allowed), read)
        return reached.commit(reached.pending_of(reached.front, self.unassigned(partition)))

    def within(
        self, partition: TopicPartition, pending: Sequence[Rectangle]
    ) -> tuple[Rectangle, ...]:
        """The part of the pending work that this query reads, including parked keys."""
        allowed = self.allowed(partition)
        return tuple(pending) if allowed == (WHOLE,) else clip(pending, allowed)


@lru_cache(maxsize=64)
def _without(hashes: tuple[HashRange, ...], points: frozenset[int]) -> tuple[HashRange, ...]:
    """See :func:`~kshare.core.hashing.without`; mostly the same for many partitions."""
    return without(hashes, points)
