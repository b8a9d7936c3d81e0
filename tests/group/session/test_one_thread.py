"""A member's one thread waits neither for its coordinator nor for the leader of the group's log."""

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pytest

from kshare.errors import KafkaError, KshareError
from kshare.group.membership import member_link
from kshare.group.membership.handle import MemberHandle
from kshare.group.session import log_follower
from kshare.group.session.session import GroupSession
from kshare.kafka.committed import CommittedOffset
from kshare.kafka.coordinator import find_coordinator
from kshare.testing import FakeCluster
from tests.support.clock import WAIT_S, until
from tests.support.groups import GROUP, LOG, T0, by_log, eventually, group_config, start_of
from tests.support.requests import times_asked

NEVER_MS = 600_000
"""Longer than the tests wait: a thread that waits for a broker does not come back."""


@dataclass
class Running:
    """A member that owns T0. Its coordinator and the leader of its log are two brokers."""

    cluster: FakeCluster
    coordinator: int
    leader: int
    session: GroupSession
    member: MemberHandle
    threads: set[threading.Thread]

    @property
    def read_at(self) -> float:
        return self.session._thread.read_at

    def lasting_threads(self) -> list[str]:
        return sorted(each.name for each in {*threading.enumerate()} - self.threads)


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(log_follower, "ANSWER_MS", NEVER_MS)
    before = {*threading.enumerate()}
    with FakeCluster(2, topics={"orders": 1, LOG: 1}) as cluster:
        servers = cluster.bootstrap_servers
        config = group_config(
            servers,
            claim_timeout_ms=NEVER_MS,
            session_timeout_ms=3 * NEVER_MS,
            request_timeout_ms=NEVER_MS,
            heartbeat_interval_ms=50,
        )
        host, port = find_coordinator(config.kafka, GROUP)
        coordinator = servers.split(",").index(f"{host}:{port}") + 1
        leader = 3 - coordinator
        for topic in ("orders", LOG):
            cluster.move_leader(topic, 0, leader)
        session = GroupSession(config)
        member = session.join(config, lambda: None, lambda _: {})
        member.subscribe(("orders",))
        until(lambda: member.has_change)
        change = member.take()
        assert change is not None
        assert change.epoch is not None
        session.claim(change.assigned, epoch=(change.epoch, change.topic_id))
        member.applied()
        start_of(session, T0)
        yield Running(cluster, coordinator, leader, session, member, before)
        session.close(0.1)


def test_a_coordinator_that_does_not_answer_a_heartbeat_does_not_stop_reading_the_log(
    running: Running,
) -> None:
    running.cluster.delay(running.coordinator, NEVER_MS)
    member = running.member._member

    def is_unanswered() -> bool:
        """Since before the log was read again."""
        heard, read_at = running.member.liveness._heard_at, running.read_at
        until(lambda: running.read_at > read_at)
        return member.awaits_heartbeat and running.member.liveness._heard_at == heard

    eventually(is_unanswered)
    for _ in range(2):
        assert is_unanswered()
    assert running.session.may_deliver()


def test_a_leader_of_the_log_that_does_not_answer_does_not_stop_heartbeats(
    running: Running,
) -> None:
    running.cluster.delay(running.leader, NEVER_MS)
    heard, read_at = running.member.liveness._heard_at, 0.0

    def is_heard_alone() -> bool:
        nonlocal heard, read_at
        before, heard = heard, running.member.liveness._heard_at
        was_read_at, read_at = read_at, running.read_at
        return heard > before and read_at == was_read_at

    for _ in range(5):
        eventually(is_heard_alone)


def test_a_member_has_one_lasting_thread(running: Running) -> None:
    running.cluster.track_requests()
    only = [f"kshare {running.session.session_id}"]
    until(lambda: running.lasting_threads() == only)
    until(lambda: times_asked(running.cluster, "Heartbeat") >= 3)
    until(lambda: running.lasting_threads() == only)


