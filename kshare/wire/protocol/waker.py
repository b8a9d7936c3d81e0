"""Ends a wait for sockets, from another thread or a signal handler."""

import os
import select
import threading
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final, Self

__all__ = ["Waker"]

_CLOSED = -1
_NONE: Final[Mapping[int, int]] = MappingProxyType({})
_POLL_MS_MAX = 2**31 - 1  # a C int


class Waker:
    """Ends waiting before its time.

    A call of :meth:`wake` ends the wait under way, or else the next one. Before :meth:`open` and
    after :meth:`close` it wakes nobody, and :meth:`wait` returns at once. One thread waits; wake
    and close may be called from any thread, and from a signal handler.

    No method waits for another one: a signal handler may keep the one that it runs amid from going
    on. Whoever finds the lock taken leaves what is to be done to the thread that has it.
    """

    def __init__(self) -> None:
        self._reading = self._writing = _CLOSED
        self._is_woken = False  # there is something to read: to write again would take time
        self._is_closing = False
        self._lock = threading.RLock()  # a closed descriptor may soon be another file's

    def open(self) -> Self:
        """Open it."""
        self._is_woken = self._is_closing = False
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        return self

    def wake(self) -> None:
        """End the wait under way, or else the next one."""
        if not self._lock.acquire(blocking=False):
            return  # who has it wakes, or is about to return from its wait
        try:
            if self._writing != _CLOSED and not self._is_woken:
                # Full, so that it is readable; or closed by a signal handler amid this.
                with suppress(OSError):
                    os.write(self._writing, b"w")
                self._is_woken = True
        finally:
            self._leave()

    def wait(self, seconds: float, sockets: Mapping[int, int] = _NONE) -> list[int]:
        """Wait until a socket is ready, or :meth:`wake` is called, or time is over.

        Args:
            seconds: Maximum time to wait; below 0 is 0, and more than three weeks is as much.
            sockets: What each is to be ready for (``select.POLLIN``, ...), by its descriptor.

        Returns:
            The sockets that are ready, or closed.
        """
        reading = self._reading
        if reading == _CLOSED:
            return []
        poll = select.poll()
        for descriptor, events in {reading: select.POLLIN, **sockets}.items():
            poll.register(descriptor, events)
        ready = {
            descriptor
            for descriptor, _ in poll.poll(min(max(seconds, 0.0) * 1000 + 0.5, _POLL_MS_MAX))
        }
        if reading in ready:
            self._clear()
        return [socket for socket in sockets if socket in ready]

    def _clear(self) -> None:
        if not self._lock.acquire(blocking=False):
            return  # so the next wait ends at once, too
        try:
            if self._reading != _CLOSED:
                with suppress(OSError):
                    os.read(self._reading, 1 << 16)
                self._is_woken = False  # last: a signal handler may wake amid this
        finally:
            self._leave()

    def close(self) -> None:
        """Close it; may be called again."""
        self._is_closing = True
        self._close()

    def _leave(self) -> None:
        self._lock.release()
        if self._is_closing:
            self._close()

    def _close(self) -> None:
        if not self._lock.acquire(blocking=False):
            return  # who has it closes when it leaves
        try:
            descriptors = self._reading, self._writing
            self._reading = self._writing = _CLOSED
            if _CLOSED not in descriptors:
                for descriptor in descriptors:
                    os.close(descriptor)
        finally:
            self._lock.release()
