"""Why a cluster cannot be reached: listeners that expect something else than the options say."""

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kshare.errors import AuthenticationError, KafkaError
from kshare.kafka import diagnosis
from kshare.kafka.diagnosis import connection_fault, login_fault
from kshare.kafka.protocol.apis import api_of
from kshare.options import KafkaConfig
from kshare.testing import FakeCluster

SECONDS = 6.0


@pytest.fixture(scope="module")
def plain() -> Iterator[tuple[str, int]]:
    """A listener of Kafka's protocol without TLS or login."""
    with FakeCluster() as cluster:
        yield _address(cluster.bootstrap_servers)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """A listener that speaks TLS, with a certificate that nobody knows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(_certificate(tmp_path_factory.mktemp("tls")))
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=shake_hands, args=(connection,), daemon=True).start()

    def shake_hands(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.settimeout(SECONDS)
            with context.wrap_socket(connection, server_side=True) as spoken:
                spoken.recv(1)

    with _served(listener, serve):
        yield listener.getsockname()[:2]


@pytest.fixture
def refusing() -> Iterator[tuple[str, int]]:
    """A listener that speaks TLS, but to no client without a certificate."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with contextlib.suppress(OSError), connection:
                    connection.settimeout(SECONDS)
                    connection.recv(65536)
                    connection.sendall(bytes.fromhex("15 0303 0002 0228"))  # alert 40, fatal

    with _served(listener, serve):
        yield listener.getsockname()[:2]


@contextlib.contextmanager
def _served(listener: socket.socket, serve: Callable[[], None]) -> Iterator[None]:
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def _certificate(folder: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "nobody")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(1))
        .not_valid_after(now + timedelta(1))
        .sign(key, hashes.SHA256())
    )
    file = folder / "server.pem"
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return file


def _address(text: str) -> tuple[str, int]:
    host, port = text.split(":")
    return host, int(port)


