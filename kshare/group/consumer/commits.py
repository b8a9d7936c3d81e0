"""Commits of one consumer: waited for, in the background, or by itself from time to time."""

import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from kshare.core.progress import TopicPartition
from kshare.errors import (
    CommitFailedError,
    ConsumerClosedError,
    FencedError,
    KshareError,
    PolicyError,
)
from kshare.group.config.table import ConsumerConfig
from kshare.group.consumer.call_state import raise_first
from kshare.group.consumer.processed import Processed
from kshare.group.core.handed_out import Offsets
from kshare.group.core.work import CommitRequest
from kshare.group.metrics import Latency
from kshare.group.session.session import GroupSession

__all__ = ["Commits"]

_log = logging.getLogger("kshare.group")

_LOOK_SECONDS = 0.05
_LOOK_SHARE = 0.05
"""The part of the time that counting ranges may take."""

Answer: TypeAlias = dict[TopicPartition, int]
"""The stable offset of each partition."""


class _AutoCommit:
    """Automatic commits of a consumer: from time to time, or once much has gathered.

    Args:
        config: The consumer's configuration.
        processed: What is to be committed.

    Attributes:
        due: When the next commit is due, if not much gathers before.
    """

    def __init__(self, config: ConsumerConfig, processed: Processed) -> None:
        self._config = config
        self._processed = processed
        self._interval = config.auto_commit_interval_ms / 1000
        self.due = time.monotonic() + self._interval
        self._ranges: Mapping[TopicPartition, Offsets] = {}  # that the last commit has written
        self._next_look = 0.0
        self._finished_leases = 0  # that the last commit has written

    def take_due(self) -> bool:
        """True if a commit is due; from then on, the next one is waited for."""
        now = time.monotonic()
        leases = self._processed.finished_leases()  # each is committed
        is_due = now >= self.due or self._have_gathered(now) or self._finished_leases < leases
        if is_due:
            self.due = now + self._interval
            self._finished_leases = leases
            self._ranges = self._processed.ranges()
        return is_due

    def _have_gathered(self, now: float) -> bool:
        """True if ``max.num.ranges.to.commit`` have gathered since the last commit.

        Looked at now and then only.
        """
        if not self._config.explicit or now < self._next_look:
            return False
        none = np.empty((0, 2), np.int64)
        ranges = self._processed.ranges()
        gathered = sum(_new(rows, self._ranges.get(tp, none)) for tp, rows in ranges.items())
        looked = time.monotonic()
        self._next_look = looked + max(_LOOK_SECONDS, (looked - now) / _LOOK_SHARE)
        return gathered >= self._config.max_ranges


@dataclass(slots=True, eq=False)
class _CommitRequest:
    """Commits in the background, merged into one: each is of all that is processed so far.

    Attributes:
        work: All that was asked for.
        calls: How often ``on_commit`` is to be called: once for each.
        has_begun: Whether it is under way, so that what comes later is another one.
        answer: What has become of it.
    """

    work: CommitRequest
    calls: int = 1
    has_begun: bool = False
    answer: "Future[Answer]" = field(default_factory=Future)

    def includes(self, work: CommitRequest) -> bool:
        """Ask for more; False if that has to be another one, as it counts from other starts."""
        joined = self.work.joined(work)
        if joined is None:
            return False
        self.work = joined
        self.calls += 1
        return True

    @property
    def fault(self) -> BaseException | None:
        """What it has failed with: the end of its consumer, if it was not done before."""
        if self.answer.cancelled() or not self.answer.done():
            return ConsumerClosedError()
        return self.answer.exception()


