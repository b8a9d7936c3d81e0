"""The frozen options that the rest of kshare works with.

Guarantee: values only. They were checked by :func:`kshare.options.parse_options`, they compare by
value, they pickle, and no text form of them holds a secret.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

from kshare.core.hashing import HashRange
from kshare.core.progress import TopicPartition
from kshare.options.frozen import FrozenMapping, Properties, Secret
from kshare.options.jaas import JaasEntry
from kshare.options.pattern import java_pattern
from kshare.options.typed_rows import TypedRows

__all__ = [
    "DEFAULT_COLUMNS",
    "EARLIEST",
    "FROM_GROUP",
    "LATEST",
    "RECORD_BYTES",
    "SOURCE_COLUMNS",
    "Assign",
    "AtTimestamp",
    "Earliest",
    "FromGroup",
    "KafkaConfig",
    "Latest",
    "OffsetSpec",
    "ParsedOptions",
    "PerPartition",
    "SourceOptions",
    "StartSpec",
    "Subscribe",
    "SubscribePattern",
    "TimestampPerPartition",
    "Topics",
]

_SECONDS_MAX: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Read all partitions of these topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """Read all partitions of all topics that are not internal and match ``pattern``."""

    pattern: str

    def matches(self, topic: str) -> bool:
        """True if the Java regular expression is found anywhere in the topic's name."""
        return java_pattern(self.pattern).search(topic) is not None


@dataclass(frozen=True, slots=True)
class Assign:
    """Read these partitions, and of each only these ranges of key hashes; ``()`` is all of it."""

    partitions: FrozenMapping[TopicPartition, tuple[HashRange, ...]]


@dataclass(frozen=True, slots=True)
class Earliest:
    """The first offset that the broker still has."""

    def __str__(self) -> str:
        return "earliest"


@dataclass(frozen=True, slots=True)
class Latest:
    """The offset after the last one that can be read."""

    def __str__(self) -> str:
        return "latest"


@dataclass(frozen=True, slots=True)
class FromGroup:
    """Start with the pending part of group ``kafka.group.id``, gaps included."""

    def __str__(self) -> str:
        return "group"


@dataclass(frozen=True, slots=True)
class PerPartition:
    """An offset for each partition. All partitions that are read must be listed."""

    offsets: FrozenMapping[TopicPartition, "int | Earliest | Latest"]


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """The first record of each partition that is not older, by Kafka's index of timestamps.

    Attributes:
        timestamp_ms: Milliseconds since 1970; -1 is latest and -2 earliest, as in Kafka.
        otherwise: What to use for a partition without such a record: an error, or its latest
            offset.
    """

    timestamp_ms: int
    otherwise: Literal["error", "latest"] = "error"


@dataclass(frozen=True, slots=True)
class TimestampPerPartition:
    """A timestamp for each partition. All partitions that are read must be listed."""

    timestamps: FrozenMapping[TopicPartition, int]
    otherwise: Literal["error", "latest"] = "error"


