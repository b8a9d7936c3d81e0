"""The size of a group's log for a member that follows it, as its metrics show it."""

import re
from collections.abc import Iterable
from typing import Final

from kshare.group.log.tail import LastAnswer
from kshare.group.metrics import LogMetrics

__all__ = ["LogLoad"]

_GROUP: Final = re.compile(rb'\[\d{1,9},("(?:[^"\\]|\\.){0,1000}"),')  # where each key begins
_GROUPS_MAX: Final = 10_000
"""Whoever may write to the log could make up any number of groups."""


class LogLoad:
    """Counts what is read of the log. For the session's thread, but for :meth:`metrics`.

    Args:
        began_at: When reading began, by the session's clock in seconds.
    """

    def __init__(self, began_at: float) -> None:
        self._began_at = began_at
        self._groups = set[bytes]()
        self._shown = LogMetrics()

    def read(self, keys: Iterable[bytes], last: LastAnswer, now: float) -> None:
        """Some records have been read.

        Args:
            keys: Their keys.
            last: The answer that they came with.
            now: The time, by the session's clock in seconds.
        """
        for key in keys:
            found = _GROUP.match(key)
            if found is not None and len(self._groups) < _GROUPS_MAX:
                self._groups.add(found[1])
        seconds = self._shown.read_seconds
        if seconds is None and last.caught_up:
            seconds = now - self._began_at
        records = max(last.bounds[1] - last.log_start, 0)
        self._shown = LogMetrics(records, len(self._groups), seconds)

    def metrics(self) -> LogMetrics:
        """What was read so far. From any thread."""
        return self._shown
