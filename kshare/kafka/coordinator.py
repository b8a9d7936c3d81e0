"""Coordinators, and the offsets that a group's stores: asked on connections of our own.

A step of a request raises ``OSError`` if asking again may help (:class:`NotNowError` if a broker
says so), and any other error if it cannot.

Not by librdkafka: version 2.16 ends the process when a coordinator has moved, was away or still
loads, and an admin client asks it for offsets (``rd_kafka_handle_OffsetFetch`` queries the
coordinator of a consumer group, which an admin client has not) or commits some
(``rd_kafka_enq_once_del_source_return: Assertion `eonce->refcnt > 0' failed``).

Cost: a connection to a bootstrap server, one to the coordinator, and two round trips a call. When
no bootstrap server answers, brokers that this process has seen are asked. Of an
:class:`OffsetWriter`, a thread, a connection to the coordinator, and one round trip a commit.
"""

import logging
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import closing
from itertools import groupby
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError as RdKafkaError

from kshare.core.progress import TopicPartition
from kshare.errors import AuthenticationError, AuthorizationError, KafkaError
from kshare.kafka.client import kafka_error
from kshare.kafka.committed import CommittedOffset, CommittedOffsets, Outcome
from kshare.kafka.protocol import error_codes
from kshare.kafka.protocol.broker_pool import search_brokers
from kshare.kafka.protocol.connection import Connection
from kshare.kafka.protocol.error_codes import ErrorCode, Kind
from kshare.kafka.protocol.messages import Address
from kshare.kafka.protocol.retry import RetryDeadline
from kshare.kafka_python import FindCoordinatorRequest, OffsetCommitRequest, OffsetFetchRequest
from kshare.options import KafkaConfig

__all__ = [
    "GROUP",
    "TRANSACTION",
    "NotNowError",
    "OffsetWriter",
    "check",
    "commit_codes",
    "commit_request",
    "fetch_offsets",
    "find_coordinator",
    "find_on",
    "offsets_to_send",
    "retried",
]

_log = logging.getLogger(__name__)

GROUP: Final = 0
TRANSACTION: Final = 1
"""Kinds of coordinators."""

_Answer = TypeVar("_Answer")
_UNKNOWN = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}
_STATIC_VERSION: Final = 7
"""The version of OffsetCommit from which it carries a ``group.instance.id``."""

_NO_EPOCH: Final = -1
_NO_GENERATION: Final = -1


class NotNowError(OSError):
    """A broker cannot answer now; another answer may come soon."""


def check(code: int, action: str, *, grant: str = "") -> None:
    """Raise what an error code means.

    Args:
        code: The error code of an answer.
        action: What was asked for, as in "cannot ACTION".
        grant: What to do if the principal lacks a right.

    Raises:
        NotNowError: Asking again may help.
        KafkaError: It cannot; or one of its kinds.
    """
    if not code:
        return
    name = error_codes.name(code)
    kind = error_codes.kind(code)
    if error_codes.is_retriable(code):
        raise NotNowError(name)
    if kind is Kind.AUTHORIZATION:
        why = f"{grant} ({name})" if grant else name
        raise AuthorizationError(f"not authorized to {action}: {why}")
    raise (AuthenticationError if kind is Kind.AUTHENTICATION else KafkaError)(
        f"cannot {action}: {name}"
    )


def find_on(
    connection: Connection, key: str, kind: int, action: str, *, grant: str = ""
) -> Address:
    """Ask one broker for the coordinator of a group or a transactional id.

    Args:
        connection: A connection to any broker.
        key: The group or the transactional id.
        kind: :data:`GROUP` or :data:`TRANSACTION`.
        action: As for :func:`check`, and so is ``grant``.
        grant: What to do if the principal lacks a right.
    """
    version = connection.version(FindCoordinatorRequest)
    answer = connection.call(FindCoordinatorRequest(version=version, key=key, key_type=kind))
    check(answer.error_code, action, grant=grant)
    return str(answer.host), int(answer.port)


def retried(kafka: KafkaConfig, action: str, step: Callable[[], _Answer]) -> _Answer:
    """Take a step again and again while it raises ``OSError``.

    Args:
        kafka: How long, and with which pauses (``default.api.timeout.ms``, ``retry.backoff.ms``).
        action: What is done, for the error.
        step: What to do.

    Raises:
        KafkaError: The time is over.
    """
    deadline = RetryDeadline.for_requests(kafka)
    try:
        return deadline.retried(_log, action, step, lambda error: isinstance(error, OSError))
    except OSError as error:
        said = str(error) or type(error).__name__
        raise KafkaError(f"cannot {action} within {deadline.seconds:g} s: {said}") from error


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
        version=connection.version(OffsetFetchRequest),
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


