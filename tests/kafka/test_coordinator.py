"""Which broker is asked for a group's coordinator, and when the next one is."""

from collections.abc import Callable, Iterator

import pytest

from kshare.core.progress import TopicPartition
from kshare.errors import KafkaError
from kshare.kafka.coordinator import find_coordinator
from kshare.kafka.protocol import broker_pool
from kshare.kafka.protocol.broker_pool import BrokerPool, PoolMemory
from kshare.kafka.protocol.connection import Connection
from kshare.kafka.protocol.retry import RetryDeadline
from kshare.options import KafkaConfig
from kshare.process_local import ProcessLocal
from kshare.query.produce.coordinator import Coordinators
from kshare.testing import FakeCluster
from tests.support.groups import GROUP, group_config

FIRST = 1
"""The broker that is the only bootstrap server."""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    monkeypatch.setattr(broker_pool, "_memory", ProcessLocal(PoolMemory, keeps_copy=False))
    with FakeCluster(brokers=3, topics={"t": 1}) as running:
        yield running
        broker_pool.close_idle()


def configured(servers: str) -> KafkaConfig:
    return group_config(servers, default_api_timeout_ms=2_000).kafka


def first_only(cluster: FakeCluster) -> KafkaConfig:
    return configured(cluster.bootstrap_servers.split(",")[0])


def see_all(cluster: FakeCluster) -> None:
    """Read the metadata as a reader of this process does, with a client id of its own."""
    servers = cluster.bootstrap_servers.split(",")[0]
    kafka = group_config(servers, client_id="reader").kafka
    BrokerPool(kafka).leaders([TopicPartition("t", 0)])


def test_without_the_only_bootstrap_server_a_broker_that_was_seen_is_asked(
    cluster: FakeCluster,
) -> None:
    kafka = first_only(cluster)
    see_all(cluster)
    cluster.stop_broker(FIRST)
    cluster.track_requests()
    find_coordinator(kafka, GROUP)
    ((broker, _),) = (each for each in cluster.requests() if each[1] == "FindCoordinator")
    assert broker != FIRST


def test_without_metadata_only_bootstrap_servers_are_known(cluster: FakeCluster) -> None:
    cluster.stop_broker(FIRST)
    with pytest.raises(KafkaError, match=f"cannot find the coordinator of group {GROUP} within 2"):
        find_coordinator(first_only(cluster), GROUP)


def test_a_bootstrap_server_that_is_well_is_asked_alone(cluster: FakeCluster) -> None:
    see_all(cluster)
    cluster.track_requests()
    find_coordinator(first_only(cluster), GROUP)
    found = {each: count for each, count in cluster.requests().items() if "Find" in each[1]}
    assert found == {(FIRST, "FindCoordinator"): 1}


def test_a_passing_error_of_one_server_is_none_of_the_next(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = configured(cluster.bootstrap_servers)
    cluster.fail("FindCoordinator", ["COORDINATOR_NOT_AVAILABLE"])
    cluster.track_requests()
    monkeypatch.setattr(RetryDeadline, "sleep", never("a pause"))
    find_coordinator(kafka, GROUP)
    asked = [broker for broker, name in cluster.requests() if name == "FindCoordinator"]
    assert sorted(asked) == [1, 2]


def test_what_a_broker_said_is_told_rather_than_that_the_last_one_is_down(
    cluster: FakeCluster,
) -> None:
    cluster.stop_broker(3)
    cluster.fail("FindCoordinator", ["COORDINATOR_NOT_AVAILABLE"] * 1_000)
    with pytest.raises(KafkaError, match=r"within 2 s: COORDINATOR_NOT_AVAILABLE"):
        find_coordinator(configured(cluster.bootstrap_servers), GROUP)


def test_requests_on_transactions_need_no_bootstrap_server(cluster: FakeCluster) -> None:
    coordinators = Coordinators(first_only(cluster))
    see_all(cluster)
    cluster.stop_broker(FIRST)
    try:
        assert isinstance(coordinators._any(), Connection)
    finally:
        coordinators.close()


def never(what: str) -> Callable[..., None]:
    def refuse(*_: object) -> None:
        raise AssertionError(what)

    return refuse
