"""Looks at the cluster in threads of their own, so that no call of a consumer waits.

::

    retention:  once a minute: what was in the logs at the look before, and is pending still
                    +--> a thread asks the cluster: RetentionWatch warns
    paused:     every 5 s, a thread asks where the logs begin and end, as nothing is fetched of them

A consumer that is up to date and pauses nothing needs no thread and no connection for the latter
two.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from types import MappingProxyType
from typing import Final

from kshare.core.progress import Progress, TopicPartition
from kshare.errors import KafkaError
from kshare.group.metrics import PartitionMetrics
from kshare.kafka.cluster import Cluster
from kshare.kafka.examination import log_bounds
from kshare.kafka.protocol.background import begin
from kshare.kafka.protocol.wait_log import WaitLog
from kshare.monitor.retention import RetentionWatch
from kshare.options.model import KafkaConfig

__all__ = ["Looks"]

_log = logging.getLogger("kshare.group")

_SOON_SECONDS: Final = 0.5
_PAUSED_SECONDS: Final = 5.0


class _Asker:
    """Asks the cluster in a thread of its own, one question at a time.

    Args:
        kafka: How to reach the cluster.
        cluster: The cluster; None to connect to it for each question.
        clock: Seconds.
    """

    def __init__(
        self, kafka: KafkaConfig, cluster: Cluster | None, clock: Callable[[], float]
    ) -> None:
        self._cluster = cluster or Cluster(kafka)
        self._clock = clock
        self._asking: Future[None] | None = None

    @property
    def _is_asking(self) -> bool:
        return self._asking is not None and not self._asking.done()

    def _begin(self, name: str, ask: Callable[[], None]) -> None:
        self._asking = begin(partial(self._ask, ask), name, lambda: None)

    def _ask(self, ask: Callable[[], None]) -> None:
        with closing(self._cluster):
            ask()


class PausedLogs(_Asker):
    """Where the logs of paused partitions begin and end: no fetch tells. A fault is only logged.

    Attributes:
        bounds: First offset and end of each log, as of the last look. For any thread.
    """

    bounds: Mapping[TopicPartition, tuple[int, int]] = MappingProxyType({})
    _due = -math.inf

    def note(self, partition: TopicPartition, bounds: tuple[int, int]) -> None:
        """A partition is paused: its log's bounds are those of the last fetch for now."""
        self.bounds = {**self.bounds, partition: bounds}

    def look(self, paused: Collection[TopicPartition]) -> None:
        """Ask, if it is time to."""
        if not paused or self._is_asking or self._clock() < self._due:
            return
        self._due = self._clock() + _PAUSED_SECONDS
        self._begin("kshare paused", partial(self._read, tuple(paused)))

    def _read(self, paused: Collection[TopicPartition]) -> None:
        def on_fault(error: KafkaError) -> None:
            _log.info("cannot look where the logs of paused partitions end: %s", error)

        try:
            found = log_bounds(self._cluster, paused, on_fault)
        except KafkaError as error:
            on_fault(error)
        else:  # of those that do not answer, what was known
            known = {tp: bounds for tp, bounds in self.bounds.items() if tp in paused}
            self.bounds = known | found


class Retention(_Asker):
    """Warns before retention deletes what a consumer has not processed. Nothing fails for it.

    Args:
        kafka: How to reach the cluster.
        cluster: The cluster; None to connect to it for each look.
        clock: Seconds.
    """

    def __init__(
        self, kafka: KafkaConfig, cluster: Cluster | None, clock: Callable[[], float]
    ) -> None:
        super().__init__(kafka, cluster, clock)
        self._ends: dict[TopicPartition, int] = {}  # at the look before
        self._watch = RetentionWatch(self._cluster, _log, clock=clock)

    def look(self, metrics: Callable[[], Mapping[TopicPartition, PartitionMetrics]]) -> None:
        """Look again, if it is time to.

        Args:
            metrics: How far each partition is.
        """
        if self._is_asking or not self._watch.is_due:
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
        self._begin("kshare retention", partial(self._watch.compare, behind, ends))


class Looks:
    """Looks of the thread that polls at its partitions, from time to time.

    Args:
        kafka: How to reach the cluster.
        who: Who looks, as the log names it.
        cluster: The cluster; None to connect to it for each look.
        clock: Seconds.

    Attributes:
        paused_logs: The logs of paused partitions, where nothing is fetched.
        retention: Warns before what is pending is deleted.
        waits: Says why nothing is fetched.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        who: str = "",
        *,
        cluster: Cluster | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.waits = WaitLog(_log, who, clock=clock)
        self.paused_logs = PausedLogs(kafka, cluster, clock)
        self.retention = Retention(kafka, cluster, clock)
