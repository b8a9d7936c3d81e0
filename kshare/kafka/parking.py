"""The parked keys of a cluster for whoever must not wait for a broker: read by a thread of its own.

::

    not known --read--> known: read again and again --> others: whoever follows hears

Cost: a thread, and what a look at the topic costs (:mod:`kshare.kafka.parked_keys`).
"""

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from kshare.core.hashing import KeyRanges, key_hash
from kshare.core.listing import ParkedCount
from kshare.errors import KafkaError
from kshare.kafka.parked_keys import EVERY_SECONDS, ParkedKey

__all__ = ["ParkView", "Parking"]

_log = logging.getLogger(__name__)

_SOON_SECONDS: Final = 0.5


class ParkView(Protocol):
    """The parked keys of a cluster: see :class:`.ParkWatch`."""

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
        unknown: What that means as long as they are not known, for warnings.
        every_seconds: Time between two looks; None: :data:`.EVERY_SECONDS`.

    Attributes:
        hashes: The hashes of parked keys; None until they are known. The object stays the same
            while nothing changes.
        counts: The parked keys of each topic that has some, as of the last look.
    """

    def __init__(
        self,
        view: ParkView,
        on_change: Callable[[], None],
        *,
        unknown: str = "nothing is delivered before it is known which keys are parked",
        every_seconds: float | None = None,
    ) -> None:
        self.hashes: Mapping[str, KeyRanges] | None = None
        self.counts: Mapping[str, ParkedCount] = {}
        self._view = view
        self._on_change = on_change
        self._unknown = unknown
        self._every_seconds = EVERY_SECONDS if every_seconds is None else every_seconds
        self._closed = threading.Event()
        self._logged = ""
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
                try:
                    self._look()
                except Exception as error:  # without this thread, nothing would ever be delivered
                    self._log_once(error)
                self._closed.wait(_SOON_SECONDS if self.hashes is None else self._every_seconds)
        finally:
            self._view.close()

    def _log_once(self, error: Exception) -> None:
        if repr(error) != self._logged:
            self._logged = repr(error)
            what = self._unknown if self.hashes is None else "parked keys stay so"
            _log.error("cannot look which keys are parked; %s: %r", what, error, exc_info=error)

    def _look(self) -> None:
        try:
            keys = self._view.everywhere()
        except KafkaError as error:
            _log.warning("%s: %s", self._unknown, error)
            return
        self.counts = self._view.counts()
        by_topic: dict[str, set[int]] = {}
        for topic, key in keys:
            by_topic.setdefault(topic, set()).add(key_hash(key, 0))
        hashes = {topic: KeyRanges.of_hashes(points) for topic, points in sorted(by_topic.items())}
        if hashes != self.hashes:
            self.hashes = hashes
            self._on_change()
