"""A member of a group towards its coordinator: events in, requests out.

::

    polled, subscribed, fenced, time --> request --> the driver sends it --> its answer --+
         ^                                                                               |
         +-- what it owns changes: `Membership`, until when it delivers: `Liveness` <----+

A member that has a request to send is asked for the next one until there is none; of heartbeats one
is under way at most, and all else goes on beside it. The driver keeps sockets, clocks and threads.
So the explorers run what decides.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

from kshare.core.backoff import Backoff
from kshare.core.progress import TopicPartition
from kshare.errors import KafkaError, KshareError
from kshare.group.core.right import Liveness
from kshare.group.protocol.membership.membership_state import Membership, State
from kshare.group.protocol.membership.requests import (
    Code,
    FindCoordinator,
    Heartbeat,
    Join,
    Leave,
    PlanRequest,
    Request,
    Sync,
)

__all__ = ["GroupMember", "Level", "MemberSchedule", "Notice"]

_SHORTEST_HEARTBEAT: Final = 0.1


@dataclass(slots=True)
class MemberSchedule:
    """When a member has done what, and when to do it next. All times are in seconds.

    Attributes:
        pauses: Between attempts, longer each time.
        heartbeat_interval: Time between heartbeats (``heartbeat.interval.ms``).
        join_timeout: After this time, JoinGroup or SyncGroup counts as not answered.
        asked_at: When JoinGroup or SyncGroup was sent last.
        synced_at: When SyncGroup was answered last.
        heartbeat_at: When the next heartbeat is due.
        retry_at: Before this time nothing is asked: something has failed.
        trouble: What has failed since something worked last; empty if nothing has.
    """

    pauses: Backoff
    heartbeat_interval: float
    join_timeout: float
    asked_at: float = 0.0
    synced_at: float = 0.0
    heartbeat_at: float = 0.0
    retry_at: float = 0.0
    trouble: str = ""

    def pause(self, now: float) -> None:
        """Something has failed: do nothing for a while, longer each time."""
        self.retry_at = now + self.pauses.pause()

    def answered(self) -> None:
        """The coordinator has answered."""
        self.pauses.reset()

    def works(self) -> None:
        """It is a member, as the coordinator says."""
        self.trouble = ""

    def joined(self) -> None:
        """JoinGroup was answered: a heartbeat is due."""
        self.heartbeat_at = 0.0

    def synced(self, now: float, *, awaits_round: bool) -> None:
        """SyncGroup was answered; perhaps another round of the rebalance is to follow."""
        self.synced_at = now
        self.works()
        if awaits_round:
            self.heartbeat_at = now + _SHORTEST_HEARTBEAT

    def take_heartbeat(self, now: float, *, awaits_round: bool) -> bool:
        """True if a heartbeat is due; if so, when the next one is.

        They are close together while another round of a rebalance is to follow, as a heartbeat
        says that it has begun.
        """
        if now < self.heartbeat_at:
            return False
        interval = self.heartbeat_interval
        if awaits_round:
            interval = min(interval, max(_SHORTEST_HEARTBEAT, (now - self.synced_at) / 10))
        self.heartbeat_at = now + interval
        return True

    def waits_long(self, now: float) -> bool:
        """True if what was asked is not answered within the time of a heartbeat."""
        return now - self.asked_at >= self.heartbeat_interval

    def is_overdue(self, now: float) -> bool:
        """True if what was asked is not answered in time, and has to be asked again."""
        return now - self.asked_at >= self.join_timeout


_MOVED: Final = {Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE}
_ORDINARY: Final = {Code.MEMBER_ID_REQUIRED, Code.REBALANCE_IN_PROGRESS}
"""Refusals that belong to joining: the next attempt is made at once."""
_RECORD_BYTES: Final = 800_000
"""Brokers take 1 MB, unless configured otherwise; what they add is not counted."""


class Level(IntEnum):
    """Severity of a log line: the numbers of :mod:`logging`."""

    INFO = 20
    WARNING = 30
    ERROR = 40


class Notice(NamedTuple):
    """Something to be logged.

    Attributes:
        level: Its severity.
        text: What is said.
        cause: The error whose traceback is to be seen; None for none.
    """

    level: Level
    text: str
    cause: BaseException | None = None


@dataclass(slots=True)
class GroupMember:
    """A member of a group, as its coordinator sees it. Times are of one clock; suspension counts.

    Attributes:
        membership: How far it is with joining, and what it owns.
        liveness: Until when it may deliver, as its coordinator counts.
        schedule: When it says what.
        awaits: Whether JoinGroup or SyncGroup is being sent, or was sent and is not answered.
        awaits_heartbeat: Whether Heartbeat is being sent, or was sent and is not answered.
        must_find: Whether the coordinator may be another broker, and is to be found again.
        notices: What is to be logged.
        has_lost: Whether something has ended its right to deliver, and nobody was notified yet.
    """

    membership: Membership
    liveness: Liveness
    schedule: MemberSchedule
    awaits: bool = False
    awaits_heartbeat: bool = False
    must_find: bool = False
    notices: list[Notice] = field(default_factory=list)
    has_lost: bool = False

    # -- what others do ----------------------------------------------------------------------

    def polled(self, now: float) -> None:
        """Somebody polls."""
        self.liveness.polled_at = now

    def fenced(self) -> None:
        """Another consumer has claimed what it owns: all is lost, and it joins again."""
        self.lose(keeps_id=True)

    def lose(self, *, keeps_id: bool = False) -> None:
        """It counts no longer: all that it owns is lost."""
        self.membership.lose(keeps_id=keeps_id)
        self._end_right()

    def end(self, fault: KshareError) -> None:
        """Its session has ended by a fault: it leaves, so that others go on with what it owns."""
        self.membership.end(fault)
        self._end_right()

    def crashed(self, fault: KshareError) -> None:
        """Its driver has ended by a fault, and sends nothing more."""
        self.lose()
        self.membership.state, self.membership.fault = State.ENDED, fault

    def leave(self) -> Leave | None:
        """The end; returns what is still to be sent."""
        self.membership.leave()
        action = self.membership.action()
        return action if isinstance(action, Leave) else None

    def log_later(self, level: Level, text: str, cause: BaseException | None = None) -> None:
        """Have a line of the group logged: later, as who calls this may hold a lock."""
        self.notices.append(Notice(level, f"group {self.membership.group}: {text}", cause))

    # -- what is to be sent ------------------------------------------------------------------

    def request(self, now: float) -> Request | None:
        """The next request; None if there is something to wait for. It is said once."""
        if self.must_find:
            self.must_find = self.awaits_heartbeat = False
            return FindCoordinator()
        if now < self.schedule.retry_at:
            return None
        self.watch_polls(now)
        if self.awaits and self.schedule.is_overdue(now):
            seconds = self.schedule.join_timeout
            self.failed(now, f"JoinGroup or SyncGroup is not answered for {seconds:g} s")
            return self.request(now)
        heartbeat = self._heartbeat(now)
        if heartbeat is not None:
            self.awaits_heartbeat = True
            return heartbeat
        action = self.membership.action()
        if isinstance(action, Join | Sync):
            self.schedule.asked_at = now
        if not isinstance(action, PlanRequest | None):
            self.awaits = not isinstance(action, Leave)
        return action

    def watch_polls(self, now: float) -> None:
        """Leave if nobody has polled for ``max.poll.interval.ms``; :meth:`request` looks, too."""
        membership, seconds = self.membership, self.liveness.rebalance_seconds
        is_in = membership.state is not State.ENDED and not membership.is_lost
        if is_in and membership.member_id and now - self.liveness.polled_at > seconds:
            self.log_later(
                Level.WARNING,
                f"nobody has polled for max.poll.interval.ms={seconds * 1000:.0f}: the member "
                "leaves, and joins again with the next poll. Raise it, or take fewer records at a "
                "time",
            )
            membership.leave_until_polled()
            self._end_right()

    def seconds_until_due(self, now: float) -> float:
        """Seconds until there is something to send, if nothing happens before."""
        heartbeat_at = float("inf") if self.awaits_heartbeat else self.schedule.heartbeat_at
        return max(heartbeat_at - now, self.schedule.retry_at - now, 0.0)

    def committable(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """The partitions among some whose offsets it may commit.

        Nothing if it is no member: whoever owns them now commits them, and the facts are in the
        log. What it has given up before it joined may be a plain consumer's now.
        """
        membership = self.membership
        if membership.is_lost or membership.state is State.ENDED:
            return set()
        return set(filter(membership.may_commit, partitions))

    # -- answers -----------------------------------------------------------------------------

    def joined(
        self,
        member_id: str,
        generation: int,
        leader: str,
        members: Mapping[str, bytes],
        *,
        protocol: str,
        instances: Mapping[str, str] | None = None,
        is_assigned: bool = False,
    ) -> bool:
        """JoinGroup was answered: see :meth:`.Membership.joined`.

        Returns:
            False if nobody waits for that any more.
        """
        self._answered()
        if self.membership.state is not State.JOINING:
            return False
        self.membership.joined(
            member_id,
            generation,
            leader,
            members,
            protocol=protocol,
            instances=instances,
            is_assigned=is_assigned,
        )
        self.schedule.joined()
        leads = ", which leads it" if leader == member_id else ""
        self.log_later(Level.INFO, f"joined generation {generation} as {member_id}{leads}")
        self.liveness.heard(self.schedule.asked_at, is_joined=True)
        return True

    def synced(self, assignment: bytes, now: float) -> bool:
        """SyncGroup was answered.

        Returns:
            False if nobody waits for that any more.
        """
        self._answered()
        if self.membership.state is not State.SYNCING:
            return False
        self.membership.synced(assignment)
        if not self._is_stable:
            self._end_right()
            if self.membership.fault is None:
                self._log_trouble("the leader has not named this member")
                self.schedule.pause(now)
            return True
        self.schedule.synced(now, awaits_round=self.membership.awaits_round)
        self.liveness.heard(self.schedule.asked_at, is_joined=True)
        return True

    def refused(
        self,
        code: Code | None,
        now: float,
        *,
        member_id: str = "",
        name: str = "",
        is_size: bool = False,
    ) -> None:
        """JoinGroup or SyncGroup was answered with an error.

        Args:
            code: The error; None for one that has no meaning to a member.
            now: The time.
            member_id: The id that comes with MEMBER_ID_REQUIRED.
            name: What Kafka calls the error.
            is_size: Whether brokers answer that to a record which is too large for them.
        """
        self._answered()
        membership = self.membership
        what = "JoinGroup" if membership.state is State.JOINING else "SyncGroup"
        is_syncing = membership.state is State.SYNCING
        if is_syncing and is_size and membership.standing.metadata_bytes >= _RECORD_BYTES:
            membership.end(self._too_large())
        else:
            membership.refused(code, member_id)
        self._end_right_if_lost()
        self.must_find |= code in _MOVED
        if code not in _ORDINARY:
            self._log_trouble(f"{what} was refused: {name}")
            self.schedule.pause(now)

    def heartbeat_answered(
        self,
        heartbeat: Heartbeat,
        code: Code | None,
        now: float,
        *,
        is_refused: bool,
        name: str = "",
    ) -> None:
        """Heartbeat was answered.

        Args:
            heartbeat: What was sent.
            code: The error; None for none, or for one that has no meaning to a member.
            now: The time.
            is_refused: Whether there was an error. One without a meaning does not renew the right,
                and does nothing else.
            name: What Kafka calls it.
        """
        self.schedule.answered()
        self.awaits_heartbeat = False
        membership = self.membership
        asked_for = heartbeat.member_id, heartbeat.generation
        if heartbeat.is_member and asked_for == (membership.member_id, membership.generation):
            if not is_refused or code is Code.REBALANCE_IN_PROGRESS:
                self.liveness.heard(heartbeat.sent_at, is_joined=not is_refused)
                self.schedule.works()
            if is_refused:
                membership.heartbeat_refused(code)
                self._end_right_if_lost()
                self._log_loss(name)
        if code in _MOVED:
            self.failed(now, f"the coordinator has moved ({name})")

    def failed(self, now: float, why: str) -> None:
        """The coordinator did not answer, or not as it should: find it again, after a pause."""
        self._log_trouble(f"the coordinator: {why}")
        self.membership.disconnected()
        self.schedule.pause(now)
        self.awaits = self.awaits_heartbeat = False
        self.must_find = True

    # -- decisions ---------------------------------------------------------------------------

    @property
    def _is_stable(self) -> bool:
        return self.membership.state is State.STABLE

    def _heartbeat(self, now: float) -> Heartbeat | None:
        membership, schedule = self.membership, self.schedule
        if self.awaits_heartbeat or not schedule.take_heartbeat(
            now, awaits_round=membership.awaits_round
        ):
            return None
        is_member = bool(membership.member_id) and membership.generation >= 0
        waits_long = self.awaits and schedule.waits_long(now)
        if membership.state is State.ENDED or not (is_member or waits_long):
            return None
        return Heartbeat(membership.member_id, membership.generation, now, is_member)

    def _answered(self) -> None:
        self.awaits = False
        self.schedule.answered()

    def _end_right(self) -> None:
        self.liveness.lost()
        self.has_lost = True

    def _end_right_if_lost(self) -> None:
        if self.membership.is_lost or not self.membership.member_id:
            self._end_right()

    def _too_large(self) -> KafkaError:
        membership = self.membership
        return KafkaError(
            f"group {membership.group}: the coordinator does not keep what its members say and "
            f"are assigned, about {membership.standing.metadata_bytes:,} bytes, as one record of "
            "__consumer_offsets: take fewer members, or fewer partitions and topics of shorter "
            "names, or raise max.message.bytes of that topic"
        )

    # -- what is said ------------------------------------------------------------------------

    def _log_loss(self, name: str) -> None:
        """Say that the member is dropped, if it is, by the answer to its heartbeat."""
        if self.membership.is_lost:
            seconds = self.liveness.session_seconds
            self.log_later(
                Level.WARNING,
                f"the group goes on without this member ({name}), which joins again. Its "
                f"heartbeats stopped for session.timeout.ms={seconds * 1000:.0f}, or a rebalance "
                "did not wait for it",
            )

    def _log_trouble(self, what: str) -> None:
        """Say what has failed; if it lasts, who watches says it as a warning."""
        self.schedule.trouble = what
        self.log_later(Level.INFO, what)
