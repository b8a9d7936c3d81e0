"""A group's coordinator, and the offsets that it stores: asked on connections of our own.

Not by librdkafka: version 2.16 ends the process when a coordinator has moved or still loads, and
an admin client asks it for offsets (``rd_kafka_handle_OffsetFetch`` queries the coordinator of a
consumer group, which an admin client has not).

Cost: a connection to a bootstrap server, one to the coordinator, and two round trips a call. When
no bootstrap server answers, brokers that this process has seen are asked.
"""

from collections.abc import Collection
from contextlib import closing
from itertools import groupby

from kafka.protocol.consumer import OffsetFetchRequest

from kshare.cluster.committed_offset import CommittedOffset
from kshare.cluster.requests import GROUP, NotNowError, check, find_on, retried
from kshare.core.progress import TopicPartition
from kshare.errors import AuthenticationError
from kshare.options import KafkaConfig
from kshare.wire.protocol.broker_pool import search_brokers
from kshare.wire.protocol.connection import Connection
from kshare.wire.protocol.error_codes import ErrorCode
from kshare.wire.protocol.messages import Address

__all__ = ["fetch_offsets", "find_coordinator"]

_UNKNOWN = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}


def find_coordinator(kafka: KafkaConfig, group: str) -> Address:
    """The broker that coordinates a group; brokers make ``__consumer_offsets`` when first asked.

    Raises:
        AuthorizationError: The principal may not describe the group.
        KafkaError: No broker answered in time, or it refused.
    """
    return retried(kafka, _finding(group), lambda: _find(kafka, group))


def fetch_offsets(
    kafka: KafkaConfig, group: str, partitions: Collection[TopicPartition] | None = None
) -> dict[TopicPartition, CommittedOffset]:
    """The committed offsets of some partitions, or of all; those without one are left out.

    Raises:
        AuthorizationError: The principal may not describe the group or a topic.
        KafkaError: The coordinator did not answer in time, or refused.
    """

    def ask() -> dict[TopicPartition, CommittedOffset]:
        with closing(Connection(*_find(kafka, group), kafka)) as connection:
            return _fetch(connection, group, partitions, action)

    action = f"fetch the offsets of group {group}"
    return retried(kafka, action, ask)


def _finding(group: str) -> str:
    return f"find the coordinator of group {group}"


def _find(kafka: KafkaConfig, group: str) -> Address:
    search = search_brokers(kafka)
    for server in search:
        try:
            with closing(Connection(*server, kafka)) as connection:
                return find_on(connection, group, GROUP, _finding(group))
        except (AuthenticationError, OSError) as error:  # the next broker may know
            search.failed(server, error)
    # What a broker said is told rather than that another one did not answer.
    faults = [fault for _, fault in search.faults]
    raise next((fault for fault in faults if isinstance(fault, NotNowError)), faults[-1])


def _fetch(
    connection: Connection,
    group: str,
    partitions: Collection[TopicPartition] | None,
    action: str,
) -> dict[TopicPartition, CommittedOffset]:
    topic_class = OffsetFetchRequest.OffsetFetchRequestTopic
    topics = partitions and [
        topic_class(name=topic, partition_indexes=[tp.partition for tp in of_topic])
        for topic, of_topic in groupby(sorted(partitions), lambda tp: tp.topic)
    ]
    request = OffsetFetchRequest(
        version=connection.version(OffsetFetchRequest, 2, 7),
        group_id=group,
        topics=topics if partitions is not None else None,
        require_stable=True,
    )
    response = connection.call(request)
    check(response.error_code, action)
    found = {}
    for topic in response.topics or ():  # none at all, from librdkafka's mock
        for each in topic.partitions:
            if each.error_code in _UNKNOWN:
                continue
            check(each.error_code, action)
            if each.committed_offset >= 0:
                epoch = getattr(each, "committed_leader_epoch", -1)
                found[TopicPartition(topic.name, each.partition_index)] = CommittedOffset(
                    each.committed_offset,
                    (each.metadata or "").rstrip("\0"),  # librdkafka's mock ends it so
                    epoch if epoch is not None and epoch >= 0 else None,
                )
    return found
