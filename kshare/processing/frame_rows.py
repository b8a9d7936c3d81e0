"""Rows of a frame as records, and their outcomes as rows.

A dead letter has bytes. Where a frame's key or value is no bytes or string, as with typed rows
(``valueFormat``), it is a text of it: structs, lists and maps are JSON. The letter says so in a
header, so that nobody takes it for what the record had.

A dead letter has a place: topic, partition and offset. Where a frame has no column ``offset``,
its letters say none: a row's number in its task is the same for rows of every batch and task.
"""

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from typing import Any, Final

import pyarrow as pa

from kshare.core.progress import TopicPartition
from kshare.core.showing import WHOLE, error_text, shown, shown_error
from kshare.dead_letters.record import Outcome, Record
from kshare.errors import OptionsError, ProcessingError
from kshare.processing.handling import Handling
from kshare.processing.policy import DeadLetter, reads_own_letters

_SHOWN: Final = 1_000
__all__ = [
    "OUTCOME_COLUMNS",
    "RESULT_TYPES",
    "as_in_letter",
    "no_rows",
    "records_of_rows",
    "rewritten_parts",
    "rows_of_outcomes",
]

OUTCOME_COLUMNS: Final = ("status", "attempts", "error", "result")
"""Columns that :func:`.process_by_key` adds."""

RESULT_TYPES: Final = {
    "string": ("string", pa.string()),
    "binary": ("binary", pa.binary()),
    "boolean": ("boolean", pa.bool_()),
    "int": ("integer", pa.int32()),
    "bigint": ("long", pa.int64()),
    "double": ("double", pa.float64()),
}
"""Types that the column of results may have: the name in SQL, in a ``StructType``, and Arrow's."""

_NOWHERE: Final = TopicPartition("", 0)
_ABSENT: Final = {"timestamp": -1, "headers": None}
_TEXTS: Final = (pa.string(), pa.large_string())
_BYTES: Final = (pa.binary(), pa.large_binary())


class _Rows:
    """Rows of a partition: the source of their records."""

    __slots__ = ("_columns", "batch", "first", "rewritten", "topic_partition")

    def __init__(
        self,
        batch: pa.RecordBatch,
        first: int,
        topic_partition: TopicPartition,
        rewritten: tuple[str, ...],
    ) -> None:
        self.batch = batch
        self.first = first  # number of rows before
        self.topic_partition = topic_partition
        self.rewritten = rewritten  # which of key and value are texts that were made here
        self._columns: dict[str, list[Any]] = {}

    def column(self, name: str) -> list[Any]:
        if name not in self._columns:
            self._columns[name] = self._converted(name)
        return self._columns[name]

    def _converted(self, name: str) -> list[Any]:
        if name in self.batch.schema.names:
            array = self.batch.column(name)
            convert = _KAFKAS.get(name)
            return array.to_pylist() if convert is None else convert(array)
        if name in _ABSENT:
            return [_ABSENT[name]] * self.batch.num_rows
        raise ValueError(f"the frame has no column {name}; it has {self.batch.schema.names}")


def _milliseconds(array: pa.Array) -> list[int]:
    """A column ``timestamp``, as a dead letter takes it; -1 for what is no time."""
    if pa.types.is_timestamp(array.type):
        times = array.cast(pa.timestamp("ms", array.type.tz), safe=False).view(pa.int64())
    elif pa.types.is_integer(array.type):
        times = array.cast(pa.int64(), safe=False)
    else:
        return [-1] * len(array)
    return [-1 if time is None else time for time in times.to_pylist()]


def _headers(array: pa.Array) -> list[Any]:
    """A column ``headers``, as a dead letter takes it; None for what are no headers of Kafka."""
    if not _is_headers(array.type):
        return [None] * len(array)
    return [
        [each for each in headers or () if each is not None and each["key"] is not None]
        for headers in array.to_pylist()
    ]


def _is_headers(kind: pa.DataType) -> bool:
    types = pa.types
    if not (types.is_list(kind) or types.is_large_list(kind)):
        return False
    of = kind.value_type
    if not types.is_struct(of) or {"key", "value"} - {field.name for field in of}:
        return False
    return of.field("key").type in _TEXTS and of.field("value").type in (*_TEXTS, *_BYTES)


_KAFKAS: Final = {"timestamp": _milliseconds, "headers": _headers}
"""Columns that a dead letter has from its record: a frame's own may be of any type."""


def records_of_rows(
    processor: Handling, batch: pa.RecordBatch, key: str, first: int
) -> Iterator[Record]:
    """Records of a batch, each with its row as :attr:`Record.row`.

    Args:
        processor: Says what their lanes are.
        batch: The rows.
        key: Name of the column of keys.
        first: Number of rows before, which counts as the offset where there is none.

    Raises:
        OptionsError: It reads the topic of its own dead letters.
    """
    names = batch.schema.names
    keys, values = batch.column(key), _value_column(batch, key)
    parts = (("key", keys), ("value", values))
    rewritten = tuple(name for name, column in parts if column.type not in (*_TEXTS, *_BYTES))
    letters = processor.on_failure if isinstance(processor.on_failure, DeadLetter) else None
    rows = {_NOWHERE: _Rows(batch, first, _NOWHERE, rewritten)}
    partitions: Iterable[TopicPartition] = [_NOWHERE] * batch.num_rows
    if {"topic", "partition"} <= {*names} and batch.column("topic").type in _TEXTS:
        # A row may have none, such as one of an outer join: a letter needs a text.
        topics = batch.column("topic").fill_null("").to_pylist()
        partitions = map(TopicPartition, topics, batch.column("partition").to_pylist())
    offsets = (
        batch.column("offset").to_pylist()
        if "offset" in names
        else range(first, first + batch.num_rows)
    )
    made = zip(*_objects_and_bytes(keys), *_objects_and_bytes(values), strict=True)
    for row, (partition, offset, (its_key, raw_key, value, raw_value)) in enumerate(
        zip(partitions, offsets, made, strict=True)
    ):
        source = rows.get(partition)
        if source is None:
            if letters is not None and partition.topic == letters.topic:
                raise OptionsError([reads_own_letters(letters)], of="what process_by_key reads")
            rows[partition] = source = _Rows(batch, first, partition, rewritten)
        record = processor.record(source, row, offset, raw_key, raw_value)
        record.key, record.value = its_key, value
        if processor.order == "key" and record.raw_key is not None:
            record.lane = record.raw_key  # the frame may have brought partitions together
        yield record


