"""The process of a group that owns a key, from anywhere. Nothing is joined or claimed.

Guarantees: who is named owns the key hashes by the end of the group's log, and the group's
coordinator knew it as a member after that.

Cost: the first look reads the group's log, later ones what is new of it; and each look asks the
coordinator who is alive. The number of a topic's partitions is asked for once.
"""

import logging
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Self

from kshare.assignment.interface.application import HostInfo
from kshare.core.hashing import key_hash
from kshare.core.progress import TopicPartition
from kshare.group.config.consumer_config import cluster_and_log
from kshare.group.log.topic import log_table
from kshare.group.protocol.commit_log.group_reader import GroupReader
from kshare.group.protocol.commit_log.log import GroupLog
from kshare.group.protocol.commit_log.record_codec import LIFE_SECONDS
from kshare.group.protocol.owners.leases import LeaseShare
from kshare.group.protocol.owners.range_owners import (
    LivingMember,
    RangeOwner,
    living_lease_shares,
    living_members,
    owner_of,
    range_owners,
    whole_owners,
)
from kshare.group.tools.description import GroupDescriber, GroupDescription
from kshare.kafka.cluster import Cluster
from kshare.kafka_python import murmur2
from kshare.options import KafkaConfig, Subscribe
from kshare.options.kinds import host_and_port

__all__ = ["GroupOwners", "OwnerTable", "host_info", "owner", "partition_of"]

_log = logging.getLogger("kshare.group")


def owner(
    group: str,
    topic: str,
    key: bytes,
    config: Mapping[str, Any] | KafkaConfig,
    *,
    partition: int | None = None,
) -> HostInfo | None:
    """The process of a group that owns a key: where to ask for the state of ``key``.

    Args:
        group: Id of the group.
        topic: The topic that the group reads.
        key: The key.
        config: The configuration of a consumer, as :class:`KeySharedConsumer` takes it; its
            ``group.id`` does not matter.
        partition: The key's partition, if the producers do not choose it as Java's do by default.

    Returns:
        The owner's ``application.server``; None if nobody owns the key, or its owner has not set
        ``application.server``.

    Raises:
        OptionsError: The configuration cannot be used.
        UnknownTopicError: The topic does not exist.
        CommitLogError: A record of the group cannot be read.
        KafkaError: The cluster did not answer, or refused.
    """
    with GroupOwners(group, config) as owners:
        return owners.owner(topic, key, partition=partition)


@dataclass(frozen=True, slots=True)
class OwnerTable:
    """The owners of key hashes.

    Attributes:
        owners: The key hashes that have owners, by partition.
        members: The members that are alive, by the ids of their sessions.
        chunks: What they have of the partitions without key order, which have no owners.
        is_known: Whether the coordinator or the log knows the group.
        keeps_log: False if the log knows none of the members that the coordinator has: then they go
            by the coordinator alone.
    """

    owners: tuple[RangeOwner, ...]
    members: Mapping[str, LivingMember]
    chunks: Mapping[TopicPartition, Mapping[str, LeaseShare]] = field(default_factory=dict)
    is_known: bool = True
    keeps_log: bool = True

    @classmethod
    def of(cls, log: GroupLog, described: GroupDescription) -> "OwnerTable":
        """The owners by a group's log and what its coordinator says now."""
        since_ms = int((time.time() - LIFE_SECONDS) * 1000)
        joined = None if described.members is None else described.members.keys()
        is_known = described.exists or log.end > 0
        members = living_members(log, since_ms, joined)
        # Amid a rebalance, the epoch that names its members is not written yet.
        keeps_log = bool(members) or not described.members or described.state != "stable"
        if described.members and (described.is_plain or not keeps_log):
            parts = {member: each.partitions for member, each in described.members.items()}
            return cls(*whole_owners(log, since_ms, parts), keeps_log=keeps_log)
        chunks = living_lease_shares(log, members)
        return cls(range_owners(log, members), members, chunks, is_known)

    def member(self, partition: TopicPartition, hash_: int) -> LivingMember | None:
        """The member that owns a key hash of a partition; None if there is none."""
        found = owner_of(self.owners, partition, hash_)
        return None if found is None else self.members[found.member]


class GroupOwners:
    """Says who owns a key, as often as it is asked. For one thread at a time.

    Args:
        group: Id of the group.
        config: As for :func:`owner`.
        log_topic: Name of the individual commit log's topic; None for that of ``config``.
    """

    def __init__(
        self,
        group: str,
        config: Mapping[str, Any] | KafkaConfig,
        log_topic: str | None = None,
    ) -> None:
        kafka, topic = cluster_and_log(group, config)
        self._group = group
        self._describer = GroupDescriber(kafka)
        self._log = _reader(log_topic or topic, group)
        self._table = log_table(kafka, log_topic or topic, group)
        self._cluster = Cluster(kafka)
        self._partitions: dict[str, int] = {}

    def owner(self, topic: str, key: bytes, *, partition: int | None = None) -> HostInfo | None:
        """The process that owns a key now; see :func:`kshare.group.owner`."""
        where = self.partition(topic, key, partition)
        member = self.read().member(where, key_hash(key, 0))
        return None if member is None else host_info(member.host)

    def partition(self, topic: str, key: bytes, known: int | None = None) -> TopicPartition:
        """The partition of a key: the one that is known, or by the default of Java's producers.

        Raises:
            UnknownTopicError: The topic does not exist.
            KafkaError: The cluster did not answer, or refused.
        """
        if known is not None:
            return TopicPartition(topic, known)
        return TopicPartition(topic, partition_of(key, self.count(topic)))

    def count(self, topic: str) -> int:
        """The number of a topic's partitions; raises what :meth:`partition` does."""
        if topic not in self._partitions:
            self._partitions[topic] = len(self._cluster.partitions(Subscribe((topic,))))
        return self._partitions[topic]

    def read(self) -> OwnerTable:
        """The owners of key hashes now.

        Raises:
            CommitLogError: A record of the group cannot be read.
            KafkaError: The cluster did not answer, or refused.
        """
        changes = self._table.read()
        if changes.restarted:
            self._log = _reader(self._table.name, self._group)
        for row in changes.rows:
            self._log.apply(row.offset, row.key or b"", row.value)
        self._log.check()
        for warning in self._log.take_warnings():
            _log.warning("%s", warning)
        described = self._describer.describe([self._group])
        return OwnerTable.of(self._log.log, described[self._group])

    def close(self) -> None:
        """Close the connections."""
        with closing(self._cluster), closing(self._describer):
            self._table.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def partition_of(key: bytes, count: int) -> int:
    """The partition that Java's producers choose for a key by default: ``BuiltInPartitioner``.

    Args:
        key: The key.
        count: Number of the topic's partitions.
    """
    return int(murmur2(key) & 0x7FFFFFFF) % count


def host_info(host: str) -> HostInfo | None:
    """The address that a member has announced, if it is host and port."""
    address = host_and_port(host)
    return None if address is None else HostInfo(*address)


def _reader(topic: str, group: str) -> GroupReader:
    return GroupReader(TopicPartition(topic, 0), GroupLog(group))
