"""Resets of a session's group, and its end."""

import logging
import threading
from contextlib import closing

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient

from kshare.core.hashing import ALL_HASHES
from kshare.core.progress import Progress
from kshare.errors import (
    CommitLogError,
    ConsumerClosedError,
    GroupAliveError,
)
from kshare.group.log.primary import PrimaryOffsets
from kshare.group.session.session import GroupSession
from kshare.testing import FakeCluster
from tests.group.session.test_session import cluster, offsets, servers, write
from tests.support.clock import WAIT_S
from tests.support.groups import (
    GROUP,
    SECONDS,
    T0,
    by_log,
    closing_session,
    commit,
    eventually,
    group_config,
    member,
    rectangle,
    start_of,
)

__all__ = ["cluster", "servers"]  # fixtures

# -- resets ----------------------------------------------------------------------------------------


def test_a_reset_is_refused_while_a_member_lives(servers: str) -> None:
    with closing(offsets(servers)) as outside:
        with member(servers) as session:
            commit(session, rectangle(0, 10), rectangle(20, 30))
            with pytest.raises(GroupAliveError, match=session.session_id):
                outside.reset("earliest")
            with pytest.raises(GroupAliveError):
                outside.drop()
        assert outside.reset("stable") == {T0: 10}
        assert outside.committed()[T0].individual_commits == ()
    with member(servers) as session:
        assert session.started()[T0].done == Progress.at(10)


@pytest.mark.parametrize(("to", "offset"), [("earliest", 0), ("latest", 100), ({T0: 42}, 42)])
def test_a_reset_says_where_the_group_starts(servers: str, to: object, offset: int) -> None:
    with member(servers) as session:
        commit(session, rectangle(0, 10), rectangle(20, 30))
    with closing(offsets(servers)) as outside:
        assert outside.reset(to) == {T0: offset}  # type: ignore[arg-type]
        assert outside.committed()[T0].offset == offset
    with member(servers) as session:
        assert session.started()[T0].done == Progress.at(offset)
        commit(session, rectangle(offset, offset + 1))
        log = session._shared.ownerships.log.of(T0)
        eventually(lambda: not log.outdated)  # what is void was deleted


def test_kafkas_own_tool_voids_individual_commits(
    servers: str, caplog: pytest.LogCaptureFixture
) -> None:
    with member(servers) as session:
        commit(session, rectangle(0, 10), rectangle(20, 30))
    admin = AdminClient({"bootstrap.servers": servers})
    asked = [ConsumerGroupTopicPartitions(GROUP, [RdTopicPartition(*T0, 5)])]
    admin.alter_consumer_group_offsets(asked)[GROUP].result(WAIT_S)
    with caplog.at_level(logging.WARNING, "kshare.group"), member(servers) as session:
        assert session.started()[T0].done == Progress.at(5)
    (said,) = [r.getMessage() for r in caplog.records if "Kafka's own tool" in r.getMessage()]
    assert "orders-0" in said
    assert "offset 5" in said


def test_metadata_are_those_of_other_clients(servers: str) -> None:
    """kshare's own commits hold none for the user: there they name the log."""
    plain = Consumer({"bootstrap.servers": servers, "group.id": GROUP})
    with closing(plain):
        plain.commit(offsets=[RdTopicPartition(*T0, 5, metadata="as of noon")], asynchronous=False)
    with closing_session(GroupSession(group_config(servers))) as session:
        session.claim({})
        found = session.committed([T0], SECONDS)[T0]
        assert (found.offset, found.metadata) == (5, "as of noon")
    with member(servers) as session:
        commit(session, rectangle(5, 10))
        found = session.committed([T0], SECONDS)[T0]
        assert (found.offset, found.metadata) == (10, "")
        with closing(offsets(servers)) as outside:
            assert outside.committed()[T0] == found


