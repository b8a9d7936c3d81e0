"""The core of a member: what it does with each answer of the coordinator."""

from dataclasses import replace

import pytest

from kshare.core.hashing import ALL_HASHES, KeyRanges
from kshare.errors import AuthorizationError, ForeignMemberError, KafkaError, KshareError
from kshare.group.core.right import Liveness
from kshare.group.protocol.membership.membership_state import State
from kshare.group.protocol.membership.requests import Code, Join, Leave, PlanRequest, Sync
from kshare.group.protocol.membership.subscription import (
    MemberAssignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    in_order,
)
from kshare.group.protocol.plan.generation import plan_generation, topics_of
from tests.group.protocol.one_member import (
    EPOCH,
    LOWER,
    T0,
    T1,
    UPPER,
    new_member,
    receive,
    said,
    stable,
)


def test_it_joins_syncs_and_owns() -> None:
    member = new_member()
    assert isinstance(member.action(), Join)
    assert member.action() is None
    member.refused(Code.MEMBER_ID_REQUIRED, "id-1")
    action = member.action()
    assert isinstance(action, Join)
    assert action.member_id == "id-1"
    member.joined("id-1", 4, "other", {})
    assert member.action() == Sync("id-1", 4, {})
    member.synced(encode_assignment(MemberAssignment(((T0, ALL_HASHES),), EPOCH, None, "a")))
    change = member.take()
    assert change is not None
    assert (change.revoked, change.gained, change.assigned) == (
        {},
        {T0: ALL_HASHES},
        {T0: ALL_HASHES},
    )
    assert (change.epoch, change.topic_id) == (EPOCH, "a")
    assert member.take() is None
    member.applied()
    assert member.action() is None
    assert member.owned == {T0: ALL_HASHES}


def test_the_leader_plans() -> None:
    member = new_member()
    member.action()
    members = {"id-1": encode_subscription(Subscription("me", ("t",)))}
    member.joined("id-1", 4, "id-1", members)
    plan = member.action()
    assert plan == PlanRequest(4, members)
    assert isinstance(plan, PlanRequest)
    member.planned(replace(plan, number=plan.number - 1), {})  # of before
    assert member.action() is None
    member.planned(plan, {"id-1": b"x"})
    assert member.action() == Sync("id-1", 4, {"id-1": b"x"})


def test_a_static_leader_that_was_started_again_plans_nothing() -> None:
    """The coordinator would keep the assignment that it has (KIP-814)."""
    member = new_member(is_static=True)
    member.action()
    members = {"id-1": encode_subscription(Subscription("me", ("t",)))}
    member.joined("id-1", 4, "id-1", members, is_assigned=True)
    assert member.action() == Sync("id-1", 4, {})


def test_it_revokes_before_it_joins_again() -> None:
    member = stable({T0: ALL_HASHES, T1: ALL_HASHES})
    member.heartbeat_refused(Code.REBALANCE_IN_PROGRESS)
    receive(member, {T0: KeyRanges([LOWER])})
    change = member.take()
    assert change is not None
    assert change.revoked == {T0: (UPPER,), T1: ALL_HASHES}
    assert change.gained == {}
    assert member.action() is None
    member.applied()
    assert said(member).owned == ((T0, (LOWER,)),)


def test_all_members_know_whether_another_round_follows() -> None:
    """Also those that get nothing in it: the group waits for them."""
    said = {
        "a": Subscription("a", ("t",), owned=((T0, ALL_HASHES),)),
        "b": Subscription("b", ("t",)),
        "c": Subscription("c", ("t",), owned=((T1, ALL_HASHES),)),
    }
    members = {name: encode_subscription(each) for name, each in said.items()}
    generation = plan_generation(1, "a", members, {"t": 2})
    assert generation.plan.now != generation.plan.target
    for name, assignment in generation.assignments(5, "x").items():
        member = new_member()
        member.action()
        member.joined(name, 1, "other", {})
        member.action()
        member.synced(assignment)
        assert member.awaits_round
    settled = {
        name: encode_subscription(replace(each, owned=in_order(generation.plan.target[name])))
        for name, each in said.items()
    }
    assignment = plan_generation(2, "a", settled, {"t": 2}).assignments(6, "x")["c"]
    member = stable({})
    assert not member.awaits_round
    member.rebalance()
    assert isinstance(member.action(), Join)
    member.joined("c", 2, "other", {})
    member.action()
    member.synced(assignment)
    assert not member.awaits_round


def test_what_it_owns_already_is_no_change() -> None:
    """Transactions that wait for their turn are not disturbed by it."""
    member = stable({T0: ALL_HASHES, T1: KeyRanges([LOWER])})
    member.rebalance()
    receive(member, {T0: ALL_HASHES, T1: KeyRanges([LOWER])})
    assert not member.has_change
    assert member.take() is None
    member.rebalance()
    receive(member, {T0: ALL_HASHES})
    assert member.take() is not None  # on_revoked is under way
    member.rebalance()
    receive(member, {T0: ALL_HASHES})
    assert not member.has_change
    member.applied()
    assert not member.has_change
    assert member.owned == {T0: ALL_HASHES}


