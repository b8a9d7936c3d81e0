"""Commits the offsets of a group that has no members, on a connection of its own.

Not by librdkafka: version 2.16 may end the process when the group's coordinator was away or still
loads, and an admin client commits offsets (``rd_kafka_enq_once_del_source_return: Assertion
`eonce->refcnt > 0' failed``).

Cost: a thread, a connection to the coordinator, and one round trip a commit.
"""

import threading
from concurrent.futures import Future
from dataclasses import replace
from itertools import groupby
from queue import SimpleQueue
from typing import Any, Final

from confluent_kafka import KafkaError as RdKafkaError
from kafka.protocol.consumer import OffsetCommitRequest

from kshare.cluster.client import kafka_error
from kshare.cluster.committed_offset import CommittedOffsets, Outcome
from kshare.cluster.coordinator import find_coordinator
from kshare.core.progress import TopicPartition
from kshare.errors import KafkaError
from kshare.options import KafkaConfig
from kshare.wire.protocol import error_codes
from kshare.wire.protocol.connection import Connection
from kshare.wire.protocol.error_codes import ErrorCode

__all__ = ["OffsetWriter", "commit_codes", "commit_request", "offsets_to_send"]

_VERSIONS: Final = (2, 7)
"""Versions of OffsetCommit whose layout this module was written and tested for."""
_STATIC_VERSION: Final = 7
"""The version from which it carries a ``group.instance.id``."""
_NO_EPOCH: Final = -1
_NO_GENERATION: Final = -1


class OffsetWriter:
    """Commits offsets, one request after the other.

    Args:
        kafka: How to reach the cluster.
        group: Id of the group.
    """

    def __init__(self, kafka: KafkaConfig, group: str) -> None:
        longest = kafka.api_timeout_ms
        self._kafka = replace(
            kafka,
            request_timeout_ms=min(kafka.request_timeout_ms, longest),
            connection_setup_timeout_ms=min(kafka.connection_setup_timeout_ms, longest),
        )
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
        if self._connection is not None:
            try:
                return self._ask(self._connection, offsets)
            except OSError:  # brokers close connections that are idle
                self._hang_up()
        coordinator = find_coordinator(self._kafka, self._group)
        self._connection = Connection(*coordinator, self._kafka)
        return self._ask(self._connection, offsets)

    def _ask(self, connection: Connection, offsets: CommittedOffsets) -> Outcome:
        codes = commit_codes(connection.call(commit_request(connection, self._group, offsets)))
        if any(map(error_codes.is_retriable, codes.values())):  # it may be another broker now
            self._hang_up()
        return {partition: self._refusal(partition, code) for partition, code in codes.items()}

    def _refusal(self, partition: TopicPartition, code: int) -> KafkaError | None:
        if not code:
            return None
        hint = ""
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            hint = (
                "; the group has members that do not share key ranges (plain consumers): stop "
                "them, or use another group.id"
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
    lowest, highest = _VERSIONS
    static = {} if instance_id is None else {"group_instance_id": instance_id}
    return OffsetCommitRequest(
        version=connection.version(
            OffsetCommitRequest, _STATIC_VERSION if static else lowest, highest
        ),
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=offsets_to_send(offsets),
        **static,
    )


def commit_codes(answer: Any) -> dict[TopicPartition, int]:
    """The error code of each partition, by the answer to that request."""
    return {
        TopicPartition(topic.name, part.partition_index): int(part.error_code)
        for topic in answer.topics
        for part in topic.partitions
    }


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
