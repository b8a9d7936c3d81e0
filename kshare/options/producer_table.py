"""The properties of Kafka's Java producer (``kafka.*`` of a sink) that its consumer does not have.

Guarantee: data only, as :mod:`kshare.options.kafka_table`.
"""

from typing import Final

from kshare.options.kafka_table import (
    CONSUMER_NAMES,
    LIBRDKAFKA_NAMES,
    NO_EFFECT,
    PROPERTIES,
    REFUSED,
    Property,
)
from kshare.options.kinds import BOOLEAN, INT_MAX, Kind, choice, integer

__all__ = [
    "COMMON",
    "IN_FLIGHT",
    "LEVELS",
    "PRODUCER_LIBRDKAFKA_NAMES",
    "PRODUCER_NO_EFFECT",
    "PRODUCER_PROPERTIES",
    "PRODUCER_REFUSED",
    "TRANSACTION_TIMEOUT_MAX",
    "request_fault",
]

COMMON: Final = frozenset(PROPERTIES) - CONSUMER_NAMES
"""Properties that Java's consumer and producer share."""

_REQUEST_EXCESS_MS: Final = 100
"""By how much more librdkafka lets ``request.timeout.ms`` be than ``transaction.timeout.ms``."""

TRANSACTION_TIMEOUT_MAX: Final = INT_MAX - 100
"""librdkafka's highest ``transaction.timeout.ms``: it adds 100 to it, as an int."""

IN_FLIGHT: Final = "max.in.flight.requests.per.connection"
LEVELS: Final = {"gzip": (0, 9), "lz4": (0, 12), "zstd": (0, 12)}
"""Codecs with levels of compression: the lowest and highest that librdkafka has."""


def _property(
    name: str,
    kind: Kind | None,
    librdkafka: tuple[str, int, int] | None = None,
    default: str = "",
    doc: str = "",
) -> Property:
    return Property(name, kind, librdkafka=librdkafka, client="producer", default=default, doc=doc)


PRODUCER_PROPERTIES: Final = {
    entry.name: entry
    for entry in (
        _property(
            "batch.size",
            integer(0, INT_MAX),
            ("batch.size", 1, INT_MAX),
            "`1000000`",
            "Java's default is `16384`",
        ),
        _property(
            "delivery.timeout.ms",
            integer(1, INT_MAX),
            ("message.timeout.ms", 1, INT_MAX),
            "`120000`",
        ),
        _property(
            "linger.ms",
            integer(0),
            ("linger.ms", 0, 900_000),
            "`20`",
            "Java's default is `5` (`0` before Kafka 4.0)",
        ),
        _property(IN_FLIGHT, integer(1, INT_MAX), (IN_FLIGHT, 1, 1_000_000), "`5`"),
        _property(
            "max.request.size",
            integer(0, INT_MAX),
            ("message.max.bytes", 1000, 1_000_000_000),
            "`1048576` (1 MiB)",
        ),
        _property(
            "request.timeout.ms",
            integer(1, INT_MAX),
            ("request.timeout.ms", 1, 900_000),
            "`30000`",
            "how long brokers wait for replicas",
        ),
        _property("retries", integer(0, INT_MAX), ("retries", 0, INT_MAX), "`2147483647`"),
        _property(
            "transaction.timeout.ms",
            integer(1000, INT_MAX),
            ("transaction.timeout.ms", 1000, TRANSACTION_TIMEOUT_MAX),
            "`900000`",
            "with `exactlyOnce=true` only",
        ),
        _property(
            "buffer.memory",
            integer(0),
            default="`67108864` (64 MiB)",
            doc="and 200,000 rows at most; Java's default is 32 MiB",
        ),
        _property(
            "compression.type", choice("none", "gzip", "snappy", "lz4", "zstd"), default="`none`"
        ),
        _property("compression.gzip.level", integer(-1, 9)),
        _property("compression.lz4.level", integer(1, 17)),
        _property("compression.zstd.level", integer(-131_072, 22)),
        _property("acks", choice("all", "-1", "0", "1", default="all"), default="`all`"),
        _property(
            "enable.idempotence",
            BOOLEAN,
            default="`true`",
            doc="given way by `acks`, `retries` and in-flight requests that forbid it, as in Java",
        ),
        _property(
            "partitioner.class",
            None,
            doc="Java's default partitioner only; a column `partition` chooses otherwise",
        ),
        _property("partitioner.ignore.keys", BOOLEAN, default="`false`"),
    )
}
"""Properties of Java's producer that work, by name, in the order in which they are checked."""

PRODUCER_NO_EFFECT: Final = (
    *NO_EFFECT,
    "max.block.ms",
    "metadata.max.idle.ms",
    "partitioner.adaptive.partitioning.enable",
    "partitioner.availability.timeout.ms",
)
"""Known properties that change neither what is written, nor as whom, nor whom is trusted."""

_SERIALIZED = "are written as they are. Use DataFrame operations to serialize them explicitly"

PRODUCER_REFUSED: Final = {
    **REFUSED,
    "key.serializer": f"keys {_SERIALIZED}",
    "value.serializer": f"values {_SERIALIZED}",
    "transactional.id": "set exactlyOnce=true, which chooses it so that no batch is written twice",
    "transaction.two.phase.commit.enable": "exactlyOnce=true needs no such permission",
}
"""Properties that Spark's sink refuses too, or that ``exactlyOnce`` takes care of, and why."""

PRODUCER_LIBRDKAFKA_NAMES: Final = {
    **LIBRDKAFKA_NAMES,
    "compression.codec": "kafka.compression.type",
    "message.max.bytes": "kafka.max.request.size",
    "message.send.max.retries": "kafka.retries",
    "message.timeout.ms": "kafka.delivery.timeout.ms",
    "partitioner": "kafka.partitioner.class, kafka.partitioner.ignore.keys",
    "queue.buffering.max.kbytes": "kafka.buffer.memory",
    "queue.buffering.max.ms": "kafka.linger.ms",
    "request.required.acks": "kafka.acks",
}
"""Names of librdkafka that people try, and the Java name that they want."""


def request_fault(request_ms: int, transaction_ms: int) -> tuple[str, str] | None:
    """The fault of ``request.timeout.ms`` in transactions, and the hint; None if it is in order.

    Args:
        request_ms: As the user has given it.
        transaction_ms: ``transaction.timeout.ms``.
    """
    if request_ms <= transaction_ms + _REQUEST_EXCESS_MS:
        return None
    return (
        "must not be higher than transaction.timeout.ms",
        f"wanted {transaction_ms} at most; without it, brokers have as long as is right",
    )
