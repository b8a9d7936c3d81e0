"""Who owns a key, on the mock cluster; and the partition that Java's producers choose."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from kshare.core.hashing import ALL_HASHES, HashRange, key_hash
from kshare.core.progress import TopicPartition
from kshare.errors import UnknownTopicError
from kshare.group import GroupOwners, HostInfo, KeySharedConsumer, owner
from kshare.group.protocol.commit_log.log import GroupLog
from kshare.group.protocol.commit_log.records import Epoch, EpochMember, key_of
from kshare.group.protocol.membership.subscription import PROTOCOL
from kshare.group.session.session import GroupSession
from kshare.group.tools.description import GroupDescription, JoinedMember, describe_group
from kshare.group.tools.owners import OwnerTable, host_info, partition_of
from kshare.testing import FakeCluster
from tests.support.clock import WAIT_S
from tests.support.groups import (
    GROUP,
    LOG,
    LOWER,
    T0,
    UPPER,
    closing_session,
    eventually,
    group_config,
    member,
    start_of,
)

KEYS = [b"", b"a", b"ab", b"abc", b"abcd", *(b"customer-%d" % i for i in range(60)), b"\xff" * 9]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1, "wide": 7, LOG: 3}) as running:
        yield running


def key_in(hashes: HashRange) -> bytes:
    return next(key for key in KEYS if key_hash(key, 0) in hashes)


def test_the_partition_is_that_of_a_producer_with_javas_partitioner(cluster: FakeCluster) -> None:
    """librdkafka's murmur2_random, which is Java's default for records with a key."""
    chosen: dict[Any, Any] = {}
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "partitioner": "murmur2_random"}
    )
    for key in KEYS:
        producer.produce(
            "wide", b"v", key, on_delivery=lambda _, m: chosen.__setitem__(m.key(), m.partition())
        )
    assert producer.flush(WAIT_S) == 0
    assert chosen == {key: partition_of(key, 7) for key in KEYS}
    assert len(set(chosen.values())) == 7


def test_the_owner_of_a_key(cluster: FakeCluster) -> None:
    servers = cluster.bootstrap_servers
    config = {"bootstrap.servers": servers}
    low, high = key_in(LOWER), key_in(UPPER)
    assert owner(GROUP, "orders", low, config) is None
    with (
        member(servers, LOWER, application_server="pod-3:8080"),
        member(servers, UPPER),  # says only where it runs
        GroupOwners(GROUP, config) as owners,
    ):
        assert owner(GROUP, "orders", low, config) == HostInfo("pod-3", 8080)
        assert owners.owner("orders", low) == ("pod-3", 8080)
        assert owners.owner("orders", high) is None
        assert [each.hashes for each in owners.read().owners] == [LOWER, UPPER]
        with member(servers, UPPER, application_server="[::1]:81"):
            assert owners.owner("orders", high) == HostInfo("::1", 81)  # it reads on
        assert owners.owner("orders", high) is None
    assert owner(GROUP, "orders", low, config) is None  # it has left


def test_a_partition_that_others_choose(cluster: FakeCluster) -> None:
    servers = cluster.bootstrap_servers
    config = {"bootstrap.servers": servers}
    third = TopicPartition("wide", 3)
    session_config = group_config(servers, application_server="pod-3:8080")
    with closing_session(GroupSession(session_config)) as session:
        session.claim({third: ALL_HASHES})
        start_of(session, third)
        assert owner(GROUP, "wide", b"a", config, partition=3) == ("pod-3", 8080)
        assert owner(GROUP, "wide", b"a", config, partition=4) is None
        mine = next(key for key in KEYS if partition_of(key, 7) == 3)
        other = next(key for key in KEYS if partition_of(key, 7) != 3)
        assert owner(GROUP, "wide", mine, config) == ("pod-3", 8080)
        assert owner(GROUP, "wide", other, config) is None


def test_a_member_that_has_joined(cluster: FakeCluster) -> None:
    config = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": GROUP,
        "application.server": "pod-1:8080",
        "claim.timeout.ms": 500,
    }
    with KeySharedConsumer(config) as consumer, GroupOwners(GROUP, config) as owners:
        consumer.subscribe(["orders"])
        eventually(lambda: consumer.poll(0.05) or consumer.assignment() == {T0: ()})
        assert owners.owner("orders", b"any") == HostInfo("pod-1", 8080)


def test_a_member_that_the_coordinator_does_not_know_owns_nothing() -> None:
    log = GroupLog(GROUP)
    epoch = Epoch(1, "a", (EpochMember("a", "A", "pod-1:80", ((T0, ALL_HASHES),)),))
    log.apply(0, key_of(epoch), epoch)
    known = OwnerTable.of(log, describing("A"))
    assert known.member(T0, 7) == known.members["a"]
    assert OwnerTable.of(log, describing("B")).member(T0, 7) is None


def test_without_a_log_the_coordinator_says_who_owns_what() -> None:
    """Also if it kept one before. Not amid a rebalance: the epoch may be written yet."""
    log = GroupLog(GROUP)
    epoch = Epoch(1, "a", (EpochMember("a", "A", "pod-1:80", ((T0, ALL_HASHES),)),))
    log.apply(0, key_of(epoch), epoch)
    member_ = JoinedMember("B", "client", "10.0.0.1", partitions=(T0,))
    table = OwnerTable.of(log, GroupDescription("stable", {"B": member_}, PROTOCOL))
    owner = table.member(T0, 7)
    assert owner is not None
    assert (owner.name, table.keeps_log) == ("B", False)
    amid = OwnerTable.of(log, GroupDescription("preparing rebalance", {"B": member_}, PROTOCOL))
    assert (amid.member(T0, 7), amid.keeps_log) == (None, True)


def test_a_plain_consumer_owns_what_the_coordinator_says() -> None:
    log = GroupLog(GROUP)
    epoch = Epoch(1, "a", (EpochMember("a", "A", "pod-1:80", ((T0, ALL_HASHES),)),))
    log.apply(0, key_of(epoch), epoch)
    plain = JoinedMember("P", "client", "10.0.0.1", partitions=(T0,))
    idle = JoinedMember("A", "client", "10.0.0.1")
    described = GroupDescription("stable", {"A": idle, "P": plain}, "range")
    owner = OwnerTable.of(log, described).member(T0, 7)
    assert owner is not None
    assert owner.name == "P"
    assert host_info(owner.host) is None


def describing(member_id: str) -> GroupDescription:
    return GroupDescription("stable", {member_id: JoinedMember(member_id, "client", "10.0.0.1")})


def test_the_mock_cluster_does_not_describe_groups(cluster: FakeCluster) -> None:
    kafka = group_config(cluster.bootstrap_servers).kafka
    assert describe_group(kafka, GROUP) == GroupDescription("unknown", None)


def test_a_topic_that_does_not_exist(cluster: FakeCluster) -> None:
    config = {"bootstrap.servers": cluster.bootstrap_servers}
    with pytest.raises(UnknownTopicError, match="missing"):
        owner(GROUP, "missing", b"a", config)


@pytest.mark.parametrize(
    ("host", "info"),
    [
        ("pod-3:8080", HostInfo("pod-3", 8080)),
        ("[::1]:80", HostInfo("::1", 80)),
        ("pod-3", None),
        ("pod-3:0", None),
        ("pod-3:99999", None),
        ("", None),
    ],
)
def test_what_is_host_and_port(host: str, info: HostInfo | None) -> None:
    assert host_info(host) == info
