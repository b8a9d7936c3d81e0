"""Groups that keep no log (``allow.individual.commit=false``): no topic is made or read."""

import logging

import pytest
from confluent_kafka.admin import AdminClient

from kshare.core.hashing import KeyRanges
from kshare.core.progress import Progress
from kshare.errors import FencedError, ForeignMemberError
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.session.session import GroupSession
from kshare.testing import FakeCluster
from tests.support.clock import WAIT_S
from tests.support.groups import (
    LOG,
    LOWER,
    SECONDS,
    T0,
    closing_session,
    commit,
    eventually,
    group_config,
    member,
    quick_settings,
    receive_and_commit,
    rectangle,
    start_of,
)
from tests.support.requests import times_asked

PLAIN = {"allow_individual_commit": False}
RECORDS = 20


def topics(cluster: FakeCluster) -> set[str]:
    return set(AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics().topics)


@pytest.mark.parametrize("way", ["subscribe", "assign"])
def test_a_consumer_reads_and_commits_without_a_log(way: str) -> None:
    with FakeCluster(topics={"orders": 1}) as cluster:
        cluster.produce("orders", [(f"k{i % 3}", f"{i}") for i in range(RECORDS)], partition=0)
        settings = quick_settings(cluster.bootstrap_servers, **PLAIN)
        cluster.track_requests()
        found = receive_and_commit(settings, "orders", RECORDS, way)
        assert [each.offset() for each in found] == list(range(RECORDS))
        assert times_asked(cluster, "CreateTopics") == times_asked(cluster, "Produce") == 0
        assert topics(cluster) == {"orders"}
        with KeySharedConsumer(settings) as consumer:  # before anything has begun
            assert consumer.committed([("orders", 0)], WAIT_S)[T0].offset == RECORDS
        with member(cluster.bootstrap_servers, **PLAIN) as session:
            assert start_of(session) == Progress.at(RECORDS)
            assert session.log_metrics() is None


def test_what_was_committed_individually_comes_again_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "kshare.group")
    with FakeCluster(topics={"orders": 1, LOG: 1}) as cluster:
        servers = cluster.bootstrap_servers
        with member(servers) as session:
            assert commit(session, rectangle(0, 5), rectangle(8, 10)) == 5
        with member(servers, **PLAIN) as session:
            assert start_of(session) == Progress.at(5)
            eventually(lambda: "keeps no log any more" in caplog.text)
            assert commit(session, rectangle(5, 7)) == 7
            assert session.committed([T0], SECONDS)[T0].offset == 7
            session.check()
        caplog.clear()
        with member(servers, **PLAIN) as session:
            assert start_of(session) == Progress.at(7)
        assert "keeps no log" not in caplog.text
        with member(servers) as session:  # back again: nothing is skipped
            assert start_of(session) == Progress.at(7)


def test_key_ranges_are_refused() -> None:
    with (
        FakeCluster(topics={"orders": 1}) as cluster,
        closing_session(GroupSession(group_config(cluster.bootstrap_servers, **PLAIN))) as session,
        pytest.raises(ForeignMemberError, match=r"orders-0.*allow\.individual\.commit is false"),
    ):
        session.claim({T0: KeyRanges([LOWER])})


@pytest.mark.parametrize("told", [None, "UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID"])
def test_a_member_that_the_group_has_dropped_commits_nothing_and_says_so(told: str | None) -> None:
    """The coordinator takes no offset of it: another one may have handled the records again."""
    with FakeCluster(topics={"orders": 1}) as cluster:
        cluster.produce("orders", [(f"k{i % 3}", f"{i}") for i in range(RECORDS)], partition=0)
        settings = quick_settings(cluster.bootstrap_servers, **PLAIN, enable_auto_commit=False)
        with KeySharedConsumer(settings) as consumer:
            consumer.subscribe(["orders"])
            assert len(eventually(lambda: consumer.consume(RECORDS, 0.1))) > 0
            if told is None:  # it knows by itself
                assert consumer.receiver.subscriber is not None
                consumer.receiver.subscriber.member.fenced()
            else:
                cluster.fail("OffsetCommit", [told])
            with pytest.raises(FencedError, match=r"orders-0: group .* goes on without"):
                consumer.commit()
        with KeySharedConsumer(settings) as consumer:
            assert not consumer.committed([("orders", 0)], WAIT_S)
