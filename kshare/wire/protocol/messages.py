"""The few messages of the read path, as values.

Law: what a broker sends is either understood to the last byte that is used, or a
:class:`~kshare.wire.protocol.connection.ProtocolError`. Cost: records are not copied.

The Fetch response is read where it lies (versions 10 and 11, which have no tagged fields);
all else goes through kafka-python's classes.
"""

import struct
from dataclasses import dataclass
from typing import Any

from kafka.protocol.consumer.fetch import FetchRequest
from kafka.protocol.consumer.offsets import ListOffsetsRequest

from kshare.options import KafkaConfig
from kshare.wire.protocol import error_codes
from kshare.wire.protocol.connection import Connection, ProtocolError

__all__ = ["FetchAnswer", "fetch_request", "fetch_version", "list_offsets", "parse_fetch_response"]

_FETCH_LOWEST, _FETCH_HIGHEST = 10, 11
_FETCH_WITH_PREFERRED_REPLICA = 11
_LIST_OFFSETS_LOWEST, _LIST_OFFSETS_HIGHEST = 1, 5
_EARLIEST, _LATEST = -2, -1

_HEAD = struct.Struct(">ihiih")  # throttle, error, session, topics, length of the topic's name
_PARTITION = struct.Struct(">iihqqqi")  # count, index, error, watermarks, start, aborted
_ABORTED = struct.Struct(">qq")
_INT = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """One partition of a Fetch response.

    Attributes:
        error_code: Kafka's; 0 is none.
        throttle_seconds: the broker's wish that no request be sent for so long.
        aborted: (producer id, first offset) of the aborted transactions within the records.
        records: record batches, maybe cut short at the end; valid until the next receive.
        preferred_replica: the node that the leader wants to be asked instead (KIP-392); the answer
            has no records then. None: nobody else.
    """

    error_code: int
    throttle_seconds: float
    high_watermark: int
    last_stable_offset: int
    aborted: tuple[tuple[int, int], ...]
    records: memoryview
    preferred_replica: int | None = None


def fetch_version(connection: Connection) -> int:
    """The version of Fetch to speak with this broker."""
    return connection.version(FetchRequest, _FETCH_LOWEST, _FETCH_HIGHEST)


def fetch_request(
    connection: Connection,
    kafka: KafkaConfig,
    *,
    topic: str,
    partition: int,
    offset: int,
    max_bytes: int,
    rack: str = "",
) -> Any:
    """A Fetch request for one partition, without a fetch session.

    Args:
        connection: to the broker that it is for.
        kafka: bytes and times to wait.
        topic: of it,
        partition: this partition,
        offset: from here on,
        max_bytes: so many bytes, or one record batch if that is larger.
        rack: where the reader stands: a leader may name a replica that is nearer. Brokers before
            Kafka 2.4 are not told.
    """
    topic_class = FetchRequest.FetchTopic
    return FetchRequest(
        version=fetch_version(connection),
        max_wait_ms=kafka.fetch_max_wait_ms,
        min_bytes=kafka.fetch_min_bytes,
        max_bytes=max(kafka.fetch_max_bytes, max_bytes),
        isolation_level=int(kafka.read_committed),
        session_id=0,
        session_epoch=-1,
        topics=[
            topic_class(
                topic=topic,
                partitions=[
                    topic_class.FetchPartition(
                        partition=partition,
                        current_leader_epoch=-1,
                        fetch_offset=offset,
                        log_start_offset=-1,
                        partition_max_bytes=max_bytes,
                    )
                ],
            )
        ],
        forgotten_topics_data=[],
        rack_id=rack,
    )


def parse_fetch_response(body: memoryview, version: int) -> FetchAnswer:
    """Read the response to :func:`fetch_request` in place.

    Raises:
        ProtocolError: it is cut short, or is not about exactly one partition.
    """
    try:
        throttle_ms, error_code, _, topics, name_length = _HEAD.unpack_from(body)
    except struct.error:
        # An error of the whole request may come without any topic.
        if len(body) < _HEAD.size - 2:
            raise _cut_short(body) from None
        throttle_ms, error_code, _, topics = struct.unpack_from(">ihii", body)
        name_length = 0
    if error_code:
        return FetchAnswer(error_code, throttle_ms / 1000, -1, -1, (), body[:0])
    try:
        position = _HEAD.size + name_length
        partitions, _, error_code, watermark, stable, _, count = _PARTITION.unpack_from(
            body, position
        )
        if topics != 1 or partitions != 1 or name_length < 0:
            raise ProtocolError("a Fetch response is not about exactly one partition")
        position += _PARTITION.size
        aborted_end = position + _ABORTED.size * max(count, 0)
        aborted = tuple(_ABORTED.iter_unpack(body[position:aborted_end]))
        position, preferred = aborted_end, -1
        if version >= _FETCH_WITH_PREFERRED_REPLICA:
            (preferred,) = _INT.unpack_from(body, position)
            position += _INT.size
        (size,) = _INT.unpack_from(body, position)
    except struct.error:
        raise _cut_short(body) from None
    position += _INT.size
    size = max(size, 0)
    if position + size > len(body):
        raise _cut_short(body)
    return FetchAnswer(
        error_code,
        throttle_ms / 1000,
        watermark,
        stable,
        aborted,
        body[position : position + size],
        preferred if preferred >= 0 else None,
    )


def _cut_short(body: memoryview) -> ProtocolError:
    return ProtocolError(f"a Fetch response of {len(body)} bytes is cut short")


def list_offsets(connection: Connection, topic: str, partition: int) -> tuple[int, int]:
    """The offsets that the log holds on this leader, as (earliest, end), half-open.

    Raises:
        OSError: the broker does not lead the partition, or cannot tell now.
    """
    found = []
    version = connection.version(ListOffsetsRequest, _LIST_OFFSETS_LOWEST, _LIST_OFFSETS_HIGHEST)
    topic_class = ListOffsetsRequest.ListOffsetsTopic
    for timestamp in (_EARLIEST, _LATEST):
        request = ListOffsetsRequest(
            version=version,
            replica_id=-1,
            isolation_level=0,
            topics=[
                topic_class(
                    name=topic,
                    partitions=[
                        topic_class.ListOffsetsPartition(
                            partition_index=partition, current_leader_epoch=-1, timestamp=timestamp
                        )
                    ],
                )
            ],
        )
        answer = connection.call(request).topics[0].partitions[0]
        if answer.error_code:
            raise OSError(
                f"broker {connection.broker} cannot list the offsets of {topic}-{partition}: "
                f"{error_codes.name(answer.error_code)}"
            )
        found.append(answer.offset)
    return found[0], found[1]
