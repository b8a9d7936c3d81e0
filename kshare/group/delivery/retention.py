"""A warning before retention deletes what a consumer has not processed.

::

    once a minute: what was in the logs at the look before, and is pending still
        +--> a thread asks the cluster: RetentionWatch warns

Guarantees: no call waits for it, and none fails for it. A consumer that is up to date asks for
nothing, so it has neither the thread nor the connections.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing

from kshare.cluster.cluster import Cluster, TopicPolicy
from kshare.core.progress import Progress, TopicPartition
from kshare.group.metrics import PartitionMetrics
from kshare.monitor.retention import EVERY_SECONDS, LogView, RetentionWatch
from kshare.options.model import KafkaConfig

__all__ = ["Retention"]

_log = logging.getLogger("kshare.group")


class Retention:
    """Looks at a consumer's partitions from time to time. For the thread that polls.

    Args:
        kafka: How to reach the cluster.
        cluster: The cluster; None to connect to it.
        clock: Seconds.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        *,
        cluster: LogView | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._next = clock()
        self._ends: dict[TopicPartition, int] = {}  # at the look before
        # It looks whenever it is asked: by this clock, each look is due.
        view = cluster or _Briefly(kafka)
        self._watch = RetentionWatch(view, _log, clock=lambda: self._next)
        self._thread: threading.Thread | None = None

    def look(self, metrics: Callable[[], Mapping[TopicPartition, PartitionMetrics]]) -> None:
        """Look again, if it is time to.

        Args:
            metrics: How far each partition is.
        """
        now = self._clock()
        if now < self._next or (self._thread is not None and self._thread.is_alive()):
            return
        self._next = now + EVERY_SECONDS
        before, self._ends = self._ends, {}
        behind, ends = dict[TopicPartition, Progress](), dict[TopicPartition, int]()
        for topic_partition, each in metrics().items():
            if each.end is None or each.stable_offset is None:
                continue
            self._ends[topic_partition] = each.end
            if each.stable_offset < before.get(topic_partition, 0):
                behind[topic_partition] = Progress.at(each.stable_offset)
                ends[topic_partition] = each.end
        if not behind:
            self._watch.look({}, {})  # what was at risk is not any more; this asks nobody
            return
        self._thread = threading.Thread(
            target=self._watch.look, args=(behind, ends), name="kshare retention", daemon=True
        )
        self._thread.start()


class _Briefly:
    """A cluster with connections that last for one question."""

    def __init__(self, kafka: KafkaConfig) -> None:
        self._kafka = kafka

    def policies(self, topics: Collection[str], /) -> dict[str, TopicPolicy]:
        """The retention of topics."""
        with closing(Cluster(self._kafka)) as cluster:
            return cluster.policies(topics)

    def at_timestamps(
        self, timestamps_ms: Mapping[TopicPartition, int], /
    ) -> dict[TopicPartition, int | None]:
        """The first offset of a record that is not older than its partition's timestamp."""
        with closing(Cluster(self._kafka)) as cluster:
            return cluster.at_timestamps(timestamps_ms)

    def earliest(self, partitions: Iterable[TopicPartition], /) -> dict[TopicPartition, int]:
        """The first offset that each log holds."""
        with closing(Cluster(self._kafka)) as cluster:
            return cluster.earliest(partitions)

    def latest(self, partitions: Iterable[TopicPartition], /) -> dict[TopicPartition, int]:
        """The end of each log."""
        with closing(Cluster(self._kafka)) as cluster:
            return cluster.latest(partitions)
