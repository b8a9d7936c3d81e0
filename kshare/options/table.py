"""The options of ``format("kshare")``: every option once.

Parsing, bounds, warnings of misspelt names and ``docs/options.md`` follow from this table. To add
an option, add an entry here and a field to :class:`~kshare.options.model.SourceOptions`, whose
default is the option's, and run ``python docs/options_page.py > docs/options.md``.
"""

from typing import Any, Final, Literal, NamedTuple

from kshare.options.kinds import (
    BAD_RECORDS,
    BOOLEAN,
    COMMITS,
    DURATION_OR_OFF,
    FIELDS,
    FUNCTION,
    ID_PREFIX,
    INT_MAX,
    KEYS,
    RANGE_ASSIGNOR,
    REAL_TIME,
    ROW_COLUMNS,
    SCHEMA,
    SOME_KEYS,
    TOPIC,
    Kind,
    auto_or,
    choice,
    integer,
    parse_delay,
    parse_duration,
)
from kshare.options.typed_rows import FORMATS, FRAMINGS, OTHER_RECORDS, SINK_FRAMINGS

__all__ = ["OPTIONS", "SECTIONS", "Option"]

Query = Literal["batch", "stream", "sink"]

_SOURCE: Final[tuple[Query, ...]] = ("batch", "stream")
_BATCH: Final[tuple[Query, ...]] = ("batch",)
_STREAM: Final[tuple[Query, ...]] = ("stream",)
_SINK: Final[tuple[Query, ...]] = ("sink",)
_ALL: Final[tuple[Query, ...]] = ("batch", "stream", "sink")

_COUNT: Final = integer(1)


class Option(NamedTuple):
    """One option.

    Attributes:
        name: The documented spelling.
        doc: What it does, as Markdown on one line.
        queries: Where it counts. A source's option that does not count in batch queries is ignored
            there, with a warning.
        kind: The values; None: they are parsed together with other options.
        field: The field of ``SourceOptions``, or ``kafka.`` and that of ``KafkaConfig``, that gets
            the value; None: other code puts it where it belongs.
        unset: The value if the option is not given, where it is not the default of ``field``.
        default: The default as the documentation shows it; empty: that of ``field``.
        aliases: Other names of it.
    """

    name: str
    doc: str
    queries: tuple[Query, ...] = _SOURCE
    kind: Kind | None = None
    field: str | None = None
    unset: Any = None
    default: str = ""
    aliases: tuple[str, ...] = ()


def _typed(column: str) -> tuple[Option, ...]:
    """The options of a column that is typed."""
    return (
        Option(
            f"{column}Format",
            f"How {column}s are written: the column `{column}` has then the type of their schema "
            "(`string`: a string), not bytes ([typed-rows.md](typed-rows.md)). In a sink: what the "
            f"column `{column}` is encoded to ([typed-rows-sink.md](typed-rows-sink.md)).",
            queries=_ALL,
            kind=choice(*FORMATS),
            default="bytes",
        ),
        Option(
            f"{column}Schema",
            f"The reader schema of `{column}Format`, which says the column's type; JSON without "
            "one is a `VARIANT`. Of Protobuf, names in front say which messages, several for a "
            "column each (`shop.Placed,shop.Paid latest`). In a sink: what rows are written by; "
            "without it and a registry, "
            "Avro's schema is made of the rows.",
            queries=_ALL,
            kind=SCHEMA,
            default="`latest` with a registry",
        ),
        Option(
            f"{column}Subject",
            f"The registry's subject of `{column}Schema`. Required where more than one topic may "
            "be read, or without `topic` in a sink. Several, separated by commas: a column for "
            "each, by the name of its record "
            "([typed-rows.md](typed-rows.md#several-schemas-in-a-topic)).",
            queries=_ALL,
            default=f"`<topic>-{column}`",
        ),
        Option(
            f"{column}OtherRecords",
            f"What becomes of a record whose name no schema of `{column}Subject` has: it is a bad "
            "record; its column is null, without an error; or it is no row. Not given, and one "
            "schema: names of records are not compared.",
            kind=choice(*OTHER_RECORDS),
            default="`bad` with several schemas",
        ),
        Option(
            f"{column}Framing",
            "What stands in front of each payload, and names its schema. `confluentHeader` is a "
            "sink's: a header names it.",
            queries=_ALL,
            kind=choice(*dict.fromkeys((*FRAMINGS, *SINK_FRAMINGS))),
            default="`confluent` with a registry, else `none`",
        ),
        Option(
            f"{column}Fields",
            "Only these fields are decoded: `user,qty,items.sku`.",
            kind=FIELDS,
            default="all fields",
        ),
    )


