"""The configuration of a consumer: each name, value, default and meaning once, as a field.

``docs/consumer.md`` shows this table. All other names are those of Kafka's client.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, NamedTuple, TypeVar

from kshare.core.progress import TopicPartition
from kshare.group.protocol.commit_log.commit import Purgatory
from kshare.group.protocol.membership.report import NO_REPORT, ROUND_ROBIN, MemberReport
from kshare.group.protocol.membership.subscription import PROTOCOL, RANGE
from kshare.kafka.topics import INDIVIDUAL_COMMITS_TOPIC
from kshare.options import KafkaConfig
from kshare.options.frozen import FrozenMapping
from kshare.options.kinds import (
    BOOLEAN,
    INT_MAX,
    ROW_COLUMNS,
    TEXT,
    TOPIC,
    BadValueError,
    Kind,
    choice,
    host_and_port,
    integer,
)
from kshare.options.model import RECORD_BYTES
from kshare.options.table import OPTIONS
from kshare.options.typed_rows import TypedRows
from kshare.read.reader.tail_reader import NamedReset

__all__ = [
    "CLAIM_TIMEOUT_MS",
    "CONFIGS",
    "HEARTBEAT_MS",
    "LOG_SEGMENT_BYTES",
    "SESSION_MS",
    "TRANSACTION_MS",
    "Config",
    "ConsumerConfig",
    "OffsetReset",
]

CLAIM_TIMEOUT_MS: Final = 3_000
"""``claim.timeout.ms``, unless it is configured."""
LOG_SEGMENT_BYTES: Final = 10 << 20
"""``segment.bytes`` of the log's topic, unless it is configured."""

OffsetReset = NamedReset | Callable[[TopicPartition], int | None]
"""Where a partition without an offset starts: by name, or its offset; None is earliest."""

SESSION_MS: Final = 45_000
HEARTBEAT_MS: Final = 3_000
"""Kafka's defaults; with a shorter session, a heartbeat at each third of it."""
TRANSACTION_MS: Final = 60_000
_PROBING_MS: Final = 60_000
"""Default of ``probing.rebalance.interval.ms``. Kafka Streams has ten minutes, as its follow-up
rebalances wait for state that warms up. Here loads are looked at: hashes that stay are delivered
meanwhile, so a rebalance costs a request of each member, and a hot range is relieved in a minute.
It is also the lowest value that Kafka's own assignors allow."""

_Value = TypeVar("_Value")


class Config(NamedTuple):
    """A configuration of the consumer itself.

    Attributes:
        name: Its name.
        kind: Its values.
        field: The field of :class:`ConsumerConfig` that gets the value.
        doc: What it does, as Markdown on one line.
        aliases: Other names of it.
    """

    name: str
    kind: Kind
    field: str
    doc: str
    aliases: tuple[str, ...] = ()


def config(
    default: _Value, name: str, kind: Kind, doc: str, aliases: tuple[str, ...] = ()
) -> _Value:
    """A field of :class:`ConsumerConfig` that users set."""
    made: _Value = field(default=default, metadata={"config": (name, kind, doc, aliases)})
    return made


_RESETS: Final = {
    "earliest": "earliest",
    "smallest": "earliest",
    "beginning": "earliest",
    "latest": "latest",
    "largest": "latest",
    "end": "latest",
    "error": "error",
    "none": "error",
}


def _parse_address(text: str) -> str:
    if host_and_port(text.strip()) is None:
        raise BadValueError("is not host:port", "write for example pod-3:8080 or [::1]:8080")
    return text.strip()


def _parse_reset(text: str) -> str:
    reset = _RESETS.get(text.strip().lower())
    if reset is None:
        raise BadValueError("is not known", f"allowed: {', '.join(_RESETS)}")
    return reset


def _id_kind(values: str, advice: str) -> Kind:
    def parse(text: str) -> str:
        if not text.strip():
            raise BadValueError("is empty", advice)
        return text.strip()

    return Kind(values, parse)


