"""The state of a group: its members, their key hashes, and their lag.

Guarantees: nothing is joined, claimed or changed. Each key hash of a partition that the group reads
is in one range, also if nobody owns it.

Cost: one group: its log, its offsets, and the ends of its partitions. The list of groups: all of
the log's topic.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field

from kshare.core.hashing import ALL_HASHES, HashRange, KeyRanges
from kshare.core.progress import Progress, TopicPartition
from kshare.errors import CommitLogError
from kshare.group.protocol.commit_log.log import GroupLog
from kshare.group.protocol.commit_log.record_codec import decode, decode_key
from kshare.group.protocol.owners.leases import LeaseShare
from kshare.group.protocol.owners.range_owners import LivingMember, RangeOwner
from kshare.group.tools.description import (
    GroupDescriber,
    GroupDescription,
    JoinedMember,
    describe_groups,
)
from kshare.group.tools.offsets import GroupOffsets
from kshare.group.tools.owners import OwnerTable
from kshare.kafka.cluster import Cluster
from kshare.kafka.compacted_topic import CompactedTopic
from kshare.kafka.examination import log_bounds
from kshare.kafka.topics import INDIVIDUAL_COMMITS_TOPIC, TopicSpec
from kshare.monitor.report import lag
from kshare.options import KafkaConfig

__all__ = [
    "GroupObserver",
    "GroupStatus",
    "GroupSummary",
    "MemberLoad",
    "MemberStatus",
    "RangeLag",
    "group_status",
    "list_groups",
    "range_lags",
]


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A member that is alive.

    Attributes:
        member: What the group's log says of it.
        joined: What the coordinator says of it; None of a standalone consumer, and if the brokers
            do not say.
    """

    member: LivingMember
    joined: JoinedMember | None


@dataclass(frozen=True, slots=True)
class RangeLag:
    """Key hashes of a partition, who owns them, and how far they are.

    Attributes:
        partition: The partition.
        hashes: The key hashes.
        member: Id of the owner's session; None if nobody owns them.
        position: The first offset that is not processed for all of them; None if nothing of the
            partition has been committed.
        lag: Number of offsets with something pending, an upper bound of the records; None if
            nothing has been committed, the partition is gone, or its log ends below the stable
            offset.
    """

    partition: TopicPartition
    hashes: HashRange
    member: str | None
    position: int | None
    lag: int | None


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """The state of a group.

    Attributes:
        group: Id of the group.
        state: What the coordinator calls its state; ``unknown`` if brokers do not say.
        epoch: Log offset of the last epoch; None if nobody has ever joined.
        generation: The generation of that epoch.
        leader: Id of the session that led it.
        members: The members that are alive, by their names.
        ranges: All key hashes of the partitions that the group reads, by partition, ascending.
        progress: What has been processed of each partition of which anything was committed.
        logs: First offset and end of the partitions of which that is known.
        is_plain: Whether it assigns whole partitions, as a member is not a kshare consumer.
        chunks: What each member has of the partitions without key order, by its name.
        read_at: When its progress was read, in seconds of ``time.monotonic()``.
        keeps_log: False if its members are not in the log, and go by the coordinator alone.
        warnings: Why the logs of other partitions are not known.
    """

    group: str
    state: str
    epoch: int | None
    generation: int | None
    leader: str | None
    members: tuple[MemberStatus, ...]
    ranges: tuple[RangeLag, ...]
    progress: Mapping[TopicPartition, Progress]
    logs: Mapping[TopicPartition, tuple[int, int]]
    is_plain: bool = False
    chunks: Mapping[TopicPartition, Mapping[str, LeaseShare]] = field(default_factory=dict)
    read_at: float = 0.0
    keeps_log: bool = True
    warnings: tuple[str, ...] = ()

    def loads(self) -> Iterator[tuple[MemberStatus, "MemberLoad"]]:
        """Each member, with its load."""
        lags: dict[str | None, list[int | None]] = {}
        for part in self.ranges:
            lags.setdefault(part.member, []).append(part.lag)
        shares: dict[str, list[LeaseShare]] = {}
        for of_partition in self.chunks.values():
            for name, share in of_partition.items():
                shares.setdefault(name, []).append(share)
        for member in self.members:
            owned, leases = lags.get(member.member.name, []), shares.get(member.member.name, [])
            known = [lag for lag in owned if lag is not None]
            load = MemberLoad(
                ranges=len(owned),
                lag=sum(known) if known else None,
                leased=sum(share.leased for share in leases) if leases else None,
                done=sum(share.done for share in leases) if leases else None,
            )
            yield member, load


