"""What a consumer does as a member of its group: callbacks, in the thread that polls.

::

    a change --> on_revoked --> commit ----------------> claim --> tell the group --> on_assigned
                                (what stays is read on)        the claim is in place --> on_started
    a loss   --> on_lost ----------------------> claim nothing --> join again
"""

import logging
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar, overload

from confluent_kafka import TopicPartition as RdTopicPartition

from kshare.core.hashing import NO_HASHES, HashRange, KeyRanges
from kshare.core.listing import join_names
from kshare.core.progress import TopicPartition
from kshare.errors import ConsumerClosedError
from kshare.group.assignments import as_assigned
from kshare.group.consumer.call_state import raise_first
from kshare.group.consumer.topic_lookup import SubscribedTopics, TopicPatterns
from kshare.group.membership.handle import MemberHandle
from kshare.group.protocol.membership.holdings import Change, assigned_minus
from kshare.group.protocol.membership.subscription import Assigned
from kshare.options import KafkaConfig

__all__ = ["Callbacks", "Host", "Listener", "Subscriber", "partitions_only"]

_log = logging.getLogger("kshare.group")

Listener: TypeAlias = Callable[[Mapping[TopicPartition, tuple[HashRange, ...]]], None]
"""Takes key hashes by partition: only what has changed; an empty tuple is the whole partition."""

