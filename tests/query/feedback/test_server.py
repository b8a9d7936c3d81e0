"""What the server believes of what it is told, and everything that can go wrong on the way."""

import errno
import json
import logging
import pickle
import selectors
import socket
import struct
import threading
import time
from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from kshare.core.hashing import HASH_SPACE
from kshare.core.live import NO_LATENCY, Latency
from kshare.core.slice_end import SAMPLE_MAX, SliceEnd
from kshare.query.feedback import server as server_module
from kshare.query.feedback.messages import LIVE_RANGES_MAX, Reading, TaskReport, seal
from kshare.query.feedback.server import FeedbackServer
from tests.support.clock import WAIT_S, until
from tests.support.effort import examples
from tests.support.feedback import (
    END,
    HERE,
    Stranger,
    done_line,
    line,
    result,
    tell,
)


def test_a_task_tells_where_it_ended(server: FeedbackServer) -> None:
    before = time.monotonic()
    tell(server.ticket("b", 0, hold=False))
    told = result(server)
    assert (told.end, told.records, told.sample, told.held) == (120, 20, (1, 2, 3), False)
    assert told.seconds is not None
    assert told.began is not None
    assert before <= told.began <= told.began + told.seconds <= time.monotonic()


def test_all_of_a_batch_are_waited_for(server: FeedbackServer) -> None:
    tickets = [server.ticket("b", number, hold=False) for number in range(20)]
    tasks = [
        threading.Thread(target=tell, args=(ticket, SliceEnd(100 + ticket.number, 1)))
        for ticket in reversed(tickets)
    ]
    for task in tasks:
        task.start()
    told = server.reports("b", wait_seconds=WAIT_S)
    assert {task: entry.end for task, entry in told.items()} == {n: 100 + n for n in range(20)}
    assert list(told) == list(range(20))
    for task in tasks:
        task.join()


def test_nobody_waits_longer_than_asked_to(server: FeedbackServer) -> None:
    server.ticket("b", 0, hold=False)
    tell(server.ticket("b", 1, hold=False))
    until(lambda: 1 in server.reports("b"))
    assert list(server.reports("b", wait_seconds=0.01)) == [1]
    assert server.reports("another") == {}


@pytest.mark.parametrize("order", [(120, 110, 130), (110, 130, 120), (130, 120, 110)])
def test_of_attempts_that_differ_the_lowest_end_counts(
    server: FeedbackServer, order: tuple[int, ...]
) -> None:
    server.ticket("b", 1, hold=False)  # never tells, so that nothing is complete
    ticket = server.ticket("b", 0, hold=False)
    for end in order:
        tell(ticket, replace(END, end=end))
    tell(server.ticket("b", 2, hold=False))
    until(lambda: 2 in server.reports("b") and server.reports("b")[0].end == 110)
    assert server.reports("b")[0].end == 110


def test_the_time_is_that_of_the_attempt_that_counts(server: FeedbackServer) -> None:
    ticket = server.ticket("b", 0, hold=True)
    with closing(Stranger(ticket)) as counts, closing(Stranger(ticket)) as another:
        counts.say(line(ticket, "hello") + done_line(ticket, end=110))
        until(lambda: 0 in server.reports("b"))
        another.say(line(ticket, "hello") + done_line(ticket, end=120))
        another.close()
        tell(server.ticket("b", 1, hold=False))  # heard after that
        until(lambda: 1 in server.reports("b"))
        assert server.reports("b")[0].seconds is None
    assert result(server).seconds is not None


def test_batches_are_remembered_until_they_are_forgotten(server: FeedbackServer) -> None:
    tickets = [server.ticket(name, 0, hold=False) for name in ("a", "b", "c")]
    for ticket in tickets:
        tell(ticket)
    for name in ("a", "b", "c"):
        assert result(server, name).end == 120
    server.retain({"b", "c", "unknown"})
    assert server.reports("a") == {}
    assert list(server.reports("b")) == list(server.reports("c")) == [0]
    tell(tickets[0])  # late
    server.retain({"c"})
    assert server.reports("a") == server.reports("b") == {}
    assert list(server.reports("c")) == [0]


