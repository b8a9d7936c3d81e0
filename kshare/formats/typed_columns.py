"""Rows with bytes -> rows with typed columns: framing, decoding, and what becomes of bad records.

::

    bytes --framing--> payloads, ids --registry--> writers --decoder--> values, faults
                                                                            |
              fail: an error names the record   <---------------------------+
              null: a null, and why in ``valueError``                       |
              deadLetter: handed to a writer, and no row  <-----------------+

    ids --registry--> of another record's name: null, or (``valueOtherRecords=skip``) no row

Guarantees: rows keep their order; each is typed, null because it was null or of another record's
name, or bad, and a bad one is never lost in silence. Only rows of other names are left out. A dead
letter is written before any row of its record batch is delivered.
Cost: that of the decoder, and Python for bad rows alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kshare.errors import BadRecordError, SchemaRegistryError
from kshare.formats.decoder import Fault
from kshare.formats.header_ids import may_be_named
from kshare.formats.schemas import ReaderSchema, ReaderSchemas
from kshare.formats.typed_values import TypedColumn, TypedValues, clause
from kshare.formats.writers import Schemas, UnansweredError
from kshare.options import DEFAULT_COLUMNS, SOURCE_COLUMNS, KafkaConfig
from kshare.options.typed_rows import TYPED_COLUMNS, RowFormat, TypedRows

__all__ = ["BadRow", "RowTyper", "SetAside", "column_types", "raw_columns"]

_ADVICE: Final = (
    "badRecords=null gives such records a null, badRecords=deadLetter=<topic> sets them aside"
)
_OTHERS: Final = "{0}OtherRecords=skip leaves out those of other names"


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be decoded.

    Attributes:
        row: Its number in the record batch.
        error: Why; it names topic, partition and offset.
    """

    row: int
    error: BadRecordError


SetAside = Callable[[pa.RecordBatch, Sequence[BadRow]], None]
"""Takes the raw record batch, and its bad rows in order; returns when they are kept elsewhere."""


def column_types(schemas: ReaderSchemas, names: Iterable[str]) -> dict[str, pa.DataType]:
    """The types of the columns that typed rows change or add, of those that are named."""
    types: dict[str, pa.DataType] = {}
    for name in names:
        if schemas.of(name) is not None:
            types[name] = schemas.decoder(name).type
        elif name.endswith("Error") and name in TYPED_COLUMNS:
            types[name] = pa.string()
        elif name.endswith("Bytes") and name in TYPED_COLUMNS:
            types[name] = pa.binary()
        elif name in TYPED_COLUMNS:
            types[name] = pa.int64()
    return types


def raw_columns(rows: TypedRows, names: Sequence[str], *, one_partition: bool) -> tuple[str, ...]:
    """The columns of bytes that rows are made of.

    Args:
        rows: The options.
        names: The columns that are wanted.
        one_partition: Whether all rows are of one partition, so that nobody has to read which.
    """
    if rows.bad_records.policy == "deadLetter":
        return SOURCE_COLUMNS
    used = [each for each in rows.formats if _is_used(each, names)]
    typed = {each.column for each in used}
    places = ("offset",) if one_partition else ("topic", "partition", "offset")
    wanted = {name for name in names if name not in TYPED_COLUMNS} | typed | {*places}
    if any(may_be_named(each) for each in used):
        wanted.add("headers")
    return tuple(name for name in SOURCE_COLUMNS if name in wanted)


def _is_used(form: RowFormat, names: Iterable[str]) -> bool:
    """True if a column is wanted, or says which rows there are."""
    own = {form.column, *(name for name in TYPED_COLUMNS if name.startswith(form.column))}
    return form.others == "skip" or not own.isdisjoint(names)


