"""Sends what a member of a group says to its coordinator, and takes the answers.

::

    hear     an answer: tell the member, and the leader's part
    speak    GroupMember.request: heartbeat --> JoinGroup, SyncGroup, or a plan --> commits
    failed   no answer, or none of use: find the coordinator again, after a pause
    leave    LeaveGroup, once nothing is under way whose failure would take it along

    what the core wants --> ask the coordinator --> wait: an answer | a heartbeat | a wake-up
         ^                                                                |
         +---------------- tell the core <--------------------------------+

All of that runs in the session's thread, and only that thread's loop waits. What to say, and what
an answer means, is :class:`.GroupMember`'s.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from kshare.core.progress import TopicPartition
from kshare.core.showing import shown
from kshare.errors import (
    AuthenticationError,
    AuthorizationError,
    KafkaError,
    KshareError,
    UnknownTopicError,
)
from kshare.group.config.table import ConsumerConfig
from kshare.group.core.member import GroupMember, Level
from kshare.group.log.log_link import DENIED
from kshare.group.membership.leader import GroupLeader
from kshare.group.membership.member_link import MemberLink
from kshare.group.protocol.membership.membership_state import State
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
from kshare.kafka.committed import CommittedOffsets, Outcome
from kshare.kafka.coordinator import commit_codes
from kshare.kafka.protocol import error_codes
from kshare.kafka.protocol.error_codes import ErrorCode, Kind

__all__ = ["MemberCommits", "MemberDialogue"]

_log = logging.getLogger("kshare.group")

_CODES: Final = {code.value: code for code in Code}
_TOO_LARGE: Final = {ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.MESSAGE_TOO_LARGE}
"""What brokers answer to SyncGroup if the record is larger than they take: mostly the first."""

_KINDS: Final = {
    Kind.AUTHENTICATION: AuthenticationError,
    Kind.AUTHORIZATION: AuthorizationError,
    Kind.UNKNOWN_TOPIC: UnknownTopicError,
}
"""Classes of errors; others are a :class:`~kshare.errors.KafkaError`."""


@dataclass(slots=True)
class _LeaveGroup:
    """LeaveGroup, as far as it is said.

    Attributes:
        waiting: Ids of members with which it is to be sent.
        is_under_way: Whether it was sent, and is not answered.
    """

    waiting: deque[str] = field(default_factory=deque)
    is_under_way: bool = False

    @property
    def is_said(self) -> bool:
        """True if there is nothing to send or to wait for."""
        return not (self.waiting or self.is_under_way)


class MemberDialogue:
    """The dialogue of one member with its coordinator.

    For the session's thread, which holds its lock, but for :meth:`log_notices`.

    Args:
        config: The consumer's configuration.
        member: Decides.
        leader: Does the leader's part.
        wake: Wakes the session's thread; called from any thread.
        now: Source of time; suspension counts.

    Attributes:
        commits: Primary offsets that are to be committed.
        has_ended: Whether there is nothing to say any more.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        member: GroupMember,
        leader: GroupLeader,
        wake: Callable[[], None],
        now: Callable[[], float],
    ) -> None:
        self.commits = MemberCommits(member)
        self.has_ended = False
        self._member = member
        self._leader = leader
        self._now = now
        self._link = MemberLink(config, wake)
        self._join: Join | None = None  # the last one
        self._is_leaving = False
        self._leave_group = _LeaveGroup()

    @property
    def sockets(self) -> dict[int, int]:
        """What each socket is to be ready for, by its descriptor; see :class:`.Waker`."""
        return self._link.sockets

    @property
    def seconds_until_due(self) -> float:
        """Seconds until there is something to do, if nothing happens before."""
        now, member = self._now(), self._member
        if self._is_leaving:
            return 0.0 if self._may_send_leave else self._link.seconds_until_due
        if member.must_find or (self.commits.are_waiting and now >= member.schedule.retry_at):
            return 0.0
        return min(member.seconds_until_due(now), self._link.seconds_until_due)

    def step(self, ready: Collection[int]) -> None:
        """Hear answers, and say what is due. Never waits.

        Args:
            ready: Which of :attr:`sockets` are ready.
        """
        try:
            self._link.take(ready)
            if self.has_ended:  # by an answer
                return
            if not self._is_leaving:
                self._send_requests()
            elif self._member.must_find:
                self._find()
            self._send_leave()
            self._link.send()
        except Exception as error:
            is_denied = isinstance(error, DENIED) and not self._is_leaving
            if isinstance(error, OSError | KafkaError) and not is_denied:
                self._failed(error)
            else:
                self._crashed(error)
        if self._is_leaving and self._leave_group.is_said:
            self.has_ended = True

    def _send_requests(self) -> None:
        while (request := self._member.request(self._now())) is not None:
            self._send(request)
        if self._now() >= self._member.schedule.retry_at:
            self.commits.serve(self._link)

    def _send(self, request: Request) -> None:
        match request:
            case FindCoordinator():
                self._find()
            case Heartbeat():
                self._link.heartbeat(request, partial(self._heartbeat_answered, request))
                self._leader.look(self._now())
            case Join():
                self._join = request
                self._link.join(request, partial(self._join_answered, request))
            case Sync():
                self._link.sync(request, self._sync_answered)
            case PlanRequest():
                self._leader.plan(request)
            case Leave(member_id):
                self._link.stop_joining()
                self._leave_group.waiting.append(member_id)

    def _heartbeat_answered(self, heartbeat: Heartbeat, answer: Any) -> None:
        number = int(answer.error_code)
        self._member.heartbeat_answered(
            heartbeat,
            _CODES.get(number),
            self._now(),
            is_refused=bool(number),
            name=error_codes.name(number) if number else "",
        )

    def _join_answered(self, join: Join, answer: Any) -> None:
        if answer.error_code:
            self._refused(answer)
        elif _is_assigned(answer):
            self._link.describe(partial(self._joined, join, answer))
        else:
            self._joined(join, answer, [])

    def _joined(self, join: Join, answer: Any, assigned: list[bytes]) -> None:
        if join is not self._join:  # it was lost, and has joined again, as that was described
            return
        said = {each.member_id: bytes(each.metadata) for each in answer.members}
        is_wanted = self._member.joined(
            answer.member_id,
            answer.generation_id,
            answer.leader,
            said,
            protocol=answer.protocol_name,
            instances=_instances(answer.members),
            is_assigned=_is_assigned(answer),
        )
        if is_wanted and answer.leader != answer.member_id:
            self._leader.follows()
        elif is_wanted and _is_assigned(answer):
            self._leader.lead_on(said, answer.protocol_name, assigned)

    def _sync_answered(self, answer: Any) -> None:
        if answer.error_code:
            self._refused(answer)
            return
        membership = self._member.membership
        is_wanted = self._member.synced(bytes(answer.assignment), self._now())
        if is_wanted and membership.is_eager:
            self._leader.sharing.assigned(membership.shares)

    def _refused(self, answer: Any) -> None:
        """JoinGroup or SyncGroup was refused."""
        number = answer.error_code
        code = _CODES.get(number)
        # An unknown answer to SyncGroup: what is wrong with the member is said when it joins again.
        is_joining = self._member.membership.state is State.JOINING
        if code is None and is_joining and error_codes.is_permanent(number):
            group = self._member.membership.group
            self._crashed(_error(number, f"cannot join group {group}"))
            return
        self._member.refused(
            code,
            self._now(),
            member_id=getattr(answer, "member_id", ""),
            name=error_codes.name(number),
            is_size=number in _TOO_LARGE,
        )

    @property
    def _may_send_leave(self) -> bool:
        return bool(self._leave_group.waiting) and self._link.is_quiet

    def _send_leave(self) -> None:
        """Send LeaveGroup once nothing is under way whose failure would take it along."""
        if self._may_send_leave and (
            self._is_leaving or self._now() >= self._member.schedule.retry_at
        ):
            self._leave_group.is_under_way = True
            self._link.leave(self._leave_group.waiting.popleft(), self._left)

    def _left(self, _: object) -> None:
        self._leave_group.is_under_way = False  # with whatever answer: it is no use to wait

    def _failed(self, error: Exception) -> None:
        """The coordinator did not answer, or not as it should."""
        self._disconnect(str(error))
        if self._is_leaving:
            self._member.log_later(
                Level.WARNING,
                "cannot leave, so others get what it owned only once session.timeout.ms is over: "
                f"{error}",
            )
        else:
            self._member.failed(self._now(), str(error))

    def _crashed(self, error: Exception) -> None:
        fault, cause = error, None
        if not isinstance(error, KshareError):
            fault, cause = KshareError(f"the membership has ended: {shown(error)}"), error
        assert isinstance(fault, KshareError)
        self._member.crashed(fault)
        self._member.log_later(Level.ERROR, str(fault), cause)
        self.has_ended = True

    def _find(self) -> None:
        self._member.must_find = False
        self._disconnect("the coordinator may be another broker")

    def _disconnect(self, why: str) -> None:
        self._link.forget()
        self._leave_group.is_under_way = False
        self.commits.failed(why)

    def leave(self) -> None:
        """Leave the group; :attr:`has_ended` is true once that is said, or cannot be said."""
        if self._is_leaving:
            return
        self._is_leaving = True
        self._link.stop_joining()  # else it might still join
        last = self._member.leave()
        if last is not None:
            self._leave_group.waiting.append(last.member_id)

    def close(self) -> None:
        """Commit nothing more, and close the connections."""
        self.refuse_commits()
        self._leader.close()
        self._link.close()

    def refuse_commits(self) -> None:
        """Commit nothing more."""
        self.commits.refuse(KafkaError(f"group {self._member.membership.group}: left"))

    def log_notices(self) -> None:
        """Log the notices of the member."""
        notices, self._member.notices = self._member.notices, []
        for level, text, cause in notices:
            _log.log(level, "%s", text, exc_info=cause)


