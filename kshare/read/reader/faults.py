"""Obstacles of a reader, as values: the errors it raises, and offsets that are lost."""

from dataclasses import dataclass

from kshare.core.progress import Slice, TopicPartition
from kshare.errors import (
    AuthorizationError,
    CorruptRecordError,
    DataLossError,
    FetchTimeoutError,
    KafkaError,
    KshareError,
    Location,
)
from kshare.kafka.protocol import error_codes
from kshare.kafka.protocol.error_codes import ErrorCode, Kind
from kshare.options import KafkaConfig

__all__ = ["LostOffsets", "ReadPosition", "no_progress", "permanent_error", "why_missing"]


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """The position of a reader.

    Attributes:
        broker: Address of the broker that was asked last.
        topic_partition: The partition.
        offset: The next wanted offset; None if all is read.
    """

    broker: str
    topic_partition: TopicPartition
    offset: int | None

    @property
    def facts(self) -> Location:
        """The attributes of an error."""
        topic, partition = self.topic_partition
        return {
            "broker": self.broker,
            "topic": topic,
            "partition": partition,
            "offset": self.offset,
        }


def permanent_error(code: int, position: ReadPosition, *, expired: bool) -> KshareError | None:
    """The error that a code of a Fetch response means; None if a retry may help.

    Args:
        code: Kafka's error code, other than OFFSET_OUT_OF_RANGE.
        position: What was asked for.
        expired: Whether retries have gone on for the stated time.
    """
    partition, offset = position.topic_partition, position.offset
    if error_codes.kind(code) is Kind.AUTHORIZATION:
        return AuthorizationError(
            f"not authorized to read topic {partition.topic}: grant the principal Read on it",
            **position.facts,
        )
    if code == ErrorCode.CORRUPT_MESSAGE and expired:
        return CorruptRecordError(
            f"broker {position.broker} reports that its own log of {partition} is corrupt at "
            f"offset {offset}",
            **position.facts,
        )
    if error_codes.is_retriable(code):
        return None
    return KafkaError(
        f"broker {position.broker} refused to read {partition} at offset {offset}: "
        f"{error_codes.name(code)} ({code})",
        **position.facts,
    )


def why_missing(*, is_deleted: bool) -> str:
    """The reason why the log does not hold an offset, as the end of a sentence.

    Args:
        is_deleted: Whether the offset is below the log's first one.
    """
    if is_deleted:
        return "was deleted by retention or by an operator"
    return "is beyond the end of the log (truncated, or the topic was made anew)"


def no_progress(kafka: KafkaConfig, position: ReadPosition, why: str) -> FetchTimeoutError:
    """The error after the stated time without a record."""
    stated = kafka.poll_timeout_ms is not None
    option = "kafkaConsumer.pollTimeoutMs" if stated else "kafka.default.api.timeout.ms"
    return FetchTimeoutError(
        f"no progress on {position.topic_partition} at offset {position.offset} from broker "
        f"{position.broker} for {kafka.read_timeout_ms / 1000:g} s ({option}): {why}",
        **position.facts,
    )


@dataclass(frozen=True, slots=True)
class LostOffsets:
    """Wanted offsets that are not in the log.

    Attributes:
        slice: The slice that wants them.
        position: Where its reader stands.
        earliest: The first offset that the log holds.
        latest: The end of the log.
    """

    slice: Slice
    position: ReadPosition
    earliest: int
    latest: int

    @property
    def wanted(self) -> tuple[int, int]:
        """The offsets that are still wanted, as (start, end)."""
        assert self.position.offset is not None
        return self.position.offset, self.slice.offsets.end

    @property
    def is_deleted(self) -> bool:
        """True if they were deleted; False if they are beyond the end."""
        return self.wanted[0] < self.earliest

    @property
    def end(self) -> int:
        """The end of what is lost."""
        end = self.slice.offsets.end
        return min(self.earliest, end) if self.is_deleted else end

    def __str__(self) -> str:
        start, end = self.wanted
        whole = self.slice.hashes.is_whole
        of_hashes = "" if whole else f" of the key hashes {self.slice.hashes}"
        return (
            f"{self.position.topic_partition}: offsets {start} to {end}{of_hashes} are wanted, the "
            f"log holds {self.earliest} to {self.latest} (ends not included): what is missing "
            f"{why_missing(is_deleted=self.is_deleted)}"
        )

    @property
    def error(self) -> DataLossError:
        """The error of a reader that may not lose records."""
        return DataLossError(
            f"{self}. If losing it is acceptable, set failOnDataLoss to false.",
            wanted=self.wanted,
            available=(self.earliest, self.latest),
            **self.position.facts,
        )
