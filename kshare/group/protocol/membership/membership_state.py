"""A member of a group, by the classic group protocol: events in, actions out.

::

    UNJOINED --Join--> JOINING --answered--> SYNCING --answered--> STABLE
        ^                 ^    (the leader plans)                    |
        |                 +---- the group rebalances, or it has given hashes up
        +---- lost: the coordinator knows it no more; it joins again once the loss was taken

Beside that, the thread that polls takes what has changed::

    take() --> on_revoked, commit, claim, on_assigned --> applied() --something revoked--> Join

By joining a member gives up nothing: it names what it owns, and nobody else gets any of it before
the member has given it up and joined again. So hashes that do not move are delivered all the time.

A member that lists the protocol `range` too is eager, as Java's consumers are: it gives up all that
it owns before it joins, as the leader may be a plain consumer, which hands it to others at once::

    the group rebalances --> take(): all is revoked, commit --> applied() --> Join

Guarantees: what a member names when it joins includes all that it may claim before it joins again.
An eager member owns nothing from when it joins to when it is assigned something.
Nothing here waits, reads a clock or does I/O.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from kshare.core.progress import TopicPartition
from kshare.errors import ForeignMemberError, KshareError
from kshare.group.protocol.membership.holdings import Change, Holdings
from kshare.group.protocol.membership.report import MemberReport
from kshare.group.protocol.membership.requests import (
    PASSING,
    Code,
    Join,
    Leave,
    MemberAction,
    PlanRequest,
    Sync,
    fault_of,
)
from kshare.group.protocol.membership.subscription import (
    PROTOCOL,
    RANGE,
    Assigned,
    MemberAssignment,
    Subscription,
    decode_assignment,
    encode_subscription,
    in_order,
)

__all__ = ["Membership", "Standing", "State"]


class State(Enum):
    """How far a member is with joining its group."""

    UNJOINED = "it is no member of the group"
    JOINING = "it waits for the other members to join"
    SYNCING = "it waits for what the leader assigns"
    STABLE = "it is a member"
    ENDED = "it has left, or cannot be a member"


@dataclass(frozen=True, slots=True)
class Standing:
    """A member's identity in its group, as the coordinator has last reported it.

    Attributes:
        member_id: Its id; empty if it has none.
        generation: The generation that it belongs to; -1 if to none.
        leader: Id of that generation's leader.
        protocol: The protocol that was voted for.
        metadata_bytes: About how much the coordinator has to keep of what is planned.
        number: How many JoinGroups were answered; it names a plan, and says nothing else.
    """

    member_id: str = ""
    generation: int = -1
    leader: str = ""
    protocol: str = PROTOCOL
    metadata_bytes: int = 0
    number: int = field(default=0, compare=False)


@dataclass(slots=True)
class Membership:
    """A member of a group.

    Attributes:
        group: Id of the group.
        said: What it says when it joins; topics, and what never changes.
        is_static: Whether it has a ``group.instance.id``: then it does not leave at the end.
        protocols: The protocols that it speaks, the best one first.
        state: How far it is.
        standing: As what it is in the group.
        holdings: What it owns, and how that changes.
        fault: Why it cannot be a member; None if it can.
        measured: What it reports when it joins; None for what it says always.
        denied: Topics that the leader may not describe, and the user was not warned of yet.
        forbidden: Topics that policies keep from all members, each with its policy; likewise.
    """

    group: str
    said: Subscription
    is_static: bool = False
    protocols: tuple[str, ...] = (PROTOCOL,)
    state: State = State.UNJOINED
    standing: Standing = Standing()
    holdings: Holdings = field(default_factory=Holdings)
    fault: KshareError | None = None
    measured: Callable[[], MemberReport] | None = None
    denied: tuple[str, ...] = ()
    forbidden: tuple[tuple[str, str], ...] = ()
    _next: MemberAction | None = None  # decided, and not taken yet
    _last: MemberAssignment | None = None  # of the last generation
    _must_join: bool = False

    # -- what the thread that polls does -----------------------------------------------------

    def subscribe(self, topics: tuple[str, ...]) -> None:
        """Subscribe to these topics, in place of those before."""
        if topics != self.said.topics:
            self.said = replace(self.said, topics=topics)
            self._must_join = True

    @property
    def member_id(self) -> str:
        """Its id; empty if it has none."""
        return self.standing.member_id

    @property
    def generation(self) -> int:
        """The generation that it belongs to; -1 if to none."""
        return self.standing.generation

    @property
    def is_lost(self) -> bool:
        """True if all that it owns is lost, and the thread that polls has not given it up yet."""
        return self.holdings.is_lost

    @property
    def leads(self) -> bool:
        """True if it is the leader of its generation."""
        return self.generation >= 0 and self.standing.leader == self.member_id

    @property
    def owned(self) -> Assigned:
        """What it owns, as far as the thread that polls has applied it."""
        return self.holdings.owned

    @property
    def awaits_round(self) -> bool:
        """True if another round of the rebalance follows, once others have given hashes up."""
        last = self._last
        return self.state is State.STABLE and last is not None and last.target is not None

    @property
    def is_eager(self) -> bool:
        """True if it gives up all that it owns before it joins."""
        return RANGE in self.protocols

    @property
    def shares(self) -> bool | None:
        """True if the last assignment is one of kshare members alone; None without one."""
        if self._last is None:
            return None
        return self.standing.protocol != RANGE and not self._last.is_plain

    @property
    def epoch(self) -> tuple[int, str] | None:
        """The epoch of the last assignment, and the id of the log's topic; None without one."""
        last = self._last
        return None if last is None or last.epoch is None else (last.epoch, last.topic_id)

    @property
    def has_change(self) -> bool:
        """True if :meth:`take` has something to say."""
        holdings = self.holdings
        is_due = holdings.is_lost or holdings.received is not None or self._gives_up
        return holdings.change is None and is_due

    def take(self) -> Change | None:
        """What is to be done by the thread that polls; None if nothing.

        It calls :meth:`applied` before it asks again.
        """
        if not self.has_change:
            return None
        self.holdings = self.holdings.take(gives_up=self._gives_up)
        return self.holdings.change

    def applied(self) -> None:
        """What was taken is done: what was revoked is given up."""
        change = self.holdings.change
        assert change is not None
        self.holdings = self.holdings.applied()
        if change.revoked and not change.is_lost:
            self._must_join = True  # so that others get it

    def may_commit(self, partition: TopicPartition) -> bool:
        """True if it owns some of a partition, or is about to."""
        return self.holdings.may_commit(partition)

    # -- what happens ------------------------------------------------------------------------

    def rebalance(self) -> None:
        """The group has to be assigned again: the coordinator says so, or topics have changed."""
        self._must_join = True

    def joined(
        self,
        member_id: str,
        generation: int,
        leader: str,
        members: Mapping[str, bytes],
        *,
        protocol: str = PROTOCOL,
        instances: Mapping[str, str] | None = None,
        is_assigned: bool = False,
    ) -> None:
        """JoinGroup was answered.

        Args:
            member_id: Id of this member.
            generation: The generation.
            leader: Id of the leader.
            members: What all have said, if this one is the leader.
            protocol: The protocol that the members have voted for.
            instances: The ``group.instance.id`` of each static member, if this one is the leader.
            is_assigned: Whether the group keeps its assignment: this one is a static member that
                has led it and was started again (KIP-814).
        """
        if self.state is not State.JOINING:
            return
        number = self.standing.number + 1
        self.standing = Standing(member_id, generation, leader, protocol, _size(members), number)
        self.state = State.SYNCING
        self._next = (
            PlanRequest(generation, members, protocol, instances or {}, number)
            if leader == member_id and not is_assigned
            else Sync(member_id, generation, {})
        )

    def awaits_plan(self, plan: PlanRequest) -> bool:
        """True if a plan is still wanted; another one writes no epoch."""
        return self.state is State.SYNCING and plan.number == self.standing.number

    def planned(self, plan: PlanRequest, assignments: Mapping[str, bytes]) -> None:
        """The generation is planned, and its epoch is in the log."""
        if self.awaits_plan(plan):
            size = self.standing.metadata_bytes + _size(assignments)
            self.standing = replace(self.standing, metadata_bytes=size)
            self._next = Sync(self.member_id, plan.generation, assignments)

    def synced(self, assignment: bytes) -> None:
        """SyncGroup was answered."""
        if self.state is not State.SYNCING:
            return
        is_named = bool(assignment) or self.standing.protocol == RANGE
        if not is_named:  # by the leader
            self.refused(Code.ILLEGAL_GENERATION)
            return
        try:
            received = decode_assignment(assignment, is_plain_allowed=self.is_eager)
        except ForeignMemberError as error:
            self.end(ForeignMemberError(f"group {self.group}: {error}"))
            return
        if received.refusal:
            self.end(ForeignMemberError(f"group {self.group}: {received.refusal}"))
            return
        self.state, self._last = State.STABLE, received
        self.denied, self.forbidden = received.denied, received.forbidden
        self.holdings = self.holdings.receive(received)

    def refused(self, code: Code | None, member_id: str = "") -> None:
        """JoinGroup or SyncGroup was answered with an error.

        Args:
            code: The error; None for another one that may go away.
            member_id: The id that comes with MEMBER_ID_REQUIRED.
        """
        fault = fault_of(self.group, code, is_eager=self.is_eager)
        if fault is not None:
            self.end(fault)
        elif code is Code.MEMBER_ID_REQUIRED:
            self.standing = replace(self.standing, member_id=member_id)
            self._join_again()
        elif code is Code.UNKNOWN_MEMBER_ID:
            self.lose()
        elif code is Code.ILLEGAL_GENERATION:  # the group goes on without this member
            self.lose(keeps_id=True)
        else:
            self._join_again()

    def heartbeat_refused(self, code: Code | None) -> None:
        """A heartbeat was answered with an error.

        Args:
            code: The error; None for one that has no meaning to a member, which changes nothing.
        """
        if code is Code.REBALANCE_IN_PROGRESS:
            self._must_join |= self.state is State.STABLE
        elif code is Code.ILLEGAL_GENERATION and self.state is State.JOINING:
            pass  # of the last generation: the answer to JoinGroup is on its way
        elif code is not None and code not in PASSING:
            self.refused(code)

    def disconnected(self) -> None:
        """The answer to a request will not come."""
        self._join_again()

    def lose(self, *, keeps_id: bool = False) -> None:
        """The member counts no longer, or must not count on it: all that it owns is lost.

        Args:
            keeps_id: Whether it joins again under its id.
        """
        if self.state is State.ENDED:
            return
        self.state, number = State.UNJOINED, self.standing.number
        self.standing = Standing(self.member_id if keeps_id else "", number=number)
        self._next = self._last = None
        self.holdings = self.holdings.lose()

    def leave_until_polled(self) -> None:
        """Nobody has polled for ``max.poll.interval.ms``: leave; the next poll joins again."""
        leave = self._leaving
        self.lose()
        # Nothing is joined before somebody polls.
        self.holdings = replace(self.holdings, is_lost=True)
        self._next = leave

    def leave(self) -> None:
        """The end: static members stay in the group until their session times out."""
        if not isinstance(self._next, Leave):  # that was decided before is still to be said
            self._next = self._leaving
        self.state = State.ENDED
        self.holdings = self.holdings.forget_received()

    def end(self, fault: KshareError) -> None:
        """It cannot be a member any more: it leaves, and all that it owns is lost.

        Else the next rebalance would wait for it until its session times out.
        """
        if self.state is not State.ENDED:
            leave = self._leaving
            self.lose()
            self.state, self.fault, self._next = State.ENDED, fault, leave

    # -- decisions ---------------------------------------------------------------------------

    def action(self) -> MemberAction | None:
        """What to do next; None if there is something to wait for. It is said once."""
        if self._next is not None:
            action, self._next = self._next, None
            return action
        if self._may_join:
            self.state, self._must_join = State.JOINING, False
            # The next generation says it again, or otherwise.
            self.holdings = self.holdings.forget_received()
            last = self._last
            reads = last is not None and last.compressed
            said = encode_subscription(self._subscription(), compressed=reads)
            return Join(self.member_id, said, self.protocols)
        return None

    @property
    def _may_join(self) -> bool:
        """True if it is to join, and owns nothing that it has to give up before."""
        holdings = self.holdings
        has_to_give_up = self.is_eager and (holdings.owned or holdings.change is not None)
        return self._is_joining_due and not holdings.is_lost and not has_to_give_up

    @property
    def _is_joining_due(self) -> bool:
        return self.state is State.UNJOINED or (self.state is State.STABLE and self._must_join)

    @property
    def _gives_up(self) -> bool:
        """True if the thread that polls has to give up everything, so that it can join."""
        return self.is_eager and bool(self.holdings.owned) and self._is_joining_due

    def _subscription(self) -> Subscription:
        """What it says: all that it owns, or is about to own."""
        last = self._last
        owned = in_order(self.holdings.named)
        target = None if last is None else last.target or last.assigned
        return replace(
            self.said,
            owned=owned,
            target=None if target == owned else target,
            epoch=None if last is None else last.epoch,
            followup_ms=None if last is None else last.followup_ms,
            report=self.said.report if self.measured is None else self.measured(),
        )

    @property
    def _leaving(self) -> Leave | None:
        """How it leaves; None if it is no member, or stays until its session times out."""
        is_member = self.member_id and self.state is not State.ENDED and not self.is_static
        return Leave(self.member_id) if is_member else None

    def _join_again(self) -> None:
        if self.state in {State.JOINING, State.SYNCING}:
            self.state, self._next = State.UNJOINED, None


def _size(data: Mapping[str, bytes]) -> int:
    return sum(len(member) + len(each) for member, each in data.items())
