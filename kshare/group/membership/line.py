"""One connection of a member to its coordinator: a request at a time, and nobody waits for it.

::

    asked --> waits for the connection, those before, and room --> sent --> answered | overdue

One at a time: what TLS has decrypted does not make a socket readable.
"""

import select
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, TypeAlias

from kshare.wire.protocol.connection import Connection

__all__ = ["Answered", "Line", "Make"]

Make: TypeAlias = Callable[[Connection], Any]
"""Makes a request, in a version that the broker speaks."""
Answered: TypeAlias = Callable[[Any], None]
"""Takes the answer."""


class Line:
    """A connection, and what is asked on it. Another object connects it.

    Args:
        seconds: Time limit of a request and its answer.
        is_held: Whether brokers hold requests: the limit is one of sending a request, and of the
            rest of an answer that has begun.

    Attributes:
        connection: The connection; None until it is made.
    """

    def __init__(self, seconds: float, *, is_held: bool = False) -> None:
        self.connection: Connection | None = None
        self._seconds = seconds
        self._is_held = is_held
        self._waiting: deque[tuple[Make, Answered]] = deque()
        self._sent: tuple[Any, Answered] | None = None
        self._rest = memoryview(b"")  # of it, for which there was no room
        self._due = float("inf")  # when it, or its answer, is overdue

    @property
    def is_free(self) -> bool:
        """True if nothing was asked that is not answered."""
        return self._sent is None and not self._waiting

    @property
    def fileno(self) -> int | None:
        """What becomes ready; None if nothing was sent."""
        return None if self._sent is None or self.connection is None else self.connection.fileno()

    @property
    def events(self) -> int:
        """What it is to be ready for: to take the rest of a request, or to give an answer."""
        return select.POLLOUT if self._rest else select.POLLIN

    @property
    def seconds_left(self) -> float:
        """Seconds until an answer is overdue."""
        return float("inf") if self._sent is None else max(self._due - time.monotonic(), 0.0)

    def ask(self, make: Make, answered: Answered) -> None:
        """Send a request as soon as it can be sent."""
        self._waiting.append((make, answered))

    def send(self) -> None:
        """Send what can be sent, as far as there is room for it.

        Raises:
            OSError, KafkaError: As :class:`.Connection`.
        """
        if self.connection is None:
            return
        if self._sent is None and self._waiting:
            make, answered = self._waiting.popleft()
            request = make(self.connection)
            self._rest = self.connection.frame(request)
            self._sent = request, answered
            self._due = time.monotonic() + self._seconds
        if self._rest:
            self._rest = self.connection.send_ready(self._rest)
            if self._is_held and not self._rest:
                self._due = float("inf")

    def take(self, ready: Collection[int]) -> None:
        """Take an answer if it is there.

        Args:
            ready: Descriptors of the sockets that are ready.

        Raises:
            TimeoutError: It is overdue.
            OSError, KshareError: As :class:`.Connection`, or as what takes the answer.
        """
        if self._sent is None or self.connection is None:
            return
        request, answered = self._sent
        if self.fileno in ready and not self._rest:
            body = self.connection.receive_ready()
            if body is not None:
                self._sent = None
                answered(self.connection.decoded(type(request), request.API_VERSION, body))
                return
            self._due = min(self._due, time.monotonic() + self._seconds)  # some of it has come
        if time.monotonic() > self._due:
            broker = self.connection.broker
            raise TimeoutError(f"broker {broker} did not answer within {self._seconds:g} s")

    def close(self) -> None:
        """Close the connection, and forget what was asked."""
        self._waiting.clear()
        self._sent, self._rest = None, memoryview(b"")
        if self.connection is not None:
            self.connection.close()
            self.connection = None
