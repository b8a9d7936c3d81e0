"""Which partitions a consumer reads, and where it begins: what is given, and what is refused."""

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, OFFSET_STORED
from confluent_kafka import TopicPartition as RdTopicPartition

from kshare.core.hashing import key_hash
from kshare.core.progress import TopicPartition
from kshare.errors import ConsumerClosedError, OptionsError, UnknownTopicError
from kshare.group.consumer import topic_lookup
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.consumer.topic_lookup import check_existence
from kshare.testing import FakeCluster
from tests.support.clock import until
from tests.support.effort import calls_below
from tests.support.fake_session import FakeSessions
from tests.support.groups import (
    LOG,
    LOWER,
    SECONDS,
    T0,
    commit,
    group_config,
    member,
    rectangle,
)

Make = Callable[..., KeySharedConsumer]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 2}) as running:
        running.produce("orders", [(b"k", b"v")] * 20, partition=0)
        yield running


@pytest.fixture
def group() -> FakeSessions:
    return FakeSessions(initial={T0: 7})


@pytest.mark.parametrize(
    ("given", "first"),
    [
        (OFFSET_BEGINNING, 3),
        (OFFSET_STORED, 7),
        (OFFSET_INVALID, 7),
        (5, 5),
    ],
)
def test_an_assigned_partition_begins_where_its_offset_says(
    cluster: FakeCluster, make: Make, given: int, first: int
) -> None:
    cluster.trim("orders", 0, 3)
    consumer = make()
    consumer.assign([RdTopicPartition("orders", 0, given)])
    message = consumer.poll(SECONDS)
    assert message is not None
    assert message.offset() == first
    rest = [each.offset() for each in consumer.consume(19 - first, SECONDS)]
    assert rest == list(range(first + 1, 20))
    assert consumer.consume(1, 0.1) == []


def test_an_offset_holds_though_other_key_hashes_are_assigned(
    cluster: FakeCluster, make: Make, group: FakeSessions
) -> None:
    cluster.produce("orders", [(f"k{i}", b"v") for i in range(20)], partition=0)
    consumer = make()
    consumer.assign({T0: [(0, LOWER.hi)]})
    consumer.consume(20, 0.5)
    consumer.commit()
    consumer.assign([RdTopicPartition("orders", 0, 5)])
    assert [each.offset() for each in consumer.consume(35, SECONDS)] == list(range(5, 40))
    consumer.assign({T0: [(0, LOWER.hi)]})
    consumer.seek(T0, 22)
    of_lower = [i for i in range(20, 40) if key_hash(b"k%d" % (i - 20), i) in LOWER and i >= 22]
    assert [m.offset() for m in consumer.consume(len(of_lower), SECONDS)][:3] == of_lower[:3]


def test_an_offset_holds_though_another_partition_is_assigned_before_the_start(
    make: Make, group: FakeSessions
) -> None:
    """As docs/consumer.md has it: what does not change goes on undisturbed."""
    group.holds_back = True
    consumer = make()
    consumer.assign([RdTopicPartition("orders", 0, OFFSET_BEGINNING)])
    consumer.assign([RdTopicPartition("orders", 0), RdTopicPartition("orders", 1)])
    group.holds_back = False
    group.members[-1].change()
    assert [each.offset() for each in consumer.consume(20, SECONDS)] == list(range(20))


def test_a_partition_that_begins_at_its_end_has_what_comes_later(
    cluster: FakeCluster, make: Make
) -> None:
    consumer = make()
    consumer.assign([RdTopicPartition("orders", 0, OFFSET_END)])
    until(lambda: consumer.poll(0.05) is None and consumer.position() == {T0: 20})
    cluster.produce("orders", [(b"k", b"v")], partition=0)
    message = consumer.poll(SECONDS)
    assert message is not None
    assert message.offset() == 20


def test_a_seek_to_the_beginning_and_to_the_end(cluster: FakeCluster, make: Make) -> None:
    cluster.trim("orders", 0, 3)
    consumer = make()
    consumer.assign([("orders", 0)])
    assert len(consumer.consume(13, SECONDS)) == 13
    consumer.seek(RdTopicPartition("orders", 0, OFFSET_BEGINNING))
    assert [each.offset() for each in consumer.consume(17, SECONDS)] == list(range(3, 20))
    consumer.seek(("orders", 0), 3)
    consumer.seek(("orders", 0), OFFSET_END)
    assert consumer.poll(0.2) is None


@pytest.mark.parametrize("offset", [-3, -999, -2000])
def test_other_negative_offsets_are_refused(make: Make, offset: int) -> None:
    with pytest.raises(ValueError, match=f"orders-0: cannot start at offset {offset}"):
        make().assign([RdTopicPartition("orders", 0, offset)])