@dataclass(frozen=True, slots=True)
class MemberLoad:
    """The load of a member.

    Attributes:
        ranges: Number of ranges that it owns.
        lag: Their lag; None if it is not known of any.
        leased: Offsets that it has leased, without key order; None if it has no chunks.
        done: Offsets above the stable one that it has processed, without key order.
    """

    ranges: int
    lag: int | None
    leased: int | None
    done: int | None


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group that has a log.

    Attributes:
        group: Its id.
        state: What the coordinator calls its state; ``unknown`` if brokers do not say.
        members: Number of members that are alive.
        partitions: The partitions that its log speaks of.
    """

    group: str
    state: str
    members: int
    partitions: tuple[TopicPartition, ...]


def group_status(
    kafka: KafkaConfig, group: str, log_topic: str = INDIVIDUAL_COMMITS_TOPIC
) -> GroupStatus:
    """The state of a group.

    Args:
        kafka: How to reach the cluster.
        group: Id of the group.
        log_topic: Name of the individual commit log's topic.

    Raises:
        UnknownGroupError: Nobody knows the group.
        KshareError: The log has no record of the group, whose offsets belong to another one.
        CommitLogError: A record of the group cannot be read.
        KafkaError: The cluster did not answer, or refused.
    """
    with closing(GroupObserver(kafka, group, log_topic)) as observer:
        return observer.read()


class GroupObserver:
    """Says how a group stands, as often as it is asked. For one thread at a time.

    The first look reads the group's log, later ones what is new of it.

    Args:
        kafka: How to reach the cluster.
        group: Id of the group.
        log_topic: Name of the individual commit log's topic.
    """

    def __init__(
        self, kafka: KafkaConfig, group: str, log_topic: str = INDIVIDUAL_COMMITS_TOPIC
    ) -> None:
        self._group = group
        self._offsets = GroupOffsets(group, kafka, log_topic)
        self._describer = GroupDescriber(kafka)
        self._cluster = Cluster(kafka)

    def read(self) -> GroupStatus:
        """The state of the group now; raises what :func:`group_status` does."""
        known = self._offsets.checked()
        described = self._describer.describe([self._group])[self._group]
        table = OwnerTable.of(known.log, described)
        progress = {tp: each.progress for tp, each in known.committed().items()}
        partitions = progress.keys() | {owner.partition for owner in table.owners}
        warnings = list[str]()
        logs = log_bounds(self._cluster, partitions, lambda error: warnings.append(str(error)))
        position, epoch = known.log.last_epoch or (None, None)
        return GroupStatus(
            group=self._group,
            state=described.state,
            epoch=position,
            generation=None if epoch is None else epoch.generation,
            leader=None if epoch is None else epoch.leader,
            members=tuple(_members(table, described)),
            ranges=tuple(range_lags(table.owners, progress, {tp: logs[tp][1] for tp in logs})),
            progress=progress,
            logs=logs,
            is_plain=described.is_plain,
            chunks=table.chunks,
            read_at=known.read_at,
            keeps_log=table.keeps_log,
            warnings=tuple(warnings),
        )

    def close(self) -> None:
        """Close the connections."""
        with closing(self._cluster), closing(self._describer):
            self._offsets.close()


def range_lags(
    owners: Iterable[RangeOwner],
    progress: Mapping[TopicPartition, Progress],
    ends: Mapping[TopicPartition, int],
) -> Iterator[RangeLag]:
    """The lag of each range, by partition, ascending.

    Args:
        owners: Who owns which key hashes.
        progress: What has been processed of each partition.
        ends: The ends of the partitions that exist.
    """
    by_partition: dict[TopicPartition, dict[HashRange, str | None]] = {tp: {} for tp in progress}
    for owner in owners:
        by_partition.setdefault(owner.partition, {})[owner.hashes] = owner.member
    for tp, members in sorted(by_partition.items()):
        members.update(dict.fromkeys(ALL_HASHES - members))
        done, end = progress.get(tp), ends.get(tp)
        for hashes, member in sorted(members.items(), key=lambda pair: pair[0]):
            position = None if done is None else done.position(hashes)
            behind = None
            if done is not None and end is not None and done.stable <= end:
                behind = lag(done, end, KeyRanges([hashes]))
            yield RangeLag(tp, hashes, member, position, behind)


def list_groups(
    kafka: KafkaConfig, log_topic: str = INDIVIDUAL_COMMITS_TOPIC
) -> tuple[GroupSummary, ...]:
    """The groups of which the individual commit log has records, by their ids.

    Args:
        kafka: How to reach the cluster.
        log_topic: Name of the log's topic.

    Raises:
        KafkaError: The cluster did not answer, or refused.
    """
    logs: dict[str, GroupLog] = {}
    keys: dict[str, set[bytes]] = {}
    table = CompactedTopic(kafka, TopicSpec(log_topic, 1), read_committed=True)
    with closing(table):
        rows = table.read().rows
    for row in rows:
        key = row.key or b""
        try:
            group, parsed = decode_key(key)
            record = None if row.value is None else decode(key, row.value)[1]
        except CommitLogError:  # `kshare groups --group` says it
            continue
        logs.setdefault(group, GroupLog(group)).apply(row.offset, parsed, record)
        kept = keys.setdefault(group, set())
        (kept.discard if record is None else kept.add)(key)
    names = sorted(group for group, kept in keys.items() if kept)
    described = describe_groups(kafka, names)
    return tuple(
        GroupSummary(
            name,
            described[name].state,
            len(OwnerTable.of(logs[name], described[name]).members),
            tuple(sorted(logs[name].partitions)),
        )
        for name in names
    )


def _members(table: OwnerTable, described: GroupDescription) -> Iterator[MemberStatus]:
    known = described.members or {}
    for _, member in sorted(table.members.items()):
        yield MemberStatus(member, known.get(member.member_id))