def test_who_leaves_in_vain_does_not_wait_for_longer_than_was_said_and_leaves_all_the_same(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing that was to be committed is waited for any more."""
    cluster, member = running.cluster, running.member
    cluster.track_requests()
    cluster.delay(running.coordinator, NEVER_MS)
    until(lambda: member._member.awaits_heartbeat)
    commit = member.commit({T0: CommittedOffset(1)})
    running.session.leave(0.05)
    with pytest.raises(KafkaError, match="left"):
        commit.result(0)
    assert not member.is_closed
    host, port = cluster.bootstrap_servers.split(",")[running.leader - 1].split(":")
    monkeypatch.setattr(member_link, "find_coordinator", lambda *_: (host, int(port)))
    cluster.stop_broker(running.coordinator)
    until(lambda: member.is_closed)
    assert times_asked(cluster, "LeaveGroup") == 1
    running.session.check()


def test_an_error_that_nobody_has_foreseen_ends_the_membership_and_not_the_session(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(running.member._dialogue._link, "take", fails)
    until(lambda: running.member.is_closed)
    assert running.member.take() is not None  # all is lost
    running.member.applied()
    with pytest.raises(KshareError, match=r"the membership has ended: ZeroDivisionError"):
        running.member.check()
    read_at = running.read_at
    until(lambda: running.read_at > read_at)
    running.session.check()
    assert not running.session.may_deliver()


def test_nothing_is_logged_with_the_lock_held(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A handler may wait for a thread that waits for the session."""
    caplog.set_level(logging.INFO, "kshare.group")
    lock, thread = running.member.lock, running.session._thread
    held: dict[str, bool] = {}

    class Seen(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            is_owned = lock._is_owned()  # type: ignore[attr-defined]
            held[record.getMessage().rpartition(" ")[2]] = is_owned
            return True

    def crash(_: object) -> None:
        raise KafkaError("crashed") from None

    caplog.handler.addFilter(seen := Seen())
    try:
        leader = running.member._dialogue._leader
        for note, why in ((thread.ground.actions.note, "asked"), (leader._warn, "planned")):
            thread.beside.post(partial(note, KafkaError(why)))
        until(lambda: len(held) == 2)
        monkeypatch.setattr(running.member._dialogue, "_failed", running.member._dialogue._crashed)
        monkeypatch.setattr(running.member._dialogue._link, "take", crash)
        until(lambda: running.member.is_closed)
        until(lambda: "crashed" in held)
    finally:
        caplog.handler.removeFilter(seen)
    assert {each: held[each] for each in ("asked", "planned", "crashed")} == {
        "asked": False,
        "planned": False,
        "crashed": False,
    }


class FireError(Exception):
    """What nobody has foreseen."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_fails_as_a_session_ends_keeps_nothing_else_from_ending(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither LeaveGroup nor the other connections."""

    def fails(*_: object) -> None:
        raise FireError

    thread, closed = running.session._thread, threading.Event()
    ground = by_log(running.session)
    close = ground.follower.close

    def close_and_fail() -> None:
        close()
        raise FireError

    running.cluster.track_requests()
    monkeypatch.setattr(thread._announcer, "_on_change", fails)
    monkeypatch.setattr(ground.follower, "close", close_and_fail)
    monkeypatch.setattr(ground.actions, "close", closed.set)
    monkeypatch.setattr(thread, "_step", fails)
    until(lambda: times_asked(running.cluster, "LeaveGroup") == 1)
    assert closed.wait(WAIT_S)
    assert not thread.shared.has_ended
    running.session.close(WAIT_S)
    until(lambda: thread.shared.has_ended)
    assert running.member.is_closed


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_member_that_cannot_be_served_is_ended(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise FireError

    monkeypatch.setattr(running.member, "step", fails)
    until(lambda: running.session._shared.has_ended)
    assert running.member.is_closed
    assert running.member._dialogue.sockets == {}
