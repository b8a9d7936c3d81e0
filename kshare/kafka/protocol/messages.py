"""The few messages of the read path, as values.

What a broker sends is either understood to the last byte that is used, or a
:class:`~kshare.kafka.protocol.frames.ProtocolError`. Records are not copied: the Fetch response
is read where it lies (versions 4 to 11, which have no tagged fields). All other messages go through
kafka-python's classes.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from kshare.core.listing import counted
from kshare.core.progress import TopicPartition
from kshare.errors import AuthorizationError, KafkaError, Location, UnknownTopicError
from kshare.kafka.protocol import error_codes
from kshare.kafka.protocol.connection import BrokerConnection
from kshare.kafka.protocol.error_codes import ErrorCode
from kshare.kafka.protocol.frames import ProtocolError
from kshare.kafka_python import FetchRequest, ListOffsetsRequest, MetadataRequest
from kshare.options import KafkaConfig

__all__ = [
    "Address",
    "FetchAnswer",
    "FetchResponse",
    "LeaderUnknownError",
    "Metadata",
    "PartitionFetch",
    "fetch_metadata",
    "fetch_request",
    "fetch_version",
    "list_offsets",
    "parse_fetch_response",
]

_FETCH_WITH_LOG_START = 5
_FETCH_WITH_SESSION = 7
_FETCH_WITH_PREFERRED_REPLICA = 11
_EARLIEST, _LATEST = -2, -1

_HEAD = struct.Struct(">ihii")  # throttle time, error, session, topics
_HEAD_BEFORE_SESSIONS = struct.Struct(">ii")  # throttle time, topics
_PARTITION = struct.Struct(">ihqqqi")  # index, error, high watermark, stable, start, aborted
_PARTITION_WITHOUT_START = struct.Struct(">ihqqi")
_ABORTED = struct.Struct(">qq")
_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")

Address = tuple[str, int]
"""Host and port of a broker."""


# -- Fetch ---------------------------------------------------------------------------------------


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
) -> Any:
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
    topic_class = FetchRequest.FetchTopic
    return FetchRequest(
        version=fetch_version(connection),
        max_wait_ms=kafka.fetch_max_wait_ms,
        min_bytes=kafka.fetch_min_bytes,
        max_bytes=max_bytes,
        isolation_level=int(kafka.read_committed),
        session_id=0,
        session_epoch=-1,
        topics=[
            topic_class(
                topic=topic,
                partitions=[
                    topic_class.FetchPartition(
                        partition=fetch.topic_partition.partition,
                        current_leader_epoch=-1,
                        fetch_offset=fetch.offset,
                        log_start_offset=-1,
                        partition_max_bytes=fetch.max_bytes,
                    )
                    for fetch in of_topic
                ],
            )
            for topic, of_topic in groupby(fetches, lambda fetch: fetch.topic_partition.topic)
        ],
        forgotten_topics_data=[],
        rack_id=rack,
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


# -- ListOffsets ---------------------------------------------------------------------------------


def list_offsets(
    connection: BrokerConnection, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, tuple[int, int] | OSError]:
    """The offsets that the logs hold on this leader.

    Returns:
        For each partition (earliest, end), half-open, or why the broker cannot tell now.
    """
    wanted = sorted(partitions)
    bounds = [_listed_offsets(connection, wanted, timestamp) for timestamp in (_EARLIEST, _LATEST)]
    by_partition: dict[TopicPartition, tuple[int, int] | OSError] = {}
    for topic_partition in wanted:
        (first_code, earliest), (last_code, latest) = (part[topic_partition] for part in bounds)
        code = first_code or last_code
        by_partition[topic_partition] = (earliest, latest)
        if code:
            by_partition[topic_partition] = OSError(
                f"broker {connection.broker} cannot list the offsets of {topic_partition}: "
                f"{error_codes.name(code)}"
            )
    return by_partition


def _listed_offsets(
    connection: BrokerConnection, partitions: Sequence[TopicPartition], timestamp: int
) -> dict[TopicPartition, tuple[int, int]]:
    """For each partition its error code, and the offset for the timestamp."""
    topic_class = ListOffsetsRequest.ListOffsetsTopic
    request = ListOffsetsRequest(
        version=connection.version(ListOffsetsRequest),
        replica_id=-1,
        isolation_level=0,
        topics=[
            topic_class(
                name=topic,
                partitions=[
                    topic_class.ListOffsetsPartition(
                        partition_index=partition, current_leader_epoch=-1, timestamp=timestamp
                    )
                    for _, partition in of_topic
                ],
            )
            for topic, of_topic in groupby(partitions, lambda partition: partition.topic)
        ],
    )
    return {
        TopicPartition(topic.name, answer.partition_index): (answer.error_code, answer.offset)
        for topic in connection.call(request).topics
        for answer in topic.partitions
    }


# -- Metadata ------------------------------------------------------------------------------------


class LeaderUnknownError(OSError):
    """No broker could say who leads the partition now; a retry may help."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """One broker's metadata of some topics.

    Attributes:
        broker: The broker that was asked.
        brokers: The addresses of all brokers, by their node ids.
        errors: The error code of each topic, 0 for none.
        leaders: The node id of each partition's leader, by topic and partition.
        topic_ids: The id of each topic that has one: of one made again, it is another.
    """

    broker: str
    brokers: dict[int, Address]
    errors: dict[str, int]
    leaders: dict[str, dict[int, int]]
    topic_ids: dict[str, str] = field(default_factory=dict)

    def leader(self, topic_partition: TopicPartition) -> Address | KafkaError | OSError:
        """The leader of a partition, or the reason why it is unknown."""
        topic, partition = topic_partition
        fault = self._topic_fault(topic_partition)
        if fault is not None:
            return fault
        leaders = self.leaders[topic]
        if partition not in leaders:
            return UnknownTopicError(
                f"topic {topic} has no partition {partition}, "
                f"only {counted(len(leaders), 'partition')}",
                **self._facts(topic_partition),
            )
        address = self.brokers.get(leaders[partition])
        if address is None:
            return LeaderUnknownError(f"{topic_partition} has no leader at the moment")
        return address

    def _topic_fault(self, topic_partition: TopicPartition) -> KafkaError | OSError | None:
        topic = topic_partition.topic
        code = self.errors.get(topic)
        if code is None:
            return LeaderUnknownError(f"broker {self.broker} said nothing about topic {topic}")
        if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return AuthorizationError(
                f"not authorized to describe and read topic {topic}: grant the principal Describe "
                "and Read on it",
                **self._facts(topic_partition),
            )
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return UnknownTopicError(
                f"topic {topic} does not exist", **self._facts(topic_partition)
            )
        if not code:
            return None
        said = f"topic {topic}: {error_codes.name(code)}"
        if error_codes.is_retriable(code):
            return LeaderUnknownError(said)
        return KafkaError(said, **self._facts(topic_partition))

    def _facts(self, topic_partition: TopicPartition) -> Location:
        topic, partition = topic_partition
        return {"broker": self.broker, "topic": topic, "partition": partition}


def fetch_metadata(connection: BrokerConnection, topics: Iterable[str]) -> Metadata:
    """Ask a broker about some topics and about all brokers."""
    request = MetadataRequest(
        version=connection.version(MetadataRequest),
        topics=[MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics],
        allow_auto_topic_creation=False,
    )
    response = connection.call(request)
    return Metadata(
        broker=connection.broker,
        brokers={broker.node_id: (broker.host, broker.port) for broker in response.brokers},
        errors={topic.name: topic.error_code for topic in response.topics},
        leaders={
            topic.name: {part.partition_index: part.leader_id for part in topic.partitions}
            for topic in response.topics
        },
        # Before Kafka 2.8 there is none.
        topic_ids={
            topic.name: str(topic.topic_id)
            for topic in response.topics
            if getattr(topic, "topic_id", None)
        },
    )
