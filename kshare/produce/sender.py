"""Rows to a producer, with bounded memory, and nothing left behind: at-least-once writes.

Law: when :func:`write_rows` returns, every row is on the brokers; a row that is not raises, with
topic, partition and cause. Rows keep their order per partition (the producer is idempotent, one
sends). Cost: a call of librdkafka a row, mapped over lists without a Python loop. A task that
sends faster than the brokers take waits for room in the queue, which is bounded in rows and bytes.

A process keeps its producer for the next task: connections, metadata and the producer's id stay.
"""

import hashlib
import os
import pickle
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from operator import length_hint
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import KafkaException, Producer

from kshare.cluster.client_log import client_log
from kshare.cluster.diagnosis import connection_fault, login_fault
from kshare.errors import (
    AuthenticationError,
    AuthorizationError,
    KafkaError,
    Location,
    UnknownTopicError,
)
from kshare.options import KafkaConfig
from kshare.options.sink import SinkOptions
from kshare.produce.config import producer_config
from kshare.produce.rows import Rows, rows_of

__all__ = ["Sender", "connect", "first_topic", "mapped", "write_rows"]


_POLL_SECONDS: Final = 0.1
_CONNECT_SECONDS: Final = 1.0
# Rows that nothing was heard of for so long are looked at by diagnosis; both together are < 30 s.
_DIAGNOSIS_AFTER_SECONDS: Final = 10.0
_DIAGNOSIS_SECONDS: Final = 15.0
_AUTHENTICATION: Final = {RdKafkaError._AUTHENTICATION, RdKafkaError._SSL, 33, 34, 58}  # noqa: SLF001
_AUTHORIZATION: Final = {29, 30, 31, 53}
_UNKNOWN: Final = {3, RdKafkaError._UNKNOWN_TOPIC, RdKafkaError._UNKNOWN_PARTITION}  # noqa: SLF001
_FENCED: Final = {RdKafkaError._FENCED, 47, 90}  # noqa: SLF001
_ALL_BROKERS_DOWN: Final = RdKafkaError._ALL_BROKERS_DOWN  # noqa: SLF001


