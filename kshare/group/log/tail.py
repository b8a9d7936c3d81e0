"""The end of an individual commit log, followed by long polls.

Guarantees: records come in the order of the log, and none is passed over. That the log was lost
(deleted, made again, truncated) is found before anything of another log is handed out, as the
topic's id is asked for after each fault. Records of transactions come once they are committed, and
those of aborted ones never; all that follows an open transaction comes after it has ended.

Cost: one Fetch request at a time, which the broker holds until there is a record.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from kshare.core.backoff import Backoff
from kshare.core.hashing import WHOLE
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Rectangle, Slice, TopicPartition
from kshare.core.waits import Wait
from kshare.errors import AuthorizationError, KafkaError
from kshare.kafka.protocol import error_codes
from kshare.kafka.protocol.background import abandon, begin
from kshare.kafka.protocol.brokers import Brokers
from kshare.kafka.protocol.connection import BrokerConnection
from kshare.kafka.protocol.error_codes import ErrorCode, Kind
from kshare.kafka.protocol.fetch import (
    FetchAnswer,
    PartitionFetch,
    fetch_request,
    fetch_version,
    parse_fetch_response,
)
from kshare.kafka.protocol.messages import Address, list_offsets
from kshare.kafka.protocol.retry import boot_time, retry_backoff
from kshare.options import KafkaConfig
from kshare.read.decode.batch_index import index_batches
from kshare.read.decode.records import Decoder

__all__ = ["LastAnswer", "LogLostError", "LogTail", "Row", "Throttle"]

_ALL: Final = OffsetRange(0, 2**63 - 1)
_FETCH_BYTES: Final = 4 << 20


class Row(NamedTuple):
    """A record of the log; without a value it is a tombstone."""

    offset: int
    key: bytes
    value: bytes | None


class LastAnswer(NamedTuple):
    """The log as the last answer shows it.

    Attributes:
        caught_up: Whether all records that it knew of have been read, up to the last stable offset.
        log_start: The first offset of the log; 0 if the broker does not say.
        bounds: The last stable offset and the high watermark.
        read_at: When it was asked for; minus infinity before there was one.
        has_holes: Whether offsets that were never seen lie behind the last answer that came to the
            end: compaction has deleted records, or markers of transactions.
        is_relied_upon: Whether it, or one before it, came to the end.
    """

    caught_up: bool = False
    log_start: int = 0
    bounds: tuple[int, int] = (0, 0)
    read_at: float = float("-inf")
    has_holes: bool = False
    is_relied_upon: bool = False


class Throttle(NamedTuple):
    """A throttle of the log's leader, by the quotas of the client or of its user.

    Attributes:
        until: Before this time, the log is not asked for.
        wait: What is to be said of it; None if the last answer came without one.
    """

    until: float = float("-inf")
    wait: Wait | None = None


class LogLostError(OSError):
    """The log is not the one that was read: it was deleted or truncated."""


class _Open(NamedTuple):
    leader: Address
    connection: BrokerConnection
    first: int  # offset to read from


@dataclass(slots=True)
class _Request:
    """A request under way; some of its answer came at ``heard_at``, or else it was sent then."""

    connection: BrokerConnection
    sent_at: float
    heard_at: float


class LogTail:
    """Follows one partition of the log. For use by one thread.

    Args:
        kafka: How to reach the cluster.
        partition: The log's partition.
        brokers: Where connections come from.
        wake: Called, by another thread, when :meth:`ask` has something to do.
        wait_ms: How long the broker may hold a request when there is no record.
        now: Source of time; suspension counts.

    Attributes:
        position: Offset of the next record to read; None before the first request.
        last: The log as the last answer shows it.
        throttle: The last throttle of its leader.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        partition: TopicPartition,
        brokers: Brokers,
        wake: Callable[[], None],
        *,
        wait_ms: int,
        now: Callable[[], float] = boot_time,
    ) -> None:
        self.position: int | None = None
        self.last = LastAnswer()
        self.throttle = Throttle()
        self._partition = partition
        self._now = now
        self._kafka = replace(
            kafka,
            fetch_max_wait_ms=wait_ms,
            fetch_min_bytes=1,
            max_partition_fetch_bytes=_FETCH_BYTES,
            read_committed=True,
        )
        self._decoder = Decoder(
            Slice(*partition, (Rectangle(_ALL, WHOLE),)),
            columns=("offset", "key", "value"),
            read_committed=True,
            check_crcs=kafka.check_crcs,
        )
        self._leader = _Leader(partition, brokers, wake, now, retry_backoff(kafka))
        self._request: _Request | None = None

    @property
    def fileno(self) -> int | None:
        """What becomes readable when an answer is there; None if no request is under way."""
        return None if self._request is None else self._request.connection.fileno()

    @property
    def is_asking(self) -> bool:
        """True if a request is under way, or the connection for it is being made."""
        return self._request is not None or self._leader.opening is not None

    @property
    def ask_at(self) -> float:
        """The earliest time of the next request: there is a pause after a fault or a throttle."""
        return max(self._leader.due, self.throttle.until)

    def is_overdue(self, seconds: float) -> bool:
        """True if for longer, plus what the broker may wait, nothing of the answer has come."""
        waits = self._kafka.fetch_max_wait_ms / 1000 + seconds
        return self._request is not None and self._now() - self._request.heard_at > waits

    def ask(self) -> None:
        """Send a request, unless one is under way; connects if need be. Never waits.

        Raises:
            OSError: A retry helps, after :meth:`drop`.
            KafkaError: No retry helps.
        """
        if self._request is not None or self._now() < self.ask_at:
            return
        opened = self._leader.connect(self.position)
        if opened is None:
            return
        if self.position is None:
            self.position = opened.first
        connection, now = opened.connection, self._now()
        fetch = PartitionFetch(self._partition, self.position, _FETCH_BYTES)
        self._request = _Request(connection, now, now)  # before: the answer was true after that
        connection.send(
            fetch_request(connection, self._kafka, [fetch], max_bytes=self._kafka.fetch_max_bytes)
        )

    def take(self) -> list[Row] | None:
        """Receive the answer to the request under way; None as long as some of it is to come.

        Raises:
            LogLostError: The log does not reach to where it was read.
            OSError: A retry helps, after :meth:`drop`.
            KshareError: No retry helps.
        """
        request = self._request
        assert request is not None
        assert self.position is not None
        connection = request.connection
        body = connection.receive_ready()
        if body is None:
            # A long answer takes its time: asked for again, it would be as long.
            request.heard_at = self._now()
            return None
        response = parse_fetch_response(body, fetch_version(connection))
        self._request = None
        answer = response.answers.get(self._partition)
        self.throttle, wait = Throttle(), response.throttle(self._kafka.client_id)
        if wait is not None:
            self.throttle = Throttle(self._now() + response.throttle_seconds, wait)
        code = response.error_code or (answer.error_code if answer else 0)
        if code:
            self._refuse(code)
        if wait is not None and answer is None:
            return []  # the answer to all that exceeds a quota (KIP-219): no fault
        if answer is None:
            raise OSError(f"broker {connection.broker} answered without {self._partition}")
        before = self.position
        rows, seen = self._rows(answer)
        has_holes = self._has_holes(seen, self.position - before)
        end, stable = answer.high_watermark, answer.last_stable_offset
        stable = stable if stable >= 0 else end
        is_end = self.position >= stable
        self.last = LastAnswer(
            is_end,
            max(answer.log_start, 0),  # before Fetch 5 it is not known
            (stable, end),
            request.sent_at,
            has_holes,
            is_relied_upon=is_end or self.last.is_relied_upon,
        )
        self._leader.backoff.reset()
        return rows

    def drop(self) -> None:
        """Give up the connection after a fault; the next request is sent after a pause."""
        self._request, self.throttle = None, self.throttle._replace(wait=None)
        self._leader.drop()

    def close(self) -> None:
        """Close the connection."""
        self._request = None
        self._leader.close()

    def _rows(self, answer: FetchAnswer) -> "tuple[list[Row], int]":
        """The records of an answer, and how many there are with markers and aborted ones."""
        assert self.position is not None
        topic, number = self._partition
        index = index_batches(
            answer.records, topic=topic, partition=number, fetch_offset=self.position
        )
        rows: list[Row] = []
        for found in self._decoder.decode(index, answer.aborted):
            columns = (found.batch.column(name).to_pylist() for name in ("offset", "key", "value"))
            rows += [Row(at, key or b"", value) for at, key, value in zip(*columns, strict=True)]
        if index.next_offset is not None:
            self.position = index.next_offset
        return rows, index.records

    def _has_holes(self, rows: int, offsets: int) -> bool:
        """True if offsets are missing since the log was read to its end, now that there are more.

        Args:
            rows: Number of records that the answer has, with markers and aborted ones.
            offsets: Number of offsets that it spans.
        """
        last = self.last
        had_holes = last.has_holes and not last.caught_up
        # Before it was ever read to its end, nobody has relied upon what it said.
        return last.is_relied_upon and (had_holes or rows < offsets)

    def _refuse(self, code: int) -> None:
        topic, number = self._partition
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise LogLostError(f"{self._partition} does not reach to offset {self.position}")
        kind, text = error_codes.kind(code), f"read {self._partition}: {error_codes.name(code)}"
        if kind is Kind.AUTHORIZATION:
            raise AuthorizationError(
                f"not authorized to {text}: grant the principal Read on topic {topic}",
                topic=topic,
                partition=number,
            )
        if error_codes.is_permanent(code):
            raise KafkaError(f"cannot {text}", topic=topic, partition=number)
        raise OSError(f"cannot {text}")


