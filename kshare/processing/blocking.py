"""Warns of handlers that block the event loop, and names where they do."""

import asyncio
import logging
import sys
import threading
import time
import traceback
from typing import Final

__all__ = ["LoopWatch"]

_log = logging.getLogger("kshare.processing")

_LOOK_SECONDS: Final = 0.1
_QUIET_SECONDS: Final = 60.0


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
        self._thread = threading.Thread(target=self._run, name="kshare loop watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._closed.set()
        self._thread.join()

    def _beat(self) -> None:
        self._seen = time.monotonic()

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
        """Name what blocks the loop; False if nothing does."""
        frame = sys._current_frames().get(self._ident)  # noqa: SLF001 - there is no other way
        where = traceback.extract_stack(frame)[-1] if frame is not None else None
        if where is not None and where.name == "select":
            return False  # it waits for the processor, as the whole process did
        _log.warning(
            "%s blocks the event loop for %.1f s already%s: all other keys wait; await what takes "
            "long, or make the handler a plain function, which runs in a thread",
            self._handler,
            seconds,
            f", in {where.filename}:{where.lineno} ({where.name})" if where is not None else "",
        )
        return True
