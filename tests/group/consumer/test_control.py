"""Assigning, seeking and pausing, and the policies that forbid some of it."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import TopicPartition as RdTopicPartition

from kshare.core.hashing import HASH_SPACE, HashRange
from kshare.core.progress import Progress, TopicPartition
from kshare.errors import PolicyError
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.kafka.policies import Policy
from kshare.testing import FakeCluster
from tests.group.consumer.records import MIDDLE, ORDERS, fill, offsets, take
from tests.support.clock import WAIT_S, until
from tests.support.fake_session import FakeSessions
from tests.support.groups import LOG, quick_settings
from tests.support.policies import FakePolicies


def test_seek_pause_and_resume(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 100)
    consumer = make()
    consumer.assign([RdTopicPartition("orders", 0, 90)])
    assert offsets(take(consumer, 5)) == list(range(90, 95))
    assert offsets(take(consumer, 5)) == list(range(95, 100))
    consumer.seek(("orders", 0), 10)
    assert offsets(take(consumer, 3)) == [10, 11, 12]
    consumer.pause([ORDERS])
    assert consumer.poll(0.1) is None
    consumer.resume([("orders", 0)])
    assert offsets(take(consumer, 2)) == [13, 14]
    assert consumer.position() == {ORDERS: 15}
    # What was passed over is pending: only what was returned is processed.
    assert consumer.commit() == {ORDERS: 0}
    assert not group.processed(ORDERS, 9)
    assert group.processed(ORDERS, 14)
    assert not group.processed(ORDERS, 15)
    # What the last call had returned comes again, and counts then.
    assert group.processed(ORDERS, 94)
    assert not group.processed(ORDERS, 95)
    for wrong in [("orders", 1), ("", 0), "orders"]:
        with pytest.raises(ValueError, match="not "):
            consumer.pause([wrong])
    with pytest.raises(ValueError, match="no offset to seek to"):
        consumer.seek(("orders", 0))
    with pytest.raises(ValueError, match="cannot start at offset -5"):
        consumer.seek(("orders", 0), -5)


@pytest.mark.parametrize("is_subscribed", [False, True])
def test_a_record_that_failed_comes_again_after_a_seek_back_to_it(is_subscribed: bool) -> None:
    """Of what the last call returned, nothing counts that the seek hands out again."""
    with FakeCluster(topics={LOG: 1, "orders": 1}) as cluster:
        _fails_at_four(cluster, is_subscribed=is_subscribed)


def _fails_at_four(cluster: FakeCluster, *, is_subscribed: bool) -> None:
    cluster.produce("orders", [(f"k{number % 5}", "") for number in range(20)], partition=0)
    settings = quick_settings(cluster.bootstrap_servers)
    with KeySharedConsumer(settings) as consumer:
        if is_subscribed:
            consumer.subscribe(["orders"])
        else:
            consumer.assign([ORDERS])
        assert offsets(take(consumer, 10)) == list(range(10))
        consumer.seek(ORDERS, 4)
        assert offsets(take(consumer, 1)) == [4]
    # The mock coordinator takes no commit of one that assigns, once there was a member.
    with KeySharedConsumer(settings | {"enable.auto.commit": False}) as consumer:
        consumer.assign([ORDERS])
        assert consumer.committed([ORDERS])[ORDERS].offset == 4
        assert offsets(take(consumer, 3)) == [4, 5, 6]


def test_the_leader_epochs_of_what_was_read_stay_known(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 20)
    consumer = make()
    consumer.assign({("orders", 0): []})
    take(consumer, 10)
    epochs = group.members[0].leader_epochs
    assert epochs(ORDERS).before(10) == 0
    consumer.pause([ORDERS])
    assert epochs(ORDERS).before(10) == 0
    consumer.resume([ORDERS])
    assert epochs(ORDERS).before(10) == 0
    consumer.assign({("orders", 1): []})
    assert epochs(ORDERS).before(10) == 0
    assert epochs(TopicPartition("orders", 1)).before(10) is None


@pytest.mark.parametrize(
    ("assignment", "fault"),
    [
        ({("orders", 0): [(0, 10), (5, 20)]}, "overlap"),
        ({("orders", 0): [(10, 5)]}, "not a hash range"),
        ({("orders", 0): [(1, 2, 3)]}, "orders-0"),
        ({("or ders", 0): []}, "cannot be a topic"),
        ([("orders", 0), RdTopicPartition("orders", 0)], "twice"),
        ([("orders", -1)], "not a partition"),
    ],
)
def test_wrong_assignments(
    make: Callable[..., KeySharedConsumer], assignment: Any, fault: str
) -> None:
    with pytest.raises(ValueError, match=fault):
        make().assign(assignment)


# -- policies -------------------------------------------------------------------------------------


def test_whole_partitions_only_without_individual_commits(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 20)
    consumer = make(allow__individual__commit=False, acknowledgement__mode="explicit")
    with pytest.raises(ValueError, match=r"allow\.individual\.commit"):
        consumer.assign({("orders", 0): [(0, 5)]})
    consumer.assign({("orders", 0): [(0, MIDDLE), (MIDDLE, HASH_SPACE)]})
    messages = take(consumer, 20)
    for message in messages[:5] + messages[6:]:
        consumer.acknowledge(message)
    assert consumer.commit() == {ORDERS: 5}
    assert group.done[ORDERS] == Progress.at(5)


@pytest.mark.parametrize(
    "policy", [Policy("accept.individual.commit"), Policy("accept.range.fetch", "orders")]
)
def test_a_policy_that_does_not_accept_key_ranges(
    cluster: FakeCluster,
    group: FakeSessions,
    make: Callable[..., KeySharedConsumer],
    policies: FakePolicies,
    policy: Policy,
) -> None:
    consumer = make()
    fill(cluster, 20)
    consumer.assign({("orders", 0): [(0, MIDDLE)]})
    assert consumer.poll(WAIT_S) is not None
    policies.denied.add(policy)
    with pytest.raises(PolicyError, match=f"orders-0: key ranges .* policy {policy.name}") as found:
        consumer.commit()
    assert (found.value.policy, found.value.topic or "") == policy
    with pytest.raises(PolicyError, match="assign whole partitions"):
        consumer.assign({("orders", 0): [(5, 9)]})
    assert consumer.assignment() == {ORDERS: (HashRange(0, MIDDLE),)}
    consumer.assign({("orders", 0): [(0, MIDDLE), (MIDDLE, HASH_SPACE)], ("orders", 1): []})
    take(consumer, 20)
    assert consumer.commit() == {ORDERS: 20, TopicPartition("orders", 1): 0}
    consumer.close()
    assert policies.is_closed


def test_a_policy_that_turns_false_is_raised_to_who_polls_with_auto_commit(
    cluster: FakeCluster,
    make: Callable[..., KeySharedConsumer],
    policies: FakePolicies,
) -> None:
    """Else records of the key range are handed out for ever, and never committed."""
    fill(cluster, 500)
    consumer = make(enable__auto__commit=True, auto__commit__interval__ms=10)
    consumer.assign({("orders", 0): [(0, MIDDLE)]})
    assert consumer.poll(WAIT_S) is not None
    policies.denied.add(Policy("accept.range.fetch", "orders"))
    with pytest.raises(PolicyError, match="orders-0: key ranges are not accepted"):
        until(lambda: consumer.poll(0.02) and False)
    with pytest.raises(PolicyError):
        consumer.poll(0.02)


def test_plain_offsets_only_where_a_policy_says_so(
    cluster: FakeCluster,
    group: FakeSessions,
    make: Callable[..., KeySharedConsumer],
    policies: FakePolicies,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(cluster, 20)
    consumer = make(acknowledgement__mode="explicit")
    consumer.assign({("orders", 0): []})
    messages = take(consumer, 20)
    for message in messages[:5] + messages[6:10]:
        consumer.acknowledge(message)
    assert consumer.commit() == {ORDERS: 5}
    assert not group.done[ORDERS].is_level
    policies.denied.add(Policy("accept.individual.commit"))
    group.done = {}
    for _ in range(2):
        assert consumer.commit() == {ORDERS: 5}
    assert group.done[ORDERS] == Progress.at(5)
    assert caplog.text.count("policy accept.individual.commit is false") == 1
    policies.denied.clear()
    consumer.commit()
    assert not group.done[ORDERS].is_level