@dataclass(slots=True)
class _Leader:
    """The connection to the log's leader: made in a thread of its own, a while after a fault.

    Attributes:
        due: When to connect, at the earliest.
        opened: The connection; None until it is made.
        opening: What makes it; None if nothing does.
    """

    partition: TopicPartition
    brokers: Brokers
    wake: Callable[[], None]
    now: Callable[[], float]
    backoff: Backoff
    due: float = 0.0
    opened: _Open | None = None
    opening: Future[_Open] | None = None

    def connect(self, position: int | None) -> _Open | None:
        """The connection; None as long as it is being made."""
        if self.opened is not None and self.opened.connection.is_expiring:
            self.opened.connection.close()  # no fault: nobody pauses, or doubts the log
            self.opened = None
        if self.opened is None:
            if self.opening is None:
                name = f"kshare connects to {self.partition}"
                self.opening = begin(partial(self._connect, position), name, self.wake)
            if self.opening.done():
                opening, self.opening = self.opening, None
                self.opened = opening.result()
        return self.opened

    def _connect(self, position: int | None) -> _Open:
        """Connect, and find out where the log begins if nothing was read of it."""
        leader = self.brokers.leaders([self.partition])[self.partition]
        if isinstance(leader, Exception):
            raise leader
        connection = self.brokers.lease(leader)
        if position is not None:
            return _Open(leader, connection, position)
        try:
            bounds = list_offsets(connection, [self.partition])[self.partition]
            if isinstance(bounds, OSError):
                raise bounds
        except BaseException:
            self.brokers.discard(leader, connection)
            raise
        return _Open(leader, connection, bounds[0])

    def drop(self) -> None:
        opened, self.opened = self.opened, None
        self.brokers.forget(self.partition)
        if opened is not None:
            self.brokers.discard(opened.leader, opened.connection)
        self.due = self.now() + self.backoff.pause()

    def close(self) -> None:
        opened, self.opened = self.opened, None
        opening, self.opening = self.opening, None
        if opened is not None:
            opened.connection.close()
        if opening is not None:
            abandon(opening, lambda opened: opened.connection.close())
