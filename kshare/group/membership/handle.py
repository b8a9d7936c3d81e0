"""A member of a group, as other threads see it: they ask it, and tell it what they have done.

Who is who::

    MemberHandle (locks) > MemberDialogue (sends, hears) > GroupMember (times) > Membership (state)

The session's thread talks to the coordinator (:mod:`.dialogue`). Callbacks of users are never
called there: the thread that polls takes what has changed.
"""

import socket
import threading
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from kshare.core.progress import TopicPartition
from kshare.core.waits import Wait
from kshare.errors import AuthorizationError, KshareError, PolicyError
from kshare.group.config.shared_settings import shared_settings
from kshare.group.config.table import ConsumerConfig
from kshare.group.core.member import GroupMember, MemberSchedule
from kshare.group.core.right import Liveness
from kshare.group.core.waiting import member_waits
from kshare.group.membership.dialogue import MemberDialogue
from kshare.group.membership.group_planner import WholeTopics
from kshare.group.membership.leader import GroupLeader, WriteEpoch
from kshare.group.protocol.commit_log.consumer_protocol import COMPRESSED
from kshare.group.protocol.membership.holdings import Change
from kshare.group.protocol.membership.membership_state import Membership, State
from kshare.group.protocol.membership.report import MemberReport
from kshare.group.protocol.membership.subscription import Subscription
from kshare.kafka.committed import CommittedOffsets
from kshare.kafka.policies import RANGE_FETCH
from kshare.kafka.protocol.background import Beside
from kshare.kafka.protocol.retry import boot_time, retry_backoff

__all__ = ["MemberHandle", "schedule_of"]

_JOIN_LAPSE: Final = 5.0  # after the time that a rebalance may take; that of Java's client


