"""A record as a handler sees it.

Cost: 0.5 us a record. What is not in a slot is taken from the source's column when it is asked for.
"""

from collections.abc import Hashable
from typing import Any, Protocol

from kshare.core.progress import TopicPartition

__all__ = ["Record", "Source"]


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

    @property
    def attempt(self) -> int:
        """Number of the attempt that is under way: 1 for the first."""
        return self.failures + 1

    def __repr__(self) -> str:
        return f"<Record {self.topic_partition} offset {self.offset}>"
