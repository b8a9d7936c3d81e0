"""Records that are larger than they may be: what is known of them, and what becomes of them.

Guarantees: a record over the limit is an error with its place and size, or is left out with a
warning that says so; never cut, and never left out in silence. Whether one is over the limit
follows from its bytes alone: so a planner that counts records and a task that reads them agree.
"""

import logging
from typing import Final, NamedTuple

from kshare.core.progress import TopicPartition
from kshare.errors import RecordTooLargeError

__all__ = [
    "HEAD_BYTES",
    "LargeRecords",
    "RecordHead",
    "no_memory",
    "record_head",
    "record_length",
]

_log = logging.getLogger(__name__)

HEAD_BYTES: Final = 41
"""Bytes before a record's key, at most."""

_OPTION: Final = "maxRecordBytes (consumers: max.record.bytes)"
_VARINT_BITS: Final = 70
_LENGTH_MAX: Final = 2**31 - 1  # of a record: an int in Java, which refuses more


class RecordHead(NamedTuple):
    """The begin of a record.

    Attributes:
        size: Size of the record with its length.
        delta: Its offset, less that of its batch.
        key: Its key; None if it has none.
        has_key: Whether all of the key was there; if not, ``key`` is its begin.
    """

    size: int
    delta: int
    key: bytes | None
    has_key: bool


def record_length(data: memoryview) -> int | None:
    """The length of a record that is cut off; 0 if not even that is there, None if it is none."""
    try:
        length, _ = _varint(data, 0)
    except IndexError:
        return 0
    except ValueError:
        return None
    return length if 0 < length <= _LENGTH_MAX else None


def record_head(data: memoryview) -> RecordHead | None:
    """Read the begin of a record; None if a number of it is not there, or is none."""
    try:
        length, body = _varint(data, 0)
        _, at = _varint(data, body + 1)  # the timestamp, behind the attributes
        delta, at = _varint(data, at)
        key_size, at = _varint(data, at)
    except (IndexError, ValueError):
        return None
    if key_size < -1 or at + key_size > body + length:
        return None
    key = None if key_size < 0 else bytes(data[at : at + key_size])
    return RecordHead(body + length, delta, key, key is None or len(key) == key_size)


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A zigzag varint of 64 bits at most, and the position behind it."""
    value = 0
    for shift in range(0, _VARINT_BITS, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            value &= (1 << 64) - 1
            return value >> 1 ^ -(value & 1), at
    raise ValueError("longer than 64 bits")


class LargeRecords:
    """What becomes of the records of a partition that are larger than they may be.

    Args:
        topic_partition: The partition.
        most: Maximum size of a record.
        are_left_out: Whether they are left out, with a warning; else they are an error.

    Attributes:
        most: As given.
    """

    def __init__(self, topic_partition: TopicPartition, most: int, *, are_left_out: bool) -> None:
        self.most = most
        self._place = topic_partition
        self._are_left_out = are_left_out

    def record(self, offset: int, size: int) -> None:
        """Pass over one that is wanted.

        Raises:
            RecordTooLargeError: Nothing is left out.
        """
        what = f"{self._place}: the record at offset {offset} has {size} bytes (decompressed)"
        self._pass_over(what, f"offset {offset}", offset, size)

    def block(self, first: int, last: int, size: int) -> None:
        """Pass over what is left of a batch, which begins with a snappy block that is too large.

        Raises:
            RecordTooLargeError: Nothing is left out.
        """
        what = (
            f"{self._place}: a snappy block with records from offset {first} on has {size} bytes "
            "decompressed, and must be decompressed at once"
        )
        self._pass_over(what, f"the rest of its batch, offsets {first} to {last}", first, size)

    def _pass_over(self, what: str, offsets: str, offset: int, size: int) -> None:
        limit = f"more than {self.most}, which is {_OPTION}"
        if self._are_left_out:
            _log.warning(
                "%s, %s. Left out, since failOnDataLoss is false: %s", what, limit, offsets
            )
            return
        topic, partition = self._place
        error = RecordTooLargeError(
            f"{what}, {limit}. Raise it to read the record; a process needs about three times as "
            "much memory. If losing it is acceptable, set failOnDataLoss to false (consumers: seek "
            f"to offset {offset + 1})",
            topic=topic,
            partition=partition,
            offset=offset,
        )
        error.size = size
        raise error


def no_memory(topic_partition: TopicPartition, offset: int) -> RecordTooLargeError:
    """The error of a process that has no memory for records of the batch at an offset."""
    topic, partition = topic_partition
    return RecordTooLargeError(
        f"{topic}-{partition}, batch at offset {offset}: the process has no memory for its records "
        "(MemoryError). Give it more (spark.executor.pyspark.memory, the container's limit, ulimit "
        f"-v), or lower {_OPTION}, which bounds what one record takes",
        topic=topic,
        partition=partition,
        offset=offset,
    )
