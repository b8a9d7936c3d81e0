"""Rows to a producer, with bounded memory, and nothing left behind: at-least-once writes.

Guarantees: when :func:`write_rows` returns, every row is on the brokers; a row that is not raises,
with topic, partition and cause. Rows keep their order per partition: the producer is idempotent,
and one thread sends.

Cost: a call of librdkafka for each row, mapped over lists without a Python loop. A task that sends
faster than the brokers take waits for room in the queue, which is bounded in rows and bytes. A
process keeps its producer for the next task: connections, metadata and the producer's id stay.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from operator import length_hint
from typing import Any, Final, NamedTuple

import pyarrow as pa
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import KafkaException, Producer

from kshare.core.waits import Wait
from kshare.errors import KafkaError
from kshare.kafka.client import Client, code_of, kafka_error, kind_of, servers
from kshare.kafka.client_texts import text_of
from kshare.kafka.listening import START_SECONDS, check_listening
from kshare.kafka.protocol.error_codes import ErrorCode, Kind
from kshare.kafka.protocol.wait_log import WaitLog
from kshare.options import KafkaConfig
from kshare.options.frozen import digest_of
from kshare.options.sink import SinkOptions
from kshare.process_local import ProcessLocal
from kshare.query.produce.config import producer_config
from kshare.query.produce.rows import Rows, rows_of
from kshare.query.produce.topic_lookup import TopicLookup, check_name

__all__ = ["Sender", "connect", "encoded_columns", "first_topic", "write_error", "write_rows"]

_log = logging.getLogger(__name__)

_TOO_LARGE: Final = {ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE}
_UNDELIVERED: Final = {RdKafkaError._MSG_TIMED_OUT, RdKafkaError._TIMED_OUT}  # noqa: SLF001
_FATAL: Final = KafkaException, SystemError  # a flush "returned NULL", and no more
_POLL_SECONDS: Final = 0.1
_REPORT_SECONDS: Final = 1.0
_CONNECT_SECONDS: Final = 1.0
_STEP_SECONDS: Final = 10.0
"""Time to wait for a transaction to begin before looking whether there is a broker at all."""


class _Undelivered(NamedTuple):
    """The first row that was not delivered; its size is that of key and value, in bytes."""

    error: RdKafkaError
    topic: str | None
    partition: int | None
    size: int


def _is_purged(error: RdKafkaError) -> bool:
    """True for a row that was given up for what has ended the transaction: another one's error."""
    return error.code() in {RdKafkaError._PURGE_QUEUE, RdKafkaError._PURGE_INFLIGHT}  # noqa: SLF001


def _may_be_missing(error: RdKafkaError) -> bool:
    """True for a row that may not have been delivered because there is no such topic."""
    return error.code() in _UNDELIVERED or kind_of(error) is Kind.UNKNOWN_TOPIC


