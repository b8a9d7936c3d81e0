"""The keys of a query, by partition: ``assign``, parked keys and operators' policies narrow them.

A hash that is not assigned holds nothing for the query, and counts as processed. The records of a
parked key stay pending. Cost: linear in the parked keys of a topic, once a batch.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kshare.core.hashing import ALL_HASHES, NO_HASHES, HashRange, KeyRanges, key_hash
from kshare.core.progress import Progress, Rectangle, TopicPartition
from kshare.core.region import clip
from kshare.errors import OptionsError, PolicyError
from kshare.kafka.policies import INDIVIDUAL_COMMIT, RANGE_FETCH, Policy, PolicyWatch
from kshare.options import Assign, SourceOptions
from kshare.ranges import BY_PENDING

__all__ = ["KeySelection", "check_ranges"]


@dataclass(frozen=True, slots=True)
class KeySelection:
    """The key hashes that a query reads.

    Attributes:
        assigned: The ranges of each partition, as the user cut it, ``()`` being the whole; None if
            the query reads whole partitions.
        always_parked: The hashes of the keys that ``parkedKeys`` names.
        parked_by_topic: The hashes of all parked keys; empty until :meth:`with_parked`.
    """

    assigned: Mapping[TopicPartition, tuple[HashRange, ...]] | None = None
    always_parked: KeyRanges = NO_HASHES
    parked_by_topic: Mapping[str, KeyRanges] = field(default_factory=dict)
    _readable: dict[tuple[str, KeyRanges], KeyRanges] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )  # mostly the same for all partitions of a topic

    @classmethod
    def of(cls, options: SourceOptions) -> "KeySelection":
        """The selection of a query, without the keys that are parked elsewhere."""
        topics = options.topics
        return cls(
            topics.partitions if isinstance(topics, Assign) else None,
            KeyRanges.of_hashes(key_hash(key, 0) for key in options.parked_keys),
        )

    def with_parked(self, keys: Mapping[str, Iterable[bytes]]) -> "KeySelection":
        """The selection without keys that are parked now.

        Args:
            keys: The parked keys of each topic, also of those without any.
        """
        parked = {
            topic: self.always_parked | KeyRanges.of_hashes(key_hash(key, 0) for key in keys[topic])
            for topic in keys
        }
        return KeySelection(self.assigned, self.always_parked, parked)

    def allowed(self, partition: TopicPartition) -> KeyRanges:
        """The hashes that the query reads, parked or not."""
        assigned = self._assigned_of(partition)
        return KeyRanges(assigned) if assigned else ALL_HASHES

    def chosen(self, partition: TopicPartition) -> tuple[HashRange, ...] | None:
        """The ranges that the user cut a partition by; None if the planner may choose."""
        return self._assigned_of(partition) or None

    def _assigned_of(self, partition: TopicPartition) -> tuple[HashRange, ...]:
        """Those of the option; all of a partition that only a batch before a restart has."""
        return () if self.assigned is None else self.assigned.get(partition, ())

    def parked(self, partition: TopicPartition) -> KeyRanges:
        """The hashes of parked keys."""
        return self.parked_by_topic.get(partition.topic, NO_HASHES)

    def readable(self, partition: TopicPartition) -> KeyRanges:
        """The hashes that the query reads now."""
        allowed = self.allowed(partition)
        known = self._readable.get((partition.topic, allowed))
        if known is None:
            known = self._readable[partition.topic, allowed] = allowed - self.parked(partition)
        return known

    def unassigned(self, partition: TopicPartition) -> KeyRanges:
        """The hashes that the query never reads.

        None of a partition that it does not read at all: that was read before a restart only.
        """
        if self.assigned is not None and partition not in self.assigned:
            return NO_HASHES
        return ALL_HASHES - self.allowed(partition)

    def own(self, partition: TopicPartition, progress: Progress) -> Progress:
        """The progress of a query that goes on where a group is.

        Hashes that the query never reads stand where its fastest range does.
        """
        allowed = self.allowed(partition)
        if allowed.is_all:
            return progress
        read = self.within(partition, progress.individual_commits)
        reached = Progress.of(progress.position_of(allowed), read)
        return reached.commit(reached.pending_of(reached.front, self.unassigned(partition)))

    def within(
        self, partition: TopicPartition, pending: Sequence[Rectangle]
    ) -> tuple[Rectangle, ...]:
        """The part of the pending work that this query reads, including parked keys."""
        allowed = self.allowed(partition)
        return tuple(pending) if allowed.is_all else clip(pending, allowed)


def check_ranges(
    options: SourceOptions, partitions: Collection[TopicPartition], policies: PolicyWatch | None
) -> None:
    """Refuse to share partitions of topics, and individual commits, where a policy says so.

    Args:
        options: The query's options.
        partitions: The partitions that it reads.
        policies: The policies; None checks nothing.

    Raises:
        OptionsError: An option asks for parts of a partition of such a topic.
        PolicyError: The query publishes individual commits, and they are not accepted.
        KafkaError: The policies cannot be read.
    """
    if policies is None:
        return
    if options.commits_individually and not policies.accepts(Policy(INDIVIDUAL_COMMIT)):
        raise PolicyError(
            "commitOffsets=individual is not accepted, as the policy "
            f"{INDIVIDUAL_COMMIT} is false: set commitOffsets=true, which commits one offset of "
            "each partition, or have kshare policy set it to true",
            policy=INDIVIDUAL_COMMIT,
            topic=None,
        )
    parts = "key ranges" if options.split_by == "key" else "parts of partitions (splitBy=offset)"
    faults = [
        f"{option}: asks for {parts} of topic {topic}, whose policy {RANGE_FETCH} is false; "
        "read whole partitions, or have kshare policy set it to true"
        for topic in sorted({tp.topic for tp in partitions})
        if (option := _asking(options, topic, len(partitions))) is not None
        and not policies.accepts(Policy(RANGE_FETCH, topic))
    ]
    if faults:
        raise OptionsError(faults)


def _asking(options: SourceOptions, topic: str, partitions: int) -> str | None:
    """The option that asks for parts of partitions of a topic; None if there is none."""
    if isinstance(options.topics, Assign):
        ranges = (parts for tp, parts in options.topics.partitions.items() if tp.topic == topic)
        if any(ranges):
            return "assign"
    if options.key_ranges is not None and options.key_ranges > 1:
        return "keyRanges"
    if options.min_partitions_auto or (options.min_partitions or 0) > partitions:
        return "minPartitions"
    if options.max_records_per_partition is not None:
        return "maxRecordsPerPartition"
    if options.split_by == "offset":
        return None
    return None if options.range_assignor in BY_PENDING else "rangeAssignor"
