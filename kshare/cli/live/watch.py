"""One snapshot in memory, renewed by a thread of its own, however many look at it.

::

    start --- look ---> latest (1) --- interval, look ---> latest (2) ...
                          a look that fails keeps the snapshot, with its fault beside it
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from kshare.cli.live.look import Looker
from kshare.cli.live.snapshot import Snapshot
from kshare.cli.live.speed import SpeedMeter
from kshare.errors import KshareError

__all__ = ["Latest", "Watch"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Latest:
    """The latest snapshot.

    Attributes:
        number: Counts the looks, from 1.
        snapshot: The last that succeeded.
        fault: Why the last look failed; None if it did not.
    """

    number: int
    snapshot: Snapshot
    fault: str | None = None


class Watch:
    """Looks again and again. The first look is made at once, and raises what fails.

    Args:
        looker: What looks; it is used by one thread at a time.
        interval: Seconds from one look to the next.
        on_look: Called with each look, also the first, by the thread that looks.
        clock: A clock that never goes back, in seconds.
    """

    def __init__(
        self,
        looker: Looker,
        interval: float,
        on_look: Callable[[Latest], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._looker = looker
        self._interval = interval
        self._on_look = on_look
        self._clock = clock
        self._meter = SpeedMeter()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kshare live view", daemon=True)
        try:
            self.latest = Latest(1, self._look())
        except BaseException:
            looker.close()
            raise
        on_look(self.latest)

    def start(self) -> None:
        """Go on looking, in a thread."""
        self._thread.start()

    def again(self) -> Latest:
        """Look now; for those who have not started the thread."""
        try:
            self.latest = Latest(self.latest.number + 1, self._look())
        except KshareError as error:
            self.latest = Latest(self.latest.number + 1, self.latest.snapshot, str(error))
        self._on_look(self.latest)
        return self.latest

    def close(self) -> None:
        """Stop looking, and close the looker's connections, unless it hangs."""
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join(5)
        if not self._thread.is_alive():
            self._looker.close()

    def _look(self) -> Snapshot:
        snapshot = self._looker.look()
        return self._meter.measured(snapshot, self._clock())

    def _run(self) -> None:
        while not self._closed.wait(self._interval):
            try:
                self.again()
            except Exception as error:  # else the last snapshot would be shown for ever
                _log.exception("a look has failed")
                fault = f"{type(error).__name__}, see the log"
                self.latest = Latest(self.latest.number + 1, self.latest.snapshot, fault)
                self._on_look(self.latest)
