"""The parked keys as a consumer goes by them: read beside it, so that no call waits for brokers.

::

    not known --- read ---> known: every 2 s, read again ---> another set: the consumer looks again
"""

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from kshare.cluster.parked_keys import EVERY_SECONDS, ParkedKey
from kshare.core.hashing import HashRange, key_hash
from kshare.core.parked import ParkedCount
from kshare.errors import KafkaError
from kshare.group.core.left_out import ParkedHashes

__all__ = ["ParkView", "Parking"]

_log = logging.getLogger("kshare.group")

_SOON_SECONDS: Final = 0.5


class ParkView(Protocol):
    """The parked keys of a cluster: see :class:`~kshare.cluster.parked_keys.ParkWatch`."""

    def everywhere(self) -> Collection[ParkedKey]:
        """The parked keys of all topics, as they are now or are last known."""

    def counts(self) -> Mapping[str, ParkedCount]:
        """The parked keys of each topic that has some, as of the last look."""

    def close(self) -> None:
        """Close the connections."""


class Parking:
    """Reads the parked keys in a thread of its own.

    Args:
        view: The parked keys.
        on_change: Called from that thread when :attr:`hashes` has changed.

    Attributes:
        hashes: The hashes of parked keys; None until they are known. The object stays the same
            while nothing changes.
        counts: The parked keys of each topic that has some, as of the last look.
    """

    def __init__(self, view: ParkView, on_change: Callable[[], None]) -> None:
        self.hashes: ParkedHashes | None = None
        self.counts: Mapping[str, ParkedCount] = {}
        self._view = view
        self._on_change = on_change
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to read, unless that has begun."""
        if self._thread is None and not self._closed.is_set():
            self._thread = threading.Thread(target=self._run, name="kshare parked", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Read no more; waits for nothing."""
        self._closed.set()

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                self._look()
                self._closed.wait(_SOON_SECONDS if self.hashes is None else EVERY_SECONDS)
        finally:
            self._view.close()

    def _look(self) -> None:
        try:
            keys = self._view.everywhere()
        except KafkaError as error:
            _log.warning("nothing is delivered before it is known which keys are parked: %s", error)
            return
        self.counts = self._view.counts()
        by_topic: dict[str, set[int]] = {}
        for topic, key in keys:
            by_topic.setdefault(topic, set()).add(key_hash(key, 0))
        hashes = {topic: HashRange.each(points) for topic, points in sorted(by_topic.items())}
        if hashes != self.hashes:
            self.hashes = hashes
            self._on_change()
