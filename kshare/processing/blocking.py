"""Warns of handlers that block the event loop, and names where they do."""

import asyncio
import logging
import sys
import threading
import time
import traceback
from types import FrameType
from typing import Final

__all__ = ["LoopWatch"]

_log = logging.getLogger("kshare.processing")

_LOOK_SECONDS: Final = 0.1
_QUIET_SECONDS: Final = 60.0
_ENGINE: Final = "kshare.processing.engine"


class LoopWatch:
    """Looks, from a thread of its own, whether an event loop goes on; made in the loop's thread.

    Args:
        loop: The loop.
        handler: Name of the handler, for the warning.
        most_seconds: For so long a turn of the loop may take without a warning.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, handler: str, most_seconds: float = 0.5
    ) -> None:
        self._loop = loop
        self._handler = handler
        self._most = most_seconds
        self._ident = threading.get_ident()
        self._closed = threading.Event()
        self._seen = time.monotonic()
        self._call: FrameType | None = None
        self._thread = threading.Thread(target=self._run, name="kshare loop watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._closed.set()
        self._thread.join()

    def _beat(self) -> None:
        self._seen, self._call = time.monotonic(), None

    def _run(self) -> None:
        quiet_until = 0.0
        while not self._closed.wait(_LOOK_SECONDS):
            late = time.monotonic() - self._seen
            if late > self._most and time.monotonic() > quiet_until and self._warn(late):
                quiet_until = time.monotonic() + _QUIET_SECONDS
            try:
                self._loop.call_soon_threadsafe(self._beat)
            except RuntimeError:  # closed
                return

    def _warn(self, seconds: float) -> bool:
        """Name what blocks the loop; False if no handler does, or it is not sure yet."""
        frame = sys._current_frames().get(self._ident)  # noqa: SLF001 - there is no other way
        before, self._call = self._call, _call_in(frame)
        # On a busy machine a turn of many short calls takes as long: it has to be the same call.
        if frame is None or self._call is None or self._call is not before:
            return False
        self._call = None
        where = traceback.extract_stack(frame)[-1]
        _log.warning(
            "%s blocks the event loop for %.1f s already, in %s:%s (%s): all other keys wait; "
            "await what takes long, or make the handler a plain function, which runs in a thread",
            self._handler,
            seconds,
            where.filename,
            where.lineno,
            where.name,
        )
        return True


def _call_in(frame: FrameType | None) -> FrameType | None:
    """The handler's frame in a stack; None if none is called."""
    called = None
    while frame is not None:
        if frame.f_globals.get("__name__") == _ENGINE:
            return called
        called, frame = frame, frame.f_back
    return None