def as_in_letter(record: Record) -> Record:
    """The record as its dead letter has it: without topic and partition if it has no offset."""
    source = record.source
    assert isinstance(source, _Rows)
    if "offset" in source.batch.schema.names:
        return record
    placeless = copy(record)
    placeless.source = _Rows(source.batch, source.first, _NOWHERE, source.rewritten)
    return placeless


def rewritten_parts(record: Record) -> tuple[str, ...]:
    """The parts of a record, ``key`` and ``value``, that are texts made of a frame's columns."""
    source = record.source
    assert isinstance(source, _Rows)
    raw = {"key": record.raw_key, "value": record.raw_value}
    return tuple(name for name in source.rewritten if raw[name] is not None)


def _value_column(batch: pa.RecordBatch, key: str) -> pa.Array:
    """The column of values; without one, a struct of all other columns."""
    if "value" in batch.schema.names:
        return batch.column("value")
    others = [field for field in batch.schema if field.name != key]
    if not others:
        return pa.array([{}] * batch.num_rows, pa.struct([]))
    return pa.StructArray.from_arrays([batch.column(each.name) for each in others], fields=others)


def _objects_and_bytes(column: pa.Array) -> tuple[list[Any], list[bytes | None]]:
    """The keys or values of a column: as handlers see them, and as a dead letter has them."""
    if pa.types.is_nested(column.type) or pa.types.is_timestamp(column.type):
        # Other frames need none of it.
        from kshare.formats.encode.zones import in_known_zones  # noqa: PLC0415

        column = in_known_zones(column)
    values = column.to_pylist()
    if column.type in _BYTES:
        return values, values
    if pa.types.is_nested(column.type):
        try:
            return values, _json(column)
        except (ValueError, pa.ArrowException):  # of a type that JSON does not have
            pass
    return values, [
        None
        if value is None
        else (value if isinstance(value, str) else shown(value, WHOLE)).encode()
        for value in values
    ]


def _json(column: pa.Array) -> list[bytes | None]:
    from kshare.formats.encode.json import JsonEncoder  # noqa: PLC0415 - other frames need none
    from kshare.formats.encode.parts import narrow  # noqa: PLC0415 - as above

    kind = narrow(column.type)
    encoder = JsonEncoder(kind)
    return encoder.encode(column.cast(kind)).to_pylist()  # type: ignore[no-any-return]


def rows_of_outcomes(outcomes: Sequence[Outcome], result: str | None) -> Iterator[pa.RecordBatch]:
    """The rows that records were made of, with :data:`OUTCOME_COLUMNS`: each key's in order.

    They come batch by batch, in the order in which batches were read.

    Args:
        outcomes: The outcomes of the records.
        result: Type of the column of results; None if there is none.

    Raises:
        ProcessingError: A result is not what its column takes.
    """
    by_batch: dict[int, list[Outcome]] = {}
    for outcome in outcomes:
        source: Any = outcome.record.source
        by_batch.setdefault(source.first, []).append(outcome)
    for _, of_batch in sorted(by_batch.items()):  # as they were read: a key may be in several
        source = of_batch[0].record.source
        batch = source.batch.take(pa.array([outcome.record.row for outcome in of_batch]))
        yield _with_outcomes(batch, of_batch, result)


def no_rows(batch: pa.RecordBatch, result: str | None) -> pa.RecordBatch:
    """No rows, with the columns of those that :func:`rows_of_outcomes` makes.

    Args:
        batch: What has the columns of records.
        result: As of :func:`rows_of_outcomes`.
    """
    return _with_outcomes(batch.slice(0, 0), [], result)


def _with_outcomes(
    batch: pa.RecordBatch, outcomes: Sequence[Outcome], result: str | None
) -> pa.RecordBatch:
    columns = [
        pa.array([outcome.status.value for outcome in outcomes], pa.string()),
        pa.array([outcome.attempts for outcome in outcomes], pa.int32()),
        pa.array([_text(outcome.error) for outcome in outcomes], pa.string()),
    ]
    if result is not None:
        columns.append(_results(outcomes, result))
    names = [*batch.schema.names, *OUTCOME_COLUMNS[: len(columns)]]
    return pa.RecordBatch.from_arrays([*batch.columns, *columns], names)


def _results(outcomes: Sequence[Outcome], result: str) -> pa.Array:
    try:
        return pa.array([outcome.result for outcome in outcomes], RESULT_TYPES[result][1])
    except Exception as error:  # pyarrow shows the object, and its repr may raise anything
        record = outcomes[0].record
        raise ProcessingError(
            f"{record.topic_partition} from offset {record.offset} on: a handler returned what "
            f"result={result!r} does not take: {error_text(error, _SHOWN)}",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            attempts=outcomes[0].attempts,
        ) from error


def _text(error: BaseException | None) -> str | None:
    return None if error is None else shown_error(error, WHOLE)
