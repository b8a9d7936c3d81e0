"""Commits of one consumer: waited for, in the background, or by itself from time to time."""

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeAlias

import numpy as np

from kshare.core.progress import Progress, TopicPartition
from kshare.errors import FencedError, KshareError, PolicyError
from kshare.group.config.table import ConsumerConfig
from kshare.group.core.handed_out import Offsets
from kshare.group.core.work import Work
from kshare.group.metrics import Latency
from kshare.group.session.interface import Session

__all__ = ["Commits"]

_log = logging.getLogger("kshare.group")

_LOOK_SECONDS = 0.05
_LOOK_SHARE = 0.05
"""The part of the time that counting ranges may take."""

Answer: TypeAlias = dict[TopicPartition, int]
"""The stable offset of each partition."""
Progresses: TypeAlias = Mapping[TopicPartition, Progress]
Ranges: TypeAlias = Mapping[TopicPartition, Offsets]
"""Processed ranges behind gaps: rows ``(start, end)``, ascending."""


class Commits:
    """Commits of one consumer.

    Args:
        config: The consumer's configuration.
        session: Commits.
        allowed: What may be committed of what is processed.

    Attributes:
        seconds: Maximum time of a commit that is waited for.
        latency: How long commits take.
    """

    def __init__(
        self, config: ConsumerConfig, session: Session, allowed: Callable[[Progresses], Progresses]
    ) -> None:
        self.seconds = config.kafka.api_timeout_ms / 1000
        self.latency = Latency()
        self._config = config
        self._session = session
        self._allowed = allowed
        self._interval = config.auto_commit_interval_ms / 1000
        self._due = time.monotonic() + self._interval
        self._ranges: Ranges = {}  # that the last commit has written
        self._next_look = 0.0
        self._chunks = 0  # that the last commit has written
        self._executor: ThreadPoolExecutor | None = None
        self._under_way: list[Future[Answer]] = []
        self._failure: BaseException | None = None  # of the last commit

    def commit(self, work: Work, seconds: float = float("inf")) -> Answer:
        """Commit, and wait for the stable offsets, for so long at most, and :attr:`seconds`."""
        if not work.processed:
            return {}
        with self.latency.measured():
            processed = self._allowed(work.processed)
            answer = self._session.commit(processed, min(seconds, self.seconds), since=work.since)
            self._failure = None  # what policies refused before is accepted now
            return answer

    def begin(self, work: Work) -> None:
        """Commit without waiting; :meth:`serve` calls back."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "kshare-commits")
        self._under_way.append(self._executor.submit(self.commit, work))

    def serve(
        self,
        work: Callable[[], Work],
        ranges: Callable[[], Ranges],
        chunks: Callable[[], int],
    ) -> None:
        """Call back what is done, and commit if it is time. From the thread that polls.

        Args:
            work: What is processed.
            ranges: The processed ranges behind gaps.
            chunks: Number of leased chunks that have been processed; each is committed.

        Raises:
            PolicyError: Policies do not accept what is processed: it would never be committed.
        """
        self._call_back()
        if self._config.auto_commit and not self._under_way:
            self._begin_if_due(work, ranges, chunks)
        if isinstance(self._failure, PolicyError):
            raise self._failure

    def obstacle(self) -> str | None:
        """Why nothing is committed; None as long as something will be."""
        if not self._config.auto_commit:
            return (
                "call commit() more often, as enable.auto.commit is false, or raise "
                "cooperative.chunk.records"
            )
        return None if self._failure is None else f"commits fail: {self._failure}"

    def _begin_if_due(
        self, work: Callable[[], Work], ranges: Callable[[], Ranges], chunks: Callable[[], int]
    ) -> None:
        now = time.monotonic()
        finished = chunks()
        if now >= self._due or self._have_gathered(ranges, now) or self._chunks < finished:
            self._due = now + self._interval
            self._chunks = finished
            self._ranges = ranges()
            self.begin(work())

    def _have_gathered(self, ranges: Callable[[], Ranges], now: float) -> bool:
        """True if ``max.num.ranges.to.commit`` have gathered since the last commit.

        Looked at now and then only.
        """
        if not self._config.explicit or now < self._next_look:
            return False
        none = np.empty((0, 2), np.int64)
        gathered = sum(_new(rows, self._ranges.get(tp, none)) for tp, rows in ranges().items())
        looked = time.monotonic()
        self._next_look = looked + max(_LOOK_SECONDS, (looked - now) / _LOOK_SHARE)
        return gathered >= self._config.max_ranges

    def _call_back(self) -> None:
        while self._under_way and self._under_way[0].done():
            answer = self._under_way.pop(0)
            if answer.cancelled():
                continue
            error = answer.exception()
            self._failure = error
            if self._config.on_commit is not None:
                failure = error if isinstance(error, Exception) else None
                self._config.on_commit(failure, None if error else answer.result())
            elif isinstance(error, PolicyError):
                pass  # raised to who polls
            elif isinstance(error, FencedError):
                _log.warning("a commit was too late, so some records will come again: %s", error)
            elif error is not None:
                _log.warning("a commit has failed, the next one does it again: %s", error)

    @property
    def seconds_left(self) -> float:
        """Time until the next commit is due, at least 0; one that is under way ends before."""
        if not self._config.auto_commit or self._under_way:
            return float("inf")
        return max(self._due - time.monotonic(), 0.0)

    def close(self, work: Callable[[], Work], seconds: float) -> None:
        """Finish what is under way; with ``enable.auto.commit``, commit for the last time.

        Args:
            work: What is processed.
            seconds: Maximum time. What is under way then ends with the session.
        """
        until = time.monotonic() + seconds
        if self._config.auto_commit:
            self.flush(work(), seconds)
        if self._executor is not None:
            wait(self._under_way, max(until - time.monotonic(), 0.0))
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._call_back()

    def finish(self) -> None:
        """Wait for what is under way, and call back."""
        wait(self._under_way, self.seconds)
        self._call_back()

    def begin_last(self, work: Work) -> "Future[Answer] | None":
        """Commit before key hashes are given up, without waiting; None if there is nothing to."""
        if self._config.auto_commit and work.processed:
            self.begin(work)
        return self._under_way[-1] if self._under_way else None

    def flush(self, work: Work, seconds: float = float("inf")) -> None:
        """Commit before partitions are given up. That it fails is a warning: records come again."""
        self._failure = None  # what it refused is over
        try:
            self.commit(work, seconds)
        except KshareError as error:
            _log.warning("the last commit has failed, so some records will come again: %s", error)


def _new(rows: Offsets, before: Offsets) -> int:
    """Number of ranges that were not there before, or were others."""
    places = np.searchsorted(before[:, 0], rows[:, 0])
    places[places == len(before)] = 0
    same = (before[places] == rows).all(axis=1) if len(before) else []
    return len(rows) - int(np.count_nonzero(same))
