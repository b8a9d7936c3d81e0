"""Tasks and strangers that talk to a feedback server, for its tests."""

import socket

from kshare.core.slice_end import SliceEnd
from kshare.core.tasks import Ticket
from kshare.query.feedback.messages import TaskReport, seal
from kshare.query.feedback.server import FeedbackServer
from tests.support.clock import WAIT_S

HERE = ("127.0.0.1", 9092)
END = SliceEnd(120, 20, (1, 2, 3))


def tell(ticket: Ticket, end: SliceEnd = END, *, held: bool = False) -> None:
    """Report as a task does."""
    report = TaskReport(ticket)
    report.begin()
    report.done(ticket, end, held=held)


def result(server: FeedbackServer, batch: str = "b", task: int = 0) -> SliceEnd:
    """Where a task ended, once all of its batch have reported."""
    return server.reports(batch, wait_seconds=WAIT_S)[task]


class Stranger:
    """A connection that says what it likes."""

    def __init__(self, ticket: Ticket) -> None:
        self.socket = socket.create_connection((ticket.host, ticket.port), WAIT_S)

    def say(self, data: bytes) -> None:
        self.socket.sendall(data)

    def is_dropped(self) -> bool:
        self.socket.settimeout(WAIT_S)
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.socket.close()


def line(ticket: Ticket, kind: str, **fields: object) -> bytes:
    """A signed message of a task, with any fields."""
    task = {"batch": ticket.batch, "task": ticket.number}
    return seal(ticket.key, {"kind": kind, **task, **fields})


def done_line(ticket: Ticket, **fields: object) -> bytes:
    """A signed result of a task, with some fields replaced."""
    end = {"end": 120, "records": 20, "sample": [1], "held": False}
    return line(ticket, "done", **{**end, **fields})
