"""The configuration of a group's consumer: the names of librdkafka and of Kafka's Java client.

Guarantees: nothing is contacted and no file is read. Either the configuration comes back, or one
:class:`~kshare.errors.OptionsError` that lists every fault; what has no effect is warned of in the
log ``kshare.group``. No text form of it holds a secret.
"""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from kshare.errors import OptionsError
from kshare.group.config.assignors import (
    PROBING_MS,
    check_assignors,
    is_assignor_text,
)
from kshare.group.config.names import (
    HARMLESS,
    JAVA_NAMES,
    LOGIN_MODULES,
    NO_EFFECT_NAMES,
    PEM_STORES,
    REFUSED_NAMES,
)
from kshare.group.config.table import CONFIGS
from kshare.group.protocol.range_protocol import RANGE
from kshare.group.protocol.report import NO_REPORT, ROUND_ROBIN, MemberReport
from kshare.group.protocol.subscription import PROTOCOL
from kshare.group.protocol.transaction import Purgatory
from kshare.options import KafkaConfig
from kshare.options.faults import Faults
from kshare.options.frozen import FrozenMapping
from kshare.options.kafka import parse_kafka
from kshare.options.kafka_table import (
    CONSUMER_NO_EFFECT,
    LIBRDKAFKA_NAMES,
    NO_EFFECT,
    NOT_BUILT,
    PROPERTIES,
    REFUSED,
)
from kshare.options.raw import RawProperties
from kshare.options.table import NO_EFFECT as PROPOSAL_NO_EFFECT

__all__ = ["LOG_TOPIC", "ConsumerConfig", "consumer_config"]

_log = logging.getLogger("kshare.group")

LOG_TOPIC: Final = "__individual_commit_offsets"
"""The topic of individual commits, unless ``individual.commit.topic`` names another."""