class Sender:
    """A producer, and the rows that it could not deliver. For one thread.

    Args:
        config: Configuration of librdkafka, from :mod:`kshare.query.produce.config`.
        kafka: The cluster that it connects to, for diagnosis.
        producer: Makes the producer.

    Attributes:
        producer: The producer.
        brokers: The bootstrap servers, as errors name them.
        rows: Number of rows sent so far.

    Raises:
        KafkaError: The client refuses the config, or has no token to log in with.
    """

    def __init__(
        self,
        config: Callable[[], Mapping[str, Any]],
        kafka: KafkaConfig,
        producer: Callable[..., Producer] = Producer,
    ) -> None:
        self._first_undelivered: _Undelivered | None = None
        self._undelivered = 0
        self._client = Client(
            producer,
            kafka,
            lambda: {**config(), "on_delivery": self._on_delivery},
            making="make a producer",
        )
        self.producer = self._client.handle
        self._topics = TopicLookup(self._client, kafka)
        self.brokers = servers(kafka)
        self.rows = 0
        self._waits = WaitLog(_log)

    def begin_transaction(self, topic: str | None, seconds: float) -> None:
        """Get the producer's id, which shuts out an older one of the same name, and begin.

        Args:
            topic: Topic that will be written to.
            seconds: Maximum time to wait.

        Raises:
            RecordRefusedError: No topic can have such a name.
            KafkaError: The coordinator did not answer in time, or refused.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                connect(self.producer, topic, min(seconds, _STEP_SECONDS))
                self.producer.init_transactions(min(seconds, _STEP_SECONDS))
                self.producer.begin_transaction()
            except KafkaException as error:
                fault = error.args[0]
                with suppress(KafkaException):  # the same one, if it is fatal
                    self.producer.poll(0)
                self.raise_faults()
                # What only asks for metadata, librdkafka does not mark as worth another attempt.
                may_pass = fault.retriable() or kind_of(fault) is Kind.TRANSIENT
                if not may_pass or time.monotonic() >= deadline:
                    cause = self._client.no_connection_text()
                    raise kafka_error(fault, "begin a transaction", cause=cause) from error
                self._client.raise_if_unreachable()
                until = "the coordinator of its transactional id is there"
                self._waits.wait(Wait("cannot begin a transaction", until, detail=text_of(fault)))
            else:
                self._waits.over()
                return

    def send(self, batch: pa.RecordBatch, topic: str | None) -> None:
        """Hand over a batch, waiting while the queue is full.

        Raises:
            UnknownTopicError: A topic of the batch does not exist.
            RecordRefusedError: A topic of the batch can be none.
            KafkaError: A row of this batch or of an earlier one was refused.
        """
        for rows in rows_of(batch, topic):
            self._topics.check({rows.topics} if isinstance(rows.topics, str) else set(rows.topics))
            self._send(rows)
            self.poll(0)

    def poll(self, seconds: float) -> None:
        """Take what librdkafka reports.

        Args:
            seconds: Maximum time to wait for it.

        Raises:
            KafkaError: A row was refused, or the producer can write no more.
        """
        try:
            self.producer.poll(seconds)
        except _FATAL as error:
            raise self._fatal(error) from error
        self.raise_faults()

    def flush(self) -> None:
        """Return when every row is on the brokers.

        Ends at the latest after ``delivery.timeout.ms``: librdkafka then refuses what is left.

        Raises:
            KafkaError: A row was refused.
        """
        left = len(self.producer)
        while True:
            try:
                before, left = left, self.producer.flush(_POLL_SECONDS)
            except _FATAL as error:
                raise self._fatal(error) from error
            self._note(left, progress=left < before)
            self.raise_faults()
            if not left:
                return

    def flush_for(self, seconds: float) -> int:
        """Wait until every row is on the brokers, or refused; return how many are not yet.

        Args:
            seconds: Maximum time to wait.
        """
        until, before = time.monotonic() + seconds, len(self.producer)
        while True:
            left: int = self.producer.flush(min(max(until - time.monotonic(), 0.0), 1.0))
            if not left or time.monotonic() >= until:
                self._waits.over()
                return left
            self._say(left, progress=left < before)
            before = left

    def discard(self) -> None:
        """Forget the rows that wait. The producer is of no further use."""
        with suppress(KafkaException):
            self.producer.purge()
        with suppress(KafkaException):
            self.producer.poll(0)

    def raise_faults(self) -> None:
        """Raise what was not delivered, or a login that was refused."""
        if self._first_undelivered is not None:
            error, topic, partition, size = self._first_undelivered
            others = self._undelivered - 1
            more = f" ({others:,} more rows too)" if others else ""
            fault = self._client.last_fault
            if fault is not None and kind_of(fault) is Kind.AUTHENTICATION:
                error = fault
            missing = self._topics.missing(topic) if topic and _may_be_missing(error) else None
            if missing is not None:
                raise missing
            raise write_error(error, topic, partition, more=more, size=size, brokers=self.brokers)
        self._client.raise_refusal()

    def _send(self, rows: Rows) -> None:
        produce, start, count = self.producer.produce, 0, len(rows)
        alone = -1  # the row that was refused last, although the queue is empty now
        while start < count:
            arguments = rows.arguments(start)
            try:
                deque(map(produce, *arguments), maxlen=0)
            except BufferError:
                # The queue is full. The row that did not fit was taken from the iterator.
                start = count - length_hint(arguments[1]) - 1
                if start == alone:
                    raise _too_large(rows, start) from None
                self._wait_for_room()
                alone = -1 if len(self.producer) else start
            except KafkaException as error:
                if code_of(error) == RdKafkaError._FATAL:  # noqa: SLF001
                    self.poll(0)  # it says which fault it was
                row = count - length_hint(arguments[1]) - 1
                raise _not_taken(rows, row, error, self.brokers) from error
            else:
                start = count
        self.rows += count

    def _wait_for_room(self) -> None:
        waiting = len(self.producer)
        self.poll(_POLL_SECONDS)
        self._note(left := len(self.producer), progress=left < waiting)

    def _fatal(self, error: Exception) -> KafkaError:
        """Return the error of a poll or a flush; they raise it before they report its rows."""
        self._await_report()
        self.raise_faults()
        return kafka_error(error, "write rows")

    def _await_report(self) -> None:
        """The report of a row follows the fatal error that it failed by, most often at once."""
        deadline = time.monotonic() + _REPORT_SECONDS
        while self._first_undelivered is None and time.monotonic() < deadline:
            with suppress(KafkaException):
                self.producer.poll(_POLL_SECONDS)

    def _say(self, left: int, *, progress: bool) -> None:
        """Rows are waited for: say it if none of them is taken for long."""
        if progress or not left:
            self._waits.over()
            return
        fault = self._client.last_fault
        detail = f"{left:,} rows wait, {text_of(fault) if fault else 'no broker has refused one'}"
        until = "the leaders of their partitions take them, or delivery.timeout.ms is over"
        self._waits.wait(Wait(f"rows are not on the brokers {self.brokers}", until, detail=detail))

    def _note(self, left: int, *, progress: bool) -> None:
        """While nothing was ever delivered: is there a Kafka broker at all?"""
        self._say(left, progress=progress)
        if progress:
            self._client.answered()
        else:
            self._client.raise_if_unreachable()

    def _on_delivery(self, error: RdKafkaError | None, message: Any) -> None:
        if error is None:
            return
        self._undelivered += 1
        first = self._first_undelivered
        if first is None or (_is_purged(first.error) and not _is_purged(error)):
            partition = message.partition()
            number = None if partition is None or partition < 0 else partition
            size = len(message.key() or b"") + len(message.value() or b"")
            self._first_undelivered = _Undelivered(error, message.topic(), number, size)


def write_rows(
    batches: Iterable[pa.RecordBatch],
    options: SinkOptions,
    *,
    is_start: bool = False,
    producer: Callable[..., Producer] = Producer,
) -> int:
    """Write batches at least once; returns when the brokers have all rows.

    Args:
        batches: The rows.
        options: The sink's options.
        is_start: Whether a job begins so: then brokers that refuse connections are not waited for
            by a producer that is new. One that is kept has written: brokers are away for a while.
        producer: Makes the producer.

    Returns:
        The number of rows.

    Raises:
        UnknownTopicError: A topic does not exist.
        RecordRefusedError: A topic has a name that no broker takes.
        KafkaError: A row was not delivered: topic, partition and cause.
    """
    sender: Sender | None = None
    rows = 0
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            sender = sender or _kept().sender(options, batch, producer, is_start=is_start)
            sender.send(encoded_columns(batch, options), options.topic)
            rows += batch.num_rows
        if sender is not None:
            sender.flush()
    except BaseException:
        if sender is not None:
            _kept().drop()
            sender.discard()
        raise
    return rows


def connect(producer: Producer, topic: str | None, seconds: float) -> None:
    """Have a producer connected before it asks for its id.

    If librdkafka has no connection when it asks, or looks for a coordinator, it asks again only
    after 500 ms. The first of two questions may be answered over the bootstrap connection.

    Raises:
        RecordRefusedError: No topic can have such a name.
        KafkaException: No answer in time.
    """
    if topic is not None:
        check_name(topic)
        for _ in range(2):
            producer.list_topics(topic, seconds)


def encoded_columns(batch: pa.RecordBatch, options: SinkOptions) -> pa.RecordBatch:
    """Return a batch with its columns encoded, if the options say so.

    Raises:
        KafkaError: A value cannot be encoded.
    """
    if not options.encodings:
        return batch
    # Most sinks write bytes as they are: 20 ms.
    from kshare.formats.encodings import encoded  # noqa: PLC0415

    return encoded(batch, options.encodings)


def first_topic(options: SinkOptions, batch: pa.RecordBatch) -> str | None:
    """A topic that a batch, which is not empty, writes to; None if there is none."""
    if options.topic is not None or "topic" not in batch.schema.names:
        return options.topic
    topic: str | None = batch.column("topic")[0].as_py()
    return topic


class _KeptSender:
    """The producer of this process, kept from task to task."""

    def __init__(self) -> None:
        self._sender: Sender | None = None
        self._made_for: bytes | None = None

    def sender(
        self,
        options: SinkOptions,
        batch: pa.RecordBatch,
        producer: Callable[..., Producer],
        *,
        is_start: bool,
    ) -> Sender:
        """The last task's sender if it was in order and had the same options; or a new one.

        Raises:
            KafkaError: A new one, at the start of a job: no bootstrap server listens.
        """
        digest = digest_of((options.kafka, options.producer))
        if self._sender is not None and self._made_for == digest:
            return self._sender
        self.drop()
        if is_start:
            check_listening(options.kafka, START_SECONDS)
        sender = Sender(lambda: producer_config(options), options.kafka, producer)
        with suppress(KafkaException):  # what is wrong is found when rows are sent
            connect(sender.producer, first_topic(options, batch), _CONNECT_SECONDS)
        self._sender, self._made_for = sender, digest
        return sender

    def drop(self) -> None:
        """Let the next task make a new one."""
        self._sender = None


_kept: Final = ProcessLocal(_KeptSender, keeps_copy=True)


def _not_taken(rows: Rows, row: int, error: KafkaException, brokers: str) -> KafkaError:
    """The error of a row that librdkafka did not take."""
    topic = rows.topic_of(row)
    partition = rows.partitions[row] if rows.partitions else None
    partition = None if partition == -1 else partition
    return write_error(error, topic, partition, size=_size(rows, row), brokers=brokers)


def _too_large(rows: Rows, row: int) -> KafkaError:
    """The error of a row that does not fit into an empty queue."""
    topic = rows.topic_of(row)
    return KafkaError(
        f"cannot write to topic {topic}: a row whose key and value have {_size(rows, row):,} bytes "
        "does not fit into the producer's empty buffer: raise kafka.buffer.memory",
        topic=topic,
    )


def _size(rows: Rows, row: int) -> int:
    """Size of a row's key and value, in bytes."""
    return len(rows.values[row] or b"") + len((rows.keys[row] if rows.keys else None) or b"")


def write_error(
    error: object,
    topic: str | None,
    partition: int | None,
    *,
    more: str = "",
    size: int | None = None,
    brokers: str = "",
) -> KafkaError:
    """Return the error of a record that was not written.

    Args:
        error: What librdkafka says.
        topic: The record's topic.
        partition: Its partition; None if it has none yet.
        more: Supplement to librdkafka's text.
        size: Size of its key and value, in bytes.
        brokers: The brokers that were asked, if they are known.
    """
    target = f"topic {topic}" if partition is None else f"topic {topic}, partition {partition}"
    hint = ""
    if code_of(error) in _TOO_LARGE and size is not None:
        hint = (
            f"; its key and value have {size:,} bytes, and the client has a limit, too: "
            "kafka.max.request.size of a sink, 1,048,576 by default"
        )
    is_topic = partition is None or code_of(error) == RdKafkaError._UNKNOWN_TOPIC  # noqa: SLF001
    missing = "does not exist" if is_topic else f"has no partition {partition}"
    on = f" on {brokers}" if brokers else ""
    return kafka_error(
        error,
        f"write to {target}",
        missing=f"topic {topic} {missing}{on}{more}",
        more=more,
        hint=hint,
        topic=topic,
        partition=partition,
    )