def test_what_it_is_about_to_give_up_is_a_change_if_it_comes_back() -> None:
    member = stable({T0: ALL_HASHES, T1: ALL_HASHES})
    member.rebalance()
    receive(member, {T0: ALL_HASHES})
    assert member.take() is not None
    member.rebalance()
    receive(member, {T0: ALL_HASHES, T1: ALL_HASHES})
    member.applied()
    change = member.take()
    assert change is not None
    assert change.gained == {T1: ALL_HASHES}


def test_it_names_what_it_is_about_to_own() -> None:
    member = stable({T0: KeyRanges([LOWER])})
    member.rebalance()
    receive(member, {T0: KeyRanges([UPPER])})
    assert member.take() is not None  # on_revoked is under way
    assert said(member).owned == ((T0, ALL_HASHES),)


def test_what_was_not_taken_is_dropped_when_it_joins_again() -> None:
    member = stable({T0: KeyRanges([LOWER])})
    member.rebalance()
    receive(member, {T1: ALL_HASHES})
    again = said(member)
    assert again.owned == ((T0, (LOWER,)),)
    assert again.target == ((T1, ALL_HASHES),)
    assert again.epoch == EPOCH
    assert not member.has_change


def test_an_unknown_member_loses_all_and_joins_after_that() -> None:
    member = stable({T0: ALL_HASHES})
    member.heartbeat_refused(Code.UNKNOWN_MEMBER_ID)
    assert member.is_lost
    assert member.action() is None
    change = member.take()
    assert change is not None
    assert change.is_lost
    assert change.revoked == {T0: ALL_HASHES}
    member.applied()
    action = member.action()
    assert isinstance(action, Join)
    assert action.member_id == ""
    assert decode_subscription(action.subscription, "x").owned == ()


def test_a_loss_while_a_change_is_taken_is_told_after_it() -> None:
    member = stable({T0: KeyRanges([LOWER])})
    member.rebalance()
    receive(member, {T0: ALL_HASHES, T1: ALL_HASHES})
    assert member.take() is not None
    member.lose()
    assert member.take() is None
    member.applied()
    change = member.take()
    assert change is not None
    assert change.is_lost
    assert change.revoked == {T0: ALL_HASHES, T1: ALL_HASHES}


@pytest.mark.parametrize("state", [State.STABLE, State.SYNCING])
def test_another_generation_is_a_loss(state: State) -> None:
    member = stable({T0: ALL_HASHES})
    if state is State.SYNCING:
        member.rebalance()
        member.action()
        member.joined("id-1", 5, "other", {})
        member.action()
        member.refused(Code.ILLEGAL_GENERATION)
    else:
        member.heartbeat_refused(Code.ILLEGAL_GENERATION)
    assert member.is_lost
    assert member.member_id == "id-1"


def test_a_heartbeat_of_the_last_generation_says_nothing_while_it_joins() -> None:
    member = stable({T0: ALL_HASHES})
    member.rebalance()
    member.action()
    member.heartbeat_refused(Code.ILLEGAL_GENERATION)
    member.heartbeat_refused(Code.REBALANCE_IN_PROGRESS)
    assert not member.is_lost
    assert member.state is State.JOINING


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (Code.INCONSISTENT_GROUP_PROTOCOL, KafkaError, "kshare-range-v1"),
        (Code.GROUP_AUTHORIZATION_FAILED, AuthorizationError, "Read on the group"),
        (Code.FENCED_INSTANCE_ID, KafkaError, "group.instance.id"),
        (Code.GROUP_MAX_SIZE_REACHED, KafkaError, "group.max.size"),
        (Code.INVALID_SESSION_TIMEOUT, KafkaError, "session.timeout.ms"),
    ],
)
def test_faults_end_it_by_name(code: Code, kind: type[Exception], text: str) -> None:
    """It leaves, as the rebalance would wait for it; but for a static one."""
    is_static = code is Code.FENCED_INSTANCE_ID
    member = stable({T0: ALL_HASHES}, is_static=is_static)
    member.rebalance()
    member.action()
    member.refused(code)
    assert member.state is State.ENDED
    assert member.is_lost
    assert isinstance(member.fault, kind)
    assert text in str(member.fault)
    assert "group g" in str(member.fault)
    assert member.action() == (None if is_static else Leave("id-1"))
    assert member.action() is None


@pytest.mark.parametrize(
    "code", [Code.NOT_COORDINATOR, Code.COORDINATOR_LOAD_IN_PROGRESS, Code.REBALANCE_IN_PROGRESS]
)
def test_what_passes_is_asked_again_and_loses_nothing(code: Code) -> None:
    member = stable({T0: ALL_HASHES})
    member.rebalance()
    member.action()
    member.refused(code)
    assert isinstance(member.action(), Join)
    member.disconnected()
    assert isinstance(member.action(), Join)
    assert not member.is_lost


REFUSED = encode_assignment(MemberAssignment((), None, refusal="it has other settings"))


