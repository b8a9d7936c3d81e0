"""The header ``not-before`` of a record: from when on it may be handled.

Its value is a text: milliseconds since 1970. Whoever may write to a topic may set it, so there is
a bound (``max_delay``): a later time is none, and a warning says so.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from kshare.dead_letters.record import Record
from kshare.options.kinds import parse_duration

__all__ = ["MAX_DELAY", "NotBefore"]

MAX_DELAY: Final = "1d"
"""The bound of a processor that says none."""

_log = logging.getLogger("kshare.processing")
_HEADER: Final = "not-before"
_QUIET_SECONDS: Final = 600.0


class NotBefore:
    """Reads the header. For one thread.

    Args:
        most: By how many seconds a record may be delayed from now on; None: not at all.
        now: The time in seconds since 1970.
    """

    def __init__(self, most: float | None, now: Callable[[], float] = time.time) -> None:
        self._most = most
        self._now = now
        self._passed_over = 0  # since the last warning
        self._next_warning = 0.0

    @property
    def is_bounded_otherwise(self) -> bool:
        """True if records may be delayed, by another time than :data:`MAX_DELAY`."""
        return self._most not in (None, parse_duration(MAX_DELAY))

    def of(self, record: Record) -> float:
        """The time of a record, in seconds since 1970; 0 if it has none, or none that counts."""
        if self._most is None:
            return 0.0
        for name, value in record.headers:
            if name == _HEADER:
                with suppress(ValueError, OverflowError):  # too many digits, or none at all
                    seconds = int(value or b"") / 1000
                    if seconds <= self._now() + self._most:
                        return max(seconds, 0.0)
                    self._pass_over(record)
                return 0.0
        return 0.0

    def _pass_over(self, record: Record) -> None:
        self._passed_over += 1
        now = time.monotonic()
        if now < self._next_warning:
            return
        self._next_warning, count = now + _QUIET_SECONDS, self._passed_over
        self._passed_over = 0
        _log.warning(
            "%s offset %d: its header not-before is more than %g s ahead (max_delay), and is "
            "passed over%s",
            record.topic_partition,
            record.offset,
            self._most,
            f"; so were those of {count - 1} records before" if count > 1 else "",
        )
