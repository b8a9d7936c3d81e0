"""What a member sends, and when: heartbeats beside all else, pauses, and what ends its right."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.backoff import Backoff
from kshare.core.hashing import ALL_HASHES
from kshare.core.progress import TopicPartition
from kshare.group.core.member import GroupMember, MemberSchedule
from kshare.group.core.right import Liveness
from kshare.group.membership.handle import schedule_of
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
from kshare.group.protocol.membership.subscription import (
    MemberAssignment,
    Subscription,
    encode_assignment,
)
from tests.support.groups import group_config

T0 = TopicPartition("t", 0)
SESSION, REBALANCE, INTERVAL = 10.0, 60.0, 3.0


def new_member() -> GroupMember:
    schedule = MemberSchedule(Backoff(1_000, 8_000), INTERVAL, join_timeout=65.0)
    liveness = Liveness(SESSION, REBALANCE, polled_at=0.0)
    return GroupMember(Membership("g", Subscription("me", ("t",))), liveness, schedule)


def requests(member: GroupMember, now: float) -> list[Request]:
    """All that it sends at a time."""
    return list(iter(lambda: member.request(now), None))


def stable(now: float = 0.0, *, owns: bool = True) -> GroupMember:
    """A member of generation 1, whose first heartbeats are answered."""
    member = new_member()
    (join,) = requests(member, now)
    assert isinstance(join, Join)
    member.joined("id-1", 1, "other", {}, protocol="p")
    beat, sync = requests(member, now)
    assert isinstance(beat, Heartbeat)
    assert isinstance(sync, Sync)
    member.heartbeat_answered(beat, None, now, is_refused=False)
    assigned = ((T0, ALL_HASHES),) if owns else ()
    member.synced(encode_assignment(MemberAssignment(assigned, 7, None, "log")), now)
    if member.membership.take() is not None:
        member.membership.applied()
    return member


def test_a_coordinator_that_does_not_answer_a_heartbeat_hears_all_else_but_no_other_one() -> None:
    member = stable()
    member.membership.rebalance()
    beat, join = requests(member, INTERVAL)
    assert isinstance(beat, Heartbeat)
    assert isinstance(join, Join)
    assert requests(member, 3 * INTERVAL) == []
    assert member.seconds_until_due(3 * INTERVAL) > INTERVAL
    member.heartbeat_answered(beat, Code.REBALANCE_IN_PROGRESS, 3 * INTERVAL, is_refused=True)
    assert member.seconds_until_due(3 * INTERVAL) == 0
    assert [type(each) for each in requests(member, 3 * INTERVAL)] == [Heartbeat]


def test_a_heartbeat_whose_connection_is_closed_is_waited_for_no_longer() -> None:
    member = stable()
    assert [type(each) for each in requests(member, INTERVAL)] == [Heartbeat]
    member.membership.rebalance()
    assert [type(each) for each in requests(member, INTERVAL)] == [Join]
    member.refused(Code.NOT_COORDINATOR, INTERVAL)
    assert [type(each) for each in requests(member, 3 * INTERVAL)] == [
        FindCoordinator,
        Heartbeat,
        Join,
    ]


def test_what_is_not_answered_in_time_is_asked_of_a_coordinator_that_is_found_anew() -> None:
    member = new_member()
    assert [type(each) for each in requests(member, 0.0)] == [Join]
    assert member.awaits
    member.polled(65.0)
    assert [type(each) for each in requests(member, 65.0)] == [FindCoordinator]
    assert [text for _, text, _ in member.notices] == [
        "group g: the coordinator: JoinGroup or SyncGroup is not answered for 65 s"
    ]
    assert requests(member, 65.9) == []
    assert [type(each) for each in requests(member, 66.0)] == [Join]


@pytest.mark.parametrize(
    ("code", "pause", "finds"),
    [
        (Code.MEMBER_ID_REQUIRED, 0.0, False),
        (Code.REBALANCE_IN_PROGRESS, 0.0, False),
        (Code.COORDINATOR_LOAD_IN_PROGRESS, 1.0, False),
        (Code.NOT_COORDINATOR, 1.0, True),
        (None, 1.0, False),
    ],
)
def test_who_is_refused_asks_again_after_a_pause(
    code: Code | None, pause: float, finds: bool
) -> None:
    member = new_member()
    requests(member, 0.0)
    member.refused(code, 0.0, member_id="id-1")
    assert member.must_find is finds
    sent = [type(each) for each in requests(member, 0.0)]
    assert sent == [FindCoordinator] * finds + [Join] * (not pause)
    assert [type(each) for each in requests(member, pause)] == [Join] * bool(pause)


def test_its_right_ends_with_its_session_or_with_the_rebalance_that_it_missed() -> None:
    member = stable()
    assert member.liveness.seconds_to_deliver(0.0) == SESSION
    for now in range(1, 80):
        member.polled(now)
        for request in requests(member, now):
            if isinstance(request, Heartbeat):
                code = Code.REBALANCE_IN_PROGRESS
                member.heartbeat_answered(request, code, now, is_refused=True)
    assert member.liveness.seconds_to_deliver(59.0) >= 0
    assert member.liveness.seconds_to_deliver(61.0) < 0


@pytest.mark.parametrize("owns", [False, True])
def test_who_is_not_named_by_the_leader_has_no_right_and_pauses(owns: bool) -> None:
    member = stable(owns=owns)
    member.membership.rebalance()
    requests(member, 0.0)
    member.joined("id-1", 2, "other", {}, protocol=member.membership.protocols[0])
    requests(member, 0.0)
    member.notices, member.has_lost = [], False
    assert member.synced(b"", 0.0)
    assert member.liveness.seconds_to_deliver(0.0) < 0
    assert member.has_lost
    assert "has not named this member" in member.notices[0].text
    assert [each for each in requests(member, 0.0) if isinstance(each, Join)] == []


def test_who_is_fenced_amid_a_heartbeat_is_not_kept_alive_by_its_answer() -> None:
    member = stable()
    beat = next(each for each in requests(member, INTERVAL) if isinstance(each, Heartbeat))
    member.fenced()
    member.heartbeat_answered(beat, None, INTERVAL, is_refused=False)
    assert member.liveness.seconds_to_deliver(INTERVAL) < 0


def test_who_does_not_poll_leaves_and_commits_nothing() -> None:
    member = stable()
    assert member.committable([T0]) == {T0}
    sent = requests(member, REBALANCE + 1)
    assert any(isinstance(each, Leave) for each in sent)
    assert "nobody has polled for max.poll.interval.ms=60000" in member.notices[-1].text
    assert not member.committable([T0])
    assert not member.awaits


def test_a_plan_is_awaited_and_no_answer() -> None:
    member = new_member()
    requests(member, 0.0)
    member.joined("id-1", 1, "id-1", {"id-1": b"x"}, protocol="p")
    sent = requests(member, 0.0)
    assert [type(each) for each in sent] == [Heartbeat, PlanRequest]
    assert not member.awaits
    assert member.membership.state is State.SYNCING


def test_a_late_answer_changes_nothing() -> None:
    member = new_member()
    requests(member, 0.0)
    member.lose()
    assert not member.joined("id-1", 1, "other", {}, protocol="p")
    assert not member.synced(b"x", 0.0)
    assert member.liveness.seconds_to_deliver(0.0) < 0


TIMES = st.floats(0, 1e6)


def schedule() -> MemberSchedule:
    return MemberSchedule(Backoff(100, 1_000), heartbeat_interval=3.0, join_timeout=305.0)


def test_heartbeats_are_one_interval_apart() -> None:
    times = [0.0, 1.0, 2.9, 3.0, 4.0, 6.5, 9.4, 9.5]
    plan = schedule()
    assert [now for now in times if plan.take_heartbeat(now, awaits_round=False)] == [
        0.0,
        3.0,
        6.5,
        9.5,
    ]


def test_a_heartbeat_follows_the_answer_to_join() -> None:
    plan = schedule()
    assert plan.take_heartbeat(10.0, awaits_round=False)
    plan.joined()
    assert plan.take_heartbeat(10.1, awaits_round=False)


@given(synced=TIMES, waited=st.floats(0, 100))
def test_while_a_round_is_to_follow_they_come_each_tenth_of_the_time_so_far(
    synced: float, waited: float
) -> None:
    plan = schedule()
    plan.synced(synced, awaits_round=True)
    assert plan.heartbeat_at == synced + 0.1
    now = plan.heartbeat_at + waited
    assert plan.take_heartbeat(now, awaits_round=True)
    expected = min(3.0, max(0.1, (now - synced) / 10))
    assert abs(plan.heartbeat_at - now - expected) < 1e-6


def test_a_join_is_overdue_after_a_rebalance_may_be_over() -> None:
    plan = schedule()
    plan.asked_at = 50.0
    assert [plan.waits_long(now) for now in (50.0, 52.9, 53.0)] == [False, False, True]
    assert [plan.is_overdue(now) for now in (354.9, 355.0)] == [False, True]


def test_join_has_five_seconds_more_than_a_rebalance_or_the_time_of_any_request() -> None:
    longest = schedule_of(group_config("b:9092", max_poll_interval_ms=120_000))
    assert longest.join_timeout == 125.0
    shortest = schedule_of(group_config("b:9092", max_poll_interval_ms=50_000))
    assert (
        schedule_of(
            group_config("b:9092", max_poll_interval_ms=50_000, request_timeout_ms=70_000)
        ).join_timeout
        == 70.0
    )
    assert shortest.join_timeout == 55.0


def test_pauses_grow_until_the_coordinator_answers() -> None:
    plan = schedule()
    pauses = []
    for _ in range(3):
        plan.pause(0.0)
        pauses.append(plan.retry_at)
    assert 0.08 <= pauses[0] <= 0.12
    assert 0.32 <= pauses[2] <= 0.48
    plan.answered()
    plan.pause(0.0)
    assert plan.retry_at <= 0.12
