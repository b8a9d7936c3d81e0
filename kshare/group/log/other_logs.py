"""Offsets of a group that are anchored in another log than the one that was read.

What was read says then neither who is alive nor what was committed above these offsets. If the
other log is gone, they count alone: that is no fault.

Cost: nothing, unless there are such offsets. Then all topics are described, once per other log.
"""

import logging
from collections.abc import Collection, Mapping
from typing import Final

from kshare.core.listing import join_names
from kshare.core.progress import TopicPartition
from kshare.errors import ForeignMemberError, KshareError
from kshare.kafka.cluster import Cluster
from kshare.options import Subscribe

__all__ = ["OtherLogs"]

_log: Final = logging.getLogger("kshare.group")


class OtherLogs:
    """The other logs of a group.

    Args:
        cluster: Has the topics.
        group: Id of the group.
        name: Name of the log's topic that was read.
    """

    def __init__(self, cluster: Cluster, group: str, name: str) -> None:
        self._cluster = cluster
        self._group = group
        self._name = name
        self._found: dict[str, str | None] = {}  # by topic id

    def check(
        self, anchored: Mapping[TopicPartition, str], needed: Collection[TopicPartition]
    ) -> None:
        """Refuse if another log exists in which a needed offset is anchored; else warn, once.

        Args:
            anchored: The ids of the other logs, by partition.
            needed: The partitions that the caller has to know all of.

        Raises:
            KshareError: Another log has to be read.
            KafkaError: The cluster did not answer, or refused.
        """
        new = set(anchored.values()) - self._found.keys()
        homes = self.homes(anchored)
        refused = {tp: name for tp, name in homes.items() if tp in needed}
        if refused:
            raise KshareError(f"{self._text(refused)}, which was read: name it with --log-topic")
        if new and homes:
            text = self._text(homes)
            _log.warning("%s, which was read; what is shown of these may be wrong", text)
        elif new:
            _log.warning(
                "offsets of group %s (%s) belong to a log that is gone, or that this user may not "
                "see; if the group has another one than %s, name it with --log-topic",
                *(self._group, join_names(anchored), self._name),
            )

    def homes(self, anchored: Mapping[TopicPartition, str]) -> dict[TopicPartition, str]:
        """The names of the other logs that exist, by partition.

        Raises:
            KafkaError: The cluster did not answer, or refused.
        """
        new = set(anchored.values()) - self._found.keys()
        if new:
            self._find(new)
        return {tp: name for tp, id_ in anchored.items() if (name := self._found[id_])}

    def refuse_member(self, anchored: Mapping[TopicPartition, str]) -> None:
        """Refuse to be a member with this log, if another one exists that has the group's commits.

        Members of two logs do not hear each other: both would own the same hashes.

        Raises:
            ForeignMemberError: Another log exists in which an offset is anchored.
            KafkaError: The cluster did not answer, or refused.
        """
        homes = self.homes(anchored)
        if homes:
            (name, *_) = sorted(homes.values())
            raise ForeignMemberError(
                f"{self._text(homes)}: give all members the same individual.commit.topic. To go on "
                f"with {self._name}, stop all members, and run kshare offsets drop --group "
                f"{self._group} --log-topic {name}"
            )

    def _find(self, ids: Collection[str]) -> None:
        """Look for the names of topics. Without an answer, they are looked for again."""
        topics = self._cluster.topics()
        if topics:
            self._cluster.partitions(Subscribe(tuple(topics)))
        names = {id_: name for name, id_ in self._cluster.topic_ids().items()}
        self._found |= {id_: names.get(id_) for id_ in ids}

    def _text(self, homes: Mapping[TopicPartition, str]) -> str:
        names = join_names(sorted(set(homes.values())))
        return (
            f"offsets of group {self._group} ({join_names(homes)}) belong to the log {names}, not "
            f"to {self._name}"
        )