class Sender:
    """A producer and what became of its rows. For one thread.

    Args:
        config: of librdkafka, from :mod:`kshare.produce.config`.
        kafka: whom the config connects to, for diagnosis.

    Raises:
        KafkaError: librdkafka refuses the config, or has no token to log in with.
    """

    def __init__(self, config: dict[str, Any], kafka: KafkaConfig) -> None:
        self._kafka = kafka
        self._refused: tuple[RdKafkaError, str | None, int | None] | None = None
        self._refusals = 0
        self._fault: RdKafkaError | None = None
        self._silent_since: float | None = time.monotonic()
        given = {**config, "on_delivery": self._on_delivery, "error_cb": self._on_error}
        try:
            self.producer = Producer(given, logger=client_log)
        except KafkaException as error:  # say, an OAUTHBEARER token that expires meanwhile
            raise mapped(error.args[0], "make a producer") from error
        self.rows = 0

    def begin_transaction(self, topic: str | None, seconds: float) -> None:
        """Get the producer's id, which shuts out an older one of the same name, and begin.

        Args:
            topic: one that will be written to.
            seconds: how long that may take.

        Raises:
            KafkaError: the coordinator did not answer in time, or refused.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                connect(self.producer, topic, min(seconds, _DIAGNOSIS_AFTER_SECONDS))
                self.producer.init_transactions(min(seconds, _DIAGNOSIS_AFTER_SECONDS))
                self.producer.begin_transaction()
            except KafkaException as error:
                fault = error.args[0]
                self.producer.poll(0)
                self.raise_faults()
                if not fault.retriable() or time.monotonic() >= deadline:
                    raise mapped(fault, "begin a transaction") from error
                self._heard(False)
            else:
                return

    def send(self, batch: pa.RecordBatch, topic: str | None) -> None:
        """Hand over a batch; waits while the queue is full.

        Raises:
            KafkaError: a row of this batch or of an earlier one was refused.
        """
        for rows in rows_of(batch, topic):
            self._send(rows)
            self.producer.poll(0)
            self.raise_faults()

    def flush(self) -> None:
        """Return when every row is on the brokers.

        Ends at the latest after ``delivery.timeout.ms``: librdkafka then refuses what is left.

        Raises:
            KafkaError: a row was refused.
        """
        left = len(self.producer)
        while True:
            before, left = left, self.producer.flush(_POLL_SECONDS)
            self._heard(left < before)
            self.raise_faults()
            if not left:
                return

    def discard(self) -> None:
        """Forget the rows that wait. The producer is of no further use."""
        with suppress(KafkaException):
            self.producer.purge()
        self.producer.poll(0)

    def raise_faults(self) -> None:
        """Tell what was refused, or a login that does not mend itself."""
        if self._refused is not None:
            error, topic, partition = self._refused
            more = f" ({self._refusals - 1:,} more rows too)" if self._refusals > 1 else ""
            if self._fault is not None and _refuses(self._fault):
                error = self._fault
            raise mapped(error, f"write to {_place(topic, partition)}", topic, partition, more)
        if self._fault is not None and _refuses(self._fault):
            raise login_fault(self._kafka) or mapped(self._fault, "connect")

    # -- rows -------------------------------------------------------------------------------

    def _send(self, rows: Rows) -> None:
        produce, start, count = self.producer.produce, 0, len(rows)
        while start < count:
            arguments = rows.arguments(start)
            try:
                deque(map(produce, *arguments), maxlen=0)
            except BufferError:
                # The queue is full. The row that did not fit was taken from the iterator.
                start = count - length_hint(arguments[1]) - 1
                self._wait_for_room()
            except KafkaException as error:
                at = count - length_hint(arguments[1]) - 1
                raise self._not_taken(rows, at, error) from error
            else:
                start = count
        self.rows += count

    def _wait_for_room(self) -> None:
        waiting = len(self.producer)
        self.producer.poll(_POLL_SECONDS)
        self._heard(len(self.producer) < waiting)
        self.raise_faults()

    def _not_taken(self, rows: Rows, at: int, error: KafkaException) -> KafkaError:
        topic = rows.topics if isinstance(rows.topics, str) else rows.topics[at]
        partition = rows.partitions[at] if rows.partitions else None
        if partition == -1:
            partition = None
        return mapped(error.args[0], f"write to {_place(topic, partition)}", topic, partition)

    # -- what is heard ----------------------------------------------------------------------

    def _on_delivery(self, error: RdKafkaError | None, message: Any) -> None:
        if error is None:
            return
        self._refusals += 1
        if self._refused is None:
            partition = message.partition()
            place = message.topic(), None if partition is None or partition < 0 else partition
            self._refused = (error, *place)

    def _on_error(self, error: RdKafkaError) -> None:
        # That all brokers are down says less than why the last one is.
        if self._fault is None or _refuses(error) or error.code() != _ALL_BROKERS_DOWN:
            self._fault = error

    def _heard(self, progress: bool) -> None:
        """Once nothing was ever delivered for long: is there a Kafka broker at all?"""
        if progress:
            self._silent_since = None
        if self._silent_since is None:
            return
        if time.monotonic() - self._silent_since >= _DIAGNOSIS_AFTER_SECONDS:
            self._silent_since = None  # once: what may mend itself is waited for
            unreachable = connection_fault(self._kafka, _DIAGNOSIS_SECONDS)
            if unreachable is not None:
                raise unreachable


def write_rows(batches: Iterable[pa.RecordBatch], options: SinkOptions) -> int:
    """Write batches at least once; returns when the brokers have all rows.

    Returns:
        How many rows.

    Raises:
        KafkaError: a row was not delivered: topic, partition and cause.
    """
    sender: Sender | None = None
    rows = 0
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            sender = sender or _kept_sender(options, batch)
            sender.send(batch, options.topic)
            rows += batch.num_rows
        if sender is not None:
            sender.flush()
    except BaseException:
        if sender is not None:
            _forget()
            sender.discard()
        raise
    return rows


def connect(producer: Producer, topic: str | None, seconds: float) -> None:
    """Have a producer connected before it asks for its id.

    If librdkafka has no connection when it asks, or looks for a coordinator, it asks again only
    after 500 ms. The first of two questions may be answered over the bootstrap connection.

    Raises:
        KafkaException: no answer in time.
    """
    if topic is not None:
        for _ in range(2):
            producer.list_topics(topic, seconds)


def mapped(
    error: RdKafkaError,
    what: str,
    topic: str | None = None,
    partition: int | None = None,
    more: str = "",
) -> KafkaError:
    """An error of librdkafka as one of ours."""
    place: Location = {"topic": topic, "partition": partition}
    text, code = f"{error.str()}{more}", error.code()
    if _refuses(error):
        return AuthenticationError(f"cannot log in to {what}: {text}", **place)
    if code in _AUTHORIZATION:
        return AuthorizationError(f"not authorized to {what}: {text}", **place)
    if code in _UNKNOWN:
        return UnknownTopicError(
            f"cannot {what}: the topic or its partition does not exist: {text}", **place
        )
    if code in _FENCED:
        return KafkaError(f"cannot {what}: fenced by a later producer of the same query: {text}")
    if code == 50:
        text += (
            "; kafka.transaction.timeout.ms must not be more than the brokers' "
            "transaction.max.timeout.ms"
        )
    return KafkaError(f"cannot {what}: {text}", **place)


# -- the producer of this process -----------------------------------------------------------

_kept: tuple[int, bytes, Sender] | None = None


def _kept_sender(options: SinkOptions, batch: pa.RecordBatch) -> Sender:
    """The producer of the task before, if it was in order and had the same options."""
    global _kept  # noqa: PLW0603
    # A digest: the memory of the process holds no second copy of a secret.
    digest = hashlib.sha256(pickle.dumps((options.kafka, options.producer))).digest()
    if _kept is not None and _kept[:2] == (os.getpid(), digest):
        return _kept[2]
    _kept = None
    try:
        config = producer_config(options)
    except OSError as error:  # the token endpoint of OAUTHBEARER
        raise KafkaError(f"cannot get a token to log in with: {error}") from error
    sender = Sender(config, options.kafka)
    with suppress(KafkaException):  # what is wrong is found when rows are sent
        connect(sender.producer, first_topic(options, batch), _CONNECT_SECONDS)
    _kept = (os.getpid(), digest, sender)
    return sender


def first_topic(options: SinkOptions, batch: pa.RecordBatch) -> str | None:
    """A topic that a batch, which is not empty, writes to; None if there is none."""
    if options.topic is not None or "topic" not in batch.schema.names:
        return options.topic
    found: str | None = batch.column("topic")[0].as_py()
    return found


def _forget() -> None:
    global _kept  # noqa: PLW0603
    _kept = None


def _refuses(error: RdKafkaError) -> bool:
    """Whether a login or a certificate was not accepted (TLS 1.3: told as an alert)."""
    return error.code() in _AUTHENTICATION or "SSL alert number" in error.str()


def _place(topic: str | None, partition: int | None) -> str:
    return f"topic {topic}" if partition is None else f"topic {topic}, partition {partition}"
