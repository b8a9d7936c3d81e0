"""What a session's thread and its callers share, and how they wake each other."""

import os
import threading
from contextlib import suppress
from dataclasses import dataclass, field

from kshare.errors import KshareError
from kshare.group.ownerships import Ownerships

__all__ = ["Shared", "Waker"]


@dataclass(slots=True)
class Shared:
    """What the session's thread and its callers share; ``changed`` guards all of it.

    Attributes:
        ownerships: What the session owns.
        changed: Guards it, and tells who waits.
        fault: Why the session cannot go on; None if it can.
        trouble: What went wrong last.
        is_closing: Whether the session is to end.
        close_by: By when, at the latest.
        own_fences: How often the session has fenced its own transactional id.
        keeps_claims: Whether claims stay in the log when it ends: a transaction is not decided, so
            who takes over has to know its id.
    """

    ownerships: Ownerships
    changed: threading.Condition = field(default_factory=threading.Condition)
    fault: KshareError | None = None
    trouble: str = ""
    is_closing: bool = False
    close_by: float = 0.0
    own_fences: int = 0
    keeps_claims: bool = False


class Waker:
    """Ends a wait of the session's thread, from any thread."""

    def __init__(self) -> None:
        self._reader, self._writer = -1, -1
        self._lock = threading.Lock()  # a closed descriptor may soon be another file's

    def open(self) -> None:
        """Open it; before, it wakes nobody."""
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)

    def wake(self) -> None:
        """End the wait, or the next one."""
        with self._lock, suppress(OSError):  # full: it is awake already; or closed
            os.write(self._writer, b"!")

    def fileno(self) -> int:
        """What becomes readable."""
        return self._reader

    def clear(self) -> None:
        """Forget the wake-ups of before."""
        with suppress(OSError):
            os.read(self._reader, 4096)

    def close(self) -> None:
        """Close it; from now on it wakes nobody."""
        with self._lock:
            os.close(self._reader)
            os.close(self._writer)
            self._reader, self._writer = -1, -1
