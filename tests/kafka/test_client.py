"""A client of librdkafka: what its errors become, and when it raises what it has heard."""

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import KafkaException

import kshare
from kshare.errors import (
    AuthenticationError,
    AuthorizationError,
    KafkaError,
    RecordRefusedError,
    UnknownTopicError,
)
from kshare.kafka.client import Client, kafka_error, kind_of
from kshare.kafka.protocol import error_codes
from kshare.kafka.protocol.error_codes import ErrorCode, Kind
from kshare.options import KafkaConfig
from kshare.options.frozen import Secret
from kshare.security.librdkafka import TokenRefresh
from kshare.security.tokens import Token
from tests.support.clock import Clock

KAFKA = KafkaConfig(bootstrap_servers=(("h", 1), ("i", 2)))
DOWN = RdKafkaError(RdKafkaError._ALL_BROKERS_DOWN, "2/2 brokers are down")
REFUSED = RdKafkaError(RdKafkaError._AUTHENTICATION, "wrong password")
TRANSPORT = RdKafkaError(RdKafkaError._TRANSPORT, "connection refused")


class Handle:
    """A client that reports what a test lets it report."""

    def __init__(self, config: dict[str, Any], **_: Any) -> None:
        self.config = config
        self.polled = 0

    def poll(self, timeout: float) -> int:
        self.polled += 1
        return 0

    def report(self, *errors: RdKafkaError) -> None:
        for error in errors:
            self.config["error_cb"](error)


@pytest.mark.parametrize("code", [code for code in ErrorCode if code != ErrorCode.NONE])
def test_a_brokers_code_means_what_the_table_says(code: ErrorCode) -> None:
    assert kind_of(RdKafkaError(int(code))) is error_codes.kind(code)
    assert kind_of(KafkaException(RdKafkaError(int(code)))) is error_codes.kind(code)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TimeoutError(), Kind.TRANSIENT),
        (BufferError("a full queue"), Kind.TRANSIENT),
        (RdKafkaError(RdKafkaError._TIMED_OUT), Kind.TRANSIENT),
        (RdKafkaError(RdKafkaError._NOENT), Kind.TRANSIENT),
        (RdKafkaError(RdKafkaError._DESTROY_BROKER), Kind.TRANSIENT),
        (TRANSPORT, Kind.TRANSIENT),
        (RdKafkaError(RdKafkaError._SSL), Kind.AUTHENTICATION),
        (REFUSED, Kind.AUTHENTICATION),
        (
            RdKafkaError(RdKafkaError._TRANSPORT, "tlsv13 alert: SSL alert number 116"),
            Kind.AUTHENTICATION,
        ),
        (RdKafkaError(RdKafkaError._UNKNOWN_TOPIC), Kind.UNKNOWN_TOPIC),
        (RdKafkaError(RdKafkaError._UNKNOWN_PARTITION), Kind.UNKNOWN_TOPIC),
        (RdKafkaError(RdKafkaError._FENCED), Kind.FENCED),
        (RdKafkaError(RdKafkaError._INVALID_ARG), Kind.PERMANENT),
        (ValueError("another error"), Kind.PERMANENT),
    ],
)
def test_what_librdkafka_itself_says(error: Exception | RdKafkaError, kind: Kind) -> None:
    assert kind_of(error) is kind


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (58, AuthenticationError, "cannot log in to write to topic t: no (more)"),
        (29, AuthorizationError, "not authorized to write to topic t: no (more)"),
        (
            3,
            UnknownTopicError,
            "cannot write to topic t: the topic or its partition does not exist: no (more)",
        ),
        (
            90,
            KafkaError,
            (
                "cannot write to topic t: fenced by a later producer with the same transactional "
                "id: no (more)"
            ),
        ),
        (
            50,
            KafkaError,
            (
                "cannot write to topic t on h:1: no (more); kafka.transaction.timeout.ms must not "
                "be more than the brokers' transaction.max.timeout.ms; hint"
            ),
        ),
        (
            87,
            RecordRefusedError,
            (
                "cannot write to topic t on h:1: the brokers do not take such a record: it has no "
                "key and its topic is compacted, or they check schemas (no) (more); hint"
            ),
        ),
    ],
)
def test_an_error_names_what_was_tried(code: int, kind: type[KafkaError], text: str) -> None:
    error = kafka_error(
        RdKafkaError(code, "no"),
        "write to topic t",
        where=" on h:1",
        more=" (more)",
        hint="; hint",
        topic="t",
    )
    assert type(error) is kind
    assert str(error) == text
    assert error.topic == "t"


