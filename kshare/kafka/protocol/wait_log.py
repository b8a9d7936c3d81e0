"""Logs what something waits for, once that takes long: see :mod:`kshare.core.waits`.

Whoever waits looks now and then, and says for what. Nothing here has a thread or a timer.
"""

import logging
import time
from collections.abc import Callable, Hashable, Mapping
from datetime import UTC, datetime

from kshare.core.listing import join_names
from kshare.core.waits import SaidWait, Wait, Watch

__all__ = ["WaitLog"]


class WaitLog:
    """Logs long waits of one who waits. For one thread at a time.

    Args:
        log: Where they are logged: at WARNING once they last, at INFO once they are over.
        who: Who waits, such as ``group orders``; empty if what is waited for says it.
        clock: Source of time, in seconds.
        wall_clock: Seconds since 1970.
    """

    def __init__(
        self,
        log: logging.Logger,
        who: str = "",
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._log = log
        self._who = who
        self._clock = clock
        self._wall_clock = wall_clock
        self._watch = Watch()

    @property
    def is_waiting(self) -> bool:
        """True if something has waited at the last look."""
        return self._watch.is_waiting

    def look(self, waits: Mapping[Hashable, Wait]) -> None:
        """Look at all that waits now, by keys as :meth:`.Watch.look` takes them."""
        self._look(waits, 0.0)

    def _look(self, waits: Mapping[Hashable, Wait], lasts: float) -> None:
        for said in self._watch.look(waits, self._clock(), lasts):
            level = logging.INFO if said.is_over else logging.WARNING
            self._log.log(level, "%s", self._text(said))

    def wait(self, wait: Wait, *, lasts: float = 0.0) -> None:
        """Look at the only thing that is waited for.

        Args:
            wait: What is waited for.
            lasts: For how many seconds from now on it is known to last: a long wait is said at its
                beginning.
        """
        self._look({"": wait}, lasts)

    def over(self) -> None:
        """Nothing waits any more."""
        self.look({})

    def _text(self, said: SaidWait) -> str:
        wait, whose = said.wait, [self._who, join_names(said.names)]
        head = ": ".join(text for text in whose if text)
        head = f"{head}: " if head else ""
        if said.is_over:
            return f"{head}over after {said.seconds:.0f} s: {wait.state}"
        since = datetime.fromtimestamp(self._wall_clock() - said.seconds, UTC)
        detail = f" ({wait.detail})" if wait.detail else ""
        return (
            f"{head}waits for {said.seconds:.0f} s, since {since:%H:%M:%S} UTC: {wait.state}"
            f"{detail}; until {wait.until}"
        )