_Consumer = TypeVar("_Consumer")


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Callbacks of the user.

    Attributes:
        on_assigned: What is gained.
        on_revoked: What is given up.
        on_lost: What is lost; None to tell ``on_revoked``.
        on_started: What was gained, when its claim is in place.
    """

    on_assigned: Listener | None = None
    on_revoked: Listener | None = None
    on_lost: Listener | None = None
    on_started: Listener | None = None


class Host(Protocol):
    """The used part of the consumer: see :class:`~kshare.group.consumer.reading.Reading`.

    That one imports the receiver, which imports this module.
    """

    def commit_before_revocation(self) -> "Future[Any] | None":
        """Begin to commit what is processed, with ``enable.auto.commit``; None if that is done."""

    def keep(self, assignment: Assigned) -> None:
        """Read on these key hashes, which stay, and no others."""

    def is_fenced(self) -> bool:
        """True if others may have what it owns, though its member does not know it yet."""

    def is_settled(self) -> bool:
        """True if what it reads is claimed, so that what it processes can be committed."""

    def wake(self) -> None:
        """Look at the subscriber again."""

    def take_over(self, assignment: Assigned, epoch: tuple[int, str] | None) -> None:
        """Claim these key hashes and no others, and read them."""


@dataclass(frozen=True, slots=True)
class _Handover:
    """A change whose revoked hashes are being committed.

    Attributes:
        change: The change.
        commit: Done when they are committed.
    """

    change: Change
    commit: "Future[Any]"


class Subscriber:
    """A consumer's membership. For the thread that polls.

    Args:
        member: The member of the group.
        host: The consumer.
        group: Its ``group.id``.

    Attributes:
        callbacks: Callbacks of the user.
        is_in_callback: Whether one may be running. Then a change is half done, or it is the end.
    """

    def __init__(self, member: MemberHandle, host: Host, group: str) -> None:
        self.member = member
        self._group = group
        self.callbacks = Callbacks()
        self.is_in_callback = False
        self._host = host
        self._under_way: _Handover | None = None
        self._step: Callable[[], None] | None = None  # that was interrupted, and is to be done
        self._revoked: Assigned = {}  # was revoked or lost, by the change that is not applied yet
        self._faults: list[Exception] = []  # of callbacks, of that change
        self._starting: dict[TopicPartition, KeyRanges] = {}  # gained, not in place
        self._patterns: TopicPatterns | None = None

    @property
    def has_work(self) -> bool:
        """True if :meth:`follow` has something to do now."""
        under_way = self._under_way
        if self._step is not None:
            return True
        if under_way is None:
            is_due = self.member.is_lost or self._host.is_settled()
            return is_due and self.member.has_change
        return under_way.commit.done() or self.member.is_lost

    @property
    def starting(self) -> Assigned:
        """What was gained, until its claim is in place and ``on_started`` has returned."""
        return self._starting

    def subscribe(self, topics: SubscribedTopics, callbacks: Callbacks, kafka: KafkaConfig) -> None:
        """Subscribe to topics, in place of those before.

        Args:
            topics: The topics; those that patterns match are looked for in a thread of their own.
            callbacks: What is called from now on.
            kafka: How to reach the cluster.
        """
        self.stop_looking()
        self.callbacks = callbacks
        if not topics.patterns:
            self.member.subscribe(topics.names)
            return
        self._patterns = TopicPatterns(kafka, self.member.subscribe, self.member.lock)
        self._patterns.follow(topics)

    def stop_looking(self) -> None:
        """Look for no topics any more."""
        if self._patterns is not None:
            self._patterns.stop()
            self._patterns = None

    def follow(self) -> None:
        """Do what the group wants. What an error or an interrupt ends is done by the next call.

        Raises:
            ConsumerClosedError: The consumer was closed meanwhile.
            Exception: What a callback has raised; all else is done before.
            KshareError: What is assigned cannot be claimed.
        """
        self.is_in_callback = True
        try:
            under_way = self._under_way
            if under_way is not None:
                self._step = partial(self._finish, under_way.change)
                self._under_way = None
            if self._step is None:
                self._step = self._take
            self._step()
        except ConsumerClosedError:
            self._raise_faults()
            raise
        finally:
            self.is_in_callback = False

    def _take(self) -> None:
        change = self.member.take()
        if change is None:
            self._step = None
        else:
            self._begin(change)

    def _begin(self, change: Change) -> None:
        self._step = partial(self._begin, change)
        self._faults = []
        self._starting = dict(assigned_minus(self._starting, change.revoked))
        if change.revoked:
            self._log_change(change.revoked, "lost" if change.is_lost else "revoked")
            self._call(self._loser(is_lost=change.is_lost), change.revoked)
            self._revoked = change.revoked
        commit = None
        owned = self.member.owned()
        if not change.is_lost and owned:  # also if hashes are added: their claim is another one
            commit = self._host.commit_before_revocation()
        if commit is None:
            self._finish(change)
            return
        self._host.keep(assigned_minus(owned, change.revoked))
        self._under_way, self._step = _Handover(change, commit), None
        commit.add_done_callback(lambda _: self._host.wake())

    def _loser(self, *, is_lost: bool) -> Listener | None:
        """The callback for hashes that go."""
        lost = self.callbacks.on_lost if is_lost else None
        return self.callbacks.on_revoked if lost is None else lost

    def _call(self, listener: Listener | None, changed: Assigned) -> None:
        if listener is None:
            return
        try:
            listener(as_assigned(changed))
        except Exception as error:  # raised by poll, once the rebalance is done
            self._faults.append(error)

    def _raise_faults(self) -> None:
        faults, self._faults = self._faults, []
        raise_first(faults)

    def _finish(self, change: Change) -> None:
        self._step = partial(self._finish, change)
        epoch = None if change.epoch is None else (change.epoch, change.topic_id)
        self._host.take_over(change.assigned, epoch)
        for tp, hashes in change.gained.items():
            self._starting[tp] = self._starting.get(tp, NO_HASHES) | hashes
        self.member.applied()
        self._step, self._revoked = None, {}
        if change.gained:
            self._log_change(change.gained, "assigned")
        on_assigned = self.callbacks.on_assigned
        gained = change.gained
        if isinstance(on_assigned, _PartitionsOnly):
            stays = {tp: change.assigned[tp] for tp in change.revoked if tp in change.assigned}
            gained = {**gained, **stays}
        if gained:
            self._call(on_assigned, gained)
        self._raise_faults()

    def started(self, is_in_place: Callable[[TopicPartition], bool]) -> None:
        """Tell of claims that are in place now; their records come after that.

        Args:
            is_in_place: Whether all that is assigned of a partition is claimed.

        Raises:
            Exception: What the callback has raised.
        """
        if not self._starting:
            return
        started = {tp: hashes for tp, hashes in self._starting.items() if is_in_place(tp)}
        if not started:
            return
        if self.callbacks.on_started is not None:
            self.is_in_callback = True
            try:
                self.callbacks.on_started(as_assigned(started))  # if it fails, it is told again
            finally:
                self.is_in_callback = False
        for topic_partition in started:
            self._starting.pop(topic_partition, None)

    def _log_change(self, changed: Assigned, what: str) -> None:
        """Write a line for people, as Java's consumer does."""
        level, why = logging.INFO, ""
        if what == "lost":
            level = logging.WARNING
            why = "; others may have them. What was not committed is delivered again"
        names = (
            f"{tp} {' '.join(map(str, ranges))}" if ranges else str(tp)
            for tp, ranges in sorted(as_assigned(changed).items())
        )
        _log.log(level, "group %s: %s: %s%s", self._group, what, join_names(names), why)

    def revoke_all(self) -> None:
        """The end: what is owned is given up next. Callbacks hear of no hashes twice."""
        all_owned = self.member.owned()
        owned, self._revoked = assigned_minus(all_owned, self._revoked), all_owned
        listener = self._loser(is_lost=self.member.is_lost or self._host.is_fenced())
        if owned and listener is not None:
            self.is_in_callback = True
            try:
                listener(as_assigned(owned))
            finally:
                self.is_in_callback = False


@overload
def partitions_only(listener: Callable[[list[TopicPartition]], None]) -> Listener: ...


@overload
def partitions_only(
    listener: Callable[[_Consumer, list[RdTopicPartition]], None], consumer: _Consumer
) -> Listener: ...


def partitions_only(listener: Callable[..., None], consumer: Any = None) -> Listener:
    """A listener that takes partitions, for code that knows no key ranges.

    A partition is among them, too, if only some of its key hashes have changed. If some are revoked
    and others stay, it is assigned again after that.

    Args:
        listener: Called with the partitions; or with ``consumer`` and partitions of the class
            ``confluent_kafka.TopicPartition``, as confluent_kafka calls its listeners.
        consumer: What the listener is called with; None for one that takes partitions alone.
    """
    return _PartitionsOnly(listener, consumer)


@dataclass(frozen=True, slots=True)
class _PartitionsOnly:
    """A listener that knows no key ranges."""

    listener: Callable[..., None]
    consumer: Any

    def __call__(self, changed: Collection[TopicPartition]) -> None:
        partitions = sorted(changed)
        if self.consumer is None:
            self.listener(partitions)
        else:
            self.listener(self.consumer, [RdTopicPartition(*each) for each in partitions])
