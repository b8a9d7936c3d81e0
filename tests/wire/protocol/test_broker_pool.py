"""Connections that are kept, and brokers that are left alone after a failure."""

import os
from typing import Any

import pytest

from kshare.errors import AuthenticationError
from kshare.options import KafkaConfig, parse_options
from kshare.wire.protocol import broker_pool
from kshare.wire.protocol.broker_pool import Leaders, LeaderUnknownError
from tests.support.clock import Clock

ONE, TWO = ("one", 1), ("two", 2)
BOTH = f"{ONE[0]}:{ONE[1]},{TWO[0]}:{TWO[1]}"
LONG_MAX = 2**63 - 1


class Brokers:
    """Stands in for connections; ``down`` holds what ails a broker."""

    def __init__(self) -> None:
        self.down: dict[tuple[str, int], Exception] = {}
        self.tried: list[tuple[str, int]] = []

    def connect(self, host: str, port: int, kafka: KafkaConfig) -> "Brokers.Connection":
        self.tried.append((host, port))
        if (host, port) in self.down:
            raise self.down[host, port]
        return Brokers.Connection(host, port)

    class Connection:
        def __init__(self, host: str, port: int) -> None:
            self.broker = f"{host}:{port}"
            self.idle = True
            self.closed = False

        def close(self) -> None:
            self.closed = True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(broker_pool, "time", made)
    monkeypatch.setattr(broker_pool, "_memory", broker_pool._Memory())
    return made


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Brokers:
    """Broker one leads."""
    made = Brokers()

    def ask(connection: Any, topic: str, partition: int) -> Any:
        return ONE, {1: ONE, 2: TWO}

    monkeypatch.setattr(broker_pool, "Connection", made.connect)
    monkeypatch.setattr(broker_pool, "_ask", ask)
    return made


def known(servers: str = BOTH, **more: str) -> Leaders:
    """Leaders by parsed options; dots of names are written as two underscores."""
    given = {f"kafka.{name.replace('__', '.')}": text for name, text in more.items()}
    given |= {"kafka.bootstrap.servers": servers, "subscribe": "t"}
    return Leaders(parse_options(given, streaming=True).options.kafka)


def read(found: Leaders, node_id: int | None = None) -> Any:
    with found.connection("t", 0, node_id) as connection:
        return connection


def fail(found: Leaders, error: Exception | None = None) -> None:
    with (
        pytest.raises(OSError, match="gone"),
        found.connection("t", 0),
    ):
        raise error or ConnectionResetError("gone")


# -- idle connections -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "seconds"), [("-1", 240), ("540000", 240), ("240001", 240), ("5000", 5), ("0", 0)]
)
def test_a_connection_is_used_again_as_long_as_it_may_be_idle(
    brokers: Brokers, clock: Clock, given: str, seconds: float
) -> None:
    found = known(connections__max__idle__ms=given)
    first = read(found)
    if seconds:
        clock.now += seconds - 0.1
        assert read(found) is first
    clock.now += seconds
    assert read(found) is not first
    assert first.closed


def test_what_is_idle_for_too_long_is_closed_beside_what_is_not(
    brokers: Brokers, clock: Clock
) -> None:
    found = known(connections__max__idle__ms="5000")
    with found.connection("t", 0) as newer:
        older = read(found)
        clock.now += 4
    clock.now += 4
    assert read(found) is newer
    assert (older.closed, newer.closed) == (True, False)


# -- reconnect.backoff.* --------------------------------------------------------------------------


def pauses(brokers: Brokers, clock: Clock, found: Leaders, count: int) -> list[float]:
    """What is slept before each connection to broker one, which fails at once again."""
    brokers.down[ONE] = ConnectionRefusedError("gone")
    clock.slept.clear()
    for _ in range(count):
        with pytest.raises(OSError, match="gone"):
            read(found)
    return clock.slept


def test_a_broker_whose_connection_failed_is_left_alone_for_longer_and_longer(
    brokers: Brokers, clock: Clock
) -> None:
    found = known("one:1", reconnect__backoff__ms="2000", reconnect__backoff__max__ms="10000")
    slept = pauses(brokers, clock, found, 6)
    assert len(slept) == 5  # before the first there is no pause
    for pause, meant in zip(slept, (2, 4, 8, 10, 10), strict=True):
        assert 0.8 * meant <= pause <= min(1.2 * meant, 10) + 1e-6


def test_by_default_it_is_as_in_javas_client(brokers: Brokers, clock: Clock) -> None:
    slept = pauses(brokers, clock, known("one:1"), 8)
    for pause, meant in zip(slept, (0.05, 0.1, 0.2, 0.4, 0.8, 1, 1), strict=True):
        assert 0.79 * meant <= pause <= min(1.21 * meant, 1.001)


def test_a_first_pause_without_a_longest_one_is_both(brokers: Brokers, clock: Clock) -> None:
    slept = pauses(brokers, clock, known("one:1", reconnect__backoff__ms="3000"), 4)
    assert len(slept) == 3
    assert all(2.39 <= pause <= 3.01 for pause in slept)