def test_a_sentence_of_ones_own_for_what_is_missing_and_for_logins() -> None:
    missing = kafka_error(RdKafkaError(3, "no"), "x", missing="topic t has no partition 9")
    assert str(missing) == "topic t has no partition 9"
    assert str(kafka_error(REFUSED, "x", whom="h:1")) == "cannot log in to h:1: wrong password"
    assert str(kafka_error(TimeoutError(), "x")) == "cannot x: timed out"


class Diagnosis:
    """Finds what a test says; ``asked`` has the seconds that it was given each time."""

    def __init__(self, fault: KafkaError | None, login: AuthenticationError | None = None) -> None:
        self._fault, self._login = fault, login
        self.asked: list[float] = []

    def connection_fault(self, kafka: KafkaConfig, seconds: float) -> KafkaError | None:
        self.asked.append(seconds)
        return self._fault

    def login_fault(self, kafka: KafkaConfig) -> AuthenticationError | None:
        return self._login


def test_nothing_is_opened_before_it_is_used() -> None:
    opened: list[Handle] = []

    def make(config: dict[str, Any], **more: Any) -> Handle:
        opened.append(Handle(config, **more))
        return opened[-1]

    client = Client(make, KAFKA)
    client.close()
    assert not opened
    assert client.handle is client.handle is opened[0]
    assert opened[0].config["bootstrap.servers"] == "h:1,i:2"
    client.close()
    assert client.handle is opened[1]


def test_silence_is_diagnosed_once() -> None:
    clock, diagnosis = Clock(), Diagnosis(None)
    client = Client(Handle, KAFKA, clock=clock, diagnosis=diagnosis)
    client.serve()
    clock.now += 9.9
    client.serve()
    assert diagnosis.asked == []
    clock.now += 0.1
    client.serve()
    clock.now += 100
    client.serve()
    assert diagnosis.asked == [15.0]
    assert client.handle.polled == 4
    assert not client.unreachable


def test_a_cluster_that_cannot_be_reached() -> None:
    clock, fault = Clock(), KafkaError("no server has an address")
    diagnosis = Diagnosis(fault)
    client = Client(Handle, KAFKA, clock=clock, diagnosis=diagnosis)
    opened = client.handle
    clock.now += 10
    with pytest.raises(KafkaError) as raised:
        client.serve()
    assert raised.value is fault
    assert client.unreachable
    assert client.handle is not opened
    assert len(diagnosis.asked) == 1


def test_a_cluster_that_has_answered_is_not_looked_at() -> None:
    clock, diagnosis = Clock(), Diagnosis(KafkaError("no server has an address"))
    client = Client(Handle, KAFKA, clock=clock, diagnosis=diagnosis)
    client.serve()
    client.answered()
    for _ in range(2):
        clock.now += 100
        client.serve()
        client.close()  # nor a client that is opened later
    assert diagnosis.asked == []


@pytest.mark.parametrize("diagnosed", [AuthenticationError("by our own wire"), None])
def test_a_refused_login_is_raised_at_once(diagnosed: AuthenticationError | None) -> None:
    client = Client(Handle, KAFKA, clock=Clock(), diagnosis=Diagnosis(None, diagnosed))
    client.handle.report(TRANSPORT, DOWN)
    client.serve()
    opened = client.handle
    opened.report(REFUSED, DOWN)
    with pytest.raises(AuthenticationError) as raised:
        client.serve()
    told = "cannot log in to connect: wrong password" if diagnosed is None else str(diagnosed)
    assert str(raised.value) == told
    assert client.handle is not opened
    client.serve()  # a new client, which has heard nothing yet


