"""The test kit: the embedded cluster, and records for it."""

import collections
import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as Place

import kshare.testing
from kshare.testing import (
    FakeCluster,
    Record,
    RecordLike,
    produce,
    produce_all,
    skewed_records,
    watermarks,
)
from kshare.testing import cluster as cluster_module
from kshare.testing.records import producer_config
from tests.support.clock import WAIT_S

# -- records ---------------------------------------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"t": 2}) as running:
        yield running


def consumed(servers: str, topic: str, count: int) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "g"})
    try:
        consumer.assign([Place(topic, partition, 0) for partition in (0, 1)])
        found: list[Any] = []
        while len(found) < count:
            found += consumer.consume(count - len(found), WAIT_S)
    finally:
        consumer.close()
    return found


def test_records_arrive_as_they_are(cluster: FakeCluster) -> None:
    headers = [("h", b"1"), ("h", None)]
    sent: list[RecordLike] = [
        Record(b"k", b"v", headers, 1234, partition=1),
        Record(None, None, partition=0),
        Record("schlüssel", "wert", partition=1),
        (b"pair", None),
    ]
    assert cluster.produce("t", sent, partition=0) == 4
    found = {
        (m.partition(), m.key(), m.value()): m for m in consumed(cluster.bootstrap_servers, "t", 4)
    }
    assert set(found) == {
        (1, b"k", b"v"),
        (0, None, None),
        (1, "schlüssel".encode(), b"wert"),
        (0, b"pair", None),
    }
    first = found[1, b"k", b"v"]
    assert (first.headers(), first.timestamp()[1]) == (headers, 1234)


def test_a_refused_record_is_an_error(cluster: FakeCluster) -> None:
    cluster.fail("Produce", ["TOPIC_AUTHORIZATION_FAILED"])
    with pytest.raises(KafkaException, match="authorization"):
        cluster.produce("t", [Record(b"k", b"v")])


def test_records_that_nobody_takes(cluster: FakeCluster) -> None:
    cluster.move_leader("t", 0, None)
    with pytest.raises(TimeoutError, match=r"1 of 1 records for t not taken in 0\.2 s"):
        produce(cluster.bootstrap_servers, "t", [(b"k", b"v")], partition=0, seconds_max=0.2)


@pytest.mark.parametrize("name", ["message.timeout.ms", "delivery.timeout.ms"])
def test_records_that_have_little_time(cluster: FakeCluster, name: str) -> None:
    assert cluster.produce("t", [(b"k", b"v")], partition=0, config={name: 20_000}) == 1


def test_more_records_than_the_queue_holds(cluster: FakeCluster) -> None:
    config = {"queue.buffering.max.messages": 10}
    assert cluster.produce("t", [(b"k", b"v")] * 100, partition=0, config=config) == 100
    assert watermarks(cluster.bootstrap_servers, "t", 0) == (0, 100)


def test_a_producer_of_ones_own(cluster: FakeCluster) -> None:
    producer = Producer(producer_config(cluster.bootstrap_servers) | {"transactional.id": "x"})
    producer.init_transactions(30)
    producer.begin_transaction()
    assert produce_all(producer, "t", [(b"k", b"v")] * 3, partition=1) == 3
    producer.commit_transaction(30)
    assert watermarks(cluster.bootstrap_servers, "t", 1)[1] >= 3


def test_skewed_records_are_the_same_each_time() -> None:
    one, two = list(skewed_records(1_000, 50)), list(skewed_records(1_000, 50))
    assert one == two
    assert list(skewed_records(1_000, 50, seed=1)) != one
    counts = collections.Counter(record.key for record in one)
    assert len(counts) > 40
    assert counts[b"key-000000"] > 5 * counts[b"key-000020"] > 0
    assert {len(record.value or b"") for record in one} == {32}
    values = [record.value for record in one if isinstance(record.value, bytes)]
    assert [int(value.rstrip(b".")) for value in values] == list(range(1_000))


def test_without_skew_keys_are_even() -> None:
    counts = collections.Counter(r.key for r in skewed_records(10_000, 10, skew=0.0))
    assert max(counts.values()) < 1.2 * min(counts.values())


def test_watermarks_wait_for_a_leader(cluster: FakeCluster, monkeypatch: Any) -> None:
    cluster.move_leader("t", 0, None)
    pauses: list[float] = []

    def elect(seconds: float) -> None:
        pauses.append(seconds)
        cluster.move_leader("t", 0, 1)

    monkeypatch.setattr("kshare.testing.records.time.sleep", elect)
    assert watermarks(cluster.bootstrap_servers, "t", 0) == (0, 0)
    assert pauses


def test_watermarks_do_not_wait_for_ever(cluster: FakeCluster) -> None:
    cluster.move_leader("t", 0, None)
    with pytest.raises(KafkaException):
        watermarks(cluster.bootstrap_servers, "t", 0, seconds_max=0)


# -- the embedded cluster --------------------------------------------------------------------------


