"""The end of an individual commit log, followed by long polls.

Guarantees: records come in the order of the log, and none is passed over. That the log was lost
(deleted, made again, truncated) is found before anything of another log is handed out, as the
topic's id is asked for after each fault. Records of transactions come once they are committed, and
those of aborted ones never; all that follows an open transaction comes after it has ended.

Cost: one Fetch request at a time, which the broker holds until there is a record.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias

from kshare.core.hashing import WHOLE
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Rectangle, Slice, TopicPartition
from kshare.errors import AuthorizationError, KafkaError
from kshare.options import KafkaConfig
from kshare.wire.decode.batch_index import index_batches
from kshare.wire.decode.records import Decoder
from kshare.wire.protocol import error_codes
from kshare.wire.protocol.background import abandon, begin
from kshare.wire.protocol.broker_pool import Brokers
from kshare.wire.protocol.connection import BrokerConnection
from kshare.wire.protocol.error_codes import ErrorCode, Kind
from kshare.wire.protocol.messages import (
    Address,
    FetchAnswer,
    PartitionFetch,
    fetch_request,
    fetch_version,
    list_offsets,
    parse_fetch_response,
)
from kshare.wire.protocol.retry import Backoff, boot_time

__all__ = ["LogLostError", "LogTail", "Row"]

_ALL: Final = OffsetRange(0, 2**63 - 1)
_FETCH_BYTES: Final = 4 << 20

_Open: TypeAlias = tuple[Address, BrokerConnection]
_Opened: TypeAlias = tuple[_Open, int]  # with the offset to go on from


class Row(NamedTuple):
    """A record of the log; without a value it is a tombstone."""

    offset: int
    key: bytes
    value: bytes | None


class LogLostError(OSError):
    """The log is not the one that was read: it was deleted or truncated."""


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
        caught_up: Whether all records that the last answer knew of have been read, up to the last
            stable offset.
        log_start: The first offset of the log, by the last answer.
        bounds: The last stable offset and the high watermark, by the last answer.
        read_at: When the last request that was answered was sent; minus infinity before.
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
        self.caught_up = False
        self.log_start = 0
        self.bounds = (0, 0)
        self.read_at = float("-inf")
        self._partition = partition
        self._brokers = brokers
        self._wake = wake
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
        self._open: _Open | None = None
        self._sent_at: float | None = None  # None: no request is under way
        self._heard_at = 0.0  # when some of the answer came, or else when it was asked for
        self._opening: Future[_Opened] | None = None
        self._pause = _Pause(Backoff(kafka.retry_backoff_ms, kafka.retry_backoff_max_ms), now)

    @property
    def fileno(self) -> int | None:
        """What becomes readable when an answer is there; None if no request is under way."""
        return self._open[1].fileno() if self._open and self._sent_at is not None else None

    @property
    def is_asking(self) -> bool:
        """True if a request is under way, or the connection for it is being made."""
        return self._sent_at is not None or self._opening is not None

    @property
    def pause_left(self) -> float:
        """Seconds until the next request may be sent after a fault; 0 if at once."""
        return self._pause.left

    def is_overdue(self, seconds: float) -> bool:
        """True if for longer, plus what the broker may wait, nothing of the answer has come."""
        waits = self._kafka.fetch_max_wait_ms / 1000 + seconds
        return self._sent_at is not None and self._now() - self._heard_at > waits

    def ask(self) -> None:
        """Send a request, unless one is under way; connects if need be. Never waits.

        Raises:
            OSError: A retry helps, after :meth:`drop`.
            KafkaError: No retry helps.
        """
        if self._sent_at is not None or self._pause.left:
            return
        if self._open is None:
            if self._opening is None:
                name = f"kshare connects to {self._partition}"
                self._opening = begin(self._connect, name, self._wake)
            if not self._opening.done():
                return
            opening, self._opening = self._opening, None
            self._open, self.position = opening.result()
        assert self.position is not None
        connection = self._open[1]
        fetch = PartitionFetch(self._partition, self.position, _FETCH_BYTES)
        self._sent_at = self._heard_at = self._now()  # before: what is answered later was true then
        connection.send(
            fetch_request(connection, self._kafka, [fetch], max_bytes=self._kafka.fetch_max_bytes)
        )

    def _connect(self) -> _Opened:
        """Connect to the leader, and find out where the log begins; in a thread of its own."""
        leader = self._brokers.leaders([self._partition])[self._partition]
        if isinstance(leader, Exception):
            raise leader
        connection = self._brokers.lease(leader)
        if self.position is not None:
            return (leader, connection), self.position
        try:
            bounds = list_offsets(connection, [self._partition])[self._partition]
            if isinstance(bounds, OSError):
                raise bounds
        except BaseException:
            self._brokers.discard(leader, connection)
            raise
        return (leader, connection), bounds[0]

    def take(self) -> list[Row] | None:
        """Receive the answer to the request under way; None as long as some of it is to come.

        Raises:
            LogLostError: The log does not reach to where it was read.
            OSError: A retry helps, after :meth:`drop`.
            KshareError: No retry helps.
        """
        assert self._open is not None
        assert self._sent_at is not None
        assert self.position is not None
        connection = self._open[1]
        body = connection.receive_ready()
        if body is None:
            self._heard_at = self._now()  # a long answer takes its time: it would be as long again
            return None
        response = parse_fetch_response(body, fetch_version(connection))
        sent_at, self._sent_at = self._sent_at, None
        answer = response.answers.get(self._partition)
        code = response.error_code or (answer.error_code if answer else 0)
        if code:
            self._refuse(code)
        if answer is None:
            raise OSError(f"broker {connection.broker} answered without {self._partition}")
        rows = list(self._rows(answer))
        end, stable = answer.high_watermark, answer.last_stable_offset
        self.bounds = (stable if stable >= 0 else end, end)
        self.caught_up = self.position >= self.bounds[0]
        self.log_start = answer.log_start
        self.read_at = sent_at
        self._pause.clear()
        return rows

    def drop(self) -> None:
        """Give up the connection after a fault; the next request is sent after a pause."""
        opened, self._open, self._sent_at = self._open, None, None
        self._brokers.forget(self._partition)
        if opened is not None:
            self._brokers.discard(*opened)
        self._pause.begin()

    def close(self) -> None:
        """Close the connection."""
        opened, self._open, self._sent_at = self._open, None, None
        opening, self._opening = self._opening, None
        if opened is not None:
            opened[1].close()
        if opening is not None:
            abandon(opening, lambda opened: opened[0][1].close())

    def _rows(self, answer: FetchAnswer) -> "list[Row]":
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
        return rows

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


class _Pause:
    """A pause after each fault in a row, longer each time."""

    def __init__(self, backoff: Backoff, now: Callable[[], float]) -> None:
        self._backoff = backoff
        self._now = now
        self._until = 0.0

    @property
    def left(self) -> float:
        return max(self._until - self._now(), 0.0)

    def begin(self) -> None:
        self._until = self._now() + self._backoff.pause()

    def clear(self) -> None:
        self._until = 0.0
        self._backoff.reset()
