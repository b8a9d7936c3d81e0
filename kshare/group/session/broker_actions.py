"""What the owners of a session want of brokers where the group keeps a log: offsets, and the log.

::

    owner's action --> log: librdkafka writes --> refused? --+--> events, taken with the lock held
          ^        --> offsets: :mod:`.offset_actions` ------+           |
          +---------------------- the owner's next action <--------------+

Guarantees: nothing here waits for brokers in the session's thread.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial

from kshare.core.progress import TopicPartition
from kshare.errors import KafkaError
from kshare.group.config.table import ConsumerConfig
from kshare.group.core.ownership import Ownership
from kshare.group.log.log_link import LogLink
from kshare.group.log.other_logs import OtherLogs
from kshare.group.log.primary import StoredOffset
from kshare.group.protocol.commit_log.record_codec import encode, encode_key
from kshare.group.protocol.commit_log.records import Key, Record
from kshare.group.protocol.owners.actions import Append, Delete, Fence, Unblock, Write
from kshare.group.session.fencing import HiddenEnd, fence_ids
from kshare.group.session.offset_actions import Asker, Fetched, OffsetActions, Wanted
from kshare.group.session.shared import Shared
from kshare.kafka.cluster import Cluster
from kshare.kafka.protocol.background import Beside
from kshare.kafka.protocol.error_codes import Kind
from kshare.options import KafkaConfig

__all__ = ["BrokerActions"]


class BrokerActions(OffsetActions):
    """Does what owners want in a group that keeps a log. For the session's thread.

    Args:
        config: The consumer's configuration.
        brief: How to reach the cluster, with a short time for an answer.
        shared: What the session owns.
        now: The session's source of time.
        beside: Asks brokers, and has answers taken by the session's thread.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        brief: KafkaConfig,
        shared: Shared,
        now: Callable[[], float],
        beside: Beside,
    ) -> None:
        super().__init__(config, brief, shared, now, beside)
        self._hidden_end = HiddenEnd(brief, config.group, now)

    def act(self, link: LogLink) -> None:
        """Do what owners want now."""
        self._hidden_end.look(link.partition, link.tail)
        with self._shared.changed:
            for key in self._shared.ownerships.give_up():
                self.delete(link, key)
            todo = self._wanted()
        self._do(link, self._do_offsets(todo, partial(self._fetch_with_bounds, link)))

    def _do(self, link: LogLink, todo: Sequence[Wanted]) -> None:
        fences: dict[frozenset[str], list[Asker]] = {}
        unblocked: set[frozenset[str]] = set()
        for ownership, number, action in todo:
            match action:
                case Fence(ids):
                    fences.setdefault(ids, []).append((ownership, number))
                case Unblock(ids):
                    unblocked.add(ids)
                case Write() | Delete() | Append():
                    self._write(link, ownership, number, action)
        for ids in unblocked:
            self.unblock(ids)
        for ids, fencing in fences.items():
            fenced = partial(self._fence, ids)
            self._ask(fenced, lambda _, each: each.owner.former_fenced(), fencing)

    def _fetch_with_bounds(self, link: LogLink, partitions: Sequence[TopicPartition]) -> Fetched:
        stored = self.primary.fetch(partitions)
        bounds = self.primary.log_bounds(link.partition)
        self._check_log(link.partition.topic, link.topic_id, stored)
        return stored, bounds

    def _write(
        self, link: LogLink, ownership: Ownership, number: int, action: Write | Delete | Append
    ) -> None:
        match action:
            case Write(records):
                failed = partial(self._not_written, link, ownership, number)
                written = partial(ownership.written, number)
                rows = [encode(self._config.group, record) for record in records]
                for row in rows[:-1]:
                    link.writer.append(link.partition, *row, failed)
                # Who writes several waits for all: the last one is behind the others.
                for row in rows[-1:]:
                    link.writer.append(link.partition, *row, failed, written)
            case Delete(keys):
                for key in keys:
                    self.delete(link, key)
            case Append(key, record):
                self._append(link, ownership, key, record)

    def unblock(self, transactional_ids: frozenset[str]) -> None:
        """Abort the transactions of some ids, which may hide records; nobody waits for it."""
        self._ask(partial(self._fence, transactional_ids), lambda *_: None, ())

    def _fence(self, transactional_ids: frozenset[str]) -> None:
        with self._shared.changed:
            self._shared.own_fences += self._config.transactional_id in transactional_ids
        fence_ids(self._config.kafka, transactional_ids)

    def delete(self, link: LogLink, key: Key) -> None:
        """Write a tombstone; a fault is only noted, as it is written again with a later commit."""

        def ignored(error: KafkaError, _: Kind) -> None:
            self.note(error)

        link.writer.append(link.partition, encode_key(self._config.group, key), None, ignored)

    def _not_written(
        self, link: LogLink, ownership: Ownership, number: int, error: KafkaError, kind: Kind
    ) -> None:
        link.not_taken(error, kind)
        if link.denied is None:
            self._failed([(ownership, number)], error)

    def _append(self, link: LogLink, ownership: Ownership, key: Key, record: Record | None) -> None:
        def failed(error: KafkaError, kind: Kind) -> None:
            link.not_taken(error, kind)
            self.note(error)
            ownership.owner.not_appended(key)

        def written(position: int) -> None:
            ownership.owner.appended(key, position)

        value = None if record is None else encode(self._config.group, record)[1]
        row = encode_key(self._config.group, key), value
        link.writer.append(link.partition, *row, failed, written)

    def _check_log(
        self, name: str, topic_id: str, stored: Mapping[TopicPartition, StoredOffset]
    ) -> None:
        """Refuse a log that is not the one in which the group's offsets are anchored."""
        anchors = {tp: each.primary.anchor for tp, each in stored.items()}
        own = {"", topic_id}
        elsewhere = {
            tp: anchor.topic_id
            for tp, anchor in anchors.items()
            if anchor is not None and topic_id and anchor.topic_id not in own
        }
        if elsewhere:
            with closing(Cluster(self._brief)) as cluster:
                OtherLogs(cluster, self._config.group, name).refuse_member(elsewhere)
