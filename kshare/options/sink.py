"""Options of the sink: ``df.write.format("kshare")``, ``writeStream.format("kshare")``.

Guarantee: as for the source, all faults are reported together and nothing is contacted. A property
of Java's producer is honoured, refused, or accepted with a warning. Columns are those of
``KafkaWriter.validateQuery`` of Spark 4.2. Records are idempotent unless the user's own settings
forbid it, and a key goes to the partition that Java's producer would choose.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kshare.options.frozen import FrozenMapping
from kshare.options.kafka import PRODUCER, check_names, lacks_prefix, parse_kafka
from kshare.options.kinds import INT_MAX, topic_fault
from kshare.options.model import KafkaConfig
from kshare.options.names import NOT_BUILT, REMOVED
from kshare.options.producer_table import (
    COMMON,
    IN_FLIGHT,
    LEVELS,
    PRODUCER_PROPERTIES,
    TRANSACTION_TIMEOUT_MAX,
    request_fault,
)
from kshare.options.raw import Faults, RawOptions
from kshare.options.row_encodings import RowEncoding, RowEncodings, RowEncodingsParser
from kshare.options.row_formats import is_row_option
from kshare.options.rules import SINK_RULES
from kshare.options.source import is_assignor_config
from kshare.options.table import OPTIONS

__all__ = [
    "ID_PREFIX",
    "TRANSACTION_TIMEOUT_MS",
    "ParsedSinkOptions",
    "SinkOptions",
    "parse_sink_options",
]

TRANSACTION_TIMEOUT_MS: Final = 900_000
"""The longest that a broker allows by default (``transaction.max.timeout.ms``)."""

ID_PREFIX: Final = "kshare"
"""How transactional ids begin unless ``transactionalIdPrefix`` says otherwise."""

_DELIVERY_MS: Final = 120_000  # Java's delivery.timeout.ms
_LINGER_MS: Final = 20
_IN_FLIGHT: Final = 5  # Java's, and the most that idempotence allows
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
_DEFAULT_PARTITIONER: Final = "org.apache.kafka.clients.producer.internals.DefaultPartitioner"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of one ``format("kshare")`` sink.

    Attributes:
        topic: The topic of all rows; None: each row's column ``topic`` names it.
        kafka: How to reach Kafka.
        exactly_once: Whether each batch of a stream is written once, in transactions.
        drop_repeated_batch: With ``exactly_once``, the number of a batch whose rows are dropped if
            it was written before, even if they cannot be the same ones.
        ledger_topic: With ``exactly_once``, the topic of the ledger; None: the default.
        id_prefix: With ``exactly_once``, how transactional ids begin; a dash follows.
        producer: librdkafka's settings of the producer, without those of the connection.
        formats: What columns are encoded to, as the options say; None: they are written as they
            are.
        encodings: The same, with the schemas that were found for it.
    """

    topic: str | None
    kafka: KafkaConfig
    exactly_once: bool = False
    drop_repeated_batch: int | None = None
    ledger_topic: str | None = None
    id_prefix: str = ID_PREFIX
    producer: FrozenMapping[str, str | int | bool]
    formats: RowEncodings | None = None
    encodings: tuple[RowEncoding, ...] = ()


@dataclass(frozen=True, slots=True)
class ParsedSinkOptions:
    """Options, and the warnings for the user."""

    options: SinkOptions
    warnings: tuple[str, ...]


def parse_sink_options(
    options: Mapping[str, str],
    columns: Sequence[tuple[str, str]] = (),
    *,
    streaming: bool,
    check_formats: Callable[[RowEncodings], Iterable[str]] = lambda _: (),
) -> ParsedSinkOptions:
    """Check and parse all options of a sink.

    Args:
        options: As Spark passes them; names in any case.
        columns: Name and type (as Spark's ``simpleString``) of each column of the rows; columns
            are not checked if there are none.
        streaming: Whether a stream's batches are written.
        check_formats: Finds the faults of schemas that no registry has to say, to report them with
            all others.

    Returns:
        The options and the warnings for the user.

    Raises:
        OptionsError: Something is wrong; all of it is listed.
    """
    faults = Faults()
    # From here on no local variable's text shows a secret, in any traceback.
    options = RawOptions(options, faults)
    parsed = _SinkParser(options, streaming=streaming).parse(columns, check_formats)
    faults.raise_if_any()
    if parsed is None:  # pragma: no cover - only with faults
        raise AssertionError("options without faults must parse")
    return ParsedSinkOptions(parsed, tuple(faults.warnings))


