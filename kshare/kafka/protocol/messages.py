"""The few messages of the read path beside Fetch, as values.

What a broker sends is either understood, or a
:class:`~kshare.kafka.protocol.frames.ProtocolError`. They go through kafka-python's classes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from kshare.core.listing import counted
from kshare.core.progress import TopicPartition
from kshare.errors import AuthorizationError, KafkaError, Location, UnknownTopicError
from kshare.kafka.protocol import error_codes
from kshare.kafka.protocol.connection import BrokerConnection
from kshare.kafka.protocol.error_codes import ErrorCode
from kshare.kafka_python import ListOffsetsRequest, MetadataRequest

__all__ = [
    "Address",
    "LeaderUnknownError",
    "Metadata",
    "fetch_metadata",
    "list_offsets",
]

_EARLIEST, _LATEST = -2, -1


Address = tuple[str, int]
"""Host and port of a broker."""


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