class MemberHandle:
    """A member of a group. Methods may be called from any thread, but for those of the session's.

    Args:
        config: The consumer's configuration.
        name: Id of the member's session.
        lock: The session's; guards the member, and tells who waits for its end.
        beside: Does what waits for brokers.
        write_epoch: Writes an epoch into the log.
        on_change: Called when there is something to take. It must not block.
        wake: Wakes the session's thread.
        whole_topics: Says which topics' partitions are not to be shared, by policies.
        now: Source of time; suspension counts.

    Attributes:
        lock: The session's.
        is_closing: Whether it is to leave the group.
        is_closed: Whether it has left, or has ended by a fault: nothing more is sent.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        name: str,
        lock: threading.Condition,
        beside: Beside,
        write_epoch: WriteEpoch,
        on_change: Callable[[], None],
        wake: Callable[[], None],
        whole_topics: WholeTopics = lambda _: {},
        *,
        now: Callable[[], float] = boot_time,
    ) -> None:
        host = config.application_server or socket.gethostname()
        said = Subscription(
            name,
            (),
            config.individual,
            host=host,
            rack=config.kafka.client_rack or None,
            ordered=config.lease_records is None,
            report=config.report,
            reads=COMPRESSED,
            instance=config.instance_host or "",
            settings=shared_settings(config),
        )
        self.is_closing = self.is_closed = False
        self.lock = lock
        self._on_change = on_change
        self._wake = wake
        self._now = now
        is_static = config.instance_id is not None
        membership = Membership(config.group, said, is_static=is_static, protocols=config.protocols)
        liveness = Liveness(config.session_timeout_ms / 1000, config.max_poll_interval_ms / 1000)
        self._member = GroupMember(membership, liveness, schedule_of(config))
        leader = GroupLeader(config, self._member, beside, write_epoch, whole_topics, now)
        self._dialogue = MemberDialogue(config, self._member, leader, wake, now)
        self._had_change = False  # when the session's thread looked last

    # -- for the thread that polls -----------------------------------------------------------

    def subscribe(self, topics: tuple[str, ...]) -> None:
        """Join the group, or join it again with other topics."""
        with self.lock:
            if not self._has_subscribed:
                self._member.polled(self._now())
            self._member.membership.subscribe(topics)
        self._wake()

    @property
    def _has_subscribed(self) -> bool:
        return bool(self._member.membership.said.topics)

    def report(self, measured: Callable[[], MemberReport]) -> None:
        """From now on, report what this returns whenever the member joins."""
        self._member.membership.measured = measured

    def polled(self) -> None:
        """Somebody polls."""
        self._member.polled(self._now())

    @property
    def has_change(self) -> bool:
        """True if :meth:`take` has something to say."""
        return self._member.membership.has_change

    def take(self) -> Change | None:
        """What has changed; call :meth:`applied` when it is done. Until then it is said again."""
        with self.lock:
            self._member.membership.take()
            return self._member.membership.holdings.change

    def applied(self) -> None:
        """What was taken is done. An interrupt may have this said twice."""
        with self.lock:
            if self._member.membership.holdings.change is not None:
                self._member.membership.applied()
            self._had_change = False
        self._wake()

    def fenced(self) -> None:
        """Another consumer has claimed what this member owns: all is lost, and it joins again."""
        with self.lock:
            self._member.fenced()
        self._on_change()
        self._wake()

    @property
    def is_lost(self) -> bool:
        """True if what it owned is lost, until :meth:`applied` has given it up."""
        return self._member.membership.is_lost

    @property
    def is_member(self) -> bool:
        """True if it has joined the group, and is not lost."""
        return self._member.membership.generation >= 0 and not self._member.membership.is_lost

    @property
    def leads(self) -> bool:
        """True if it leads the group."""
        return self._member.membership.leads

    @property
    def fault(self) -> KshareError | None:
        """Why it cannot be a member; None if it can."""
        return self._member.membership.fault

    @property
    def poll_interval(self) -> float:
        """Seconds without a poll after which it leaves (``max.poll.interval.ms``)."""
        return self._member.liveness.rebalance_seconds

    @property
    def seconds_since_poll(self) -> float:
        """Seconds since somebody has polled, or subscribed."""
        return self._now() - self._member.liveness.polled_at

    def check(self) -> None:
        """Raise the fault that keeps it out of the group, once what it owned was taken.

        Raises:
            AuthorizationError: The leader may not describe topics; said once for each assignment.
            PolicyError: A policy keeps topics from all members; said once for each assignment.
            KshareError: It cannot be a member.
        """
        membership = self._member.membership
        if membership.has_change:
            return
        if membership.fault is not None:
            raise membership.fault.with_traceback(None)  # each poll raises it
        with self.lock:
            denied, membership.denied = membership.denied, ()
            if not denied:  # one at a time: the next call says the other
                forbidden, membership.forbidden = membership.forbidden, ()
        if denied:
            raise AuthorizationError(
                f"group {membership.group}: the group's leader is not authorized to describe topic "
                f"{', '.join(denied)}, so nobody is assigned any of it: grant its principal "
                "Describe on the topic. All other topics go on",
                topic=denied[0],
            )
        if forbidden:
            raise forbidden_fault(membership.group, forbidden)

    def owned(self) -> dict[TopicPartition, Any]:
        """What the member owns."""
        with self.lock:
            return dict(self._member.membership.owned)

    @property
    def liveness(self) -> Liveness:
        """Until when records may be handed out, as its coordinator counts."""
        return self._member.liveness

    @property
    def epoch(self) -> tuple[int, str] | None:
        """The last epoch in which it is a member, and the id of the log's topic."""
        return self._member.membership.epoch

    @property
    def generation(self) -> int | None:
        """The group's generation whose assignment it has; None while it joins."""
        membership = self._member.membership
        return membership.generation if membership.state is State.STABLE else None

    @property
    def is_static(self) -> bool:
        """True if it has a ``group.instance.id``."""
        return self._member.membership.is_static

    def commit_nothing(self) -> None:
        """Nobody waits for its end any more: fail what is to be committed. It goes on leaving."""
        with self.lock:
            self._dialogue.refuse_commits()

    # -- for the session's thread ------------------------------------------------------------

    def waits(self) -> Mapping[Hashable, Wait]:
        """The waits of the member; none before it subscribes. The lock is held by the caller."""
        is_silent = self.is_closed or self.is_closing or not self._has_subscribed
        return {} if is_silent else member_waits(self._member)

    def commit(self, offsets: CommittedOffsets) -> "Future[Any]":
        """Commit primary offsets as a member; the future has an error or None by partition.

        The lock is not needed: only this thread notes commits and ends the member, and its end
        answers what was noted while :meth:`commit_nothing` refused the others.
        """
        return self._dialogue.commits.add(offsets)

    def rebalance(self) -> None:
        """The group has to be assigned again: epochs of before count no more.

        The lock is held by the caller.
        """
        self._member.membership.rebalance()

    def session_ended(self, fault: KshareError) -> None:
        """Its session has ended by a fault: it leaves, so that others go on with what it owns.

        The lock is held by the caller.
        """
        self._member.end(fault)

    @property
    def sockets(self) -> dict[int, int]:
        """What each socket is to be ready for, by its descriptor; see :class:`.Waker`.

        The lock is not needed: only this thread opens and closes them.
        """
        return self._dialogue.sockets

    @property
    def seconds_until_due(self) -> float:
        """Seconds until there is something to do, if nothing happens before.

        The lock is not needed: who changes that wakes the thread.
        """
        is_silent = self.is_closed or not self._has_subscribed
        return float("inf") if is_silent else self._dialogue.seconds_until_due

    def step(self, ready: Collection[int]) -> None:
        """Hear answers, and say what is due. Never waits. Takes the lock.

        Args:
            ready: Which of :attr:`sockets` are ready.
        """
        with self.lock:
            if self.is_closed or not (self._has_subscribed or self.is_closing):
                return
            if self.is_closing:
                self._dialogue.leave()
            self._dialogue.step(ready)
            if self._dialogue.has_ended:
                self.end()
            membership, had_change = self._member.membership, self._had_change
            self._had_change = membership.has_change
            has_news = (
                membership.denied
                or membership.forbidden
                or (membership.has_change and not had_change)
                or self._member.has_lost
            )
            self._member.has_lost = False
        self._dialogue.log_notices()
        if has_news or self.is_closed:
            self._on_change()

    def end(self) -> None:
        """Send nothing more, and notify whoever waits for the end. Takes the lock."""
        with self.lock:
            self._member.liveness.lost()
            self._dialogue.close()
            self.is_closed = True
            self.lock.notify_all()


def forbidden_fault(group: str, forbidden: Sequence[tuple[str, str]]) -> PolicyError:
    """The error of topics that policies keep from a group whose members keep no order.

    Args:
        group: Id of the group.
        forbidden: The topics, each with its policy; at least one.
    """
    topic, policy = forbidden[0]
    listed = ", ".join(f"{name} ({by})" for name, by in forbidden)
    return PolicyError(
        f"group {group}: members with consumption.order=none share partitions, and policies that "
        f"are false do not accept that, so nobody is assigned any of topic {listed}: use "
        "consumption.order=key, or have kshare policy set them to true. All other topics go on",
        policy=policy,
        topic=topic if policy == RANGE_FETCH else None,
    )


def schedule_of(config: ConsumerConfig) -> MemberSchedule:
    """When a member of this configuration says what."""
    kafka = config.kafka
    rebalance = config.max_poll_interval_ms / 1000 + _JOIN_LAPSE
    return MemberSchedule(
        retry_backoff(kafka),
        config.heartbeat_interval_ms / 1000,
        max(rebalance, kafka.request_timeout_ms / 1000),
    )
