"""When a member's thread does what, and which topics its group's plan was made with."""

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

from kshare.cluster.cluster import Cluster
from kshare.core.progress import TopicPartition
from kshare.errors import KshareError, UnknownTopicError
from kshare.group.config import ConsumerConfig
from kshare.options.model import Subscribe
from kshare.wire.protocol.retry import Backoff

__all__ = ["PlannedTopics", "Schedule", "WholeTopics"]

_log = logging.getLogger("kshare.group")

_MISSING_SECONDS: Final = 5.0

WholeTopics = Callable[[Collection[str]], frozenset[str]]
"""Says which of some topics' partitions are not to be shared."""


class PlannedTopics(NamedTuple):
    """What a leader has planned with.

    Attributes:
        counts: Number of partitions of each topic.
        whole: The topics whose partitions are not shared.
    """

    counts: dict[str, int]
    whole: frozenset[str]


class Schedule:
    """What a member's thread has to keep: when to do what, and the topics that it has planned.

    Attributes:
        asked_at: When JoinGroup or SyncGroup was sent last.
        beat_at: When the next heartbeat is due.
        retry_at: Before this time nothing is asked: something has failed.
        look_at: When topics are to be looked at.
        synced_at: When SyncGroup was answered last.
        follow_up_at: When the leader is to plan again, though nothing has changed that it knows of.
    """

    def __init__(self, config: ConsumerConfig, whole_topics: WholeTopics) -> None:
        kafka = config.kafka
        patient_ms = min(kafka.api_timeout_ms, max(config.max_poll_interval_ms // 2, 1_000))
        self._cluster = Cluster(replace(kafka, api_timeout_ms=patient_ms))
        self._pauses = Backoff(kafka.retry_backoff_ms, kafka.retry_backoff_max_ms)
        self._longest = kafka.metadata_max_age_ms / 1000
        self._planned: PlannedTopics | None = None  # None if it does not lead
        self._whole_topics = whole_topics
        self._group = config.group
        self.asked_at = self.beat_at = self.retry_at = self.look_at = self.synced_at = 0.0
        self.follow_up_at = float("inf")

    @property
    def look_seconds(self) -> float:
        """How often to look at topics: more often while some are missing."""
        is_missing = self._planned is not None and 0 in self._planned.counts.values()
        return min(self._longest, _MISSING_SECONDS) if is_missing else self._longest

    @property
    def leads(self) -> bool:
        """Whether this member leads the group."""
        return self._planned is not None

    def look(self, topics: set[str]) -> PlannedTopics:
        """What is to be known of topics for a plan; those that do not exist have no partitions."""
        seen = PlannedTopics(self._count(topics), self._whole_topics(topics))
        for topic in sorted(topic for topic, count in seen.counts.items() if not count):
            _log.warning("group %s: topic %s does not exist", self._group, topic)
        return seen

    def lead(self, planned: PlannedTopics) -> None:
        """This member leads the group, and watches the topics of its plan."""
        self._planned = planned

    def replica_racks(
        self, topics: Collection[str]
    ) -> Mapping[TopicPartition, tuple[str | None, ...]]:
        """The racks of the replicas of some topics' partitions."""
        return self._cluster.replica_racks(topics) if topics else {}

    def follows(self) -> None:
        """Another member leads the group: topics are its concern."""
        self._planned = None
        self.follow_up_at = float("inf")

    def follow_up(self, now: float, seconds: float | None) -> None:
        """Plan again in so many seconds; None for not before something changes."""
        self.follow_up_at = float("inf") if seconds is None else now + seconds

    def have_changed(self) -> bool:
        """Whether topics have other partitions than those that were planned."""
        planned = self._planned
        if planned is None:
            return False
        return self.have_policies_changed() or self._count(set(planned.counts)) != planned.counts

    def have_policies_changed(self) -> bool:
        """Whether other topics' partitions are not to be shared now."""
        planned = self._planned
        return planned is not None and self._whole_topics(planned.counts) != planned.whole

    def _count(self, topics: set[str]) -> dict[str, int]:
        counts = dict.fromkeys(topics, 0)
        for topic in topics:
            with suppress(UnknownTopicError):
                counts[topic] = len(self._cluster.partitions(Subscribe((topic,))))
        return counts

    def beside(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do something that waits, in a thread of its own."""

        def run() -> None:
            try:
                work(*arguments)
            except KshareError as error:  # the group's next rebalance does it again
                _log.warning("group %s: %s", self._group, error)

        threading.Thread(target=run, name=f"kshare {self._group} plans", daemon=True).start()

    def pause(self, now: float) -> None:
        """Something has failed: do nothing for a while, longer each time."""
        self.retry_at = now + self._pauses.pause()

    def answered(self) -> None:
        """The coordinator has answered."""
        self._pauses.reset()

    def close(self) -> None:
        """Let go of the cluster."""
        self._cluster.close()
