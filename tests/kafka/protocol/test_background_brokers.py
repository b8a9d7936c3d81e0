"""Brokers that are searched and connected to while their reader does something else."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from kshare.core.progress import TopicPartition
from kshare.errors import AuthenticationError
from kshare.kafka.protocol.background import BackgroundBrokers, NotYetError
from kshare.kafka.protocol.connection import BrokerConnection
from kshare.options import KafkaConfig
from tests.support.brokers import ONE, TWO, Cluster, FakeConnection
from tests.support.clock import until

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


@dataclass
class SlowCluster(Cluster):
    """One whose brokers are connected to when the test says so.

    Attributes:
        gate: Lets connections through.
        woken: Whether the reader was woken.
    """

    gate: threading.Event = field(default_factory=threading.Event)
    woken: threading.Event = field(default_factory=threading.Event)

    def connect(self, host: str, port: int, kafka: KafkaConfig) -> FakeConnection:
        assert self.gate.wait(60)
        return super().connect(host, port, kafka)

    def go_on(self) -> None:
        """Let one thing through, and wait until the reader is woken."""
        self.gate.set()
        assert self.woken.wait(60)
        self.gate.clear()
        self.woken.clear()


@pytest.fixture
def cluster() -> SlowCluster:
    return SlowCluster()


def in_background(cluster: SlowCluster) -> BackgroundBrokers:
    return BackgroundBrokers(
        cluster.kafka(),
        cluster.woken.set,
        connect=cluster.connect,
        memory=lambda: cluster.memory,
        clock=cluster.clock,
    )


@pytest.fixture
def brokers(cluster: SlowCluster) -> Iterator[BackgroundBrokers]:
    running = in_background(cluster)
    yield running
    cluster.gate.set()
    running.close()


def connected(brokers: BackgroundBrokers, cluster: SlowCluster) -> BrokerConnection:
    with pytest.raises(NotYetError, match="one:1 is being connected to"):
        brokers.lease(ONE)
    cluster.go_on()
    return brokers.lease(ONE)


def test_leaders_are_searched_once_for_all_that_ask_meanwhile(
    brokers: BackgroundBrokers, cluster: SlowCluster
) -> None:
    for wanted in ([A], [A], [A, B], [A, B]):
        searched = brokers.leaders(wanted)
        assert {tp: type(leader) for tp, leader in searched.items()} == dict.fromkeys(
            wanted, NotYetError
        )
    cluster.gate.set()
    until(lambda: brokers.leaders([A, B]) == {A: ONE, B: ONE})
    assert len(cluster.asked) == 2


def test_a_leader_that_was_forgotten_is_searched_again(
    brokers: BackgroundBrokers, cluster: SlowCluster
) -> None:
    brokers.leaders([A])
    cluster.go_on()
    cluster.leader = 2
    brokers.forget(A)  # before the answer was taken
    while isinstance(leader := brokers.leaders([A])[A], NotYetError):
        cluster.go_on()
    assert leader == TWO


def test_a_login_that_is_refused_is_raised_once(
    brokers: BackgroundBrokers, cluster: SlowCluster
) -> None:
    cluster.down = dict.fromkeys((ONE, TWO), AuthenticationError("wrong password"))
    brokers.leaders([A, B])
    cluster.go_on()
    with pytest.raises(AuthenticationError, match="wrong password"):
        brokers.leaders([A, B])
    assert {type(leader) for leader in brokers.leaders([A, B]).values()} == {NotYetError}
    with pytest.raises(NotYetError):
        brokers.lease(ONE)
    cluster.woken.clear()
    cluster.gate.set()
    assert cluster.woken.wait(60)


def test_connections_are_made_meanwhile_and_kept_by_the_pool(
    brokers: BackgroundBrokers, cluster: SlowCluster
) -> None:
    connection = connected(brokers, cluster)
    assert cluster.tried == [ONE]
    brokers.release(ONE, connection)
    assert brokers.lease(ONE) is connection  # at once
    brokers.discard(ONE, connection)
    assert connected(brokers, cluster) is not connection


def test_a_connection_that_fails_is_made_again(
    brokers: BackgroundBrokers, cluster: SlowCluster
) -> None:
    cluster.down[ONE] = ConnectionRefusedError("nobody listens")
    with pytest.raises(ConnectionRefusedError):
        connected(brokers, cluster)
    del cluster.down[ONE]
    assert connected(brokers, cluster).idle
    assert cluster.clock.slept  # what the pool waits for, its reader does not


def test_a_connection_that_ended_before_it_was_taken_is_made_again(
    brokers: BackgroundBrokers, cluster: SlowCluster
) -> None:
    with pytest.raises(NotYetError):
        brokers.lease(ONE)
    cluster.go_on()
    (made,) = brokers._connecting.values()
    old = made.result()
    assert isinstance(old, FakeConnection)
    old.idle = False
    assert connected(brokers, cluster) is not old
    assert old.closed


def test_what_is_made_after_the_end_is_for_the_next_reader(
    brokers: BackgroundBrokers, cluster: SlowCluster
) -> None:
    with pytest.raises(NotYetError):
        brokers.lease(ONE)
    brokers.close()
    cluster.go_on()
    another = in_background(cluster)
    assert another.lease(ONE).idle