def test_partitions_that_do_not_exist_are_refused_at_once(make: Make) -> None:
    consumer = make()
    consumer.assign([("orders", 0)])
    text = "orders-2 does not exist: topic orders has partitions 0 to 1"
    with pytest.raises(UnknownTopicError, match=text) as caught:
        consumer.assign([("orders", 0), ("orders", 2)])
    assert (caught.value.topic, caught.value.partition) == ("orders", 2)
    with pytest.raises(UnknownTopicError, match="no-such-topic"):
        consumer.assign({("no-such-topic", 0): [(0, 10)]})
    assert consumer.assignment() == {T0: ()}  # as before


def test_what_it_takes_to_look_whether_partitions_exist_grows_with_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    partitions = {TopicPartition("orders", number) for number in range(1_000)}
    cluster = SimpleNamespace(
        partitions=lambda _: partitions, shorten_timeout=lambda _: None, close=lambda: None
    )
    monkeypatch.setattr(topic_lookup, "Cluster", lambda _: cluster)
    with calls_below(5_000):
        check_existence(group_config("b:9092").kafka, partitions)
    with (
        pytest.raises(UnknownTopicError, match="orders has partitions 0 to 999"),
        calls_below(5_000),
    ):
        check_existence(group_config("b:9092").kafka, {TopicPartition("orders", 1_000)})


def test_brokers_that_do_not_answer_keep_nobody_from_assigning(
    cluster: FakeCluster, make: Make
) -> None:
    cluster.stop_broker(1)
    consumer = make()
    consumer.assign([("orders", 0)])
    cluster.start_broker(1)
    assert consumer.poll(SECONDS) is not None


@pytest.mark.parametrize(
    "receive",
    [
        lambda consumer: consumer.poll(0.1),
        lambda consumer: consumer.consume(10, 0.1),
        lambda consumer: consumer.consume_batch(0.1),
        lambda consumer: next(iter(consumer)),
    ],
)
def test_receiving_before_anything_was_assigned_is_an_error(
    make: Make, receive: Callable[[KeySharedConsumer], object]
) -> None:
    consumer = make()
    with pytest.raises(RuntimeError, match=r"call subscribe\(\) or assign\(\) before"):
        receive(consumer)
    consumer.assign([("orders", 1)])
    assert consumer.poll(0.1) is None
    consumer.unassign()
    assert consumer.poll(0.1) is None


def test_only_the_records_of_some_keys(
    cluster: FakeCluster, make: Make, group: FakeSessions
) -> None:
    group.initial = {}
    cluster.produce("orders", [(b"x", b"v"), (b"k", b"v"), (b"y", b"v")], partition=0)
    consumer = make(keys='["x", "y"]')
    consumer.assign([("orders", 0)])
    assert [each.offset() for each in consumer.consume(2, SECONDS)] == [20, 22]
    assert consumer.poll(0.1) is None
    assert consumer.commit() == {T0: 23}
    with pytest.raises(OptionsError, match=r"consumption\.order: none contradicts keys"):
        make(keys='["x"]', consumption__order="none")


def test_what_is_committed_is_known_before_anything_is_assigned(cluster: FakeCluster) -> None:
    cluster.create_topic(LOG)
    servers = cluster.bootstrap_servers
    with member(servers, LOWER) as session:
        commit(session, rectangle(0, 10, LOWER))
    with KeySharedConsumer(group_config(servers)) as consumer:
        found = consumer.committed([("orders", 0), ("orders", 1)])
        assert consumer.committed() == {}
    assert found.keys() == {T0}
    assert (found[T0].offset, *found[T0].individual_commits) == (0, rectangle(0, 10, LOWER))


@pytest.mark.parametrize("what", ["x", None, ("orders", 0, 5)])
def test_only_a_message_can_be_acknowledged(make: Make, what: Any) -> None:
    consumer = make(acknowledgement__mode="explicit")
    with pytest.raises(TypeError, match="wanted a message that this consumer returned, not a"):
        consumer.acknowledge(what)
    if what is not None:
        with pytest.raises(TypeError, match="wanted a message that this consumer returned, not a"):
            consumer.commit(message=what)


def test_a_closed_consumer_says_so_also_if_no_records_are_wanted(make: Make) -> None:
    consumer = make()
    consumer.assign([("orders", 0)])
    assert consumer.consume(0) == []
    consumer.close()
    with pytest.raises(ConsumerClosedError):
        consumer.consume(0)


def test_after_close_nothing_is_waited_for(cluster: FakeCluster) -> None:
    cluster.create_topic(LOG)
    consumer = KeySharedConsumer(group_config(cluster.bootstrap_servers))
    consumer.assign([("orders", 0)])
    consumer.close()
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match="Consumer closed"):
        consumer.committed([("orders", 0)])
    assert time.monotonic() - begun < 50  # of 60
