"""What a broker's error codes mean to a reader.

Law: a code is either worth a retry, or an error that names broker, topic, partition and offset.
"""

from kafka.errors import for_code

from kshare.errors import AuthorizationError, CorruptRecordError, KafkaError, KshareError, Location

__all__ = ["OFFSET_OUT_OF_RANGE", "code_name", "lasting_error"]

OFFSET_OUT_OF_RANGE = 1
_CORRUPT_MESSAGE = 2
_AUTHORIZATION_FAILED = {29, 31}
# Leadership moves, brokers start, storage fails over: ask for the leader again, and retry.
_RETRIABLE = {-1, _CORRUPT_MESSAGE, 3, 5, 6, 7, 8, 9, 13, 56, 74, 75, 78, 100}


def code_name(code: int) -> str:
    """The name of Kafka's error code."""
    return str(for_code(code).__name__)


def lasting_error(
    code: int,
    *,
    expired: bool,
    broker: str,
    topic: str,
    partition: int,
    offset: int | None,
) -> KshareError | None:
    """The error that a code of a Fetch response means; None: a retry may mend it.

    Args:
        code: Kafka's, not that of an offset out of range.
        expired: whether retries have gone on for the stated time.
        broker: who answered it.
        topic: to a request for this topic,
        partition: this partition,
        offset: from here on.
    """
    place: Location = {"broker": broker, "topic": topic, "partition": partition, "offset": offset}
    if code in _AUTHORIZATION_FAILED:
        return AuthorizationError(
            f"not authorized to read topic {topic}: grant the principal Read on it", **place
        )
    if code == _CORRUPT_MESSAGE and expired:
        return CorruptRecordError(
            f"broker {broker} reports that its own log of {topic}-{partition} is corrupt at offset "
            f"{offset}",
            **place,
        )
    if code in _RETRIABLE:
        return None
    return KafkaError(
        f"broker {broker} refused to read {topic}-{partition} at offset {offset}: "
        f"{code_name(code)} ({code})",
        **place,
    )
