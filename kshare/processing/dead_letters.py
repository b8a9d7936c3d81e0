"""Dead letters: records in another topic, with headers that say where from and why.

A letter has key, value, timestamp and headers of its record, and besides the headers that Kafka
Connect gives its own (``__connect.errors.topic``, ...), as texts: other tools read them. Two
letters of the same topic, partition and offset are one record, written again after a crash.

Guarantees: a letter counts as written when the broker has it on all in-sync replicas.
"""

import asyncio
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from confluent_kafka import KafkaException, Producer

from kshare.cluster.client import Client, kafka_error, kind_of, servers
from kshare.errors import KafkaError
from kshare.options import KafkaConfig
from kshare.processing.core.record import Record, error_name, error_text
from kshare.produce.config import PROPAGATION
from kshare.security.librdkafka import librdkafka_config
from kshare.wire.protocol.error_codes import Kind

__all__ = [
    "HEADERS",
    "RELEASE",
    "DeadLetters",
    "letter_headers",
    "without_letter_headers",
]

_CONNECT: Final = "__connect.errors."
HEADERS: Final = (
    f"{_CONNECT}topic",
    f"{_CONNECT}partition",
    f"{_CONNECT}offset",
    f"{_CONNECT}exception.class.name",
    f"{_CONNECT}exception.message",
    "kshare.attempts",
    "kshare.first-failure",
    "kshare.last-failure",
)
"""Names of the headers of a dead letter, in their order."""
RELEASE: Final = "kshare.release"
"""Name of the header of a record that was put back and ends the sequence of its key."""
_OWN: Final = frozenset({*HEADERS, RELEASE})
_MESSAGE_MAX: Final = 1_000
_POLL_SECONDS: Final = 0.1


def letter_headers(
    record: Record, error: BaseException | None, now: float
) -> list[tuple[str, bytes | None]]:
    """The headers of a dead letter; what the record had as a letter before is replaced.

    Args:
        record: The record.
        error: Why it failed; None if it only follows an earlier one of its key.
        now: The time, in seconds since 1970.
    """
    name = "" if error is None else error_name(error)
    reason = "an earlier record of its key is a dead letter" if error is None else error_text(error)
    texts = (
        record.topic,
        str(record.partition),
        str(record.offset),
        name,
        reason[:_MESSAGE_MAX],
        str(record.failures),
        _iso(now if record.since is None else record.since),
        _iso(now),
    )
    own = [(name, text.encode()) for name, text in zip(HEADERS, texts, strict=True)]
    return [*without_letter_headers(record.headers), *own]


def without_letter_headers(
    headers: list[tuple[str, bytes | None]],
) -> list[tuple[str, bytes | None]]:
    """The headers that a record had before it was a dead letter."""
    return [(name, value) for name, value in headers if name not in _OWN]


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


class DeadLetters:
    """Writes dead letters. For an event loop's thread; nothing is opened before the first letter.

    Args:
        kafka: How to reach the cluster.
        topic: The topic.
    """

    def __init__(self, kafka: KafkaConfig, topic: str) -> None:
        self._topic = topic
        self._brokers = servers(kafka)
        self._client = Client(Producer, kafka, lambda: _config(kafka), making="make a producer")
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._waiting: set[asyncio.Future[None]] = set()

    async def write(self, record: Record, error: BaseException | None, now: float) -> None:
        """Write the letter of a record; return when the broker has it.

        Raises:
            KafkaError: It has not: the topic refuses it, or the cluster cannot be reached.
            KafkaException: The producer does not take it.
            BufferError: Too much is waiting to be sent.
        """
        loop = asyncio.get_running_loop()
        producer = self._open(loop)
        written: asyncio.Future[None] = loop.create_future()

        def told(fault: Any, _: Any) -> None:
            loop.call_soon_threadsafe(answer, fault)

        def answer(fault: Any) -> None:
            if not written.done():
                if fault is None:
                    written.set_result(None)
                else:
                    written.set_exception(self._refused(fault))

        timestamp = record.timestamp
        producer.produce(
            self._topic,
            record.raw_value,
            record.raw_key,
            headers=letter_headers(record, error, now),
            on_delivery=told,
            **({} if timestamp < 0 else {"timestamp": timestamp}),
        )
        self._waiting.add(written)
        try:
            await written
        finally:
            self._waiting.discard(written)

    def _refused(self, fault: Any) -> KafkaError:
        is_denied = kind_of(fault) is Kind.AUTHORIZATION
        more = f"; grant the principal Write on topic {self._topic}" if is_denied else ""
        return kafka_error(
            fault,
            f"write a dead letter to topic {self._topic}",
            missing=f"topic {self._topic}, for dead letters, does not exist on {self._brokers}",
            more=more,
            topic=self._topic,
        )

    def _open(self, loop: asyncio.AbstractEventLoop) -> Any:
        producer = self._client.handle
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._poll, args=(producer, loop), name="kshare dead letters", daemon=True
            )
            self._thread.start()
        return producer

    def _poll(self, producer: Any, loop: asyncio.AbstractEventLoop) -> None:
        """Have the producer report, until the end or a fatal error: it writes no more then."""
        try:
            while not self._closed.is_set():
                producer.poll(_POLL_SECONDS)
        except KafkaException as error:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._ended, error.args[0])

    def _ended(self, fault: Any) -> None:
        """The next letter has another producer; those that are under way are written again."""
        self._thread = None
        self._client.close()
        for written in self._waiting:
            if not written.done():
                written.set_exception(self._refused(fault))

    def close(self) -> None:
        """Write no more."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        self._client.close()


def _config(kafka: KafkaConfig) -> Mapping[str, Any]:
    config = {
        **librdkafka_config(kafka),
        "acks": -1,
        "enable.idempotence": True,
        "partitioner": "murmur2_random",  # as Java's: a key's letters stay together
        "linger.ms": 5,
        "message.max.bytes": 100_000_000,  # what could be read can be written: the topic decides
        "message.timeout.ms": 30_000,
        **PROPAGATION,
        "log_level": 3,
    }
    config.pop("client.rack", None)  # a consumer's
    return config
