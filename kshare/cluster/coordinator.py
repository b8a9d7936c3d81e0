"""A group's coordinator, and the offsets that it stores: asked on connections of our own.

Not by librdkafka: version 2.16 ends the process when a coordinator has moved or still loads, and
an admin client asks it for offsets (``rd_kafka_handle_OffsetFetch`` queries the coordinator of a
consumer group, which an admin client has not).

Cost: a connection to a bootstrap server, one to the coordinator, and two round trips a call. When
no bootstrap server answers, brokers that this process has seen are asked.
"""

from collections.abc import Callable, Collection
from contextlib import closing
from itertools import groupby
from typing import TypeVar

from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from kshare.cluster.committed_offset import CommittedOffset
from kshare.core.progress import TopicPartition
from kshare.errors import AuthenticationError, AuthorizationError, KafkaError
from kshare.options import KafkaConfig
from kshare.wire.protocol import error_codes
from kshare.wire.protocol.broker_pool import search_brokers
from kshare.wire.protocol.connection import Connection
from kshare.wire.protocol.error_codes import ErrorCode, Kind
from kshare.wire.protocol.messages import Address
from kshare.wire.protocol.retry import RetryDeadline

__all__ = ["fetch_offsets", "find_coordinator"]

_GROUP = 0
_UNKNOWN = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}
_Answer = TypeVar("_Answer")


class _NotNowError(OSError):
    """The broker cannot answer now."""


def find_coordinator(kafka: KafkaConfig, group: str) -> Address:
    """The broker that coordinates a group; brokers make ``__consumer_offsets`` when first asked.

    Raises:
        AuthorizationError: The principal may not describe the group.
        KafkaError: No broker answered in time, or it refused.
    """
    return _retried(kafka, f"find the coordinator of group {group}", lambda: _find(kafka, group))


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
            return _fetch(connection, group, partitions)

    return _retried(kafka, f"fetch the offsets of group {group}", ask)


def _find(kafka: KafkaConfig, group: str) -> Address:
    search = search_brokers(kafka)
    for server in search:
        try:
            with closing(Connection(*server, kafka)) as connection:
                version = connection.version(FindCoordinatorRequest, 1, 3)
                request = FindCoordinatorRequest(version=version, key=group, key_type=_GROUP)
                answer = connection.call(request)
            _check(answer.error_code)  # what one broker does not know now, the next one may
        except (AuthenticationError, OSError) as error:
            search.failed(server, error)
        else:
            return str(answer.host), int(answer.port)
    # What a broker said is told rather than that another one did not answer.
    faults = [fault for _, fault in search.faults]
    raise next((fault for fault in faults if isinstance(fault, _NotNowError)), faults[-1])


def _fetch(
    connection: Connection, group: str, partitions: Collection[TopicPartition] | None
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
    _check(response.error_code)
    found = {}
    for topic in response.topics or ():  # none at all, from librdkafka's mock
        for each in topic.partitions:
            if each.error_code in _UNKNOWN:
                continue
            _check(each.error_code)
            if each.committed_offset >= 0:
                epoch = getattr(each, "committed_leader_epoch", -1)
                found[TopicPartition(topic.name, each.partition_index)] = CommittedOffset(
                    each.committed_offset,
                    (each.metadata or "").rstrip("\0"),  # librdkafka's mock ends it so
                    epoch if epoch is not None and epoch >= 0 else None,
                )
    return found


def _check(code: int) -> None:
    if not code:
        return
    if error_codes.is_retriable(code):
        raise _NotNowError(error_codes.name(code))
    kind = AuthorizationError if error_codes.kind(code) is Kind.AUTHORIZATION else KafkaError
    raise kind(error_codes.name(code))


def _retried(kafka: KafkaConfig, action: str, ask: Callable[[], _Answer]) -> _Answer:
    deadline = RetryDeadline.for_requests(kafka)
    deadline.start()
    while True:
        try:
            return ask()
        except AuthenticationError:
            raise
        except AuthorizationError as error:
            raise AuthorizationError(f"not authorized to {action}: {error}") from error
        except KafkaError as error:
            raise KafkaError(f"cannot {action}: {error}") from error
        except OSError as error:
            if deadline.expired:
                raise KafkaError(
                    f"cannot {action} within {deadline.seconds:g} s: "
                    f"{str(error) or type(error).__name__}"
                ) from error
        deadline.sleep()