def _error(code: int, what: str, **place: Any) -> KafkaError:
    """The error of what the coordinator has refused.

    Args:
        code: Its error code.
        what: What it has refused.
        place: The topic and the partition of that, if it is about one.
    """
    kind = _KINDS.get(error_codes.kind(code), KafkaError)
    return kind(f"{what}: {error_codes.name(code)}", **place)


def _instances(members: Iterable[Any]) -> dict[str, str]:
    """The ``group.instance.id`` of each static member; older brokers do not say."""
    said = ((each.member_id, getattr(each, "group_instance_id", None)) for each in members)
    return {member_id: instance for member_id, instance in said if instance is not None}


def _is_assigned(answer: Any) -> bool:
    """True if the group's assignment stays, though this member leads (KIP-814)."""
    return bool(getattr(answer, "skip_assignment", False))


class _UnderWay(NamedTuple):
    """A commit that the coordinator has not answered.

    Attributes:
        offsets: What the coordinator was asked for.
        future: Has the outcome, in the end.
    """

    offsets: CommittedOffsets
    future: "Future[Outcome]"


class MemberCommits:
    """Primary offsets that a member is to commit: kept until the coordinator is asked.

    For the session's thread.

    Args:
        member: Says what it may commit.
    """

    def __init__(self, member: GroupMember) -> None:
        self._member = member
        self._waiting: deque[tuple[CommittedOffsets, Future[Any]]] = deque()
        self._under_way: _UnderWay | None = None

    @property
    def are_waiting(self) -> bool:
        """True if there is something to ask the coordinator for."""
        return bool(self._waiting) and self._under_way is None

    def add(self, offsets: CommittedOffsets) -> "Future[Any]":
        """Commit these; the future has the outcome, without what the member may not commit."""
        answer: Future[Outcome] = Future()
        if self._member.membership.state is State.ENDED:
            answer.set_result({})
        else:
            self._waiting.append((dict(offsets), answer))
        return answer

    def serve(self, link: MemberLink) -> None:
        """Ask the coordinator for the next commit, if none is under way.

        Args:
            link: The way to it.
        """
        while self._waiting and self._under_way is None:
            offsets, answer = self._waiting.popleft()
            owned = {tp: offsets[tp] for tp in self._member.committable(offsets)}
            if not owned:
                answer.set_result({})
                continue
            self._under_way = _UnderWay(owned, answer)
            membership = self._member.membership
            link.commit(owned, membership.member_id, membership.generation, self._answered)

    def _answered(self, answer: Any) -> None:
        if self._under_way is None:  # it was refused meanwhile
            return
        asked, self._under_way = self._under_way, None
        codes = commit_codes(answer, asked.offsets)
        asked.future.set_result({tp: self._error(tp, code) for tp, code in codes.items()})

    def failed(self, why: str) -> None:
        """What is under way is not answered."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            group = self._member.membership.group
            error = KafkaError(f"cannot commit offsets of group {group}: {why}")
            under_way.future.set_exception(error)

    def refuse(self, error: KafkaError) -> None:
        """Nothing is committed any more."""
        self.failed(str(error))
        while self._waiting:
            self._waiting.popleft()[1].set_exception(error)

    def _error(self, partition: TopicPartition, code: int) -> KafkaError | None:
        if not code:
            return None
        what = f"cannot commit offsets of group {self._member.membership.group} for {partition}"
        error = _error(code, what, **partition._asdict())
        error.code = code
        return error