def test_brokers_and_topics() -> None:
    with FakeCluster(3, topics={"a": 2, "b": 1}) as running:
        assert len(running.bootstrap_servers.split(",")) == 3
        assert running.create_topic("c", 4) == "c"
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        topics = producer.list_topics(timeout=10).topics
        assert {name: len(topic.partitions) for name, topic in topics.items()} == {
            "a": 2,
            "b": 1,
            "c": 4,
        }
        with pytest.raises(KafkaException, match="already exists"):
            running.create_topic("a")


def test_a_closed_cluster() -> None:
    running = FakeCluster()
    servers = running.bootstrap_servers
    running.close()
    running.close()
    assert servers
    with pytest.raises(RuntimeError, match="the cluster is closed"):
        _ = running.bootstrap_servers


def test_a_cluster_needs_a_broker() -> None:
    with pytest.raises(ValueError, match="needs a broker; got 0"):
        FakeCluster(0)


def test_trimmed_records_are_gone(cluster: FakeCluster) -> None:
    cluster.produce("t", [(b"k", b"v")] * 10, partition=0)
    cluster.trim("t", 0, 4)
    assert watermarks(cluster.bootstrap_servers, "t", 0) == (4, 10)


def test_requests_are_counted_and_fail_as_told(cluster: FakeCluster) -> None:
    watermarks(cluster.bootstrap_servers, "t", 0)
    cluster.track_requests()
    cluster.fail("ListOffsets", ["NOT_LEADER_FOR_PARTITION", KafkaError.LEADER_NOT_AVAILABLE])
    assert watermarks(cluster.bootstrap_servers, "t", 0) == (0, 0)
    asked = {api: count for (_, api), count in cluster.requests().items()}
    assert asked["ListOffsets"] > 2
    cluster.track_requests()
    assert cluster.requests() == {}


def test_errors_that_are_taken_back(cluster: FakeCluster) -> None:
    cluster.fail("Produce", ["TOPIC_AUTHORIZATION_FAILED"])
    cluster.stop_failing("Produce")
    assert cluster.produce("t", [(b"k", b"v")]) == 1


def test_a_topic_with_an_error(cluster: FakeCluster) -> None:
    cluster.fail_topic("t", "TOPIC_AUTHORIZATION_FAILED")
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    assert producer.list_topics("t", timeout=10).topics["t"].error.code() == 29
    cluster.fail_topic("t", "NO_ERROR")
    assert producer.list_topics("t", timeout=10).topics["t"].error is None


def test_leaders_move_and_brokers_stop() -> None:
    with FakeCluster(2, topics={"t": 1}) as running:
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        for broker in (1, 2):
            running.move_leader("t", 0, broker)
            assert producer.list_topics("t", timeout=10).topics["t"].partitions[0].leader == broker
        running.stop_broker(2)
        running.move_leader("t", 0, 1)
        assert running.produce("t", [(b"k", b"v")]) == 1
        running.start_broker(2)
        running.move_leader("t", 0, 2)
        assert running.produce("t", [(b"k", b"v")]) == 1


def test_a_follower_serves_what_it_holds() -> None:
    with FakeCluster(2, topics={"t": 1}) as running:
        running.move_leader("t", 0, 1)
        running.produce("t", [(b"k", b"v%d" % i) for i in range(20)])
        running.set_rack(2, "here")
        running.set_follower("t", 0, 2)
        running.track_requests()
        consumer = Consumer(
            {
                "bootstrap.servers": running.bootstrap_servers,
                "group.id": "g",
                "client.rack": "here",
            }
        )
        try:
            consumer.assign([Place("t", 0, 0)])
            messages = [consumer.poll(WAIT_S) for _ in range(20)]
            found = [message.value() for message in messages if message is not None]
        finally:
            consumer.close()
        assert found == [b"v%d" % i for i in range(20)]
        assert (2, "Fetch") in running.requests()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda c: c.fail("Fetsch", ["UNKNOWN"]), "no such request: 'Fetsch'; known: Produce,"),
        (lambda c: c.fail("Fetch", ["UNKNOWEN"]), "no such error of Kafka: 'UNKNOWEN'"),
    ],
)
def test_names_that_do_not_exist(
    cluster: FakeCluster, call: Callable[[FakeCluster], None], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        call(cluster)


def test_a_partition_that_does_not_exist(cluster: FakeCluster) -> None:
    with pytest.raises(KafkaException):
        cluster.trim("t", 7, 1)


def test_an_old_librdkafka_is_named(monkeypatch: Any) -> None:
    monkeypatch.setitem(cluster_module._FUNCTIONS, "mock_of_tomorrow", (ctypes.c_int, ()))
    cluster_module._library.cache_clear()
    try:
        with pytest.raises(RuntimeError, match="no rd_kafka_mock_of_tomorrow"):
            FakeCluster()
    finally:
        cluster_module._library.cache_clear()


def test_all_names_are_there() -> None:
    assert all(hasattr(kshare.testing, name) for name in kshare.testing.__all__)
