"""The texts of librdkafka as sentences that say the cause and what helps.

The one table of them: :func:`kshare.kafka.client.kafka_error` uses it for each error that
surfaces, in sinks, groups, processors and commands. What librdkafka says stands behind it, to be
searched for.
"""

from collections.abc import Mapping
from typing import Final

from confluent_kafka import KafkaError as RdKafkaError

from kshare.kafka.protocol.error_codes import ErrorCode

__all__ = ["text_of"]

_GIVEN_UP: Final = "it was given up with its transaction or its producer, for another one's error"
_TOO_FEW: Final = "fewer of the partition's replicas are in sync than min.insync.replicas asks for"

_TEXTS: Final[Mapping[int, str]] = {
    ErrorCode.MESSAGE_TOO_LARGE: "a batch with this record is larger than its topic takes "
    "(max.message.bytes)",
    ErrorCode.RECORD_LIST_TOO_LARGE: "a batch with this record is larger than a segment of its "
    "topic (segment.bytes)",
    ErrorCode.NOT_ENOUGH_REPLICAS: _TOO_FEW,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: _TOO_FEW,
    ErrorCode.INVALID_TIMESTAMP: "the record's timestamp is further from the broker's time than "
    "its topic takes (message.timestamp.before.max.ms and message.timestamp.after.max.ms; it is in "
    "milliseconds)",
    ErrorCode.INVALID_RECORD: "the brokers do not take such a record: it has no key and its topic "
    "is compacted, or they check schemas",
    RdKafkaError._INVALID_DIFFERENT_RECORD: "another record of the same batch is not as "  # noqa: SLF001
    "its topic wants it, so none of the batch was taken",
    RdKafkaError._MSG_TIMED_OUT: "no broker took it in time: the partition has no leader that "  # noqa: SLF001
    "answers, or its topic does not exist, or brokers are slower than records come",
    RdKafkaError._QUEUE_FULL: "the producer's queue is full, as brokers are slower than records "  # noqa: SLF001
    "come",
    RdKafkaError._PURGE_QUEUE: _GIVEN_UP,  # noqa: SLF001
    RdKafkaError._PURGE_INFLIGHT: _GIVEN_UP,  # noqa: SLF001
    RdKafkaError._UNSUPPORTED_FEATURE: "the brokers do not know a request that this needs, such as "  # noqa: SLF001
    "InitProducerId (outside transactions, enable.idempotence=false does without it)",
    RdKafkaError._NOENT: "no partition that was asked for has a leader, or none exists",  # noqa: SLF001
}


def text_of(error: RdKafkaError) -> str:
    """The meaning of an error of librdkafka; its own words alone if there is nothing to add."""
    said = error.str()
    text = _TEXTS.get(error.code())
    return said if text is None else f"{text} ({said})" if said else text
