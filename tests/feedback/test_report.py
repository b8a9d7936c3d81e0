"""The task's side: it reports, and never waits for a planner that is not there."""

import socket
import time

import pytest

from kshare.feedback import report as report_module
from kshare.feedback.report import TaskReport
from kshare.feedback.server import FeedbackServer
from tests.support.clock import until
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
    report.done(END, held=True)
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
    report = TaskReport(server.ticket("b", 0, hold=False))
    report.begin()
    server.close()
    for _ in range(3):
        report.done(END, held=False)
    assert not report.connected