@pytest.mark.parametrize("is_static", [False, True])
@pytest.mark.parametrize("sent", [b"\0\0\0\0\0\0\0\0\0\0", REFUSED], ids=["plain", "refused"])
def test_who_cannot_be_a_member_leaves(sent: bytes, is_static: bool) -> None:
    """Its leader knows no key ranges, or refuses it: the next rebalance would wait for it."""
    member = new_member(is_static=is_static)
    member.action()
    member.joined("id-1", 1, "other", {})
    member.action()
    member.synced(sent)
    assert isinstance(member.fault, ForeignMemberError)
    assert member.action() == (None if is_static else Leave("id-1"))
    assert member.action() is None


def test_nobody_polls() -> None:
    member = stable({T0: ALL_HASHES})
    member.leave_until_polled()
    assert member.action() == Leave("id-1")
    assert member.action() is None
    assert member.take() is not None
    member.applied()
    assert isinstance(member.action(), Join)


@pytest.mark.parametrize("is_static", [False, True])
def test_the_end(is_static: bool) -> None:
    member = stable({T0: ALL_HASHES}, is_static=is_static)
    member.leave()
    assert member.action() == (None if is_static else Leave("id-1"))
    assert member.action() is None


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("is_static", [False, True])
def test_a_fault_of_its_session(is_static: bool, is_closed: bool) -> None:
    """It leaves, also if it is closed before it has said so, and joins no more."""
    member, fault = stable({T0: ALL_HASHES}, is_static=is_static), KshareError("no log")
    member.end(fault)
    member.end(KshareError("a later one"))
    if is_closed:
        member.leave()
    assert member.action() == (None if is_static else Leave("id-1"))
    change = member.take()
    assert change is not None
    assert change.is_lost
    member.applied()
    assert (member.action(), member.fault, member.owned) == (None, fault, {})


def test_liveness_counts_from_when_requests_were_sent() -> None:
    alive = Liveness(6.0, 60.0)
    assert alive.seconds_to_deliver(0.0) < 0
    alive.heard(10.0, is_joined=True)
    assert alive.seconds_to_deliver(12.0) == 4.0
    for sent_at in (15.0, 20.0, 66.0):
        alive.heard(sent_at, is_joined=False)  # a rebalance in which the member is missing
    assert alive.seconds_to_deliver(66.0) == 4.0
    assert alive.seconds_to_deliver(71.0) < 0
    alive.heard(5.0, is_joined=True)
    assert alive.seconds_to_deliver(66.0) == 4.0
    alive.lost()
    assert alive.seconds_to_deliver(0.0) < 0


def test_liveness_says_when_it_came_back_after_it_had_lapsed() -> None:
    alive = Liveness(6.0, 60.0)
    alive.heard(10.0, is_joined=True)
    alive.heard(15.9, is_joined=True)
    assert alive.lapsed_at == float("-inf")
    alive.heard(15.0, is_joined=True)  # the answer comes late
    alive.heard(22.0, is_joined=True)
    assert alive.lapsed_at == 22.0
    alive.heard(23.0, is_joined=True)
    assert alive.lapsed_at == 22.0
    alive.lost()
    alive.heard(90.0, is_joined=True)  # it has joined again, and claims again
    assert alive.lapsed_at == 22.0


def test_a_foreign_member_is_refused_and_the_others_are_assigned() -> None:
    members = {"id-1": encode_subscription(Subscription("me", ("t",))), "id-2": b"\0\0\0\0"}
    assert topics_of(members) == {"t"}
    generation = plan_generation(3, "me", members, {"t": 1})
    sent = {name: decode_assignment(data) for name, data in generation.assignments(9, "a").items()}
    assert sent["id-1"] == MemberAssignment(((T0, ALL_HASHES),), 9, None, "a")
    assert "id-2" in sent["id-2"].refusal
    assert generation.epoch.names == {"me"}
    refused = new_member()
    refused.action()
    refused.joined("id-2", 3, "id-1", {})
    refused.action()
    refused.synced(generation.assignments(9, "a")["id-2"])
    assert isinstance(refused.fault, ForeignMemberError)


def test_a_plan_counts_for_the_join_that_it_was_made_for() -> None:
    """A coordinator that has taken over makes another generation of the same number."""
    member = new_member()
    member.action()
    member.joined("id-1", 4, "id-1", {"id-1": b"x"})
    late = member.action()
    assert isinstance(late, PlanRequest)
    member.refused(Code.UNKNOWN_MEMBER_ID)
    if member.take() is not None:
        member.applied()
    member.action()
    member.joined("id-2", 4, "id-2", {"id-2": b"x"})
    plan = member.action()
    assert isinstance(plan, PlanRequest)
    assert not member.awaits_plan(late)
    member.planned(late, {"id-1": b"x"})
    assert member.action() is None
    member.planned(plan, {"id-2": b"y"})
    assert member.action() == Sync("id-2", 4, {"id-2": b"y"})


def test_who_is_not_named_by_the_leader_has_lost_all_and_joins_again() -> None:
    member = stable({T0: ALL_HASHES})
    member.rebalance()
    member.action()
    member.joined("id-1", 5, "id-2", {})
    member.action()
    member.synced(b"")
    assert member.is_lost
    assert member.fault is None
    member.take()
    member.applied()
    assert isinstance(member.action(), Join)
