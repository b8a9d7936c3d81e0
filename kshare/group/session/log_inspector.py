"""How somebody has made the log's topic, and whether partitions were added: looked at now and then.

::

    found --> a thread looks --> settings that lose or keep too much: a warning, once each
      ^                      --> another partition is the group's log: it was lost
      +---- half a minute ---+
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Final

from kshare.cluster.cluster import TopicPolicy
from kshare.core.progress import TopicPartition
from kshare.errors import KafkaError
from kshare.group.log.topic import LogTopic

__all__ = ["LogInspector"]

_log = logging.getLogger("kshare.group")

_PAUSE_SECONDS: Final = 30.0
_SEGMENT_BYTES_MAX: Final = 100 << 20
_COMPACTION_LAG_MS_MAX: Final = 600_000


class LogInspector:
    """Looks at the log's topic, in a thread of its own.

    Args:
        topic: Makes what knows the topic.
        group: Id of the group.
        now: Source of time.
    """

    def __init__(self, topic: Callable[[], LogTopic], group: str, now: Callable[[], float]) -> None:
        self._topic = topic
        self._group = group
        self._now = now
        self._due = float("-inf")
        self._found: tuple[TopicPartition, str] | None = None
        self._said: set[str] = set()

    def has_moved(self, partition: TopicPartition, topic_id: str) -> bool:
        """Look if it is time to. Never waits.

        Args:
            partition: The partition that is followed as the group's log.
            topic_id: The topic that it is of.

        Returns:
            True if the last look has found another partition of the same topic.
        """
        if self._now() >= self._due:
            self._due = self._now() + _PAUSE_SECONDS
            name = f"kshare {self._group} looks"
            threading.Thread(target=self._look, name=name, daemon=True).start()
        found, self._found = self._found, None
        return found is not None and found[1] == topic_id and found[0] != partition

    def _look(self) -> None:
        try:
            with closing(self._topic()) as topic:
                self._found = topic.find()
                policy = topic.policy()
        except KafkaError as error:  # whoever follows the log says it
            _log.debug("cannot look at the log of group %s: %s", self._group, error)
            return
        for fault in () if policy is None else _faults(policy):
            if fault not in self._said:
                self._said.add(fault)
                _log.warning("topic %s, the log of group %s, %s", topic.name, self._group, fault)


def _faults(policy: TopicPolicy) -> Iterator[str]:
    """What is wrong with a log's topic, and what would be right."""
    if policy.deletes_last_values:
        yield (
            "deletes old records: what is committed above stable offsets is delivered again once "
            "they are gone, and claims are lost. Set its cleanup.policy to compact"
        )
    if policy.compaction_lag_ms > _COMPACTION_LAG_MS_MAX:
        yield (
            f"is compacted late (min.compaction.lag.ms is {policy.compaction_lag_ms}): it grows, "
            "and members that start read all of it. Set 0, or some minutes"
        )
    if policy.segment_bytes > _SEGMENT_BYTES_MAX:
        yield (
            f"has large segments (segment.bytes is {policy.segment_bytes}): the newest one is not "
            "compacted, and members that start read all of it. Set 10485760"
        )