class Commits:
    """Commits of one consumer. In the background, one is under way and one waits.

    Args:
        config: The consumer's configuration.
        session: Commits.
        processed: What is to be committed.

    Attributes:
        seconds: Maximum time of a commit that is waited for.
        latency: How long commits take.
    """

    def __init__(self, config: ConsumerConfig, session: GroupSession, processed: Processed) -> None:
        self.seconds = config.kafka.api_timeout_ms / 1000
        self.latency = Latency()
        self._config = config
        self._session = session
        self._processed = processed
        self._auto = _AutoCommit(config, processed)
        self._executor: ThreadPoolExecutor | None = ThreadPoolExecutor(1, "kshare-commits")
        self._lock = threading.RLock()
        self._asked: list[_CommitRequest] = []  # whose callbacks are to be called yet
        self._failure: BaseException | None = None  # of the last commit

    def commit(self, work: CommitRequest, seconds: float = float("inf")) -> Answer:
        """Commit, and wait for the stable offsets, for so long at most, and :attr:`seconds`."""
        if not work.partitions:
            return {}
        with self.latency.measured():
            allowed = self._processed.allowed(work)
            seconds = min(seconds, self.seconds)
            try:
                answer = self._session.commit(
                    allowed.processed, seconds, starts=allowed.starts, late=allowed.late
                )
            except CommitFailedError:
                self._processed.forget(self._session.may_count)
                raise
            self._failure = None  # what policies refused before is accepted now
            self._processed.releases.forget(allowed, self._session.started)
            return answer

    def begin(self, work: CommitRequest) -> None:
        """Commit without waiting; :meth:`serve` calls back. One that waits already takes it in.

        Raises:
            ConsumerClosedError: Commits are closed.
        """
        with self._lock:
            executor = self._executor
            if executor is None:
                raise ConsumerClosedError
            last = self._asked[-1] if self._asked else None
            if last is not None and not last.has_begun and last.includes(work):
                return
            asked = _CommitRequest(work)
            asked.answer = executor.submit(self._commit_asked, asked)
            self._asked.append(asked)

    def _commit_asked(self, asked: _CommitRequest) -> Answer:
        with self._lock:
            asked.has_begun = True
        return self.commit(asked.work)

    def serve(self) -> None:
        """Call back what is done, and commit if it is time. From the thread that polls.

        Raises:
            PolicyError: Policies do not accept what is processed: it would never be committed.
        """
        self._call_back()
        if self._config.auto_commit and not self._asked and self._auto.take_due():
            work = self._processed.work()
            if work.partitions:
                self.begin(work)
            else:  # on_commit would be called for nothing, for ever
                self._failure = None  # what it refused is over
        if isinstance(self._failure, PolicyError):
            raise self._failure.with_traceback(None)  # each poll raises it

    def obstacle(self) -> str | None:
        """Why automatic commits make no progress; None if they do."""
        if not self._config.auto_commit:
            return (
                "call commit() more often, as enable.auto.commit is false, or raise "
                "cooperative.chunk.records"
            )
        return None if self._failure is None else f"commits fail: {self._failure}"

    def _call_back(self, *, is_over: bool = False) -> None:
        """Call ``on_commit`` for what is done; for all else, too, if nothing more will be."""
        while self._asked and (is_over or self._asked[0].answer.done()):
            asked = self._asked[0]
            if not asked.calls:
                with self._lock:
                    self._asked.remove(asked)
                continue
            error = self._failure = asked.fault
            if self._config.on_commit is not None:
                asked.calls -= 1  # first: it may raise, or receive
                failure = error if isinstance(error, Exception) else None
                self._config.on_commit(failure, None if error else dict(asked.answer.result()))
                continue
            asked.calls = 0
            if isinstance(error, PolicyError):
                pass  # raised to who polls
            elif isinstance(error, ConsumerClosedError):
                _log.warning("a commit was not done before the end, so some records may come again")
            elif isinstance(error, CommitFailedError | FencedError):
                _log.warning("a commit was too late, so some records will come again: %s", error)
            elif error is not None:
                _log.warning("a commit has failed, the next one does it again: %s", error)

    @property
    def seconds_until_due(self) -> float:
        """Seconds until the next automatic commit; infinity if none is due, or one is under way."""
        if not self._config.auto_commit or self._asked:
            return float("inf")
        return max(self._auto.due - time.monotonic(), 0.0)

    def close(self, seconds: float) -> None:
        """Finish what is under way; with ``enable.auto.commit``, commit for the last time.

        Args:
            seconds: Maximum time. What is under way then ends with the session: see :meth:`end`.
        """
        until = time.monotonic() + seconds
        try:
            self.flush(seconds)
            self._wait(until - time.monotonic())
        finally:
            with self._lock:
                executor, self._executor = self._executor, None
            if executor is not None:
                executor.shutdown(wait=False, cancel_futures=True)
        self._call_back()

    def end(self, seconds: float) -> None:
        """After the session: call back what was not done in time, too.

        Args:
            seconds: Maximum time until what is under way has noticed that the session is closed.

        Raises:
            Exception: What a callback has raised; of several, the first.
        """
        self._wait(seconds)
        faults: list[Exception] = []
        while self._asked:
            try:
                self._call_back(is_over=True)
            except Exception as error:  # the others are called nevertheless
                faults.append(error)
        raise_first(faults)

    def finish(self) -> None:
        """Wait for what is under way, and call back."""
        self._wait(self.seconds)
        self._call_back()

    def _wait(self, seconds: float) -> None:
        wait([each.answer for each in self._asked], max(seconds, 0.0))

    def begin_last(self) -> "Future[Answer] | None":
        """Commit before key hashes are given up, without waiting; None if there is nothing to."""
        work = self._processed.work()
        if self._config.auto_commit and work.partitions:
            self.begin(work)
        return self._asked[-1].answer if self._asked else None

    def flush(self, seconds: float = float("inf")) -> None:
        """With ``enable.auto.commit``, commit before partitions are given up.

        That it fails is a warning: records come again.
        """
        if not self._config.auto_commit:
            return
        self._failure = None  # what it refused is over
        try:
            self.commit(self._processed.work(with_given_up=True), seconds)
        except KshareError as error:
            _log.warning("the last commit has failed, so some records will come again: %s", error)


def _new(rows: Offsets, before: Offsets) -> int:
    """Number of ranges that were not there before, or were others."""
    places = np.searchsorted(before[:, 0], rows[:, 0])
    places[places == len(before)] = 0
    same = (before[places] == rows).all(axis=1) if len(before) else []
    return len(rows) - int(np.count_nonzero(same))
