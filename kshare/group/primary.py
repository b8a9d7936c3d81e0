"""A group's offsets in ``__consumer_offsets``: primary offsets, with anchors in their metadata.

Guarantees: the bounds of the log that are returned beside primary offsets were asked for after
these, so the log up to its end says all that was said when they were written.
"""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, NamedTuple

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient

from kshare.cluster.client import Client, code_of, kafka_error
from kshare.cluster.cluster import Cluster
from kshare.core.progress import TopicPartition
from kshare.errors import KafkaError, KshareError
from kshare.group.coordinator import fetch_offsets
from kshare.group.model import OffsetReset
from kshare.group.protocol.start import Anchor, Primary
from kshare.options import KafkaConfig

__all__ = ["NoOffsetError", "PrimaryOffsets", "StoredOffset"]

_MEMBERS_LEFT = RdKafkaError.UNKNOWN_MEMBER_ID


class NoOffsetError(KshareError):
    """A group has no committed offset, and ``auto.offset.reset`` is ``error``."""


class StoredOffset(NamedTuple):
    """A committed offset, as it is stored."""

    offset: int
    metadata: str
    leader_epoch: int | None

    @property
    def primary(self) -> Primary:
        """The offset with its anchor, if the metadata hold one."""
        return Primary(self.offset, Anchor.decode(self.metadata))


class PrimaryOffsets:
    """The offsets of one group, which has no members as far as the broker knows.

    Args:
        kafka: How to reach the cluster.
        group: Id of the group.
        admin: Makes the client that is asked.

    Attributes:
        as_member: Commits offsets as a member of the group; None while it has no members.
    """

    def __init__(
        self, kafka: KafkaConfig, group: str, *, admin: Callable[..., AdminClient] = AdminClient
    ) -> None:
        self.as_member: Callable[[Mapping[TopicPartition, Primary]], Future[Any]] | None = None
        self._kafka = kafka
        self._group = group
        self._seconds = kafka.api_timeout_ms / 1000
        self._client = Client(admin, kafka)
        self._cluster = Cluster(kafka, admin=admin)
        self._log = Cluster(replace(kafka, read_committed=False), admin=admin)

    def fetch(
        self, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, StoredOffset]:
        """The offsets of some partitions, or of all; partitions without one are left out.

        Raises:
            KafkaError: The cluster did not answer, or refused.
        """
        fetched = fetch_offsets(self._kafka, self._group, partitions)
        return {tp: StoredOffset(*each) for tp, each in fetched.items()}

    def log_bounds(self, partition: TopicPartition) -> tuple[int, int]:
        """The first offset of the log, and its end: its high watermark.

        What was decided before an open transaction ends lies behind the last stable offset, and has
        to be read, too.

        Raises:
            KafkaError: The cluster did not answer, or refused.
        """
        start = self._log.earliest([partition])[partition]
        return start, self._log.latest([partition])[partition]

    def initial(self, partition: TopicPartition, reset: OffsetReset) -> int:
        """What ``auto.offset.reset`` means for a partition.

        Raises:
            NoOffsetError: The reset is ``error``.
            KafkaError: The cluster did not answer, or refused.
        """
        if reset == "error":
            raise NoOffsetError(
                f"group {self._group} has no committed offset for {partition}, and "
                "auto.offset.reset is error: set it to earliest or latest, or set the offsets "
                "with kshare offsets reset"
            )
        if callable(reset):
            wanted = reset(partition)
            if wanted is not None:
                return wanted
        ask = self._cluster.latest if reset == "latest" else self._cluster.earliest
        return ask([partition])[partition]

    def store(self, offsets: Mapping[TopicPartition, Primary]) -> "Future[Any]":
        """Begin to commit offsets with their anchors; :func:`stored` reads the answer.

        Raises:
            KafkaError: The client cannot be made.
        """
        if self.as_member is not None:
            return self.as_member(offsets)
        self._client.handle.poll(0)
        listed = [
            RdTopicPartition(*tp, each.offset, metadata=each.anchor.encode() if each.anchor else "")
            for tp, each in sorted(offsets.items())
        ]
        answers = self._client.handle.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(self._group, listed)], request_timeout=self._seconds
        )
        return answers[self._group]

    def stored(self, answer: "Future[Any]") -> dict[TopicPartition, KafkaError | None]:
        """What became of each partition of a commit, once it is answered; None if it is stored.

        Raises:
            KafkaError: The whole commit was refused.
        """
        action = f"commit offsets of group {self._group}"
        outcome = self._answer(answer, action)
        if isinstance(outcome, dict):
            return outcome
        return {
            TopicPartition(part.topic, part.partition): None
            if part.error is None
            else self._refusal(part.error, action, part.topic, part.partition)
            for part in outcome.topic_partitions
        }

    def close(self) -> None:
        """Let go of the cluster."""
        self._client.close()
        self._cluster.close()
        self._log.close()

    def _answer(self, future: "Future[Any]", action: str) -> Any:
        try:
            return future.result(self._seconds + 1)
        except (KafkaException, TimeoutError) as error:
            raise self._refusal(error, action, None, None) from error

    def _refusal(
        self, error: object, action: str, topic: str | None, partition: int | None
    ) -> KafkaError:
        hint = ""
        if code_of(error) == _MEMBERS_LEFT:
            hint = (
                "; the group has members that do not share key ranges (plain consumers): stop "
                "them, or use another group.id"
            )
        return kafka_error(error, action, hint=hint, topic=topic, partition=partition)