def test_a_damaged_log_is_dropped(servers: str) -> None:
    with member(servers) as session:
        commit(session, rectangle(0, 10), rectangle(20, 30))
    write(servers, f'[1,"{GROUP}",1,"lease","orders",0,"m",1]'.encode(), b"junk")
    with closing(offsets(servers)) as outside:
        with pytest.raises(CommitLogError, match=f"kshare offsets drop --group {GROUP}"):
            outside.committed()
        assert outside.drop() > 2
        assert outside.committed()[T0].offset == 10
    with member(servers) as session:
        assert session.started()[T0].done == Progress.at(10)


def test_a_log_that_is_dropped_keeps_where_another_tool_has_set_the_group(servers: str) -> None:
    with member(servers) as session:
        commit(session, rectangle(0, 60))
    asked = [ConsumerGroupTopicPartitions(GROUP, [RdTopicPartition(*T0, 10)])]
    admin = AdminClient({"bootstrap.servers": servers})
    admin.alter_consumer_group_offsets(asked)[GROUP].result(WAIT_S)
    with closing(offsets(servers)) as outside:
        assert outside.committed()[T0].offset == 10
        outside.drop()
        assert outside.committed()[T0].offset == 10
    with member(servers) as session:
        assert session.started()[T0].done == Progress.at(10)


# -- its end ---------------------------------------------------------------------------------------


def test_it_closes_at_once(servers: str) -> None:
    with member(servers) as session:
        session.close(20)
        assert session._shared.is_closed
    with pytest.raises(ConsumerClosedError):
        session.claim({T0: ALL_HASHES})
    GroupSession(group_config(servers)).close(1)


def test_nobody_becomes_a_member_of_a_session_that_is_closing(servers: str) -> None:
    """The thread would serve that member for ever, as nobody ends it."""
    config = group_config(servers)
    session = GroupSession(config)
    session.claim({})
    session._shared.is_closing = True
    with pytest.raises(ConsumerClosedError):
        session.join(config, lambda: None, lambda _: {})
    assert session._shared.member is None
    session._thread.wake()
    eventually(lambda: session._shared.has_ended)


def test_a_signal_handler_closes_while_the_frame_below_has_the_lock(servers: str) -> None:
    with member(servers) as session, session._shared.changed:
        session.close(20)
        assert session._shared.is_closed


def test_a_broker_of_the_log_that_is_silent_is_waited_for_less_long_than_others(
    servers: str,
) -> None:
    """All that the session does waits for it meanwhile: commits, beats, the group's plans."""
    with member(servers) as session:
        link = by_log(session).follower.link
        assert link is not None
        kafka = link.tail._kafka
        assert (kafka.request_timeout_ms, kafka.connection_setup_timeout_ms) == (5_000, 5_000)


def test_who_asks_for_commits_notices_the_end(
    servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with member(servers) as session:
        monkeypatch.setattr(PrimaryOffsets, "log_bounds", lambda *_: (0, 1 << 40))
        closer = threading.Timer(0.5, session.close, [5])
        closer.start()
        with pytest.raises(ConsumerClosedError):
            session.committed([T0], SECONDS)
        closer.join()


def test_who_waits_for_a_commit_notices_the_end(servers: str) -> None:
    """As of any other call of a closed consumer, the error is that of confluent-kafka."""
    with member(servers) as session:
        by_log(session).actions.act = lambda _: None  # type: ignore[method-assign,assignment]
        closer = threading.Timer(0.2, session.close, [5])
        closer.start()
        with pytest.raises(ConsumerClosedError):
            commit(session, rectangle(0, 3))
        closer.join()


def test_changes_are_reported(servers: str) -> None:
    seen: list[int] = []
    with closing_session(
        GroupSession(group_config(servers), on_change=lambda: seen.append(len(session.started())))
    ) as session:
        session.claim({T0: ALL_HASHES})
        start_of(session)
        eventually(lambda: seen[-1:] == [1])
        session.claim({})
        eventually(lambda: seen[-1:] == [0])


def test_a_write_that_fails_is_tried_again(cluster: FakeCluster, servers: str) -> None:
    with member(servers) as session:
        cluster.fail("Produce", ["INVALID_REQUIRED_ACKS"])
        assert commit(session, rectangle(0, 3)) == 3
