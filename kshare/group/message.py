"""A record as an object: ``confluent_kafka.Message``'s methods over a row of Arrow columns.

Cost: 0.1 us a message with its key and value. The first access converts a column for all rows of
its chunk; values are converted before. A message keeps its chunk alive, 2,048 rows at most, and
the record batch that it was cut from. Whoever keeps rows for long takes them without their values
(:attr:`Chunk.slim`), or without the others (:mod:`kshare.group.core.kept_rows`).
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, groupby, repeat
from operator import itemgetter, length_hint
from typing import Any, Final, NamedTuple, Self, TypeAlias
from weakref import WeakMethod

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kshare.arrow_values import int64_array, int64_numbers
from kshare.core.progress import TopicPartition
from kshare.errors import ConsumerClosedError, KshareError
from kshare.group.delivery_start import DeliveryStart

__all__ = [
    "ACKNOWLEDGED",
    "CHUNK_ROWS",
    "NO_ROWS",
    "RELEASED",
    "REPLACED",
    "BatchMark",
    "Chunk",
    "Message",
    "ReleaseCount",
    "Rows",
    "batch_of",
    "chunks",
    "copied",
    "marked",
]

_MARK: Final = b"kshare.batch"

ACKNOWLEDGED: Final = 1
"""In :attr:`.Chunk.acknowledged`: nothing more is expected of the row."""
RELEASED: Final = 1
"""In :attr:`.Chunk.released`: the row comes again; until then, something is expected of it."""
REPLACED: Final = 2
"""In :attr:`.Chunk.released`: it comes in another row, and nothing more is expected of this one."""


CHUNK_ROWS: Final = 2_048
"""Maximum number of rows of a chunk."""

_SLIM: Final = ("offset", "key", "timestamp", "timestampType", "headers")


def _milliseconds(array: pa.Array) -> list[int]:
    times: list[int] = (int64_numbers(array.view(pa.int64())) // 1000).tolist()
    return times


def _integers(array: pa.Array) -> list[int]:
    integers: list[int] = int64_numbers(array).tolist()
    return integers


_CONVERSIONS: Final = {"timestamp": _milliseconds, "offset": _integers}
_COLUMNS: Final = frozenset(("headers", "key", "offset", "timestamp", "timestampType", "value"))


_numbers = count()
_ROWS: Final = tuple(range(CHUNK_ROWS))  # shared: an integer for each message takes as long as it


ReleaseCount: TypeAlias = WeakMethod[Callable[[TopicPartition, int], int]]
"""A method of a consumer that says how often a record was released."""


class Chunk:
    """Some rows of a partition, in offset order.

    Args:
        topic_partition: The partition.
        batch: The rows, with a column ``offset``.
        epochs: First offsets, ascending, each with the leader epoch of the rows up to the next one.

    Attributes:
        topic_partition: The partition.
        batch: The rows.
        epochs: As given.
        number: Unique in this process.
        acknowledged: For each row, 0 or ACKNOWLEDGED. Any thread may acknowledge, without a look.
        released: For each row, 0, RELEASED or REPLACED; it has the last word over `acknowledged`.
        offsets: The offset of each row.
        release_count: Refers to what says how often a record was released, by partition and offset,
            and keeps it not alive; None: none was.
        overtaken: Whether later records may have been handed out before, also between its rows.
        starts: The present :attr:`start`, if it is handed out.
        headers, key, offset, timestamp, timestampType, value: As :meth:`column`, once that was
            called.
    """

    # Columns have slots, and nothing is called where one is missing (`__getattr__`): `Message.key`
    # reads them for each record, and Python reads attributes of such a class directly.
    __slots__ = (
        "_slim",
        "acknowledged",
        "batch",
        "epochs",
        "headers",
        "key",
        "number",
        "offset",
        "offsets",
        "overtaken",
        "release_count",
        "released",
        "starts",
        "timestamp",
        "timestampType",
        "topic_partition",
        "value",
    )
    headers: list[list[dict[str, Any]] | None]
    key: list[bytes | None]
    offset: list[int]
    timestamp: list[int]
    timestampType: list[int]  # noqa: N815 - the column's name
    value: list[bytes | None]

    def __init__(
        self,
        topic_partition: TopicPartition,
        batch: pa.RecordBatch,
        epochs: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.topic_partition = topic_partition
        self.batch = batch
        self.epochs = epochs
        self.number = next(_numbers)
        self.acknowledged = bytearray(batch.num_rows)
        self.released = bytearray(batch.num_rows)
        self.offsets: npt.NDArray[np.int64] = int64_numbers(batch.column("offset"))
        self.release_count: ReleaseCount | None = None
        self.overtaken = False
        self.starts: list[DeliveryStart] = []
        self._slim: Chunk | None = None

    @property
    def slim(self) -> "Chunk":
        """The same rows without their values: about 100 bytes a row, and headers.

        Both share one :attr:`acknowledged`, one :attr:`released` and one :attr:`start`.
        """
        if self._slim is None:
            batch = copied(self.batch, _SLIM, [(0, self.batch.num_rows)])
            self._slim = Chunk(self.topic_partition, batch, self.epochs)
            self.share_with(self._slim)
        return self._slim

    def share_with(self, copy: "Chunk") -> None:
        """Have start, number, and what becomes of rows in common with a copy."""
        copy.number, copy.overtaken = self.number, self.overtaken
        copy.acknowledged, copy.released = self.acknowledged, self.released
        copy.release_count, copy.starts = self.release_count, self.starts

    @property
    def has_keys(self) -> bool:
        """True if the keys are read."""
        return "key" in self.batch.schema.names

    def belongs_to(self, start: DeliveryStart) -> None:
        """Have what is handed out of it belong to a start from now on."""
        self.starts[:] = [start]

    @property
    def start(self) -> DeliveryStart | None:
        """The start that what is handed out of it belongs to; None before that."""
        return self.starts[0] if self.starts else None

    def is_open(self, row: int) -> bool:
        """True if a row is neither acknowledged nor comes in another one."""
        return not self.acknowledged[row] or self.released[row] == RELEASED

    def first_open(self) -> int:
        """The first row that is open; -1 if there is none."""
        rows = self.acknowledged.find(0), self.released.find(RELEASED)
        return min(rows) if min(rows) >= 0 else max(rows)

    def open_rows(self) -> npt.NDArray[np.bool_]:
        """For each row, whether it is open."""
        rows = self.waiting_rows()
        if RELEASED in self.released:
            rows |= self._of_rows(self.released) == RELEASED
        return rows

    def waiting_rows(self) -> npt.NDArray[np.bool_]:
        """For each row, whether it is neither acknowledged nor released."""
        rows: npt.NDArray[np.bool_] = self._of_rows(self.acknowledged) == 0
        return rows

    def released_rows(self) -> list[int]:
        """The rows that are released and have not come in others yet, ascending."""
        rows: list[int] = np.flatnonzero(self._of_rows(self.released) == RELEASED).tolist()
        return rows

    def _of_rows(self, states: bytearray) -> npt.NDArray[np.uint8]:
        return np.frombuffer(states, np.uint8)

    @property
    def records(self) -> int:
        """Number of rows that are open."""
        return self.acknowledged.count(0) + self.released.count(RELEASED)

    def acknowledge(self, rows: npt.NDArray[np.int64]) -> None:
        """Nothing more is expected of some rows, unless they are released."""
        self._of_rows(self.acknowledged)[rows] = ACKNOWLEDGED

    def release(self, row: int) -> None:
        """Let a row that is not acknowledged come again."""
        if not self.acknowledged[row]:
            self.released[row] = RELEASED
            # Last: after an interrupt amid this, it is open still.
            self.acknowledged[row] = ACKNOWLEDGED

    def replace(self, row: int) -> None:
        """A row that is released comes in another one."""
        self.acknowledged[row] = ACKNOWLEDGED
        self.released[row] = REPLACED

    def close(self, row: int) -> None:
        """Nothing more is expected of a row, whether it is released or not."""
        self.acknowledged[row] = ACKNOWLEDGED
        if self.released[row]:
            self.released[row] = REPLACED

    def close_rows(self, first: int) -> None:
        """Close the rows from one on: they are never handed out, and no gaps."""
        count = len(self.acknowledged) - first
        self.acknowledged[first:] = bytes([ACKNOWLEDGED]) * count
        self.released[first:] = bytes(count)

    def column(self, name: str) -> list[Any]:
        """The values of a column as Python objects, converted once.

        Raises:
            ValueError: It is not read (``columns``).
        """
        if name not in _COLUMNS:
            raise ValueError(f"{name} is no column of a record")
        values: list[Any] | None = getattr(self, name, None)
        if values is None:
            if name not in self.batch.schema.names:
                raise ValueError(f"{name} is not read: add it to the configuration 'columns'")
            array = self.batch.column(name)
            convert = _CONVERSIONS.get(name)
            values = convert(array) if convert else array.to_pylist()
            setattr(self, name, values)
        return values

    def messages(self) -> "Rows":
        """A message for each row, made when it is taken."""
        rows = iter(_ROWS[: self.batch.num_rows])
        if "value" in self.batch.schema.names:
            return Rows(map(Message, repeat(self), rows, self.column("value")), rows)
        return Rows(map(_WithoutValue, repeat(self), rows, repeat(None)), rows)


class Rows(NamedTuple):
    """Messages that may be handed out.

    Attributes:
        messages: Taking a message hands it out.
        rest: An iterator with as many items left, for counting only.
    """

    messages: "Iterator[Message]"
    rest: Iterator[Any]

    @property
    def left(self) -> int:
        """How many are not taken yet."""
        return length_hint(self.rest)


NO_ROWS: Final = Rows(iter(()), iter(()))


def chunks(
    topic_partition: TopicPartition,
    batch: pa.RecordBatch,
    epochs: Sequence[tuple[int, int]] = (),
) -> Iterator[Chunk]:
    """Cut a record batch into chunks."""
    for start in range(0, batch.num_rows, CHUNK_ROWS):
        yield Chunk(topic_partition, batch.slice(start, CHUNK_ROWS), epochs)


def copied(
    batch: pa.RecordBatch, names: Sequence[str], stretches: Sequence[tuple[int, int]]
) -> pa.RecordBatch:
    """Some stretches of rows, which keep nothing of the others alive.

    Args:
        batch: The rows.
        names: The columns that are wanted, as far as they are there.
        stretches: Where each begins and ends.
    """
    batch = batch.select([name for name in names if name in batch.schema.names])
    parts = [batch.slice(first, end - first) for first, end in stretches]
    some = pa.concat_batches(parts) if len(parts) > 1 else parts[0]
    # Not by `take`, which costs an import; a slice would keep what it is a slice of.
    return pa.ipc.read_record_batch(some.serialize(), some.schema)


def batch_of(messages: "Sequence[Message]") -> pa.RecordBatch:
    """The rows of messages of one partition, at least one, as one record batch."""
    parts = []
    for _, of_chunk in groupby(messages, lambda message: id(message.chunk)):
        rows = list(of_chunk)
        parts.append(rows[0].chunk.batch.take(int64_array([each.row for each in rows])))
    return pa.concat_batches(parts)


# Of C: a class of Python's takes twice as long to make, and to read. The garbage collector need not
# know it, as nothing that it refers to refers to a message, or to a consumer.
class Message(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A record of Kafka, as ``confluent_kafka.Message``.

    Hold on to what you need of it rather than to the message: a message keeps its whole chunk.

    Attributes:
        chunk: The rows that it is one of; for kshare alone, as is all that follows.
        row: Which.
        data: The value.
    """

    chunk: Chunk
    row: int
    data: bytes | None

    def value(self) -> bytes | None:
        """The value; None for a tombstone."""
        return self.data

    def key(self) -> bytes | None:
        """The key; None if there is none."""
        try:  # for each record: to ask whether it is there would cost as much as the rest
            return self.chunk.key[self.row]
        except AttributeError:
            key: bytes | None = self.chunk.column("key")[self.row]
            return key

    def topic(self) -> str:
        """The topic."""
        return self.chunk.topic_partition.topic

    def partition(self) -> int:
        """The partition's number."""
        return self.chunk.topic_partition.partition

    def offset(self) -> int:
        """The offset."""
        try:  # as for the key
            return self.chunk.offset[self.row]
        except AttributeError:
            offset: int = self.chunk.column("offset")[self.row]
            return offset

    def timestamp(self) -> tuple[int, int]:
        """Type and milliseconds since 1970: (1, ...) set by the producer, (2, ...) by the broker.

        (0, -1) if there is none.
        """
        milliseconds = self.chunk.column("timestamp")[self.row]
        if milliseconds < 0:
            return 0, -1
        return self.chunk.column("timestampType")[self.row] + 1, milliseconds

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """The headers in their order; None if there are none."""
        headers = self.chunk.column("headers")[self.row]
        return headers and [(header["key"], header["value"]) for header in headers]

    def error(self) -> KshareError | None:
        """None: errors are raised."""
        return None

    def leader_epoch(self) -> int | None:
        """The epoch of the leader that wrote the record; None if the broker gave none."""
        epochs = self.chunk.epochs
        last = bisect_right(epochs, self.offset(), key=itemgetter(0)) - 1
        return epochs[last][1] if last >= 0 and epochs[last][1] >= 0 else None

    def delivery_count(self) -> int:
        """Number of this delivery: 1, and one more each time that the record was released.

        As in KIP-932. A restart, also by kill -9, begins with what the group's log has of it: a
        record that nobody released counts as delivered for the first time. The first call after a
        rebalance reads the log.

        Raises:
            ConsumerClosedError: The consumer that counts was deleted.
            KafkaError: The group's log cannot be read.
        """
        if self.chunk.release_count is None:
            return 1
        count = self.chunk.release_count()
        if count is None:
            raise ConsumerClosedError
        return 1 + count(self.topic_partition, self.offset())

    def is_released(self) -> bool:
        """True if it comes again, as it or an earlier record of its key was released: skip it."""
        return bool(self.chunk.released[self.row])

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition."""
        return self.chunk.topic_partition

    def __len__(self) -> int:
        """Size of the value in bytes."""
        return len(self.value() or b"")

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<Message {self.topic_partition} offset {self.offset()}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:  # a struct's would show the value
        return [("partition", str(self.topic_partition)), ("offset", self.offset())]

    def __reduce__(self) -> Any:
        raise TypeError("a message cannot be pickled or copied; take what you need of it")

    __copy__ = __reduce__

    def __replace__(self, **_: object) -> Self:
        raise TypeError("a message is read-only; take what you need of it")


class _WithoutValue(Message, frozen=True):
    """A message whose values are not read."""

    def value(self) -> bytes | None:
        """The value.

        Raises:
            ValueError: Values are not read (``columns``).
        """
        value: bytes | None = self.chunk.column("value")[self.row]
        return value

    def __len__(self) -> int:
        return len(self.value() or b"")


@dataclass(frozen=True, slots=True)
class BatchMark:
    """The records that a batch holds, as metadata in its schema.

    pyarrow keeps the metadata when a batch is sliced, filtered or sorted, or columns are selected.

    Attributes:
        partition: Their partition.
        chunks: Numbers of the chunks that they are of.
        first: The lowest of their offsets.
        last: The highest.
    """

    partition: TopicPartition
    chunks: frozenset[int]
    first: int
    last: int

    @classmethod
    def of(cls, batch: pa.RecordBatch | pa.Table) -> "BatchMark | None":
        """The mark of a batch; None if it has none."""
        text = (batch.schema.metadata or {}).get(_MARK)
        if text is None:
            return None
        topic, partition, chunks, first, last = json.loads(text)
        return cls(TopicPartition(topic, partition), frozenset(chunks), first, last)

    def holds(self, offsets: Any) -> bool:
        """True if all offsets may be of this batch: each is there once."""
        if not len(offsets):
            return True
        is_within = self.first <= offsets.min() and offsets.max() <= self.last
        return bool(is_within and np.all(np.diff(np.sort(offsets)) > 0))


def marked(batch: pa.RecordBatch, chunks: Sequence[Chunk]) -> pa.RecordBatch:
    """A batch with the mark of the chunks that its rows are of, at least one of one partition."""
    topic, partition = chunks[0].topic_partition
    offsets = int64_numbers(batch.column("offset"))
    numbers = sorted({chunk.number for chunk in chunks})
    text = json.dumps([topic, partition, numbers, int(offsets.min()), int(offsets.max())])
    return batch.replace_schema_metadata({_MARK: text.encode()})
