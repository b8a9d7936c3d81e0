"""Fetch: the request and its response, as values.

Both are coded here, in versions 4 to 11, which have no tagged fields: the read path has a pair of
them for each response, so a request is made within some microseconds, and a response is read in
place, without a copy of its records. One that is cut short is a
:class:`~kshare.kafka.protocol.frames.ProtocolError`.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import ClassVar, NamedTuple

from kshare.core.progress import TopicPartition
from kshare.core.waits import Wait
from kshare.kafka.protocol.connection import BrokerConnection
from kshare.kafka.protocol.frames import ProtocolError
from kshare.options import KafkaConfig

__all__ = [
    "FetchAnswer",
    "FetchRequest",
    "FetchResponse",
    "PartitionFetch",
    "fetch_request",
    "fetch_version",
    "parse_fetch_response",
]

_FETCH_WITH_LOG_START = 5
_FETCH_WITH_SESSION = 7
_FETCH_WITH_LEADER_EPOCH = 9
_FETCH_WITH_PREFERRED_REPLICA = 11
_CONSUMER = -1  # the id of a replica that is none
_UNKNOWN = -1  # leader epoch, start of a log, epoch of no session

_REQUEST_HEAD = struct.Struct(">hhi")  # API, version, correlation id
_REQUEST = struct.Struct(">iiiib")  # replica, wait, minimum, maximum, isolation level
_NO_SESSION = struct.pack(">ii", 0, _UNKNOWN)
_HEAD = struct.Struct(">ihii")  # throttle time, error, session, topics
_HEAD_BEFORE_SESSIONS = struct.Struct(">ii")  # throttle time, topics
_PARTITION = struct.Struct(">ihqqqi")  # index, error, high watermark, stable, start, aborted
_PARTITION_WITHOUT_START = struct.Struct(">ihqqi")
_ABORTED = struct.Struct(">qq")
_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")


class PartitionFetch(NamedTuple):
    """The part of a Fetch request for one partition.

    Attributes:
        topic_partition: The partition.
        offset: Offset of the first record that is wanted.
        max_bytes: Maximum number of bytes; the broker may exceed it by one record batch.
    """

    topic_partition: TopicPartition
    offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """One partition of a Fetch response.

    Attributes:
        error_code: Kafka's error code, 0 for none.
        high_watermark: The offset after the last one that is replicated; -1 if unknown.
        last_stable_offset: The offset where ``read_committed`` stops; -1 if unknown.
        aborted: (producer id, first offset) of the aborted transactions within the records.
        records: Record batches, maybe cut off at the end; valid until the next receive.
        preferred_replica: Node that the leader wants to be asked instead (KIP-392); there are no
            records then. None for this one.
        log_start: The first offset of the log; -1 if unknown.
    """

    error_code: int
    high_watermark: int
    last_stable_offset: int
    aborted: tuple[tuple[int, int], ...]
    records: memoryview
    preferred_replica: int | None = None
    log_start: int = -1


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """The response to a Fetch request.

    Attributes:
        error_code: Error of the whole request, 0 for none. There are no answers then.
        throttle_seconds: How long the broker wants no further request.
        answers: The answer for each partition.
    """

    error_code: int
    throttle_seconds: float
    answers: dict[TopicPartition, FetchAnswer]

    def throttle(self, client_id: str) -> Wait | None:
        """The wait of a client that the broker throttles; None if it does not.

        Args:
            client_id: The client's id.
        """
        if not self.throttle_seconds:
            return None
        whose = f"the quotas of client.id {client_id!r} and of its user"
        return Wait(
            f"the broker throttles what is read by {whose}",
            "less is read, or they are raised",
            detail=f"now for {self.throttle_seconds:.0f} s",
        )


class FetchRequest:
    """A Fetch request without a fetch session, as :class:`.Connection` sends one.

    Args:
        version: The version, 4 to 11.
        kafka: Minimum bytes, maximum wait and isolation level.
        fetches: What to ask of each partition, those of a topic together.
        max_bytes: Maximum number of bytes of all records.
        rack_id: Rack of the reader; versions before 11 do not say it.

    Attributes:
        fetches: As given.
        max_bytes: The same.
        rack_id: The same.
    """

    API_KEY: ClassVar = 1
    name: ClassVar = "FetchRequest"
    __slots__ = ("API_VERSION", "_header", "_kafka", "fetches", "max_bytes", "rack_id")

    def __init__(
        self,
        version: int,
        kafka: KafkaConfig,
        fetches: Sequence[PartitionFetch],
        *,
        max_bytes: int,
        rack_id: str,
    ) -> None:
        self.API_VERSION = version
        self.fetches = fetches
        self.max_bytes = max_bytes
        self.rack_id = rack_id
        self._kafka = kafka
        self._header = b""

    def with_header(self, *, correlation_id: int, client_id: str) -> None:
        """Let :meth:`encode` begin with this header."""
        head = _REQUEST_HEAD.pack(self.API_KEY, self.API_VERSION, correlation_id)
        self._header = head + _string(client_id)

    def encode(self, *, header: bool, framed: bool) -> bytes:
        """The bytes of the request.

        Args:
            header: Whether they begin with the header.
            framed: Whether they begin with their own length.
        """
        parts = [self._header] if header else []
        parts += self._body()
        if framed:
            parts.insert(0, _INT.pack(sum(map(len, parts))))
        return b"".join(parts)

    def _body(self) -> Iterator[bytes]:
        version, kafka = self.API_VERSION, self._kafka
        yield _REQUEST.pack(
            _CONSUMER,
            kafka.fetch_max_wait_ms,
            kafka.fetch_min_bytes,
            self.max_bytes,
            kafka.read_committed,
        )
        if version >= _FETCH_WITH_SESSION:
            yield _NO_SESSION
        by_topic = [
            (topic, list(fetches))
            for topic, fetches in groupby(self.fetches, lambda each: each.topic_partition.topic)
        ]
        yield _INT.pack(len(by_topic))
        layout = _asked_layout(version)
        epoch = (_UNKNOWN,) * (version >= _FETCH_WITH_LEADER_EPOCH)
        start = (_UNKNOWN,) * (version >= _FETCH_WITH_LOG_START)
        for topic, fetches in by_topic:
            yield _string(topic)
            yield _INT.pack(len(fetches))
            for (_, partition), offset, max_bytes in fetches:
                yield layout.pack(partition, *epoch, offset, *start, max_bytes)
        if version >= _FETCH_WITH_SESSION:
            yield _INT.pack(0)  # nothing is forgotten
        if version >= _FETCH_WITH_PREFERRED_REPLICA:
            yield _string(self.rack_id)


@cache
def _asked_layout(version: int) -> struct.Struct:
    """A partition of a request: index, leader epoch, offset, start of the log, maximum bytes."""
    epoch = "i" if version >= _FETCH_WITH_LEADER_EPOCH else ""
    start = "q" if version >= _FETCH_WITH_LOG_START else ""
    return struct.Struct(f">i{epoch}q{start}i")


def _string(text: str) -> bytes:
    data = text.encode()
    return _SHORT.pack(len(data)) + data


def fetch_version(connection: BrokerConnection) -> int:
    """The version of Fetch to speak with this broker."""
    return connection.version(FetchRequest)


def fetch_request(
    connection: BrokerConnection,
    kafka: KafkaConfig,
    fetches: Sequence[PartitionFetch],
    *,
    max_bytes: int,
    rack: str = "",
) -> FetchRequest:
    """A Fetch request without a fetch session.

    Args:
        connection: Connection to the broker that the request is for.
        kafka: Minimum bytes, maximum wait and isolation level.
        fetches: What to ask of each partition, at most once each. The broker fills the response in
            this order.
        max_bytes: Maximum number of bytes of all records; the broker may exceed it by one record
            batch.
        rack: Rack of the reader; a leader may name a replica that is nearer. Brokers before Kafka
            2.4 do not get it.
    """
    return FetchRequest(
        fetch_version(connection), kafka, fetches, max_bytes=max_bytes, rack_id=rack
    )


def parse_fetch_response(body: memoryview, version: int) -> FetchResponse:
    """Read the response to :func:`fetch_request` in place.

    Raises:
        ProtocolError: The response is cut short.
    """
    try:
        if version >= _FETCH_WITH_SESSION:
            throttle_ms, error_code, _, topics = _HEAD.unpack_from(body)
            position = _HEAD.size
        else:
            throttle_ms, topics = _HEAD_BEFORE_SESSIONS.unpack_from(body)
            error_code, position = 0, _HEAD_BEFORE_SESSIONS.size
        answers = {} if error_code else dict(_answers(body, position, topics, version))
    except (struct.error, UnicodeDecodeError):
        raise ProtocolError(f"a Fetch response of {len(body)} bytes is cut short") from None
    return FetchResponse(error_code, throttle_ms / 1000, answers)


def _answers(
    body: memoryview, position: int, topics: int, version: int
) -> Iterator[tuple[TopicPartition, FetchAnswer]]:
    names_replica = version >= _FETCH_WITH_PREFERRED_REPLICA
    has_start = version >= _FETCH_WITH_LOG_START
    head = _PARTITION if has_start else _PARTITION_WITHOUT_START
    for _ in range(topics):
        (length,) = _SHORT.unpack_from(body, position)
        position += _SHORT.size + max(length, 0)
        topic = str(body[position - max(length, 0) : position], "utf-8")
        (partitions,) = _INT.unpack_from(body, position)
        position += _INT.size
        for _ in range(partitions):
            partition, error_code, watermark, stable, *start, count = head.unpack_from(
                body, position
            )
            position += head.size
            aborted_end = position + _ABORTED.size * max(count, 0)
            aborted = tuple(_ABORTED.iter_unpack(body[position:aborted_end]))
            position, preferred = aborted_end, -1
            if names_replica:
                (preferred,) = _INT.unpack_from(body, position)
                position += _INT.size
            (size,) = _INT.unpack_from(body, position)
            records = position + _INT.size
            position = records + max(size, 0)
            if position > len(body):
                raise struct.error
            yield (
                TopicPartition(topic, partition),
                FetchAnswer(
                    error_code,
                    watermark,
                    stable,
                    aborted,
                    body[records:position],
                    preferred if preferred >= 0 else None,
                    *start,
                ),
            )