_STRATEGIES: Final = ((PROTOCOL,), (PROTOCOL, RANGE))


def _parse_strategies(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if names not in _STRATEGIES:
        raise BadValueError(
            "is not supported",
            f"allowed: {PROTOCOL}; or {PROTOCOL},{RANGE} while plain consumers are replaced",
        )
    return names


_MODE: Final = choice("implicit", "explicit", default="implicit")
_EXPLICIT: Final = Kind(_MODE.values, lambda text: _MODE.parse(text) == "explicit")


def _of_source(name: str) -> Kind:
    kind = OPTIONS[name].kind
    assert kind is not None
    return kind


def _parse_range_assignor(text: str) -> str:
    name: str = _of_source("rangeAssignor").parse(text)
    if name == "lag-weighted":
        raise BadValueError(
            "cannot cut what members share: lags change all the time, and each change would move "
            "key ranges",
            "allowed: round-robin (default), adaptive, or the dotted path of a callable",
        )
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """The configuration of one consumer, checked. Times are in milliseconds, sizes in bytes.

    Each field says which configuration fills it, and what that does. The others:

    Attributes:
        kafka: How to reach Kafka.
        group: Id of the group (``group.id``).
        client_id: Name of the client in the brokers' logs (``client.id``).
        task_assignor_configs: Configs of the task assignor (``taskAssignor.NAME``), by name.
        client_tags: Names and values of client tags (``client.tag.NAME``), by name.
        typed_rows: How `consume_batch` decodes keys and values (``value.format``, ...); None: both
            are bytes.
        is_query: Whether it is a query's planner, which has a claim timeout of its own.
        on_commit: Called with the error (or None) and the stable offsets after each commit that
            no one waits for (``on_commit``); from ``poll``.
    """

    kafka: KafkaConfig
    group: str
    individual: bool = config(
        True,
        "allow.individual.commit",
        BOOLEAN,
        "Share partitions by key range, and commit individual offsets.",
    )
    auto_commit: bool = config(True, "enable.auto.commit", BOOLEAN, "Commit from time to time.")
    auto_commit_interval_ms: int = config(
        5_000,
        "auto.commit.interval.ms",
        integer(0, INT_MAX),
        "How often to commit, with `enable.auto.commit`.",
    )
    max_ranges: int = config(
        10_000,
        "max.num.ranges.to.commit",
        integer(1, INT_MAX),
        "Commit earlier if this many processed ranges have gathered since the last commit.",
    )
    log_topic: str = config(
        INDIVIDUAL_COMMITS_TOPIC,
        "individual.commit.topic",
        TOPIC,
        "The log of individual commits. Whoever may write to it can mark records as processed. "
        "`subscribePattern` matches no name that begins with `__individual_commit_offsets`.",
    )
    log_segment_bytes: int = config(
        LOG_SEGMENT_BYTES,
        "individual.commit.log.segment.bytes",
        integer(14, INT_MAX),
        "Segment size of the log of individual commits, if it has to be created.",
    )
    claim_timeout_ms: int = config(
        CLAIM_TIMEOUT_MS,
        "claim.timeout.ms",
        integer(100, INT_MAX),
        "How long after its last contact with the log a member hands out records, and how long a "
        "new owner of its hashes waits: the same in all processes of a group.",
    )
    explicit: bool = config(
        False,
        "acknowledgement.mode",
        _EXPLICIT,
        "`implicit`: what `poll` returned is processed when `poll` is called again; `explicit`: "
        "when it is acknowledged.",
        ("share.acknowledgement.mode",),
    )
    keys: tuple[bytes, ...] | None = config(
        None,
        "keys",
        _of_source("keys"),
        "Return only the records of these keys. All others count as processed once they are "
        "read, so give all members of the group the same.",
    )
    order: Literal["key", "none"] = config(
        "key",
        "consumption.order",
        choice("key", "none", default="key"),
        "`key`: the order of each key is kept; `none`: members that share a partition take "
        "chunks of it as they are free.",
    )
    chunk_records: int = config(
        1_000,
        "cooperative.chunk.records",
        integer(1, INT_MAX),
        "With `consumption.order=none`: maximum number of offsets that a member takes at a time. "
        "A chunk that a killed member had not committed comes again.",
    )
    lease_timeout_ms: int | None = config(
        None,
        "cooperative.lease.timeout.ms",
        integer(1, INT_MAX),
        "With `consumption.order=none`: time after which what a member has taken comes again, if "
        "nothing more of it was committed, although the member lives; what that one processes of "
        "it later still counts. Default: the longer one of `session.timeout.ms` and "
        "`max.poll.interval.ms`.",
    )
    max_record_bytes: int = config(
        RECORD_BYTES,
        "max.record.bytes",
        integer(1_024, INT_MAX),
        "Largest record that is read, decompressed. A larger one is an error that names its "
        "offset: raise this, or seek to the next offset. To read a record takes about three times "
        "its size.",
        ("maxRecordBytes",),
    )
    columns: tuple[str, ...] = config(
        (),
        "columns",
        ROW_COLUMNS,
        "The columns of `consume_batch`, separated by commas. With `value.format` or `key.format` "
        "also why a record is bad, its bytes, and the id of its schema.",
    )
    queued_max_kbytes: int = config(
        64 << 10,
        "queued.max.messages.kbytes",
        integer(1, 2097151),
        "Makes fetches smaller than `max.partition.fetch.bytes` (4 MiB): the answers that are on "
        "their way are a quarter of this many KiB at most, but 64 KiB in any case, and a record "
        "batch comes whole. As many bytes again wait to be decoded. From `16384` on, as by "
        "default, it changes nothing.",
    )
    offset_reset: OffsetReset = config(  # noqa: RUF009 - it makes a field
        "latest",
        "auto.offset.reset",
        Kind(", ".join(f"`{name}`" for name in _RESETS), _parse_reset),
        "Where to start if the group has no offset. If wanted offsets are gone, it goes on with "
        "what is left, unless this is `error`.",
    )
    transactional_id: str | None = config(
        None,
        "transactional.id",
        _id_kind("a name, another one for each process", "give each process an id of its own"),
        "Outputs and what is processed are committed in transactions of this id.",
    )
    transaction_timeout_ms: int = config(
        TRANSACTION_MS,
        "transaction.timeout.ms",
        integer(1000, 2147483547),
        "With `transactional.id`: after this time, brokers abort a transaction.",
    )
    purgatory: Purgatory = config(  # noqa: RUF009 - it makes a field
        "stable",
        "purgatory",
        choice("stable", "key", default="stable"),
        "With `transactional.id`: `stable`: a transaction commits when all members have "
        "processed what comes before its records; `key`: it waits for nobody.",
    )
    client_id: str = "kshare"
    session_timeout_ms: int = config(
        SESSION_MS,
        "session.timeout.ms",
        integer(1, INT_MAX),
        "A member that is not heard of for so long is dropped, and hands out nothing before that "
        "(`subscribe`).",
    )
    heartbeat_interval_ms: int = config(
        HEARTBEAT_MS,
        "heartbeat.interval.ms",
        integer(1, INT_MAX),
        "How often a member says that it is alive (`subscribe`). Without it, a third of "
        "`session.timeout.ms`, if that is below 9 s.",
    )
    max_poll_interval_ms: int = config(
        300_000,
        "max.poll.interval.ms",
        integer(1, INT_MAX),
        "After this time without a poll a member leaves its group (`subscribe`).",
    )
    instance_id: str | None = config(
        None,
        "group.instance.id",
        _id_kind("text", "give an id, or leave it out"),
        "Id of a static member (`subscribe`): it does not leave when it closes, and its "
        "successor of the same id gets its partitions without a rebalance.",
    )
    protocols: tuple[str, ...] = config(
        (PROTOCOL,),
        "partition.assignment.strategy",
        Kind(", ".join(f"`{','.join(names)}`" for names in _STRATEGIES), _parse_strategies),
        "With `range`, plain consumers may be members too: as long as one is, each member has "
        "whole partitions (`subscribe`).",
    )
    application_server: str | None = config(
        None,
        "application.server",
        Kind("host:port", _parse_address),
        "Where others reach this process; without it, its host's name is shown.",
    )
    instance_host: str | None = config(
        None,
        "group.instance.host",
        TEXT,
        "Members that name the same one are an instance: parts of a partition meet there "
        "(`subscribe`), and a task assignor sees one process. Default: the host of "
        "`application.server`, or the host's name.",
    )
    range_assignor: str = config(
        ROUND_ROBIN,
        "rangeAssignor",
        Kind(_of_source("rangeAssignor").values, _parse_range_assignor),
        "How partitions are cut that members share (`subscribe`): `round-robin` (evenly), "
        "`adaptive` (by the load that members report; also hot ones among enough), or the dotted "
        "path of a callable. The leader's counts, so give all members the same.",
    )
    probing_interval_ms: int = config(
        _PROBING_MS,
        "probing.rebalance.interval.ms",
        integer(1, INT_MAX),
        "How often the leader looks at loads again, with `rangeAssignor` or if a task assignor "
        "asks for it (`subscribe`).",
    )
    task_assignor: str | None = config(
        None,
        "taskAssignor",
        Kind("name or dotted path", str.strip),
        "What assigns partitions and key ranges to members (`subscribe`), as in Kafka Streams: a "
        "built-in one, a class, or the dotted path of one; `taskAssignor.NAME` are its configs, "
        "and `client.tag.NAME` the member's client tags. The leader's counts.",
        ("task.assignor.class",),
    )
    task_assignor_configs: FrozenMapping[str, str] = field(default_factory=FrozenMapping)
    min_ranges: int | None = config(
        None,
        "minPartitions",
        integer(1, INT_MAX),
        "With `taskAssignor`: minimum number of key ranges that it deals out; without, as many "
        "as there are members. Not with `rangeAssignor=adaptive`.",
    )
    stateful: bool = config(
        False,
        "stateful",
        BOOLEAN,
        "With `taskAssignor`: tell it that members keep state by key range.",
    )
    client_tags: tuple[tuple[str, str], ...] = ()
    typed_rows: TypedRows | None = None
    is_query: bool = False
    on_commit: Callable[[Exception | None, Any], None] | None = None

    @property
    def measures_load(self) -> bool:
        """True if members are to report their load: an assignor looks at it."""
        is_wanted = self.range_assignor != ROUND_ROBIN or self.task_assignor is not None
        return is_wanted and self.order == "key"

    @property
    def report(self) -> MemberReport:
        """The constant part of a member's report."""
        if self.order != "key":
            return NO_REPORT
        return MemberReport(self.range_assignor, self.task_assignor, self.client_tags)

    @property
    def keeps_log(self) -> bool:
        """True if the group needs a log of individual commits.

        Without individual commits it needs none: its coordinator says who has which partition, and
        one offset of each says what is processed. But a transaction says it in the log.
        """
        return self.individual or self.transactional_id is not None

    @property
    def lease_records(self) -> int | None:
        """Number of offsets to lease at a time; None for key order."""
        return self.chunk_records if self.order == "none" else None

    @property
    def lease_seconds(self) -> float:
        """Time after which a lease is given up of which nothing more was committed."""
        longest = max(self.session_timeout_ms, self.max_poll_interval_ms)
        return (self.lease_timeout_ms or longest) / 1000


CONFIGS: Final = {
    name: Config(name, kind, each.name, doc, aliases)
    for each in sorted(
        (each for each in fields(ConsumerConfig) if each.metadata),
        key=lambda each: each.metadata["config"][0].lower(),
    )
    for name, kind, doc, aliases in [each.metadata["config"]]
}
"""The configurations of the consumer itself, by name; all others are those of Kafka's client."""
