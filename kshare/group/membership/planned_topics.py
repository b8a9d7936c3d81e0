"""The topics that a group's plan was made with: how many partitions, and which may be shared."""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from kshare.cluster.cluster import Cluster
from kshare.core.progress import TopicPartition
from kshare.errors import AuthorizationError, UnknownTopicError
from kshare.group.config.table import ConsumerConfig
from kshare.options.model import Subscribe

__all__ = ["PlannedTopics", "SeenTopics", "WholeTopics"]

_log = logging.getLogger("kshare.group")

_MISSING_SECONDS: Final = 5.0

WholeTopics = Callable[[Collection[str]], frozenset[str]]
"""Says which of some topics' partitions are not to be shared."""


class SeenTopics(NamedTuple):
    """What is to be known of topics for a plan.

    Attributes:
        counts: Number of partitions of each topic.
        whole: The topics whose partitions are not shared.
        denied: The topics that this member may not describe; they count as missing.
    """

    counts: dict[str, int]
    whole: frozenset[str]
    denied: frozenset[str] = frozenset()


class PlannedTopics:
    """The topics that a leader has planned with, and whether they are still so.

    Args:
        config: The consumer's configuration.
        whole_topics: Says which topics' partitions are not to be shared, by policies.
    """

    def __init__(self, config: ConsumerConfig, whole_topics: WholeTopics) -> None:
        kafka = config.kafka
        patient_ms = min(kafka.api_timeout_ms, max(config.max_poll_interval_ms // 2, 1_000))
        self._cluster = Cluster(replace(kafka, api_timeout_ms=patient_ms))
        self._longest = kafka.metadata_max_age_seconds
        self._planned: SeenTopics | None = None  # None if it does not lead
        self._whole_topics = whole_topics
        self._group = config.group

    @property
    def look_seconds(self) -> float:
        """How often to look at topics: more often while some are missing."""
        is_missing = self._planned is not None and 0 in self._planned.counts.values()
        return min(self._longest, _MISSING_SECONDS) if is_missing else self._longest

    @property
    def are_planned(self) -> bool:
        """True if this member leads the group."""
        return self._planned is not None

    def look(self, topics: set[str]) -> SeenTopics:
        """What is to be known of topics for a plan; those that do not exist have no partitions."""
        counts, denied = self._count(topics)
        for topic in sorted(topic for topic, count in counts.items() if not count):
            wrong = "may not be described" if topic in denied else "does not exist"
            _log.warning("group %s: topic %s %s", self._group, topic, wrong)
        return SeenTopics(counts, self._whole_topics(topics), denied)

    def lead(self, planned: SeenTopics) -> None:
        """This member leads the group, and watches the topics of its plan."""
        self._planned = planned

    def replica_racks(
        self, topics: Collection[str]
    ) -> Mapping[TopicPartition, tuple[str | None, ...]]:
        """The racks of the replicas of some topics' partitions."""
        return self._cluster.replica_racks(topics) if topics else {}

    def forget(self) -> None:
        """Another member leads the group."""
        self._planned = None

    def have_changed(self) -> bool:
        """True if topics have other partitions than those that were planned."""
        planned = self._planned
        if planned is None:
            return False
        return self.have_policies_changed() or self._count(set(planned.counts))[0] != planned.counts

    def have_policies_changed(self) -> bool:
        """True if other topics' partitions are not to be shared now."""
        planned = self._planned
        return planned is not None and self._whole_topics(planned.counts) != planned.whole

    def _count(self, topics: set[str]) -> tuple[dict[str, int], frozenset[str]]:
        """The number of partitions of each topic, and those that may not be described."""
        counts, denied = dict.fromkeys(topics, 0), set[str]()
        for topic in topics:
            try:
                counts[topic] = len(self._cluster.partitions(Subscribe((topic,))))
            except UnknownTopicError:
                pass
            except AuthorizationError:
                denied.add(topic)
        return counts, frozenset(denied)

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()
