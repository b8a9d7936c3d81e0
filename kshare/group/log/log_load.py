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
_MANY: Final = 500_000
"""Compaction leaves fewer records of a segment of 10 MiB, which is not compacted yet."""
_MOST: Final = 0.6
"""Markers of transactions are no records."""


class LogLoad:
    """Counts what is read of the log. For the session's thread, but for :meth:`metrics`.

    Args:
        began_at: When reading began, by the session's clock in seconds.
    """

    def __init__(self, began_at: float) -> None:
        self._began_at = began_at
        self._groups = set[bytes]()
        self._records = 0  # until all were read the first time
        self._shown = LogMetrics()

    def read(self, keys: Iterable[bytes], last: LastAnswer, now: float) -> int:
        """Some records have been read.

        Args:
            keys: Their keys.
            last: The answer that they came with.
            now: The time, by the session's clock in seconds.

        Returns:
            The number of records, with the answer that ends the first read, if they are many, and
            most of those that were ever written are there: the log is not compacted. Else 0.
        """
        seconds = self._shown.read_seconds
        for key in keys:
            self._records += seconds is None
            found = _GROUP.match(key)
            if found is not None and len(self._groups) < _GROUPS_MAX:
                self._groups.add(found[1])
        is_first = seconds is None and last.caught_up
        if is_first:
            seconds = now - self._began_at
        records = max(last.bounds[1] - last.log_start, 0)
        self._shown = LogMetrics(records, len(self._groups), seconds)
        is_whole = self._records >= max(_MANY, _MOST * records)
        return self._records if is_first and is_whole else 0

    def metrics(self) -> LogMetrics:
        """What was read so far. From any thread."""
        return self._shown
