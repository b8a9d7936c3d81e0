"""A leader's plans that are late, or about topics that it may not describe; what it logs once."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kshare.core.backoff import Backoff
from kshare.core.hashing import ALL_HASHES
from kshare.core.progress import TopicPartition
from kshare.errors import AuthorizationError
from kshare.group import KeySharedConsumer
from kshare.group.core.member import GroupMember, Level, MemberSchedule
from kshare.group.core.right import Liveness
from kshare.group.log.log_link import Written
from kshare.group.membership.group_planner import PlannedTopics, SeenTopics
from kshare.group.membership.leader import GroupLeader, SharingLog
from kshare.group.protocol.commit_log.records import Epoch
from kshare.group.protocol.membership.membership_state import Membership, Standing, State
from kshare.group.protocol.membership.requests import Join, PlanRequest, Sync
from kshare.group.protocol.membership.subscription import (
    PROTOCOL,
    MemberAssignment,
    Subscription,
    encode_assignment,
    encode_subscription,
)
from kshare.group.protocol.plan.generation import Generation
from kshare.kafka.cluster import Cluster
from kshare.kafka.protocol.background import Beside
from kshare.testing import FakeCluster
from tests.support.clock import WAIT_S, until
from tests.support.groups import LOG, T0, eventually, group_config, quick_settings
from tests.support.polling import Polling

STICKY = "kshare.assignment.StickyTaskAssignor"
SEEN = SeenTopics({"t": 1}, {})


def test_a_plan_whose_generation_ends_meanwhile_writes_no_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Plan 7 waits for the racks of replicas until the member has planned generation 8."""
    written: list[int] = []
    asked, answer = threading.Event(), threading.Event()
    standing = Standing(generation=7, number=1)
    core = Membership("g", Subscription("a", ("t",)), state=State.SYNCING, standing=standing)
    said = {"a": encode_subscription(core.said)}

    def replica_racks(self: PlannedTopics, topics: Any) -> dict[TopicPartition, tuple[str]]:
        if core.generation == 7:
            asked.set()
            assert answer.wait(WAIT_S)
        return {TopicPartition("t", 0): ("r",)}

    def write(epoch: Epoch, done: Any, is_wanted: Callable[[], bool]) -> None:
        assert is_wanted()
        written.append(epoch.generation)

    monkeypatch.setattr(PlannedTopics, "replica_racks", replica_racks)
    monkeypatch.setattr(PlannedTopics, "look", lambda *_: SEEN)
    beside = Beside(lambda: None)
    config = group_config("localhost:1", taskAssignor=STICKY)
    leader = GroupLeader(config, member_of(core), beside, write, lambda _: {}, lambda: 0.0)
    leader.plan(PlanRequest(7, said, number=1))
    assert asked.wait(WAIT_S)
    core.standing = Standing(generation=8, number=2)
    leader.plan(PlanRequest(8, said, number=2))
    until(lambda: beside.has_events)
    beside.take()
    answer.set()
    until(lambda: beside.has_events)
    beside.take()
    assert written == [8]