_SESSION_MS: Final = 45_000
_BEAT_MS: Final = 3_000
"""Kafka's defaults; with a shorter session, a heartbeat at each third of it."""
_TRANSACTION_MS: Final = 60_000
_REQUEST_EXCESS_MS: Final = 100
"""By how much more librdkafka lets ``request.timeout.ms`` be than ``transaction.timeout.ms``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """The configuration of one consumer, checked. Times are in milliseconds.

    Attributes:
        kafka: How to reach Kafka.
        group: Id of the group (``group.id``).
        individual: Whether it shares partitions and commits individual offsets
            (``allow.individual.commit``).
        auto_commit: Whether it commits by itself (``enable.auto.commit``).
        auto_commit_interval_ms: How often (``auto.commit.interval.ms``).
        max_ranges: Number of processed ranges after which it commits earlier
            (``max.num.ranges.to.commit``).
        log_topic: The topic of individual commits (``individual.commit.topic``).
        log_segment_bytes: Segment size of that topic, if it has to be created
            (``individual.commit.log.segment.bytes``).
        claim_timeout_ms: How long after its last contact with the log a member hands out records,
            and how long a new owner waits for it (``claim.timeout.ms``).
        explicit: Whether records are acknowledged one by one (``acknowledgement.mode``).
        in_flight_per_key: Maximum number of unacknowledged records of a key
            (``max.in.flight.per.key``); None for no limit.
        keys: Only records of these keys are returned (``keys``); None for all.
        order: ``key``: the order of each key is kept; ``none``: members share partitions by
            chunks of offsets (``consumption.order``).
        chunk_records: Maximum number of offsets of a chunk (``cooperative.chunk.records``).
        columns: The columns of record batches (``columns``); empty for all but ``headers``.
        queued_max_kbytes: Four times the maximum size of the answers to fetches, in KiB, if that is
            less than ``max.partition.fetch.bytes`` (``queued.max.messages.kbytes``).
        offset_reset: Where to start without a committed offset, and whether to go on if wanted
            offsets are gone (``auto.offset.reset``).
        transactional_id: Id of the transactions that hold the outputs and what is processed
            (``transactional.id``); None without transactions.
        transaction_timeout_ms: After this time, brokers abort a transaction
            (``transaction.timeout.ms``).
        purgatory: For what a transaction waits before it commits (``purgatory``).
        client_id: Name of the client in the brokers' logs (``client.id``).
        session_timeout_ms: Time after which the group's coordinator drops a member that it has not
            heard of, and before which the member hands out nothing more (``session.timeout.ms``).
        heartbeat_interval_ms: How often a member says that it is alive
            (``heartbeat.interval.ms``).
        max_poll_interval_ms: Time after which a member that does not poll leaves its group, and
            how long a rebalance waits for members (``max.poll.interval.ms``).
        instance_id: Id of a static member (``group.instance.id``); None for a dynamic one.
        protocols: The assignment protocols that it speaks, the best one first
            (``partition.assignment.strategy``).
        application_server: Where others reach this process, as ``host:port``
            (``application.server``); None for the host's name.
        range_assignor: How partitions are cut that members share, if this one leads the group
            (``rangeAssignor``).
        probing_interval_ms: How often the leader looks at loads again
            (``probing.rebalance.interval.ms``).
        task_assignor: What assigns partitions and ranges, if this one leads the group
            (``taskAssignor``); None for kshare's own plan.
        task_assignor_configs: Its configs (``taskAssignor.NAME``).
        min_ranges: Minimum number of ranges that it deals out (``minPartitions``); None for as many
            as there are members.
        stateful: Whether members keep state by key range (``stateful``).
        client_tags: Names and values of client tags (``client.tag.NAME``), by name.
        on_commit: Called with the error (or None) and the stable offsets after each commit that
            no one waits for (``on_commit``); from ``poll``.
    """

    kafka: KafkaConfig
    group: str
    individual: bool = True
    auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    max_ranges: int = 10_000
    log_topic: str = LOG_TOPIC
    log_segment_bytes: int = 10 << 20
    claim_timeout_ms: int = 3_000
    explicit: bool = False
    in_flight_per_key: int | None = None
    keys: tuple[bytes, ...] | None = None
    order: Literal["key", "none"] = "key"
    chunk_records: int = 1_000
    columns: tuple[str, ...] = ()
    queued_max_kbytes: int = 64 << 10
    offset_reset: Literal["earliest", "latest", "error"] = "latest"
    transactional_id: str | None = None
    transaction_timeout_ms: int = _TRANSACTION_MS
    purgatory: Purgatory = "stable"
    client_id: str = "kshare"
    session_timeout_ms: int = _SESSION_MS
    heartbeat_interval_ms: int = _BEAT_MS
    max_poll_interval_ms: int = 300_000
    instance_id: str | None = None
    protocols: tuple[str, ...] = (PROTOCOL,)
    application_server: str | None = None
    range_assignor: str = ROUND_ROBIN
    probing_interval_ms: int = PROBING_MS
    task_assignor: str | None = None
    task_assignor_configs: FrozenMapping[str, str] = field(default_factory=FrozenMapping)
    min_ranges: int | None = None
    stateful: bool = False
    client_tags: tuple[tuple[str, str], ...] = ()
    on_commit: Callable[[Exception | None, Any], None] | None = None

    @property
    def measures_load(self) -> bool:
        """Whether members are to report their load: an assignor looks at it."""
        is_wanted = self.range_assignor != ROUND_ROBIN or self.task_assignor is not None
        return is_wanted and self.order == "key"

    @property
    def report(self) -> MemberReport:
        """What a member reports always."""
        if self.order != "key":
            return NO_REPORT
        return MemberReport(self.range_assignor, self.task_assignor, self.client_tags)

    @property
    def lease_records(self) -> int | None:
        """Number of offsets to lease at a time; None for key order."""
        return self.chunk_records if self.order == "none" else None


_BY_NAME: Final = {
    name.lower(): entry for entry in CONFIGS.values() for name in (entry.name, *entry.aliases)
}
_TASK_ASSIGNOR: Final = {n for n, entry in _BY_NAME.items() if entry.field == "task_assignor"}
_TOKEN_PROVIDER: Final = "oauthTokenProvider"  # noqa: S105

_NO_EFFECT: Final = {*NO_EFFECT_NAMES, *NO_EFFECT, *(set(CONSUMER_NO_EFFECT) - _BY_NAME.keys())}
"""Names that change neither what is read, nor as whom, nor whom is trusted."""

_BY_SOURCE: Final = (
    "has no effect in a consumer, because it is an option of the Spark source: consumers do not "
    "share what they fetch"
)
_OF_SOURCE: Final = {
    "max.bytes.key.range.results": _BY_SOURCE,
    "max.bytes.key.range.hashing": _BY_SOURCE,
    "parkedkeys": "has no effect in a consumer: park keys with kshare park",
}
"""Names that the Spark source takes, and why consumers do not."""

_KNOWN: Final = {*PROPERTIES, *LIBRDKAFKA_NAMES, *NOT_BUILT, *REFUSED}
_SUGGESTED: Final = (
    *CONFIGS,
    *(alias for entry in CONFIGS.values() for alias in entry.aliases),
    *PROPERTIES,
    *JAVA_NAMES,
    *sorted({*_NO_EFFECT, *REFUSED_NAMES}),
    *("on_commit", "sasl.password", "sasl.username", _TOKEN_PROVIDER),
)

# Faults name Java's properties as Spark's options. A value that is shown is in quotes.
_PREFIXED: Final = re.compile(r"(?<!['\w.-])kafka\.(?=[a-z]+\.[a-z])")


def consumer_config(given: Mapping[str, Any]) -> ConsumerConfig:
    """Check and parse the configuration of a consumer.

    Args:
        given: Values by name: names of librdkafka or of Kafka's Java client, with or without the
            prefix ``kafka.``, and those of :data:`CONFIGS`.

    Raises:
        OptionsError: Something is wrong; all of it is listed.
    """
    faults = Faults()
    return _ConsumerParser(given, faults).parse()


class _ConsumerParser:
    """Parses one configuration once."""

    def __init__(self, given: Mapping[str, Any], faults: Faults) -> None:
        self._faults = faults
        self._fields: dict[str, Any] = {}
        self._assignor_texts: dict[str, str] = {}
        self._assignor_class: type | None = None
        self._on_commit = given.get("on_commit")
        self._token_provider: str | None = None
        # From here on no local variable's text shows a secret, in any traceback.
        self._raw = RawProperties(self._texts(given), faults)

    def parse(self) -> ConsumerConfig:
        if self._on_commit is not None and not callable(self._on_commit):
            self._faults.add("on_commit", None, "must be callable")
        kafka = parse_kafka(self._raw, self._token_provider)
        group = (self._raw.get("group.id") or "").strip()
        if not group:
            self._faults.add("group.id", None, "must be specified", "give the group's name")
        fields = self._fields
        if fields.get("in_flight_per_key") is not None and not fields.get("explicit", False):
            self._faults.add(
                "max.in.flight.per.key", None, "needs acknowledgement.mode=explicit",
                "without it, a record is processed when the next poll begins",
            )  # fmt: skip
        self._check_times(fields)
        self._check_transaction(fields, kafka)
        self._check_order(fields)
        self._check_strategy(fields)
        self._check_idle(fields)
        fields |= check_assignors(fields, self._assignor_texts, self._faults, self._assignor_class)
        for warning in self._faults.warnings:
            _log.warning("%s", _PREFIXED.sub("", warning))
        if self._faults.problems:
            problems = [_PREFIXED.sub("", problem) for problem in self._faults.problems]
            raise OptionsError(problems, of="the consumer's configuration")
        assert kafka is not None
        return ConsumerConfig(
            kafka=replace(kafka, group_id=group),
            group=group,
            client_id=kafka.client_id,
            on_commit=self._on_commit,
            **{name: value for name, value in fields.items() if value is not None},
        )

    def _check_transaction(self, fields: dict[str, Any], kafka: KafkaConfig | None) -> None:
        if fields.get("transactional_id") is None:
            return
        if fields.get("auto_commit"):
            self._faults.add(
                "enable.auto.commit", None, "contradicts transactional.id",
                "what is processed is committed with each transaction",
            )  # fmt: skip
        fields["auto_commit"] = False
        timeout = fields.get("transaction_timeout_ms") or _TRANSACTION_MS
        given = kafka is not None and "request.timeout.ms" in kafka.properties
        if kafka and given and kafka.request_timeout_ms > timeout + _REQUEST_EXCESS_MS:
            self._faults.add(
                "request.timeout.ms", None, "must not be higher than transaction.timeout.ms",
                f"{timeout} at most; without it, brokers have as long as is right",
            )  # fmt: skip

    def _check_order(self, fields: dict[str, Any]) -> None:
        if fields.get("order") != "none":
            return
        for name, own_field, wrong in (
            ("allow.individual.commit", "individual", False),
            ("keys", "keys", None),
            ("max.in.flight.per.key", "in_flight_per_key", None),
            ("transactional.id", "transactional_id", None),
        ):
            value = fields.get(own_field)
            if (value is False) if wrong is False else value is not None:
                self._faults.add(
                    "consumption.order", None, f"none contradicts {name}", "leave out one of them"
                )

    def _check_idle(self, fields: dict[str, Any]) -> None:
        """Warn of what has no effect."""
        idle: list[tuple[str, str, str]] = []
        if fields.get("transactional_id") is None:
            idle += [
                ("purgatory", "purgatory", "transactional.id"),
                ("transaction.timeout.ms", "transaction_timeout_ms", "transactional.id"),
            ]
        if fields.get("order") != "none":
            idle.append(("cooperative.chunk.records", "chunk_records", "consumption.order=none"))
        for name, own_field, needed in idle:
            if fields.get(own_field) is not None:
                self._faults.warn(name, f"has no effect without {needed}")

    def _check_strategy(self, fields: dict[str, Any]) -> None:
        """What plain consumers know nothing of does not go with them."""
        if RANGE not in (fields.get("protocols") or ()):
            return
        for name, is_given in (
            ("consumption.order=none", fields.get("order") == "none"),
            ("transactional.id", fields.get("transactional_id") is not None),
        ):
            if is_given:
                self._faults.add(
                    "partition.assignment.strategy", None, f"{RANGE} contradicts {name}",
                    f"leave out {RANGE}, once all plain consumers are replaced",
                )  # fmt: skip

    def _check_times(self, fields: dict[str, Any]) -> None:
        session = fields.get("session_timeout_ms") or _SESSION_MS
        beat = fields.setdefault("heartbeat_interval_ms", max(min(_BEAT_MS, session // 3), 1))
        if beat is not None and beat >= session:
            self._faults.add(
                "heartbeat.interval.ms", None, "must be lower than session.timeout.ms",
                "a third of it is usual",
            )  # fmt: skip

    def _texts(self, given: Mapping[str, Any]) -> dict[str, str]:
        """Take what is the consumer's own; return Kafka's properties by Java's names."""
        login: dict[str, str] = {}
        kafka: dict[str, str] = {}
        for name, value in given.items():
            if name in {_TOKEN_PROVIDER, f"kafka.{_TOKEN_PROVIDER}"}:
                self._token_provider = value
                continue
            plain = name.lower().removeprefix("kafka.")
            if plain == "on_commit" or self._is_answered(plain, value):
                continue
            if isinstance(value, type) and plain in _TASK_ASSIGNOR:
                self._assignor_class = value
                value = f"{value.__module__}:{value.__qualname__}"  # noqa: PLW2901 - as it is named
            if not isinstance(value, str | int | float):
                wrong = f"must be a string or a number, not {type(value).__name__}"
                self._faults.add(plain, None, wrong)
                continue
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if plain in _BY_NAME:
                entry = _BY_NAME[plain]
                shown = entry.name if plain == entry.name.lower() else plain
                self._fields[entry.field] = self._faults.parse(shown, text, entry.kind)
            elif is_assignor_text(plain):  # in the names of tags, case matters
                self._assignor_texts[name[-len(plain) :]] = text
            elif plain in {"sasl.username", "sasl.password"}:
                login[plain] = text
            else:
                self._put(kafka, plain, text)
        self._put_login(kafka, login)
        return kafka

    def _is_answered(self, name: str, value: Any) -> bool:
        """Report what there is to say of a name alone; return whether there was something."""
        if name in PROPOSAL_NO_EFFECT:
            self._faults.warn(name, PROPOSAL_NO_EFFECT[name])
        elif name in _OF_SOURCE:
            self._faults.warn(name, _OF_SOURCE[name])
        elif name in _NO_EFFECT:
            self._faults.warn(name, "has no effect in kshare")
        elif name == "enable.partition.eof" and str(value).lower() != "false":
            self._faults.add(name, None, "is not supported", "poll returns None at the end")
        elif name in REFUSED_NAMES and str(value).lower() != HARMLESS.get(name):
            self._faults.add(name, None, "is not supported", REFUSED_NAMES[name])
        elif name not in REFUSED_NAMES and name != "enable.partition.eof":
            return False
        return True

    def _put(self, kafka: dict[str, str], name: str, text: str) -> None:
        java = JAVA_NAMES.get(name, name)
        if java not in _KNOWN:
            self._faults.warn_unknown(name, "property", _SUGGESTED)
            return
        if name == "ssl.endpoint.identification.algorithm" and text.lower() == "none":
            text = ""
        if kafka.setdefault(java, text) != text:
            self._faults.add(java, None, f"is given twice, also as {name}, with different values")
        if name in PEM_STORES:
            kafka.setdefault(PEM_STORES[name], "PEM")

    def _put_login(self, kafka: dict[str, str], login: Mapping[str, str]) -> None:
        """Write user name and password of librdkafka as Java's ``sasl.jaas.config``."""
        if not login:
            return
        mechanism = kafka.get("sasl.mechanism", "").upper()
        if "sasl.jaas.config" in kafka:
            self._faults.add("sasl.username", None, "contradicts sasl.jaas.config", "give one")
        elif len(login) < 2:
            self._faults.add("sasl.username, sasl.password", None, "need each other")
        elif mechanism not in LOGIN_MODULES:
            self._faults.add(
                "sasl.username", None, "needs sasl.mechanism", f"one of {', '.join(LOGIN_MODULES)}"
            )
        else:
            user, password = (_quoted(login[f"sasl.{name}"]) for name in ("username", "password"))
            module = LOGIN_MODULES[mechanism]
            kafka["sasl.jaas.config"] = f"{module} required username={user} password={password};"


def _quoted(text: str) -> str:
    """A text as JAAS has it in double quotes."""
    escaped = re.sub(r'[\\"]', r"\\\g<0>", text).replace("\n", r"\n").replace("\r", r"\r")
    return f'"{escaped}"'
