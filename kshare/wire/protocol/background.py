"""Calls that wait for brokers, each in a thread of its own, for threads that must not wait.

::

    begin --> a thread calls --> done --> the waker wakes the one thread, which looks again

There are two ways. :func:`begin` returns a future, and the thread asks it with each of its steps
whether it is done. With :class:`Beside`, what is done is an event, and :meth:`Beside.take` calls
what takes it; a session does that with its lock held.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

__all__ = ["Beside", "abandon", "begin"]

_T = TypeVar("_T")


def begin(call: Callable[[], _T], name: str, wake: Callable[[], None]) -> "Future[_T]":
    """Begin a call.

    Args:
        call: The call.
        name: Name of its thread.
        wake: Called, by that thread, once the future is done.
    """
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)
        wake()

    # A daemon: a broker that does not answer delays no exit.
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter ends, and begins no thread: nothing else is to be done
        run()
    return future


def abandon(future: "Future[_T]", close: Callable[[_T], None]) -> None:
    """Wait for a call no longer; what it returns, once it does, is closed."""

    def done(ended: "Future[_T]") -> None:
        if ended.exception() is None:
            close(ended.result())

    future.add_done_callback(done)


class Beside:
    """What is done beside one thread, and what has come of it.

    Args:
        wake: Wakes that thread; called from any thread.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._events: deque[Callable[[], None]] = deque()

    @property
    def has_events(self) -> bool:
        """True if there is something to take."""
        return bool(self._events)

    def begin(
        self,
        call: Callable[[], _T],
        name: str,
        done: Callable[[_T], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Begin a call.

        Args:
            call: The call.
            name: Name of its thread.
            done: Takes what it returns, as an event.
            failed: Takes what it raises, as an event.
        """

        def end() -> None:
            error = future.exception()
            if error is None:
                done(future.result())
            elif isinstance(error, Exception):
                failed(error)
            else:
                raise error

        future = begin(call, name, lambda: None)
        future.add_done_callback(lambda _: self.post(end))

    def post(self, event: Callable[[], None]) -> None:
        """Have something done by the one thread. From any thread."""
        self._events.append(event)
        self._wake()

    def take(self) -> None:
        """Do what has been posted."""
        while self._events:
            self._events.popleft()()
