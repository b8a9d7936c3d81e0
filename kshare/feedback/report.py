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
    """A task's report on one slice.

    Args:
        ticket: The planner's address, and which slice this is.
    """

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._socket: socket.socket | None = None

    @property
    def connected(self) -> bool:
        """True if a planner listens, as far as is known."""
        return self._socket is not None

    def begin(self, executor: Executor | None = None) -> None:
        """Connect, and say that the task has begun.

        Args:
            executor: Where the task runs; None if that is not known.
        """
        address = (self._ticket.host, self._ticket.port)
        if not self._ticket.port or time.monotonic() < _unreachable.get(address, 0.0):
            return
        try:
            self._socket = socket.create_connection(address, timeout=_SECONDS_MAX)
        except OSError as error:
            _unreachable[address] = time.monotonic() + _UNREACHABLE_SECONDS
            _log.info("the planner at %s:%d takes no reports: %s", *address, error)
            return
        self._send(Hello(self._ticket.id, executor))

    def done(self, end: SliceEnd, *, held: bool) -> None:
        """Say where reading ended, and close the connection unless it is held.

        Args:
            end: Where reading ended.
            held: Keep the connection open: this process ends with the task.
        """
        self._send(Done(self._ticket.id, end, held))
        if held and self._socket is not None:
            _held.append(self._socket)
            self._socket = None
        self.close()

    def close(self) -> None:
        """Close the connection, unless it is held. May be called again."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None

    def _send(self, message: Message) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendall(encode(self._ticket.key, message))
        except OSError as error:
            _log.debug("the planner takes no more reports: %s", error)
            self.close()
