"""TLS, against servers in this process: whom a client believes, and what it shows."""

import socket
import ssl
import tempfile
from pathlib import Path

import pytest

from kshare.errors import AuthenticationError
from kshare.kafka.protocol.connection import Connection
from kshare.operating_system import POSIX
from kshare.options.frozen import Properties
from kshare.security.tls import context_of, ssl_context
from tests.support.certificates import Pair, jks_key, jks_of, make
from tests.support.options import SECRET
from tests.support.security import config, listening, properties, refused, tls_server
from tests.support.sharing import memory_files


def greeted(port: int, host: str, context: ssl.SSLContext) -> bytes:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        return secured.recv(5)


def test_a_trusted_server_is_spoken_to(server_pair: Pair, authority: Pair, tmp_path: Path) -> None:
    with listening(tls_server(server_pair, tmp_path)) as port:
        for trusted in (authority.pem, server_pair.pem):
            context = context_of(properties(truststore__certificates=trusted))
            assert greeted(port, "localhost", context) == b"hello"
            assert greeted(port, "127.0.0.1", context) == b"hello"


def test_a_client_shows_its_certificate(
    server_pair: Pair, authority: Pair, client: Pair, middle: Pair, tmp_path: Path
) -> None:
    serve = tls_server(server_pair, tmp_path, clients=authority)
    trusted = properties(truststore__certificates=authority.pem)
    shown = {
        "ssl.keystore.key": client.key_pem(SECRET),
        "ssl.key.password": SECRET,
        "ssl.keystore.certificate.chain": client.pem + middle.pem,
    }
    path = tmp_path / "keys.jks"
    path.write_bytes(jks_of([], "store", [jks_key(client, [middle], SECRET)]))
    stored = {
        "ssl.keystore.location": str(path),
        "ssl.keystore.password": "store",
        "ssl.key.password": SECRET,
    }
    with listening(serve) as port:
        for given_ in (shown, stored):
            context = context_of(Properties({**trusted, **given_}))
            assert greeted(port, "localhost", context) == b"hello"
        with pytest.raises(ssl.SSLError):
            greeted(port, "localhost", context_of(trusted))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["keys.jks", "server.pem"]


@pytest.mark.parametrize("versions", ["TLSv1.2", "TLSv1.3", "TLSv1.3,TLSv1.2"])
def test_versions_of_tls(versions: str) -> None:
    context = context_of(properties(enabled__protocols=versions))
    names = sorted(version.strip() for version in versions.split(","))
    assert [context.minimum_version.name, context.maximum_version.name] == [
        names[0].replace(".", "_"),
        names[-1].replace(".", "_"),
    ]
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname


def test_a_client_shows_its_certificate_where_no_folder_can_be_written(
    client: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with readOnlyRootFilesystem: the key is in memory, encrypted."""
    monkeypatch.setattr(tempfile, "tempdir", "/proc/none")
    given = properties(
        keystore__key=client.key_pem(),
        keystore__certificate__chain=client.pem,
        keystore__type="PEM",
    )
    before = memory_files()
    context_of(given)
    assert memory_files() == before


def test_without_files_in_memory_a_folder_serves(
    client: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = properties(
        keystore__key=client.key_pem(),
        keystore__certificate__chain=client.pem,
        keystore__type="PEM",
    )
    context_of(given, POSIX)
    monkeypatch.setattr(tempfile, "tempdir", "/proc/none")
    with pytest.raises(FileNotFoundError):
        context_of(given, POSIX)


def test_no_context_without_tls() -> None:
    assert ssl_context(config()) is None
    assert ssl_context(config("SSL")) is not None


def test_certificates_that_openssl_does_not_take_are_refused() -> None:
    damaged = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"
    found = refused(lambda: context_of(properties(truststore__certificates=damaged)))
    assert found == "kafka.ssl.truststore.*: holds a certificate that cannot be read"


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("unknown", "its certificate was not accepted: unable to get local issuer certificate"),
        ("expired", "its certificate was not accepted: certificate has expired"),
        ("host", "its certificate was not accepted: IP address mismatch"),
        ("self", "its certificate was not accepted: self-signed certificate"),
    ],
)
def test_why_a_broker_is_not_believed(
    case: str, says: str, authority: Pair, tmp_path: Path
) -> None:
    pair = {
        "unknown": make("localhost", make("stranger", authority=True)),
        "expired": make("localhost", authority, days=-1),
        "host": make("elsewhere", authority),
        "self": make("localhost"),
    }[case]
    with listening(tls_server(pair, tmp_path)) as port:
        kafka = config(
            "SSL", ssl__truststore__certificates=authority.pem, ssl__truststore__type="PEM"
        )
        with pytest.raises(AuthenticationError) as caught:
            Connection("127.0.0.1", port, kafka)
    assert says in str(caught.value)
    assert caught.value.broker == f"127.0.0.1:{port}"


def test_any_name_is_believed_if_the_user_says_so(authority: Pair, tmp_path: Path) -> None:
    name = "ssl.endpoint.identification.algorithm"
    given_ = Properties({"ssl.truststore.certificates": authority.pem, name: ""})
    with listening(tls_server(make("elsewhere", authority), tmp_path)) as port:
        assert greeted(port, "localhost", context_of(given_)) == b"hello"
    with (
        listening(tls_server(make("elsewhere"), tmp_path)) as port,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        greeted(port, "localhost", context_of(given_))
