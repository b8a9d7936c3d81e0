"""Room in an engine, for a thread that reads records for it."""

import threading
import time
from collections.abc import Callable
from typing import Final

__all__ = ["Room"]

_GATHER_SECONDS: Final = 0.01
_FULL_SECONDS: Final = 1.0
"""After so long without room, partitions are paused and the group is followed meanwhile."""


class Room:
    """Room for more records: the engine's, less those on their way to it.

    Args:
        of_engine: The engine's room.
        worth: Number of records that are worth a look at the consumer.
    """

    def __init__(self, of_engine: Callable[[], int], worth: int) -> None:
        self._of_engine = of_engine
        self._worth = worth
        self._has_changed = threading.Event()
        self._sent = 0  # by the reader
        self._taken = 0  # by the engine's thread

    @property
    def left(self) -> int:
        """Number of records that may be read now."""
        return self._of_engine() - (self._sent - self._taken)

    def send(self, records: int) -> None:
        """Some records are on their way."""
        self._sent += records

    def take(self, records: int) -> None:
        """Some records have arrived: the engine counts them now."""
        self._taken += records

    def changed(self) -> None:
        """Have the reader look again, if it waits. From any thread."""
        self._has_changed.set()

    def wait(self, until: Callable[[], bool]) -> bool:
        """Wait until there is room; for a moment, until it is worth a look at the consumer.

        Args:
            until: What ends the wait besides; looked at when it has :meth:`changed`.

        Returns:
            True if there is room.
        """
        began = time.monotonic()
        while (room := self.left) < self._worth and not until():
            most = _FULL_SECONDS if room <= 0 else _GATHER_SECONDS
            left = began + most - time.monotonic()
            if left <= 0:
                break
            self._has_changed.clear()
            if self.left < self._worth:
                self._has_changed.wait(left)
        return self.left > 0
