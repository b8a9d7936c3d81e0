"""Clients of librdkafka that cannot be made: their errors are the project's."""

import ssl
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from kshare.errors import AuthenticationError, KafkaError
from kshare.kafka.client import Client as KafkaClient
from kshare.kafka.cluster import Cluster
from kshare.operating_system import POSIX, OperatingSystem, this_system
from kshare.options import KafkaConfig, parse_options, parse_sink_options
from kshare.options.model import Subscribe
from kshare.query.produce import sender, write_rows
from tests.support.certificates import Pair, make
from tests.support.clock import Clock
from tests.support.options import SECRET
from tests.support.security import OAUTH, config, listening, tls_server
from tests.support.sharing import memory_files

NO_TOKEN = RdKafkaError(58, "OAuth token not set within 10 seconds timeout")
WRONG = RdKafkaError(RdKafkaError._INVALID_ARG, "Configuration property is outside its range")

Make = Callable[..., Any]
Client = Callable[..., object]


def bearer(line: str, **more: str) -> dict[str, str]:
    """Options with OAUTHBEARER; dots of names are written as two underscores."""
    named = {f"kafka.{name.replace('__', '.')}": text for name, text in more.items()}
    return {
        "kafka.bootstrap.servers": "127.0.0.1:9",
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.jaas.config": f"{OAUTH} {line};",
        **named,
    }


def plan(given: dict[str, str], make: Make = AdminClient) -> object:
    kafka = parse_options({**given, "subscribe": "t"}, streaming=True).options.kafka
    return Cluster(kafka, admin=make, clock=Clock()).partitions(Subscribe(("t",)))


def write(given: dict[str, str], make: Make = Producer) -> object:
    options = parse_sink_options({**given, "topic": "t"}, streaming=False).options
    sender._kept().drop()
    return write_rows([pa.record_batch({"value": [b"1"]})], options, producer=make)


@pytest.mark.parametrize("client", [plan, write])
def test_an_expired_token_is_told_at_once(client: Client) -> None:
    line = f'unsecuredLoginStringClaim_sub="{SECRET}" unsecuredLoginNumberClaim_exp="1000"'
    with pytest.raises(AuthenticationError, match=r"token .* is expired since") as caught:
        client(bearer(line))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("client", "fault", "kind", "says"),
    [
        (plan, NO_TOKEN, AuthenticationError, "cannot log in to 127.0.0.1:9: OAuth token not set"),
        (plan, WRONG, KafkaError, "cannot make a client: Configuration property is"),
        (write, NO_TOKEN, AuthenticationError, "cannot log in to make a producer: OAuth token not"),
        (write, WRONG, KafkaError, "cannot make a producer: Configuration property is"),
    ],
)
def test_what_librdkafka_says_becomes_the_projects_error(
    client: Client,
    fault: RdKafkaError,
    kind: type[Exception],
    says: str,
) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise KafkaException(fault)

    with pytest.raises(KafkaError) as caught:
        client({"kafka.bootstrap.servers": "127.0.0.1:9"}, refuse)
    assert type(caught.value) is kind
    assert str(caught.value).startswith(says)
    assert "within 60 s" not in str(caught.value)
    assert isinstance(caught.value.__cause__, KafkaException)


@pytest.mark.parametrize("client", [plan, write])
def test_a_token_endpoint_that_is_away_is_named(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(kafka: KafkaConfig) -> NoReturn:
        raise ConnectionRefusedError("the token endpoint is away")

    monkeypatch.setattr("kshare.security.oauth.oauth_token", away)
    with pytest.raises(KafkaError, match=r"cannot get a token to log in with: .* is away"):
        client(bearer('unsecuredLoginStringClaim_sub="me"'))


@pytest.mark.parametrize("system", [this_system(), POSIX])
@pytest.mark.parametrize(
    ("trusted", "is_believed"),
    [
        ("root", True),
        ("middle", True),
        ("middle stranger", True),
        ("itself", False),  # librdkafka looks for who has signed it
        ("stranger", False),
        ("strange middle", False),
    ],
)
def test_an_authority_of_the_trust_store_ends_a_chain_signed_by_itself_or_not(
    authority: Pair,
    middle: Pair,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trusted: str,
    system: OperatingSystem,
    *,
    is_believed: bool,
) -> None:
    stranger = make("stranger", authority=True)
    server = make("localhost", middle)
    others = {
        "root": [authority],
        "middle": [middle],
        "middle stranger": [middle, stranger],
        "itself": [server],
        "stranger": [stranger],
        "strange middle": [make("middle", authority, authority=True)],
    }
    said = _greeting(
        server,
        (middle,),
        "".join(each.pem for each in others[trusted]),
        tmp_path,
        monkeypatch,
        system,
    )
    assert said == is_believed


def test_a_server_that_has_signed_itself_is_believed_by_its_own_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make("localhost")
    assert _greeting(server, (), server.pem, tmp_path, monkeypatch, this_system())
    expired = make("localhost", days=-1)
    assert not _greeting(expired, (), expired.pem, tmp_path, monkeypatch, this_system())


def _greeting(
    server: Pair,
    through: Sequence[Pair],
    trusted: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    system: OperatingSystem,
) -> bool:
    """True if a client of librdkafka speaks to the server; it leaves no file behind."""
    spoken = threading.Event()

    def hear(secured: ssl.SSLSocket) -> None:
        if secured.recv(1):
            spoken.set()

    monkeypatch.setattr("kshare.security.librdkafka.this_system", lambda: system)
    temporary = tmp_path / "temporary"
    temporary.mkdir(exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    before = memory_files()
    with listening(tls_server(server, tmp_path, then=hear, through=through)) as port:
        kafka = config(
            "SSL",
            f"localhost:{port}",
            ssl__truststore__certificates=trusted,
            ssl__truststore__type="PEM",
        )
        client = KafkaClient(Producer, kafka)
        handle = client.handle
        assert memory_files() == before
        assert not list(temporary.iterdir())
        while not spoken.is_set() and client.last_fault is None:
            handle.poll(0.05)
        client.close()
    return spoken.is_set()
