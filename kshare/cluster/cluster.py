"""The control path: which partitions exist, and which offsets they hold. On confluent-kafka.

Law: every call ends within ``default.api.timeout.ms``, as often as ``fetchOffset.numRetries`` has
it, with an answer for all that was asked or an error that says why not. A fault that waiting does
not mend (a login, a certificate, the wrong ``security.protocol``) ends it within 30 s. Offsets of a
partition are refused if two listings in a row lack it: one broker may not have heard of it yet.
Cost: one or two round trips a call, whatever the number of partitions.
Nothing is opened before the first call, so an object may be made before a fork.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaException, TopicCollection
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    OffsetSpec,
)

from kshare.cluster.client_log import client_log
from kshare.cluster.diagnosis import connection_fault, login_fault
from kshare.core.progress import TopicPartition
from kshare.errors import (
    AuthenticationError,
    AuthorizationError,
    KafkaError,
    Location,
    UnknownTopicError,
)
from kshare.options import Assign, KafkaConfig, Subscribe, SubscribePattern
from kshare.security.librdkafka import librdkafka_config

__all__ = ["Cluster", "TopicPolicy"]

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
# A cluster that has not answered for so long is looked at by diagnosis; both together are < 30 s.
_DIAGNOSIS_AFTER_SECONDS = 10.0
_DIAGNOSIS_SECONDS = 15.0
_INTERNAL_TOPICS = {
    "__consumer_offsets",
    "__kshare_parked_keys",
    "__kshare_sink_ledger",
    "__share_group_state",
    "__transaction_state",
}
_AUTHENTICATION = {RdKafkaError._AUTHENTICATION, RdKafkaError._SSL, 33, 34, 58}  # noqa: SLF001
_AUTHORIZATION = {29, 30, 31}
_ALL_BROKERS_DOWN = RdKafkaError._ALL_BROKERS_DOWN  # noqa: SLF001
_UNKNOWN_PARTITION = RdKafkaError._UNKNOWN_PARTITION  # noqa: SLF001
_UNKNOWN = {3, RdKafkaError._UNKNOWN_TOPIC, _UNKNOWN_PARTITION}  # noqa: SLF001
# No partition of those asked for has a leader, or exists: librdkafka says the same of both.
_NO_LEADERS = RdKafkaError._NOENT  # noqa: SLF001
_TRANSPORT = RdKafkaError._TRANSPORT  # noqa: SLF001
_TIMED_OUT = RdKafkaError._TIMED_OUT  # noqa: SLF001
# What a moving leader or a starting broker answers; asked again until the time is over.
_RETRIABLE = {5, 6, 7, 9, 13, 56, 74, 75, 78, _NO_LEADERS, _TRANSPORT, _TIMED_OUT}
# Not the leader, or not its epoch. An admin client of librdkafka goes on by what it knew before.
_STALE = {6, 74, 75}

_LASTING = (AuthenticationError, AuthorizationError, UnknownTopicError)

_Answer = TypeVar("_Answer")
_Place: TypeAlias = tuple[str | None, int | None]
_Request: TypeAlias = Callable[[AdminClient, float], Mapping[Any, Future[Any]]]


_SEGMENT_BYTES, _BATCH_BYTES = 1 << 30, (1 << 20) + 12  # Kafka's defaults


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """What a topic's configuration does to records.

    Attributes:
        compacted: records vanish when a later one has the same key.
        retention_ms: records of this age are deleted; None if age does not matter.
        log_append_time: brokers stamp records with the time of their arrival; or producers do.
        retention_bytes: a partition's oldest segments are deleted so that it keeps no fewer bytes;
            None if size does not matter.
        segment_bytes: how long a segment may get.
        batch_bytes: how long a batch of records may be.
    """

    compacted: bool
    retention_ms: int | None
    log_append_time: bool = False
    retention_bytes: int | None = None
    segment_bytes: int = _SEGMENT_BYTES
    batch_bytes: int = _BATCH_BYTES


class Cluster:
    """A Kafka cluster, as the planner sees it."""

    def __init__(self, kafka: KafkaConfig) -> None:
        self._kafka = kafka
        self._seconds = kafka.api_timeout_ms / 1000
        self._client: AdminClient | None = None
        self._fault: RdKafkaError | None = None
        # Nothing was ever answered: since when. None once it is known that waiting makes sense.
        self._silent_since: float | None = None
        self._reached = self._unreachable = False

    def partitions(
        self, topics: Subscribe | SubscribePattern | Assign
    ) -> tuple[TopicPartition, ...]:
        """The partitions that a subscription means now, sorted.

        Raises:
            UnknownTopicError: a topic that is named does not exist.
            KafkaError: the cluster did not answer in time, or refused.
        """
        match topics:
            case Assign():
                return tuple(sorted(topics.partitions))
            case Subscribe():
                names: Collection[str] = topics.topics
            case SubscribePattern():
                found = set(self._topic_names()) - _INTERNAL_TOPICS
                names = [name for name in found if topics.matches(name)]
        names = sorted(set(names))
        if not names:
            return ()
        return tuple(sorted(self._patiently(lambda: self._listed(names, self._deadline()))))

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that each partition's log holds.

        Raises:
            UnknownTopicError: a partition does not exist.
            KafkaError: the cluster did not answer in time (so for a partition that has no leader
                for so long), or refused. Of all that asks for offsets.
        """
        spec: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        return self._offsets(dict.fromkeys(partitions, spec))

    def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The end of each partition: its high watermark; ``read_committed``: last stable offset."""
        spec: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        return self._offsets(dict.fromkeys(partitions, spec))

    def at_timestamps(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """The first offset of a record that is not older; None if all records are older."""
        found = self._offsets(
            {place: OffsetSpec.for_timestamp(time_ms) for place, time_ms in timestamps_ms.items()}
        )
        return {place: offset if offset >= 0 else None for place, offset in found.items()}

    def policies(self, topics: Collection[str]) -> dict[str, TopicPolicy]:
        """What happens to old records of topics; topics that this client may not ask about lack."""
        wanted = {ConfigResource(ConfigResource.Type.TOPIC, topic): topic for topic in topics}
        if not wanted:
            return {}
        futures = self._open().describe_configs([*wanted], request_timeout=self._seconds)
        self._wait(futures.values(), self._deadline())
        found = {}
        for resource, future in futures.items():
            if future.done() and future.exception(timeout=0) is None:
                values = {name: entry.value for name, entry in future.result().items()}
                found[resource.name] = _policy(values)
        return found

    def close(self) -> None:
        """Let go of the client; a later call opens a new one."""
        self._client = None

    # -- asking -----------------------------------------------------------------------------

    def _patiently(self, ask: Callable[[], _Answer]) -> _Answer:
        """Ask several times, with a new client each time, as Spark's source does."""
        attempt = 1
        while True:
            try:
                return ask()
            except KafkaError as error:
                if (
                    isinstance(error, _LASTING)
                    or self._unreachable
                    or attempt >= self._kafka.offset_attempts
                ):
                    raise
                _log.warning("attempt %d of %d: %s", attempt, self._kafka.offset_attempts, error)
            attempt += 1
            self._client = None
            time.sleep(self._kafka.offset_retry_ms / 1000)

    def _topic_names(self) -> list[str]:
        return self._patiently(self._list_topics)

    def _list_topics(self) -> list[str]:
        client = self._open()
        deadline = self._deadline()
        while True:
            try:
                topics = list(client.list_topics(timeout=1.0).topics)
            except KafkaException as error:
                client.poll(0)
                self._raise_fault()
                if time.monotonic() > deadline:
                    raise self._mapped(error.args[0], "list the topics") from error
            else:
                self._reached = True
                return topics

    def _offsets(self, specs: Mapping[TopicPartition, OffsetSpec]) -> dict[TopicPartition, int]:
        wanted = {RdTopicPartition(*place): spec for place, spec in specs.items()}
        if not wanted:
            return {}
        level = (
            IsolationLevel.READ_COMMITTED
            if self._kafka.read_committed
            else IsolationLevel.READ_UNCOMMITTED
        )
        found = self._patiently(
            lambda: self._ask(
                lambda client, seconds: client.list_offsets(
                    wanted, isolation_level=level, request_timeout=seconds
                ),
                "list offsets",
                self._deadline(),
            )
        )
        return {
            TopicPartition(place.topic, place.partition): f.offset for place, f in found.items()
        }

    def _listed(self, topics: Collection[str], deadline: float) -> set[TopicPartition]:
        """The partitions that topics have by the cluster's metadata, with a leader or without."""
        described = self._ask(
            lambda client, seconds: client.describe_topics(
                TopicCollection([*topics]), request_timeout=seconds
            ),
            "describe the partitions",
            deadline,
        )
        return {
            TopicPartition(name, partition.id)
            for name, topic in described.items()
            for partition in topic.partitions
        }

    def _deadline(self) -> float:
        return time.monotonic() + self._seconds

    def _ask(self, request: _Request, what: str, deadline: float) -> dict[Any, Any]:
        """Send a request of many parts; ask again while a part fails in a way that may pass."""
        pause = self._kafka.retry_backoff_ms / 1000
        missing: Collection[_Place] = ()
        while True:
            left = max(deadline - time.monotonic(), 1.0)
            futures = request(self._open(), left)
            self._wait(futures.values(), deadline)
            answers, leaderless, faults = {}, [], []
            for part, future in futures.items():
                error = _failure(future)
                if error is None:
                    answers[part] = future.result()
                    self._reached = True
                    continue
                mapped = self._mapped(error, what, part)
                is_partition = isinstance(part, RdTopicPartition)
                lacks = is_partition and isinstance(mapped, UnknownTopicError)
                if not (lacks or _may_pass(error)) or time.monotonic() >= deadline:
                    raise mapped from None  # it says all that librdkafka's error does
                faults.append(mapped)
                if _code(error) == _NO_LEADERS:
                    leaderless.append(part)
                elif _code(error) in _STALE:
                    self._client = None  # a new one asks who leads
            if not faults:
                return answers
            faults += self._missing(leaderless, what, deadline)
            missing = self._twice_missing(faults, missing)
            _log.info("asking again after: %s", faults[-1])
            time.sleep(pause)
            pause = min(2 * pause, self._kafka.retry_backoff_max_ms / 1000)

    def _missing(
        self, places: Collection[RdTopicPartition], what: str, deadline: float
    ) -> list[KafkaError]:
        """What is to be said of partitions that are not there, and so have no leader."""
        if not places:
            return []
        try:
            listed = self._listed({place.topic for place in places}, deadline)
        except UnknownTopicError as error:
            return [error]
        return [
            self._mapped(RdKafkaError(_UNKNOWN_PARTITION), what, place)
            for place in places
            if (place.topic, place.partition) not in listed
        ]

    def _twice_missing(
        self, faults: Collection[KafkaError], before: Collection[_Place]
    ) -> Collection[_Place]:
        """The places that are missing; raise the fault of one that was missing before, too."""
        missing = {
            (fault.topic, fault.partition): fault
            for fault in faults
            if isinstance(fault, UnknownTopicError)
        }
        for place, fault in missing.items():
            if place in before:
                raise fault
        if missing:
            self._client = None  # it remembers what it was told: ask a new one, any broker
        return missing.keys()

    def _wait(self, futures: Collection[Future[Any]], deadline: float) -> None:
        client = self._open()
        pending: Collection[Future[Any]] = list(futures)
        while pending and time.monotonic() < deadline + 1.0:
            client.poll(0)  # serves the error and token callbacks
            self._raise_fault()
            pending = wait(pending, timeout=_POLL_SECONDS).not_done

    def _open(self) -> AdminClient:
        if self._client is None:
            self._fault = None
            try:
                config = librdkafka_config(self._kafka)
            except OSError as error:  # the token endpoint of OAUTHBEARER
                raise KafkaError(f"cannot get a token to log in with: {error}") from error
            config["error_cb"] = self._on_error
            try:
                self._client = AdminClient(config, logger=client_log)
            except KafkaException as error:  # say, an OAUTHBEARER token that expires meanwhile
                if _refuses(error.args[0]):
                    raise self._mapped(error, "connect") from error
                raise KafkaError(f"cannot make a client: {error.args[0].str()}") from error
            self._silent_since = time.monotonic()
        return self._client

    # -- faults -----------------------------------------------------------------------------

    def _on_error(self, error: RdKafkaError) -> None:
        # That all brokers are down says less than why the last one is.
        if self._fault is None or _refuses(error) or error.code() != _ALL_BROKERS_DOWN:
            self._fault = error

    def _raise_fault(self) -> None:
        """A fault that does not mend itself is told at once, not after the time-out."""
        if self._fault is not None and _refuses(self._fault):
            fault, self._fault = self._fault, None
            self._client = None
            raise login_fault(self._kafka) or self._mapped(fault, "connect")
        if self._reached or self._silent_since is None:
            return
        if time.monotonic() - self._silent_since >= _DIAGNOSIS_AFTER_SECONDS:
            self._silent_since = None  # once: what may mend itself is waited for
            unreachable = connection_fault(self._kafka, _DIAGNOSIS_SECONDS)
            if unreachable is not None:
                self._client = None
                self._unreachable = True
                raise unreachable

    def _mapped(self, error: Any, what: str, part: object = None) -> KafkaError:
        """An error of librdkafka as one of ours."""
        if isinstance(error, KafkaException):
            error = error.args[0]
        servers = ", ".join(f"{host}:{port}" for host, port in self._kafka.bootstrap_servers)
        code = _code(error)
        text = error.str() if isinstance(error, RdKafkaError) else f"{error or 'timed out'}"
        topic, partition = getattr(part, "topic", None), getattr(part, "partition", None)
        if isinstance(part, str):
            topic, partition = part, None  # a text has a method of that name
        place: Location = {"broker": servers, "topic": topic, "partition": partition}
        whose = f"topic {topic}" if partition is None else f"{topic}-{partition}"
        about = f" of {whose}" if topic else ""
        if isinstance(error, RdKafkaError) and _refuses(error):
            return AuthenticationError(f"cannot log in to {servers}: {text}", **place)
        if code in _AUTHORIZATION:
            return AuthorizationError(f"not authorized to {what}{about}: {text}", **place)
        if code in _UNKNOWN:
            lacks = code == _UNKNOWN_PARTITION and partition is not None
            missing = f"has no partition {partition}" if lacks else "does not exist"
            return UnknownTopicError(f"topic {topic} {missing} on {servers}: {text}", **place)
        cause = f" (the client's last error: {self._fault.str()})" if self._fault else ""
        if self._fault:
            cause += _protocol_hint(self._kafka, self._fault)
        return KafkaError(
            f"cannot {what}{about} on {servers} within {self._seconds:g} s "
            f"(kafka.default.api.timeout.ms): {text}{cause}",
            **place,
        )


