"""A client of librdkafka: how it is made, what it says of faults, and its errors as ours.

A refused login or certificate is raised at the next opportunity, not after a timeout. A cluster
that has never answered is looked at after 10 s (:mod:`kshare.kafka.silence`); what waiting can
repair is then waited for. Nothing is opened before the first use, so an object may be made before a
fork.

Its log lines become readable: each fault once in a while, without librdkafka's own names. A message
is logged, or the same one was logged less than five minutes ago.
"""

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import KafkaException

from kshare.core.listing import nearest
from kshare.errors import (
    AuthenticationError,
    AuthorizationError,
    KafkaError,
    Location,
    RecordRefusedError,
    UnknownTopicError,
)
from kshare.kafka.client_texts import text_of
from kshare.kafka.protocol import error_codes
from kshare.kafka.protocol.error_codes import ErrorCode, Kind
from kshare.kafka.protocol.retry import Clock, RetryDeadline
from kshare.kafka.silence import Diagnosis, Silence
from kshare.kafka.topics import is_internal
from kshare.options import KafkaConfig
from kshare.security.librdkafka import TokenRefresh, librdkafka_config, with_anchors

__all__ = [
    "Client",
    "Handle",
    "Once",
    "admin_seconds",
    "client_log",
    "code_of",
    "has_timed_out",
    "kafka_error",
    "kind_of",
    "servers",
    "unknown_topic",
]

_AGAIN_SECONDS: Final = 300.0
_REMEMBERED_MAX: Final = 256
# FAIL [client#producer-1] [thrd:host:1/bootstrap]: host:1/bootstrap: text (after 3ms in state X)
_ORIGIN: Final = re.compile(r"^\w+ \[[^]]*\] \[thrd:[^]]*\]: ")
_DETAIL: Final = re.compile(r" \(after \d+ms in state .*\)$")
# host:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused
_NO_CONNECTION: Final = re.compile(
    r"^(\S+?)(?:/\w+)?: (?:Connect to \S+ failed|Failed to resolve '[^']*'): (.+)$"
)

_log = logging.getLogger(__name__)

_ADMIN_SECONDS_MAX: Final = 3600.0
# An AdminClient looks for what may be missing for 4 s. One that has lost a broker may wait for it.
_FIRST_SECONDS: Final = 10.0
_FIRST_SECONDS_AFTER_FAULT: Final = 2.0
_ALL_BROKERS_DOWN: Final = RdKafkaError._ALL_BROKERS_DOWN  # noqa: SLF001
# Part of what librdkafka says when a broker answers SaslHandshake with ILLEGAL_SASL_STATE.
_ILLEGAL_SASL_STATE: Final = RdKafkaError(ErrorCode.ILLEGAL_SASL_STATE).str()
# librdkafka's own codes, which no broker answers. _NOENT: none of the partitions that were asked
# for has a leader, or none of them exists.
_OWN_KINDS: Final = {
    RdKafkaError._AUTHENTICATION: Kind.AUTHENTICATION,  # noqa: SLF001
    RdKafkaError._DESTROY_BROKER: Kind.TRANSIENT,  # noqa: SLF001 - it has closed a connection
    RdKafkaError._FENCED: Kind.FENCED,  # noqa: SLF001
    RdKafkaError._INVALID_DIFFERENT_RECORD: Kind.RECORD,  # noqa: SLF001
    RdKafkaError._NOENT: Kind.TRANSIENT,  # noqa: SLF001
    RdKafkaError._SSL: Kind.AUTHENTICATION,  # noqa: SLF001
    RdKafkaError._TIMED_OUT: Kind.TRANSIENT,  # noqa: SLF001
    RdKafkaError._TRANSPORT: Kind.TRANSIENT,  # noqa: SLF001
    RdKafkaError._UNKNOWN_PARTITION: Kind.UNKNOWN_TOPIC,  # noqa: SLF001
    RdKafkaError._UNKNOWN_TOPIC: Kind.UNKNOWN_TOPIC,  # noqa: SLF001
}


