"""The time that a task of an open batch reads for."""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from kshare.core.listing import join_names
from kshare.core.progress import TopicPartition
from kshare.core.tasks import OpenTask

__all__ = ["ANSWER_SECONDS", "BatchTime"]

_log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 5.0
"""Longest time to wait for the first answer of each partition before a task's time counts."""


class BatchTime:
    """The time that a task reads for: it counts once each partition has answered.

    Where it takes longer to connect than a batch lasts, batches would read nothing, for ever.

    Args:
        task: The task.
        seconds: Source of time.
        wall_clock: Seconds since 1970.

    Attributes:
        counts: Whether it counts; until then, :meth:`look` is to be called.
    """

    def __init__(
        self, task: OpenTask, seconds: Callable[[], float], wall_clock: Callable[[], float]
    ) -> None:
        self._task = task
        self._seconds = seconds
        self._wall_clock = wall_clock
        self._length = task.milliseconds / 1000
        self._begun = self._until = 0.0
        self.counts = False

    def begin(self) -> None:
        """Reading begins. Once: what is followed to the end of the time is not followed again."""
        self._begun = self._seconds()
        self._until = self._begun + ANSWER_SECONDS + self._length
        if self._task.until_ms is not None:
            left = self._task.until_ms / 1000 - self._wall_clock()
            self._until = min(self._until, self._begun + left)

    def look(self, unanswered: Sequence[TopicPartition]) -> None:
        """Count from now on, if all partitions have answered; or without those that do not.

        Args:
            unanswered: Those that have not.
        """
        latest = self._begun + ANSWER_SECONDS
        now = min(self._seconds(), latest)
        if unanswered and now < latest:
            return
        if unanswered:
            _log.warning(
                "%s: no broker has answered for %g s, so the time of the micro-batch (realTime) "
                "begins without",
                join_names([str(each) for each in unanswered], 5),
                ANSWER_SECONDS,
            )
        self.counts = True
        self._until = min(self._until, now + self._length)

    def end(self) -> None:
        """The time is over now."""
        self._until = self._seconds()

    @property
    def left(self) -> float:
        """Seconds left; not above 0: none."""
        return self._until - self._seconds()
