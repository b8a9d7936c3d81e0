"""The look at a topic before a producer's first row for it: does it exist, may it be written to?

librdkafka holds the rows of a topic that no broker knows until ``delivery.timeout.ms``, and then
says that they have timed out.

::

    a topic that was not looked up for a minute --> brokers know it: written to
                                                    may not be: an error at once
                                                    no answer: written to, rows say what is wrong
                                                    unknown: looked up again and again for 1 s, for
                                                      5 s if brokers may make topics: an error

A producer's question makes the topic, where brokers have ``auto.create.topics.enable``, as that of
Spark's sink does. One that was made a moment ago may not have reached every broker.

Cost: a round trip for each topic, task and minute.
"""

import logging
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import replace
from typing import Final

from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import KafkaException, Producer

from kshare.core.backoff import Backoff
from kshare.errors import KafkaError, RecordRefusedError, UnknownTopicError
from kshare.kafka.client import Client, kafka_error, kind_of, servers, unknown_topic
from kshare.kafka.examination import ExaminedCluster
from kshare.kafka.protocol.error_codes import Kind
from kshare.kafka.protocol.retry import CHANCE, Clock, RetryDeadline
from kshare.options import KafkaConfig
from kshare.options.kinds import topic_fault
from kshare.query.produce.config import PROPAGATION_SECONDS

__all__ = ["TopicLookup", "check_name"]

_log = logging.getLogger(__name__)

_AGAIN_SECONDS: Final = 60.0
_NO_NEW_TOPICS_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 1.0
_PAUSES_MS: Final = 100, 500


def check_name(topic: str) -> None:
    """Refuse a topic that no broker can have: librdkafka's errors of such a name say nothing.

    Raises:
        RecordRefusedError: Its name is none.
    """
    fault = topic_fault(topic)
    if fault is not None:
        raise RecordRefusedError(f"cannot write to a topic: {'; '.join(fault)}", topic=topic)


class TopicLookup:
    """Looks topics up for a producer. For one thread.

    Args:
        client: The producer.
        kafka: The cluster that it writes to.
        clock: Source of time.
    """

    def __init__(
        self, client: Client[Producer], kafka: KafkaConfig, *, clock: Clock = time
    ) -> None:
        self._client = client
        self._kafka = kafka
        self._clock = clock
        self._looked_at: dict[str, float] = {}

    def check(self, topics: Iterable[str]) -> None:
        """Look topics up, unless that was done within the last minute.

        Raises:
            UnknownTopicError: A topic does not exist, and no broker makes it.
            RecordRefusedError: A topic has a name that no broker takes.
            KafkaError: A topic may not be written to.
        """
        now = self._clock.monotonic()
        for topic in topics:
            looked_at = self._looked_at.get(topic)
            if looked_at is None or now - looked_at >= _AGAIN_SECONDS:
                self._look_up(topic)
                self._looked_at[topic] = now

    def missing(self, topic: str) -> UnknownTopicError | None:
        """The error of a topic that a broker does not know now; None if it knows it, or is silent.

        For rows that were not delivered.
        """
        if kind_of(self._said(topic)) is not Kind.UNKNOWN_TOPIC:
            return None
        return self._unknown(topic)

    def _look_up(self, topic: str) -> None:
        check_name(topic)
        fault = self._said(topic)
        if kind_of(fault) is Kind.UNKNOWN_TOPIC:
            fault = self._said_in_the_end(topic)
        kind = kind_of(fault)
        if kind is Kind.UNKNOWN_TOPIC:
            raise self._unknown(topic)
        if fault is not None and kind in {Kind.AUTHORIZATION, Kind.PERMANENT}:
            denied = kind is Kind.AUTHORIZATION
            more = f"; grant the principal Write on topic {topic}" if denied else ""
            raise kafka_error(fault, f"write to topic {topic}", more=more, topic=topic)

    def _said_in_the_end(self, topic: str) -> RdKafkaError | None:
        """Ask until a topic is known, for as long as brokers may need to know or to make it."""
        seconds = PROPAGATION_SECONDS if self._may_be_made() else _NO_NEW_TOPICS_SECONDS
        deadline = RetryDeadline(seconds, Backoff(*_PAUSES_MS, CHANCE.uniform), self._clock)
        deadline.start()
        while True:
            expired = deadline.expired  # before the last question
            fault = self._said(topic)
            if expired or kind_of(fault) is not Kind.UNKNOWN_TOPIC:
                return fault
            deadline.sleep(_log, f"find topic {topic}", fault)

    def _said(self, topic: str) -> RdKafkaError | None:
        """A broker's error of a topic; None if there is none, or no answer."""
        try:
            answer = self._client.handle.list_topics(topic, _ANSWER_SECONDS)
        except KafkaException:
            return None
        self._client.answered()
        error: RdKafkaError | None = answer.topics[topic].error
        return error

    def _may_be_made(self) -> bool:
        """False if brokers say that they make no topic when they are asked for it."""
        with closing(ExaminedCluster(replace(self._kafka, offset_attempts=1))) as cluster:
            cluster.shorten_timeout(_ANSWER_SECONDS)
            with suppress(KafkaError):
                return cluster.broker_config("auto.create.topics.enable") != "false"
        return True

    def _unknown(self, topic: str) -> UnknownTopicError:
        names: Iterable[str] = ()
        with suppress(KafkaException):
            names = self._client.handle.list_topics(timeout=_ANSWER_SECONDS).topics
        return unknown_topic(topic, servers(self._kafka), names)
