"""The control path: which partitions exist, and which offsets they hold. On confluent-kafka.

Guarantees: every call ends within ``default.api.timeout.ms``, tried as often as
``fetchOffset.numRetries`` says, with an answer for all that was asked or an error that says why
not. Who names ``on_fault`` hears that for each topic or partition, and gets the others' answers,
after three seconds at most. A fault that waiting does not repair (a login, a certificate, the wrong
``security.protocol``) ends it within 30 s. Offsets of a partition are refused only if two listings
in a row lack it: one broker may not have heard of it yet.

Cost: one or two round trips a call, for any number of partitions. Nothing is opened before the
first call, so an object may be made before a fork.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar
from weakref import ref

from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, Uuid
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec

from kshare.core.progress import TopicPartition
from kshare.errors import AuthenticationError, AuthorizationError, KafkaError, UnknownTopicError
from kshare.kafka.admin_requests import Request, failure_of, send, wait_for
from kshare.kafka.client import (
    Client,
    code_of,
    has_timed_out,
    kafka_error,
    kind_of,
    servers,
    unknown_topic,
)
from kshare.kafka.protocol.error_codes import PASSING, Kind
from kshare.kafka.protocol.retry import Clock, RetryDeadline, retry_backoff
from kshare.kafka.topic_config import TopicConfig
from kshare.kafka.topics import is_internal
from kshare.options import Assign, KafkaConfig, Subscribe, SubscribePattern

__all__ = ["Cluster", "OnFault"]

_log = logging.getLogger(__name__)

_UNKNOWN_PARTITION: Final = RdKafkaError._UNKNOWN_PARTITION  # noqa: SLF001
# No partition of those asked for has a leader, or exists: librdkafka says the same of both.
_NO_LEADERS: Final = RdKafkaError._NOENT  # noqa: SLF001
_NOT_OFFERED: Final = RdKafkaError._UNSUPPORTED_FEATURE  # noqa: SLF001

_NO_ID: Final = (str(None), str(Uuid(0, 0)))
"""What stands for a topic's id where a broker gives none (before Kafka 2.8)."""
_NOT_TRIED_AGAIN: Final = (AuthenticationError, AuthorizationError, UnknownTopicError)

_Answer = TypeVar("_Answer")
_Answers = TypeVar("_Answers", bound=Collection[Any])
_Subject: TypeAlias = tuple[str | None, int | None]
"""The topic and partition that an error is about; None if it is about more."""


OnFault: TypeAlias = Callable[[KafkaError], object]
"""Called with the error of a topic or partition that is left out."""
_Faults: TypeAlias = dict[Any, KafkaError]  # by the part of a request that is left out
_BRIEF_SECONDS: Final = 3.0
"""Longest time to ask for what is left out then. A new leader is elected within it, mostly."""


