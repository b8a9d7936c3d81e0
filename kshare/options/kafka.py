"""Properties of Kafka's Java client -> :class:`KafkaConfig`.

Guarantee: a property is honoured, refused, or accepted with a warning; none is dropped in silence,
and no text holds the value of one that Kafka declares as a password.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from kshare.options.frozen import Properties
from kshare.options.kafka_table import (
    CONSUMER_NAMES,
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
from kshare.options.names import canonical
from kshare.options.producer_table import (
    COMMON,
    PRODUCER_LIBRDKAFKA_NAMES,
    PRODUCER_NO_EFFECT,
    PRODUCER_PROPERTIES,
    PRODUCER_REFUSED,
)
from kshare.options.raw import RawProperties
from kshare.options.security import SecurityParser
from kshare.options.table import OPTIONS

__all__ = ["CONSUMER", "PRODUCER", "PropertyNames", "check_names", "lacks_prefix", "parse_kafka"]


class PropertyNames(NamedTuple):
    """What there is to say of the names of Java's properties, in a source or in a sink.

    Attributes:
        works: Properties that work.
        refused: Refused properties, and what would be right.
        no_effect: Properties that are accepted without effect.
        librdkafka: Java's names by librdkafka's.
        other: Properties that the other of Kafka's clients has, and what to say of them.
    """

    works: Collection[str]
    refused: Mapping[str, str]
    no_effect: Collection[str]
    librdkafka: Mapping[str, str]
    other: Mapping[str, str]


_CONSUMERS: Final = {*PROPERTIES, *REFUSED, *CONSUMER_REFUSED, *NO_EFFECT, *CONSUMER_NO_EFFECT}

CONSUMER: Final = PropertyNames(
    works=PROPERTIES,
    refused={**REFUSED, **CONSUMER_REFUSED},
    no_effect=(*NO_EFFECT, *CONSUMER_NO_EFFECT),
    librdkafka=LIBRDKAFKA_NAMES,
    other=dict.fromkeys(
        (name for name in (*PRODUCER_PROPERTIES, *PRODUCER_REFUSED) if name not in _CONSUMERS),
        "it is a property of Kafka's producer",
    ),
)
"""Those of a source."""

PRODUCER: Final = PropertyNames(
    works=(*COMMON, *PRODUCER_PROPERTIES),
    refused=PRODUCER_REFUSED,
    no_effect=PRODUCER_NO_EFFECT,
    librdkafka=PRODUCER_LIBRDKAFKA_NAMES,
    other=dict.fromkeys(CONSUMER_NAMES, "it is a property of Kafka's consumer"),
)
"""Those of a sink."""


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
    check_names(raw, CONSUMER)
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


def check_names(raw: RawProperties, names: PropertyNames) -> None:
    """Report what there is to say of Java's properties by their names alone."""
    faults = raw.faults
    for name in raw:
        option = f"kafka.{name}"
        if name in NOT_BUILT:
            faults.add(option, None, f"not built yet: {NOT_BUILT[name]}")
        elif name in names.refused:
            faults.add(option, None, "is not supported", names.refused[name])
        elif name in names.librdkafka and name not in names.no_effect:
            faults.warn(
                option,
                "is ignored, it is a name of librdkafka; kshare takes Kafka's Java names: "
                f"{names.librdkafka[name]}",
            )
        elif name in names.other:
            faults.warn(option, f"is ignored, {names.other[name]}")
        elif name in names.works or name in names.no_effect:
            continue
        elif canonical(name) in OPTIONS:
            faults.warn_ignored(option, f"it is an option of kshare's: write {canonical(name)}")
        else:
            faults.warn_unknown(name, "property", (*names.works, *names.no_effect), "kafka.")
    faults.warn_no_effect([f"kafka.{name}" for name in raw if name in names.no_effect])


def lacks_prefix(given: str, names: PropertyNames) -> str | None:
    """Say what is wrong with an option if it is one of Kafka's properties without ``kafka.``.

    Returns:
        What is wrong, and what would be right; None if Kafka has no such property.
    """
    name = given.lower()
    if name in names.other:
        return names.other[name]
    if name in names.librdkafka:
        return (
            f"it is a name of librdkafka; kshare takes Kafka's Java names: {names.librdkafka[name]}"
        )
    what = "it is a property of Kafka's client"
    if name in names.refused:
        return f"{what}; {names.refused[name]}"
    if name in NOT_BUILT:
        return f"{what} that is not built yet: {NOT_BUILT[name]}"
    if name in names.no_effect:
        return f"{what} that has no effect in kshare: leave it out"
    return f"{what}: write kafka.{name}" if name in names.works else None


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