class Once(logging.Filter):
    """Lets the first of equal messages pass: a client that reconnects repeats itself for ever.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Decide if a record is logged; its text becomes one that a user can read."""
        text = _DETAIL.sub("", _ORIGIN.sub("", record.getMessage()))
        now = self._clock()
        last = self._last.get(text)
        if last is not None and now - last < _AGAIN_SECONDS:
            return False
        while len(self._last) >= _REMEMBERED_MAX:
            del self._last[next(iter(self._last))]
        self._last.pop(text, None)
        self._last[text] = now
        record.msg, record.args = f"Kafka client: {text}", ()
        return True


client_log: Final = logging.getLogger("kshare.client")
"""For librdkafka's handles: ``Producer(config, logger=client_log)``."""
client_log.addFilter(Once())


class Handle(Protocol):
    """The common part of ``AdminClient``, ``Consumer`` and ``Producer``."""

    def poll(self, timeout: float) -> Any:
        """Serve callbacks."""


HandleT = TypeVar("HandleT", bound=Handle)


class Client(Generic[HandleT]):
    """One client of librdkafka, with the faults that its callbacks report.

    Args:
        kind: ``AdminClient``, ``Consumer`` or ``Producer``.
        kafka: How to reach the cluster.
        config: The client's configuration; called when the client is opened.
        making: What opening it is called in errors.
        whom: What a login was refused by, in errors; what was tried if None.
        clock: Source of time.
        diagnosis: Looks at servers that do not answer, or refuse a login; None: our own protocol.
    """

    def __init__(
        self,
        kind: Callable[..., HandleT],
        kafka: KafkaConfig,
        config: Callable[[], Mapping[str, Any]] | None = None,
        *,
        making: str = "make a client",
        whom: str | None = None,
        clock: Clock = time,
        diagnosis: Diagnosis | None = None,
    ) -> None:
        self._kind = kind
        self._kafka = kafka
        self._config = config or (lambda: librdkafka_config(kafka))
        self._making = making
        self._whom = whom
        self._silence = Silence(kafka, clock, diagnosis)
        self._tokens: TokenRefresh | None = None
        self._handle: HandleT | None = None
        self.last_fault: RdKafkaError | None = None

    @property
    def handle(self) -> HandleT:
        """The client of librdkafka, opened if it is not open.

        Raises:
            KafkaError: There is no token to log in with, or librdkafka refuses the configuration.
        """
        if self._handle is None:
            self.last_fault = None
            try:
                config = self._config()
            except OSError as error:  # the token endpoint of OAUTHBEARER
                raise KafkaError(f"cannot get a token to log in with: {error}") from error
            try:
                self._tokens = config.get("oauth_cb")
                with with_anchors(config) as trusting:
                    given = {**trusting, "error_cb": self._on_error}
                    self._handle = self._kind(given, logger=client_log)
            except KafkaException as error:  # say, an OAUTHBEARER token that expires meanwhile
                raise kafka_error(error, self._making, whom=self._whom) from error
            self._silence.begin()
        return self._handle

    def close(self) -> None:
        """Close librdkafka's client; the next use opens another one."""
        self._handle = None
        self._silence.stop()

    def renew(self) -> None:
        """Ask with another client from now on, and go on to count for how long nobody answers.

        A client that waits for a controller that has died does so until the end, with a whole core:
        it connects to the dead broker without a pause. A new one asks who is the controller now.
        """
        self._handle = None

    def _request_seconds(self, deadline: RetryDeadline) -> float:
        """The time for a request of an ``AdminClient`` before a deadline: at least a second.

        Without an answer the next ones get as much as was spent, each with a new client.
        """
        first = _FIRST_SECONDS if self.last_fault is None else _FIRST_SECONDS_AFTER_FAULT
        spent = deadline.seconds - deadline.seconds_left
        return admin_seconds(max(1.0, min(deadline.seconds_left, max(spent, first))))

    def attempts(self, deadline: RetryDeadline) -> Iterator[float]:
        """The seconds of each attempt at a request: one client after another, while none answers.

        Whoever has an answer leaves the loop. At the deadline the client is closed.
        """
        while True:
            try:
                yield self._request_seconds(deadline)
            except GeneratorExit:  # there is an answer
                deadline.over()
                raise
            if deadline.expired:
                self.close()
                return
            self.renew()
            deadline.sleep(_log, "get an answer", self.last_fault or "no broker has answered")

    def answered(self) -> None:
        """Note that the cluster has answered: from now on, silence has reasons that can pass."""
        self._silence.end()

    @property
    def unreachable(self) -> bool:
        """True if the cluster is known to be out of reach, no matter how long one waits."""
        return self._silence.unreachable

    def raise_refusal(self) -> None:
        """Raise the fault if a login or a certificate was refused: waiting does not help."""
        fault = self.last_fault
        if fault is not None and kind_of(fault) is Kind.AUTHENTICATION:
            self.last_fault = None
            self.close()
            diagnosed = self._silence.login_fault()
            raise diagnosed or kafka_error(fault, "connect", whom=self._whom)

    def raise_if_unreachable(self) -> None:
        """Raise why the cluster never answered, if it is something that waiting does not repair."""
        fault = self._silence.fault()
        if fault is not None:
            self.close()
            raise fault

    def serve(self) -> None:
        """Serve callbacks, which fetch tokens and report faults, and raise what does not pass."""
        self.handle.poll(0)
        self.raise_refusal()
        self.raise_if_unreachable()

    def take_reports(self) -> None:
        """Take what an open client has to say, so that it does not pile up in one that is idle.

        One whose brokers are away says of each connection why it failed: some 16 KiB a second.
        """
        if self._handle is not None:
            self._handle.poll(0)

    def last_fault_text(self) -> str:
        """The last fault that was reported, as a supplement to an error's text."""
        fault = self.last_fault
        if fault is None:
            return ""
        return f" (the client's last error: {fault.str()}){_protocol_hint(self._kafka, fault)}"

    def no_connection_text(self) -> str:
        """Why the last broker that was tried takes no connection; empty if that is not the fault.

        Such as ``localhost:9092: Connection refused``.
        """
        fault = self.last_fault
        said = None if fault is None else _NO_CONNECTION.match(_DETAIL.sub("", fault.str()))
        return "" if said is None else f"{said[1]}: {said[2]}"

    def _on_error(self, error: RdKafkaError) -> None:
        outage = None if self._tokens is None else self._tokens.fault
        if isinstance(outage, OSError) and kind_of(error) is Kind.AUTHENTICATION:
            # That passes; librdkafka asks for a token again.
            _log.warning("cannot get a token to log in with: %s", outage)
            return
        if self._silence.ended and _ILLEGAL_SASL_STATE in error.str():
            # Not a refusal: a broker takes no login within a second of the last one (KIP-368), as a
            # token that is about to expire may need. Then it ends the connection, and librdkafka
            # makes another one. A listener without SASL answers nothing before that.
            _log.info("the broker takes no new login yet: %s", error.str())
            return
        # That all brokers are down says less than why the last one is.
        if (
            self.last_fault is None
            or kind_of(error) is Kind.AUTHENTICATION
            or error.code() != _ALL_BROKERS_DOWN
        ):
            self.last_fault = error


