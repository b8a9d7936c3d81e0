"""A warning before retention deletes what is still pending.

Guarantees: it changes nothing, and never fails, even if the cluster refuses to answer. Partitions
that begin with this trigger are left out: a user who asks for a log from its start knows that it is
old.
Cost: a look is one round trip for the topics' settings and one where records have an age limit, two
where logs have a size limit: some 5 ms on a near cluster. There is one look a minute, only while
something is pending that an earlier batch left; the first one is in the first trigger with such.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from kshare.core.progress import Progress, TopicPartition
from kshare.errors import KafkaError
from kshare.kafka.topic_config import TopicConfig

__all__ = ["EVERY_SECONDS", "LogView", "RetentionWatch"]

_log = logging.getLogger("kshare.planner")

EVERY_SECONDS = 60.0
WARN_AT = 0.8
"""The share of a topic's retention time after which a pending record is at risk."""
WARN_WITHIN = 0.1
"""The share of a full log's length within which, after its oldest segment, a record is at risk."""


class LogView(Protocol):
    """The part of a cluster that is asked: see :class:`~kshare.kafka.cluster.Cluster`."""

    def topic_configs(self, topics: Collection[str], /) -> dict[str, TopicConfig]:
        """The configurations of topics."""

    def at_timestamps(
        self, timestamps_ms: Mapping[TopicPartition, int], /
    ) -> dict[TopicPartition, int | None]:
        """The first offset of a record that is not older than its partition's timestamp."""

    def earliest(self, partitions: Iterable[TopicPartition], /) -> dict[TopicPartition, int]:
        """The first offset that each log holds."""

    def latest(self, partitions: Iterable[TopicPartition], /) -> dict[TopicPartition, int]:
        """The end of each log."""


class RetentionWatch:
    """Compares the oldest pending offset of each partition with what retention takes next.

    Args:
        cluster: Where the topics are.
        log: Takes the warnings.
        clock: Seconds.
        wall_clock: Seconds since 1970.
    """

    def __init__(
        self,
        cluster: LogView,
        log: logging.Logger = _log,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._log = log
        self._clock, self._wall_clock = clock, wall_clock
        self._next = clock()
        self._at_risk: dict[TopicPartition, int] = {}

    @property
    def at_risk(self) -> Mapping[TopicPartition, int]:
        """The partitions of which retention soon takes pending records, as last looked at.

        With the first pending offset of each, where its batch began.
        """
        return self._at_risk

    def look(
        self,
        progress: Mapping[TopicPartition, Progress],
        available: Mapping[TopicPartition, int],
        new: Collection[TopicPartition] = (),
    ) -> None:
        """Look again, if it is time to, and warn of what is newly at risk.

        Args:
            progress: How far each partition is when the batch begins.
            available: The ends of their logs.
            new: Partitions that begin with this trigger; they are left out.
        """
        if self.is_due:
            self.compare(progress, available, new)

    @property
    def is_due(self) -> bool:
        """True if it is time for a look."""
        return self._clock() >= self._next

    def postpone(self) -> None:
        """The next look is due in a minute."""
        self._next = self._clock() + EVERY_SECONDS

    def compare(
        self,
        progress: Mapping[TopicPartition, Progress],
        available: Mapping[TopicPartition, int],
        new: Collection[TopicPartition] = (),
    ) -> None:
        """Look now, and warn of what is newly at risk; for the arguments, see :meth:`look`."""
        pending = {
            tp: reached.stable
            for tp, reached in progress.items()
            if tp not in new and reached.stable < available.get(tp, 0)
        }
        risks: dict[TopicPartition, str] = {}
        if pending:
            self.postpone()
            try:
                configs = self._cluster.topic_configs({tp.topic for tp in pending})
                risks |= self._near_the_start(pending, configs)
                risks |= self._old(pending, configs)
            except KafkaError as error:
                self._log.info("cannot tell whether retention is near: %s", error)
                risks |= dict.fromkeys(self._at_risk.keys() & pending.keys(), "as before")
        for tp in sorted(risks.keys() - self._at_risk.keys()):
            self._log.warning(
                "%s: records from offset %d on are pending and %s",
                tp,
                pending[tp],
                risks[tp],
            )
        self._at_risk = {tp: pending[tp] for tp in risks}

    def _old(
        self, pending: Mapping[TopicPartition, int], configs: Mapping[str, TopicConfig]
    ) -> dict[TopicPartition, str]:
        """The partitions whose first pending record is old, with the text of the warning."""
        limits_ms = {}
        for tp in pending:
            config = configs.get(tp.topic)
            if config is None or config.retention_ms is None:
                continue
            limit_ms = int(self._wall_clock() * 1000 - WARN_AT * config.retention_ms)
            if limit_ms > 0:  # else nothing is so old; retention.ms may be the largest number
                limits_ms[tp] = limit_ms
        young = self._cluster.at_timestamps(limits_ms) if limits_ms else {}
        text = (
            f"older than {round(100 * WARN_AT)} % of the topic's retention time: Kafka will delete "
            "them soon. Catch up, unpark their keys, or raise retention.ms."
        )
        return {tp: text for tp, first in young.items() if first is None or pending[tp] < first}

    def _near_the_start(
        self, pending: Mapping[TopicPartition, int], configs: Mapping[str, TopicConfig]
    ) -> dict[TopicPartition, str]:
        """The partitions whose first pending record is among what a full log loses next.

        That is the oldest segment, as a whole, when the log is a segment longer than its limit.
        Offsets do not say how many bytes the log has now. So it counts as full, unless not even
        batches of the maximum length with one record each would fill it; and its bytes count as
        spread evenly over its offsets.
        """
        limited = {
            tp: config
            for tp in pending
            if (config := configs.get(tp.topic)) is not None and config.retention_bytes is not None
        }
        if not limited:
            return {}
        begins = self._cluster.earliest(limited)
        ends = self._cluster.latest(limited)  # now: the given ones may be those of a pinned view
        return {
            tp: f"near the start of the log, which begins at {begins[tp]} and ends at "
            f"{ends[tp]}: Kafka will delete them when it is longer than retention.bytes. Catch "
            "up, unpark their keys, or raise retention.bytes."
            for tp, config in limited.items()
            if _is_near_start(pending[tp] - begins[tp], ends[tp] - begins[tp], config)
        }


def _is_near_start(depth: int, length: int, config: TopicConfig) -> bool:
    """True if a log's size limit soon takes what lies that far behind its start."""
    limit = config.retention_bytes or 0
    if length * config.batch_bytes < limit:
        return False
    oldest_segment = config.segment_bytes / (limit + config.segment_bytes)
    return depth <= (oldest_segment + WARN_WITHIN) * length