def test_a_ticket_travels_and_shows_no_secret(server: FeedbackServer) -> None:
    ticket = server.ticket("b", 3, hold=True)
    assert pickle.loads(pickle.dumps(ticket)) == ticket
    assert repr(ticket.key) not in repr(ticket)
    assert ticket.key.hex() not in repr(ticket)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\n",
        b"\n",
        b"\x00" * 64 + b"\n",
        b"0" * 64 + b' {"kind":"hello","batch":"b","task":0}\n',
        b"\xff" * 4_000 + b"\n",
    ],
)
def test_strangers_are_dropped(server: FeedbackServer, said: bytes) -> None:
    ticket = server.ticket("b", 0, hold=False)
    with closing(Stranger(ticket)) as stranger:
        stranger.say(said)
        assert stranger.is_dropped()
    assert server.rejected == 1
    tell(ticket)
    assert result(server).end == 120


def test_messages_with_another_key_are_dropped(server: FeedbackServer) -> None:
    ticket = server.ticket("b", 0, hold=False)
    tell(replace(ticket, key=b"another"), replace(END, end=1))
    until(lambda: server.rejected == 1)
    tell(ticket)
    assert result(server).end == 120


@pytest.mark.parametrize(
    "fields",
    [
        {"end": -1},
        {"end": 2**63},
        {"end": "120"},
        {"end": True},
        {"end": None},
        {"records": -1},
        {"sample": None},
        {"sample": [HASH_SPACE]},
        {"sample": [-1]},
        {"sample": [1.5]},
        {"sample": [True]},
        {"sample": [1] * (SAMPLE_MAX + 1)},
        {"held": 1},
        {"task": 1},
        {"batch": "c"},
        {"batch": None},
        {"task": -1},
        {"kind": "bye"},
        {"kind": None},
    ],
)
def test_messages_that_cannot_be_are_dropped(
    server: FeedbackServer, fields: dict[str, object]
) -> None:
    """Even if they are sealed: workers may run another version of kshare."""
    ticket = server.ticket("b", 0, hold=False)
    server.ticket("b", 1, hold=False)
    with closing(Stranger(ticket)) as stranger:
        kind = {"kind": fields.get("kind", "done")}
        place = {"batch": "b", "task": 0, "end": 120, "records": 20, "sample": [], "held": False}
        stranger.say(line(ticket, "hello"))
        stranger.say(seal(ticket.key, {**place, **kind, **fields}))
        assert stranger.is_dropped()
    assert server.rejected == 1
    assert server.reports("b") == {}


@pytest.mark.parametrize("body", [[1], "x", 3, None])
def test_what_is_no_object_is_dropped(server: FeedbackServer, body: object) -> None:
    ticket = server.ticket("b", 0, hold=False)
    with closing(Stranger(ticket)) as stranger:
        stranger.say(seal(ticket.key, body))  # type: ignore[arg-type]
        assert stranger.is_dropped()
    assert server.rejected == 1


def test_a_result_without_a_hello_is_dropped(server: FeedbackServer) -> None:
    ticket = server.ticket("b", 0, hold=False)
    with closing(Stranger(ticket)) as stranger:
        stranger.say(done_line(ticket))
        assert stranger.is_dropped()
    assert server.reports("b") == {}


def test_a_task_that_has_no_ticket_counts_for_nothing(server: FeedbackServer) -> None:
    ticket = server.ticket("b", 0, hold=False)
    tell(replace(ticket, number=7))
    tell(replace(ticket, batch="of another time"))
    tell(ticket)
    assert list(server.reports("b", wait_seconds=WAIT_S)) == [0]
    assert server.reports("of another time") == {}
    assert server.rejected == 0


def test_lines_without_end_are_dropped(server: FeedbackServer) -> None:
    ticket = server.ticket("b", 0, hold=False)
    with closing(Stranger(ticket)) as stranger:
        stranger.say(b"x" * (server_module._FIRST_LINE_MAX + 1))
        assert stranger.is_dropped()
    with closing(Stranger(ticket)) as stranger:
        stranger.say(line(ticket, "hello"))
        stranger.say(b"x" * (server_module._LINE_MAX + 1))
        assert stranger.is_dropped()
    assert server.rejected == 2


