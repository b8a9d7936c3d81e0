"""The task's side of feedback: one small TCP connection to the planner.

Guarantees: no call raises or waits longer than 2 s. A planner that was not reached is not tried
again by this process for a minute.
"""

import contextlib
import logging
import socket
import time

from kshare.core.slice_end import SliceEnd
from kshare.core.tasks import Ticket
from kshare.feedback.messages import Done, Executor, Hello, Message, encode

__all__ = ["TaskReport"]

_log = logging.getLogger(__name__)

_SECONDS_MAX = 2.0
_UNREACHABLE_SECONDS = 60.0

# Of this process: connections that stay open until it ends, and planners that were not reached.
_held: list[socket.socket] = []
_unreachable: dict[tuple[str, int], float] = {}


class TaskReport:
    """A task's report on its slices, over one connection.

    Args:
        tickets: The planner's address, and which slices these are: one or more.
    """

    def __init__(self, *tickets: Ticket) -> None:
        self._tickets = tickets
        self._left = {ticket.id for ticket in tickets}
        self._socket: socket.socket | None = None
        self._is_held = False

    @property
    def connected(self) -> bool:
        """True if a planner listens, as far as is known."""
        return self._socket is not None

    def begin(self, executor: Executor | None = None) -> None:
        """Connect, and say that the task has begun.

        Args:
            executor: Where the task runs; None if that is not known.
        """
        first = self._tickets[0]
        address = (first.host, first.port)
        if not first.port or time.monotonic() < _unreachable.get(address, 0.0):
            return
        try:
            self._socket = socket.create_connection(address, timeout=_SECONDS_MAX)
        except OSError as error:
            _unreachable[address] = time.monotonic() + _UNREACHABLE_SECONDS
            _log.info("the planner at %s:%d takes no reports: %s", *address, error)
            return
        self._send(*(Hello(ticket.id, executor) for ticket in self._tickets))

    def done(self, ticket: Ticket, end: SliceEnd, *, held: bool) -> None:
        """Say where reading ended; after all slices, close the connection unless it is held.

        Args:
            ticket: Of which slice.
            end: Where reading ended.
            held: Keep the connection open: this process ends with the task.
        """
        self._is_held |= held
        self._send(Done(ticket.id, end, held))
        self._left.discard(ticket.id)
        if not self._left:
            self.close()

    def close(self) -> None:
        """Close the connection, unless it is held. May be called again."""
        if self._socket is not None:
            if self._is_held:
                _held.append(self._socket)
            else:
                with contextlib.suppress(OSError):
                    self._socket.close()
            self._socket = None

    def _send(self, *messages: Message) -> None:
        if self._socket is None:
            return
        key = self._tickets[0].key
        try:
            self._socket.sendall(b"".join(encode(key, message) for message in messages))
        except OSError as error:
            _log.debug("the planner takes no more reports: %s", error)
            self._is_held = False
            self.close()