def test_a_failure_amid_reading_counts_and_a_success_ends_it(
    brokers: Brokers, clock: Clock
) -> None:
    found = known("one:1", reconnect__backoff__ms="2000", reconnect__backoff__max__ms="60000")
    for _ in range(3):
        fail(found)
        clock.slept.clear()
        read(found)
        (pause,) = clock.slept
        assert 1.59 <= pause <= 2.41  # it never grows: each connection was made
        broker_pool.close_idle()
    brokers.tried.clear()
    clock.slept.clear()
    read(found)
    assert clock.slept == []
    assert len(brokers.tried) == 1


def test_what_is_no_fault_of_the_connection_asks_for_no_pause(
    brokers: Brokers, clock: Clock
) -> None:
    found = known("one:1", reconnect__backoff__ms="2000")
    with pytest.raises(ValueError, match="of a consumer"), found.connection("t", 0):
        raise ValueError("of a consumer")
    read(found)
    assert clock.slept == []


def test_time_that_has_passed_counts(brokers: Brokers, clock: Clock) -> None:
    found = known("one:1", reconnect__backoff__ms="2000")
    fail(found)
    clock.now += 1.5
    read(found)
    assert 0 < sum(clock.slept) <= 0.51
    fail(found)
    clock.slept.clear()
    clock.now += 3
    read(found)
    assert clock.slept == []


def test_several_readers_of_one_failure_count_it_once(brokers: Brokers, clock: Clock) -> None:
    found = known("one:1", reconnect__backoff__ms="2000", reconnect__backoff__max__ms="60000")
    connections = [found.connection("t", 0) for _ in range(4)]
    for entered in connections:
        entered.__enter__()
    error = ConnectionResetError("gone")
    for entered in connections:
        assert not entered.__exit__(type(error), error, None)
    read(found)
    assert 1.59 <= sum(clock.slept) <= 2.41


def test_other_brokers_are_not_waited_for(brokers: Brokers, clock: Clock) -> None:
    found = known(reconnect__backoff__ms="2000", reconnect__backoff__max__ms="60000")
    read(found)
    broker_pool.close_idle()
    fail(found)
    assert read(found, node_id=2).broker == "two:2"
    broker_pool.close_idle()
    found.forget("t", 0)
    brokers.tried.clear()
    assert found._leader("t", 0) == ONE
    assert brokers.tried == [TWO]  # asked who leads in place of broker one
    assert clock.slept == []


def test_of_bootstrap_servers_that_fail_all_are_named(brokers: Brokers, clock: Clock) -> None:
    found = known(reconnect__backoff__ms="2000", reconnect__backoff__max__ms="60000")
    brokers.down = {ONE: ConnectionRefusedError("no"), TWO: TimeoutError("late")}
    for _ in range(2):
        with pytest.raises(LeaderUnknownError) as caught:
            read(found)
        assert "one:1: no" in str(caught.value)
        assert "two:2: late" in str(caught.value)
    assert brokers.tried[:2] == [ONE, TWO]
    assert sorted(brokers.tried[2:]) == [ONE, TWO]
    assert sum(clock.slept) <= 2.41  # both pauses run at the same time


def test_a_bootstrap_server_that_does_not_answer_is_left_alone_too(
    brokers: Brokers, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(connection: Any, topic: str, partition: int) -> Any:
        if connection.broker == "one:1":
            raise TimeoutError("late")
        return TWO, {1: ONE, 2: TWO}

    monkeypatch.setattr(broker_pool, "_ask", ask)
    found = known(reconnect__backoff__ms="2000")
    assert read(found).broker == "two:2"
    found.forget("t", 0)
    assert read(found).broker == "two:2"
    assert brokers.tried == [ONE, TWO]
    assert clock.slept == []


def test_no_pause_outlasts_the_readers_patience(brokers: Brokers, clock: Clock) -> None:
    found = known(
        "one:1",
        reconnect__backoff__ms=str(LONG_MAX),
        reconnect__backoff__max__ms=str(LONG_MAX),
        default__api__timeout__ms="7000",
    )
    fail(found)
    read(found)
    assert clock.slept == [7.0]


def test_a_refused_login_is_told_and_remembered_as_no_outage(
    brokers: Brokers, clock: Clock
) -> None:
    found = known("one:1", reconnect__backoff__ms="2000")
    brokers.down[ONE] = AuthenticationError("wrong password")
    for _ in range(2):
        with pytest.raises(AuthenticationError, match="wrong password"):
            read(found)
    assert clock.slept == []


def test_a_forked_child_remembers_no_outage(
    brokers: Brokers, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = known("one:1", reconnect__backoff__ms="2000")
    fail(found)
    parent = os.getpid()
    monkeypatch.setattr(broker_pool.os, "getpid", lambda: parent + 1)
    read(found)
    assert clock.slept == []
