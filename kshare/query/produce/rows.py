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
from itertools import pairwise, repeat
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
        if partition.null_count:
            from pyarrow import compute  # noqa: PLC0415 - 9 MB, which consumers do without

            lowest = compute.min(partition).as_py()
        else:
            lowest = int(partition.to_numpy().min())
        if lowest < 0:
            row = partition.index(lowest).as_py()
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
    numbers = column.fill_null(_ANY_PARTITION) if column.null_count else column
    values: list[int] = numbers.to_pylist()
    return values


def _headers(column: pa.Array) -> list[Headers] | None:
    """Each row's names and values; null and empty lists are no headers."""
    if column.null_count == len(column):
        return None
    # Entries of rows that are not null, and of this chunk only.
    if column.null_count:  # null lists may hide some
        from pyarrow import compute  # noqa: PLC0415 - as in _check()

        entries = column.flatten()
        lengths = compute.list_value_length(column).fill_null(0)
        ends = [0, *compute.cumulative_sum(lengths).to_pylist()]
    else:
        ends = column.offsets.to_pylist()
        entries = column.values.slice(ends[0], ends[-1] - ends[0])
    first = ends[0]
    names, values = entries.field(0), entries.field(1)
    if names.null_count or entries.null_count:
        raise KafkaError("null header key present in the data: a header needs a key")
    pairs = list(zip(names.to_pylist(), _binary(values), strict=True))
    return [pairs[a - first : b - first] if a < b else None for a, b in pairwise(ends)]
