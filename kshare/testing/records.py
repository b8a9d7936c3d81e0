"""Records to fill topics with.

Law: the same arguments make the same records. Cost: a Python object a record: for tests and the
demo, up to a few hundred thousand.
"""

import random
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

__all__ = [
    "Record",
    "RecordLike",
    "produce",
    "produce_all",
    "producer_config",
    "skewed_records",
    "watermarks",
]

_WAIT_SECONDS = 30.0
_ASK_SECONDS = 2.0
_PAUSE_SECONDS = 0.02
_LINGER_MS = 30_000  # however slow the machine is that hands a few records over, they are one batch
_TIMEOUTS = {"message.timeout.ms", "delivery.timeout.ms"}  # librdkafka wants them to be longer
# A topic that was just made: its leader is chosen, or the broker asked does not know yet.
_NOT_YET = {
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
    KafkaError._TIMED_OUT,  # noqa: SLF001
    KafkaError._TRANSPORT,  # noqa: SLF001
    KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
}


@dataclass(frozen=True, slots=True)
class Record:
    """A record to be produced.

    Attributes:
        key: None is a record without one; text becomes UTF-8.
        value: None is a tombstone; text becomes UTF-8.
        headers: names and values, in order; a name may occur again.
        timestamp: milliseconds since 1970; None is now.
        partition: where it goes; None: chosen by the key, as Java's producer does.
    """

    key: bytes | str | None = None
    value: bytes | str | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp: int | None = None
    partition: int | None = None


RecordLike: TypeAlias = Record | tuple[bytes | str | None, bytes | str | None]
"""A record, or a pair of key and value."""


def producer_config(bootstrap_servers: str) -> dict[str, Any]:
    """Configuration of the test kit's producers: nothing lost, doubled or reordered by retries.

    Keys go where Java's producer would put them.
    """
    return {
        "bootstrap.servers": bootstrap_servers,
        "enable.idempotence": True,
        "partitioner": "murmur2_random",
        "linger.ms": 1_000,  # flush() does not wait for it: a few records are one batch
        # Else it often asks a leader of its own accord 50 ms after it could.
        "enable.sparse.connections": False,
        "log_level": 2,  # that a broker is gone is what tests do on purpose
    }


def produce(
    bootstrap_servers: str,
    topic: str,
    records: Iterable[RecordLike],
    *,
    partition: int | None = None,
    config: Mapping[str, object] | None = None,
    seconds_max: float = _WAIT_SECONDS,
) -> int:
    """Produce records, and return when the brokers have all of them.

    Args:
        bootstrap_servers: ``host:port`` of one broker or more, separated by commas.
        topic: Topic to write to.
        records: Records to write.
        partition: where records go that name no partition; None: chosen by their keys.
        config: properties of librdkafka; they win over those of :func:`producer_config`.
        seconds_max: how long to wait for the last of them.

    Returns:
        How many records were produced.

    Raises:
        KafkaException: A record was refused.
        TimeoutError: Some were not taken in time.
    """
    given = dict(config or {})
    if not given.keys() & _TIMEOUTS:
        given = {"linger.ms": _LINGER_MS} | given
    producer = Producer(producer_config(bootstrap_servers) | given)
    # While librdkafka does not know the topic's partitions, it holds the records, and then hands
    # them over one by one: a flush would send those handed over so far as a batch of their own.
    with suppress(KafkaException):  # no answer, or no topic: sending them tells
        producer.list_topics(topic, _ASK_SECONDS)
    refused: list[KafkaError] = []
    count = _send(producer, topic, records, partition, refused)
    left = producer.flush(seconds_max)
    if refused:
        raise KafkaException(refused[0])
    if left:
        raise TimeoutError(f"{left} of {count} records for {topic} not taken in {seconds_max:g} s")
    return count


