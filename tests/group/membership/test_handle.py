"""A member that waits to get into its group, on the mock cluster."""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from kshare.group.membership.handle import MemberHandle
from kshare.group.session.session import GroupSession
from kshare.kafka.protocol.retry import boot_time
from kshare.testing import FakeCluster
from tests.support.groups import LOG, closing_session, eventually, group_config
from tests.support.polling import Polling
from tests.support.requests import times_asked

SESSION_MS = 30_000


class Clock:
    """The time, and how far the test has put it forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return boot_time() + self.ahead


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """With a group of one member that sends hardly any heartbeats: others wait for it."""
    with FakeCluster(topics={"orders": 1, LOG: 1}) as running, ExitStack() as stack:
        first = Polling(running, session_timeout_ms=SESSION_MS, heartbeat_interval_ms=29_000)
        stack.callback(first.end)
        first.start()
        eventually(lambda: first.width() > 0)
        running.track_requests()
        yield running


@pytest.fixture
def waiting(cluster: FakeCluster) -> Iterator[Callable[[Clock], MemberHandle]]:
    """Starts a member that the group lets wait."""
    config = group_config(
        cluster.bootstrap_servers,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=50,
        max_poll_interval_ms=60_000,
    )
    with ExitStack() as stack:

        def start(clock: Clock) -> MemberHandle:
            session = stack.enter_context(closing_session(GroupSession(config, now=clock)))
            member = session.join(config, lambda: None, lambda _: {})
            member.subscribe(("orders",))
            eventually(lambda: times_asked(cluster, "JoinGroup") >= 1)
            return member

        yield start


def test_who_waits_hears_whether_the_coordinator_lives(
    cluster: FakeCluster, waiting: Callable[[Clock], MemberHandle]
) -> None:
    member = waiting(Clock())
    eventually(lambda: times_asked(cluster, "Heartbeat") >= 10)
    assert times_asked(cluster, "JoinGroup") == 1
    assert not member.is_lost


def test_a_join_that_nobody_answers_is_sent_again(
    cluster: FakeCluster, waiting: Callable[[Clock], MemberHandle]
) -> None:
    """After max.poll.interval.ms and 5 s, as Java's client does it."""
    clock = Clock()
    member = waiting(clock)
    clock.ahead = 60.0
    eventually(lambda: times_asked(cluster, "Heartbeat") >= 5)
    assert times_asked(cluster, "JoinGroup") == 1
    clock.ahead = 65.1
    eventually(lambda: times_asked(cluster, "JoinGroup") == 2)
    member.check()


def test_a_join_that_is_refused_is_what_the_member_waits_for(
    waiting: Callable[[Clock], MemberHandle],
    cluster: FakeCluster,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster.fail("JoinGroup", [-1] * 100)
    with caplog.at_level(logging.INFO, "kshare.group"):
        member = waiting(Clock())
        eventually(lambda: "JoinGroup was refused: UNKNOWN_SERVER_ERROR" in caplog.text)
        own = [record for record in caplog.records if record.name == "kshare.group"]
        assert not [record for record in own if record.levelno > logging.INFO]
    (wait,) = member.waits().values()  # said by the session, once it lasts
    assert wait.detail == "JoinGroup was refused: UNKNOWN_SERVER_ERROR"