def test_nested_without_end(server: FeedbackServer, monkeypatch: pytest.MonkeyPatch) -> None:
    ticket = server.ticket("b", 0, hold=False)
    body = b"[" * 3_000
    monkeypatch.setattr(json, "dumps", lambda *_, **__: body.decode())
    data = seal(ticket.key, {})
    monkeypatch.undo()
    with closing(Stranger(ticket)) as stranger:
        stranger.say(data)
        assert stranger.is_dropped()
    assert server.rejected == 1
    tell(ticket)  # the server goes on
    assert result(server).end == 120


def test_silent_strangers_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_HELLO_SECONDS_MAX", 0.0)
    monkeypatch.setattr(server_module, "_TICK_SECONDS", 0.01)
    with closing(FeedbackServer(HERE)) as server:
        server.start()
        with closing(Stranger(server.ticket("b", 0, hold=False))) as stranger:
            assert stranger.is_dropped()
        until(lambda: server.rejected == 1)


def test_there_are_not_too_many_connections(
    server: FeedbackServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "_CONNECTIONS_MAX", 2)
    ticket = server.ticket("b", 0, hold=False)
    known = [Stranger(ticket), Stranger(ticket)]
    for stranger in known:
        stranger.say(line(ticket, "hello"))
    for _ in range(3):
        with closing(Stranger(ticket)) as one_more:
            assert one_more.is_dropped()
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert "takes no more reports of tasks at once" in warning.message
    for stranger in known:
        stranger.close()

    def gets_through() -> bool:
        tell(ticket)
        return 0 in server.reports("b")

    until(gets_through)


