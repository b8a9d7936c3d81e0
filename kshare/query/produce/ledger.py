"""The ledger: which batch of a query was decided last, and by which transactions.

Guarantees: a query has one state, replaced as a whole; a replacement counts only if no one else has
opened the ledger for that query since (Kafka fences the older producer). So a batch is decided
once, no matter how many try.

The topic, ``__kshare_sink_ledger`` unless ``ledgerTopic`` names another, is made on first use:
compacted, the key is the query's id.

Cost: some requests for each batch; a read of the ledger's partition, which compaction keeps at
about 1 MiB, and later of what is new. A ledger can be kept for the next batch: while nobody else
has opened it, it need not be opened again.
"""

import zlib
from dataclasses import replace
from typing import Any, Final, Self

from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import KafkaException, Producer

from kshare.errors import KafkaError, UnknownTopicError
from kshare.kafka.client import Client, code_of, kafka_error, kind_of
from kshare.kafka.compacted_topic import CompactedTopic
from kshare.kafka.protocol.error_codes import Kind
from kshare.kafka.topics import LEDGER_TOPIC, MAKES_NONE, TopicSpec
from kshare.options import KafkaConfig
from kshare.options.sink import SinkOptions
from kshare.query.produce.config import (
    commit_transaction,
    transactional_config,
    with_late_repetitions,
)
from kshare.query.produce.ledger_state import State, decode, encode
from kshare.query.produce.sender import connect

__all__ = ["LEDGER_SPEC", "Ledger", "LedgerRecord"]

LEDGER_SPEC: Final = TopicSpec(
    LEDGER_TOPIC,
    16,
    {
        "compression.type": "producer",
        "max.message.bytes": str(8 << 20),
        "segment.bytes": str(1 << 20),
        "segment.ms": "3600000",
    },
    wishes={"min.cleanable.dirty.ratio": "0.05"},
)
"""The settings of the ledger's topic."""

_TIMEOUT_MS: Final = 30_000
_CLEAN_UP_SECONDS: Final = 15.0
"""A coordinator looks for transactions that have timed out every 10 s
(``transaction.abort.timed.out.transaction.cleanup.interval.ms``), and then ends them."""


_TAKEN: Final = {RdKafkaError.INVALID_PRODUCER_ID_MAPPING, RdKafkaError.UNKNOWN_PRODUCER_ID}
"""The id has expired, which is as if another had it."""