def code_of(error: object) -> int | None:
    """The code of an error of librdkafka; None for any other object."""
    if isinstance(error, KafkaException):
        error = error.args[0]
    return error.code() if isinstance(error, RdKafkaError) else None


def kind_of(error: object) -> Kind:
    """The kind of an error; a ``TimeoutError`` is transient, and so is a full queue."""
    if isinstance(error, TimeoutError | BufferError):
        return Kind.TRANSIENT
    code = code_of(error)
    if code is None:
        return Kind.PERMANENT
    # TLS 1.3: that a broker refuses the client's certificate shows as an alert at the first read,
    # which librdkafka takes for a broken connection.
    if "SSL alert number" in str(error):
        return Kind.AUTHENTICATION
    return _OWN_KINDS.get(code) or error_codes.kind(code)


def admin_seconds(seconds: float) -> float:
    """A time for a request of an ``AdminClient``, which takes an hour at most."""
    return min(seconds, _ADMIN_SECONDS_MAX)


def has_timed_out(error: object) -> bool:
    """True if the error is that there was no answer in time."""
    return isinstance(error, TimeoutError) or code_of(error) == RdKafkaError._TIMED_OUT  # noqa: SLF001


def kafka_error(
    error: object,
    action: str,
    *,
    cause: str = "",
    where: str = "",
    whom: str | None = None,
    missing: str | None = None,
    more: str = "",
    hint: str = "",
    topic: str | None = None,
    partition: int | None = None,
    broker: str | None = None,
) -> KafkaError:
    """An error of librdkafka as one of ours.

    Args:
        error: A ``KafkaError``, ``KafkaException`` or ``BufferError`` of confluent-kafka, or a
            ``TimeoutError``.
        action: What was tried, as an infinitive: "write to topic t".
        cause: Why there was no answer in time, in place of librdkafka's text; empty if not known.
        where: Supplement to the action, for errors without a class of their own.
        whom: What a login was refused by; the action if None.
        missing: What does not exist, as a sentence; None for a general one.
        more: Supplement to librdkafka's text.
        hint: Supplement at the end, for errors without a class of their own.
        topic: Fact of the error.
        partition: Fact of the error.
        broker: Fact of the error.
    """
    if isinstance(error, KafkaException):
        error = error.args[0]
    elif isinstance(error, BufferError):
        error = RdKafkaError(RdKafkaError._QUEUE_FULL)  # noqa: SLF001
    said = text_of(error) if isinstance(error, RdKafkaError) else f"{error}"
    text = f"{said or 'timed out'}{more}"
    facts: Location = {"topic": topic, "partition": partition, "broker": broker}
    kind = kind_of(error)
    if kind is Kind.AUTHENTICATION:
        return AuthenticationError(f"cannot log in to {whom or action}: {text}", **facts)
    if kind is Kind.AUTHORIZATION:
        return AuthorizationError(f"not authorized to {action}: {text}", **facts)
    if kind is Kind.UNKNOWN_TOPIC:
        missing = missing or f"cannot {action}: the topic or its partition does not exist: {text}"
        return UnknownTopicError(missing, **facts)
    if kind is Kind.RECORD:
        return RecordRefusedError(f"cannot {action}{where}: {text}{hint}", **facts)
    if kind is Kind.FENCED:
        why = "fenced by a later producer with the same transactional id"
        return KafkaError(f"cannot {action}: {why}: {text}", **facts)
    if code_of(error) == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
        text += (
            "; kafka.transaction.timeout.ms must not be more than the brokers' "
            "transaction.max.timeout.ms"
        )
    if cause and has_timed_out(error):
        whole = f"{cause}: cannot {action}{where}"
    else:
        whole = f"cannot {action}{where}: {text}{hint}"
    return KafkaError(whole, **facts)


