"""When a member sends heartbeats, and what counts as not answered."""

from hypothesis import given
from hypothesis import strategies as st

from kshare.group.core.member import MemberSchedule
from kshare.group.membership.handle import schedule_of
from kshare.wire.protocol.retry import Backoff
from tests.support.groups import group_config

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


def test_a_warning_comes_when_nothing_has_worked_for_ten_seconds_then_every_thirty() -> None:
    plan = schedule()
    times = [0.0, 5.0, 10.0, 12.0, 39.0, 40.0, 69.0, 70.0]
    assert [now for now in times if plan.is_worth_a_warning(now)] == [10.0, 40.0, 70.0]
    plan.works()
    assert [now for now in (71.0, 80.0, 81.0) if plan.is_worth_a_warning(now)] == [81.0]