class Cluster:
    """A Kafka cluster, as the planner sees it.

    Args:
        kafka: How to reach it.
        admin: Makes the client that is asked.
        clock: Source of time.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        *,
        admin: Callable[..., AdminClient] = AdminClient,
        clock: Clock = time,
    ) -> None:
        self._kafka = kafka
        self._seconds = kafka.api_timeout_ms / 1000
        self._clock = clock
        self._client = Client(admin, kafka, whom=servers(kafka), clock=clock)
        self._topic_ids: dict[str, str] = {}
        self._connected: ref[AdminClient] | None = None  # the last one that was connected

    def partitions(
        self, topics: Subscribe | SubscribePattern | Assign
    ) -> tuple[TopicPartition, ...]:
        """The partitions that a subscription means now, sorted.

        Raises:
            UnknownTopicError: A topic that is named does not exist.
            KafkaError: The cluster did not answer in time, or refused.
        """
        match topics:
            case Assign():
                return tuple(sorted(topics.partitions))
            case Subscribe():
                names = sorted(set(topics.topics))
                try:
                    found = self._attempted(lambda: self._describe(names, self._deadline()))
                except UnknownTopicError as error:
                    raise self._with_nearest(error) from None
            case SubscribePattern():
                found = self._attempted(lambda: self._matching(topics))
        return tuple(sorted(found))

    def known_partitions(
        self, topics: Collection[str], on_fault: OnFault
    ) -> tuple[TopicPartition, ...]:
        """The partitions of those topics that exist and may be described, sorted.

        Raises:
            KafkaError: The cluster did not answer in time, or refused for all that exist.
        """
        if not topics:
            return ()

        def on_topic(fault: KafkaError) -> object:
            if isinstance(fault, UnknownTopicError):
                fault = self._with_nearest(fault)
            return on_fault(fault)

        ask = partial(self._describe, sorted({*topics}))
        return tuple(sorted(self._known(ask, on_topic)))

    def topic_ids(self) -> Mapping[str, str]:
        """The ids of topics, as :meth:`partitions` has found them last."""
        return self._topic_ids

    def topics(self) -> list[str]:
        """The names of all topics that this client may see.

        Raises:
            KafkaError: The cluster did not answer in time, or refused.
        """
        return self._attempted(self._list_topics)

    def replica_racks(
        self, topics: Collection[str]
    ) -> dict[TopicPartition, tuple[str | None, ...]]:
        """The rack of each broker that has a replica of a partition; None for one without a rack.

        Raises:
            UnknownTopicError: A topic does not exist.
            KafkaError: The cluster did not answer in time, or refused.
        """
        described = self._attempted(lambda: self._described(topics, self._deadline()))
        return {
            TopicPartition(name, partition.id): tuple(
                node.rack or None for node in partition.replicas
            )
            for name, topic in described.items()
            for partition in topic.partitions
        }

    def earliest(
        self, partitions: Iterable[TopicPartition], on_fault: OnFault | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset that each partition's log holds.

        Args:
            partitions: The partitions.
            on_fault: Called with the fault of a partition; the others are returned. None: the first
                one is raised.

        Raises:
            UnknownTopicError: A partition does not exist.
            KafkaError: The cluster did not answer in time (so for a partition that has no leader
                for so long), or refused. With ``on_fault``: so for all of them.

        The other methods that ask for offsets take and raise the same.
        """
        spec: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        return self._offsets(dict.fromkeys(partitions, spec), on_fault)

    def latest(
        self, partitions: Iterable[TopicPartition], on_fault: OnFault | None = None
    ) -> dict[TopicPartition, int]:
        """The end of each partition: its high watermark; ``read_committed``: last stable offset."""
        spec: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        return self._offsets(dict.fromkeys(partitions, spec), on_fault)

    def at_timestamps(
        self, timestamps_ms: Mapping[TopicPartition, int], on_fault: OnFault | None = None
    ) -> dict[TopicPartition, int | None]:
        """The first offset of a record that is not older; None if all records are older."""
        specs = {tp: OffsetSpec.for_timestamp(time_ms) for tp, time_ms in timestamps_ms.items()}
        offsets = self._offsets(specs, on_fault)
        return {tp: offset if offset >= 0 else None for tp, offset in offsets.items()}

    def topic_configs(self, topics: Collection[str]) -> dict[str, TopicConfig]:
        """The configurations of topics.

        Topics that this client is not authorized to describe are left out, and those without an
        answer. Brokers that offer no DescribeConfigs, such as embedded ones, have no right to
        grant: their topics count as compacted, which is safe for readers.
        """
        wanted = {ConfigResource(ConfigResource.Type.TOPIC, topic): topic for topic in topics}
        if not wanted:
            return {}
        futures = self._asked(
            lambda client, seconds: client.describe_configs([*wanted], request_timeout=seconds),
            self._deadline(),
        )
        configs = {}
        for resource, future in futures.items():
            error = failure_of(future)
            if error is None:
                values = {name: entry.value for name, entry in future.result().items()}
                configs[resource.name] = TopicConfig.of(values)
            elif code_of(error) == _NOT_OFFERED:
                configs[resource.name] = TopicConfig(compacted=True, retention_ms=None)
        return configs

    def shorten_timeout(self, seconds: float) -> None:
        """From now on, wait no longer than this for an answer."""
        self._seconds = min(self._seconds, seconds)

    def close(self) -> None:
        """Close the client; a later call opens a new one."""
        self._client.close()

    def _with_nearest(self, error: UnknownTopicError) -> UnknownTopicError:
        """The error of a topic that a user has named, with the nearest one that exists."""
        # Those of our own are asked for in each batch, and mostly are not there.
        if error.topic is None or is_internal(error.topic):
            return error
        try:
            existing = self._client.handle.list_topics(timeout=1.0).topics
        except (KafkaException, KafkaError):
            return error
        return unknown_topic(error.topic, servers(self._kafka), existing)

    # -- asking -----------------------------------------------------------------------------

    def _attempted(self, ask: Callable[[], _Answer]) -> _Answer:
        """Ask several times, with a new client each time, as Spark's source does."""
        attempt = 1
        while True:
            try:
                return ask()
            except KafkaError as error:
                lasts = isinstance(error, _NOT_TRIED_AGAIN) or self._client.unreachable
                if lasts or attempt >= self._kafka.offset_attempts:
                    raise
                _log.warning("attempt %d of %d: %s", attempt, self._kafka.offset_attempts, error)
            attempt += 1
            self._client.close()
            self._clock.sleep(self._kafka.offset_retry_seconds)

    def _list_topics(self) -> list[str]:
        deadline = self._deadline()
        while True:
            handle = self._client.handle
            try:
                topics = list(handle.list_topics(timeout=1.0).topics)
            except KafkaException as error:
                self._client.serve()
                if deadline.expired:
                    raise self._error(error, "list the topics") from error
            else:
                self._client.answered()
                return topics

    def _matching(self, pattern: SubscribePattern) -> set[TopicPartition]:
        """The partitions of the topics that a pattern means."""
        deadline = self._deadline()

        def step() -> set[TopicPartition]:
            listed = self._list_topics()
            names = {name for name in listed if pattern.matches(name) and not is_internal(name)}
            try:
                return self._describe(names, deadline) if names else set()
            except UnknownTopicError:
                self._client.close()
                raise

        # It was created or deleted just now, and one broker knows that and another not.
        action = f"list the topics of {pattern}"
        return deadline.retried(_log, action, step, lambda e: isinstance(e, UnknownTopicError))

    def _offsets(
        self, specs: Mapping[TopicPartition, OffsetSpec], on_fault: OnFault | None
    ) -> dict[TopicPartition, int]:
        wanted = {RdTopicPartition(*tp): spec for tp, spec in specs.items()}
        if not wanted:
            return {}
        level = (
            IsolationLevel.READ_COMMITTED
            if self._kafka.read_committed
            else IsolationLevel.READ_UNCOMMITTED
        )
        request = self._list_offsets(wanted, level)
        ask = partial(self._ask, request, "list offsets")
        if on_fault is None:
            answers = self._attempted(lambda: ask(self._deadline()))
        else:
            answers = self._known(ask, on_fault)
        return {
            TopicPartition(asked.topic, asked.partition): answer.offset
            for asked, answer in answers.items()
        }

    def _list_offsets(
        self, specs: dict[RdTopicPartition, OffsetSpec], level: IsolationLevel
    ) -> Request:
        """The request for some offsets."""

        def request(client: AdminClient, seconds: float) -> Mapping[Any, Future[Any]]:
            if self._connected is None or self._connected() is not client:
                # Connect first: without a connection, one client in eight asks for leaders only
                # after 3 s.
                connected = client.describe_cluster(request_timeout=seconds)
                wait_for(self._client, [connected], seconds, self._clock)
                error = failure_of(connected)
                if error is not None and has_timed_out(error):
                    late: Future[Any] = Future()
                    late.set_exception(error)
                    return dict.fromkeys(specs, late)
                if error is None:
                    self._client.answered()
                    self._connected = ref(client)
            return client.list_offsets(specs, isolation_level=level, request_timeout=seconds)

        return request

    def _describe(
        self, topics: Collection[str], deadline: RetryDeadline, left_out: _Faults | None = None
    ) -> set[TopicPartition]:
        """The partitions that topics have by the cluster's metadata, with a leader or without."""
        described = self._described(topics, deadline, left_out)
        ids = {name: str(topic.topic_id) for name, topic in described.items()}
        self._topic_ids |= {name: id_ for name, id_ in ids.items() if id_ not in _NO_ID}
        return {
            TopicPartition(name, partition.id)
            for name, topic in described.items()
            for partition in topic.partitions
        }

    def _described(
        self, topics: Collection[str], deadline: RetryDeadline, left_out: _Faults | None = None
    ) -> dict[str, Any]:
        return self._ask(
            lambda client, seconds: client.describe_topics(
                TopicCollection([*topics]), request_timeout=seconds
            ),
            "describe the partitions",
            deadline,
            left_out,
        )

    def _deadline(self, seconds: float | None = None) -> RetryDeadline:
        seconds = self._seconds if seconds is None else seconds
        deadline = RetryDeadline(seconds, retry_backoff(self._kafka), self._clock)
        deadline.start()
        return deadline

    def _known(
        self, ask: Callable[[RetryDeadline, _Faults], _Answers], on_fault: OnFault
    ) -> _Answers:
        """Ask for what is known: a part without an answer waits no longer than it takes briefly.

        Raises:
            KafkaError: Nothing has an answer. What does not exist at all is no such fault.
        """
        left_out: _Faults = {}

        def asked() -> _Answers:
            whole = self._deadline()
            answers = ask(self._deadline(min(_BRIEF_SECONDS, self._seconds)), left_out)
            return answers if answers or whole.expired else ask(whole, left_out)

        answers = self._attempted(asked)
        refused = [each for each in left_out.values() if not isinstance(each, UnknownTopicError)]
        if refused and not answers:
            raise refused[0]
        for fault in left_out.values():
            on_fault(fault)
        return answers

    def _ask(
        self,
        request: Request,
        what: str,
        deadline: RetryDeadline,
        left_out: _Faults | None = None,
    ) -> dict[Any, Any]:
        """Send a request of many parts; ask again while a part fails in a way that may pass.

        Args:
            request: The request.
            what: What it asks for.
            deadline: Limits the time; it has started.
            left_out: Gets the faults of parts that do not pass, or not in that time; None: the
                first one is raised.
        """
        missing: Collection[_Subject] = ()
        while True:
            if left_out is not None:
                left_out.clear()  # all parts are asked for again
            futures = self._asked(request, deadline)
            answers, leaderless, faults = {}, [], []
            for part, future in futures.items():
                error = failure_of(future)
                if error is None:
                    answers[part] = future.result()
                    continue
                mapped = self._error(error, what, part, deadline.seconds)
                is_partition = isinstance(part, RdTopicPartition)
                lacks = is_partition and isinstance(mapped, UnknownTopicError)
                kind = kind_of(error)
                passes = lacks or kind in PASSING
                if not passes or deadline.expired:
                    if left_out is None:
                        raise mapped from None  # it says all that librdkafka's error does
                    left_out[part] = mapped
                    continue
                faults.append(mapped)
                if code_of(error) == _NO_LEADERS:
                    leaderless.append(part)
                elif kind is Kind.STALE_LEADER:
                    # A client goes on by what it knew before: a new one asks who leads.
                    self._client.close()
            if not faults:
                deadline.over()
                return answers
            if left_out is None:  # or else the time is short
                faults += self._missing(leaderless, what, deadline)
                missing = self._missing_twice(faults, missing)
            deadline.sleep(_log, what, faults[-1])

    def _missing(
        self, partitions: Collection[RdTopicPartition], what: str, deadline: RetryDeadline
    ) -> list[KafkaError]:
        """The faults of those partitions that do not exist; others only lack a leader."""
        if not partitions:
            return []
        try:
            listed = self._describe({partition.topic for partition in partitions}, deadline)
        except UnknownTopicError as error:
            return [error]
        return [
            self._error(RdKafkaError(_UNKNOWN_PARTITION), what, partition)
            for partition in partitions
            if (partition.topic, partition.partition) not in listed
        ]

    def _missing_twice(
        self, faults: Collection[KafkaError], before: Collection[_Subject]
    ) -> Collection[_Subject]:
        """Return what is missing now; raise if it was missing last time, too."""
        missing = {
            (fault.topic, fault.partition): fault
            for fault in faults
            if isinstance(fault, UnknownTopicError)
        }
        for subject, fault in missing.items():
            if subject in before:
                raise fault
        if missing:
            self._client.close()  # it remembers what it heard: ask a new one, any broker
        return missing.keys()

    def _asked(self, request: Request, deadline: RetryDeadline) -> Mapping[Any, Future[Any]]:
        return send(self._client, request, deadline, self._clock)

    def _error(
        self, error: object, what: str, part: object = None, seconds: float | None = None
    ) -> KafkaError:
        """An error of librdkafka as one of ours.

        Args:
            error: The error.
            what: What was asked for.
            part: The topic or partition that the error is about, if it is about one.
            seconds: How long it was asked for; None if as long as the options say.
        """
        topic, partition = getattr(part, "topic", None), getattr(part, "partition", None)
        if isinstance(part, str):
            topic, partition = part, None  # str.partition is a method
        whose = f"topic {topic}" if partition is None else f"{topic}-{partition}"
        lacks = code_of(error) == _UNKNOWN_PARTITION and partition is not None
        missing = f"has no partition {partition}" if lacks else "does not exist"
        brokers = servers(self._kafka)
        within = f"{self._seconds:g} s (kafka.default.api.timeout.ms)"
        if seconds is not None and seconds < self._seconds:
            within = f"{seconds:g} s"
        return kafka_error(
            error,
            f"{what} of {whose}" if topic else what,
            cause=self._client.no_connection_text(),
            where=f" on {brokers} within {within}",
            whom=brokers,
            missing=f"topic {topic} {missing} on {brokers}",
            hint=self._client.last_fault_text(),
            topic=topic,
            partition=partition,
            broker=brokers,
        )
