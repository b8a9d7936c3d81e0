"""Connections that are kept, and brokers that are left alone after a failure."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kshare.core.progress import TopicPartition
from kshare.errors import AuthenticationError, UnknownTopicError
from kshare.kafka.protocol import broker_pool
from kshare.kafka.protocol.broker_pool import BrokerPool, PoolMemory
from kshare.kafka.protocol.messages import LeaderUnknownError
from kshare.process_local import ProcessLocal
from tests.support.brokers import FOUR, ONE, THREE, TWO, Cluster

LONG_MAX = 2**63 - 1
PARTITION = TopicPartition("t", 0)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@contextmanager
def leased(pool: BrokerPool, node_id: int | None = None) -> Iterator[Any]:
    """A connection to the leader or to another broker, as a reader uses it."""
    address = pool.leaders([PARTITION])[PARTITION] if node_id is None else pool.address(node_id)
    if isinstance(address, Exception):
        raise address
    try:
        connection = pool.lease(address)
    except OSError:
        pool.forget(PARTITION)
        raise
    try:
        yield connection
    except OSError:
        pool.discard(address, connection)
        raise
    except BaseException:
        connection.close()
        raise
    pool.release(address, connection)


def read(pool: BrokerPool, node_id: int | None = None) -> Any:
    with leased(pool, node_id) as connection:
        return connection


def fail(pool: BrokerPool, error: Exception | None = None) -> None:
    with pytest.raises(OSError, match="gone"), leased(pool):
        raise error or ConnectionResetError("gone")


# -- idle connections -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "seconds"), [("-1", 240), ("540000", 240), ("240001", 240), ("5000", 5), ("0", 0)]
)
def test_a_connection_is_used_again_as_long_as_it_may_be_idle(
    cluster: Cluster, given: str, seconds: float
) -> None:
    found = cluster.pool(connections__max__idle__ms=given)
    first = read(found)
    if seconds:
        cluster.clock.now += seconds - 0.1
        assert read(found) is first
    cluster.clock.now += seconds
    assert read(found) is not first
    assert first.closed


def test_what_is_idle_for_too_long_is_closed_beside_what_is_not(cluster: Cluster) -> None:
    found = cluster.pool(connections__max__idle__ms="5000")
    with leased(found) as newer:
        older = read(found)
        cluster.clock.now += 4
    cluster.clock.now += 4
    assert read(found) is newer
    assert (older.closed, newer.closed) == (True, False)


def test_what_is_idle_for_too_long_is_closed_when_another_broker_is_asked(cluster: Cluster) -> None:
    """Whoever asks, and however long its own connections may be idle."""
    found, longer = (cluster.pool(connections__max__idle__ms=text) for text in ("5000", "60000"))
    old, of_longer = read(found), read(longer)
    cluster.clock.now += 5
    read(longer, node_id=2)  # it is leased
    assert (old.closed, of_longer.closed) == (True, False)
    other: Any = longer.lease(TWO)
    cluster.clock.now += 60
    assert not of_longer.closed
    longer.release(TWO, other)
    assert (of_longer.closed, other.closed) == (True, False)


def test_a_connection_that_is_given_back_keeps_no_large_buffer(cluster: Cluster) -> None:
    assert read(cluster.pool()).freed


# -- reconnect.backoff.* --------------------------------------------------------------------------


def pauses(cluster: Cluster, found: BrokerPool, count: int) -> list[float]:
    """What is slept before each connection to broker one, which fails at once again."""
    cluster.down[ONE] = ConnectionRefusedError("gone")
    cluster.clock.slept.clear()
    for _ in range(count):
        with pytest.raises(OSError, match="gone"):
            read(found)
    return cluster.clock.slept


def test_a_broker_whose_connection_failed_is_left_alone_for_longer_and_longer(
    cluster: Cluster,
) -> None:
    found = cluster.pool(
        "one:1", reconnect__backoff__ms="2000", reconnect__backoff__max__ms="10000"
    )
    slept = pauses(cluster, found, 6)
    assert len(slept) == 5  # before the first there is no pause
    for pause, meant in zip(slept, (2, 4, 8, 10, 10), strict=True):
        assert 0.8 * meant <= pause <= min(1.2 * meant, 10) + 1e-6


def test_by_default_it_is_as_in_javas_client(cluster: Cluster) -> None:
    slept = pauses(cluster, cluster.pool("one:1"), 8)
    for pause, meant in zip(slept, (0.05, 0.1, 0.2, 0.4, 0.8, 1, 1), strict=True):
        assert 0.79 * meant <= pause <= min(1.21 * meant, 1.001)


def test_a_first_pause_without_a_longest_one_is_both(cluster: Cluster) -> None:
    slept = pauses(cluster, cluster.pool("one:1", reconnect__backoff__ms="3000"), 4)
    assert len(slept) == 3
    assert all(2.39 <= pause <= 3.01 for pause in slept)


def test_a_failure_amid_reading_counts_and_a_success_ends_it(cluster: Cluster) -> None:
    found = cluster.pool(
        "one:1", reconnect__backoff__ms="2000", reconnect__backoff__max__ms="60000"
    )
    for _ in range(3):
        fail(found)
        cluster.clock.slept.clear()
        read(found)
        (pause,) = cluster.clock.slept
        assert 1.59 <= pause <= 2.41  # it never grows: each connection was made
        cluster.memory.close_idle()
    cluster.tried.clear()
    cluster.clock.slept.clear()
    read(found)
    assert cluster.clock.slept == []
    assert len(cluster.tried) == 1


def test_what_is_no_fault_of_the_connection_asks_for_no_pause(cluster: Cluster) -> None:
    found = cluster.pool("one:1", reconnect__backoff__ms="2000")
    with pytest.raises(ValueError, match="of a consumer"), leased(found):
        raise ValueError("of a consumer")
    read(found)
    assert cluster.clock.slept == []


def test_time_that_has_passed_counts(cluster: Cluster) -> None:
    found = cluster.pool("one:1", reconnect__backoff__ms="2000")
    fail(found)
    cluster.clock.now += 1.5
    read(found)
    assert 0 < sum(cluster.clock.slept) <= 0.51
    fail(found)
    cluster.clock.slept.clear()
    cluster.clock.now += 3
    read(found)
    assert cluster.clock.slept == []


def test_several_readers_of_one_failure_count_it_once(cluster: Cluster) -> None:
    found = cluster.pool(
        "one:1", reconnect__backoff__ms="2000", reconnect__backoff__max__ms="60000"
    )
    connections = [leased(found) for _ in range(4)]
    for entered in connections:
        entered.__enter__()
    error = ConnectionResetError("gone")
    for entered in connections:
        assert not entered.__exit__(type(error), error, None)
    read(found)
    assert 1.59 <= sum(cluster.clock.slept) <= 2.41


def test_other_brokers_are_not_waited_for(cluster: Cluster) -> None:
    found = cluster.pool(reconnect__backoff__ms="2000", reconnect__backoff__max__ms="60000")
    read(found)
    cluster.memory.close_idle()
    fail(found)
    assert read(found, node_id=2).broker == "two:2"
    cluster.memory.close_idle()
    found.forget(PARTITION)
    cluster.tried.clear()
    assert found.leaders([PARTITION]) == {PARTITION: ONE}
    assert cluster.tried == [TWO]  # asked who leads in place of broker one
    assert cluster.clock.slept == []


def test_of_bootstrap_servers_that_fail_all_are_named(cluster: Cluster) -> None:
    found = cluster.pool(reconnect__backoff__ms="2000", reconnect__backoff__max__ms="60000")
    cluster.down = {ONE: ConnectionRefusedError("no"), TWO: TimeoutError("late")}
    for _ in range(2):
        with pytest.raises(LeaderUnknownError) as caught:
            read(found)
        assert "one:1: no" in str(caught.value)
        assert "two:2: late" in str(caught.value)
    assert cluster.tried[:2] == [ONE, TWO]
    assert sorted(cluster.tried[2:]) == [ONE, TWO]
    assert sum(cluster.clock.slept) <= 2.41  # both pauses run at the same time


def test_a_bootstrap_server_that_does_not_answer_is_left_alone_too(cluster: Cluster) -> None:
    cluster.leader, cluster.mute = 2, {ONE: TimeoutError("late")}
    found = cluster.pool(reconnect__backoff__ms="2000")
    assert read(found).broker == "two:2"
    found.forget(PARTITION)
    assert read(found).broker == "two:2"
    assert cluster.tried == [ONE, TWO]
    assert cluster.clock.slept == []


def test_no_pause_outlasts_the_readers_patience(cluster: Cluster) -> None:
    found = cluster.pool(
        "one:1",
        reconnect__backoff__ms=str(LONG_MAX),
        reconnect__backoff__max__ms=str(LONG_MAX),
        default__api__timeout__ms="7000",
    )
    fail(found)
    read(found)
    assert cluster.clock.slept == [7.0]


def test_a_refused_login_is_told_and_remembered_as_no_outage(cluster: Cluster) -> None:
    found = cluster.pool("one:1", reconnect__backoff__ms="2000")
    cluster.down[ONE] = AuthenticationError("wrong password")
    for _ in range(2):
        with pytest.raises(AuthenticationError, match="wrong password"):
            read(found)
    assert cluster.clock.slept == []


def test_a_forked_child_remembers_no_outage(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_pool, "_memory", ProcessLocal(PoolMemory, keeps_copy=False))
    found = cluster.pool("one:1", memory=broker_pool.process_memory, reconnect__backoff__ms="2000")
    fail(found)
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    read(found)
    assert cluster.clock.slept == []


# -- leaders --------------------------------------------------------------------------------------


def test_one_request_finds_the_leaders_of_many_partitions(cluster: Cluster) -> None:
    pool = cluster.pool()
    some = [TopicPartition(topic, partition) for topic in "tu" for partition in range(3)]
    assert pool.leaders(some) == dict.fromkeys(some, ONE)
    assert [sorted(topics) for _, topics in cluster.asked] == [["t", "u"]]
    assert pool.leaders(some) == dict.fromkeys(some, ONE)
    assert len(cluster.asked) == 1


def test_only_what_was_forgotten_is_asked_for_again(cluster: Cluster) -> None:
    pool = cluster.pool()
    some = [TopicPartition(topic, 0) for topic in "tuv"]
    pool.leaders(some)
    cluster.leader = 2
    pool.forget(some[1])
    assert pool.leaders(some) == {some[0]: ONE, some[1]: TWO, some[2]: ONE}
    assert cluster.asked[1][1] == ["u"]


@pytest.mark.parametrize(("age_ms", "seconds"), [("60000", 60), ("0", 1)])
def test_a_leader_is_asked_for_again_when_it_is_old(
    cluster: Cluster, age_ms: str, seconds: float
) -> None:
    pool = cluster.pool(metadata__max__age__ms=age_ms)
    assert pool.leaders([PARTITION]) == {PARTITION: ONE}
    cluster.leader = 2
    cluster.clock.now += seconds - 0.1
    assert pool.leaders([PARTITION]) == {PARTITION: ONE}
    assert not pool.is_outdated(PARTITION, ONE)
    cluster.clock.now += 0.1
    assert pool.is_outdated(PARTITION, ONE)
    assert pool.leaders([PARTITION]) == {PARTITION: TWO}
    assert (pool.is_outdated(PARTITION, ONE), pool.is_outdated(PARTITION, TWO)) == (True, False)


def test_who_leads_now_is_asked_of_the_former_leader_last(cluster: Cluster) -> None:
    """It may be cut off from the controller, and take itself for the leader."""
    pool = cluster.pool()
    pool.leaders([PARTITION])
    pool.forget(PARTITION)
    pool.leaders([PARTITION])
    cluster.clock.now += 3600
    pool.leaders([PARTITION])
    assert [address for address, _ in cluster.asked] == [ONE, TWO, TWO]


def test_the_former_leader_is_asked_last_although_the_others_have_failed_once(
    cluster: Cluster,
) -> None:
    """As in a rolling restart: afterwards, nothing but the leader may be connected to."""
    cluster.brokers = (ONE, TWO, THREE)
    pool = cluster.pool("one:1")
    pool.leaders([PARTITION])
    cluster.down = dict.fromkeys([TWO, THREE], ConnectionRefusedError("restarting"))
    for address in cluster.down:
        with pytest.raises(ConnectionRefusedError):
            pool.connect(address)
    cluster.down.clear()
    cluster.clock.now += 3600
    cluster.asked.clear()
    for _ in range(5):
        pool.forget(PARTITION)
        pool.leaders([PARTITION])
    assert [address for address, _ in cluster.asked] == [TWO] * 5


def test_a_fault_of_one_partition_is_none_of_another(cluster: Cluster) -> None:
    pool = cluster.pool()
    missing = TopicPartition("t", 7)
    for _ in range(2):
        leaders = pool.leaders([PARTITION, missing])
        assert leaders[PARTITION] == ONE
        assert isinstance(leaders[missing], UnknownTopicError)
        assert str(leaders[missing]) == "topic t has no partition 7, only 3 partitions"
    assert len(cluster.asked) == 2  # a fault is not remembered


# -- brokers that metadata named ------------------------------------------------------------------


def lead_again(pool: BrokerPool) -> Any:
    """Who leads, asked for anew."""
    pool.forget(PARTITION)
    return pool.leaders([PARTITION])[PARTITION]


def test_without_the_only_bootstrap_server_another_broker_is_asked(cluster: Cluster) -> None:
    cluster.brokers, cluster.leader = (ONE, TWO, THREE), 2
    pool = cluster.pool("one:1", reconnect__backoff__ms="2000")
    assert lead_again(pool) == TWO
    cluster.memory.close_idle()
    cluster.down[ONE] = ConnectionRefusedError("gone")
    cluster.leader = 3
    assert lead_again(pool) == THREE
    assert cluster.tried == [ONE, ONE, THREE]
    cluster.clock.now += 60
    assert lead_again(pool) == THREE
    assert cluster.tried == [ONE, ONE, THREE, TWO]  # one that is well goes before one that failed
    assert cluster.clock.slept == []


def test_a_bootstrap_server_that_freezes_is_waited_for_once(cluster: Cluster) -> None:
    cluster.leader = 2
    pool = cluster.pool("one:1")
    lead_again(pool)
    cluster.mute[ONE] = TimeoutError("late")
    for _ in range(3):
        assert lead_again(pool) == TWO
        cluster.clock.now += 60
    assert [address for address, _ in cluster.asked] == [ONE, ONE, TWO, TWO, TWO]


def test_bootstrap_servers_that_are_well_are_asked_first(cluster: Cluster) -> None:
    pool = cluster.pool("two:2")
    for _ in range(3):
        lead_again(pool)
        cluster.memory.close_idle()
    assert cluster.tried == [TWO, TWO, TWO]


def test_an_outage_of_all_is_told_after_a_few_and_the_next_ones_get_their_turn(
    cluster: Cluster,
) -> None:
    cluster.brokers, cluster.leader = (ONE, TWO, THREE, FOUR), 4
    pool = cluster.pool("one:1", reconnect__backoff__ms="0")
    lead_again(pool)
    cluster.memory.close_idle()
    cluster.down = dict.fromkeys(cluster.brokers, ConnectionRefusedError("gone"))
    cluster.tried.clear()
    pool.forget(PARTITION)
    answer = pool.leaders([PARTITION])[PARTITION]
    assert str(answer) == "no broker answered: one:1: gone; two:2: gone; three:3: gone"
    cluster.clock.now += 60
    del cluster.down[FOUR]
    assert lead_again(pool) == FOUR
    assert cluster.tried == [ONE, TWO, THREE, FOUR]


def test_another_configuration_knows_the_brokers_of_the_same_listener_too(cluster: Cluster) -> None:
    lead_again(cluster.pool("one:1"))
    cluster.memory.close_idle()
    cluster.down[ONE] = ConnectionRefusedError("gone")
    assert lead_again(cluster.pool("one:1", client__id="other")) == ONE
    refused = lead_again(cluster.pool("one:1", security__protocol="SSL"))
    assert str(refused) == "no bootstrap server answered: one:1: gone"


def test_a_broker_that_is_no_bootstrap_server_may_refuse_the_login(cluster: Cluster) -> None:
    cluster.brokers, cluster.leader = (ONE, TWO, THREE), 3
    pool = cluster.pool("one:1")
    lead_again(pool)
    cluster.memory.close_idle()
    cluster.down = {
        ONE: ConnectionRefusedError("gone"),
        TWO: AuthenticationError("its certificate is not for two"),
    }
    assert lead_again(pool) == THREE