Topics: TypeAlias = Subscribe | SubscribePattern | Assign
OffsetSpec: TypeAlias = Earliest | Latest | PerPartition | AtTimestamp | TimestampPerPartition
StartSpec: TypeAlias = OffsetSpec | FromGroup
EARLIEST: Final = Earliest()
FROM_GROUP: Final = FromGroup()
LATEST: Final = Latest()
SOURCE_COLUMNS: Final = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "headers",
)
"""The columns of the source, in Spark's order."""
DEFAULT_COLUMNS: Final = tuple(name for name in SOURCE_COLUMNS if name != "headers")
"""Those that rows have if nothing else is asked for."""
RECORD_BYTES: Final = 128 << 20
"""The largest record that is read, if nothing else is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConfig:
    """The connection to Kafka: Java's properties, checked. Times are in milliseconds.

    The last four fields are options of kshare, not Java's properties.

    Attributes:
        bootstrap_servers: Hosts and ports of the brokers to ask first (``bootstrap.servers``).
        properties: All ``kafka.*`` options as given, lower-cased, without the prefix.
        security_protocol: Use of TLS and SASL (``security.protocol``).
        sasl_mechanism: The SASL mechanism (``sasl.mechanism``); None without SASL.
        login: The line of ``sasl.jaas.config``, parsed; None if not given.
        read_committed: Leave out records of open and aborted transactions (``isolation.level``).
        check_crcs: Check the CRC-32C of each batch (``check.crcs``).
        client_id: Name of the client in the brokers' logs (``client.id``).
        client_rack: Rack of the client, to read from a follower there (``client.rack``); None: read
            from leaders.
        request_timeout_ms: Longest wait for the answer to a request (``request.timeout.ms``).
        api_timeout_ms: Longest time for an operation with all of its retries
            (``default.api.timeout.ms``).
        connection_setup_timeout_ms: Longest wait for a connection
            (``socket.connection.setup.timeout.ms``).
        connections_max_idle_ms: Time after which an idle connection is closed
            (``connections.max.idle.ms``).
        metadata_max_age_ms: Time after which leaders are looked up again (``metadata.max.age.ms``).
        retry_backoff_ms: First pause between retries (``retry.backoff.ms``).
        retry_backoff_max_ms: Longest pause between retries (``retry.backoff.max.ms``).
        reconnect_backoff_ms: First pause before connecting again (``reconnect.backoff.ms``).
        reconnect_backoff_max_ms: Longest pause before that (``reconnect.backoff.max.ms``).
        fetch_max_bytes: Maximum size of an answer to a fetch (``fetch.max.bytes``).
        max_partition_fetch_bytes: The same for one partition (``max.partition.fetch.bytes``).
        receive_buffer_bytes: Size of a socket's receive buffer (``receive.buffer.bytes``); -1: the
            system's.
        send_buffer_bytes: Size of a socket's send buffer (``send.buffer.bytes``); -1: the system's.
        fetch_min_bytes: Number of bytes that a broker waits for (``fetch.min.bytes``).
        fetch_max_wait_ms: Longest time that it waits for them (``fetch.max.wait.ms``).
        group_id: Id of the consumer group (``group.id``); None if not given.
        offset_attempts: Number of attempts to ask for offsets, ``default.api.timeout.ms`` each
            (``fetchOffset.numRetries``, by which Spark means attempts).
        offset_retry_ms: The pause between two attempts (``fetchOffset.retryIntervalMs``).
        poll_timeout_ms: Longest time that a task waits for a record
            (``kafkaConsumer.pollTimeoutMs``); None: ``default.api.timeout.ms``.
        oauth_token_provider: ``package.module:function`` of the Python callable that returns tokens
            (``oauthTokenProvider``); None: tokens come from where Java's properties say.
    """

    bootstrap_servers: tuple[tuple[str, int], ...]
    properties: Properties = field(default_factory=Properties)
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: str | None = None
    login: JaasEntry | None = None
    read_committed: bool = False
    check_crcs: bool = True
    client_id: str = "kshare"
    client_rack: str | None = None
    request_timeout_ms: int = 30_000
    api_timeout_ms: int = 60_000
    connection_setup_timeout_ms: int = 10_000
    connections_max_idle_ms: int = 540_000
    metadata_max_age_ms: int = 300_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    fetch_max_bytes: int = 50 << 20
    max_partition_fetch_bytes: int = 4 << 20
    receive_buffer_bytes: int = 4 << 20
    send_buffer_bytes: int = 128 << 10
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    group_id: str | None = None
    offset_attempts: int = 1
    offset_retry_ms: int = 1_000
    poll_timeout_ms: int | None = None
    oauth_token_provider: str | None = None

    @property
    def read_timeout_ms(self) -> int:
        """Time without a new record after which a task fails, in milliseconds."""
        return self.api_timeout_ms if self.poll_timeout_ms is None else self.poll_timeout_ms

    def hasty(self, milliseconds: int) -> "KafkaConfig":
        """A copy whose limits for a connection and for an answer are this or less."""
        return replace(
            self,
            request_timeout_ms=min(self.request_timeout_ms, milliseconds),
            connection_setup_timeout_ms=min(self.connection_setup_timeout_ms, milliseconds),
        )

    def within(self, milliseconds: int) -> "KafkaConfig":
        """A copy for operations that take no longer, with all of their retries.

        One answer takes no longer either: else a broker that is frozen would be waited for alone.
        """
        return replace(self.hasty(milliseconds), api_timeout_ms=milliseconds)

    def named(self, purpose: str) -> "KafkaConfig":
        """A copy with a client id of its own: brokers count quotas by client id."""
        return replace(self, client_id=f"{self.client_id}-{purpose}")

    @property
    def connection_setup_seconds(self) -> float:
        """Longest wait for a connection, in seconds; a day at most."""
        return _seconds(self.connection_setup_timeout_ms)

    @property
    def offset_retry_seconds(self) -> float:
        """The pause between two attempts to ask for offsets, in seconds; a day at most."""
        return _seconds(self.offset_retry_ms)

    @property
    def metadata_max_age_seconds(self) -> float:
        """Time after which leaders and topics are looked up again, in seconds; a day at most."""
        return _seconds(self.metadata_max_age_ms)

    @property
    def uses_tls(self) -> bool:
        """True if connections are encrypted."""
        return self.security_protocol in {"SSL", "SASL_SSL"}

    @property
    def uses_sasl(self) -> bool:
        """True if connections authenticate with SASL."""
        return self.security_protocol in {"SASL_PLAINTEXT", "SASL_SSL"}

    @property
    def sasl_username(self) -> str | None:
        """The user name of PLAIN and SCRAM."""
        return self.login.options.get("username") if self.login else None

    @property
    def sasl_password(self) -> Secret | None:
        """The password of PLAIN and SCRAM."""
        password = self.login.options.get("password") if self.login else None
        return None if password is None else Secret(password)


def _seconds(milliseconds: int) -> float:
    """Properties allow 292 million years, sockets and locks do not wait for so long."""
    return min(milliseconds / 1000, _SECONDS_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of one ``format("kshare")`` source.

    Attributes:
        topics: The topics to read (``subscribe``, ``subscribePattern``, ``assign``).
        kafka: The connection to Kafka.
        starting: The begin of a new query (``starting*``).
        ending: The end of a batch query (``ending*``).
        max_offsets_per_trigger: Maximum number of offsets of a batch (streams only).
        min_offsets_per_trigger: Number of offsets for which a trigger waits (streams only).
        max_trigger_delay_seconds: Longest time that it waits for them (``maxTriggerDelay``).
        fail_on_data_loss: Fail if wanted offsets are gone, or a record is too large; else warn and
            continue.
        max_record_bytes: Maximum size of a record, decompressed (``maxRecordBytes``).
        leaves_out_large: Whether larger ones are left out, with a warning; else they are an error
            (``failOnDataLoss``).
        include_headers: Whether ``headers`` is a column; true also if ``columns`` names it.
        min_partitions: Minimum number of tasks; None if not given, and where it is ``auto``.
        min_partitions_auto: Make as many key ranges as there are task slots (streams only).
        max_tasks: Maximum number of tasks; ``"auto"``: put small slices together; None: one
            task for each slice.
        columns: The columns to build, in this order (``columns``); None: all of them.
        keys: Read only the records of these keys; None: all records.
        max_records_per_partition: Cut partitions until the offsets of a task are at most this many
            (``maxRecordsPerPartition``); None: no limit.
        key_ranges: Number of key ranges of each partition (``keyRanges``), if
            ``minPartitions`` does not need more; None if not given.
        split_by: Cut partitions by key hash, or by offset as Spark's source does (``splitBy``).
        range_assignor: Name or path of the assignor that cuts partitions (``rangeAssignor``).
        max_records_per_task: Maximum number of records of a key range in a batch (streams only).
        target_task_seconds: Wanted duration of a task (``targetTaskDuration``; streams only).
        parked_keys: Keys whose records wait (streams only).
        max_ranges_in_checkpoint: Number of individual commits from which ranges that lag go first.
        max_offsets_ahead: Maximum number of offsets of a range ahead of the slowest one; None: no
            limit.
        max_time_ahead_seconds: Maximum time that a batch reads ahead of what it leaves, in event
            time; infinite for ``off``, None if not given (streams only).
        real_time_seconds: How long a micro-batch reads, which then has no end when it is planned
            (``realTime``); None: it reads up to an end (streams only).
        real_time_topic: The topic of the ends of such batches (``realTime.topic``); None: the
            default.
        commit_offsets: Whether stable offsets are committed to the group, or all that the query
            has processed, as a member of a key-shared group (streams only).
        individual_commit_topic: The log of the group's individual commits; None: the default.
        max_bytes_key_range_results: Room on each host for chunks that tasks fetch for each other
            (``max.bytes.key.range.results``); 0: they do not.
        task_assignor: Name or path of the assignor that groups tasks (``taskAssignor``); None:
            the default.
        task_assignor_configs: Its configs (``taskAssignor.NAME``), by name.
        typed_rows: How keys and values are decoded; None: both stay bytes.
    """

    topics: Topics
    kafka: KafkaConfig
    starting: StartSpec
    ending: OffsetSpec = LATEST
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_seconds: float = 900.0
    fail_on_data_loss: bool = True
    max_record_bytes: int = RECORD_BYTES
    leaves_out_large: bool = False
    include_headers: bool = False
    min_partitions: int | None = None
    min_partitions_auto: bool = False
    max_tasks: int | Literal["auto"] | None = None
    columns: tuple[str, ...] | None = None
    keys: tuple[bytes, ...] | None = None
    max_records_per_partition: int | None = None
    key_ranges: int | None = None
    split_by: Literal["key", "offset"] = "key"
    range_assignor: str = "round-robin"
    max_records_per_task: int | None = None
    target_task_seconds: float | None = None
    parked_keys: tuple[bytes, ...] = ()
    max_ranges_in_checkpoint: int = 10_000
    max_offsets_ahead: int | None = None
    max_time_ahead_seconds: float | None = None
    real_time_seconds: float | None = None
    real_time_topic: str | None = None
    commit_offsets: bool | Literal["individual"] = False
    individual_commit_topic: str | None = None
    max_bytes_key_range_results: int = 200 << 20
    task_assignor: str | None = None
    task_assignor_configs: FrozenMapping[str, str] = field(default_factory=FrozenMapping)
    typed_rows: TypedRows | None = None

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns of each row, in order."""
        if self.columns is not None:
            return self.columns
        return SOURCE_COLUMNS if self.include_headers else DEFAULT_COLUMNS

    @property
    def commits_individually(self) -> bool:
        """True if the query is a member of a key-shared group (streams only)."""
        return self.commit_offsets == "individual"

    @property
    def limits_records(self) -> bool:
        """True if a task of a stream reads no more than a number of records."""
        return self.max_records_per_task is not None or self.target_task_seconds is not None

    @property
    def max_time_ahead_ms(self) -> int | None:
        """``maxTimeAhead`` in milliseconds, at least 1; None for no bound."""
        seconds = self.max_time_ahead_seconds
        return None if seconds is None or math.isinf(seconds) else max(int(seconds * 1000), 1)


@dataclass(frozen=True, slots=True)
class ParsedOptions:
    """Options, and the warnings for the user."""

    options: SourceOptions
    warnings: tuple[str, ...]
