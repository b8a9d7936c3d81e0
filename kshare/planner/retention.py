"""A warning before retention deletes what is still pending.

Law: tells, decides nothing; whatever the cluster refuses to say, nothing fails.
Cost: two round trips a minute, and only while a partition lags.
"""

import logging
import time
from collections.abc import Callable, Mapping

from kshare.core.progress import Progress, TopicPartition
from kshare.errors import KafkaError
from kshare.planner.specs import TopicView

__all__ = ["RetentionWatch"]

_log = logging.getLogger("kshare.planner")

EVERY_SECONDS = 60.0
WARN_AT = 0.8
"""The share of a topic's retention time after which a pending record is at risk."""


class RetentionWatch:
    """Compares the oldest pending offset of each partition with the age of the log there."""

    def __init__(
        self,
        cluster: TopicView,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._clock, self._wall_clock = clock, wall_clock
        self._next = clock() + EVERY_SECONDS
        self._at_risk: frozenset[TopicPartition] = frozenset()

    @property
    def at_risk(self) -> frozenset[TopicPartition]:
        """The partitions with pending records that retention takes soon, as last looked at."""
        return self._at_risk

    def look(
        self, progress: Mapping[TopicPartition, Progress], available: Mapping[TopicPartition, int]
    ) -> None:
        """Look again, if it is time to, and warn of what is newly at risk."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + EVERY_SECONDS
        lagging = [place for place, at in progress.items() if at.stable < available.get(place, 0)]
        found: set[TopicPartition] = set()
        try:
            for topic, policy in self._cluster.policies({p.topic for p in lagging}).items():
                if policy.retention_ms is not None:
                    asked = [place for place in lagging if place.topic == topic]
                    found |= self._old(asked, progress, policy.retention_ms)
        except KafkaError as error:
            _log.info("cannot tell whether retention is near: %s", error)
        for place in sorted(found - self._at_risk):
            _log.warning(
                "%s: records from offset %d on are pending and older than %d %% of the topic's "
                "retention time: Kafka will delete them soon. Catch up, unpark their keys, or raise"
                " retention.ms.",
                place,
                progress[place].stable,
                round(100 * WARN_AT),
            )
        self._at_risk = frozenset(found)

    def _old(
        self,
        partitions: list[TopicPartition],
        progress: Mapping[TopicPartition, Progress],
        retention_ms: int,
    ) -> set[TopicPartition]:
        limit_ms = int(self._wall_clock() * 1000 - WARN_AT * retention_ms)
        if limit_ms <= 0:  # nothing is so old; retention.ms may be the largest number there is
            return set()
        young = self._cluster.at_timestamps(dict.fromkeys(partitions, limit_ms))
        return {
            place
            for place in partitions
            if (first := young.get(place)) is None or progress[place].stable < first
        }
