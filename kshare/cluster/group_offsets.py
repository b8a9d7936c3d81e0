"""Stable offsets to a consumer group, for Kafka's own lag tools: ``commitOffsets``.

Law: nothing is ever read back, and whatever becomes of a commit, the query goes on: a failure is a
warning. No call waits for Kafka but :meth:`Committer.close`, and that one for a few seconds.
Cost: one request a trigger at most, and none while nothing has moved.
"""

import logging
from collections.abc import Mapping
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

from kshare.cluster.client_log import client_log
from kshare.core.progress import TopicPartition
from kshare.options import KafkaConfig, SourceOptions

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

__all__ = ["Committer", "committer"]

_log = logging.getLogger("kshare.planner")

_CLOSE_SECONDS = 5.0


def committer(options: SourceOptions) -> "Committer | None":
    """What commits for a query; None if it does not want that."""
    if not options.commit_offsets or options.kafka.group_id is None:
        return None
    return Committer(options.kafka, options.kafka.group_id)


class Committer:
    """Commits offsets to one group, which has no members."""

    def __init__(self, kafka: KafkaConfig, group: str) -> None:
        self._kafka, self._group = kafka, group
        self._client: AdminClient | None = None
        self._committed: dict[TopicPartition, int] = {}
        self._wanted: dict[TopicPartition, int] = {}
        self._sent: dict[TopicPartition, int] = {}
        self._answer: Future[Any] | None = None  # to what was sent
        self._warned: str | None = None

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Let the group be at some offsets, if it is elsewhere. Never raises, never waits.

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
                wait([self._answer], timeout=_CLOSE_SECONDS)
        self._take_answer()
        if self._answer is not None:
            self._warn(f"no answer within {_CLOSE_SECONDS:g} s")
        self._answer = self._client = None

    def _send(self) -> None:
        self._take_answer()
        moved = {
            place: offset
            for place, offset in self._wanted.items()
            if self._committed.get(place) != offset
        }
        if not moved or self._answer is not None:
            return
        try:
            self._sent, self._answer = moved, self._request(moved)
        except Exception as error:  # whatever it is, the query need not care
            self._warn(str(error))

    def _request(self, offsets: Mapping[TopicPartition, int]) -> Future[Any]:
        from confluent_kafka import ConsumerGroupTopicPartitions  # noqa: PLC0415
        from confluent_kafka import TopicPartition as RdTopicPartition  # noqa: PLC0415

        client = self._open()
        client.poll(0)  # serves the callbacks that fetch tokens
        places = [RdTopicPartition(*place, offset) for place, offset in sorted(offsets.items())]
        asked = [ConsumerGroupTopicPartitions(self._group, places)]
        seconds = self._kafka.api_timeout_ms / 1000
        answers = client.alter_consumer_group_offsets(asked, request_timeout=seconds)
        return answers[self._group]

    def _open(self) -> "AdminClient":
        if self._client is None:
            from confluent_kafka.admin import AdminClient  # noqa: PLC0415

            from kshare.security.librdkafka import librdkafka_config  # noqa: PLC0415

            self._client = AdminClient(librdkafka_config(self._kafka), logger=client_log)
        return self._client

    def _take_answer(self) -> None:
        """Look whether what was sent has been answered."""
        if self._answer is None or not self._answer.done():
            return
        answer, self._answer = self._answer, None
        error = answer.exception()
        if error is not None:
            self._warn(str(error))
            return
        faults = {}
        for place in answer.result().topic_partitions:
            if place.error is None:
                key = TopicPartition(place.topic, place.partition)
                self._committed[key] = self._sent[key]
            else:
                faults[f"{place.topic}-{place.partition}"] = place.error.str()
        if faults:
            self._warn("; ".join(f"{name}: {why}" for name, why in sorted(faults.items())))
        else:
            self._warned = None

    def _warn(self, why: str) -> None:
        """Tell of a failure; the same one in a row but once."""
        level = logging.DEBUG if why == self._warned else logging.WARNING
        self._warned = why
        _log.log(
            level,
            "offsets were not committed to group %s (commitOffsets; the query does not depend on "
            "it, and tries again): %s",
            self._group,
            why,
        )
