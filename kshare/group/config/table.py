"""The configurations of the consumer itself: their names, values and meaning.

``docs/consumer.md`` shows this table. All other names are those of Kafka's client.
"""

from typing import Final, NamedTuple

from kshare.group.config.assignors import RANGE_ASSIGNOR, TASK_ASSIGNOR
from kshare.group.protocol.range_protocol import RANGE
from kshare.group.protocol.subscription import PROTOCOL
from kshare.options.kinds import (
    BOOLEAN,
    INT_MAX,
    TOPIC,
    BadValueError,
    Kind,
    choice,
    host_and_port,
    integer,
)
from kshare.options.table import OPTIONS

__all__ = ["CONFIGS", "Config"]


class Config(NamedTuple):
    """A configuration of the consumer itself.

    Attributes:
        name: Its name.
        kind: Its values.
        field: The field of :class:`.ConsumerConfig` that gets the value.
        doc: What it does, as Markdown on one line.
        aliases: Other names of it.
    """

    name: str
    kind: Kind
    field: str
    doc: str
    aliases: tuple[str, ...] = ()


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


def _parse_transactional_id(text: str) -> str:
    if not text.strip():
        raise BadValueError("is empty", "give each process an id of its own")
    return text.strip()


def _parse_instance(text: str) -> str:
    if not text.strip():
        raise BadValueError("is empty", "give an id, or leave it out")
    return text.strip()


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
_COLUMNS: Final = OPTIONS["columns"].kind
assert _COLUMNS is not None

