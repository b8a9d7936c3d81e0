"""A consumer warns before retention deletes what it has not processed."""

import logging
from collections.abc import Iterator
from contextlib import closing
from typing import cast

import pytest

from kshare.core.progress import TopicPartition
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.delivery.looks import Looks
from kshare.kafka.cluster import Cluster
from kshare.kafka.topic_config import TopicConfig
from kshare.monitor.retention import EVERY_SECONDS
from kshare.testing import FakeCluster
from tests.support.clock import WAIT_S, Clock
from tests.support.fake_session import FakeSessions, fake_consumers
from tests.support.groups import T0, eventually, group_config

OLD = "orders-0: records from offset 3 on are pending and older than 80 %"


class Old:
    """A cluster with records that are nearly as old as they may be."""

    def __init__(self) -> None:
        self.asked = self.closed = 0

    def topic_configs(self, topics: object, /) -> dict[str, TopicConfig]:
        self.asked += 1
        return {"orders": TopicConfig(compacted=False, retention_ms=1_000)}

    def at_timestamps(self, timestamps_ms: object, /) -> dict[TopicPartition, int | None]:
        return {T0: None}

    def earliest(self, _: object, /) -> dict[TopicPartition, int]:
        raise AssertionError("not wanted")

    latest = earliest

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1}) as running:
        running.produce("orders", [(b"k", b"%d" % number) for number in range(10)], partition=0)
        yield running


def test_what_waits_for_a_minute_and_is_old_is_told_once(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    old, clock = Old(), Clock(5.0)
    with fake_consumers(cluster, FakeSessions()) as make:
        consumer: KeySharedConsumer = make(acknowledgement__mode="explicit")
        dispatcher = consumer._dispatcher
        dispatcher.looks = Looks(
            consumer.config.kafka, cluster=cast("Cluster", old), clock=clock.monotonic
        )
        retention = dispatcher.looks.retention
        consumer.assign({("orders", 0): []})
        messages = consumer.consume(10, WAIT_S)
        for message in messages[:3]:
            consumer.acknowledge(message)

        def look() -> None:
            consumer.poll(0)
            if retention._asking is not None:
                retention._asking.result(WAIT_S)

        with caplog.at_level(logging.WARNING, "kshare.group"):
            clock.now += EVERY_SECONDS
            look()
            assert old.asked == 0  # what has just come is not looked at
            for looks in (1, 2):
                clock.now += EVERY_SECONDS
                look()
                look()
                assert old.asked == old.closed == looks
            assert [record.message[: len(OLD)] for record in caplog.records] == [OLD]
            for message in messages:
                consumer.acknowledge(message)
            clock.now += EVERY_SECONDS
            look()
            assert old.asked == 2  # nothing is pending


def test_a_cluster_is_asked_with_new_connections_each_time(cluster: FakeCluster) -> None:
    with fake_consumers(cluster, FakeSessions()) as make, closing(make()) as consumer:
        asked = Cluster(consumer.config.kafka)
        for _ in range(2):
            with closing(asked):
                assert asked.earliest([T0]) == {T0: 0}
                assert asked.latest([T0]) == {T0: 10}
                assert asked.at_timestamps({T0: 1}).keys() == {T0}


def test_the_end_of_what_is_paused_is_asked_for_and_so_it_has_a_lag(cluster: FakeCluster) -> None:
    clock = Clock(5.0)
    with fake_consumers(cluster, FakeSessions()) as make:
        consumer: KeySharedConsumer = make(acknowledgement__mode="explicit")
        looks = Looks(consumer.config.kafka, clock=clock.monotonic)
        consumer._dispatcher.looks = looks

        def lag() -> int | None:
            consumer.poll(0.01)
            return consumer.metrics().partitions[T0].lag

        def has_asked() -> bool:
            asking = looks.paused_logs._asking
            return asking is not None and asking.done()

        consumer.assign([T0])
        assert len(consumer.consume(4, WAIT_S)) == 4
        consumer.pause([T0])
        eventually(lambda: lag() == 10 and has_asked())  # none is acknowledged
        cluster.produce("orders", [(b"k", b"v")] * 5, partition=0)
        clock.now += 4.9
        for _ in range(3):
            assert lag() == 10
        clock.now += 0.2
        eventually(lambda: lag() == 15)
        consumer.resume([T0])
        assert len(consumer.consume(11, WAIT_S)) == 11
        looks.paused_logs.bounds = {T0: (0, 99)}  # old ones count no more
        assert lag() == 15
        consumer.pause([T0])
        assert lag() == 15  # as was read last: it is not time to ask
        looks.paused_logs.bounds = {T0: (0, 12)}
        assert lag() is None


def test_a_paused_partition_without_a_leader_hides_no_end_of_others(cluster: FakeCluster) -> None:
    cluster.create_topic("payments")
    away = TopicPartition("payments", 0)
    cluster.move_leader("payments", 0, None)
    paused = Looks(group_config(cluster.bootstrap_servers).kafka).paused_logs
    for partition in (T0, away, TopicPartition("orders", 1)):
        paused.note(partition, (0, 7))
    paused.look([T0, away])
    assert paused._asking is not None
    paused._asking.result(WAIT_S)
    assert paused.bounds == {T0: (0, 10), away: (0, 7)}  # of that one, what was known
