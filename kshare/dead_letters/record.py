"""A record as a handler sees it, and what became of it.

Cost: 0.5 us a record. What is not in a slot is taken from the source's column when it is asked for.
"""

from collections.abc import Hashable
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from kshare.core.progress import TopicPartition

__all__ = [
    "FILTERED",
    "EarlierFailure",
    "Mark",
    "Outcome",
    "Record",
    "Source",
    "Status",
    "error_name",
]


class Source(Protocol):
    """Rows of one partition: see :class:`kshare.group.message.Chunk`."""

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition of all rows."""

    def column(self, name: str) -> list[Any]:
        """The values of a column of kshare's source as Python objects.

        Raises:
            ValueError: The column is not read.
        """


class _Place(NamedTuple):
    """A source of which only the partition is known."""

    topic_partition: TopicPartition

    def column(self, name: str) -> list[Any]:
        raise ValueError(f"{name} is not held any more")


class Record:
    """A record of Kafka, and how often it was tried.

    Args:
        source: The rows that it is one of.
        row: Its row.
        offset: Its offset.
        raw_key: Its key; None if there is none.
        raw_value: Its value; None for a tombstone.
        lane: What is processed one after another: its key, by default.

    Attributes:
        source: As given.
        row: As given.
        offset: The offset.
        raw_key: The key in bytes; None if there is none.
        raw_value: The value in bytes; None for a tombstone.
        key: The key, deserialized if there is a ``key_deserializer``.
        value: The value, deserialized if there is a ``value_deserializer``.
        lane: As given.
        size: Size of key and value in bytes.
        failures: How often it was tried and failed, before a restart too.
        since: When it failed first, in seconds since 1970; None if it has not.
        due: From when on it may be tried, in seconds since 1970.
    """

    __slots__ = (
        "due",
        "failures",
        "key",
        "lane",
        "offset",
        "raw_key",
        "raw_value",
        "row",
        "since",
        "size",
        "source",
        "value",
    )

    def __init__(
        self,
        source: Source,
        row: int,
        offset: int,
        raw_key: bytes | None,
        raw_value: bytes | None,
        lane: Hashable,
    ) -> None:
        self.source = source
        self.row = row
        self.offset = offset
        self.key: Any = raw_key
        self.raw_key = raw_key
        self.value: Any = raw_value
        self.raw_value = raw_value
        self.lane = lane
        self.size = len(raw_key or b"") + len(raw_value or b"")
        self.failures = 0
        self.since: float | None = None
        self.due = 0.0

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition."""
        return self.source.topic_partition

    @property
    def topic(self) -> str:
        """The topic."""
        return self.source.topic_partition.topic

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self.source.topic_partition.partition

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970; -1 if there is none."""
        milliseconds: int = self.source.column("timestamp")[self.row]
        return milliseconds

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """The headers in their order."""
        headers = self.source.column("headers")[self.row] or ()
        return [(header["key"], header["value"]) for header in headers]

    def without_rows(self) -> "Record":
        """Its place and key, which keep nothing else in memory."""
        place = _Place(self.topic_partition)
        return Record(place, self.row, self.offset, self.raw_key, None, self.lane)

    @property
    def attempt(self) -> int:
        """Number of the attempt that is under way: 1 for the first."""
        return self.failures + 1

    def __repr__(self) -> str:
        return f"<Record {self.topic_partition} offset {self.offset}>"


class Status(StrEnum):
    """The end of a record's handling."""

    DONE = "done"
    FILTERED = "filtered"
    """The handler returned :data:`FILTERED`: nothing was to be done."""
    FAILED = "failed"
    """All attempts have failed, and the processor stops (:class:`~kshare.processing.Stop`)."""
    DEAD_LETTERED = "dead_lettered"
    """The broker has it in the dead-letter topic."""
    PARKED = "parked"
    """Its key is parked; the record is pending."""
    LEFT_OVER = "left_over"
    """It was not processed, and is pending."""

    @property
    def is_final(self) -> bool:
        """True if the record is acknowledged: it does not come again."""
        return self is Status.DONE or self in _FINAL


_FINAL = frozenset((Status.DONE, Status.FILTERED, Status.DEAD_LETTERED))


class EarlierFailure(Exception):  # noqa: N818 - it stands for another error
    """An error of an earlier run, of which name and text were kept.

    Args:
        name: Module and name of its class.
        text: Its text.
    """

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


class Mark(NamedTuple):
    """The begin of a sequence: from this record on, those of its key go to the dead letters.

    Attributes:
        offset: Offset of the record that failed.
        error: Why; None if it was not kept.
        failures: How often it was tried.
        since: When it failed first, in seconds since 1970; None if it was not kept.
    """

    offset: int
    error: EarlierFailure | None = None
    failures: int = 0
    since: float | None = None


def error_name(error: BaseException) -> str:
    """The module and name of an error's class."""
    if isinstance(error, EarlierFailure):
        return error.name
    kind = type(error)
    return f"{kind.__module__}.{kind.__qualname__}"


class Outcome(NamedTuple):
    """A record whose handling has ended, with its status.

    Attributes:
        record: The record.
        status: What became of it.
        result: What the handler returned; None if it did not succeed.
        error: Why the last attempt failed; None if none did.
        attempts: Number of attempts; 0 if there was none.
    """

    record: Record
    status: Status
    result: Any = None
    error: BaseException | None = None
    attempts: int = 1


class _Filtered:
    def __repr__(self) -> str:
        return "FILTERED"


FILTERED = _Filtered()
"""What a handler returns if a record is none of its business; it counts as processed."""