def _refuses(error: RdKafkaError) -> bool:
    """Whether a login or a certificate was not accepted.

    TLS 1.3: that a broker refuses the client's certificate shows as an alert at the first read,
    which librdkafka takes for a broken connection.
    """
    return error.code() in _AUTHENTICATION or "SSL alert number" in error.str()


def _protocol_hint(kafka: KafkaConfig, fault: RdKafkaError) -> str:
    """What a connection may mean that a broker closed without a word."""
    if kafka.uses_tls and "SSL_HANDSHAKE" in fault.str():
        return (
            "; if this listener expects no TLS, set kafka.security.protocol to PLAINTEXT or "
            "SASL_PLAINTEXT"
        )
    if not kafka.uses_tls and fault.code() == _ALL_BROKERS_DOWN:
        return "; if this listener expects TLS, set kafka.security.protocol to SSL or SASL_SSL"
    return ""


def _policy(values: Mapping[str, str | None]) -> TopicPolicy:
    policy = values.get("cleanup.policy") or "delete"
    deletes = "delete" in policy

    def limit(name: str) -> int | None:
        given = int(values.get(name) or -1)
        return given if deletes and given >= 0 else None

    return TopicPolicy(
        compacted="compact" in policy,
        retention_ms=limit("retention.ms"),
        log_append_time=values.get("message.timestamp.type") == "LogAppendTime",
        retention_bytes=limit("retention.bytes"),
        segment_bytes=int(values.get("segment.bytes") or _SEGMENT_BYTES),
        batch_bytes=int(values.get("max.message.bytes") or _BATCH_BYTES),
    )


def _failure(future: Future[Any]) -> BaseException | None:
    """Why there is no answer; None: there is one."""
    if not future.done():
        return TimeoutError()
    error = future.exception(timeout=0)
    if error is None and getattr(future.result(), "offset", 0) == OFFSET_INVALID:
        # librdkafka's answer, without an error, if the broker goes away amid the request.
        return KafkaException(RdKafkaError(_TRANSPORT, "the broker went away"))
    return error


def _code(error: object) -> int | None:
    """The code of an error of librdkafka."""
    if isinstance(error, KafkaException):
        error = error.args[0]
    return error.code() if isinstance(error, RdKafkaError) else None


def _may_pass(error: object) -> bool:
    return _code(error) in _RETRIABLE or isinstance(error, TimeoutError)
