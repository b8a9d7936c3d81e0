"""The topic of the individual commit log: how it is made, which partition is a group's, writing.

The log of a group is one partition: the one with the number that the group's partition of
``__consumer_offsets`` has. A topic that kshare makes has as many partitions as that one, on the
same replicas, so a group's log is on the broker that coordinates the group.
"""

import logging
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import (
    KafkaException,
    Message,
    Producer,
    TopicCollection,
)
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType, TopicDescription

from kshare.core.progress import TopicPartition
from kshare.errors import (
    AuthenticationError,
    AuthorizationError,
    InternalTopicError,
    KafkaError,
    UnknownTopicError,
)
from kshare.kafka.admin_requests import Request, failure_of, send
from kshare.kafka.client import (
    Client,
    code_of,
    kafka_error,
    kind_of,
    servers,
)
from kshare.kafka.compacted_topic import CompactedTopic
from kshare.kafka.coordinator import find_coordinator
from kshare.kafka.lacking import Idempotence
from kshare.kafka.protocol.error_codes import Kind
from kshare.kafka.protocol.retry import RetryDeadline, retry_backoff
from kshare.kafka.topic_config import TopicConfig
from kshare.kafka.topic_creation import is_refusal
from kshare.kafka.topics import MAKES_NONE, TopicSpec
from kshare.options import KafkaConfig
from kshare.security.librdkafka import librdkafka_config

__all__ = [
    "LOG_CLIENT",
    "OFFSETS_PARTITIONS",
    "LogTopic",
    "LogWriter",
    "Safety",
    "log_partition",
    "log_spec",
    "log_table",
]

_log = logging.getLogger("kshare.group")

_Answer = TypeVar("_Answer")

LOG_CLIENT: Final = "log"
"""The end of the client id of connections to the log.

Brokers count quotas by client id: so a member that reads or writes much still hears whether it may.
"""

_OFFSETS_TOPIC: Final = "__consumer_offsets"
_NEW_TOPIC_SECONDS: Final = 5.0
_SIGN: Final = 1 << 31
OFFSETS_PARTITIONS: Final = 50
"""Kafka's default of ``offsets.topic.num.partitions``."""
_ISR: Final = "min.insync.replicas"
_COMPACTION: Final = {"min.cleanable.dirty.ratio": "0.05", "max.compaction.lag.ms": "3600000"}
"""So that a member that starts reads little more than what counts.

By default, half of a partition may be records that others have replaced.
"""


class Safety(NamedTuple):
    """How well the records of a topic are kept.

    Attributes:
        replicas: Number of replicas of the partition that has fewest.
        in_sync: ``min.insync.replicas``; 0 if it is not known.
    """

    replicas: int
    in_sync: int


def log_partition(group: str, partitions: int) -> int:
    """The partition of a group, of the log as of ``__consumer_offsets``.

    ``Utils.abs(groupId.hashCode()) % n`` of Kafka: Java's hash of a text, over UTF-16 code units,
    and 0 for the number that has no absolute value.

    Args:
        group: Id of the group.
        partitions: Number of the topic's partitions.
    """
    units = memoryview(group.encode("utf-16-le", "surrogatepass")).cast("H")
    hashed = 0
    for unit in units:
        hashed = (31 * hashed + unit) & 0xFFFFFFFF
    absolute = hashed if hashed < _SIGN else 2 * _SIGN - hashed
    return absolute % _SIGN % partitions


def log_spec(
    name: str,
    segment_bytes: int,
    replicas: tuple[tuple[int, ...], ...] = (),
    in_sync: str | None = None,
    partitions: int = 1,
) -> TopicSpec:
    """The way to make the topic of a log.

    Args:
        name: Its name.
        segment_bytes: Its ``segment.bytes``.
        replicas: Those of each partition of ``__consumer_offsets``; empty if that is not there.
        in_sync: ``min.insync.replicas`` of that topic; None if it is not known.
        partitions: Number of partitions, if there are no replicas to go by.
    """
    config = {"segment.bytes": str(segment_bytes)}
    if in_sync is not None:
        config[_ISR] = in_sync
    return TopicSpec(name, len(replicas) or partitions, config, replicas, _COMPACTION)