def produce_all(
    producer: Producer,
    topic: str,
    records: Iterable[RecordLike],
    *,
    partition: int | None = None,
) -> int:
    """Hand records to a producer that the caller made, and that the caller flushes.

    Args:
        producer: a confluent-kafka producer; in a transaction or not.
        topic: where to.
        records: what.
        partition: where records go that name no partition; None: chosen by their keys.

    Returns:
        How many records were handed over.

    Raises:
        KafkaException: A record was refused while others were handed over.
    """
    refused: list[KafkaError] = []
    count = _send(producer, topic, records, partition, refused)
    if refused:
        raise KafkaException(refused[0])
    return count


def skewed_records(
    n: int,
    keys: int = 1_000,
    *,
    skew: float = 1.0,
    value_bytes: int = 32,
    seed: int = 0,
) -> Iterator[Record]:
    """Records whose keys follow a Zipf distribution: a few are hot, as in real topics.

    Args:
        n: how many records.
        keys: how many different keys; rare ones may not occur.
        skew: key number ``i`` (from 1) is drawn in proportion to ``i ** -skew``; 0 is even.
        value_bytes: the length of a value, at least that of its number.
        seed: Seed of the random choice; the same seed gives the same records.

    Yields:
        Records with keys ``key-000000``, ... and values that begin with the record's number.
    """
    chance = random.Random(seed)  # noqa: S311 - no secret
    weights = list(accumulate(i**-skew for i in range(1, keys + 1)))
    names = [f"key-{i:06}".encode() for i in range(keys)]
    for number in range(n):
        drawn = bisect_left(weights, chance.random() * weights[-1])
        yield Record(names[min(drawn, keys - 1)], str(number).encode().ljust(value_bytes, b"."))


def watermarks(
    bootstrap_servers: str,
    topic: str,
    partition: int = 0,
    *,
    seconds_max: float = _WAIT_SECONDS,
) -> tuple[int, int]:
    """The first offset of a partition's log, and the offset after the last one.

    Asks again while a new topic has no leader yet.

    Raises:
        KafkaException: The brokers refused, or there was no answer in time.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "kshare-testing",
            "isolation.level": "read_uncommitted",  # else it is told where open transactions begin
            "log_level": 2,
        }
    )
    deadline = time.monotonic() + seconds_max
    topic_partition = TopicPartition(topic, partition)
    try:
        while True:
            try:
                offsets: tuple[int, int] = consumer.get_watermark_offsets(
                    topic_partition, _ASK_SECONDS
                )
            except KafkaException as error:
                if error.args[0].code() not in _NOT_YET or time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_SECONDS)
                with suppress(KafkaException):  # it asks for the leaders again
                    consumer.list_topics(topic, timeout=_ASK_SECONDS)
            else:
                return offsets
    finally:
        consumer.close()


def _send(
    producer: Producer,
    topic: str,
    records: Iterable[RecordLike],
    partition: int | None,
    refused: list[KafkaError],
) -> int:
    """Hand records over; what the brokers refuse is added to ``refused`` as it is reported."""

    def on_delivery(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            refused.append(error)

    count = 0
    for given in records:
        record = given if isinstance(given, Record) else Record(*given)
        _hand_over(producer, topic, record, partition, on_delivery)
        count += 1
        if not count % 1_000:
            producer.poll(0)
    return count


def _hand_over(
    producer: Producer,
    topic: str,
    record: Record,
    partition: int | None,
    on_delivery: Callable[[KafkaError | None, object], None],
) -> None:
    fields: dict[str, Any] = {}
    where = partition if record.partition is None else record.partition
    if where is not None:
        fields["partition"] = where
    if record.timestamp is not None:
        fields["timestamp"] = record.timestamp
    if record.headers:
        fields["headers"] = list(record.headers)
    while True:
        try:
            producer.produce(topic, record.value, record.key, on_delivery=on_delivery, **fields)
        except BufferError:  # the queue is full, maybe of batches that wait for more
            producer.flush(0.1)
        else:
            return
