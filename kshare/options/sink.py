"""Options of the sink: ``df.write.format("kshare")``, ``writeStream.format("kshare")``.

Law: as for the source, all faults together and nothing contacted. A property of Java's producer is
honoured, refused, or accepted with a warning. Columns are those of ``KafkaWriter.validateQuery`` of
Spark 4.2. Records are idempotent unless the user's own settings forbid it, and a key goes to the
partition that Java's producer would choose. Cost: text only.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kshare.options.assignors import is_assignor_config
from kshare.options.faults import Faults
from kshare.options.frozen import FrozenMapping, Properties
from kshare.options.kafka import judge_name, parse_boolean, parse_integer, parse_kafka
from kshare.options.model import KafkaConfig
from kshare.options.parse import Given, topic_fault
from kshare.options.table import (
    KAFKA_BUILT,
    KAFKA_NO_EFFECT,
    KAFKA_NOT_BUILT,
    LIBRDKAFKA_NAMES,
    NOT_BUILT,
    SINK_ONLY,
    SOURCE_BUILT,
)

__all__ = [
    "SINK_COLUMNS",
    "TRANSACTION_TIMEOUT_MS",
    "ParsedSinkOptions",
    "SinkOptions",
    "parse_sink_options",
]

SINK_COLUMNS: Final = ("key", "value", "topic", "partition", "headers")
"""The columns that are written; others are left out, as Spark's sink does."""

_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
TRANSACTION_TIMEOUT_MS: Final = 900_000
"""The longest that a broker allows by default (``transaction.max.timeout.ms``)."""

_DELIVERY_MS: Final = 120_000  # Java's delivery.timeout.ms
_LINGER_MS: Final = 20
_SOCKET_MS: Final = 60_000  # librdkafka's socket.timeout.ms
_HEADERS: Final = "array<struct<key:string,value:binary>>"