class RowTyper:
    """Types the rows of a task.

    Args:
        schemas: The reader schemas.
        kafka: How long to wait for the registry.
        names: The columns that are wanted, in order.
        place: Topic and partition of all rows; None: the columns say it.
        set_aside: Keeps bad rows elsewhere; needed with ``badRecords=deadLetter`` only.
        registry: Where the schemas of ids are; None: as the options say.
        spelled: Gives options the names that the user knows, in a text.
        on_left_out: Takes the rows of a batch that are of records of other names, and left out.
    """

    def __init__(
        self,
        schemas: ReaderSchemas,
        kafka: KafkaConfig,
        names: Sequence[str] = DEFAULT_COLUMNS,
        *,
        place: tuple[str, int] | None = None,
        set_aside: SetAside | None = None,
        registry: Schemas | None = None,
        spelled: Callable[[str], str] = str,
        on_left_out: Callable[[Sequence[int]], None] = lambda _: None,
    ) -> None:
        self._columns: dict[str, TypedColumn] = {
            each.form.column: _typed_column(schemas, each, kafka)
            if registry is None
            else TypedColumn(each, schemas.decoder(each.form.column), registry)
            for each in schemas.columns
            if _is_used(each.form, names)
        }
        self._skipping = [
            name for name, column in self._columns.items() if column.schema.form.others == "skip"
        ]
        self._policy = schemas.rows.bad_records.policy
        self._names = tuple(names)
        self._types = column_types(schemas, names)
        self._place = place
        self._set_aside = set_aside
        self._on_left_out = on_left_out
        several = [name for name, one in self._columns.items() if one.schema.form.others == "bad"]
        advice = ", ".join([_ADVICE, *(_OTHERS.format(name) for name in several)])
        self._advice = f". {spelled(advice)}" if self._policy == "fail" else ""

    def batches(self, raw: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Type record batches, one after another; some may be left without rows.

        Raises:
            BadRecordError: A record cannot be decoded, with ``badRecords=fail``.
            SchemaRegistryError: The registry does not say an id's schema.
        """
        for batch in raw:
            yield self.typed(batch)

    def typed(self, raw: pa.RecordBatch, place: tuple[str, int] | None = None) -> pa.RecordBatch:
        """Type the rows of a record batch; without those that are set aside, or left out.

        Args:
            raw: The rows, as bytes.
            place: Topic and partition of all of them; None: as of all batches.

        Raises:
            BadRecordError: A record cannot be decoded, with ``badRecords=fail``.
            SchemaRegistryError: The registry does not say an id's schema.
        """
        place = place or self._place
        headers = raw.column("headers") if "headers" in raw.schema.names else None
        found: dict[str, TypedValues] = {}
        for name, column in self._columns.items():
            try:
                found[name] = column.decoded(raw.column(name), headers)
            except UnansweredError as unanswered:
                raise _unanswered(raw, place, column.schema, unanswered) from None
        kept = np.ones(raw.num_rows, np.bool_)
        for name in self._skipping:
            kept[found[name].others] = False
        if not kept.all():  # nothing is wrong with a row that is left out
            found = {name: values.of_rows(kept) for name, values in found.items()}
            self._on_left_out(np.flatnonzero(~kept).tolist())
        if any(values.faults for values in found.values()):
            if self._policy == "fail":
                raise self._bad_rows(raw, found, place)[0].error
            if self._policy == "deadLetter":
                assert self._set_aside is not None
                bad = self._bad_rows(raw, found, place)
                self._set_aside(raw, bad)
                kept[[each.row for each in bad]] = False
        built = self._built(raw, found)
        return built if kept.all() else built.filter(_booleans(kept))

    def _built(self, raw: pa.RecordBatch, found: Mapping[str, TypedValues]) -> pa.RecordBatch:
        arrays = []
        for name in self._names:
            column = "key" if name.startswith("key") else "value"
            if name in found:
                arrays.append(found[name].values)
            elif name not in TYPED_COLUMNS:
                arrays.append(raw.column(name))
            elif name.endswith("Error"):
                arrays.append(found[column].errors(column))
            elif name.endswith("Bytes"):
                arrays.append(found[column].bad_bytes(raw.column(column)))
            else:
                arrays.append(found[column].ids())
        return pa.RecordBatch.from_arrays(arrays, list(self._names))

    def _bad_rows(
        self,
        raw: pa.RecordBatch,
        found: Mapping[str, TypedValues],
        place: tuple[str, int] | None,
    ) -> list[BadRow]:
        """The bad rows in order; of one whose key and value are bad, the key says why."""
        first: dict[int, tuple[str, Fault]] = {}
        for column in sorted(found):
            for fault in found[column].faults:
                first.setdefault(fault.row, (column, fault))
        return [BadRow(row, self._error(raw, place, *first[row])) for row in sorted(first)]

    def _error(
        self, raw: pa.RecordBatch, place: tuple[str, int] | None, column: str, fault: Fault
    ) -> BadRecordError:
        topic, partition, offset = _place_of(raw, place, fault.row)
        schema = self._columns[column].schema
        return BadRecordError(
            f"{_shown_place(raw, place, fault.row)}: {clause(column, fault)}, read as {schema}"
            f"{self._advice}",
            column=column,
            field=fault.field,
            reason=fault.reason,
            topic=topic,
            partition=partition,
            offset=offset,
        )


_PLACE: Final = ("topic", "partition")


def _place_of(raw: pa.RecordBatch, place: tuple[str, int] | None, row: int) -> tuple[str, int, int]:
    """Topic, partition and offset of a row."""
    topic, partition = place or (raw.column(name)[row].as_py() for name in _PLACE)
    return topic, partition, raw.column("offset")[row].as_py()


def _shown_place(raw: pa.RecordBatch, place: tuple[str, int] | None, row: int) -> str:
    topic, partition, offset = _place_of(raw, place, row)
    return f"{topic}-{partition} at offset {offset}"


def _unanswered(
    raw: pa.RecordBatch,
    place: tuple[str, int] | None,
    schema: ReaderSchema,
    unanswered: UnansweredError,
) -> SchemaRegistryError:
    """The error of records whose schema is not said: it names the first one."""
    where, error = _shown_place(raw, place, int(unanswered.rows[0])), unanswered.error
    return SchemaRegistryError(
        f"{where} names a schema, and {error}. {unanswered.extent}. {schema.form.column} is read "
        f"as {schema}",
        url=error.url,
        subject=error.subject,
        schema_id=error.schema_id,
    )


@lru_cache(maxsize=16)
def _typed_column(schemas: ReaderSchemas, schema: ReaderSchema, kafka: KafkaConfig) -> TypedColumn:
    """A column of a query; a process makes it once, and what it learns of ids stays."""
    return TypedColumn(schema, schemas.decoder(schema.form.column), schemas.registry(kafka))


def _booleans(values: npt.NDArray[np.bool_]) -> pa.Array:
    bits = pa.py_buffer(np.packbits(values, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, bits])
