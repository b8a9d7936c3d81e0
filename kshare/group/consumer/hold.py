"""Time in which a consumer may hand out nothing, as its session may be over."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Hold"]

_log = logging.getLogger("kshare.group")

_HELD_SECONDS = 10.0
"""After this time without the right to hand records out, there is a warning."""


class Hold:
    """Counts that time, and warns once if it gets long. For the thread that polls.

    Attributes:
        seconds: All of it together.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since: float | None = None  # inf once it was said

    @contextmanager
    def waiting(self, member: str) -> Iterator[None]:
        """A poll waits, as nothing may be handed out.

        Args:
            member: Id of the member.
        """
        start = time.monotonic()
        self._since = self._since or start
        if start - self._since >= _HELD_SECONDS:
            self._since = float("inf")
            _log.warning(
                "%s has handed out nothing for %g s: the brokers of the group's log or its "
                "coordinator do not answer, so others may have its key hashes",
                member,
                _HELD_SECONDS,
            )
        try:
            yield
        finally:
            self.seconds += time.monotonic() - start

    def over(self) -> None:
        """Records may be handed out."""
        self._since = None
