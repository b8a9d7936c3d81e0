"""A process that is a member of a group, in the small world."""

from dataclasses import dataclass, field
from typing import Self

from kshare.core.backoff import Backoff
from kshare.group.core.member import GroupMember, MemberSchedule
from kshare.group.core.right import Liveness
from kshare.group.protocol.membership.holdings import Change
from kshare.group.protocol.membership.membership_state import Membership
from kshare.group.protocol.membership.requests import (
    Code,
    Heartbeat,
    MemberAction,
    PlanRequest,
    Sync,
)
from kshare.group.protocol.membership.subscription import PROTOCOL, Subscription
from kshare.group.protocol.plan.generation import Generation
from tests.group.protocol.owning import shallow
from tests.group.protocol.process import Process

SESSION, REBALANCE = 10.0, 60.0
"""Timeouts of members, in seconds."""


@dataclass
class MemberProcess(Process):
    """A process that subscribes, and owns what it is assigned."""

    member: GroupMember = field(default_factory=lambda: new_member(""))
    now: float = 0.0  # by its clock, which goes on when its requests are late
    late: tuple[tuple[PlanRequest, Generation], ...] = ()  # their epochs are not written yet
    beaten: tuple[Heartbeat, Code | None] | None = None  # whose answer is on its way
    draining: Change | None = None  # what is taken, and waits for its handlers
    keeps_log: bool = True
    wrote: int = -1  # the number of its last plan whose epoch it has written

    @property
    def membership(self) -> Membership:
        """How far it is with joining."""
        return self.member.membership

    def look_at_clock(self) -> None:
        """It delivers while its coordinator cannot have dropped it."""
        self.is_member = self.member.liveness.seconds_to_deliver(self.now) >= 0

    def plan(
        self, plan: PlanRequest, planned: Generation, position: int | None, topic_id: str
    ) -> None:
        """It has planned a generation as its leader; its epoch is in the log, if there is one."""
        self.membership.planned(plan, planned.assignments(position, topic_id))

    def clone(self) -> Self:
        copy = super().clone()
        copy.member = clone_of_member(self.member)
        return copy

    def fingerprint(self) -> tuple[object, ...]:
        late = [
            (planned.epoch.generation, self.membership.awaits_plan(plan), plan.number > self.wrote)
            for plan, planned in self.late
        ]
        return (
            *super().fingerprint(),
            print_of_membership(self.membership),
            self.draining is None,
            self.member.awaits and self.member.schedule.asked_at == self.now,
            self.beaten and (repr(self.beaten), self.beaten[0].sent_at == self.now),
            *late,
        )


def print_of_membership(each: Membership) -> tuple[object, ...]:
    """Equal for memberships that go on alike; the number of a plan only names it."""
    holdings, wanted = each.holdings, each._next
    change = holdings.change
    return (
        *(each.said, each.is_static, each.protocols, each.state, each.standing),
        *(tuple(holdings.owned.items()), holdings.received, holdings.is_lost),
        change
        and (
            *(tuple(change.revoked.items()), tuple(change.gained.items())),
            *(tuple(change.assigned.items()), change.epoch, change.topic_id, change.is_lost),
        ),
        *(each.fault, each.denied, each.forbidden),
        _print_of_action(wanted),
        *(each._last, each._must_join),
    )


def _print_of_action(wanted: MemberAction | None) -> object:
    match wanted:
        case PlanRequest(generation, members, protocol, instances):
            return generation, tuple(members.items()), protocol, tuple(instances.items())
        case Sync(member_id, generation, assignments):
            return member_id, generation, tuple(assignments.items())
    return wanted


def new_member(
    name: str,
    protocols: tuple[str, ...] = (PROTOCOL,),
    *,
    individual: bool = True,
    ordered: bool = True,
) -> GroupMember:
    """A member whose heartbeats are due at any time."""
    said = Subscription(name, ("orders",), individual, ordered=ordered)
    membership = Membership("g", said, protocols=protocols)
    schedule = MemberSchedule(Backoff(0, 0), heartbeat_interval=0.0, join_timeout=float("inf"))
    return GroupMember(membership, Liveness(SESSION, REBALANCE, polled_at=float("inf")), schedule)


def clone_of_member(member: GroupMember) -> GroupMember:
    """A copy that shares nothing that changes."""
    parts = shallow(member.membership), shallow(member.liveness), shallow(member.schedule)
    return GroupMember(*parts, member.awaits, member.awaits_heartbeat, member.must_find)


def member_of(process: Process) -> MemberProcess:
    assert isinstance(process, MemberProcess)
    return process
