"""The producer of a consumer's transactions, and what its errors mean for them."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import KafkaException, Producer

from kshare.errors import (
    AuthenticationError,
    AuthorizationError,
    KafkaError,
    KshareError,
    RecordRefusedError,
    TransactionAbortedError,
    UnknownTopicError,
)
from kshare.group.config.table import ConsumerConfig
from kshare.group.core.transaction_state import GiveUp, ProducerEpoch
from kshare.group.session.transaction_log import TransactionLog
from kshare.kafka.client import kafka_error, kind_of
from kshare.kafka.protocol.error_codes import Kind
from kshare.query.produce.config import commit_transaction, consumer_producer_config
from kshare.query.produce.sender import Sender, write_error
from kshare.query.produce.topic_lookup import check_name

__all__ = ["Headers", "TransactionProducer", "closed"]

_ABORT_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.1
_MANY: Final = 5_000
_MET_AGAIN: Final = (
    AuthenticationError,
    AuthorizationError,
    RecordRefusedError,
    UnknownTopicError,
)
"""Errors that the same records meet again in the next transaction."""

Headers = dict[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]]


class TransactionProducer:
    """The producer, made when a transaction has something to write, and kept until one fails.

    Attributes:
        transactional_id: Its id.
    """

    def __init__(self, config: ConsumerConfig, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self._config = config
        self._sender: Sender | None = None

    @property
    def sender(self) -> Sender:
        """The sender of the producer.

        Raises:
            TransactionAbortedError: The consumer was closed meanwhile.
        """
        if self._sender is None:
            raise closed()
        return self._sender

    def begin(self, topic: str, log: TransactionLog) -> ProducerEpoch | None:
        """Begin a transaction; the epoch, if it has got another one for that."""
        if self._sender is not None:
            self._call("begin", self._sender.producer.begin_transaction)
            return None
        config, kafka = self._config, self._config.kafka
        timeout_ms, name = config.transaction_timeout_ms, self.transactional_id
        sender = Sender(lambda: consumer_producer_config(kafka, name, timeout_ms), kafka)
        fences = log.own_fences
        sender.begin_transaction(topic, kafka.api_timeout_ms / 1000)
        epoch = ProducerEpoch(log.now(), fences)
        self._sender = sender
        return epoch

    def produce(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int,
        timestamp: int,
        headers: Headers | None,
    ) -> None:
        """Write a record, waiting while the queue is full."""
        producer: Producer = self.sender.producer
        given: dict[str, Any] = {"headers": headers} if headers else {}
        while True:
            try:
                producer.produce(topic, value, key, partition, timestamp=timestamp, **given)
            except BufferError:
                self._call("write", lambda: producer.poll(_POLL_SECONDS))
                self._raise_faults()
            except ValueError:
                check_name(topic)  # one that is no text for C
                raise
            except KafkaException as error:
                check_name(topic)
                self._raise_reported()
                number = None if partition < 0 else partition
                size = _size(key) + _size(value)
                fault = write_error(error, topic, number, size=size, brokers=self.sender.brokers)
                raise self._judged(fault) from error
            else:
                return

    def drain(self, until: float, check: Callable[[], None]) -> None:
        """Wait while many records are to be delivered: facts before them would hide the log."""
        producer: Producer = self.sender.producer
        while len(producer) > _MANY and time.monotonic() < until:
            check()
            self._call("write", lambda: producer.poll(_POLL_SECONDS))
            self._raise_faults()

    def flush(self, seconds: float) -> None:
        """Wait until all records are delivered."""
        left = self._call("write", lambda: self.sender.flush_for(seconds))
        self._raise_faults()
        if left:
            raise TransactionAbortedError(
                f"group {self._config.group}: the transaction is aborted: {left} records of it "
                f"were not delivered within {seconds:g} s"
            )

    def commit(self, seconds: float) -> bool:
        """Commit the transaction, once all its records are delivered; whether it may go on."""
        producer: Producer = self.sender.producer
        until = time.monotonic() + seconds
        self._call("write", lambda: self.sender.flush_for(seconds))
        self._raise_faults()
        left = until - time.monotonic()
        may_go_on: bool = self._call("commit", lambda: commit_transaction(producer, left))
        return may_go_on

    def abort(self) -> bool:
        """Abort the transaction, and let the producer go; whether it is surely decided."""
        sender = self.sender
        self.drop()
        try:
            sender.producer.abort_transaction(_ABORT_SECONDS)
        except (KafkaException, SystemError) as error:
            # Who has fenced it has ended its transaction, or is about to.
            return kind_of(error) is Kind.FENCED
        return True

    def drop(self) -> None:
        """Let the producer go."""
        self._sender = None

    def _call(self, what: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (KafkaException, SystemError) as error:  # a flush "returned NULL", and no more
            self._raise_reported()
            fault = kafka_error(error, f"{what} a transaction of {self.transactional_id}")
            raise self._judged(fault) from error

    def _raise_reported(self) -> None:
        """Raise the cause of a failure, if it was reported: what was not delivered."""
        with suppress(KafkaException):  # it raises a fatal error once
            self.sender.producer.poll(0)
        self._raise_faults()

    def _raise_faults(self) -> None:
        """Raise what was not delivered."""
        try:
            self.sender.raise_faults()
        except KafkaError as error:
            fault = self._judged(error)
            if fault is error:
                raise
            raise fault from error

    def _judged(self, error: KafkaError) -> KshareError:
        """The error itself if another transaction would not get over it."""
        is_log = error.topic == self._config.log_topic  # one that is lost is made again
        if isinstance(error, _MET_AGAIN) and not (is_log and isinstance(error, UnknownTopicError)):
            return error
        return TransactionAbortedError(
            f"group {self._config.group}: the transaction is aborted: {error}"
        )


def closed() -> TransactionAbortedError:
    """The error of a transaction whose consumer was closed amid it."""
    return TransactionAbortedError(f"the transaction is aborted: {GiveUp.CLOSED.value}")


def _size(field: str | bytes | None) -> int:
    """The number of bytes of a key or a value."""
    return len(field.encode() if isinstance(field, str) else field or b"")
