"""Commits of one consumer: waited for, in the background, or by itself from time to time."""

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

from kshare.core.progress import Progress, TopicPartition
from kshare.errors import KshareError
from kshare.group.config import ConsumerConfig
from kshare.group.tail import Session

__all__ = ["Commits", "Work"]

_log = logging.getLogger("kshare.group")


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be committed.

    Attributes:
        processed: What is processed of each partition.
        since: The start of each: what belongs to an older one counts no more.
        gaps: Number of stretches that are handed out and not acknowledged.
    """

    processed: Mapping[TopicPartition, Progress]
    since: Mapping[TopicPartition, Progress]
    gaps: int = 0


Answer: TypeAlias = dict[TopicPartition, int]


class Commits:
    """Commits of one consumer.

    Args:
        config: The consumer's configuration.
        session: Commits.

    Attributes:
        seconds: Maximum time of a commit that is waited for.
    """

    def __init__(self, config: ConsumerConfig, session: Session) -> None:
        self.seconds = config.kafka.api_timeout_ms / 1000
        self._config = config
        self._session = session
        self._interval = config.auto_commit_interval_ms / 1000
        self._due = time.monotonic() + self._interval
        self._executor: ThreadPoolExecutor | None = None
        self._under_way: list[Future[Answer]] = []

    def commit(self, work: Work) -> Answer:
        """Commit, and wait for the stable offsets."""
        if not work.processed:
            return {}
        return self._session.commit(work.processed, self.seconds, since=work.since)

    def begin(self, work: Work) -> None:
        """Commit without waiting; :meth:`serve` calls back."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "kshare-commits")
        self._under_way.append(self._executor.submit(self.commit, work))

    def serve(self, work: Callable[[], Work]) -> None:
        """Call back what is done, and commit if it is time. From the thread that polls.

        Args:
            work: What is processed.
        """
        self._call_back()
        if self._config.auto_commit and not self._under_way and time.monotonic() >= self._due:
            self._due = time.monotonic() + self._interval
            self.begin(work())

    def _call_back(self) -> None:
        while self._under_way and self._under_way[0].done():
            answer = self._under_way.pop(0)
            if answer.cancelled():
                continue
            error = answer.exception()
            if self._config.on_commit is not None:
                failure = error if isinstance(error, Exception) else None
                self._config.on_commit(failure, None if error else answer.result())
            elif error is not None:
                _log.warning("a commit has failed, the next one does it again: %s", error)

    def hurry(self) -> None:
        """So much has gathered that the next commit is due now."""
        self._due = 0.0

    @property
    def seconds_left(self) -> float:
        """Time until the next commit is due, at least 0."""
        if not self._config.auto_commit:
            return float("inf")
        return max(self._due - time.monotonic(), 0.0)

    def close(self, work: Callable[[], Work]) -> None:
        """Finish what is under way; with ``enable.auto.commit``, commit for the last time."""
        if self._config.auto_commit:
            self.flush(work())
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
            self._call_back()

    def flush(self, work: Work) -> None:
        """Commit before partitions are given up. That it fails is a warning: records come again."""
        try:
            self.commit(work)
        except KshareError as error:
            _log.warning("the last commit has failed, so some records will come again: %s", error)