class _SinkParser:
    """Parses one set of options once."""

    def __init__(self, raw: RawOptions, *, streaming: bool) -> None:
        self._raw = raw
        self._kafka = raw.kafka
        self._faults = raw.faults
        self._streaming = streaming

    def parse(
        self,
        columns: Sequence[tuple[str, str]],
        check_formats: Callable[[RowEncodings], Iterable[str]],
    ) -> SinkOptions | None:
        self._check_names()
        check_names(self._kafka, PRODUCER)
        kafka = parse_kafka(self._kafka.only(COMMON), self._raw.value("oauthTokenProvider"))
        topic = self._topic()
        types = dict(reversed(columns))
        formats = RowEncodingsParser(self._raw.of_sink(), types).parse_encodings(topic)
        if formats is not None:
            self._faults.problems.extend(check_formats(formats))
        if columns:
            self._check_columns(types)
        exactly_once = self._raw.value("exactlyOnce") is True
        self._check_rules(exactly_once=exactly_once)
        producer = self._producer(exactly_once=exactly_once)
        if kafka is None:
            return None
        return SinkOptions(
            topic=topic,
            kafka=kafka,
            exactly_once=exactly_once,
            drop_repeated_batch=self._raw.value("dropRepeatedBatch"),
            ledger_topic=self._ledger_topic(topic),
            id_prefix=self._raw.value("transactionalIdPrefix") or ID_PREFIX,
            producer=producer,
            formats=formats,
        )

    # -- the sink's own ---------------------------------------------------------------------

    def _check_names(self) -> None:
        for name in self._raw:
            queries = OPTIONS[name].queries if name in OPTIONS else ()
            if "sink" in queries or name.lower() in _OF_SPARK or is_row_option(name):
                continue
            if queries or name in NOT_BUILT or name in REMOVED or is_assignor_config(name):
                self._faults.warn(name, "is ignored, it is an option of the source")
            else:
                known = [option.name for option in OPTIONS.values() if "sink" in option.queries]
                self._raw.warn_unknown(name, known, lacks_prefix(name, PRODUCER))

    def _check_rules(self, *, exactly_once: bool) -> None:
        """Report contradictions, and what has no effect."""
        kafka = {f"kafka.{name}": text.strip() for name, text in self._kafka.items()}
        facts = {**self._raw, **kafka, "exactlyOnce": exactly_once, "stream": self._streaming}
        self._faults.check(SINK_RULES, facts, kafka)

    def _topic(self) -> str | None:
        topic = self._raw.get("topic")
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
        for name in ("key", "value"):
            if self._raw.get(f"{name}Format", "string").strip().lower() != "string":
                del wanted[name]  # its encoding says what it may be
        if "topic" not in self._raw:
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

    def _ledger_topic(self, topic: str | None) -> str | None:
        ledger: str | None = self._raw.value("ledgerTopic")
        if ledger is not None and ledger == topic:
            self._faults.add(
                "ledgerTopic", None, "is the topic of the rows", "give the ledger its own"
            )
        return ledger

    # -- the producer -----------------------------------------------------------------------

    def _producer(self, *, exactly_once: bool) -> FrozenMapping[str, str | int | bool]:
        java = {
            name: value
            for name in PRODUCER_PROPERTIES
            if (value := self._kafka.value(name, PRODUCER_PROPERTIES)) is not None
        }
        settings: dict[str, str | int | bool] = {}
        for name, value in java.items():
            passed_on = PRODUCER_PROPERTIES[name].librdkafka
            if passed_on is not None:
                into, lowest, highest = passed_on
                settings[into] = min(max(value, lowest), highest)
        if "buffer.memory" in java:
            kbytes = min(max(java["buffer.memory"] >> 10, 1), INT_MAX)
            settings["queue.buffering.max.kbytes"] = kbytes
        settings |= self._delivery(java, exactly_once=exactly_once)
        if "transaction.timeout.ms" in java and not exactly_once:
            del settings["transaction.timeout.ms"]
        settings |= self._compression(java)
        settings |= self._reliability(java, exactly_once=exactly_once)
        settings["partitioner"] = self._partitioner(java)
        return FrozenMapping(settings)

    def _delivery(self, java: Mapping[str, Any], *, exactly_once: bool) -> dict[str, int]:
        """KafkaProducer.configureDeliveryTimeout of Java, and what librdkafka needs as well.

        The linger of kshare's own counts for nothing: who has not given it cannot have it wrong.
        """
        least = java.get("linger.ms", 0) + java.get("request.timeout.ms", 30_000)
        if java.get("delivery.timeout.ms", least) < least:
            what = f"kafka.request.timeout.ms, which is {least}"
            if "linger.ms" in java:
                what = f"kafka.linger.ms + kafka.request.timeout.ms, which are {least} together"
            self._kafka.fault("delivery.timeout.ms", f"must not be less than {what}")
        delivery = java.get("delivery.timeout.ms", min(max(least, _DELIVERY_MS), INT_MAX))
        linger_ms = min(java.get("linger.ms", _LINGER_MS), delivery - 1, 900_000)
        if not exactly_once:
            if delivery == _DELIVERY_MS:
                return {}
            short = {"linger.ms": linger_ms} if linger_ms < _LINGER_MS else {}
            return {"message.timeout.ms": delivery, **short}
        # In a transaction nothing may be waited for longer than the transaction itself.
        transaction = java.get("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)
        transaction = min(transaction, TRANSACTION_TIMEOUT_MAX)
        delivery = min(delivery, transaction)
        fault = request_fault(java.get("request.timeout.ms", 0), transaction)
        if fault is not None:
            self._kafka.fault("request.timeout.ms", *fault)
        request = min(java.get("request.timeout.ms", _SOCKET_MS), transaction, 300_000)
        return {
            "linger.ms": min(linger_ms, delivery - 1),
            "message.timeout.ms": delivery,
            "socket.timeout.ms": max(request, 10),
            "transaction.timeout.ms": transaction,
        }

    def _compression(self, java: Mapping[str, Any]) -> dict[str, str | int]:
        if "compression.type" not in java:
            return {}
        codec: str = java["compression.type"]
        settings: dict[str, str | int] = {"compression.type": codec}
        level: int = java.get(f"compression.{codec}.level", -1)
        if level == -1:
            return settings
        lowest, highest = LEVELS[codec]
        nearest = settings["compression.level"] = min(max(level, lowest), highest)
        if nearest != level:
            self._faults.warn(
                f"kafka.compression.{codec}.level", f"is taken as {nearest}, which librdkafka has"
            )
        return settings

    def _reliability(self, java: Mapping[str, Any], *, exactly_once: bool) -> dict[str, Any]:
        """Acknowledgements and idempotence, as ProducerConfig.postProcessAndValidate* of Java."""
        acks = -1 if java.get("acks", "all") == "all" else int(java["acks"])
        against = []
        if acks != -1:
            against.append("acks")
        if java.get("retries") == 0:
            against.append("retries")
        if java.get(IN_FLIGHT, _IN_FLIGHT) > _IN_FLIGHT:
            against.append(IN_FLIGHT)
        idempotent = java.get("enable.idempotence", True)
        why = "exactlyOnce=true" if exactly_once else "kafka.enable.idempotence=true"
        if exactly_once or (idempotent and "enable.idempotence" in self._kafka):
            rights = {
                "acks": "wanted all",
                "retries": "wanted more than 0",
                IN_FLIGHT: "wanted 5 at most",
            }
            for name in against:
                self._kafka.fault(name, f"contradicts {why}", rights[name])
        elif against and idempotent:
            idempotent = False
            self._faults.warn(
                f"kafka.{against[0]}",
                "turns idempotence off, as in Java's producer: records may be written twice or in "
                "another order",
            )
        settings: dict[str, Any] = {"acks": acks, "enable.idempotence": idempotent}
        if not idempotent and IN_FLIGHT not in java:
            settings[IN_FLIGHT] = _IN_FLIGHT  # not a million, librdkafka's: all may be reordered
        return settings

    def _partitioner(self, java: Mapping[str, Any]) -> str:
        """Return librdkafka's partitioner that does as Java's: murmur2 of the key, or at random."""
        if java.get("partitioner.class", "").strip() not in {"", _DEFAULT_PARTITIONER}:
            self._kafka.fault(
                "partitioner.class",
                "names a Java class, which kshare cannot load",
                "leave it out, and add a column 'partition'",
            )
        return "random" if java.get("partitioner.ignore.keys") else "murmur2_random"
