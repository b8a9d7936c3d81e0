"""Committed offsets of a group: listed, reset, dropped from anywhere, without joining or claiming.

Guarantees: nothing is changed while a member of the group is alive, but for records that nobody can
read. What is listed is true at the
end of the log and for the primary offsets that were read before it. No group is reset to an offset
outside of a partition's log.
"""

import logging
import time
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, Self

from kshare.core.progress import TopicPartition
from kshare.errors import (
    GroupAliveError,
    KafkaError,
    KshareError,
    UnknownGroupError,
    UnknownTopicError,
)
from kshare.group.config.consumer_config import cluster_and_log
from kshare.group.config.table import LOG_SEGMENT_BYTES
from kshare.group.log.other_logs import OtherLogs
from kshare.group.log.primary import (
    OffsetAndMetadata,
    PrimaryOffsets,
    StoredOffset,
    committed_offset,
)
from kshare.group.log.topic import LogTopic, LogWriter, log_table
from kshare.group.protocol.commit_log.group_reader import GroupReader
from kshare.group.protocol.commit_log.log import GroupLog, members_seen
from kshare.group.protocol.commit_log.record_codec import LIFE_SECONDS, encode
from kshare.group.protocol.commit_log.records import Reset
from kshare.group.protocol.commit_log.start import Anchor, Primary
from kshare.group.tools.damage import await_readers, damaged_records, is_claim, topic_of
from kshare.group.tools.description import describe_group
from kshare.group.tools.reset_target import ResetTo, parse_target, reset_offsets
from kshare.kafka.cluster import Cluster
from kshare.kafka.protocol.error_codes import Kind
from kshare.options import KafkaConfig, Subscribe

__all__ = ["GroupOffsets", "GroupSnapshot", "list_offsets"]

_log = logging.getLogger("kshare.group")

_PART: Final = 10_000
"""Records that are written at once: librdkafka's queue takes 100,000."""


