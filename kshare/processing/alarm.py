"""A timer of an event loop that rings at the earliest of the times it was set to."""

import asyncio
from collections.abc import Callable

__all__ = ["Alarm"]


class Alarm:
    """Calls a function at a time. For the event loop's thread.

    Args:
        loop: The event loop.
        call: The function.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
        self._loop = loop
        self._call = call
        self._timer: asyncio.TimerHandle | None = None
        self._when = 0.0

    def set(self, when: float) -> None:
        """Ring at a time, by the loop's clock; once, at the earliest one since it rang."""
        if self._timer is not None:
            if self._when <= when:
                return
            self._timer.cancel()
        # One of uvloop's does not say when, if that is over already.
        self._timer, self._when = self._loop.call_at(when, self._ring), when

    def _ring(self) -> None:
        self._timer = None
        self._call()

    def close(self) -> None:
        """Ring no more."""
        if self._timer is not None:
            self._timer.cancel()
