"""How a group stands: its members, who owns which key hashes, and how far behind they are.

Guarantees: nothing is joined, claimed or changed. Each key hash of a partition that the group reads
is in one range, also if nobody owns it.

Cost: one group: its log, its offsets, and the ends of its partitions. The list of groups: all of
the log's topic.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field

from kshare.cluster.cluster import Cluster
from kshare.cluster.compacted_topic import CompactedTopic
from kshare.cluster.topics import INDIVIDUAL_COMMITS_TOPIC, TopicSpec
from kshare.core.hashing import HashRange, complement
from kshare.core.progress import Progress, TopicPartition
from kshare.errors import UnknownTopicError
from kshare.group.description import (
    GroupDescription,
    JoinedMember,
    describe_group,
    describe_groups,
)
from kshare.group.offsets import GroupOffsets
from kshare.group.owners import OwnerTable
from kshare.group.protocol.lease import ChunkShare
from kshare.group.protocol.log import GroupLog
from kshare.group.protocol.range_owners import LivingMember, RangeOwner
from kshare.group.protocol.record_codec import decode, decode_key
from kshare.group.protocol.records import CommitLogError
from kshare.monitor.report import lag
from kshare.options import KafkaConfig, Subscribe

__all__ = [
    "GroupStatus",
    "GroupSummary",
    "MemberStatus",
    "RangeLag",
    "group_status",
    "list_groups",
    "log_bounds",
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
        member: Name of the owner's session; None if nobody owns them.
        position: The first offset that is not processed for all of them; None if nothing of the
            partition has been committed.
        lag: Number of offsets with something pending, so at most so many records; None if nothing
            has been committed, the partition is gone, or its log ends below the stable offset.
    """

    partition: TopicPartition
    hashes: HashRange
    member: str | None
    position: int | None
    lag: int | None


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """How a group stands.

    Attributes:
        group: Id of the group.
        state: What the coordinator calls its state; ``unknown`` if brokers do not say.
        epoch: Log offset of the last epoch; None if nobody has ever joined.
        generation: The generation of that epoch.
        leader: Name of the session that led it.
        members: The members that are alive, by their names.
        ranges: All key hashes of the partitions that the group reads, by partition, ascending.
        progress: What has been processed of each partition of which anything was committed.
        logs: First offset and end of the partitions that exist.
        is_plain: Whether it assigns whole partitions, as a member is no kshare consumer.
        chunks: What each member has of the partitions without key order, by its name.
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
    chunks: Mapping[TopicPartition, Mapping[str, ChunkShare]] = field(default_factory=dict)


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
    """How a group stands.

    Args:
        kafka: How to reach the cluster.
        group: Id of the group.
        log_topic: Name of the individual commit log's topic.

    Raises:
        UnknownGroupError: Nobody knows the group.
        CommitLogError: A record of the group cannot be read.
        KafkaError: The cluster did not answer, or refused.
    """
    with closing(GroupOffsets(kafka, group, log_topic)) as offsets:
        known = offsets.snapshot()
        offsets.check_known(known)
    described = describe_group(kafka, group)
    table = OwnerTable.of(known.log, described)
    progress = {tp: each.progress for tp, each in known.committed().items()}
    partitions = progress.keys() | {owner.partition for owner in table.owners}
    logs = log_bounds(kafka, partitions)
    position, epoch = known.log.last_epoch or (None, None)
    return GroupStatus(
        group=group,
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
    )


def range_lags(
    owners: Iterable[RangeOwner],
    progress: Mapping[TopicPartition, Progress],
    ends: Mapping[TopicPartition, int],
) -> Iterator[RangeLag]:
    """How far behind each range of each partition is, by partition, ascending.

    Args:
        owners: Who owns which key hashes.
        progress: What has been processed of each partition.
        ends: The ends of the partitions that exist.
    """
    by_partition: dict[TopicPartition, dict[HashRange, str | None]] = {tp: {} for tp in progress}
    for owner in owners:
        by_partition.setdefault(owner.partition, {})[owner.hashes] = owner.member
    for tp, members in sorted(by_partition.items()):
        members.update(dict.fromkeys(complement([*members])))
        done, end = progress.get(tp), ends.get(tp)
        for hashes, member in sorted(members.items(), key=lambda pair: pair[0]):
            position = None if done is None else done.position(hashes)
            behind = None
            if done is not None and end is not None and done.stable <= end:
                behind = lag(done, end, (hashes,))
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


def log_bounds(
    kafka: KafkaConfig,
    partitions: Iterable[TopicPartition],
    on_missing: Callable[[UnknownTopicError], object] = lambda _: None,
) -> dict[TopicPartition, tuple[int, int]]:
    """First offset and end of the partitions that exist.

    Args:
        kafka: How to reach the cluster.
        partitions: The partitions.
        on_missing: Called for each topic that does not exist.

    Raises:
        KafkaError: The cluster did not answer, or refused.
    """
    wanted = set(partitions)
    there: set[TopicPartition] = set()
    with closing(Cluster(kafka)) as cluster:
        for topic in sorted({tp.topic for tp in wanted}):
            try:
                there.update(cluster.partitions(Subscribe((topic,))))
            except UnknownTopicError as error:
                on_missing(error)
        first, end = cluster.earliest(there & wanted), cluster.latest(there & wanted)
    return {tp: (first[tp], end[tp]) for tp in sorted(first)}


def _members(table: OwnerTable, described: GroupDescription) -> Iterator[MemberStatus]:
    known = described.members or {}
    for _, member in sorted(table.members.items()):
        yield MemberStatus(member, known.get(member.member_id))
