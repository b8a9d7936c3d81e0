"""Threads for handlers that are plain functions; one that hangs is left behind, and replaced.

Not ``concurrent.futures``: its threads are waited for when the process ends, also one that hangs.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

__all__ = ["Threads"]

_Work = Callable[[], Callable[[], Any]]


class Threads:
    """Runs functions in threads, which are started as they are needed.

    Args:
        name: Of the threads.

    Attributes:
        lost: Number of threads whose call was given up and has not returned.
    """

    def __init__(self, name: str) -> None:
        self.lost = 0
        self._name = name
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._threads = 0
        self._free = 0
        self._lock = threading.Lock()

    def run(self, work: _Work) -> None:
        """Run a function in a thread, and then what it returns; neither raises.

        The thread counts as free between the two: its next work may begin at once.
        """
        with self._lock:
            needs_thread = self._free == 0
            if needs_thread:
                self._threads += 1
            else:
                self._free -= 1
        self._work.put(work)
        if needs_thread:
            name = f"{self._name}-{self._threads}"
            threading.Thread(target=self._loop, name=name, daemon=True).start()

    def give_up(self) -> None:
        """A function took too long: count its thread as lost until it returns."""
        with self._lock:
            self.lost += 1

    def returned_late(self) -> None:
        """One that was given up has returned."""
        with self._lock:
            self.lost -= 1

    def close(self) -> None:
        """End the threads that have nothing to do, and the others when they return."""
        for _ in range(self._threads):
            self._work.put(None)

    def _loop(self) -> None:
        while (work := self._work.get()) is not None:
            answer = work()
            with self._lock:
                self._free += 1
            answer()