def unknown_topic(topic: str, whom: str, existing: Iterable[str]) -> UnknownTopicError:
    """The error of a topic that does not exist, with the nearest one that does.

    Args:
        topic: The topic.
        whom: The brokers that were asked.
        existing: The topics that there are, as far as that is known.
    """
    near = nearest(topic, (name for name in existing if not is_internal(name) and name != topic))
    question = "" if near is None else f"; did you mean {near}?"
    return UnknownTopicError(
        f"topic {topic} does not exist on {whom}{question}", topic=topic, broker=whom
    )


def servers(kafka: KafkaConfig) -> str:
    """The bootstrap servers, as error texts name them."""
    return ", ".join(f"{host}:{port}" for host, port in kafka.bootstrap_servers)


def _protocol_hint(kafka: KafkaConfig, fault: RdKafkaError) -> str:
    """Possible causes if a broker closes a connection without an answer."""
    if kafka.uses_tls and "SSL_HANDSHAKE" in fault.str():
        return (
            "; if this listener expects no TLS, set kafka.security.protocol to PLAINTEXT or "
            "SASL_PLAINTEXT"
        )
    if not kafka.uses_tls and fault.code() == _ALL_BROKERS_DOWN:
        return "; if this listener expects TLS, set kafka.security.protocol to SSL or SASL_SSL"
    return ""
