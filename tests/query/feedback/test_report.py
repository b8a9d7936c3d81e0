"""The task's side: it reports, and never waits for a planner that is not there."""

import socket
import time

import pytest

from kshare.core.slice_end import SliceEnd
from kshare.query.feedback import messages as report_module
from kshare.query.feedback import server as server_module
from kshare.query.feedback.messages import Executor, TaskReport
from kshare.query.feedback.server import FeedbackServer
from tests.support.clock import WAIT_S, until
from tests.support.feedback import END, result, tell


def test_a_held_connection_tells_when_the_process_ends(server: FeedbackServer) -> None:
    tell(server.ticket("b", 0, hold=True), held=True)
    until(lambda: 0 in server.reports("b"))
    told = server.reports("b")[0]
    assert (told.held, told.seconds) == (True, None)
    (kept,) = report_module._held
    kept.close()  # as the end of a process does
    assert result(server).seconds is not None


def test_a_task_that_fails_has_told_nothing(server: FeedbackServer) -> None:
    ticket = server.ticket("b", 0, hold=False)
    report = TaskReport(ticket)
    report.begin()
    was_connected = report.connected
    report.close()
    report.close()
    assert (was_connected, report.connected) == (True, False)
    tell(ticket)  # Spark tries again
    assert result(server).end == 120


def test_without_a_planner_a_task_goes_on(server: FeedbackServer) -> None:
    ticket = server.ticket("b", 0, hold=False)
    server.close()
    report = TaskReport(ticket)
    report.begin()
    assert not report.connected
    report.done(ticket, END, held=True)
    report.close()
    assert report_module._held == []


def test_a_planner_that_was_not_reached_is_not_tried_again(
    server: FeedbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[object] = []

    def refused(address: object, timeout: float) -> socket.socket:
        assert timeout <= 2
        tries.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refused)
    ticket = server.ticket("b", 0, hold=False)
    for _ in range(3):
        tell(ticket)
    assert tries == [(ticket.host, ticket.port)]
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61)
    tell(ticket)
    assert len(tries) == 2


def test_a_planner_that_goes_away_in_between(server: FeedbackServer) -> None:
    ticket = server.ticket("b", 0, hold=False)
    report = TaskReport(ticket)
    report.begin()
    server.close()
    for _ in range(3):
        report.done(ticket, END, held=False)
    assert not report.connected


def test_a_task_reports_on_all_its_slices_over_one_connection(
    server: FeedbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_CONNECTIONS_MAX", 1)
    tickets = [server.ticket("b", number, hold=False) for number in range(200)]
    report = TaskReport(*tickets)
    report.begin(Executor("one", 2))
    for ticket in reversed(tickets):
        assert report.connected
        report.done(ticket, SliceEnd(100 + ticket.number, 1), held=False)
    assert not report.connected
    told = server.reports("b", wait_seconds=WAIT_S)
    assert [entry.end for entry in told.values()] == list(range(100, 300))
    assert all(entry.seconds is not None for entry in told.values())
    assert server.executors("b") == {n: Executor("one", 2) for n in range(200)}
    assert server.rejected == 0


def test_a_connection_of_several_slices_is_held_for_one(server: FeedbackServer) -> None:
    tickets = [server.ticket("b", number, hold=not number) for number in range(2)]
    report = TaskReport(*tickets)
    report.begin()
    report.done(tickets[0], END, held=True)
    report.done(tickets[1], END, held=False)
    until(lambda: len(server.reports("b")) == 2)
    assert server.reports("b")[0].seconds is None
    (kept,) = report_module._held
    kept.close()
    assert result(server).seconds is not None