class Ledger:
    """The ledger of one query, to be closed by whoever opens it.

    Raises:
        KafkaError: Kafka did not answer in time, or refused.

    Attributes:
        topic: Its topic.
    """

    def __init__(self, options: SinkOptions, query: str) -> None:
        self._options = options
        self.topic = options.ledger_topic or LEDGER_TOPIC
        self._key = query.encode()
        self._seconds = options.kafka.api_timeout_ms / 1000
        # Of a decision that was begun: a driver that dies in it holds up other queries for so long.
        given = int(options.producer.get("transaction.timeout.ms", _TIMEOUT_MS))
        self._timeout_ms = min(given, _TIMEOUT_MS)
        self._rows = _rows_of(options.kafka, self._key, self.topic, self._timeout_ms)
        self._partition = self._found_or_made()
        self._producer: Producer | None = None
        self._is_producer_fit = False  # whether it may begin a transaction
        self._state: State | None = None
        self._written: State | None = None  # by this producer, at last

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self) -> State | None:
        """The query's state; None if it never decided a batch.

        What others are deciding in the same partition is waited for.
        """
        is_new, state = _last_state(self._rows, self._key)
        if is_new:
            self._state = state
        if not self._rows.exists:  # deleted since it was opened
            self._partition = self._found_or_made()
        return self._state

    def holds(self, state: State | None) -> bool:
        """True if this ledger wrote that state, and may write the next one as things stand.

        Another driver may have opened the ledger since and written nothing yet: that shows when
        this one writes.
        """
        return self._is_producer_fit and state is not None and state == self._written

    def take_over(self) -> None:
        """Shut out all others that have this query's ledger open; they cannot write any more."""
        self._written = None
        client = Client(Producer, self._options.kafka, self._producer_config)
        try:
            self._producer = client.handle
            connect(self._producer, self.topic, self._seconds)
            self._producer.init_transactions(self._seconds)
        except KafkaException as error:
            raise kafka_error(error, "open the ledger of exactlyOnce", topic=self.topic) from error
        self._is_producer_fit = True

    def write(self, state: State) -> bool:
        """Replace the query's state.

        Returns:
            False if another driver has opened the ledger since: nothing was written.

        Raises:
            KafkaError: It is not known to be written: read it again.
        """
        if self._producer is None:
            raise RuntimeError("write() before take_over()")
        if not self._is_producer_fit:
            self._take_over_again()
        self._is_producer_fit = False
        try:
            self._producer.begin_transaction()
            self._producer.produce(self.topic, encode(state), self._key, self._partition)
            self._is_producer_fit = commit_transaction(self._producer, self._seconds)
        except KafkaException as error:
            if kind_of(error) is Kind.FENCED or code_of(error) in _TAKEN:
                return False
            raise kafka_error(
                error,
                "write the ledger of exactlyOnce",
                topic=self.topic,
                partition=self._partition,
            ) from error
        self._state = self._written = state
        return True

    def close(self) -> None:
        """Close the clients."""
        self._rows.close()
        self._producer = None

    def _take_over_again(self) -> None:
        """Get another epoch, as an earlier request to commit may still arrive.

        Another driver may have decided something in between, and is shut out only now.
        """
        known = self._state
        self.take_over()
        if self.read() != known:
            raise KafkaError(
                "cannot write the ledger of exactlyOnce: another driver of the query has written "
                "it meanwhile",
                topic=self.topic,
                partition=self._partition,
            )

    def _producer_config(self) -> dict[str, Any]:
        config = with_late_repetitions(
            transactional_config(
                self._options, f"{self._options.id_prefix}-ledger-{self._key.decode()}"
            )
        )
        del config["statistics.interval.ms"]
        timeout = self._timeout_ms
        return config | {
            **MAKES_NONE,
            "linger.ms": 0,
            "message.timeout.ms": timeout,
            "socket.timeout.ms": min(config.get("socket.timeout.ms", timeout), timeout),
            "transaction.timeout.ms": timeout,
        }

    def _found_or_made(self) -> int:
        """The partition where the query's state is; the topic is made if it does not exist."""
        try:
            (partition,) = self._rows.partitions()
        except UnknownTopicError:
            self._rows.create()
            (partition,) = self._rows.partitions()
        return partition.partition


class LedgerRecord:
    """A query's record of the ledger, for those who look at it or delete it.

    Raises:
        UnknownTopicError: There is no such ledger.
        KafkaError: Kafka did not answer in time, or refused.
    """

    def __init__(self, kafka: KafkaConfig, query: str, topic: str) -> None:
        self._key = query.encode()
        self._rows = _rows_of(kafka, self._key, topic, _TIMEOUT_MS)

    def __enter__(self) -> Self:
        try:
            (self._partition,) = self._rows.partitions()
        except BaseException:
            self._rows.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._rows.close()

    def read(self) -> State | None:
        """The query's state; None if there is none.

        Raises:
            CheckpointVersionError: A later kshare wrote it.
            LedgerRecordError: The record is no state.
            KafkaError: It is not known: Kafka did not answer in time, or refused.
        """
        return _last_state(self._rows, self._key)[1]

    def drop(self) -> None:
        """Delete it. To the ledger, the query has written nothing then."""
        self._rows.write([(self._key, None)], self._partition.partition)


def _rows_of(kafka: KafkaConfig, key: bytes, topic: str, timeout_ms: int) -> CompactedTopic:
    """The partition of the ledger that has a query's record."""
    return CompactedTopic(
        kafka,
        replace(LEDGER_SPEC, name=topic),
        read_committed=True,
        choose=lambda count: (zlib.crc32(key) % count,),
        group="kshare-sink-ledger",
        seconds_min=timeout_ms / 1000 + _CLEAN_UP_SECONDS,
    )


def _last_state(rows: CompactedTopic, key: bytes) -> tuple[bool, State | None]:
    """A key's record: true if it has changed since the last read, and its state now.

    Only the last one counts: earlier ones, and those of other queries, may be whatever they are.
    """
    changes = rows.read()
    last = next((row for row in reversed(changes.rows) if row.key == key), None)
    if last is None or last.value is None:
        return changes.restarted or last is not None, None
    return True, decode(last.value, rows.name, last)