CONFIGS: Final = {
    entry.name: entry
    for entry in (
        Config(
            "acknowledgement.mode",
            Kind(_MODE.values, lambda text: _MODE.parse(text) == "explicit"),
            "explicit",
            "`implicit`: what `poll` returned is processed when `poll` is called again; "
            "`explicit`: when it is acknowledged.",
            ("share.acknowledgement.mode",),
        ),
        Config(
            "allow.individual.commit",
            BOOLEAN,
            "individual",
            "Share partitions by key range, and commit individual offsets.",
        ),
        Config(
            "application.server",
            Kind("host:port", _parse_address),
            "application_server",
            "Where others reach this process; without it, its host's name is shown.",
        ),
        Config("auto.commit.interval.ms", integer(0, INT_MAX), "auto_commit_interval_ms", "How "
               "often to commit, with `enable.auto.commit`."),
        Config(
            "auto.offset.reset",
            Kind(", ".join(f"`{name}`" for name in _RESETS), _parse_reset),
            "offset_reset",
            "Where to start if the group has no offset. If wanted offsets are gone, it goes on "
            "with what is left, unless this is `error`.",
        ),
        Config(
            "claim.timeout.ms",
            integer(100, INT_MAX),
            "claim_timeout_ms",
            "How long after its last contact with the log a member hands out records, and how long "
            "a new owner of its hashes waits: the same in all processes of a group.",
        ),
        Config("columns", _COLUMNS, "columns", "The columns of `consume_batch`, separated by "
               "commas."),
        Config(
            "consumption.order",
            choice("key", "none", default="key"),
            "order",
            "`key`: the order of each key is kept; `none`: members that share a partition take "
            "chunks of it as they are free.",
        ),
        Config(
            "cooperative.chunk.records",
            integer(1, INT_MAX),
            "chunk_records",
            "With `consumption.order=none`: maximum number of offsets that a member takes at a "
            "time. A chunk that a killed member had not committed comes again.",
        ),
        Config("enable.auto.commit", BOOLEAN, "auto_commit", "Commit from time to time."),
        Config(
            "group.instance.id",
            Kind("text", _parse_instance),
            "instance_id",
            "Id of a static member (`subscribe`): it does not leave when it closes, and its "
            "successor of the same id gets its partitions without a rebalance.",
        ),
        Config(
            "heartbeat.interval.ms",
            integer(1, INT_MAX),
            "heartbeat_interval_ms",
            "How often a member says that it is alive (`subscribe`).",
        ),
        Config(
            "individual.commit.log.segment.bytes",
            integer(14, INT_MAX),
            "log_segment_bytes",
            "Segment size of the log of individual commits, if it has to be created.",
        ),
        Config(
            "individual.commit.topic",
            TOPIC,
            "log_topic",
            "The log of individual commits. Whoever may write to it can mark records as processed. "
            "`subscribePattern` matches no name that begins with `__individual_commit_offsets`.",
        ),
        Config(
            "keys",
            OPTIONS["keys"].kind or TOPIC,
            "keys",
            "Return only the records of these keys. All others count as processed once they are "
            "read, so give all members of the group the same.",
        ),
        Config(
            "max.in.flight.per.key",
            integer(1, INT_MAX),
            "in_flight_per_key",
            "Maximum number of unacknowledged records of one key (explicit mode only).",
        ),
        Config(
            "max.num.ranges.to.commit",
            integer(1, INT_MAX),
            "max_ranges",
            "Commit earlier if this many processed ranges have gathered.",
        ),
        Config(
            "max.poll.interval.ms",
            integer(1, INT_MAX),
            "max_poll_interval_ms",
            "After this time without a poll a member leaves its group (`subscribe`).",
        ),
        Config(
            "minPartitions",
            integer(1, INT_MAX),
            "min_ranges",
            "With `taskAssignor`: minimum number of key ranges that it deals out; without, as many "
            "as there are members. Not with `rangeAssignor=adaptive`.",
        ),
        Config(
            "partition.assignment.strategy",
            Kind(", ".join(f"`{','.join(names)}`" for names in _STRATEGIES), _parse_strategies),
            "protocols",
            "With `range`, plain consumers may be members too: as long as one is, each member has "
            "whole partitions (`subscribe`).",
        ),
        Config(
            "probing.rebalance.interval.ms",
            integer(1, INT_MAX),
            "probing_interval_ms",
            "How often the leader looks at loads again, with `rangeAssignor` or if a task assignor "
            "asks for it (`subscribe`).",
        ),
        Config(
            "purgatory",
            choice("stable", "key", default="stable"),
            "purgatory",
            "With `transactional.id`: `stable`: a transaction commits when all members have "
            "processed what comes before its records; `key`: it waits for nobody.",
        ),
        Config(
            "queued.max.messages.kbytes",
            integer(1, 2_097_151),
            "queued_max_kbytes",
            "Makes fetches smaller than `max.partition.fetch.bytes` (4 MiB): the answers that are "
            "on their way are a quarter of this many KiB at most, but 64 KiB in any case, and a "
            "record batch comes whole. As many bytes again wait to be decoded. From `16384` on, as "
            "by default, it changes nothing.",
        ),
        Config(
            "rangeAssignor",
            RANGE_ASSIGNOR,
            "range_assignor",
            "How partitions are cut that members share (`subscribe`): `round-robin` (evenly), "
            "`adaptive` (by the load that members report), or the dotted path of a callable. The "
            "leader's counts, so give all members the same.",
        ),
        Config(
            "session.timeout.ms",
            integer(1, INT_MAX),
            "session_timeout_ms",
            "A member that is not heard of for so long is dropped, and hands out nothing before "
            "that (`subscribe`).",
        ),
        Config(
            "stateful",
            BOOLEAN,
            "stateful",
            "With `taskAssignor`: tell it that members keep state by key range.",
        ),
        Config(
            "taskAssignor",
            TASK_ASSIGNOR,
            "task_assignor",
            "What assigns partitions and key ranges to members (`subscribe`), as in Kafka Streams: "
            "a built-in one, a class, or the dotted path of one; `taskAssignor.NAME` are its "
            "configs, and `client.tag.NAME` the member's client tags. The leader's counts.",
            ("task.assignor.class",),
        ),
        Config(
            "transaction.timeout.ms",
            integer(1_000, 2_147_483_547),
            "transaction_timeout_ms",
            "With `transactional.id`: after this time, brokers abort a transaction.",
        ),
        Config(
            "transactional.id",
            Kind("a name, another one for each process", _parse_transactional_id),
            "transactional_id",
            "Outputs and what is processed are committed in transactions of this id.",
        ),
    )
}  # fmt: skip
"""The configurations of the consumer itself, by name; all others are those of Kafka's client."""
