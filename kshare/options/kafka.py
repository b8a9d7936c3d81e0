"""Properties of Kafka's Java client -> :class:`KafkaConfig`.

Law: a property is honoured, refused, or accepted with a warning; none is dropped in silence, and no
text holds the value of one that Kafka declares as a password. Names are those of Java's consumer.
Cost: text only; stores and token files are read when a connection is made.
"""

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from kshare.options.faults import Faults
from kshare.options.frozen import Properties
from kshare.options.model import KafkaConfig
from kshare.options.security import SecurityParser
from kshare.options.table import (
    KAFKA_BUILT,
    KAFKA_NO_EFFECT,
    KAFKA_NOT_BUILT,
    KAFKA_REFUSED,
    KAFKA_SECRET,
    LIBRDKAFKA_NAMES,
)

__all__ = ["judge_name", "parse_boolean", "parse_integer", "parse_kafka"]

_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
# Name -> (field of KafkaConfig, lowest, highest), as ConsumerConfig of Kafka 4.1 bounds them. Times
# to wait for an answer are at least 1: with 0 none can come.
_INTEGERS: Final[dict[str, tuple[str | None, int, int]]] = {
    "connections.max.idle.ms": ("connections_max_idle_ms", -1, _LONG_MAX),
    "default.api.timeout.ms": ("api_timeout_ms", 1, _INT_MAX),
    "fetch.max.bytes": ("fetch_max_bytes", 0, _INT_MAX),
    "fetch.max.wait.ms": ("fetch_max_wait_ms", 0, _INT_MAX),
    "fetch.min.bytes": ("fetch_min_bytes", 0, _INT_MAX),
    "max.partition.fetch.bytes": ("max_partition_fetch_bytes", 0, _INT_MAX),
    "metadata.max.age.ms": ("metadata_max_age_ms", 0, _LONG_MAX),
    "receive.buffer.bytes": ("receive_buffer_bytes", -1, _INT_MAX),
    "reconnect.backoff.max.ms": ("reconnect_backoff_max_ms", 0, _LONG_MAX),
    "reconnect.backoff.ms": ("reconnect_backoff_ms", 0, _LONG_MAX),
    "request.timeout.ms": ("request_timeout_ms", 1, _INT_MAX),
    "retry.backoff.max.ms": ("retry_backoff_max_ms", 0, _LONG_MAX),
    "retry.backoff.ms": ("retry_backoff_ms", 0, _LONG_MAX),
    "sasl.login.connect.timeout.ms": (None, 1, _INT_MAX),
    "sasl.login.read.timeout.ms": (None, 1, _INT_MAX),
    "sasl.login.retry.backoff.max.ms": (None, 0, _LONG_MAX),
    "sasl.login.retry.backoff.ms": (None, 0, _LONG_MAX),
    "send.buffer.bytes": ("send_buffer_bytes", -1, _INT_MAX),
    "socket.connection.setup.timeout.ms": ("connection_setup_timeout_ms", 1, _LONG_MAX),
}
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_ISOLATION_LEVELS: Final = ("read_uncommitted", "read_committed")
_DNS_LOOKUPS: Final = ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only")
# ClientUtils.parseAndValidateAddresses: a protocol may stand in front.
_SERVER: Final = re.compile(
    r"(?:[A-Za-z_]+://)?(?:\[([0-9A-Fa-f:.%]+)\]|([0-9A-Za-z._-]+)):([0-9]{1,5})", re.ASCII
)


def parse_integer(faults: Faults, option: str, value: str, lowest: int, highest: int) -> int | None:
    """An integer within bounds; None with a fault.

    Args:
        faults: takes the fault.
        option: the name, for the fault.
        value: the text; blanks around it do not matter.
        lowest: the least that is allowed.
        highest: the most that is allowed.
    """
    text = value.strip()
    if re.fullmatch(r"[+-]?[0-9]{1,30}", text, re.ASCII) and lowest <= int(text) <= highest:
        return int(text)
    faults.add(option, value, "is wrong", f"wanted an integer from {lowest} to {highest}")
    return None


def parse_boolean(faults: Faults, option: str, value: str) -> bool | None:
    """``true`` or ``false`` in any case; None with a fault."""
    text = value.strip().lower()
    if text in {"true", "false"}:
        return text == "true"
    faults.add(option, value, "is wrong", "wanted true or false")
    return None


def parse_kafka(properties: Properties, faults: Faults) -> KafkaConfig | None:
    """Check and parse the properties of Kafka's client.

    Args:
        properties: in lower case, without the prefix ``kafka.``.
        faults: takes what is wrong.

    Returns:
        The configuration; None if there is no way to reach a broker. With other faults it holds
        defaults for what is wrong.
    """
    return _KafkaParser(properties, faults).parse()


