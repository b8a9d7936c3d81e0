"""The ways to a group's log as it was found, their lasting faults, and the writing of epochs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from kshare.core.progress import TopicPartition
from kshare.errors import AuthenticationError, AuthorizationError, InternalTopicError, KafkaError
from kshare.group.log.log_load import LogLoad
from kshare.group.log.tail import LogTail
from kshare.group.log.topic import LogWriter
from kshare.group.protocol.commit_log.group_reader import GroupReader
from kshare.group.protocol.commit_log.log import GroupLog
from kshare.group.protocol.commit_log.placement import UNPLACED, Placement
from kshare.group.protocol.commit_log.record_codec import encode
from kshare.group.protocol.commit_log.records import Epoch
from kshare.group.protocol.owners.takeover import dropped_ids
from kshare.kafka.protocol.error_codes import Kind

__all__ = ["DENIED", "EpochWriter", "LogLink", "Written"]

DENIED: Final = (AuthenticationError, AuthorizationError, InternalTopicError)
"""The cluster denies it: errors that no other attempt changes."""

Written = Callable[[int | None, str], None]
"""Takes the log offset of an epoch (None: it may not be written), and the id of the log's topic."""

_PAUSE_SECONDS: Final = 0.5


@dataclass(slots=True)
class LogLink:
    """The log as it was found, and the ways to it.

    Attributes:
        partition: The partition of the group's log.
        topic_id: Id of its topic; empty if brokers give none.
        tail: Reads it.
        writer: Appends to it.
        reader: Takes the group's records.
        load: Counts what is read.
        is_sure: Whether there was no fault since the topic was found.
        denied: Why nothing may be written to it; None if it may, as far as it is known.
        truncated: Why it is lost, if its topic is the same; empty as long as it is not.
    """

    partition: TopicPartition
    topic_id: str
    tail: LogTail
    writer: LogWriter
    reader: GroupReader
    load: LogLoad
    is_sure: bool = True
    denied: AuthorizationError | None = None
    truncated: str = ""

    def not_taken(self, error: KafkaError, kind: Kind) -> None:
        """Brokers have not taken a record: the topic may be another one, unless that passes.

        Raises:
            AuthenticationError: No other attempt helps.
        """
        if isinstance(error, AuthenticationError):
            raise error
        if isinstance(error, AuthorizationError):
            self.denied = error
        else:
            self.is_sure &= kind is Kind.TRANSIENT

    def close(self) -> None:
        """Close the connections."""
        self.tail.close()
        self.writer.close()


class _EpochRequest(NamedTuple):
    epoch: Epoch
    written: Written
    is_wanted: Callable[[], bool]


class EpochWriter:
    """Writes epochs, the last one that was asked for, and says where they are once read back.

    For the session's thread. A transaction that a former member has left open hides the epoch, and
    without the epoch nobody is assigned anything who would abort it. So that is done here: else the
    group would wait for ``transaction.timeout.ms``.

    Args:
        group: Id of the group.
        unblock: Aborts the transactions of some ids, without waiting for that.

    Attributes:
        retry_at: When to call :meth:`serve` again, if nothing happens before.
    """

    def __init__(self, group: str, unblock: Callable[[frozenset[str]], None]) -> None:
        self.retry_at = float("inf")
        self._group = group
        self._unblock = unblock
        self._waiting: _EpochRequest | None = None
        self._placement = UNPLACED  # of what was written last
        self._log: GroupLog | None = None
        self._unblocked: frozenset[str] = frozenset()  # since an epoch was asked for

    def write(self, epoch: Epoch, written: Written, is_wanted: Callable[[], bool]) -> None:
        """Ask for an epoch.

        Args:
            epoch: The epoch.
            written: Called once it is read back.
            is_wanted: Whether its generation is still waited for. One that is over is not written,
                nor written again: it would come after that of its successor.
        """
        self._waiting, self._unblocked = _EpochRequest(epoch, written, is_wanted), frozenset()
        self.retry_at = float("-inf")

    def is_lost(self, log: GroupLog) -> bool:
        """Return True if the log is another one than the last time: all epochs count no more."""
        was_lost, self._log = self._log is not None and self._log is not log, log
        if was_lost:
            self.retry_at = float("-inf")  # who waits for an epoch does nothing else
        return was_lost

    def serve(self, link: LogLink, log: GroupLog, now: float) -> None:
        """Write what was asked for, and look for what was written."""
        if self._waiting is not None and not self._waiting.is_wanted():
            self._waiting = None
        if self._waiting is None:
            self.retry_at = float("inf")
            return
        if now >= self.retry_at:
            self._append(link, log.end, now)
        epoch, written, _ = self._waiting
        if link.denied is not None:
            self._waiting, self.retry_at = None, float("inf")
            written(None, link.topic_id)
            return
        for position, record in log.epochs.items():
            if record == epoch:
                self._waiting, self.retry_at = None, float("inf")
                written(position, link.topic_id)
                return
        if self._placement.is_passed(log.end):
            # Another one came behind it, and compaction keeps the last one alone: who waits for
            # this one would wait for ever.
            self._placement, self.retry_at = UNPLACED, now + _PAUSE_SECONDS
        hiding = dropped_ids(log, epoch.names) - self._unblocked
        if hiding:
            self._unblocked |= hiding
            self._unblock(hiding)

    def _append(self, link: LogLink, log_end: int, now: float) -> None:
        assert self._waiting is not None
        self.retry_at, self._placement = float("inf"), Placement(log_end)
        failed = partial(self._failed, link, now + _PAUSE_SECONDS)
        written = partial(self._is_at, self._waiting.epoch)
        row = encode(self._group, self._waiting.epoch)
        link.writer.append(link.partition, *row, failed, written)

    def _is_at(self, epoch: Epoch, position: int) -> None:
        if self._waiting is not None and self._waiting.epoch == epoch:
            self._placement = self._placement.at(position)

    def _failed(self, link: LogLink, retry_at: float, error: KafkaError, kind: Kind) -> None:
        link.not_taken(error, kind)
        self.retry_at = retry_at
