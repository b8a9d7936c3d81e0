"""The core of one member, which gets what the coordinator would answer."""

from kshare.core.hashing import WHOLE, KeyRanges, split
from kshare.core.progress import TopicPartition
from kshare.group.protocol.membership.membership_state import Membership, State
from kshare.group.protocol.membership.requests import Join, Sync
from kshare.group.protocol.membership.subscription import (
    PROTOCOL,
    RANGE,
    MemberAssignment,
    Subscription,
    decode_subscription,
    encode_assignment,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
LOWER, UPPER = split(WHOLE, 2)
EPOCH = 17
BOTH = (PROTOCOL, RANGE)
PLAIN = bytes.fromhex("0000 00000001 0001 74 00000001 00000000 ffffffff")  # T0, from a plain leader


def new_member(*, is_static: bool = False, protocols: tuple[str, ...] = (PROTOCOL,)) -> Membership:
    return Membership("g", Subscription("me", ("t",)), is_static=is_static, protocols=protocols)


def stable(assigned: dict[TopicPartition, KeyRanges], *, is_static: bool = False) -> Membership:
    """A member that owns what it was assigned."""
    member = new_member(is_static=is_static)
    assign(member, assigned)
    return member


def assign(member: Membership, assigned: dict[TopicPartition, KeyRanges]) -> None:
    receive(member, assigned)
    if member.take() is not None:
        member.applied()


def receive(member: Membership, assigned: dict[TopicPartition, KeyRanges]) -> None:
    assert isinstance(member.action(), Join)
    member.joined("id-1", member.generation + 1, "leader", {})
    assert member.action() == Sync("id-1", member.generation, {})
    member.synced(encode_assignment(MemberAssignment(tuple(assigned.items()), EPOCH, None, "a")))
    assert member.state is State.STABLE


def said(member: Membership) -> Subscription:
    """What it says when it joins again."""
    member.rebalance()
    action = member.action()
    assert isinstance(action, Join)
    return decode_subscription(action.subscription, "x")
