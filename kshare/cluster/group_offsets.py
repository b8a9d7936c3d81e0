"""Stable offsets to a consumer group, for Kafka's own lag tools: ``commitOffsets``.

Guarantees: nothing is ever read back, and a commit that fails is a warning: the query goes on. No
call waits for Kafka but :meth:`Committer.close`, and that one for a few seconds.

Cost: one request a trigger at most, and none while nothing has moved.
"""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient

from kshare.cluster.client import Client
from kshare.core.progress import TopicPartition
from kshare.options import KafkaConfig, SourceOptions

__all__ = ["Committer", "committer"]

_log = logging.getLogger("kshare.planner")


def committer(
    options: SourceOptions, *, admin: Callable[..., AdminClient] = AdminClient
) -> "Committer | None":
    """What commits stable offsets for a query; None unless ``commitOffsets`` is true.

    Args:
        options: The query's options.
        admin: Makes the client that sends commits.
    """
    if options.commit_offsets is not True or options.kafka.group_id is None:
        return None
    return Committer(options.kafka, options.kafka.group_id, admin=admin)


class Committer:
    """Commits offsets to one group, which has no members.

    Args:
        kafka: How to reach the cluster.
        group: Name of the consumer group.
        admin: Makes the client that sends commits.
        close_seconds: Maximum time to wait for each answer when closing.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        group: str,
        *,
        admin: Callable[..., AdminClient] = AdminClient,
        close_seconds: float = 5.0,
    ) -> None:
        self._group = group
        self._request_seconds = kafka.api_timeout_ms / 1000
        self._close_seconds = close_seconds
        self._client = Client(admin, kafka)
        self._committed: dict[TopicPartition, int] = {}
        self._wanted: dict[TopicPartition, int] = {}
        self._sent: dict[TopicPartition, int] = {}
        self._answer: Future[Any] | None = None  # to what was sent
        self._warned: str | None = None

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the group's offsets, if they have moved. Never raises, never waits.

        While a commit is under way the newest offsets are kept, and sent by a later call.
        """
        self._wanted = dict(offsets)
        self._send()

    def close(self) -> None:
        """Send what is left, and let go of the cluster."""
        # One may be under way, and another one waits for it.
        for _ in range(2):
            self._send()
            if self._answer is not None:
                wait([self._answer], timeout=self._close_seconds)
        self._take_answer()
        if self._answer is not None:
            self._warn(f"no answer within {self._close_seconds:g} s")
        self._answer = None
        self._client.close()

    def _send(self) -> None:
        self._take_answer()
        moved = {
            tp: offset for tp, offset in self._wanted.items() if self._committed.get(tp) != offset
        }
        if not moved or self._answer is not None:
            return
        try:
            self._sent, self._answer = moved, self._request(moved)
        except Exception as error:  # of any kind: the query does not depend on it
            self._warn(str(error))

    def _request(self, offsets: Mapping[TopicPartition, int]) -> Future[Any]:
        handle = self._client.handle
        handle.poll(0)  # serves the callbacks that fetch tokens
        partitions = [RdTopicPartition(*tp, offset) for tp, offset in sorted(offsets.items())]
        groups = [ConsumerGroupTopicPartitions(self._group, partitions)]
        answers = handle.alter_consumer_group_offsets(groups, request_timeout=self._request_seconds)
        return answers[self._group]

    def _take_answer(self) -> None:
        """Take the answer to what was sent, if there is one."""
        if self._answer is None or not self._answer.done():
            return
        answer, self._answer = self._answer, None
        error = answer.exception()
        if error is not None:
            self._warn(str(error))
            return
        faults = {}
        for partition in answer.result().topic_partitions:
            tp = TopicPartition(partition.topic, partition.partition)
            if partition.error is None:
                self._committed[tp] = self._sent[tp]
            else:
                faults[str(tp)] = partition.error.str()
        if faults:
            self._warn("; ".join(f"{name}: {why}" for name, why in sorted(faults.items())))
        else:
            self._warned = None

    def _warn(self, why: str) -> None:
        """Warn of a failure; of the same one in a row only once."""
        level = logging.DEBUG if why == self._warned else logging.WARNING
        self._warned = why
        _log.log(
            level,
            "offsets were not committed to group %s (commitOffsets; the query does not depend on "
            "it, and tries again): %s",
            self._group,
            why,
        )
