"""What librdkafka is told of stores, logins and tokens; it takes all of it."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from kshare.errors import AuthenticationError
from kshare.options import KafkaConfig
from kshare.options.frozen import Properties
from kshare.security.librdkafka import librdkafka_config, with_anchors
from tests.support.certificates import Pair, jks_key, jks_of, pkcs12_of
from tests.support.options import SECRET
from tests.support.security import (
    Endpoint,
    bearer,
    claims_of,
    config,
    credentials,
    ders,
    login,
)


def accepted(kafka: KafkaConfig) -> dict[str, Any]:
    """The configuration, which librdkafka takes; nothing is contacted."""
    found = librdkafka_config(kafka)
    AdminClient({**found, "bootstrap.servers": "", "log_level": 0})
    return found


def test_a_plain_configuration() -> None:
    kafka = config(server="a:1,[::1]:2", client__id="c", client__rack="r")
    assert accepted(kafka) == {
        "bootstrap.servers": "a:1,[::1]:2",
        "security.protocol": "plaintext",
        "client.id": "c",
        "client.rack": "r",
        "socket.keepalive.enable": True,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
    }


def test_times_and_sizes_are_handed_on_within_bounds() -> None:
    found = accepted(
        config(
            request__timeout__ms="5000",
            retry__backoff__ms="5000",
            reconnect__backoff__ms="20000",
            metadata__max__age__ms="0",
            connections__max__idle__ms="-1",
            send__buffer__bytes="-1",
            receive__buffer__bytes="2147483647",
            socket__connection__setup__timeout__ms="1",
            client__dns__lookup="USE_ALL_DNS_IPS",
        )
    )
    assert found["socket.timeout.ms"] == 5000
    assert (found["retry.backoff.ms"], found["retry.backoff.max.ms"]) == (5000, 5000)
    assert (found["reconnect.backoff.ms"], found["reconnect.backoff.max.ms"]) == (20000, 20000)
    assert found["metadata.max.age.ms"] == 1
    assert found["connections.max.idle.ms"] == 0
    assert found["socket.send.buffer.bytes"] == 0
    assert found["socket.receive.buffer.bytes"] == 100_000_000
    assert found["socket.connection.setup.timeout.ms"] == 1000
    assert found["client.dns.lookup"] == "use_all_dns_ips"


@pytest.mark.parametrize(
    ("kind", "given", "pauses"),
    [
        ("retry", {"backoff.max.ms": "50"}, (None, 100)),  # librdkafka's own first one
        ("retry", {"backoff.ms": "20"}, (20, 1000)),
        ("reconnect", {"backoff.max.ms": "30"}, (50, 50)),
        ("reconnect", {"backoff.ms": "20"}, (20, 20)),
        ("reconnect", {"backoff.ms": "0"}, (0, 0)),
        ("reconnect", {"backoff.ms": "9", "backoff.max.ms": "99"}, (9, 99)),
        ("reconnect", {"backoff.ms": "9000000"}, (3_600_000, 3_600_000)),
    ],
)
def test_the_longest_pause_is_not_below_the_first(
    kind: str, given: dict[str, str], pauses: tuple[int | None, int]
) -> None:
    found = accepted(
        config(**{f"{kind}.{name}".replace(".", "__"): text for name, text in given.items()})
    )
    assert (found.get(f"{kind}.backoff.ms"), found[f"{kind}.backoff.max.ms"]) == pauses


def test_roots_stay_inline_and_what_is_damaged_is_left_to_librdkafka(authority: Pair) -> None:
    damaged = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    for pem in (authority.pem, authority.pem * 2, damaged):
        given = {"ssl.ca.pem": pem, "client.id": "c"}
        with with_anchors(given) as found:
            assert found == given


@pytest.mark.parametrize("kind", ["PKCS12", "JKS"])
def test_stores_are_handed_on_as_pem(
    kind: str, authority: Pair, client: Pair, middle: Pair, tmp_path: Path
) -> None:
    trust, keys = tmp_path / "t.jks", tmp_path / "keys"
    trust.write_bytes(jks_of([authority.der], SECRET))
    if kind == "JKS":
        keys.write_bytes(jks_of([authority.der], SECRET, [jks_key(client, [middle], SECRET)]))
    else:
        keys.write_bytes(pkcs12_of(client, [middle], SECRET))
    kafka = config(
        "SSL",
        ssl__truststore__location=str(trust),
        ssl__truststore__password=SECRET,
        ssl__keystore__location=str(keys),
        ssl__keystore__password=SECRET,
    )
    found = accepted(kafka)
    assert ders(found["ssl.ca.pem"]) == [authority.der]
    assert ders(found["ssl.certificate.pem"]) == [client.der, middle.der]
    assert found["ssl.key.pem"] == client.key_pem()
    assert found["ssl.endpoint.identification.algorithm"] == "https"
    unnamed = replace(
        kafka,
        properties=Properties(
            {**kafka.properties, "ssl.endpoint.identification.algorithm": ""},
        ),
    )
    assert accepted(unnamed)["ssl.endpoint.identification.algorithm"] == "none"


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_logins_are_handed_on(mechanism: str) -> None:
    found = accepted(login(mechanism, "a=b"))
    names = ("sasl.mechanisms", "sasl.username", "sasl.password", "security.protocol")
    assert [found[name] for name in names] == [mechanism, "a=b", SECRET, "sasl_plaintext"]


def test_tokens_are_handed_on_when_they_are_asked_for() -> None:
    line = 'unsecuredLoginStringClaim_sub="me" unsecuredLoginExtension_a="b"'
    found = librdkafka_config(bearer(line))
    token, expires, principal, extensions = found["oauth_cb"]("")
    assert claims_of(token)["exp"] == expires > time.time()
    assert (principal, extensions) == ("me", {"a": "b"})
    assert found["sasl.mechanisms"] == "OAUTHBEARER"


def test_what_is_wrong_with_a_token_is_told_at_once() -> None:
    with (
        Endpoint((401, "")) as endpoint,
        pytest.raises(AuthenticationError, match="HTTP status 401"),
    ):
        librdkafka_config(credentials(endpoint.url))
    with pytest.raises(OSError, match="refused"):
        librdkafka_config(credentials(endpoint.url))
