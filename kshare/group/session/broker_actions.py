"""What the owners of a session want of brokers: done, and answered in the session's thread.

::

    owner's action --> log: librdkafka writes --> refused? --+
          ^        --> offsets: an event when stored --------+--> events, taken with the lock held
          |        --> all else: a thread that asks ---------+           |
          +---------------------- the owner's next action <--------------+

Guarantees: nothing here waits for brokers in the session's thread; an answer to an action that the
owner no longer waits for is dropped. What several partitions want at a time is one question.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from kshare.cluster.cluster import Cluster
from kshare.core.progress import TopicPartition
from kshare.core.showing import shown
from kshare.errors import KafkaError, KshareError
from kshare.group.config.table import ConsumerConfig
from kshare.group.core.ownership import Ownership
from kshare.group.log.log_link import DENIED, LogLink
from kshare.group.log.other_logs import OtherLogs
from kshare.group.log.primary import PrimaryOffsets, StoredOffset
from kshare.group.protocol.actions import (
    Action,
    Append,
    Delete,
    Fence,
    FetchPrimary,
    ResolveInitial,
    Unblock,
    Write,
    WritePrimary,
)
from kshare.group.protocol.cooperator import Cooperator
from kshare.group.protocol.owner import Owner
from kshare.group.protocol.plain_owner import PlainOwner
from kshare.group.protocol.record_codec import encode, encode_key
from kshare.group.protocol.records import Key, Record
from kshare.group.protocol.start import Primary
from kshare.group.session.fencing import HiddenEnd, fence_ids
from kshare.group.session.log_follower import LogFollower
from kshare.group.session.shared import Shared
from kshare.options import KafkaConfig
from kshare.wire.protocol.background import Beside
from kshare.wire.protocol.error_codes import ErrorCode, Kind

__all__ = ["BrokerActions"]

Asker = tuple[Ownership, int]
"""An ownership that waits for an answer, with the number of its actions."""
Askers = Sequence[Asker]


class BrokerActions:
    """Does what owners want. For the session's thread.

    Args:
        config: The consumer's configuration.
        brief: How to reach the cluster, with a short time for an answer.
        shared: What the session owns.
        follower: The log; notes faults.
        now: The session's source of time.
        beside: Asks brokers, and has answers taken by the session's thread.

    Attributes:
        primary: The group's offsets.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        brief: KafkaConfig,
        shared: Shared,
        follower: LogFollower,
        now: Callable[[], float],
        beside: Beside,
    ) -> None:
        self.primary = PrimaryOffsets(brief, config.group)
        self._config = config
        self._brief = brief
        self._shared = shared
        self._follower = follower
        self._now = now
        self._beside = beside
        self._hidden_end = HiddenEnd(brief, config.group, now)

    def act(self, link: LogLink) -> None:
        """Do what owners want now."""
        self._hidden_end.look(link.partition, link.tail)
        with self._shared.changed:
            ownerships = self._shared.ownerships
            for key in ownerships.give_up():
                self.delete(link, key)
            todo = [
                (ownership, ownership.action_number, action)
                for ownership, actions in ownerships.advance(self._now())
                for action in actions
            ]
            self._shared.changed.notify_all()
        self._do(link, todo)

    def _do(self, link: LogLink, todo: Sequence[tuple[Ownership, int, Action]]) -> None:
        fetches: list[Asker] = []
        initials: list[Asker] = []
        fences: dict[frozenset[str], list[Asker]] = {}
        unblocked: set[frozenset[str]] = set()
        offsets: dict[TopicPartition, tuple[Primary, Asker]] = {}
        for ownership, number, action in todo:
            match action:
                case FetchPrimary():
                    fetches.append((ownership, number))
                case ResolveInitial():
                    initials.append((ownership, number))
                case Fence(ids):
                    fences.setdefault(ids, []).append((ownership, number))
                case Unblock(ids):
                    unblocked.add(ids)
                case WritePrimary(offset, anchor, leader_epoch):
                    primary = Primary(offset, anchor, leader_epoch)
                    offsets[ownership.owner.partition] = (primary, (ownership, number))
                case _:
                    self._write(link, ownership, number, action)
        for ids in unblocked:
            self.unblock(ids)
        for ids, fencing in fences.items():
            fenced = partial(self._fence, ids)
            self._ask(fenced, lambda _, each: each.owner.former_fenced(), fencing)
        if fetches:
            self._fetch(fetches, link.partition, link.topic_id)
        if initials:
            self._resolve(initials)
        if offsets:
            self._store(offsets)

    def _write(
        self, link: LogLink, ownership: Ownership, number: int, action: Write | Delete | Append
    ) -> None:
        match action:
            case Write(records):
                failed = partial(self._not_written, link, ownership, number)
                for record in records:
                    link.writer.append(link.partition, *encode(self._config.group, record), failed)
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
            self._follower.note(error)

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
            self._follower.note(error)
            if isinstance(ownership.owner, Cooperator):
                ownership.owner.not_appended(key)

        value = None if record is None else encode(self._config.group, record)[1]
        link.writer.append(link.partition, encode_key(self._config.group, key), value, failed)

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

    def _fetch(self, askers: Askers, log: TopicPartition, topic_id: str) -> None:
        partitions = [ownership.owner.partition for ownership, _ in askers]

        def work() -> tuple[dict[TopicPartition, StoredOffset], tuple[int, int]]:
            stored, bounds = self.primary.fetch(partitions), self.primary.log_bounds(log)
            self._check_log(log.topic, topic_id, stored)
            return stored, bounds

        def read(
            answer: tuple[dict[TopicPartition, StoredOffset], tuple[int, int]], each: Ownership
        ) -> None:
            stored = answer[0].get(each.owner.partition)
            first, end = answer[1]
            each.owner.primary_read(stored.primary if stored else None, end, first)

        self._ask(work, read, askers)

    def _resolve(self, askers: Askers) -> None:
        partitions = [ownership.owner.partition for ownership, _ in askers]

        def found(answers: dict[TopicPartition, int | KafkaError], each: Ownership) -> None:
            answer = answers[each.owner.partition]
            if isinstance(answer, KafkaError):
                self._failed([(each, each.action_number)], answer)
            else:
                each.owner.initial_found(answer)

        self._ask(
            lambda: self.primary.initial(partitions, self._config.offset_reset), found, askers
        )

    def _store(self, offsets: dict[TopicPartition, tuple[Primary, Asker]]) -> None:
        member = self._shared.member
        answer = self.primary.store(
            {tp: primary for tp, (primary, _) in offsets.items()},
            None if member is None else member.commit,
        )

        def stored() -> None:
            outcome: dict[TopicPartition, KafkaError | None]
            try:
                outcome = self.primary.stored(answer)
            except KafkaError as refusal:
                outcome = dict.fromkeys(offsets, refusal)
            for partition, error in outcome.items():
                ownership, number = offsets[partition][1]
                if error is not None and not self._is_needless(ownership.owner, error):
                    self._failed([(ownership, number)], error)
                elif ownership.waits_for(number):
                    ownership.owner.primary_written()

        answer.add_done_callback(lambda _: self._beside.post(stored))

    def _is_needless(self, owner: Owner, error: KafkaError) -> bool:
        """True if a primary offset that is refused need not be tried again.

        That is amid a rebalance as the session closes, if the log says all and the next owner reads
        it: without an epoch, that may be a plain consumer.
        """
        is_said = owner.claim.epoch is not None and not isinstance(owner, PlainOwner)
        is_amid_rebalance = error.code == ErrorCode.REBALANCE_IN_PROGRESS
        is_late = is_amid_rebalance and self._now() >= self._shared.primary_by
        if is_said and is_late:
            said = f"{owner.partition}: {error}; what is processed is in the log"
            self._shared.notices.append(said)
        return is_said and is_late

    def _failed(self, askers: Askers, error: KshareError) -> None:
        if isinstance(error, DENIED) or not isinstance(error, KafkaError):
            raise error
        self._follower.note(error)
        for ownership, number in askers:
            ownership.failed(number, str(error), self._now())

    def _ask(
        self,
        work: Callable[[], Any],
        done: Callable[[Any, Ownership], None],
        askers: Askers,
    ) -> None:
        """Ask brokers in a thread of its own, and take the answer in the session's."""

        def answered(answer: Any) -> None:
            for ownership, number in askers:
                if ownership.waits_for(number):
                    done(answer, ownership)

        def failed(error: Exception) -> None:
            why = error
            if not isinstance(error, KshareError):
                why = KshareError(
                    f"group {self._config.group}: asking brokers failed: {shown(error)}"
                )
                why.__cause__ = error
            assert isinstance(why, KshareError)
            self._failed(askers, why)

        self._beside.begin(work, f"kshare {self._config.group} asks", answered, failed)

    def note(self, error: KafkaError) -> None:
        """Keep what went wrong last, for the errors of those who wait."""
        self._follower.note(error)

    def close(self) -> None:
        """Close the connections."""
        self.primary.close()