SECTIONS: Final[dict[str, tuple[Option, ...]]] = {
    "What is read": (
        Option(
            "subscribe",
            "Topics, separated by commas. One of `subscribe`, `subscribePattern` and `assign` is "
            "required.",
        ),
        Option(
            "subscribePattern",
            "Java regular expression that is found anywhere in a topic's name.",
        ),
        Option(
            "assign",
            'Partitions as JSON: `{"orders": [0, 1]}`, or with key ranges `{"orders": {"0": [[0, '
            '4611686018427387904]], "1": []}}` (half-open; `[]` is the whole partition).',
        ),
        Option(
            "startingOffsets",
            'Where a new query starts: `earliest`, `latest`, or JSON `{"orders": {"0": 23, "1": '
            "-2}}` (-2 earliest, -1 latest). `group`: with what the group `kafka.group.id` has not "
            "processed ([spark-and-groups.md](spark-and-groups.md)). A restart goes on where "
            "the query left off.",
            default="`latest` in streams, `earliest` in batch",
        ),
        Option(
            "startingOffsetsByTimestamp",
            'The same by time: JSON `{"orders": {"0": 1700000000000}}`, milliseconds since 1970. '
            "It outranks `startingOffsets`.",
        ),
        Option(
            "startingTimestamp",
            "The same for all partitions: milliseconds since 1970. It outranks both.",
        ),
        Option(
            "startingOffsetsByTimestampStrategy",
            "What to do for a partition without a record from the timestamp on: fail, or start at "
            "its latest offset.",
            kind=choice("error", "latest", default="error"),
            default="`error`",
        ),
        Option(
            "endingOffsets",
            "Where a batch query ends: `latest`, or JSON as in `startingOffsets`.",
            _BATCH,
            default="`latest`",
        ),
        Option(
            "endingOffsetsByTimestamp",
            "The same by time, as `startingOffsetsByTimestamp`.",
            _BATCH,
        ),
        Option(
            "endingTimestamp",
            "The same for all partitions, as `startingTimestamp`.",
            _BATCH,
        ),
        Option(
            "keys",
            "Read only the records of these keys. Not with `maxRecordsPerTask` or "
            "`targetTaskDuration`; `maxOffsetsPerTrigger` limits a micro-batch.",
            kind=SOME_KEYS,
            field="keys",
            default="all keys",
        ),
        Option(
            "failOnDataLoss",
            "Fail when wanted offsets are gone, or a record is larger than `maxRecordBytes`; "
            "`false`: a warning names them.",
            kind=BOOLEAN,
            field="fail_on_data_loss",
        ),
        Option(
            "maxRecordBytes",
            "Largest record that is read, in bytes, decompressed. A larger one is an error that "
            "names its offset; with `failOnDataLoss=false` it is left out, with a warning. To read "
            "a record takes about three times its size ([tuning.md](tuning.md#memory)).",
            kind=integer(1_024, INT_MAX),
            field="max_record_bytes",
        ),
    ),
    "Columns": (
        Option(
            "columns",
            "Names of columns, separated by commas: the rows have these alone, in this order. What "
            "is left out is neither copied nor built. `headers` needs no `includeHeaders` then. "
            "Of typed rows also why a row is bad, its bytes, and the id of its schema.",
            kind=ROW_COLUMNS,
            field="columns",
            default="all but `headers`",
        ),
        Option(
            "includeHeaders",
            "Add the column `headers`.",
            kind=BOOLEAN,
            field="include_headers",
        ),
    ),
    "Typed rows": (
        *_typed("value"),
        *_typed("key"),
        Option(
            "badRecords",
            "What becomes of a record that cannot be decoded: the query fails and names it; its "
            "column is null (`valueError` says why); or it is written to a topic as a dead "
            "letter, and is no row.",
            kind=BAD_RECORDS,
            default="`fail`",
        ),
    ),
    "How it is split into tasks": (
        Option(
            "minPartitions",
            "Minimum number of tasks. With more tasks than partitions, partitions are split into "
            "key ranges, round robin (5 tasks on 3 partitions: 2, 2, 1). `auto` (streams only): as "
            "many as there are task slots.",
            kind=auto_or(integer(1, INT_MAX), " in streams"),
            field="min_partitions",
        ),
        Option(
            "keyRanges",
            "Split every partition into this many key ranges. With `minPartitions`, into more if "
            "these are fewer tasks than that.",
            kind=integer(1, 1 << 16),
            field="key_ranges",
        ),
        Option(
            "maxTasks",
            "Maximum number of tasks: slices of several ranges or partitions are read by one task. "
            "`auto`: only small slices are put together.",
            kind=auto_or(integer(1, INT_MAX)),
            field="max_tasks",
            default="a task for each range",
        ),
        Option(
            "maxRecordsPerPartition",
            "Split partitions until a task's share of the offsets is no more than this.",
            kind=_COUNT,
            field="max_records_per_partition",
        ),
        Option(
            "splitBy",
            'Split by key hash, or as `format("kafka")` does, without per-key order.',
            kind=choice("key", "offset", default="key"),
            field="split_by",
        ),
        Option(
            "rangeAssignor",
            "How ranges are cut: `round-robin`, `lag-weighted` (more ranges where more is "
            "pending), `adaptive` (splits hot and slow ranges, down to one key, and merges cold "
            "ones), or the dotted path of a callable.",
            kind=RANGE_ASSIGNOR,
            field="range_assignor",
        ),
        Option(
            "taskAssignor",
            "Which ranges go to an executor together: a task assignor of KIP-924, or the dotted "
            "path of a class; `taskAssignor.NAME` are its configs ([assignors.md](assignors.md)).",
            _STREAM,
            default="`HighAvailabilityTaskAssignor`",
            aliases=("task.assignor.class",),
        ),
    ),
    "How much a micro-batch reads": (
        Option(
            "maxOffsetsPerTrigger",
            "Maximum number of offsets in a micro-batch, shared among partitions by backlog. "
            "Counted from each partition's fastest range: what slower ranges and keys just "
            "unparked have left behind comes on top ([limits.md](limits.md#planning)).",
            _STREAM,
            _COUNT,
            "max_offsets_per_trigger",
        ),
        Option(
            "minOffsetsPerTrigger",
            "Wait until this many offsets are there, or `maxTriggerDelay` is over.",
            _STREAM,
            _COUNT,
            "min_offsets_per_trigger",
        ),
        Option(
            "maxTriggerDelay",
            "Maximum time to wait for `minOffsetsPerTrigger`.",
            _STREAM,
            Kind("time such as `30s`", parse_delay),
            "max_trigger_delay_seconds",
            default="`15m`",
        ),
        Option(
            "maxRecordsPerTask",
            "Maximum number of records that a task reads of its range.",
            _STREAM,
            _COUNT,
            "max_records_per_task",
        ),
        Option(
            "targetTaskDuration",
            "Time that each task should take: it reads as many records as its range processes in "
            "this time.",
            _STREAM,
            Kind("time such as `10s`", parse_duration),
            "target_task_seconds",
        ),
        Option(
            "maxOffsetsAhead",
            "Maximum number of offsets that a range may be ahead of the slowest one.",
            _STREAM,
            _COUNT,
            "max_offsets_ahead",
        ),
        Option(
            "maxTimeAhead",
            "Maximum time by which a micro-batch may read ahead of the oldest record that it "
            "leaves pending, by the records' timestamps. Behind a watermark, give its delay "
            "([slow-keys.md](slow-keys.md#event-time)). `off`: no bound, and no warning.",
            _STREAM,
            DURATION_OR_OFF,
            "max_time_ahead_seconds",
            default="no bound, and a warning with `maxRecordsPerTask` or `targetTaskDuration`",
        ),
        Option(
            "realTime",
            "Read for this long in each micro-batch, and hand records over as they come "
            "([real-time.md](real-time.md)).",
            _STREAM,
            REAL_TIME,
            "real_time_seconds",
            default="a micro-batch reads what is there, and ends",
        ),
        Option(
            "realTime.topic",
            "With `realTime`: the log of where ranges ended.",
            _STREAM,
            TOPIC,
            "real_time_topic",
            default="`__kshare_range_ends`",
        ),
        Option(
            "maxRangesInCheckpoint",
            "With this many processed stretches ahead of a partition's slowest range, ranges that "
            "lag go first.",
            _STREAM,
            integer(1, INT_MAX),
            "max_ranges_in_checkpoint",
            aliases=("max.num.ranges.to.commit",),
        ),
        Option(
            "parkedKeys",
            "Keys whose records wait, in addition to those that `kshare park` parks.",
            _STREAM,
            KEYS,
            "parked_keys",
        ),
    ),
    "How it asks Kafka": (
        Option(
            "oauthTokenProvider",
            "Python function that returns tokens for OAUTHBEARER: `package.module:function` "
            "([security.md](security.md)).",
            _ALL,
            FUNCTION,
        ),
        Option(
            "fetchOffset.numRetries",
            "Number of attempts to ask for offsets, `kafka.default.api.timeout.ms` each.",
            kind=integer(1, INT_MAX),
            field="kafka.offset_attempts",
            unset=3,
        ),
        Option(
            "fetchOffset.retryIntervalMs",
            "Pause between two attempts, in milliseconds.",
            kind=integer(0),
            field="kafka.offset_retry_ms",
        ),
        Option(
            "kafkaConsumer.pollTimeoutMs",
            "How long a task goes on without a new record before it fails, in milliseconds.",
            kind=_COUNT,
            field="kafka.poll_timeout_ms",
            default="`kafka.default.api.timeout.ms`",
        ),
        Option(
            "max.bytes.key.range.results",
            "Bytes of fetched chunks that wait on a host for the other ranges of a partition, so "
            "that they fetch it once (Linux only); `0` = off.",
            kind=integer(0),
            field="max_bytes_key_range_results",
            aliases=("maxBytesKeyRangeResults", "max.bytes.key.range.hashing"),
        ),
        Option(
            "commitOffsets",
            "Commit the offset below which all is processed to the group `kafka.group.id` after "
            "each batch. Only a new query with `startingOffsets=group` reads it. `individual`: as "
            "a member of that key-shared group, commit what each key range has processed "
            "([spark-and-groups.md](spark-and-groups.md)).",
            _STREAM,
            COMMITS,
            "commit_offsets",
        ),
        Option(
            "individual.commit.topic",
            "The log of the group's individual commits, for `commitOffsets=individual` and "
            "`startingOffsets=group`.",
            kind=TOPIC,
            field="individual_commit_topic",
            default="`__individual_commit_offsets`",
        ),
        Option("groupIdPrefix", "Accepted, without effect: no consumer group is joined."),
    ),
    "Writing": (
        Option(
            "autoRegister",
            "With a registry: register `valueSchema` and `keySchema` under their subjects, if they "
            "are not there; without one given, that of the rows (Avro).",
            _SINK,
            BOOLEAN,
            default="`false`",
        ),
        Option(
            "topic",
            "Topic of all rows; without it a column `topic` names each row's.",
            _SINK,
        ),
        Option(
            "exactlyOnce",
            "Write each batch of a stream once, in transactions "
            "([exactly-once.md](exactly-once.md)).",
            _SINK,
            BOOLEAN,
            default="`false`",
        ),
        Option(
            "dropRepeatedBatch",
            "With `exactlyOnce`: the number of a batch that was written before, and whose rows of "
            "now may be dropped although they are not as many "
            "([exactly-once.md](exactly-once.md#a-checkpoint-that-was-set-back-or-copied)).",
            _SINK,
            integer(0),
            default="none",
        ),
        Option(
            "ledgerTopic",
            "With `exactlyOnce`: the ledger. Whoever may write to it can make a batch count as "
            "written ([exactly-once.md](exactly-once.md#who-may-write-the-ledger)).",
            _SINK,
            TOPIC,
            default="`__kshare_sink_ledger`",
        ),
        Option(
            "transactionalIdPrefix",
            "With `exactlyOnce`: how the query's transactional ids begin; a dash follows "
            "([exactly-once.md](exactly-once.md#who-may-write-the-ledger)).",
            _SINK,
            ID_PREFIX,
            default="`kshare`",
        ),
    ),
}
"""All options, in the order in which they are documented and parsed."""

OPTIONS: Final = {option.name: option for options in SECTIONS.values() for option in options}
"""All options by name."""
