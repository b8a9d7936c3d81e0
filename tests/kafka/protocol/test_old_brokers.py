"""Brokers, and services, that do not speak what brokers of today do: how a connection begins."""

import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from typing import Any

import pytest
from kafka.protocol.metadata import ApiVersionsResponse
from kafka.protocol.sasl import SaslHandshakeResponse

from kshare.errors import AuthenticationError
from kshare.kafka.protocol import connection as connection_module
from kshare.kafka.protocol.apis import api_of
from kshare.kafka.protocol.connection import Connection
from kshare.options import KafkaConfig, parse_options
from tests.support.security import listening

API_VERSIONS, HANDSHAKE, AUTHENTICATE, METADATA = 18, 17, 36, 3
EVERYTHING = {API_VERSIONS: (0, 0), HANDSHAKE: (0, 1), AUTHENTICATE: (0, 1), METADATA: (0, 5)}
PASSWORD = "not for a log"


class OldBroker:
    """A broker that hangs up on any ApiVersions but 0, and logs in without SaslAuthenticate.

    Args:
        offered: The versions of each request, by its number.
        answer: What it says to a token of SASL; None: it hangs up.

    Attributes:
        asked: Number and version of each request, in order; of each connection.
        tokens: The tokens of SASL.
    """

    def __init__(self, offered: Mapping[int, tuple[int, int]], answer: bytes | None = b"") -> None:
        self.offered, self.answer = offered, answer
        self.asked: list[list[tuple[int, int]]] = []
        self.tokens: list[bytes] = []

    def __call__(self, connection: socket.socket) -> None:
        self.asked.append([])
        while frame := received(connection):
            key, version, number = struct.unpack_from(">hhi", frame)
            self.asked[-1].append((key, version))
            if key == API_VERSIONS and version:
                return
            send(connection, struct.pack(">i", number) + self.response(key))
            if (key, version) != (HANDSHAKE, 0):
                continue
            token = received(connection)
            self.tokens.append(token)
            if self.answer is None:
                return
            send(connection, self.answer)

    def response(self, key: int) -> bytes:
        if key == HANDSHAKE:
            made = SaslHandshakeResponse(version=0, error_code=0, mechanisms=["PLAIN"])
            return bytes(made.encode())
        entry = ApiVersionsResponse.ApiVersion
        entries = [
            entry(api_key=key, min_version=lowest, max_version=highest)
            for key, (lowest, highest) in self.offered.items()
        ]
        return bytes(ApiVersionsResponse(version=0, error_code=0, api_keys=entries).encode())


def received(connection: socket.socket) -> bytes:
    head = connection.recv(4, socket.MSG_WAITALL)
    if not head:
        return b""
    (size,) = struct.unpack(">i", head)
    return connection.recv(size, socket.MSG_WAITALL)


def send(connection: socket.socket, body: bytes) -> None:
    connection.sendall(struct.pack(">i", len(body)) + body)


@pytest.fixture(autouse=True)
def asked_by_0(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Ports are used again: what is known of one test's broker is not known of another's."""
    known: set[str] = set()
    monkeypatch.setattr(connection_module, "_asked_by_0", known)
    return known


Start = Callable[[OldBroker], int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a broker, and return its port."""
    with ExitStack() as stack:
        yield lambda broker: stack.enter_context(listening(broker))


def config_of(port: int, **given: str) -> KafkaConfig:
    named: dict[str, Any] = {
        f"kafka.{name.replace('_', '.')}": text for name, text in given.items()
    }
    named |= {"kafka.bootstrap.servers": f"127.0.0.1:{port}", "subscribe": "t"}
    return parse_options(named, streaming=True).options.kafka


def login_of(port: int) -> KafkaConfig:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return config_of(
        port,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_jaas_config=f'{module} required username="me" password="{PASSWORD}";',
    )


def test_a_broker_that_hangs_up_on_api_versions_is_asked_with_version_0(start: Start) -> None:
    """And with nothing else from then on."""
    broker = OldBroker(EVERYTHING)
    port = start(broker)
    latest = api_of(API_VERSIONS).highest
    for _ in range(2):
        Connection("127.0.0.1", port, config_of(port)).close()
    assert broker.asked == [
        [(API_VERSIONS, latest)],
        [(API_VERSIONS, 0)],
        [(API_VERSIONS, 0)],
    ]


def test_one_that_hangs_up_on_everything_is_remembered_for_nothing(
    start: Start, asked_by_0: set[str]
) -> None:
    class Stopping(OldBroker):
        def __call__(self, connection: socket.socket) -> None:
            received(connection)

    port = start(Stopping(EVERYTHING))
    with pytest.raises(ConnectionResetError, match="closed the connection"):
        Connection("127.0.0.1", port, config_of(port))
    assert not asked_by_0


@pytest.mark.parametrize(
    "handshake", [{}, {HANDSHAKE: (0, 0)}, {HANDSHAKE: (0, 1)}], ids=["unknown", "0", "0 to 1"]
)
def test_without_sasl_authenticate_tokens_are_sent_as_they_are(
    start: Start, handshake: dict[int, tuple[int, int]]
) -> None:
    """As Java's client does, whatever the broker says of SaslHandshake."""
    broker = OldBroker({METADATA: (0, 5), **handshake})
    port = start(broker)
    with closing(Connection("127.0.0.1", port, login_of(port))) as connection:
        assert connection.idle
    assert broker.asked[-1] == [(API_VERSIONS, 0), (HANDSHAKE, 0)]
    assert broker.tokens == [b"me\0me\0" + PASSWORD.encode()]


def test_with_handshake_0_alone_no_sasl_authenticate_is_sent(start: Start) -> None:
    broker = OldBroker({**EVERYTHING, HANDSHAKE: (0, 0)})
    port = start(broker)
    Connection("127.0.0.1", port, login_of(port)).close()
    assert broker.asked[-1] == [(API_VERSIONS, 0), (HANDSHAKE, 0)]


def test_a_login_that_is_refused_without_a_word_says_what_may_be_wrong(start: Start) -> None:
    """All that a broker can do then is to hang up: that it stops looks the same."""
    port = start(OldBroker({METADATA: (0, 5)}, answer=None))
    with pytest.raises(ConnectionResetError, match="are the credentials right") as raised:
        Connection("127.0.0.1", port, login_of(port))
    assert not isinstance(raised.value, AuthenticationError)
    assert PASSWORD not in str(raised.value)