@pytest.mark.parametrize(
    ("fault", "passes"),
    [(ConnectionRefusedError("the endpoint is away"), True), (AuthenticationError("no"), False)],
)
def test_an_outage_of_the_source_of_tokens_passes(
    fault: Exception, passes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[Token | Exception] = [fault, Token(Secret("abc"), 2e9, "me"), fault]

    def fetch() -> Token:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    refresh = TokenRefresh(fetch)
    refused = Diagnosis(None, AuthenticationError("by our own wire"))
    client = Client(Handle, KAFKA, lambda: {"oauth_cb": refresh}, diagnosis=refused)
    opened = client.handle
    with pytest.raises(type(fault)):
        refresh("")
    opened.report(REFUSED)
    with nullcontext() if passes else pytest.raises(AuthenticationError):
        client.serve()
    assert ("the endpoint is away" in caplog.text) is passes
    assert (client.handle is opened) is passes
    # A broker that refuses the token that there is now is another matter.
    assert refresh("") == ("abc", 2e9, "me", {})
    client.handle.report(REFUSED)
    with pytest.raises(AuthenticationError):
        client.serve()


@pytest.mark.parametrize("has_answered", [False, True])
def test_a_login_that_comes_too_soon_after_another_is_no_refusal(*, has_answered: bool) -> None:
    """A broker refuses it (KIP-368); so does a listener without SASL, at the first request."""
    too_soon = RdKafkaError(
        RdKafkaError._AUTHENTICATION,
        "SASL OAUTHBEARER mechanism handshake failed: Broker: Request not valid in current SASL "
        "state: broker's supported mechanisms: ",
    )
    client = Client(Handle, KAFKA, clock=Clock(), diagnosis=Diagnosis(None, None))
    opened = client.handle
    if has_answered:
        client.answered()
    opened.report(too_soon)
    with nullcontext() if has_answered else pytest.raises(AuthenticationError):
        client.serve()
    assert (client.handle is opened) is has_answered
    if has_answered:
        opened.report(REFUSED)
        with pytest.raises(AuthenticationError):
            client.serve()


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (
            (
                "127.0.0.1:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused "
                "(after 0ms in state CONNECT)"
            ),
            "127.0.0.1:1: Connection refused",
        ),
        (
            "kafka-2:9092/2: Connect to ipv6#[::1]:9092 failed: Connection refused",
            "kafka-2:9092: Connection refused",
        ),
        (
            (
                "nosuch:9092/bootstrap: Failed to resolve 'nosuch:9092': Name or service not known "
                "(after 2ms in state CONNECT)"
            ),
            "nosuch:9092: Name or service not known",
        ),
        ("kafka:9092/1: Disconnected (after 5ms in state UP)", ""),
    ],
)
def test_an_answer_that_is_late_as_no_broker_listens_begins_with_that(said: str, text: str) -> None:
    client = Client(Handle, KAFKA, clock=Clock())
    assert client.no_connection_text() == ""
    client.handle.report(RdKafkaError(RdKafkaError._TRANSPORT, said))
    assert client.no_connection_text() == text
    late = kafka_error(
        TimeoutError("waiting for controller"), "describe t", cause=text, where=" on h:1"
    )
    begins = f"{text}: cannot describe t on h:1" if text else "cannot describe t on h:1: waiting"
    assert str(late).startswith(begins)


def test_the_last_fault_says_why_brokers_are_down() -> None:
    client = Client(Handle, KAFKA, clock=Clock())
    assert client.last_fault_text() == ""
    client.handle.report(DOWN)
    assert client.last_fault_text() == (
        " (the client's last error: 2/2 brokers are down); if this listener expects TLS, set "
        "kafka.security.protocol to SSL or SASL_SSL"
    )
    client.handle.report(TRANSPORT, DOWN)
    assert client.last_fault_text() == " (the client's last error: connection refused)"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (RdKafkaError.MSG_SIZE_TOO_LARGE, "larger than its topic takes (max.message.bytes)"),
        (RdKafkaError.INVALID_TIMESTAMP, "further from the broker's time than its topic takes"),
        (RdKafkaError.INVALID_RECORD, "it has no key and its topic is compacted"),
        (RdKafkaError.NOT_ENOUGH_REPLICAS, "than min.insync.replicas asks for"),
        (RdKafkaError._INVALID_DIFFERENT_RECORD, "another record of the same batch"),
        (RdKafkaError._MSG_TIMED_OUT, "no broker took it in time"),
        (RdKafkaError._PURGE_QUEUE, "given up with its transaction"),
    ],
)
def test_what_librdkafka_says_is_our_sentence_with_its_words_behind(code: int, says: str) -> None:
    error = RdKafkaError(code)
    for given in (error, KafkaException(error)):
        fault = kafka_error(given, "write to topic t, partition 3", topic="t", partition=3)
        assert "write to topic t, partition 3: " in str(fault)
        assert says in str(fault)
        assert str(fault).endswith(f"({error.str()})")
        assert (fault.topic, fault.partition) == ("t", 3)


def test_a_full_queue_is_said_like_any_other_error() -> None:
    fault = kafka_error(BufferError("Local: Queue full"), "write to topic t")
    assert "the producer's queue is full" in str(fault)


def test_whoever_shows_an_error_of_librdkafka_goes_by_the_one_table() -> None:
    """Its own words surface nowhere else: only as the last fault of a client, beside ours."""
    package = Path(kshare.__file__).parent
    words = {
        file.relative_to(package).as_posix()
        for file in package.rglob("*.py")
        if re.search(r"\.str\(\)", file.read_text())
    }
    assert words == {"kafka/client.py", "kafka/client_texts.py"}
