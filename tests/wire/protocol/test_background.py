"""Calls beside one thread, where no other thread can begin.

What ends a wait for sockets.

Brokers that are searched and connected to while their reader does something else.
"""

import math
import os
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from kshare.core.progress import TopicPartition
from kshare.errors import AuthenticationError
from kshare.options import KafkaConfig
from kshare.wire.protocol.background import BackgroundBrokers, Beside, NotYetError, Waker, begin
from kshare.wire.protocol.connection import BrokerConnection
from tests.support.brokers import ONE, TWO, Cluster, FakeConnection
from tests.support.clock import WAIT_S, until


@pytest.fixture(autouse=True)
def no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is when the interpreter ends."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", start)


def test_a_call_is_made_at_once() -> None:
    woken: list[bool] = []
    made = begin(lambda: 7, "calls", lambda: woken.append(True))
    assert made.result(0) == 7
    assert woken == [True]


def test_what_it_raises_is_taken_as_ever() -> None:
    beside, failed = Beside(lambda: None), list[Exception]()
    beside.begin(lambda: 1 // 0, "fails", lambda _: None, failed.append)
    beside.take()
    assert [type(each) for each in failed] == [ZeroDivisionError]


def test_before_it_is_open_and_after_it_is_closed_it_wakes_nobody() -> None:
    waker = Waker()
    waker.wake()
    assert waker.wait(60) == []
    waker.open().close()
    waker.close()
    waker.wake()
    assert waker.wait(60) == []


def test_a_wake_up_ends_the_wait_or_the_next_one() -> None:
    waker = Waker().open()
    waker.wake()
    waker.wake()
    assert waker.wait(60) == []
    threading.Timer(0.1, waker.wake).start()
    assert waker.wait(60) == []
    assert waker.wait(0) == []
    waker.close()


@pytest.mark.parametrize("seconds", [3_000_000, 1e18, math.inf])
def test_any_time_may_be_waited_for(seconds: float) -> None:
    waker = Waker().open()
    waker.wake()
    assert waker.wait(seconds) == []
    waker.close()


def test_it_says_which_sockets_can_be_read() -> None:
    waker = Waker().open()
    (near, far), (other, unread) = socket.socketpair(), socket.socketpair()
    far.send(b"x")
    reading = dict.fromkeys([other.fileno(), near.fileno()], select.POLLIN)
    assert waker.wait(60, reading) == [near.fileno()]
    for each in (near, far, other, unread):
        each.close()
    waker.close()


def test_it_says_which_sockets_have_room() -> None:
    waker = Waker().open()
    near, far = socket.socketpair()
    near.setblocking(False)
    assert waker.wait(60, {near.fileno(): select.POLLOUT}) == [near.fileno()]
    with suppress(BlockingIOError):
        while near.send(bytes(1 << 20)):
            pass
    assert waker.wait(0, {near.fileno(): select.POLLOUT}) == []
    near.close()
    far.close()
    waker.close()


def test_what_is_closed_is_not_written_to() -> None:
    """Its number may be another file's by then."""
    waker = Waker().open()
    waker.close()
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    for _ in range(3):
        waker.wake()
    os.write(writing, b"own")
    assert os.read(reading, 100) == b"own"
    os.close(reading)
    os.close(writing)


def test_many_wake_ups_are_one_and_none_is_lost() -> None:
    waker = Waker().open()
    for _ in range(100_000):  # more than a pipe holds
        waker.wake()
    assert waker.wait(60) == []
    for _ in range(3):
        waker.wake()
        assert waker.wait(60) == []
    waker.close()
    waker.open()
    waker.wake()
    assert waker.wait(60) == []
    waker.close()


def test_nobody_waits_for_who_cannot_go_on() -> None:
    """As a signal handler runs amid a wake-up, and waits for the thread that waits."""
    waker = Waker().open()
    waker.wake()
    found = list[list[int]]()

    def others() -> None:
        found.extend(waker.wait(60) for _ in range(3))
        waker.wake()
        waker.close()

    with waker._lock:
        thread = threading.Thread(target=others)
        thread.start()
        thread.join(WAIT_S)
        assert found == [[], [], []]
        assert not thread.is_alive()
    waker.wake()  # when it leaves, it closes
    assert waker._reading == -1
    assert waker.wait(60) == []


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
