"""A warning before retention deletes what is still pending.

Law: tells, decides nothing; whatever the cluster refuses to say, nothing fails. What begins with
the very trigger is not looked at: who asks for a log from its start need not hear that it is old.
Cost: a look is one round trip for the topics' settings and one where records have an age limit, two
where logs have a size limit: some 5 ms on a near cluster. A look a minute, only while something is
pending that an earlier batch left; the first in the first trigger that finds such.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping

from kshare.cluster.cluster import TopicPolicy
from kshare.core.progress import Progress, TopicPartition
from kshare.errors import KafkaError
from kshare.planner.offset_options import TopicView

__all__ = ["RetentionWatch"]

_log = logging.getLogger("kshare.planner")

EVERY_SECONDS = 60.0
WARN_AT = 0.8
"""The share of a topic's retention time after which a pending record is at risk."""
WARN_WITHIN = 0.1
"""The share of a full log's length within which, after its oldest segment, a record is at risk."""


class RetentionWatch:
    """Compares the oldest pending offset of each partition with what retention takes next there."""

    def __init__(
        self,
        cluster: TopicView,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._clock, self._wall_clock = clock, wall_clock
        self._next = clock()
        self._at_risk: frozenset[TopicPartition] = frozenset()

    @property
    def at_risk(self) -> frozenset[TopicPartition]:
        """The partitions with pending records that retention takes soon, as last looked at."""
        return self._at_risk

    def look(
        self,
        progress: Mapping[TopicPartition, Progress],
        available: Mapping[TopicPartition, int],
        new: Collection[TopicPartition] = (),
    ) -> None:
        """Look again, if it is time to, and warn of what is newly at risk.

        Args:
            progress: how far each partition is.
            available: the ends of their logs.
            new: partitions that begin with this trigger: they are left out.
        """
        if self._clock() < self._next:
            return
        pending = {
            place: at.stable
            for place, at in progress.items()
            if place not in new and at.stable < available.get(place, 0)
        }
        found: dict[TopicPartition, str] = {}
        if pending:
            self._next = self._clock() + EVERY_SECONDS
            try:
                policies = self._cluster.policies({place.topic for place in pending})
                found |= self._near_the_start(pending, policies)
                found |= self._old(pending, policies)
            except KafkaError as error:
                _log.info("cannot tell whether retention is near: %s", error)
                found |= dict.fromkeys(self._at_risk & pending.keys(), "as before")
        for place in sorted(found.keys() - self._at_risk):
            _log.warning(
                "%s: records from offset %d on are pending and %s",
                place,
                pending[place],
                found[place],
            )
        self._at_risk = frozenset(found)

    def _old(
        self, pending: Mapping[TopicPartition, int], policies: Mapping[str, TopicPolicy]
    ) -> dict[TopicPartition, str]:
        """The partitions whose first pending record is old, and what to say of them."""
        limits_ms = {}
        for place in pending:
            policy = policies.get(place.topic)
            if policy is None or policy.retention_ms is None:
                continue
            limit_ms = int(self._wall_clock() * 1000 - WARN_AT * policy.retention_ms)
            if limit_ms > 0:  # else nothing is so old; retention.ms may be the largest number
                limits_ms[place] = limit_ms
        young = self._cluster.at_timestamps(limits_ms) if limits_ms else {}
        text = (
            f"older than {round(100 * WARN_AT)} % of the topic's retention time: Kafka will delete "
            "them soon. Catch up, unpark their keys, or raise retention.ms."
        )
        return {
            place: text for place, first in young.items() if first is None or pending[place] < first
        }

    def _near_the_start(
        self, pending: Mapping[TopicPartition, int], policies: Mapping[str, TopicPolicy]
    ) -> dict[TopicPartition, str]:
        """The partitions whose first pending record is among what a full log loses next.

        That is the oldest segment, as a whole, when the log is a segment longer than its limit.
        Offsets do not tell how many bytes it has now. So it is taken to be full, but if not even
        batches of the greatest length with one record each would fill it; and its bytes are taken
        to be spread evenly over its offsets.
        """
        limited = {
            place: policy
            for place in pending
            if (policy := policies.get(place.topic)) is not None
            and policy.retention_bytes is not None
        }
        if not limited:
            return {}
        begins = self._cluster.earliest(limited)
        ends = self._cluster.latest(limited)  # now: the given ones may be those of a pinned view
        return {
            place: f"near the start of the log, which begins at {begins[place]} and ends at "
            f"{ends[place]}: Kafka will delete them when it is longer than retention.bytes. Catch "
            "up, unpark their keys, or raise retention.bytes."
            for place, policy in limited.items()
            if _is_near_start(pending[place] - begins[place], ends[place] - begins[place], policy)
        }


def _is_near_start(depth: int, length: int, policy: TopicPolicy) -> bool:
    """Whether a log's size limit soon takes what lies so many offsets behind its start."""
    limit = policy.retention_bytes or 0
    if length * policy.batch_bytes < limit:
        return False
    oldest_segment = policy.segment_bytes / (limit + policy.segment_bytes)
    return depth <= (oldest_segment + WARN_WITHIN) * length