def _closed_port() -> tuple[str, int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address: tuple[str, int] = listener.getsockname()[:2]
        return address


def kafka(*servers: tuple[str, int], protocol: Any = "PLAINTEXT") -> KafkaConfig:
    return KafkaConfig(bootstrap_servers=servers, security_protocol=protocol)


def test_nothing_is_wrong(plain: tuple[str, int]) -> None:
    assert connection_fault(kafka(plain), SECONDS) is None
    assert login_fault(kafka(plain)) is None


def test_no_tls_is_expected(plain: tuple[str, int]) -> None:
    fault = connection_fault(kafka(plain, protocol="SSL"), SECONDS)
    assert isinstance(fault, AuthenticationError)
    assert "does not speak TLS" in str(fault) or "expects no TLS" in str(fault)
    assert "kafka.security.protocol" in str(fault)
    assert fault.broker == f"{plain[0]}:{plain[1]}"


def test_tls_is_expected(tls: tuple[str, int]) -> None:
    fault = connection_fault(kafka(tls), SECONDS)
    assert isinstance(fault, AuthenticationError)
    assert str(fault).endswith(
        "expects TLS on this port: set kafka.security.protocol to SSL or SASL_SSL"
    )
    assert login_fault(kafka(tls)) is None


def test_tls_is_expected_also_where_a_handshake_is_refused(refusing: tuple[str, int]) -> None:
    fault = connection_fault(kafka(refusing), SECONDS)
    assert "expects TLS on this port" in str(fault)


def test_a_certificate_that_is_not_accepted(tls: tuple[str, int]) -> None:
    for fault in (
        connection_fault(kafka(tls, protocol="SSL"), SECONDS),
        login_fault(kafka(tls, protocol="SSL")),
    ):
        assert isinstance(fault, AuthenticationError)
        assert "certificate was not accepted" in str(fault)


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_a_broker_that_is_down_is_no_fault(protocol: str) -> None:
    nobody = _closed_port()
    assert connection_fault(kafka(nobody, protocol=protocol), SECONDS) is None
    assert login_fault(kafka(nobody, protocol=protocol)) is None


def test_the_first_server_that_has_a_fault_counts(
    plain: tuple[str, int], tls: tuple[str, int]
) -> None:
    fault = connection_fault(kafka(_closed_port(), plain, tls), SECONDS)
    assert fault is not None
    assert fault.broker == f"{tls[0]}:{tls[1]}"


def test_a_server_that_is_down_is_not_the_last_that_is_asked(tls: tuple[str, int]) -> None:
    fault = login_fault(kafka(_closed_port(), tls, protocol="SSL"))
    assert isinstance(fault, AuthenticationError)


def test_each_server_gets_its_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the three steps a third of it; what one server leaves is for the next ones."""
    now, needed, limits = [0.0], {"a": 1.0, "b": 9.0, "c": 0.0}, []

    def connect(host: str, port: int, options: KafkaConfig) -> Any:
        limits.append((options.connection_setup_timeout_ms, options.request_timeout_ms))
        now[0] += needed[host]
        raise TimeoutError

    monkeypatch.setattr(diagnosis, "_connect", connect)
    monkeypatch.setattr(diagnosis, "time", SimpleNamespace(monotonic=lambda: now[0]))
    servers = kafka(("a", 1), ("b", 1), ("c", 1))
    assert connection_fault(servers, 9.0) is None
    assert limits == [(1000, 1000), (1333, 1333), (1, 1)]
    limits.clear()
    impatient = replace(servers, connection_setup_timeout_ms=20, request_timeout_ms=30)
    assert connection_fault(impatient, 900.0) is None
    assert limits == [(20, 30)] * 3


def test_a_listener_that_never_answers_takes_no_longer_than_it_may() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        silent = listener.getsockname()[:2]
        begun = time.monotonic()
        assert connection_fault(kafka(silent, silent), 0.3) is None
        assert time.monotonic() - begun < 15  # not request.timeout.ms of 30 s


def test_names_without_an_address(monkeypatch: pytest.MonkeyPatch, plain: tuple[str, int]) -> None:
    known = socket.getaddrinfo

    def resolve(host: str, *rest: Any, **named: Any) -> Any:
        if host.endswith(".invalid"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known(host, *rest, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    wrong = [("a.invalid", 1), ("b.invalid", 2)]
    fault = connection_fault(kafka(*wrong), SECONDS)
    assert isinstance(fault, KafkaError)
    assert str(fault).startswith("kafka.bootstrap.servers: no server has an address: a.invalid (")
    assert fault.broker == "a.invalid:1, b.invalid:2"
    assert connection_fault(kafka(wrong[0], plain), SECONDS) is None
    assert connection_fault(kafka(wrong[0], _closed_port()), SECONDS) is None


# -- logins, of listeners that are not there ------------------------------------------------------


class Listener:
    """What a connection meets."""

    def __init__(self, error: Exception | None = None, handshake: int | Exception = 34) -> None:
        self.error, self.handshake, self.closed = error, handshake, 0

    def connect(self, host: str, port: int, options: KafkaConfig) -> "Listener":
        if self.error is not None:
            raise self.error
        return self

    def version(self, request: Any, lowest: int | None = None, highest: int | None = None) -> int:
        return api_of(request.API_KEY).highest if highest is None else highest

    def call(self, request: Any) -> Any:
        if isinstance(self.handshake, Exception):
            raise self.handshake
        return SimpleNamespace(error_code=self.handshake)

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize(
    ("protocol", "right"), [("PLAINTEXT", "SASL_PLAINTEXT"), ("SSL", "SASL_SSL")]
)
@pytest.mark.parametrize("answer", [0, 33])
def test_a_login_is_expected(
    protocol: str, right: str, answer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = Listener(handshake=answer)
    monkeypatch.setattr(diagnosis, "_connect", listener.connect)
    fault = connection_fault(kafka(("h", 1), protocol=protocol), SECONDS)
    assert str(fault) == (
        "broker h:1 expects a SASL login on this port: set kafka.security.protocol to " + right
    )
    assert listener.closed == 1


@pytest.mark.parametrize("answer", [34, ConnectionResetError(), KafkaError("too old")])
def test_no_login_is_expected(answer: int | Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Listener(handshake=answer)
    monkeypatch.setattr(diagnosis, "_connect", listener.connect)
    assert connection_fault(kafka(("h", 1)), SECONDS) is None
    assert listener.closed == 1


def test_a_login_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = AuthenticationError("broker h:1 refused SASL PLAIN: wrong password")
    monkeypatch.setattr(diagnosis, "_connect", Listener(refused).connect)
    options = kafka(("h", 1), protocol="SASL_PLAINTEXT")
    assert login_fault(options) is refused
    assert connection_fault(options, SECONDS) is refused


@pytest.mark.parametrize("error", [KafkaError("too old"), TimeoutError(), ConnectionResetError()])
def test_what_is_no_refused_login(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "_connect", Listener(error).connect)
    assert login_fault(kafka(("127.0.0.1", 1), protocol="SASL_PLAINTEXT")) is None


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_a_listener_that_speaks_neither_is_no_fault(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "_connect", Listener(ConnectionResetError()).connect)
    assert connection_fault(kafka(_closed_port(), protocol=protocol), SECONDS) is None