class OffsetWriter:
    """Commits offsets, one request after the other.

    Args:
        kafka: How to reach the cluster.
        group: Id of the group.
    """

    def __init__(self, kafka: KafkaConfig, group: str) -> None:
        self._kafka = kafka.within(kafka.api_timeout_ms)
        self._group = group
        self._connection: Connection | None = None
        self._thread: threading.Thread | None = None
        self._jobs: SimpleQueue[tuple[CommittedOffsets, Future[Outcome]] | None]
        self._jobs = SimpleQueue()

    def commit(self, offsets: CommittedOffsets) -> "Future[Outcome]":
        """Begin to commit offsets; the future fails if the coordinator does not answer.

        For one thread at a time.
        """
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name=f"kshare offsets of {self._group}", daemon=True
            )
            self._thread.start()
        answer: Future[Outcome] = Future()
        self._jobs.put((dict(offsets), answer))
        return answer

    def close(self) -> None:
        """Close the connections. Returns at once; what was begun is not waited for."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            offsets, answer = job
            try:
                answer.set_result(self._commit(offsets))
            except Exception as error:  # else what was asked for would be waited for, for ever
                self._hang_up()
                answer.set_exception(self._failure(error))
        self._hang_up()

    def _failure(self, error: Exception) -> Exception:
        if not isinstance(error, OSError):
            return error
        why = KafkaError(f"cannot {self._action}: {str(error) or type(error).__name__}")
        why.__cause__ = error
        return why

    def _commit(self, offsets: CommittedOffsets) -> Outcome:
        if self._connection is not None and not self._connection.idle:
            self._hang_up()  # brokers close connections that nothing is asked on, and logins expire
        if self._connection is not None:
            try:
                return self._ask(self._connection, offsets)
            except OSError:  # it was closed meanwhile
                self._hang_up()
        coordinator = find_coordinator(self._kafka, self._group)
        self._connection = Connection(*coordinator, self._kafka)
        return self._ask(self._connection, offsets)

    def _ask(self, connection: Connection, offsets: CommittedOffsets) -> Outcome:
        answer = connection.call(commit_request(connection, self._group, offsets))
        codes = commit_codes(answer, offsets)
        if any(map(error_codes.is_retriable, codes.values())):  # it may be another broker now
            self._hang_up()
        return {partition: self._refusal(partition, code) for partition, code in codes.items()}

    def _refusal(self, partition: TopicPartition, code: int) -> KafkaError | None:
        if not code:
            return None
        hint = ""
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            hint = (
                "; the group has members that subscribe, with kshare or another client: stop them, "
                "or use another group.id"
            )
        action = f"{self._action} for {partition}"
        return kafka_error(RdKafkaError(code), action, hint=hint, **partition._asdict())

    @property
    def _action(self) -> str:
        return f"commit offsets of group {self._group}"

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def commit_request(
    connection: Connection,
    group: str,
    offsets: CommittedOffsets,
    *,
    member_id: str = "",
    generation: int = _NO_GENERATION,
    instance_id: str | None = None,
) -> OffsetCommitRequest:
    """The request that commits offsets on a connection to the coordinator.

    Args:
        connection: The connection.
        group: Id of the group.
        offsets: The offsets.
        member_id: The member that commits; the default is nobody.
        generation: Its generation.
        instance_id: Its ``group.instance.id``, if it is a static member.
    """
    static = {} if instance_id is None else {"group_instance_id": instance_id}
    return OffsetCommitRequest(
        version=connection.version(OffsetCommitRequest, _STATIC_VERSION if static else None),
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=offsets_to_send(offsets),
        **static,
    )


def commit_codes(answer: Any, offsets: CommittedOffsets) -> dict[TopicPartition, int]:
    """The error code of each partition, by the answer to that request.

    Args:
        answer: The answer. What it does not say of a partition is an unknown error.
        offsets: What was asked for.
    """
    said = {
        TopicPartition(topic.name, part.partition_index): int(part.error_code)
        for topic in answer.topics
        for part in topic.partitions
    }
    return {tp: said.get(tp, ErrorCode.UNKNOWN_SERVER_ERROR) for tp in offsets}


def offsets_to_send(offsets: CommittedOffsets) -> list[Any]:
    """Offsets as OffsetCommit takes them, by topic."""
    topic_class = OffsetCommitRequest.OffsetCommitRequestTopic
    part_class = topic_class.OffsetCommitRequestPartition
    return [
        topic_class(
            name=name,
            partitions=[
                part_class(
                    partition_index=tp.partition,
                    committed_offset=each.offset,
                    committed_leader_epoch=_NO_EPOCH
                    if each.leader_epoch is None
                    else each.leader_epoch,
                    committed_metadata=each.metadata,
                )
                for tp, each in of_topic
            ],
        )
        for name, of_topic in groupby(sorted(offsets.items()), lambda item: item[0].topic)
    ]
