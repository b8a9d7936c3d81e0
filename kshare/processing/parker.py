"""Parks the keys of records that have failed, and says which keys are parked."""

import asyncio
import threading
from collections.abc import Collection, Mapping
from functools import partial

from kshare.kafka.parked_keys import ParkedKey, ParkedKeys
from kshare.processing.own_thread import in_own_thread

__all__ = ["Parker"]


class Parker:
    """Parks keys: all that wait at once, as a write takes a tenth of a second.

    Args:
        keys: The list of parked keys.
    """

    def __init__(self, keys: ParkedKeys) -> None:
        self._keys = keys
        self._waiting: dict[ParkedKey, str] = {}
        self._next: asyncio.Task[None] | None = None  # will write those that wait
        self._writes = asyncio.Lock()
        self._is_used = threading.Lock()  # connections are for one thread at a time

    async def park(self, key: ParkedKey, why: str) -> None:
        """Park a key; return when it is written."""
        self._waiting[key] = why
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._park_next())
        await asyncio.shield(self._next)

    async def _park_next(self) -> None:
        async with self._writes:
            waiting, self._waiting, self._next = self._waiting, {}, None
            await in_own_thread(partial(self._write, waiting))

    def _write(self, waiting: Mapping[ParkedKey, str]) -> None:
        with self._is_used:
            self._keys.park_all(waiting, by="processor")

    def read(self) -> Collection[ParkedKey] | None:
        """The parked keys; None while some are being parked: that may take long."""
        if not self._is_used.acquire(blocking=False):
            return None
        try:
            return self._keys.read()
        finally:
            self._is_used.release()

    def close(self, seconds: float) -> None:
        """Close the connections; keys that are being parked keep them until the end."""
        if self._is_used.acquire(timeout=seconds):
            try:
                self._keys.close()
            finally:
                self._is_used.release()
