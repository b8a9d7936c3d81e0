"""What a broker's refusal to serve a Fetch request means to a reader."""

from kshare.errors import (
    AuthorizationError,
    CorruptRecordError,
    KafkaError,
    KshareError,
    Location,
)
from kshare.wire.protocol import error_codes
from kshare.wire.protocol.error_codes import ErrorCode, Kind

__all__ = ["permanent_error"]


def permanent_error(
    code: int,
    *,
    expired: bool,
    broker: str,
    topic: str,
    partition: int,
    offset: int | None,
) -> KshareError | None:
    """The error that a code of a Fetch response means; None if a retry may help.

    Args:
        code: Kafka's error code, other than OFFSET_OUT_OF_RANGE.
        expired: Whether retries have gone on for the stated time.
        broker: Address of the broker that answered.
        topic: Topic of the request.
        partition: Partition of the request.
        offset: Offset that was asked for.
    """
    where: Location = {"broker": broker, "topic": topic, "partition": partition, "offset": offset}
    if error_codes.kind(code) is Kind.AUTHORIZATION:
        return AuthorizationError(
            f"not authorized to read topic {topic}: grant the principal Read on it", **where
        )
    if code == ErrorCode.CORRUPT_MESSAGE and expired:
        return CorruptRecordError(
            f"broker {broker} reports that its own log of {topic}-{partition} is corrupt at offset "
            f"{offset}",
            **where,
        )
    if error_codes.is_retriable(code):
        return None
    return KafkaError(
        f"broker {broker} refused to read {topic}-{partition} at offset {offset}: "
        f"{error_codes.name(code)} ({code})",
        **where,
    )
