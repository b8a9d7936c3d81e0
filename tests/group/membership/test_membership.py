"""Consumers that subscribe, on the mock cluster: callbacks, rebalances, commits, losses."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import TopicPartition as RdTopicPartition

from kshare.core.hashing import HASH_SPACE, HashRange, key_hash
from kshare.core.progress import TopicPartition
from kshare.errors import FencedError
from kshare.group import KeySharedConsumer, Message, partitions_only
from kshare.group.membership.group_planner import GroupPlanner
from kshare.kafka.coordinator import fetch_offsets
from kshare.kafka.policies import INDIVIDUAL_COMMIT, RANGE_FETCH, Policy
from kshare.kafka.protocol.retry import boot_time
from kshare.testing import FakeCluster
from tests.support.clock import WAIT_S
from tests.support.groups import (
    GROUP,
    LOG,
    T0,
    eventually,
    group_config,
    join_together,
    quick_settings,
)
from tests.support.policies import FakePolicies
from tests.support.polling import Changes, Polling

RECORDS = 200


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1, LOG: 3}) as running:
        running.produce("orders", [(f"k{i % 20}", f"{i}") for i in range(RECORDS)], partition=0)
        yield running


@pytest.fixture
def start(cluster: FakeCluster) -> Iterator[Callable[..., Polling]]:
    with ExitStack() as stack:

        def polling(**config: Any) -> Polling:
            each = Polling(cluster, **config)
            stack.callback(each.end)
            return each.start()

        yield polling


def test_two_members_share_a_partition_and_one_takes_over(
    cluster: FakeCluster, start: Callable[..., Polling]
) -> None:
    first = start()
    eventually(lambda: len(first.offsets) == RECORDS)
    assert first.told == [("assigned", {T0: ()})]
    second = start()
    eventually(lambda: (first.width(), second.width()) == (HASH_SPACE // 2, HASH_SPACE // 2))
    cluster.produce("orders", [(f"k{i % 20}", f"{i}") for i in range(RECORDS)], partition=0)
    eventually(lambda: len(first.offsets) + len(second.offsets) == 2 * RECORDS)
    assert first.told[1][0] == "revoked"
    assert first.told[1][1] == second.told[0][1]
    second.end()
    eventually(lambda: first.width() == HASH_SPACE)
    assert not first.faults
    assert not second.faults
    assert sorted([*first.offsets, *second.offsets]) == list(range(2 * RECORDS))


@pytest.mark.slow
def test_members_that_list_range_give_up_all_and_share(
    cluster: FakeCluster, start: Callable[..., Polling]
) -> None:
    strategy = {"partition.assignment.strategy": "kshare-range-v1,range"}
    first = start(**strategy)
    eventually(lambda: len(first.offsets) == RECORDS)
    second = start(**strategy)
    eventually(lambda: (first.width(), second.width()) == (HASH_SPACE // 2, HASH_SPACE // 2))
    cluster.produce("orders", [(f"k{i % 20}", f"{i}") for i in range(RECORDS)], partition=0)
    eventually(lambda: {*first.offsets, *second.offsets} == set(range(2 * RECORDS)))
    assert first.told[:2] == [("assigned", {T0: ()}), ("revoked", {T0: ()})]
    assert not first.faults
    assert not second.faults


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(Policy(RANGE_FETCH, "orders"), marks=pytest.mark.slow),
        Policy(INDIVIDUAL_COMMIT),
    ],
)
def test_a_policy_makes_members_have_whole_partitions(
    cluster: FakeCluster, start: Callable[..., Polling], policy: Policy
) -> None:
    policies = FakePolicies()
    join_together(cluster)
    first, second = start(policies=policies), start(policies=policies)
    eventually(lambda: (first.width(), second.width()) == (HASH_SPACE // 2, HASH_SPACE // 2))
    policies.denied.add(policy)
    eventually(lambda: {first.width(), second.width()} == {0, HASH_SPACE})
    cluster.produce("orders", [(f"k{i % 20}", f"{i}") for i in range(RECORDS)], partition=0)
    eventually(lambda: len(first.offsets) + len(second.offsets) == 2 * RECORDS)
    policies.denied.clear()
    eventually(lambda: (first.width(), second.width()) == (HASH_SPACE // 2, HASH_SPACE // 2))
    assert not first.faults
    assert not second.faults
    assert sorted([*first.offsets, *second.offsets]) == list(range(2 * RECORDS))


@pytest.mark.parametrize(
    "columns",
    [{}, pytest.param({"columns": "value"}, marks=pytest.mark.slow)],
    ids=["all", "value"],
)
def test_what_is_in_hand_stays_in_hand_when_hashes_go(
    cluster: FakeCluster, start: Callable[..., Polling], columns: dict[str, str]
) -> None:
    """Explicit mode: a record of a key that stays is not returned again, and is not committed."""
    consumer = KeySharedConsumer(
        quick_settings(cluster.bootstrap_servers, acknowledgement_mode="explicit", **columns)
    )
    with consumer:
        consumer.subscribe(["orders"])
        held = consumer.consume(RECORDS, WAIT_S)
        assert len(held) == RECORDS
        other = start(auto_commit_interval_ms=200)
        again: list[Any] = []

        def has_shared() -> bool:
            again.extend(consumer.consume(RECORDS, 0.1))
            return other.width() == HASH_SPACE // 2

        eventually(has_shared)
        for _ in range(5):
            again += consumer.consume(RECORDS, 0.1)
        assert again == []
        owned = consumer.assignment()[T0]
        hash_of = {m.offset(): key_hash(f"k{m.offset() % 20}".encode(), m.offset()) for m in held}
        kept = [m for m in held if any(hash_of[m.offset()] in part for part in owned)]
        eventually(lambda: len(other.offsets) + len(kept) == RECORDS)
        assert (consumer.commit() or {}).get(T0) == 0
        for message in kept:
            consumer.acknowledge(message)
        eventually(lambda: (consumer.commit() or {}).get(T0) == RECORDS)


def test_a_callback_that_fails_fails_the_poll_after_the_rebalance(
    cluster: FakeCluster,
) -> None:
    consumer = KeySharedConsumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "other",
         "auto.offset.reset": "earliest", "claim.timeout.ms": 500}
    )  # fmt: skip

    def fails(changes: Changes) -> None:
        with pytest.raises(RuntimeError, match="poll in a callback"):
            consumer.poll(0)
        raise LookupError("no state for it")

    with consumer:
        consumer.subscribe(["orders"], on_assigned=fails)

        def is_told() -> bool:
            try:
                consumer.poll(0.1)
            except LookupError:
                return True
            return False

        eventually(is_told)
        assert consumer.assignment() == {T0: ()}
        assert consumer.poll(WAIT_S) is not None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_plan_that_fails_is_made_again(
    start: Callable[..., Polling], monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[int] = []
    real = GroupPlanner.plan

    def fails_once(self: GroupPlanner, *given: Any) -> Any:
        if not failures:
            failures.append(1)
            raise ZeroDivisionError
        return real(self, *given)

    monkeypatch.setattr(GroupPlanner, "plan", fails_once)
    only = start()
    eventually(lambda: len(only.offsets) == RECORDS)
    assert failures
    assert only.faults == []


def test_a_member_that_does_not_poll_leaves_and_comes_back(cluster: FakeCluster) -> None:
    told: list[str] = []
    consumer = KeySharedConsumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "slow",
            "auto.offset.reset": "earliest",
            "claim.timeout.ms": 500,
            "session.timeout.ms": 5_000,
            "heartbeat.interval.ms": 100,
            "max.poll.interval.ms": 60_000,
        }
    )
    with consumer:
        consumer.subscribe(["orders"], on_lost=lambda _: told.append("lost"))
        assert consumer.poll(WAIT_S) is not None
        assert consumer._receiver.subscriber is not None
        member = consumer._receiver.subscriber.member
        member.liveness.polled_at -= 60.0  # it does not come back for so long
        eventually(lambda: member.is_lost)
        assert member.liveness.seconds_to_deliver(boot_time()) < 0
        assert told == []
        eventually(lambda: consumer.poll(0.2) is not None)
        assert told == ["lost"]


@pytest.mark.parametrize("taken", [False, True])
def test_what_is_lost_may_be_committed_until_another_member_has_claimed_it(
    cluster: FakeCluster, start: Callable[..., Polling], taken: bool
) -> None:
    """Once its new owner delivers the records again, a commit is refused, not passed over."""
    said: list[object] = []
    held: list[Message] = []
    config = quick_settings(
        cluster.bootstrap_servers,
        max_poll_interval_ms=60_000,
        enable_auto_commit=False,
        acknowledgement_mode="explicit",
    )
    with KeySharedConsumer(config) as slow:

        def on_lost(_: Changes) -> None:
            for message in held:
                slow.acknowledge(message)
            try:
                said.append(slow.commit())
            except FencedError as error:
                said.append(error)

        slow.subscribe(["orders"], on_lost=on_lost)
        while len(held) < 50:
            held += slow.consume(50 - len(held), 1)
        assert slow._receiver.subscriber is not None
        member = slow._receiver.subscriber.member
        member.liveness.polled_at -= 60.0  # it does not come back for so long
        eventually(lambda: member.is_lost)
        other = start(enable_auto_commit=False) if taken else None
        eventually(lambda: other is None or len(other.offsets) >= RECORDS)
        while not said:
            slow.poll(0.1)
    if other is None:
        assert said == [{T0: 50}]
        return
    (error,) = said
    assert isinstance(error, FencedError)
    assert (error.topic, error.partition) == T0
    assert error.hashes[0] > (0, 0)
    assert other.consumer.memberid() in str(error)
    assert sorted(other.offsets[:RECORDS]) == list(range(RECORDS))


def test_a_commit_of_what_another_consumer_has_claimed_is_refused(cluster: FakeCluster) -> None:
    """Also once the poll has said so, and the delivery of these hashes has ended."""
    config = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": GROUP,
        "auto.offset.reset": "earliest",
        "claim.timeout.ms": 500,
        "enable.auto.commit": False,
    }
    with KeySharedConsumer(config) as former, KeySharedConsumer(config) as later:
        former.assign({T0: []})
        assert len(former.consume(10, WAIT_S)) == 10
        later.assign({T0: []})
        with pytest.raises(FencedError):
            eventually(lambda: former.poll(0.1) is None and False)
        with pytest.raises(FencedError, match=later.memberid()):
            former.commit()
        assert later.consume(1, WAIT_S)[0].offset() == 0


def test_wrong_subscriptions(cluster: FakeCluster) -> None:
    config = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g"}
    with KeySharedConsumer(config) as consumer:
        for topics, text in (
            ([], "no topics"),
            (["^o(.*"], "is not a regular expression"),
            (["a b"], "not a topic"),
        ):
            with pytest.raises(ValueError, match=text):
                consumer.subscribe(topics)
        consumer.unsubscribe()
        consumer.assign({T0: []})
        with pytest.raises(ValueError, match=r"unassign\(\) before subscribe"):
            consumer.subscribe(["orders"])
        consumer.unassign()
        consumer.subscribe(["orders"])
        with pytest.raises(ValueError, match=r"unsubscribe\(\) before assign"):
            consumer.assign({T0: []})
        consumer.unsubscribe()
        consumer.assign({T0: []})


def test_listeners_that_know_partitions_only() -> None:
    seen: list[list[TopicPartition]] = []
    partitions_only(seen.append)({TopicPartition("b", 1): (), T0: (HashRange(0, 5),)})
    assert seen == [[TopicPartition("b", 1), T0]]


def test_listeners_of_confluent_kafka_take_the_consumer_too(cluster: FakeCluster) -> None:
    """`on_assign(consumer, partitions)`: what it was given may be sought, with an offset."""
    seen: list[tuple[str, int]] = []

    def on_assign(consumer: KeySharedConsumer, partitions: list[RdTopicPartition]) -> None:
        for partition in partitions:
            partition.offset = RECORDS - 1
            consumer.seek(partition)
            seen.append((partition.topic, partition.partition))

    config = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": "listens",
        "auto.offset.reset": "earliest",
        "claim.timeout.ms": 500,
    }
    with KeySharedConsumer(config) as consumer:
        consumer.subscribe(["orders"], on_assigned=partitions_only(on_assign, consumer))
        message = consumer.poll(WAIT_S)
        assert message is not None
        assert message.offset() == RECORDS - 1
    assert seen == [("orders", 0)]


def test_without_the_right_to_write_to_the_log_whole_partitions_go_on(
    cluster: FakeCluster, start: Callable[..., Polling], caplog: pytest.LogCaptureFixture
) -> None:
    cluster.fail("Produce", ["TOPIC_AUTHORIZATION_FAILED"] * 100)
    with caplog.at_level("WARNING", "kshare.group"):
        only = start(auto_commit_interval_ms=100, session_timeout_ms=30_000)
        eventually(lambda: len(only.offsets) == RECORDS)
    warning = next(text for text in caplog.messages if "goes on with whole partitions" in text)
    assert f"not authorized to write to {LOG}" in warning
    kafka = group_config(cluster.bootstrap_servers).kafka

    def committed() -> int | None:
        offset = fetch_offsets(kafka, GROUP, [T0]).get(T0)
        return None if offset is None else offset.offset

    eventually(lambda: committed() == RECORDS)
    assert only.faults == []


def test_close_commits_although_a_callback_fails(cluster: FakeCluster) -> None:
    def fails(_: object) -> None:
        raise OSError("the store is down")

    settings = quick_settings(
        cluster.bootstrap_servers, auto_commit_interval_ms=60_000, session_timeout_ms=30_000
    )
    consumer = KeySharedConsumer(settings)
    consumer.subscribe(["orders"], on_revoked=fails)
    assert len(consumer.consume(RECORDS, WAIT_S)) == RECORDS
    assert consumer.consume(1, 0) == []  # so what came before is processed
    with pytest.raises(OSError, match="the store is down"):
        consumer.close()
    kafka = group_config(cluster.bootstrap_servers).kafka
    assert fetch_offsets(kafka, GROUP, [T0])[T0].offset == RECORDS
