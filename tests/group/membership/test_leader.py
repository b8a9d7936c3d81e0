"""A leader's plans that are late, or about topics that it may not describe."""

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kshare.cluster.cluster import Cluster
from kshare.core.progress import TopicPartition
from kshare.errors import AuthorizationError
from kshare.group import KeySharedConsumer
from kshare.group.membership.leader import GroupLeader
from kshare.group.membership.planned_topics import PlannedTopics, SeenTopics
from kshare.group.protocol.membership import Membership, Plan, State
from kshare.group.protocol.records import Epoch
from kshare.group.protocol.subscription import Subscription, encode_subscription
from kshare.testing import FakeCluster
from tests.support.clock import WAIT_S
from tests.support.groups import LOG, T0, eventually, group_config, quick_settings
from tests.support.polling import Polling

STICKY = "kshare.assignment.StickyTaskAssignor"
SEEN = SeenTopics({"t": 1}, frozenset())


def test_a_plan_whose_generation_ends_meanwhile_writes_no_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Plan 7 waits for the racks of replicas until the member has planned generation 8."""
    written: list[int] = []
    asked, answer = threading.Event(), threading.Event()
    core = Membership("g", Subscription("a", ("t",)), state=State.SYNCING, generation=7)
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
    host = SimpleNamespace(rebalance=None, pause=None, wake=lambda: None)
    leader = GroupLeader(
        group_config("localhost:1", taskAssignor=STICKY), core, threading.RLock(),
        cast("Any", host), write, lambda _: frozenset(), lambda: 0.0,
    )  # fmt: skip
    core.joins = 1
    late = threading.Thread(target=leader._plan, args=(Plan(7, said, number=1),))
    late.start()
    assert asked.wait(WAIT_S)
    core.generation, core.joins = 8, 2
    leader._plan(Plan(8, said, number=2))
    answer.set()
    late.join()
    assert written == [8]


def test_a_late_plan_that_fails_does_not_end_the_next_generation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = Membership("g", Subscription("a", ("t",)), state=State.SYNCING, generation=8, joins=2)

    def look(*_: Any) -> SeenTopics:
        raise ZeroDivisionError

    monkeypatch.setattr(PlannedTopics, "look", look)
    leader = GroupLeader(
        group_config("localhost:1"), core, threading.RLock(), cast("Any", None),
        lambda *_: None, lambda _: frozenset(), lambda: 0.0,
    )  # fmt: skip
    with pytest.raises(ZeroDivisionError):
        leader._plan(Plan(7, {}, number=1))
    assert core.awaits_plan(Plan(8, {}, number=2))


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


@pytest.mark.parametrize("strategy", ["kshare-range-v1", "kshare-range-v1,range"])
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
