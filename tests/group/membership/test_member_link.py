"""A member's requests on its two connections: each waits for those before it, and nothing else."""

import os
import select
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kshare.group.membership import member_link as link_module
from kshare.group.membership.member_link import Line, MemberLink
from kshare.group.protocol.membership.requests import Heartbeat, Join
from kshare.kafka.protocol.connection import Connection
from tests.support.clock import until
from tests.support.groups import group_config
from tests.support.silent import SilentConnection, silent_connections

BEAT = Heartbeat("me", 1, 0.0, is_member=True)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[SilentConnection]:
    """The connections, in the order in which they were made."""
    return silent_connections(monkeypatch)


@pytest.fixture
def link() -> Iterator[MemberLink]:
    running = MemberLink(group_config("one:1"), lambda: None)
    yield running
    running.close()


def sends(link: MemberLink, made: list[SilentConnection], *names: list[str]) -> bool:
    link.send()
    return [each.names for each in made] == [*names]


def test_a_heartbeat_that_is_not_answered_delays_what_follows_on_its_connection_alone(
    link: MemberLink, made: list[SilentConnection]
) -> None:
    heard: list[Any] = []
    link.heartbeat(BEAT, heard.append)
    link.commit({}, "me", 1, heard.append)
    link.join(Join("me", b""), heard.append)
    until(lambda: sends(link, made, ["HeartbeatRequest"], ["JoinGroupRequest"]))
    speaking, joining = made
    joining.answers.append(b"joined")
    link.take(link.sockets)
    assert heard == [b"joined"]
    link.take(link.sockets)
    speaking.answers.append(b"alive")
    link.take([])  # nothing says that it is there
    assert heard == [b"joined"]
    link.take(link.sockets)
    assert heard == [b"joined", b"alive"]
    assert sends(link, made, ["HeartbeatRequest", "OffsetCommitRequest"], ["JoinGroupRequest"])


def test_an_answer_that_is_overdue_is_a_fault_unless_it_is_there(
    link: MemberLink, made: list[SilentConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Any] = []
    link.heartbeat(BEAT, heard.append)
    until(lambda: sends(link, made, ["HeartbeatRequest"]))
    late = time.monotonic() + link.seconds_until_due + 1
    monkeypatch.setattr(time, "monotonic", lambda: late)
    made[0].answers.append(b"alive")
    link.take(link.sockets)
    link.heartbeat(BEAT, heard.append)
    link.send()
    monkeypatch.setattr(time, "monotonic", lambda: late + 1_000)
    with pytest.raises(TimeoutError, match=r"broker one:1 did not answer within [\d.]+ s"):
        link.take(link.sockets)
    assert heard == [b"alive"]


def test_a_request_for_which_there_is_no_room_is_sent_as_soon_as_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And is overdue, as what is not answered: brokers hold no request that they do not have."""
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    heard: list[Any] = []
    line, connection = Line(10.0, is_held=True), SilentConnection(room=40)
    line.connection = cast("Connection", connection)
    request = SimpleNamespace(API_VERSION=1)
    line.ask(lambda _: request, heard.append)
    line.send()
    connection.room = 0
    line.send()
    assert (line.events, line.seconds_until_due) == (select.POLLOUT, 10)
    line.take([connection.fileno()])
    connection.room = 60
    line.send()
    assert connection.sent == [request]
    assert (line.events, line.seconds_until_due) == (select.POLLIN, float("inf"))
    connection.answers.append(b"joined")
    line.take([connection.fileno()])
    assert heard == [b"joined"]
    connection.room = 0
    line.ask(lambda _: request, heard.append)
    line.send()
    now += 11
    with pytest.raises(TimeoutError):
        line.take([connection.fileno()])
    line.close()


def test_a_broker_may_hold_a_join_but_not_half_of_its_answer(
    link: MemberLink, made: list[SilentConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    link.join(Join("me", b""), print)
    until(lambda: sends(link, made, ["JoinGroupRequest"]))
    now = time.monotonic() + 100_000
    monkeypatch.setattr(time, "monotonic", lambda: now)
    link.take([])
    assert link.seconds_until_due == float("inf")
    link.take(link.sockets)  # some of it is there
    left = link.seconds_until_due
    now += left + 1
    made[0].answers.append(b"joined")
    link.take(link.sockets)
    assert link.seconds_until_due == float("inf")
    link.join(Join("me", b""), print)
    link.send()
    link.take(link.sockets)
    now += left / 2
    link.take(link.sockets)
    now += left / 2 + 1
    with pytest.raises(TimeoutError):
        link.take([])


def test_a_connection_that_the_broker_has_closed_while_nothing_was_asked_is_replaced(
    link: MemberLink, made: list[SilentConnection]
) -> None:
    """Days may pass between two JoinGroups, and services close what is idle for minutes."""
    heard: list[Any] = []
    link.join(Join("me", b""), heard.append)
    until(lambda: sends(link, made, ["JoinGroupRequest"]))
    made[0].answers.append(b"joined")
    link.take(link.sockets)
    made[0].is_closed = True
    link.join(Join("me", b""), heard.append)
    until(lambda: sends(link, made, ["JoinGroupRequest"], ["JoinGroupRequest"]))
    made[1].answers.append(b"joined again")
    link.take(link.sockets)
    assert heard == [b"joined", b"joined again"]


def test_a_connection_that_comes_too_late_is_closed(
    link: MemberLink, made: list[SilentConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also that of a JoinGroup in whose place there is another one."""
    reading, writing = os.pipe()
    connect = link_module._connect

    def slow(*given: Any) -> Any:
        os.read(reading, 1)
        return connect(*given)

    monkeypatch.setattr(link_module, "_connect", slow)
    for forget in (link.forget, link.stop_joining, lambda: link.join(Join("me", b""), print)):
        made.clear()
        link.join(Join("me", b""), print)
        link.send()
        forget()
        os.write(writing, b"w")
        until(lambda: made and made[0].is_closed)
        link.forget()
    os.close(writing)
    os.close(reading)


def test_a_broker_that_cannot_be_connected_to_is_a_fault(
    link: MemberLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> Any:
        raise ConnectionRefusedError("one:1 refuses")

    def has_failed() -> bool:
        try:
            link.send()
        except ConnectionRefusedError:
            return True
        return False

    monkeypatch.setattr(link_module, "_connect", refused)
    link.heartbeat(BEAT, print)
    until(has_failed)
    link.forget()
    assert link.sockets == {}
