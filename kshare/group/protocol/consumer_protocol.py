"""Kafka's own bytes of what consumers say to each other through their group's coordinator.

The "consumer" protocol, version 0; what later versions add behind it is passed over::

    subscription: version (int16), topics (array of string), user data (bytes)
    assignment:   version (int16), topics with partitions (array), user data (bytes)

``decode_x(encode_x(value)) == value``, for partitions in order.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from kshare.core.progress import TopicPartition

__all__ = [
    "PROTOCOL_TYPE",
    "decode_partitions",
    "decode_topics",
    "encode_partitions",
    "encode_topics",
]

PROTOCOL_TYPE: Final = "consumer"
"""What Kafka's own consumers say, and their tools expect."""


def encode_topics(topics: Sequence[str], user_data: bytes) -> bytes:
    """The bytes of a subscription."""
    head = struct.pack(">hi", 0, len(topics))
    return b"".join([head, *map(_string, topics), _bytes(user_data)])


def decode_topics(data: bytes) -> tuple[tuple[str, ...], bytes]:
    """The topics of a subscription, and its user data.

    Raises:
        ValueError: The bytes are no subscription.
    """
    reader = _Reader(data)
    reader.version()
    topics = tuple(reader.string() for _ in range(reader.length()))
    return topics, reader.blob()


def encode_partitions(
    partitions: Iterable[TopicPartition], user_data: bytes | None = None
) -> bytes:
    """The bytes of an assignment."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    head = struct.pack(">hi", 0, len(by_topic))
    listed = (_string(topic) + _int32s(numbers) for topic, numbers in by_topic.items())
    return b"".join([head, *listed, _bytes(user_data)])


def decode_partitions(data: bytes) -> tuple[tuple[TopicPartition, ...], bytes]:
    """The partitions of an assignment, and its user data.

    Raises:
        ValueError: The bytes are no assignment.
    """
    reader = _Reader(data)
    reader.version()
    partitions: list[TopicPartition] = []
    for _ in range(reader.length()):
        topic = reader.string()
        partitions += (TopicPartition(topic, reader.int32()) for _ in range(reader.length()))
    return tuple(partitions), reader.blob()


class _Reader:
    """Reads Kafka's primitive types."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def version(self) -> None:
        version = self._number(">h", 2)
        if version < 0:
            raise ValueError(f"a version of {version}")

    def int32(self) -> int:
        return self._number(">i", 4)

    def length(self) -> int:
        """The length of an array, of which each element takes two bytes at least."""
        length = self.int32()
        if not 0 <= length <= len(self._data) // 2:
            raise ValueError(f"an array of {length}")
        return length

    def string(self) -> str:
        return self._take(self._number(">h", 2)).decode()

    def blob(self) -> bytes:
        length = self.int32()
        return b"" if length == -1 else self._take(length)

    def _number(self, form: str, size: int) -> int:
        number: int
        (number,) = struct.unpack(form, self._take(size))
        return number

    def _take(self, size: int) -> bytes:
        if size < 0 or self._position + size > len(self._data):
            raise ValueError("it is cut short")
        taken = self._data[self._position : self._position + size]
        self._position += size
        return taken


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def _bytes(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def _int32s(numbers: Sequence[int]) -> bytes:
    return struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