def judge_name(
    faults: Faults,
    name: str,
    refused: Mapping[str, str],
    no_effect: Collection[str],
    librdkafka: Mapping[str, str],
) -> bool:
    """Say what there is to say of a Java property by its name alone.

    Args:
        faults: takes it.
        name: the property's, without ``kafka.``.
        refused: why, by name.
        no_effect: names that are accepted.
        librdkafka: Java's names, by librdkafka's.

    Returns:
        Whether there was something to say.
    """
    option = f"kafka.{name}"
    if name in refused:
        faults.add(option, None, "is not supported", refused[name])
    elif name in no_effect:
        faults.warn(option, "has no effect in kshare")
    elif name in librdkafka:
        java = librdkafka[name]
        faults.warn(
            option,
            f"is ignored, it is a name of librdkafka; kshare takes Kafka's Java names: {java}",
        )
    else:
        return False
    return True


class _KafkaParser:
    """Parses one set of properties once."""

    def __init__(self, properties: Properties, faults: Faults) -> None:
        self._properties = properties
        self._faults = faults

    def parse(self) -> KafkaConfig | None:
        self._check_names()
        fields = self._integers()
        check_crcs = self._boolean("check.crcs")
        isolation = self._choice("isolation.level", "read_uncommitted", _ISOLATION_LEVELS)
        self._choice("client.dns.lookup", "use_all_dns_ips", _DNS_LOOKUPS)
        protocol: Any = self._choice("security.protocol", "PLAINTEXT", _PROTOCOLS)
        self._boolean("sasl.oauthbearer.header.urlencode")
        mechanism, login = SecurityParser(self._properties, self._faults).parse(protocol)
        servers = self._servers()
        if servers is None:
            return None
        return KafkaConfig(
            bootstrap_servers=servers,
            properties=self._properties,
            security_protocol=protocol,
            sasl_mechanism=mechanism,
            login=login,
            read_committed=isolation == "read_committed",
            check_crcs=check_crcs is not False,
            client_id=self._properties.get("client.id") or "kshare",
            client_rack=self._properties.get("client.rack") or None,
            group_id=self._properties.get("group.id") or None,
            **fields,
        )

    def _fault(self, name: str, wrong: str, right: str = "") -> None:
        value = self._properties.get(name)
        shown = None if value is None or name in KAFKA_SECRET else value
        self._faults.add(f"kafka.{name}", shown, wrong, right)

    def _check_names(self) -> None:
        for name in self._properties:
            if name in KAFKA_NOT_BUILT:
                self._faults.add(f"kafka.{name}", None, f"not built yet: {KAFKA_NOT_BUILT[name]}")
            elif (
                not judge_name(self._faults, name, KAFKA_REFUSED, KAFKA_NO_EFFECT, LIBRDKAFKA_NAMES)
                and name not in KAFKA_BUILT
            ):
                known = (*KAFKA_BUILT, *KAFKA_NO_EFFECT)
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
                self._faults.warn(
                    f"kafka.{name}",
                    f"is ignored, no such property is known; the nearest known one is kafka.{near}",
                )

    def _integers(self) -> dict[str, Any]:
        fields = {}
        for name, (into, lowest, highest) in _INTEGERS.items():
            text = self._properties.get(name)
            if text is None:
                continue
            value = parse_integer(self._faults, f"kafka.{name}", text, lowest, highest)
            if into is not None and value is not None:
                fields[into] = value
        if "reconnect_backoff_ms" in fields and "reconnect.backoff.max.ms" not in self._properties:
            # CommonClientConfigs.postProcessReconnectBackoffConfigs: then pauses do not grow.
            fields["reconnect_backoff_max_ms"] = fields["reconnect_backoff_ms"]
        request = fields.get("request_timeout_ms", 30_000)
        if fields.get("fetch_max_wait_ms", 0) >= request:
            self._fault(
                "fetch.max.wait.ms",
                f"must be less than kafka.request.timeout.ms, which is {request}",
            )
        return fields

    def _boolean(self, name: str) -> bool | None:
        text = self._properties.get(name)
        return None if text is None else parse_boolean(self._faults, f"kafka.{name}", text)

    def _choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        given = self._properties.get(name, default).strip().lower()
        for value in allowed:
            if value.lower() == given:
                return value
        self._fault(name, "is not known", f"allowed: {', '.join(allowed)}")
        return default

    def _servers(self) -> tuple[tuple[str, int], ...] | None:
        value = self._properties.get("bootstrap.servers")
        if value is None:
            self._fault(
                "bootstrap.servers",
                "must be specified",
                "give host:port of one broker or more, separated by commas",
            )
            return None
        servers = []
        for part in filter(None, map(str.strip, value.split(","))):
            found = _SERVER.fullmatch(part)
            if found is None or not 1 <= int(found[3]) <= 65535:
                self._faults.add(
                    "kafka.bootstrap.servers",
                    None if "@" in part else part,
                    "has an entry that is not host:port",
                    "write for example broker-1:9092 or [::1]:9092",
                )
                return None
            servers.append((found[1] or found[2], int(found[3])))
        if not servers:
            self._fault("bootstrap.servers", "names no broker", "give host:port of one or more")
            return None
        return tuple(dict.fromkeys(servers))
