"""Properties of Kafka's Java client -> :class:`KafkaConfig`.

Guarantee: a property is honoured, refused, or accepted with a warning; none is dropped in silence,
and no text holds the value of one that Kafka declares as a password.
"""

from collections.abc import Collection, Container, Iterable, Mapping
from typing import Any, Final

from kshare.options.frozen import Properties
from kshare.options.kafka_table import (
    CONSUMER_NO_EFFECT,
    CONSUMER_REFUSED,
    LIBRDKAFKA_NAMES,
    NO_EFFECT,
    NOT_BUILT,
    PROPERTIES,
    REFUSED,
)
from kshare.options.kinds import host_and_port
from kshare.options.model import KafkaConfig
from kshare.options.raw import RawProperties
from kshare.options.security import SecurityParser

__all__ = ["check_names", "parse_kafka"]

_NO_EFFECT: Final = (*NO_EFFECT, *CONSUMER_NO_EFFECT)


def parse_kafka(raw: RawProperties, token_provider: str | None) -> KafkaConfig | None:
    """Check and parse the properties of Kafka's client.

    Args:
        raw: The properties as given.
        token_provider: The path of the function that returns OAuth tokens, from the option
            ``oauthTokenProvider``.

    Returns:
        The configuration; None if there is no way to reach a broker. With other faults it holds
        defaults for what is wrong.
    """
    check_names(
        raw,
        PROPERTIES,
        refused={**REFUSED, **CONSUMER_REFUSED},
        no_effect=_NO_EFFECT,
        librdkafka=LIBRDKAFKA_NAMES,
        nearest=(*PROPERTIES, *_NO_EFFECT),
    )
    fields = _fields(raw)
    protocol = fields.get("security_protocol", "PLAINTEXT")
    login = SecurityParser(raw).parse(protocol, token_provider)
    servers = _servers(raw)
    if servers is None:
        return None
    return KafkaConfig(
        bootstrap_servers=servers,
        properties=Properties(raw),
        sasl_mechanism=login.mechanism,
        login=login.jaas,
        oauth_token_provider=login.token_provider,
        **fields,
    )


def check_names(
    raw: RawProperties,
    works: Container[str],
    *,
    refused: Mapping[str, str],
    no_effect: Collection[str],
    librdkafka: Mapping[str, str],
    nearest: Iterable[str],
) -> None:
    """Report what there is to say of Java's properties by their names alone.

    Args:
        raw: The properties as given.
        works: Properties that work.
        refused: Refused properties, and why.
        no_effect: Properties that are accepted without effect.
        librdkafka: Java's names by librdkafka's.
        nearest: The names among which the nearest to one that is not known is looked for.
    """
    faults = raw.faults
    for name in raw:
        option = f"kafka.{name}"
        if name in NOT_BUILT:
            faults.add(option, None, f"not built yet: {NOT_BUILT[name]}")
        elif name in refused:
            faults.add(option, None, "is not supported", refused[name])
        elif name in no_effect:
            faults.warn(option, "has no effect in kshare")
        elif name in librdkafka:
            faults.warn(
                option,
                "is ignored, it is a name of librdkafka; kshare takes Kafka's Java names: "
                f"{librdkafka[name]}",
            )
        elif name not in works:
            faults.warn_unknown(name, "property", nearest, "kafka.")


def _fields(raw: RawProperties) -> dict[str, Any]:
    """The fields of ``KafkaConfig`` that a property fills by itself."""
    fields = {}
    for name in PROPERTIES:
        value = raw.value(name)
        field = PROPERTIES[name].field
        if field is not None and value is not None:
            fields[field] = value
    if "reconnect_backoff_ms" in fields and "reconnect.backoff.max.ms" not in raw:
        # CommonClientConfigs.postProcessReconnectBackoffConfigs: then pauses do not grow.
        fields["reconnect_backoff_max_ms"] = fields["reconnect_backoff_ms"]
    request = fields.get("request_timeout_ms", 30_000)
    if fields.get("fetch_max_wait_ms", 0) >= request:
        raw.fault(
            "fetch.max.wait.ms",
            f"must be less than kafka.request.timeout.ms, which is {request}",
        )
    return fields


def _servers(raw: RawProperties) -> tuple[tuple[str, int], ...] | None:
    text = raw.get("bootstrap.servers")
    if text is None:
        raw.fault(
            "bootstrap.servers",
            "must be specified",
            "give host:port of one broker or more, separated by commas",
        )
        return None
    servers = []
    for part in filter(None, map(str.strip, text.split(","))):
        server = host_and_port(part)
        if server is None:
            raw.faults.add(
                "kafka.bootstrap.servers",
                None if "@" in part else part,
                "has an entry that is not host:port",
                "write for example broker-1:9092 or [::1]:9092",
            )
            return None
        servers.append(server)
    if not servers:
        raw.fault("bootstrap.servers", "names no broker", "give host:port of one or more")
        return None
    return tuple(dict.fromkeys(servers))