# Spark hands over what its own part of a query takes, and a source's options are often shared.
_OF_SPARK: Final = frozenset(
    {
        "asyncprogresstrackingcheckpointintervalms",
        "asyncprogresstrackingenabled",
        "checkpointlocation",
        "includeheaders",
        "outputmode",
        "path",
        "queryname",
    }
)
_CONSUMER_ONLY: Final = frozenset(
    {
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "auto.offset.reset",
        "check.crcs",
        "client.rack",
        "enable.auto.commit",
        "exclude.internal.topics",
        "fetch.max.bytes",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "internal.leave.group.on.close",
        "internal.throw.on.fetch.stable.offset.unsupported",
        "isolation.level",
        "key.deserializer",
        "max.partition.fetch.bytes",
        "max.poll.interval.ms",
        "max.poll.records",
        "partition.assignment.strategy",
        "session.timeout.ms",
        "share.acknowledgement.mode",
        "value.deserializer",
    }
)
_COMMON: Final = frozenset(KAFKA_BUILT) - _CONSUMER_ONLY
_SERIALIZED = "are written as they are. Use DataFrame operations to serialize them explicitly"
_REFUSED: Final = {
    "interceptor.classes": "interceptors can change records, which is not safe",
    "key.serializer": f"keys {_SERIALIZED}",
    "value.serializer": f"values {_SERIALIZED}",
    "transactional.id": "set exactlyOnce=true, which chooses it so that no batch is written twice",
    "transaction.two.phase.commit.enable": "exactlyOnce=true needs no such permission",
}
_NO_EFFECT: Final = frozenset(
    {
        *(set(KAFKA_NO_EFFECT) - _CONSUMER_ONLY),
        "max.block.ms",
        "metadata.max.idle.ms",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
    }
)
_LIBRDKAFKA: Final = {
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
_IN_FLIGHT: Final = "max.in.flight.requests.per.connection"
# Java's name -> (lowest and highest of Java's; librdkafka's name, lowest and highest).
_INTEGERS: Final[dict[str, tuple[int, int, str, int, int]]] = {
    "batch.size": (0, _INT_MAX, "batch.size", 1, _INT_MAX),
    "delivery.timeout.ms": (1, _INT_MAX, "message.timeout.ms", 1, _INT_MAX),
    "linger.ms": (0, _LONG_MAX, "linger.ms", 0, 900_000),
    _IN_FLIGHT: (1, _INT_MAX, _IN_FLIGHT, 1, 1_000_000),
    "max.request.size": (0, _INT_MAX, "message.max.bytes", 1000, 1_000_000_000),
    "request.timeout.ms": (1, _INT_MAX, "request.timeout.ms", 1, 900_000),
    "retries": (0, _INT_MAX, "retries", 0, _INT_MAX),
    "transaction.timeout.ms": (1000, _INT_MAX, "transaction.timeout.ms", 1000, _INT_MAX),
}
_LEVELS: Final = {"gzip": (-1, 9), "lz4": (1, 17), "zstd": (-131_072, 22)}
_LEVELS_BUILT: Final = {"gzip": (0, 9), "lz4": (0, 12), "zstd": (0, 12)}
_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_BUILT: Final = frozenset(
    {
        *_COMMON,
        *_INTEGERS,
        *(f"compression.{codec}.level" for codec in _LEVELS),
        "acks",
        "buffer.memory",
        "compression.type",
        "enable.idempotence",
        "partitioner.class",
        "partitioner.ignore.keys",
    }
)
_DEFAULT_PARTITIONER: Final = "org.apache.kafka.clients.producer.internals.DefaultPartitioner"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of one ``format("kshare")`` sink.

    Attributes:
        topic: where all rows go; None: where their column ``topic`` says.
        kafka: how to reach Kafka.
        exactly_once: each batch of a stream is written once, in transactions.
        producer: librdkafka's settings of the producer, beside those of the connection.
    """

    topic: str | None
    kafka: KafkaConfig
    exactly_once: bool = False
    producer: FrozenMapping[str, str | int | bool]


@dataclass(frozen=True, slots=True)
class ParsedSinkOptions:
    """Options, and what the user should be told about them."""

    options: SinkOptions
    warnings: tuple[str, ...]


def parse_sink_options(
    options: Mapping[str, str], columns: Sequence[tuple[str, str]] = (), *, streaming: bool
) -> ParsedSinkOptions:
    """Check and parse all options of a sink.

    Args:
        options: as Spark hands them over; names in any case.
        columns: name and type (as Spark's ``simpleString`` has it) of each column of what is
            written; without any, columns are not checked.
        streaming: whether a stream's batches are written.

    Returns:
        The options and the warnings for the user.

    Raises:
        OptionsError: something is wrong; all of it is listed.
    """
    faults = Faults()
    # From here on no local variable's text shows a secret, in whatever traceback.
    options = Given(options, faults)
    parsed = _SinkParser(options, faults, streaming=streaming).parse(columns)
    faults.raise_if_any()
    if parsed is None:  # pragma: no cover - only with faults
        raise AssertionError("options without faults must parse")
    return ParsedSinkOptions(parsed, tuple(faults.warnings))


class _SinkParser:
    """Parses one set of options once."""

    def __init__(self, given: Given, faults: Faults, *, streaming: bool) -> None:
        self._given = given
        self._kafka = given.kafka
        self._faults = faults
        self._streaming = streaming

    def parse(self, columns: Sequence[tuple[str, str]]) -> SinkOptions | None:
        self._check_names()
        self._check_properties()
        common = Properties({name: self._kafka[name] for name in self._kafka if name in _COMMON})
        kafka = parse_kafka(common, self._faults)
        topic = self._topic()
        if columns:
            self._check_columns(dict(reversed(columns)))
        exactly_once = self._exactly_once()
        producer = self._producer(exactly_once=exactly_once)
        if kafka is None:
            return None
        return SinkOptions(topic=topic, kafka=kafka, exactly_once=exactly_once, producer=producer)

    # -- the sink's own ---------------------------------------------------------------------

    def _check_names(self) -> None:
        for name in self._given:
            if name in SINK_ONLY or name.lower() in _OF_SPARK:
                continue
            if name in SOURCE_BUILT or name in NOT_BUILT or is_assignor_config(name):
                self._faults.warn(name, "is ignored, it is an option of the source")
            elif name.lower().startswith("spark."):
                self._faults.warn(
                    name, "is ignored, it is no option but a configuration of Spark's"
                )
            else:
                known = {n.lower(): n for n in (*SINK_ONLY, "kafka.bootstrap.servers")}
                near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.0)[0]
                self._faults.warn(
                    name,
                    f"is ignored, no such option is known; the nearest known one is {known[near]}",
                )

    def _topic(self) -> str | None:
        topic = self._given.get("topic")
        if topic is None:
            return None
        wrong = topic_fault(topic.strip())
        if wrong is not None:
            self._faults.add("topic", None, *wrong)
        return topic.strip()

    def _check_columns(self, types: Mapping[str, str]) -> None:
        """KafkaWriter.validateQuery: names in their exact case, types without nullability."""
        text = ("string", "binary")
        wanted = {"key": text, "value": text, "partition": ("int",), "headers": (_HEADERS,)}
        if "topic" not in self._given:
            wanted["topic"] = ("string",)
            if "topic" not in types:
                self._faults.add(
                    "topic",
                    None,
                    "must be specified where no column 'topic' is written",
                    "set the option, or add the column",
                )
        if "value" not in types:
            self._faults.add("column value", None, "is required and not there")
        for name, allowed in wanted.items():
            given = types.get(name)
            if given is None or given in allowed:
                continue
            if "string" in allowed and given.startswith("string collate "):
                continue
            self._faults.add(
                f"column {name}", None, f"has type {given}", f"allowed: {' or '.join(allowed)}"
            )

    def _exactly_once(self) -> bool:
        text = self._given.get("exactlyOnce", "false")
        wanted = parse_boolean(self._faults, "exactlyOnce", text) is True
        if wanted and not self._streaming:
            self._faults.add(
                "exactlyOnce",
                None,
                "is for streams: a batch query has no checkpoint that knows what was written",
                "leave it out",
            )
        return wanted

    # -- the producer -----------------------------------------------------------------------

    def _check_properties(self) -> None:
        for name in self._kafka:
            option = f"kafka.{name}"
            if name in _CONSUMER_ONLY:
                self._faults.warn(option, "is ignored, it is a property of Kafka's consumer")
            elif name in KAFKA_NOT_BUILT:
                self._faults.add(option, None, f"not built yet: {KAFKA_NOT_BUILT[name]}")
            elif (
                not judge_name(self._faults, name, _REFUSED, _NO_EFFECT, _LIBRDKAFKA)
                and name not in _BUILT
            ):
                near = difflib.get_close_matches(name, sorted(_BUILT), n=1, cutoff=0.0)[0]
                self._faults.warn(
                    option,
                    f"is ignored, no such property is known; the nearest known one is kafka.{near}",
                )

    def _fault(self, name: str, wrong: str, right: str = "") -> None:
        self._faults.add(f"kafka.{name}", self._kafka.get(name), wrong, right)

    def _producer(self, *, exactly_once: bool) -> FrozenMapping[str, str | int | bool]:
        java: dict[str, int] = {}
        settings: dict[str, str | int | bool] = {}
        for name, (lowest, highest, into, least, most) in _INTEGERS.items():
            value = self._integer(name, lowest, highest)
            if value is not None:
                java[name] = value
                settings[into] = min(max(value, least), most)
        memory = self._integer("buffer.memory", 0, _LONG_MAX)
        if memory is not None:
            settings["queue.buffering.max.kbytes"] = min(max(memory >> 10, 1), _INT_MAX)
        settings |= self._delivery(java, exactly_once=exactly_once)
        if "transaction.timeout.ms" in java and not exactly_once:
            del settings["transaction.timeout.ms"]
            self._faults.warn(
                "kafka.transaction.timeout.ms", "has no effect without exactlyOnce=true"
            )
        settings |= self._compression()
        settings |= self._reliability(java, exactly_once=exactly_once)
        settings["partitioner"] = self._partitioner()
        return FrozenMapping(settings)

    def _integer(self, name: str, lowest: int, highest: int) -> int | None:
        text = self._kafka.get(name)
        if text is None:
            return None
        return parse_integer(self._faults, f"kafka.{name}", text, lowest, highest)

    def _delivery(self, java: Mapping[str, int], *, exactly_once: bool) -> dict[str, int]:
        """KafkaProducer.configureDeliveryTimeout of Java, and what librdkafka wants besides."""
        linger = java.get("linger.ms", _LINGER_MS)
        least = linger + java.get("request.timeout.ms", 30_000)
        if java.get("delivery.timeout.ms", least) < least:
            self._fault(
                "delivery.timeout.ms",
                "must not be less than kafka.linger.ms + kafka.request.timeout.ms, which are "
                f"{least} together",
            )
        delivery = java.get("delivery.timeout.ms", min(max(least, _DELIVERY_MS), _INT_MAX))
        if not exactly_once:
            return {} if delivery == _DELIVERY_MS else {"message.timeout.ms": delivery}
        # In a transaction nothing may be waited for longer than the transaction itself.
        transaction = java.get("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)
        delivery = min(delivery, transaction)
        request = min(java.get("request.timeout.ms", _SOCKET_MS), transaction, 300_000)
        return {
            "linger.ms": min(linger, delivery - 1, 900_000),
            "message.timeout.ms": delivery,
            "socket.timeout.ms": max(request, 10),
            "transaction.timeout.ms": transaction,
        }

    def _compression(self) -> dict[str, Any]:
        codec = self._kafka.get("compression.type", "none").strip().lower()
        if codec not in _CODECS:
            self._fault("compression.type", "is not known", f"allowed: {', '.join(_CODECS)}")
        levels = {
            name: self._integer(f"compression.{name}.level", *bounds)
            for name, bounds in _LEVELS.items()
        }
        found: dict[str, Any] = {}
        if "compression.type" in self._kafka:
            found["compression.type"] = codec
        level = levels.get(codec)
        if level is not None and level != -1:
            lowest, highest = _LEVELS_BUILT[codec]
            found["compression.level"] = min(max(level, lowest), highest)
            if found["compression.level"] != level:
                self._faults.warn(
                    f"kafka.compression.{codec}.level",
                    f"is taken as {found['compression.level']}, which librdkafka has",
                )
        return found

    def _reliability(self, java: Mapping[str, int], *, exactly_once: bool) -> dict[str, Any]:
        """Acknowledgements and idempotence, as ProducerConfig.postProcessAndValidate* of Java."""
        acks = self._kafka.get("acks", "all").strip().lower()
        if acks not in {"all", "-1", "0", "1"}:
            self._fault("acks", "is not known", "allowed: all (default), -1, 0, 1")
            acks = "all"
        acks = "-1" if acks == "all" else acks
        against = []
        if acks != "-1":
            against.append("acks")
        if java.get("retries") == 0:
            against.append("retries")
        if java.get(_IN_FLIGHT, 5) > 5:
            against.append(_IN_FLIGHT)
        text = self._kafka.get("enable.idempotence")
        wanted = True
        if text is not None:
            given = parse_boolean(self._faults, "kafka.enable.idempotence", text)
            wanted = given is not False
        why = "exactlyOnce=true" if exactly_once else "kafka.enable.idempotence=true"
        if exactly_once and not wanted:
            self._fault("enable.idempotence", "must be true with exactlyOnce=true")
        if exactly_once or (text is not None and wanted):
            rights = {
                "acks": "wanted all",
                "retries": "wanted more than 0",
                _IN_FLIGHT: "wanted 5 at most",
            }
            for name in against:
                self._fault(name, f"contradicts {why}", rights[name])
        elif against and wanted:
            wanted = False
            self._faults.warn(
                f"kafka.{against[0]}",
                "turns idempotence off, as in Java's producer: records may be written twice or in "
                "another order",
            )
        return {"acks": int(acks), "enable.idempotence": wanted}

    def _partitioner(self) -> str:
        """The partitioner of librdkafka's that does as Java's: murmur2 of the key, or at random."""
        given = self._kafka.get("partitioner.class", "").strip()
        if given not in {"", _DEFAULT_PARTITIONER}:
            self._fault(
                "partitioner.class",
                "names a Java class, which kshare cannot load",
                "leave it out, and add a column 'partition'",
            )
        text = self._kafka.get("partitioner.ignore.keys", "false")
        ignores = parse_boolean(self._faults, "kafka.partitioner.ignore.keys", text)
        return "random" if ignores else "murmur2_random"
