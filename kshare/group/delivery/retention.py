"""A warning before retention deletes what a consumer has not processed.

::

    once a minute: what was in the logs at the look before, and is pending still
        +--> a thread asks the cluster: RetentionWatch warns

Guarantees: no call waits for it, and none fails for it. A consumer that is up to date asks for
nothing, so it has neither the thread nor the connections.
"""

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from typing import Protocol

from kshare.cluster.cluster import Cluster
from kshare.core.progress import Progress, TopicPartition
from kshare.group.metrics import PartitionMetrics
from kshare.monitor.retention import LogView, RetentionWatch
from kshare.options.model import KafkaConfig
from kshare.wire.protocol.background import begin

__all__ = ["Retention"]

_log = logging.getLogger("kshare.group")


class _Asked(LogView, Protocol):
    def close(self) -> None:
        """End its connections; a later question makes new ones."""


class Retention:
    """Looks at a consumer's partitions from time to time. For the thread that polls.

    Args:
        kafka: How to reach the cluster.
        cluster: The cluster; None to connect to it for each look.
        clock: Seconds.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        *,
        cluster: _Asked | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ends: dict[TopicPartition, int] = {}  # at the look before
        self._cluster = cluster or Cluster(kafka)
        self._watch = RetentionWatch(self._cluster, _log, clock=clock)
        self._asking: Future[None] | None = None

    def look(self, metrics: Callable[[], Mapping[TopicPartition, PartitionMetrics]]) -> None:
        """Look again, if it is time to.

        Args:
            metrics: How far each partition is.
        """
        is_asking = self._asking is not None and not self._asking.done()
        if is_asking or not self._watch.is_due:
            return
        self._watch.postpone()  # also if nothing is behind: metrics cost something
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
            self._watch.compare({}, {})  # what was at risk is not any more; this asks nobody
            return
        self._asking = begin(partial(self._ask, behind, ends), "kshare retention", lambda: None)

    def _ask(
        self, behind: Mapping[TopicPartition, Progress], ends: Mapping[TopicPartition, int]
    ) -> None:
        with closing(self._cluster):
            self._watch.compare(behind, ends)