def list_offsets(
    group: str, config: Mapping[str, Any] | KafkaConfig
) -> dict[TopicPartition, OffsetAndMetadata]:
    """The committed offsets of a group.

    Args:
        group: Id of the group.
        config: The configuration of a consumer, as :class:`KeySharedConsumer` takes it; its
            ``group.id`` does not matter.

    Raises:
        OptionsError: The configuration cannot be used.
        CommitLogError: A record of the group cannot be read.
        KafkaError: The cluster did not answer, or refused.
    """
    with GroupOffsets(group, config) as offsets:
        return offsets.committed()


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """A snapshot of a group: the primary offsets, and the log that was read after them.

    Attributes:
        partition: The log's partition.
        topic_id: Id of the log's topic; empty if there is none.
        bounds: The first offset of the log, and its end.
        stored: The primary offsets.
        reader: Has read the log.
        read_at: When that began, in seconds of ``time.monotonic()``.
    """

    partition: TopicPartition
    topic_id: str
    bounds: tuple[int, int]
    stored: Mapping[TopicPartition, StoredOffset]
    reader: GroupReader
    read_at: float

    @property
    def log(self) -> GroupLog:
        """The state that the log describes."""
        return self.reader.log

    def committed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets of each partition."""
        found = {}
        for tp, each in sorted(self.stored.items()):
            said = self.log.of(tp)
            offset = committed_offset(each.primary, said, self.bounds, self.topic_id, each.metadata)
            if offset is not None:
                found[tp] = offset
        return found

    @property
    def has_log(self) -> bool:
        """False if nothing says that the group keeps a log: no record in it, and no anchor."""
        anchors = (each.primary.anchor for each in self.stored.values())
        return bool(self.log.end) or any(anchor is not None for anchor in anchors)

    def anchored(self, partition: TopicPartition) -> int:
        """The incarnation of a primary offset; 0 without one."""
        stored = self.stored.get(partition)
        anchor = stored.primary.anchor if stored is not None else None
        return anchor.incarnation if anchor is not None else 0

    def anchored_elsewhere(self) -> dict[TopicPartition, str]:
        """The ids of the other topics in which primary offsets are anchored."""
        anchors = {tp: stored.primary.anchor for tp, stored in sorted(self.stored.items())}
        own = {"", self.topic_id}
        return {
            tp: each.topic_id for tp, each in anchors.items() if each and each.topic_id not in own
        }


class GroupOffsets:
    """The offsets of one group. The first read is of its whole log, later ones are of what is new.

    For one thread at a time. As a context manager it closes itself.

    Args:
        group: Id of the group.
        config: The configuration of a consumer, as :class:`KeySharedConsumer` takes it; its
            ``group.id`` does not matter.
        log_topic: Name of the individual commit log's topic; None for that of ``config``.

    Raises:
        OptionsError: The configuration cannot be used.
    """

    def __init__(
        self,
        group: str,
        config: Mapping[str, Any] | KafkaConfig,
        log_topic: str | None = None,
    ) -> None:
        kafka, topic = cluster_and_log(group, config)
        log_topic = log_topic or topic
        self._kafka = kafka
        self._group = group
        self._primary = PrimaryOffsets(kafka, group)
        self._topic = LogTopic(kafka, log_topic, LOG_SEGMENT_BYTES, group)
        self._cluster = Cluster(kafka)
        self._others = OtherLogs(self._cluster, group, log_topic)
        self._table = log_table(kafka, log_topic, group)
        self._reader: GroupReader | None = None

    def committed(
        self, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets of each partition, or of some.

        Raises:
            CommitLogError: A record of the group cannot be read.
            KafkaError: The cluster did not answer, or refused.
        """
        found = self.snapshot(partitions or ()).committed()
        return found if partitions is None else {tp: found[tp] for tp in partitions if tp in found}

    def snapshot(self, partitions: Collection[TopicPartition] = ()) -> GroupSnapshot:
        """The primary offsets, of ``partitions`` in any case, and the log that was read after them.

        Raises:
            CommitLogError: A record of the group cannot be read.
            KafkaError: The cluster did not answer, or refused.
        """
        known = self._read(partitions)
        known.reader.check()
        return known

    def checked(self) -> GroupSnapshot:
        """The snapshot of a group that somebody knows, from the log that is its own.

        Raises:
            UnknownGroupError: Nobody knows the group; it may be misspelt.
            KshareError: As of :meth:`check_log`.
            CommitLogError: A record of the group cannot be read.
            KafkaError: The cluster did not answer, or refused.
        """
        known = self.snapshot()
        self.check_known(known)
        self.check_log(known)
        return known

    def reset(
        self,
        to: ResetTo | Mapping[Any, int],
        *,
        topic: str | None = None,
        is_dry_run: bool = False,
    ) -> dict[TopicPartition, int]:
        """Let the group start elsewhere; its individual commits of these partitions are void.

        Args:
            to: Where to: ``"earliest"``, ``"latest"``, ``"stable"`` (what was committed above the
                stable offsets comes again), a ``datetime`` (UTC without a time zone), a
                :class:`.ShiftBy`, or offsets by partition: ``{("orders", 0): 123}``. Unless it
                names offsets, it is for all partitions of which the group has committed anything.
            topic: Only this topic, and all of its partitions.
            is_dry_run: Whether to change nothing.

        Returns:
            The offset of each partition that was reset, or would be.

        Raises:
            GroupAliveError: A member is alive.
            ValueError: It is no target, or names what is no partition or no offset.
            KshareError: There is nothing to reset, an offset is outside of its partition's log, or
                the group's log cannot be read, or is another one.
            KafkaError: The cluster did not answer, or refused.
        """
        target = parse_target(to, topic)
        known = self.snapshot()
        self._check_dead(known.log)
        offsets = self._wanted(target, known.committed(), topic)
        self.check_log(known, offsets)
        if not is_dry_run:
            self._reset(known, offsets)
        return offsets

    def _reset(self, known: GroupSnapshot, offsets: Mapping[TopicPartition, int]) -> None:
        if not known.has_log:  # an anchor would tell its members that they had kept one
            self._store({tp: Primary(offset) for tp, offset in offsets.items()})
            return
        (partition, topic_id), _ = self._topic.find_or_make()
        resets = [
            Reset(tp, max(known.log.of(tp).incarnation, known.anchored(tp)) + 1, offset)
            for tp, offset in offsets.items()
        ]
        position = self._append([encode(self._group, reset) for reset in resets], partition)
        self._store(
            {
                each.partition: Primary(each.offset, Anchor(each.incarnation, position, topic_id))
                for each in resets
            }
        )

    def drop(self, *, topic: str | None = None, is_dry_run: bool = False) -> int:
        """Delete all records of the group from the log; the stable offsets stay.

        For a log that cannot be read any more. What had been committed above the stable offsets is
        delivered again.

        Args:
            topic: Only the records that speak of partitions of this topic.
            is_dry_run: Whether to change nothing.

        Returns:
            The number of records that were deleted.

        Raises:
            GroupAliveError: A member is alive.
            UnknownGroupError: Nobody knows the group.
            KshareError: The group's log is another one.
            KafkaError: The cluster did not answer, or refused.
        """
        known = self._read()
        self._check_dead(known.log)
        self.check_known(known)
        self.check_log(known, [tp for tp in known.stored if topic in {None, tp.topic}])
        keys = [key for key in known.reader.keys if topic in {None, topic_of(key)}]
        if is_dry_run:
            return len(keys)
        # Where the group would start: a primary offset that another tool has set counts alone.
        stable = {
            tp: Primary(each.offset, leader_epoch=each.leader_epoch)
            for tp, each in known.committed().items()
            if topic in {None, tp.topic}
        }
        self._store(stable)  # first: from an empty log, another attempt would not know them
        if keys:
            self._append([(key, None) for key in keys], known.partition)
        return len(keys)

    def drop_damaged(self, *, topic: str | None = None, is_dry_run: bool = False) -> int:
        """Delete the records of the group that cannot be read, and no others.

        Members may be alive. One that had stopped at such a record can be started again. Before a
        claim is deleted, ``claim.timeout.ms`` passes, in which each member has read that it cannot
        be read, or hands out nothing any more: who reads it only together with what deletes it
        would take it for given up.

        Args:
            topic: Only the records that speak of partitions of this topic.
            is_dry_run: Whether to change nothing.

        Returns:
            The number of records that were deleted.

        Raises:
            UnknownGroupError: Nobody knows the group.
            KafkaError: The cluster did not answer, or refused.
        """
        known = self._read()
        keys = damaged_records(known.reader, topic)
        if not keys:
            self.check_known(known)
            return 0
        if not is_dry_run and any(map(is_claim, keys)):
            await_readers(known.log)
            known = self._read()
            now = known.reader.damaged  # a member may have deleted its own
            keys = {key: offset for key, offset in keys.items() if now.get(key) == offset}
        if keys and not is_dry_run:
            self._append([(key, None) for key in keys], known.partition)
        return len(keys)

    def check_known(self, known: GroupSnapshot) -> None:
        """Refuse a group that nobody knows.

        Raises:
            UnknownGroupError: It has no offsets, no records in the log, and no members.
            KafkaError: The cluster did not answer, or refused.
        """
        if known.stored or known.log.end:
            return
        if not describe_group(self._kafka, self._group).exists:
            raise UnknownGroupError(self._group, self._topic.name)

    def check_log(self, known: GroupSnapshot, changed: Collection[TopicPartition] = ()) -> None:
        """Refuse a log that is not the group's; warn if only some offsets belong to another one.

        Args:
            known: The log, and the primary offsets.
            changed: Partitions that are about to be changed: none may belong to another log.

        Raises:
            KshareError: The log has no record of the group, or such a partition belongs to another.
            KafkaError: The cluster did not answer, or refused.
        """
        elsewhere = known.anchored_elsewhere()
        self._others.check(elsewhere, changed if known.log.end else elsewhere)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._primary.close()
        self._topic.close()
        self._cluster.close()
        self._table.close()

    # -- the log -------------------------------------------------------------------------------

    def _read(self, partitions: Collection[TopicPartition] = ()) -> GroupSnapshot:
        """The primary offsets, and then the log to its end."""
        try:
            partition, topic_id = self._topic.find()
        except UnknownTopicError:
            partition, topic_id = TopicPartition(self._topic.name, 0), ""
        for _ in range(2):  # the second time, what was written meanwhile
            read_at = time.monotonic()
            reader = self._read_log(partition)
            stored = self._primary.fetch()
            unknown = {*reader.log.partitions, *partitions} - stored.keys()
            stored |= self._primary.fetch(unknown) if unknown else {}
        bounds = self._primary.log_bounds(partition) if topic_id else (0, 0)
        return GroupSnapshot(partition, topic_id, bounds, stored, reader, read_at)

    def _read_log(self, partition: TopicPartition) -> GroupReader:
        """The state of the log, read on from the last read."""
        changes = self._table.read()
        if self._reader is None or changes.restarted:
            self._reader = GroupReader(partition, GroupLog(self._group), keeps_keys=True)
        for row in changes.rows:
            self._reader.apply(row.offset, row.key or b"", row.value)
        self._reader.settle()
        for warning in self._reader.take_warnings():
            _log.warning("%s", warning)
        return self._reader

    def _append(self, records: list[tuple[bytes, bytes | None]], partition: TopicPartition) -> int:
        """Append records, wait until brokers have them, and return the last one's offset."""
        refused: list[KafkaError] = []

        def failed(error: KafkaError, _: Kind) -> None:
            refused.append(error)

        seconds = self._kafka.api_timeout_ms / 1000
        writer = LogWriter(self._kafka, timeout_ms=self._kafka.api_timeout_ms)
        with closing(writer):
            for first in range(0, len(records), _PART):
                for key, value in records[first : first + _PART]:
                    writer.append(partition, key, value, failed)
                left = writer.flush(seconds)
                writer.serve()
                if refused:
                    raise refused[0]
                if left:
                    raise KafkaError(f"cannot write to {partition} within {seconds:g} s")
        return self._primary.log_bounds(partition)[1] - 1

    # -- the group -----------------------------------------------------------------------------

    def _check_dead(self, log: GroupLog) -> None:
        """Refuse while a member is alive, standalone or joined."""
        alive = members_seen(log, int((time.time() - LIFE_SECONDS) * 1000))
        names = [f"{name} on {each.host}" for name, each in sorted(alive.items())]
        if names := names or self._joined():
            raise GroupAliveError(
                f"group {self._group} is alive: {', '.join(names)}; stop its members first. One "
                f"that was killed counts as alive for {LIFE_SECONDS:g} s, and with subscribe for "
                "its session.timeout.ms, if that is longer"
            )

    def _joined(self) -> list[str]:
        """The members that the broker knows."""
        members = describe_group(self._kafka, self._group).members or {}
        return [f"{member.client_id} on {member.host}" for member in members.values()]

    def _wanted(
        self,
        to: ResetTo,
        known: Mapping[TopicPartition, OffsetAndMetadata],
        topic: str | None,
    ) -> dict[TopicPartition, int]:
        partitions: Collection[TopicPartition] = known
        if topic is not None and not isinstance(to, Mapping):
            partitions = self._cluster.partitions(Subscribe((topic,)))
        offsets = {tp: each.offset for tp, each in known.items()}
        wanted = reset_offsets(to, offsets, partitions, self._cluster)
        if not wanted:
            of_topic = "" if topic is None else f" of topic {topic}"
            raise KshareError(
                f"group {self._group} has committed nothing{of_topic}: there is nothing to reset. "
                'Give offsets such as {"orders": {"0": 123}}'
            )
        return wanted

    def _store(self, offsets: Mapping[TopicPartition, Primary]) -> None:
        if not offsets:
            return
        for error in self._primary.stored(self._primary.store(offsets)).values():
            if error is not None:
                raise error
