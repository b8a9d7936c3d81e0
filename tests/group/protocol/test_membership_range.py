"""Members that list the protocol `range`, too."""

import pytest

from kshare.core.hashing import ALL_HASHES, KeyRanges
from kshare.core.progress import TopicPartition
from kshare.group.protocol.membership.membership_state import Membership
from kshare.group.protocol.membership.requests import Code, Join, PlanRequest
from kshare.group.protocol.membership.subscription import (
    PROTOCOL,
    RANGE,
    MemberAssignment,
    Subscription,
    encode_assignment,
    encode_subscription,
)
from tests.group.protocol.one_member import (
    BOTH,
    LOWER,
    PLAIN,
    T0,
    T1,
    assign,
    new_member,
    receive,
    said,
)


def eager(assigned: dict[TopicPartition, KeyRanges]) -> Membership:
    """An eager member that owns what it was assigned."""
    member = new_member(protocols=BOTH)
    assign(member, assigned)
    return member


def test_it_lists_its_protocols() -> None:
    for protocols in ((PROTOCOL,), BOTH):
        action = new_member(protocols=protocols).action()
        assert isinstance(action, Join)
        assert action.protocols == protocols


def test_an_eager_member_gives_up_everything_before_it_joins() -> None:
    member = eager({T0: KeyRanges([LOWER]), T1: ALL_HASHES})
    member.heartbeat_refused(Code.REBALANCE_IN_PROGRESS)
    assert member.action() is None
    change = member.take()
    assert change is not None
    assert (change.revoked, change.assigned) == ({T0: (LOWER,), T1: ALL_HASHES}, {})
    assert not change.is_lost
    assert member.action() is None  # it still commits
    assert member.may_commit(T0)
    member.applied()
    assert not member.may_commit(T0)
    assert not member.has_change
    assert said(member).owned == ()


def test_an_eager_member_gives_up_what_it_is_about_to_own() -> None:
    member = eager({T0: ALL_HASHES})
    member.rebalance()
    assert member.take() is not None
    member.applied()
    receive(member, {T1: ALL_HASHES})
    assert member.take() is not None  # on_assigned is under way
    assert member.may_commit(T1)
    member.rebalance()
    assert member.action() is None
    member.applied()
    change = member.take()
    assert change is not None
    assert change.revoked == {T1: ALL_HASHES}
    member.applied()
    assert isinstance(member.action(), Join)


def test_an_eager_member_does_not_take_what_is_out_of_date() -> None:
    member = new_member(protocols=BOTH)
    receive(member, {T0: ALL_HASHES})
    member.rebalance()
    again = said(member)
    assert (again.owned, again.target) == ((), ((T0, ALL_HASHES),))
    assert not member.has_change


@pytest.mark.parametrize(("data", "assigned"), [(PLAIN, {T0: ALL_HASHES}), (b"", {})])
def test_an_eager_member_takes_whole_partitions_of_a_plain_leader(
    data: bytes, assigned: dict[TopicPartition, KeyRanges]
) -> None:
    member = new_member(protocols=BOTH)
    member.action()
    member.joined("id-1", 1, "plain", {}, protocol=RANGE)
    member.action()
    member.synced(data)
    assert member.shares is False
    assert member.epoch is None
    change = member.take()
    assert (change.assigned if change else {}) == assigned


def test_user_data_that_a_plain_leader_sends_back_are_no_assignment() -> None:
    """As librdkafka does: each member gets what it has said itself."""
    said = encode_subscription(Subscription("me", ("t",)))
    user_data = said[said.index(b"{") - 4 :]
    member = new_member(protocols=BOTH)
    member.action()
    member.joined("id-1", 1, "plain", {}, protocol=RANGE)
    member.action()
    member.synced(PLAIN[:-4] + user_data)
    assert member.fault is None
    assert member.shares is False
    change = member.take()
    assert change is not None
    assert change.assigned == {T0: ALL_HASHES}


def test_the_leader_plans_what_was_voted_for() -> None:
    member = new_member(protocols=BOTH)
    member.action()
    members = {"id-1": b"x", "id-2": b"y"}
    instances = {"id-2": "pod-2"}
    member.joined("id-1", 4, "id-1", members, protocol=RANGE, instances=instances)
    assert member.action() == PlanRequest(4, members, RANGE, instances)


def test_without_a_common_protocol_it_ends() -> None:
    member = new_member(protocols=BOTH)
    member.action()
    member.refused(Code.INCONSISTENT_GROUP_PROTOCOL)
    assert "neither kshare-range-v1 nor range" in str(member.fault)


def test_assignments_of_kshare_members_without_an_epoch_are_shared() -> None:
    """The leader may not write the log."""
    member = new_member(protocols=BOTH)
    member.action()
    member.joined("id-1", 1, "leader", {})
    member.action()
    member.synced(encode_assignment(MemberAssignment(((T0, ALL_HASHES),), None)))
    assert member.shares is True