class NoFile:
    """A ``socket.accept`` that finds no file descriptor, some times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        self.calls = 0
        accept = socket.socket.accept

        def fails(listener: socket.socket) -> tuple[socket.socket, object]:
            self.calls += 1
            if self.calls <= times:
                raise OSError(errno.EMFILE, "Too many open files")
            return accept(listener)

        monkeypatch.setattr(socket.socket, "accept", fails)


def test_a_connection_that_cannot_be_taken_does_not_keep_the_server_busy(
    server: FeedbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tickets = [server.ticket("b", number, hold=False) for number in range(5)]
    with closing(Stranger(tickets[0])) as known:
        known.say(line(tickets[0], "hello") + done_line(tickets[0]))
        until(lambda: 0 in server.reports("b"))
        monkeypatch.setattr(server_module, "_TICK_SECONDS", 10 * WAIT_S)
        no_file = NoFile(monkeypatch, 10**9)
        with closing(Stranger(tickets[0])):
            until(lambda: no_file.calls > 0)
            for ticket in tickets[1:]:  # each wakes the server
                known.say(line(ticket, "hello") + done_line(ticket))
                until(lambda number=ticket.number: number in server.reports("b"))  # type: ignore[misc]
    assert no_file.calls == 1


def test_connections_are_taken_again_some_time_after_that_has_failed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "_TICK_SECONDS", 0.01)
    NoFile(monkeypatch, 3)
    with closing(FeedbackServer(HERE)) as server:
        server.start()
        tell(server.ticket("b", 0, hold=False))
        assert result(server).end == 120
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "Too many open files" in caplog.text


def test_connections_that_the_system_does_not_watch_are_dropped(
    server: FeedbackServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(server_module, "_TICK_SECONDS", 0.01)
    ticket = server.ticket("b", 0, hold=False)
    with closing(Stranger(ticket)) as early:  # the thread watches its own sockets by now
        early.say(b"?\n")
        assert early.is_dropped()
    with monkeypatch.context() as patch:
        patch.setattr(selectors.DefaultSelector, "register", full)
        with closing(Stranger(ticket)) as stranger:
            assert stranger.is_dropped()
            until(lambda: caplog.records != [])  # it is said once the connection is dropped
    (warning,) = caplog.records
    assert "No space left on device" in warning.message


def test_a_server_that_can_watch_nothing_leaves_no_socket(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(selectors.DefaultSelector, "register", full)
    with closing(FeedbackServer(("127.0.0.1", 9))) as server:
        server.start()
        assert server._wake is not None
        until(lambda: server._wake is None or server._wake[0].fileno() < 0)
    assert "the planner goes on without" in caplog.text


def test_a_server_whose_thread_has_ended_gives_tickets_that_lead_nowhere(
    server: FeedbackServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("never seen before")

    monkeypatch.setattr(server_module, "decode", broken)
    monkeypatch.setattr(FeedbackServer, "_reject", broken)
    with closing(Stranger(server.ticket("b", 0, hold=False))) as stranger:
        stranger.say(b"anything\n")
        until(lambda: not server.start())
    assert "the planner goes on without" in caplog.text
    ticket = server.ticket("b", 1, hold=False)
    assert ticket.port == 0
    tell(ticket)
    assert server.reports("b", wait_seconds=0.01) == {}


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(min_size=1, max_size=200), max_size=5), st.integers(0, 400))
def test_no_bytes_stop_the_server(server: FeedbackServer, pieces: list[bytes], cut: int) -> None:
    """Noise, then a message that is cut short."""
    ticket = server.ticket("b", 0, hold=False)
    for data in (*pieces, (line(ticket, "hello") + done_line(ticket))[:cut]):
        with closing(Stranger(ticket)) as stranger:
            stranger.say(data)
    fresh = server.ticket(f"b{cut}", 1, hold=False)
    tell(fresh)
    assert server.reports(fresh.batch, wait_seconds=WAIT_S)[1].end == 120


def test_a_connection_that_is_reset(server: FeedbackServer) -> None:
    ticket = server.ticket("b", 0, hold=False)
    stranger = Stranger(ticket)
    stranger.say(line(ticket, "hello") + done_line(ticket, end=110))
    until(lambda: 0 in server.reports("b"))
    stranger.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stranger.close()
    assert result(server).end == 110


def test_messages_that_come_byte_by_byte(server: FeedbackServer) -> None:
    ticket = server.ticket("b", 0, hold=False)
    with closing(Stranger(ticket)) as stranger:
        stranger.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in line(ticket, "hello") + done_line(ticket):
            stranger.say(bytes([byte]))
    assert result(server).end == 120


def test_where_nothing_can_listen_there_is_no_feedback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def cannot(hint: tuple[str, int]) -> socket.socket:
        raise OSError("no network")

    monkeypatch.setattr(server_module, "_listen", cannot)
    with closing(FeedbackServer(("broker", 1))) as server:
        assert not server.start()
        assert not server.start()
        ticket = server.ticket("b", 0, hold=False)
        assert ticket.port == 0
        tell(ticket)
        assert server.reports("b", wait_seconds=0.01) == {}
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "broker:1: no network" in caplog.text


def test_starting_and_closing_again() -> None:
    server = FeedbackServer(HERE)
    server.close()
    assert not server.start()  # closed for good
    server = FeedbackServer(HERE)
    assert server.start()
    assert server.start()
    address = server.ticket("b", 0, hold=False)
    server.close()
    server.close()
    with pytest.raises(ConnectionRefusedError):
        Stranger(address)
    assert all(thread.name != "kshare-feedback" for thread in threading.enumerate())


def test_a_task_of_an_open_batch_tells_where_it_is(server: FeedbackServer) -> None:
    task = TaskReport(server.ticket("b", 2, hold=False))
    other = server.ticket("c", 0, hold=False)
    ticket = server.ticket("b", 2, hold=False)
    latency = Latency((3, *NO_LATENCY.counts[1:]))
    assert server.readings("b") == {}
    with closing(task):
        task.begin()
        for position in (5, 9):
            task.reading(ticket, [position, 0], [10, 11], latency)
            said = {2: Reading(ticket.id, (position, 0), (10, 11), latency)}
            until(partial(_hears, server, said))
        task.reading(ticket, [1] * (LIVE_RANGES_MAX + 1), [1] * (LIVE_RANGES_MAX + 1), latency)
        task.reading(other, [1], [1], latency)  # without a word that it has begun
        until(lambda: server.rejected == 1)
    assert _hears(server, said)
    assert server.readings("c") == {}
    server.retain({"c"})
    assert server.readings("b") == {}


def _hears(server: FeedbackServer, said: dict[int, Reading]) -> bool:
    return server.readings("b") == said