def log_table(kafka: KafkaConfig, topic: str, group: str) -> CompactedTopic:
    """A group's partition of the log, as a table that can be read to its end."""
    return CompactedTopic(
        kafka.named(LOG_CLIENT),
        TopicSpec(topic, 1),
        read_committed=True,
        choose=lambda count: (log_partition(group, count),),
        group=group,
    )


class LogTopic:
    """The log's topic, on the cluster.

    Args:
        kafka: How to reach the cluster.
        name: Name of the topic.
        segment_bytes: Its ``segment.bytes``, if it has to be made.
        group: Id of the group.
        admin: Makes the client that is asked.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        name: str,
        segment_bytes: int,
        group: str,
        *,
        admin: Callable[..., AdminClient] = AdminClient,
    ) -> None:
        self.name = name
        self._kafka = kafka
        self._segment_bytes = segment_bytes
        self._group = group
        self._client = Client(admin, kafka, whom=servers(kafka))

    def find(self) -> tuple[TopicPartition, str]:
        """The partition of the group's log, and the topic's id (empty if brokers give none).

        Raises:
            UnknownTopicError: The topic does not exist.
            InternalTopicError: The brokers refuse to say, for good.
            KafkaError: The cluster did not answer, or refused.
        """
        try:
            found = self._described(self.name)
        except KafkaError as error:
            if is_refusal(error.__cause__):
                raise InternalTopicError(str(error), topic=self.name) from error
            raise
        topic_id = "" if found.topic_id is None else str(found.topic_id)
        number = log_partition(self._group, len(found.partitions))
        return TopicPartition(self.name, number), topic_id

    def find_or_make(self) -> tuple[tuple[TopicPartition, str], frozenset[str] | None]:
        """Find the log, and make its topic before if need be.

        Returns:
            What :meth:`find` does, and the names of the settings that brokers refused; None in
            their place if nothing was made.

        Raises:
            KafkaError: As for :meth:`find` and :meth:`make`.
        """
        try:
            return self.find(), None
        except UnknownTopicError:
            refused = self.make()
        return self._awaited(self.name, self.find), refused

    def config(self) -> TopicConfig | None:
        """The configuration of the topic; None if this client is not authorized to know.

        Raises:
            KafkaError: The cluster did not answer.
        """
        values = self._config_of(self.name)
        return TopicConfig.of(values) if values else None

    def safety(self) -> tuple[Safety, Safety]:
        """How well the topic's records are kept, and how well they should be.

        That is as well as those of ``__consumer_offsets``, and by two brokers if there are two.

        Raises:
            KafkaError: The cluster did not answer, or refused.
        """
        own = self._safety(self.name)
        cluster = self._asked(
            lambda client, seconds: {"": client.describe_cluster(request_timeout=seconds)},
            "count brokers",
            self.name,
        )
        brokers = len(cluster.nodes)
        wanted = Safety(min(brokers, 2), 0)
        with suppress(KafkaError):  # no right to describe it, or nobody has committed yet
            offsets = self._safety(_OFFSETS_TOPIC)
            # Brokers that are gone for good cannot be asked for.
            wanted = Safety(max(wanted.replicas, min(offsets.replicas, brokers)), offsets.in_sync)
        return own, wanted

    def _safety(self, topic: str) -> Safety:
        partitions = self._described(topic).partitions
        in_sync = int(self._config_of(topic).get(_ISR, 0))
        return Safety(min(len(each.replicas) for each in partitions), in_sync)

    def make(self) -> frozenset[str]:
        """Make the topic, unless it exists.

        Returns:
            The names of the settings that brokers refused.

        Raises:
            InternalTopicError: The brokers refuse it.
            AuthorizationError: The principal may not.
            KafkaError: The cluster did not answer, or refused.
        """
        with closing(CompactedTopic(self._kafka, self._spec(), group=self._group)) as topic:
            return topic.create()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _spec(self) -> TopicSpec:
        """As ``__consumer_offsets`` is, which brokers make when a coordinator is asked for."""
        try:
            find_coordinator(self._kafka, self._group)
            offsets = self._awaited(_OFFSETS_TOPIC, lambda: self._described(_OFFSETS_TOPIC))
        except UnknownTopicError:
            return log_spec(self.name, self._segment_bytes)
        except AuthorizationError:  # it is there, and others alone may see it
            return log_spec(self.name, self._segment_bytes, partitions=OFFSETS_PARTITIONS)
        isr = self._config_of(_OFFSETS_TOPIC).get(_ISR)
        replicas = tuple(tuple(node.id for node in part.replicas) for part in offsets.partitions)
        return log_spec(self.name, self._segment_bytes, replicas, isr)

    def _awaited(self, topic: str, ask: Callable[[], _Answer]) -> _Answer:
        """Ask about a topic that brokers have begun to make, until the one that is asked knows it.

        They hear of it one by one.
        """
        seconds = min(_NEW_TOPIC_SECONDS, self._kafka.api_timeout_ms / 1000)
        return RetryDeadline(seconds, retry_backoff(self._kafka)).retried(
            _log, f"find topic {topic}", ask, lambda error: isinstance(error, UnknownTopicError)
        )

    def _described(self, topic: str) -> TopicDescription:
        topics = TopicCollection([topic])
        found: TopicDescription = self._asked(
            lambda client, seconds: client.describe_topics(topics, request_timeout=seconds),
            f"describe topic {topic}",
            topic,
        )
        return found

    def _config_of(self, topic: str) -> dict[str, str]:
        wanted = [ConfigResource(ResourceType.TOPIC, topic)]
        try:
            entries = self._asked(
                lambda client, seconds: client.describe_configs(wanted, request_timeout=seconds),
                f"read the configuration of {topic}",
                topic,
            )
        except KafkaError:  # no right to: the brokers' default is what is left
            return {}
        return {name: entry.value for name, entry in entries.items() if entry.value is not None}

    def _asked(self, request: Request, action: str, topic: str) -> Any:
        """Send a request about a topic, and return its answer."""
        deadline = RetryDeadline.for_requests(self._kafka)
        deadline.start()
        (future,) = send(self._client, request, deadline).values()
        failure = failure_of(future)
        if failure is None:
            return future.result()
        cause = self._client.no_connection_text()
        raise kafka_error(failure, action, cause=cause, topic=topic) from failure


class LogWriter:
    """Appends to the log, in order, without waiting. For use by one thread.

    A fatal error of librdkafka ends its client, not the writer: what was not reported has failed
    once, and the next record goes to another client. So it does if a record times out that was
    appended after another one had: an idempotent client may find no way back to a log that has had
    no leader for a while.

    Args:
        kafka: How to reach the cluster.
        timeout_ms: After this time, a record that brokers have not taken has failed.
        producer: Makes the producer.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        *,
        timeout_ms: int,
        producer: Callable[..., Producer] = Producer,
    ) -> None:
        self._idempotence = Idempotence("claims and commits")
        config = lambda: _producer_config(kafka, timeout_ms) | self._idempotence.settings()  # noqa: E731
        self._client = Client(producer, kafka, config, making="write to the log")
        self._unreported: dict[Callable[[object], None], None] = {}  # in order
        self._has_timed_out = False  # a record, since one was taken
        self._stuck: object = None  # why the client is to be left

    def connect(self) -> None:
        """Begin to connect: librdkafka that has no connection when a record is there waits 0.5 s.

        That is until it asks again for the producer's id.
        """
        with suppress(KafkaError):  # said when something is to be written
            _ = self._client.handle

    def append(
        self,
        partition: TopicPartition,
        key: bytes,
        value: bytes | None,
        failed: Callable[[KafkaError, Kind], None],
        written: Callable[[int], None] | None = None,
    ) -> None:
        """Append a record; brokers have it a moment later.

        Args:
            partition: The log's partition.
            key: Its key.
            value: Its value; None for a tombstone.
            failed: Called once, by :meth:`serve`, :meth:`flush` or this, with the error and its
                kind if it was not taken.
            written: Called instead with its log offset, by :meth:`serve` or :meth:`flush`, if it
                was taken and brokers say where it is.
        """
        topic, number = partition
        comes_after = self._has_timed_out

        def fail(error: object) -> None:
            failed(
                kafka_error(
                    error,
                    f"write to {topic}, partition {number}",
                    topic=topic,
                    partition=number,
                ),
                kind_of(error),
            )

        def delivered(error: RdKafkaError | None, message: Message) -> None:
            if fail not in self._unreported:  # a late report: it has failed with its client
                return
            del self._unreported[fail]
            self._has_timed_out = code_of(error) == RdKafkaError._MSG_TIMED_OUT  # noqa: SLF001
            if self._has_timed_out and comes_after:
                self._stuck = error
            if error is not None:
                fail(error)
            elif written is not None and (offset := message.offset()) is not None and offset >= 0:
                written(offset)

        try:
            self._client.handle.produce(topic, value, key, number, on_delivery=delivered)
            self._unreported[fail] = None
        except KafkaError as error:  # the client cannot be made
            refused = isinstance(error, AuthenticationError)
            failed(error, Kind.AUTHENTICATION if refused else Kind.TRANSIENT)
        except (KafkaException, BufferError) as error:
            if code_of(error) == RdKafkaError._FATAL:  # noqa: SLF001
                self._unreported[fail] = None  # it fails after those before it
                self._end_client(error)
            else:
                fail(error)

    def serve(self) -> None:
        """Report what became of records.

        Raises:
            KafkaError: The login was refused.
        """
        try:
            self._client.handle.poll(0)
        except KafkaException as error:
            self._end_client(error)
        if self._stuck is not None:
            self._end_client(self._stuck, is_fatal=False)
        self._client.raise_refusal()

    def flush(self, seconds: float) -> int:
        """Wait until brokers have what was appended; the number of records that they have not."""
        deadline = time.monotonic() + seconds
        handle = self._client.handle
        try:
            # confluent-kafka's flush says of a fatal error only that it "returned NULL".
            handle.poll(0)
            while len(handle) and (left := deadline - time.monotonic()) > 0:
                handle.poll(left)
        except KafkaException as error:
            return self._end_client(error)
        return len(handle)

    def close(self) -> None:
        """Close the client; records that were not flushed are lost."""
        self._unreported.clear()
        self._client.close()

    def _end_client(self, error: object, *, is_fatal: bool = True) -> int:
        """Close a client that is of no use; the number of records that failed without report.

        Args:
            error: Why.
            is_fatal: Whether librdkafka says so; else records time out.

        confluent-kafka raises a fatal error out of a poll, before the reports come.
        Those that are there are taken. Who waits for another one would wait for ever.
        """
        handle = self._client.handle
        self._client.close()
        for _ in range(2):  # after a refused record, the first poll is the one that raises
            try:
                handle.poll(0)
            except KafkaException as said:
                error = said
        self._idempotence.ended(error)
        unreported, self._unreported = self._unreported, {}
        self._has_timed_out, self._stuck = False, None
        # Of what times out again and again, the session says once that it waits.
        _log.log(
            logging.WARNING if is_fatal else logging.INFO,
            "the producer of the group's log %s; another one is made: %s",
            "has ended by a fatal error" if is_fatal else "brings no record to the brokers",
            kafka_error(error, "write to the log"),
        )
        for fail in unreported:
            fail(error)
        return len(unreported)


def _producer_config(kafka: KafkaConfig, timeout_ms: int) -> dict[str, Any]:
    config = {
        **librdkafka_config(kafka),
        **MAKES_NONE,
        "linger.ms": 0,
        "message.timeout.ms": timeout_ms,
    }
    config.pop("client.rack", None)  # a consumer's
    return config