@pytest.mark.parametrize("number", [1, 2])
def test_a_plan_that_fails_ends_its_own_generation_alone(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    standing = Standing(generation=8, number=2)
    core = Membership("g", Subscription("a", ("t",)), state=State.SYNCING, standing=standing)

    def look(*_: Any) -> SeenTopics:
        raise ZeroDivisionError

    monkeypatch.setattr(PlannedTopics, "look", look)
    beside, member = Beside(lambda: None), member_of(core)
    leader = GroupLeader(
        group_config("localhost:1"), member, beside, lambda *_: None, lambda _: {},
        lambda: 5.0,
    )  # fmt: skip
    leader.plan(PlanRequest(7, {}, number=number))
    until(lambda: beside.has_events)
    beside.take()
    assert core.awaits_plan(PlanRequest(8, {}, number=2)) is (number == 1)
    assert (member.schedule.retry_at > 5.0) is (number == 2)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_what_members_are_sent_is_encoded_beside_the_session(
    monkeypatch: pytest.MonkeyPatch, *, is_damaged: bool
) -> None:
    """And what fails there ends the plan, not the session that has read the epoch."""
    encoders: list[threading.Thread] = []

    def assignments(*_: Any) -> dict[str, bytes]:
        encoders.append(threading.current_thread())
        if is_damaged:
            raise ZeroDivisionError
        return {"a": b""}

    standing = Standing(generation=7, number=1)
    core = Membership("g", Subscription("a", ("t",)), state=State.SYNCING, standing=standing)
    monkeypatch.setattr(PlannedTopics, "look", lambda *_: SEEN)
    monkeypatch.setattr(Generation, "assignments", assignments)
    beside, member = Beside(lambda: None), member_of(core)
    read_back: list[Written] = []

    def taken() -> bool:
        beside.take()
        return False

    leader = GroupLeader(
        group_config("localhost:1"), member, beside, lambda _, done, __: read_back.append(done),
        lambda _: {}, lambda: 5.0,
    )  # fmt: skip
    leader.plan(plan := PlanRequest(7, {"a": encode_subscription(core.said)}, number=1))
    until(lambda: taken() or read_back)
    read_back[0](5, "id")
    action = until(lambda: taken() or core.action())
    assert isinstance(action, Join if is_damaged else Sync)
    assert encoders != [threading.current_thread()]
    assert core.awaits_plan(plan) is not is_damaged
    assert (member.schedule.retry_at > 5.0) is is_damaged


def test_what_cannot_be_read_of_the_former_assignment_is_planned_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And ends no session: what is taken in its thread may fail, too."""
    standing = Standing(number=1)
    core = Membership("g", Subscription("a", ("t",)), state=State.STABLE, standing=standing)
    monkeypatch.setattr(PlannedTopics, "look", lambda *_: SEEN)
    beside, member = Beside(lambda: None), member_of(core)
    leader = GroupLeader(
        group_config("localhost:1"), member, beside, lambda *_: None,
        lambda _: {}, lambda: 5.0,
    )  # fmt: skip
    leader.lead_on({"a": encode_subscription(core.said)}, PROTOCOL, [b"damaged"])
    until(lambda: beside.has_events)
    beside.take()
    assert isinstance(core.action(), Join)
    assert "assignment cannot be read" in member.notices[-1].text


@pytest.mark.parametrize(("hours", "is_now"), [(1.0, False), (-1.0, True)])
def test_a_static_leader_that_is_started_again_keeps_the_deadline(
    monkeypatch: pytest.MonkeyPatch, hours: float, *, is_now: bool
) -> None:
    """A task assignor's, also one that has passed meanwhile, or was at once as it had failed."""
    core = Membership(
        "g", Subscription("a", ("t",)), state=State.STABLE, standing=Standing(number=1)
    )
    monkeypatch.setattr(PlannedTopics, "look", lambda *_: SEEN)
    monkeypatch.setattr(PlannedTopics, "have_changed", lambda _: False)
    beside, config = Beside(lambda: None), group_config("localhost:1", taskAssignor=STICKY)
    leader = GroupLeader(
        config, member_of(core), beside, lambda *_: None, lambda _: {}, lambda: 5.0
    )
    ms = int(1000 * (time.time() + 3600 * hours))
    said = MemberAssignment(((TopicPartition("t", 0), ALL_HASHES),), 7, followup_ms=ms)
    sent = encode_assignment(said)
    leader.lead_on({"a": encode_subscription(core.said)}, PROTOCOL, [sent])
    until(lambda: beside.has_events)
    beside.take()
    for seconds, is_due in ((0.0, is_now), (3000.0, is_now), (3601.0, True)):
        leader.look(5.0 + seconds)
        assert isinstance(core.action(), Join) is is_due
        if is_due:
            break


def member_of(core: Membership) -> GroupMember:
    return GroupMember(core, Liveness(10.0, 60.0), MemberSchedule(Backoff(100, 1_000), 3.0, 65.0))


# -- topics that may not be described --------------------------------------------------------------


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """Nobody may describe the topic `secret`."""
    real = Cluster.partitions

    def partitions(self: Cluster, topics: Any) -> tuple[TopicPartition, ...]:
        if "secret" in topics.topics:
            raise AuthorizationError("not authorized to describe topics", topic="secret")
        return real(self, topics)

    monkeypatch.setattr(Cluster, "partitions", partitions)
    with FakeCluster(topics={"orders": 1, "secret": 1, LOG: 1}) as running:
        running.produce("orders", [(f"k{i}", f"{i}") for i in range(50)], partition=0)
        yield running


@pytest.mark.parametrize(
    "strategy",
    ["kshare-range-v1", pytest.param("kshare-range-v1,range", marks=pytest.mark.slow)],
)
def test_who_subscribes_to_a_topic_that_the_leader_may_not_describe_is_told(
    cluster: FakeCluster, strategy: str
) -> None:
    """Once for each assignment; it goes on with its other topics, and so do all others."""
    given: dict[str, Any] = {"partition_assignment_strategy": strategy}
    settings = quick_settings(cluster.bootstrap_servers, **given)
    with KeySharedConsumer(settings) as consumer:
        consumer.subscribe(["orders", "secret"])
        error = eventually(lambda: fault_of(consumer))
        assert isinstance(error, AuthorizationError)
        assert error.topic == "secret"
        assert "grant its principal Describe" in str(error)
        assert len(consumer.consume(50, WAIT_S)) == 50
        assert consumer.assignment() == {T0: ()}
        other = Polling(cluster, **given)
        other.start()
        try:
            assert eventually(lambda: fault_of(consumer)).topic == "secret"
            eventually(lambda: fault_of(consumer) or other.width())
            assert other.faults == []
        finally:
            other.end()


def fault_of(consumer: KeySharedConsumer) -> AuthorizationError | None:
    try:
        consumer.poll(0.1)
    except AuthorizationError as error:
        return error
    return None


def test_each_change_is_said_once() -> None:
    texts: list[tuple[Level, str]] = []
    said = SharingLog(lambda *each: texts.append(each))
    for shares in (None, False, False, None, True, True, False):
        said.assigned(shares)
    assert [(level, "whole" in text) for level, text in texts] == [
        (Level.WARNING, True),
        (Level.INFO, False),
        (Level.WARNING, True),
    ]


def test_the_leader_names_plain_consumers_and_refusals() -> None:
    texts: list[tuple[Level, str]] = []
    said = SharingLog(lambda *each: texts.append(each))
    said.planned({}, ("rdkafka-1", "rdkafka-2"))
    said.planned({}, ("rdkafka-1", "rdkafka-2"))
    said.planned({"c": "member c speaks version 2"})
    assert texts == [
        (Level.INFO, "no kshare consumers: rdkafka-1, rdkafka-2"),
        (Level.WARNING, "member c speaks version 2"),
    ]
