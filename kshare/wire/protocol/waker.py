"""Ends a wait for sockets, from another thread or a signal handler."""

import os
import select
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

__all__ = ["Waker"]

_CLOSED = -1


class Waker:
    """Ends waiting before its time.

    A call of :meth:`wake` ends the wait under way, or else the next one. Before :meth:`open` and
    after :meth:`close` it wakes nobody, and :meth:`wait` returns at once. One thread waits; wake
    and close may be called from any thread, and from a signal handler.
    """

    def __init__(self) -> None:
        self._reading = self._writing = _CLOSED
        self._is_woken = False  # there is something to read: to write again would take time
        self._lock = threading.RLock()  # a closed descriptor may soon be another file's

    def open(self) -> Self:
        """Open it."""
        self._is_woken = False
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        return self

    def wake(self) -> None:
        """End the wait under way, or else the next one."""
        with self._lock:
            if self._writing != _CLOSED and not self._is_woken:
                with suppress(BlockingIOError):  # full, so that it is readable
                    os.write(self._writing, b"w")
                self._is_woken = True

    def wait(self, seconds: float, sockets: Sequence[int] = ()) -> list[int]:
        """Wait until a socket can be read, or :meth:`wake` is called, or time is over.

        Args:
            seconds: Maximum time to wait; below 0 is 0.
            sockets: Descriptors of the sockets.

        Returns:
            The sockets that can be read, or that are closed.
        """
        reading = self._reading
        if reading == _CLOSED:
            return []
        poll = select.poll()
        for descriptor in (reading, *sockets):
            poll.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(max(seconds, 0.0) * 1000 + 0.5)}
        with self._lock:
            if self._reading == reading and reading in ready:
                with suppress(BlockingIOError):
                    os.read(reading, 1 << 16)
                self._is_woken = False  # last: a signal handler may wake amid this
        return [socket for socket in sockets if socket in ready]

    def close(self) -> None:
        """Close it; may be called again."""
        with self._lock:
            descriptors = self._reading, self._writing
            self._reading = self._writing = _CLOSED
            if _CLOSED not in descriptors:
                for descriptor in descriptors:
                    os.close(descriptor)
