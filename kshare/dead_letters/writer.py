"""Dead letters: records in another topic, with headers that say where from and why.

A letter has key, value, timestamp and headers of its record, and besides the headers that Kafka
Connect gives its own (``__connect.errors.topic``, ...), as texts: other tools read them. Two
letters of the same topic, partition and offset that are equal in key, value and headers are one
record, written again after a crash.

Guarantees: a letter counts as written when the broker has it on all in-sync replicas. One that its
topic never takes does not hold its key for ever: it is written without what is refused.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import KafkaException, Producer

from kshare.core.showing import error_text
from kshare.dead_letters.letter import LEFT_OUT, REWRITTEN, TIMESTAMP, Letter, Refusal
from kshare.dead_letters.record import Record, error_name
from kshare.errors import KafkaError, RecordRefusedError
from kshare.kafka.client import Client, code_of, kafka_error, kind_of, servers
from kshare.kafka.lacking import Idempotence
from kshare.kafka.protocol.error_codes import ErrorCode, Kind
from kshare.options import KafkaConfig
from kshare.query.produce.config import PROPAGATION
from kshare.security.librdkafka import librdkafka_config

__all__ = [
    "HEADERS",
    "RELEASE",
    "DeadLetters",
    "Letters",
    "letter_of_record",
    "without_letter_headers",
]

_log = logging.getLogger("kshare.processing")

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
_OWN: Final = frozenset({*HEADERS, RELEASE, LEFT_OUT, REWRITTEN, TIMESTAMP})
_MESSAGE_MAX: Final = 1_000
_POLL_SECONDS: Final = 0.1
_ONE_AT_A_TIME: Final = {"batch.num.messages": 1}
_REFUSALS: Final[Mapping[int, Refusal]] = {
    ErrorCode.MESSAGE_TOO_LARGE: Refusal.SIZE,
    ErrorCode.RECORD_LIST_TOO_LARGE: Refusal.SIZE,
    ErrorCode.INVALID_TIMESTAMP: Refusal.TIMESTAMP,
    ErrorCode.INVALID_RECORD: Refusal.INVALID,
    RdKafkaError._INVALID_DIFFERENT_RECORD: Refusal.INVALID,  # noqa: SLF001 - of the same batch
}


def letter_of_record(
    record: Record, error: BaseException | None, now: float, rewritten: Sequence[str] = ()
) -> Letter:
    """The whole dead letter of a record; what the record had as a letter before is replaced.

    Args:
        record: The record.
        error: Why it failed; None if it only follows an earlier one of its key.
        now: The time, in seconds since 1970.
        rewritten: Which of ``key`` and ``value`` are texts made of a frame's columns.
    """
    name = "" if error is None else error_name(error)
    reason = "an earlier record of its key is a dead letter" if error is None else error_text(error)
    texts = (
        record.topic,
        str(record.partition),
        str(record.offset),
        name[:_MESSAGE_MAX],
        reason[:_MESSAGE_MAX],
        str(record.failures),
        _iso(now if record.since is None else record.since),
        _iso(now),
    )
    own = [(name, text.encode()) for name, text in zip(HEADERS, texts, strict=True)]
    if rewritten:
        own.append((REWRITTEN, ", ".join(rewritten).encode()))
    return Letter(
        f"{record.topic_partition}@{record.offset}",
        record.raw_key,
        record.raw_value,
        record.timestamp,
        without_letter_headers(record.headers),
        own,
    )


def without_letter_headers(
    headers: list[tuple[str, bytes | None]],
) -> list[tuple[str, bytes | None]]:
    """The headers that a record had before it was a dead letter."""
    return [(name, value) for name, value in headers if name not in _OWN]


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


class Letters(Protocol):
    """Writes dead letters: :class:`DeadLetters`."""

    async def write(
        self,
        record: Record,
        error: BaseException | None,
        now: float,
        rewritten: Sequence[str] = (),
    ) -> None:
        """Return when the broker has the letter; the arguments are :func:`letter_of_record`'s."""

    def close(self) -> None:
        """Close the connection."""


