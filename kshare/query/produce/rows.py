"""Arrow batches as the arguments of librdkafka's ``produce``: a list each, a row at each place.

Guarantees: values, keys and headers are bytes as they were in the column, null stays null, and the
order of rows is kept. A row that cannot be sent is refused with its number before any of its batch
is sent. Pure: no I/O.

Cost: one Python object a key, value and topic name, made by compiled code; headers cost Python a
tuple each. A batch may be one row (``realTime``), a thousand times a second, in a process that
sleeps in between: so what costs by the batch is kept low, too. A function of pyarrow.compute costs
as much as some hundred rows there.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise, repeat
from typing import Any, Final, TypeAlias

import pyarrow as pa

from kshare.errors import KafkaError

__all__ = ["Rows", "rows_of"]

Headers: TypeAlias = list[tuple[str, bytes | None]] | None

_ANY_PARTITION: Final = -1
_ROWS_AT_ONCE: Final = 10_000
_COLUMNS: Final = ("key", "value", "topic", "partition", "headers")


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a batch; all lists are of the same length, None stands for that many nulls.

    Attributes:
        topics: names, or one name for all rows.
        partitions: -1 where the partitioner chooses.
    """

    topics: list[str] | str
    values: list[bytes | None]
    keys: list[bytes | None] | None = None
    partitions: list[int] | None = None
    headers: list[Headers] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def topic_of(self, row: int) -> str:
        """The topic of a row."""
        return self.topics if isinstance(self.topics, str) else self.topics[row]

    def arguments(self, start: int = 0) -> tuple[Iterable[Any], ...]:
        """The arguments of ``produce`` from row ``start`` on, to be mapped over.

        The second one is an iterator over a list: its length hint tells how many rows are left.
        """

        def rest(column: list[Any] | None, default: object) -> Iterable[Any]:
            return repeat(default) if column is None else iter(column[start:] if start else column)

        topics = repeat(self.topics) if isinstance(self.topics, str) else rest(self.topics, None)
        plain = (
            topics,
            rest(self.values, None),
            rest(self.keys, None),
            rest(self.partitions, _ANY_PARTITION),
        )
        if self.headers is None:
            return plain
        # topic, value, key, partition, callback, on_delivery, timestamp, headers
        return (*plain, repeat(None), repeat(None), repeat(0), rest(self.headers, None))


def rows_of(batch: pa.RecordBatch, topic: str | None) -> Iterator[Rows]:
    """Cut a batch into rows to send.

    Args:
        batch: columns as Spark's Kafka sink has them (checked with the options); others are not
            looked at.
        topic: the option, which outranks the column.

    Raises:
        KafkaError: A row without a topic, or with a negative partition.
    """
    names = batch.schema.names
    columns = {name: batch.column(name) for name in _COLUMNS if name in names}
    _check(columns, topic)
    is_one = batch.num_rows <= _ROWS_AT_ONCE
    for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
        part = columns if is_one else _sliced(columns, start)
        yield Rows(
            topics=part["topic"].to_pylist() if topic is None else topic,
            values=_binary(part["value"]),
            keys=_binary(part["key"]) if "key" in part else None,
            partitions=_partitions(part.get("partition")),
            headers=_headers(part["headers"]) if "headers" in part else None,
        )


def _sliced(columns: Mapping[str, pa.Array], start: int) -> Mapping[str, pa.Array]:
    return {name: column.slice(start, _ROWS_AT_ONCE) for name, column in columns.items()}


def _check(columns: Mapping[str, pa.Array], topic: str | None) -> None:
    if topic is None:
        column = columns.get("topic")
        if column is None:
            raise KafkaError("no topic: set the option 'topic', or add a column 'topic'")
        if column.null_count:
            row = column.is_null().index(True).as_py()
            raise KafkaError(
                f"null topic present in the data (row {row} of its batch): use the option 'topic' "
                "to set a default topic"
            )
    partition = columns.get("partition")
    if partition is not None and partition.null_count < len(partition):
        numbers = partition.to_pylist()
        lowest = min(number for number in numbers if number is not None)
        if lowest < 0:
            row = numbers.index(lowest)
            raise KafkaError(
                f"invalid partition {lowest} (row {row} of its batch): a partition is a number "
                "from 0 on, or null",
                topic=topic,
                partition=lowest,
            )


def _binary(column: pa.Array) -> list[bytes | None]:
    if isinstance(column, pa.StringArray):
        column = column.view(pa.binary())  # no copy: UTF-8 already
    elif isinstance(column, pa.LargeStringArray):
        column = column.view(pa.large_binary())
    values: list[bytes | None] = column.to_pylist()
    return values


def _partitions(column: pa.Array | None) -> list[int] | None:
    if column is None or column.null_count == len(column):
        return None
    numbers: list[int | None] = column.to_pylist()
    return [_ANY_PARTITION if number is None else number for number in numbers]


def _headers(column: pa.Array) -> list[Headers] | None:
    """Each row's names and values; null and empty lists are no headers."""
    if column.null_count == len(column):
        return None
    offsets: Iterable[int] = (ends := column.offsets.to_pylist())
    if column.null_count or ends[0]:  # null lists may hide entries, and a slice's begin later
        entries = column.flatten()
        lists = zip(pairwise(ends), column.is_valid().to_pylist(), strict=True)
        sizes = ((end - start) * is_list for (start, end), is_list in lists)
        offsets = accumulate(sizes, initial=0)
    else:
        entries = column.values.slice(0, ends[-1])  # the same, and no compute function
    names, values = entries.field(0), entries.field(1)
    if names.null_count or entries.null_count:
        raise KafkaError("null header key present in the data: a header needs a key")
    pairs = list(zip(names.to_pylist(), _binary(values), strict=True))
    return [pairs[start:end] if start < end else None for start, end in pairwise(offsets)]
