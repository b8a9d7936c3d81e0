"""Java's properties -> librdkafka's configuration, for confluent-kafka.

Guarantee: brokers, login, certificates and time-outs are those of kshare's own connections; a
number beyond librdkafka's narrower bounds becomes the bound. Cost: stores are read, and a token is
fetched.
"""

import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from kshare.operating_system import OperatingSystem, this_system
from kshare.options.kafka_table import PROPERTIES
from kshare.options.model import KafkaConfig
from kshare.security.store_files import der_certificates, pem_armour, private_file
from kshare.security.tls import client_keys, identifies_endpoints
from kshare.security.trust_store import trust_store

if TYPE_CHECKING:
    from kshare.security.tokens import Token

__all__ = ["TokenRefresh", "librdkafka_config", "with_anchors"]

_CA_PEM: Final = "ssl.ca.pem"
_RECONNECT_MAX_MS: Final = 3_600_000
"""librdkafka's longest ``reconnect.backoff.*``."""
# What OpenSSL appends to a certificate that is trusted for one use, here servers (X509_CERT_AUX: a
# sequence of the uses, 1.3.6.1.5.5.7.3.1).
_TRUST_SERVERS: Final = bytes.fromhex("300c300a06082b06010505070301")


class TokenRefresh:
    """Fetches librdkafka's next token, and remembers why there is none: librdkafka does not say.

    librdkafka asks again 10 s after a failure.

    Args:
        token: Returns a token.

    Attributes:
        fault: Why the last attempt has failed; None if it has not.
    """

    def __init__(self, token: Callable[[], "Token"]) -> None:
        self._token = token
        self.fault: Exception | None = None

    def __call__(self, _: str) -> tuple[str, float, str, dict[str, str]]:
        """Return the token, when it expires in seconds since 1970, its principal, its extensions.

        Raises:
            Exception: What the source of tokens raises.
        """
        try:
            token = self._token()
        except Exception as error:
            self.fault = error
            raise
        self.fault = None
        return token.value.reveal(), token.expires, token.principal, dict(token.extensions)


def librdkafka_config(kafka: KafkaConfig) -> dict[str, Any]:
    """Return the configuration of any client of confluent-kafka.

    Raises:
        AuthenticationError: The token endpoint refused the client, or the token provider failed.
        OptionsError: A store or a token's file cannot be used.
        OSError: The token endpoint could not be reached; a retry may help.
    """
    given = kafka.properties
    config: dict[str, Any] = {
        "bootstrap.servers": ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            for host, port in kafka.bootstrap_servers
        ),
        "security.protocol": kafka.security_protocol.lower(),
        "client.id": kafka.client_id,
        "socket.keepalive.enable": True,
    }
    if kafka.client_rack is not None:
        config["client.rack"] = kafka.client_rack
    if "client.dns.lookup" in given:
        config["client.dns.lookup"] = given["client.dns.lookup"].strip().lower()
    for java, text in given.items():
        entry = PROPERTIES.get(java)
        if entry is not None and entry.librdkafka is not None:
            name, lowest, highest = entry.librdkafka
            config[name] = min(max(int(text), lowest), highest)
    config |= _pauses(config, kafka)
    if kafka.uses_tls:
        config |= _tls(kafka)
    if kafka.uses_sasl:
        config |= _sasl(kafka)
    return config


@contextmanager
def with_anchors(
    config: Mapping[str, Any], system: OperatingSystem | None = None
) -> Iterator[Mapping[str, Any]]:
    """Yield a client's configuration in which each authority of the trust store ends a chain.

    The client is to be made in the block.

    In Java all that is in a trust store is trusted. librdkafka has no such setting
    (``X509_V_FLAG_PARTIAL_CHAIN``), and follows a chain to a root. But OpenSSL ends it at a
    certificate that says that it is trusted; librdkafka takes that from a file only. One of a
    server itself ends no chain so, unless it has signed itself.

    Args:
        config: Of :func:`librdkafka_config`, perhaps with more.
        system: What the operating system has; by default, that of this process.

    Raises:
        OSError: There are no files in memory here, and no folder can be written.
    """
    ders = der_certificates(str(config.get(_CA_PEM, "")))
    if not ders or _are_roots(ders):
        yield config
        return
    trusted = (pem_armour(der + _TRUST_SERVERS, "TRUSTED CERTIFICATE") for der in ders)
    content = "".join(trusted).encode()
    with private_file("kshare-trusted.pem", content, system or this_system()) as path:
        others = {name: value for name, value in config.items() if name != _CA_PEM}
        yield {**others, "ssl.ca.location": str(path)}


def _are_roots(ders: list[bytes]) -> bool:
    """True if each has signed itself, so that any chain that leads to one ends there."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        for der in ders:
            context.load_verify_locations(cadata=der)
    except ssl.SSLError:  # librdkafka says of what is damaged why it does not take it
        return True
    found = zip(context.get_ca_certs(binary_form=True), context.get_ca_certs(), strict=True)
    roots = {der for der, fields in found if fields["subject"] == fields["issuer"]}
    return roots.issuperset(ders)


def _pauses(config: Mapping[str, Any], kafka: KafkaConfig) -> dict[str, int]:
    """Java lets the first pause be longer than the longest one, librdkafka does not.

    Before connections, librdkafka's own would grow to 10 s: so long after a broker is back.
    """
    first = min(kafka.reconnect_backoff_ms, _RECONNECT_MAX_MS)
    most = min(kafka.reconnect_backoff_max_ms, _RECONNECT_MAX_MS)
    pauses = {"reconnect.backoff.ms": first, "reconnect.backoff.max.ms": max(first, most)}
    if "retry.backoff.ms" in config or "retry.backoff.max.ms" in config:
        first, most = config.get("retry.backoff.ms", 100), config.get("retry.backoff.max.ms", 1000)
        pauses["retry.backoff.max.ms"] = max(first, most)
    return pauses


def _tls(kafka: KafkaConfig) -> dict[str, Any]:
    named = identifies_endpoints(kafka.properties)
    config: dict[str, Any] = {"ssl.endpoint.identification.algorithm": "https" if named else "none"}
    trusted = trust_store(kafka.properties)
    if trusted is not None:
        config[_CA_PEM] = trusted
    keys = client_keys(kafka.properties)
    if keys is not None:
        config |= {"ssl.certificate.pem": keys.certificates, "ssl.key.pem": keys.key_pem()}
    return config


def _sasl(kafka: KafkaConfig) -> dict[str, Any]:
    if kafka.sasl_mechanism != "OAUTHBEARER":
        password = kafka.sasl_password
        return {
            "sasl.mechanisms": kafka.sasl_mechanism,
            "sasl.username": kafka.sasl_username,
            "sasl.password": "" if password is None else password.reveal(),
        }
    # An HTTP client: 20 ms, in each query's planner.
    from kshare.security.oauth import oauth_token  # noqa: PLC0415

    oauth_token(kafka)  # so that faults are raised here, and not in a callback
    return {
        "sasl.mechanisms": "OAUTHBEARER",
        "oauth_cb": TokenRefresh(lambda: oauth_token(kafka)),
    }