class DeadLetters:
    """Writes dead letters. For an event loop's thread; nothing is opened before the first letter.

    A letter that its topic never takes is written without what is refused
    (:class:`~kshare.dead_letters.letter.Letter`), by a producer that sends one at a time: the
    others of a batch are refused with it, and are whole then.

    Args:
        kafka: How to reach the cluster.
        topic: The topic.
    """

    def __init__(self, kafka: KafkaConfig, topic: str) -> None:
        self._topic = topic
        self._brokers = servers(kafka)
        self._together = _Writer(kafka, topic, _config)
        self._singly = _Writer(kafka, topic, lambda kafka: _config(kafka) | _ONE_AT_A_TIME)
        self._said = set[tuple[str, ...]]()

    async def write(
        self,
        record: Record,
        error: BaseException | None,
        now: float,
        rewritten: Sequence[str] = (),
    ) -> None:
        """Write the letter of a record; return when the broker has it.

        Args:
            record: As for :func:`letter_of_record`.
            error: As there.
            now: As there.
            rewritten: As there.

        Raises:
            KafkaError: It has not: the topic refuses it, the cluster cannot be reached, or too much
                is waiting to be sent.
        """
        letter, writer = letter_of_record(record, error, now, rewritten), self._together
        while (fault := await writer.write(letter)) is not None:
            refusal = _REFUSALS.get(code_of(fault) or 0)
            if refusal is None:
                raise self._refused(fault)
            if writer is self._together:
                writer = self._singly
                continue
            smaller = letter.without(refusal)
            if smaller is None:
                raise RecordRefusedError(
                    f"topic {self._topic} takes no dead letter of {letter.place}, not even one of "
                    f"{letter.size:,} bytes that points at it: {refusal.value}. Waiting does not "
                    "help: change the topic's configuration, or use another topic",
                    topic=self._topic,
                )
            letter = smaller
        if letter.left_out:
            self._say_left_out(letter)

    def _say_left_out(self, letter: Letter) -> None:
        level = logging.INFO if letter.left_out in self._said else logging.WARNING
        self._said.add(letter.left_out)
        _log.log(
            level,
            "topic %s never takes the whole dead letter of %s, so it is written without: %s. "
            "The record is in its topic as long as retention keeps it",
            self._topic,
            letter.place,
            ", ".join(letter.left_out),
        )

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

    def close(self) -> None:
        """Write no more."""
        self._together.close()
        self._singly.close()


class _Writer:
    """A producer and its thread, opened with the first letter, for an event loop's thread.

    Args:
        kafka: How to reach the cluster.
        topic: The topic.
        config: Makes the producer's configuration.
    """

    def __init__(
        self, kafka: KafkaConfig, topic: str, config: Callable[[KafkaConfig], Mapping[str, Any]]
    ) -> None:
        self._topic = topic
        self._idempotence = Idempotence("dead letters")
        settings = lambda: {**self._idempotence.settings(), **config(kafka)}  # noqa: E731
        self._client = Client(Producer, kafka, settings, making="make a producer")
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._waiting: set[asyncio.Future[Any]] = set()

    async def write(self, letter: Letter) -> Any:
        """Write a letter; return why the broker has it not, None if it has.

        Raises:
            KafkaError: The producer cannot be made.
        """
        loop = asyncio.get_running_loop()
        producer = self._open(loop)
        written: asyncio.Future[Any] = loop.create_future()

        def told(fault: Any, _: Any) -> None:
            loop.call_soon_threadsafe(answer, fault)

        def answer(fault: Any) -> None:
            if not written.done():
                written.set_result(fault)

        try:
            producer.produce(
                self._topic,
                letter.value,
                letter.key,
                headers=letter.all_headers(),
                on_delivery=told,
                **({} if letter.timestamp < 0 else {"timestamp": letter.timestamp}),
            )
        except (KafkaException, BufferError) as error:  # too large for any topic; a full queue
            return error
        self._waiting.add(written)
        try:
            return await written
        finally:
            self._waiting.discard(written)

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
        self._idempotence.ended(fault)
        for written in self._waiting:
            if not written.done():
                written.set_result(fault)

    def close(self) -> None:
        """Write no more."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        self._client.close()


def _config(kafka: KafkaConfig) -> dict[str, Any]:
    config = {
        **librdkafka_config(kafka),
        "partitioner": "murmur2_random",  # as Java's: a key's letters stay together
        "linger.ms": 5,
        "message.max.bytes": 100_000_000,  # what could be read can be written: the topic decides
        "message.timeout.ms": 30_000,
        **PROPAGATION,
        "log_level": 3,
    }
    config.pop("client.rack", None)  # a consumer's
    return config
