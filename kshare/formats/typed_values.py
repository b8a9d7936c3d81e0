"""The values of one column of bytes, with what its headers and framing name.

Cost: that of the decoder, and Python for bad rows alone.
"""

from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kshare.arrow_values import string_array
from kshare.formats.avro.fingerprint import fingerprint as fingerprint_of
from kshare.formats.decoder import Decoder, Fault
from kshare.formats.framing import unframed
from kshare.formats.header_ids import HeaderId, NamedRows, may_be_named, rows_by_header
from kshare.formats.make import WriterDecoder
from kshare.formats.payloads import Payloads
from kshare.formats.records import OTHER
from kshare.formats.registry import named_id
from kshare.formats.schema_files import GlobalId
from kshare.formats.schemas import ReaderSchema
from kshare.formats.writers import Schemas, Writers, prefix_number
from kshare.options.typed_rows import Framing, RowFormat

__all__ = ["TypedColumn", "TypedValues", "clause"]


@dataclass(frozen=True, slots=True)
class TypedValues:
    """A column that is typed.

    Attributes:
        values: The values.
        faults: Why rows are bad, ascending.
        numbers: The id of each row's schema; empty where the framing has none.
        has_id: Whether a row names an id.
        others: The rows of other records' names, which are null.
    """

    values: pa.Array
    faults: tuple[Fault, ...]
    numbers: npt.NDArray[np.int64]
    has_id: npt.NDArray[np.bool_]
    others: npt.NDArray[np.int64]

    def of_rows(self, kept: npt.NDArray[np.bool_]) -> "TypedValues":
        """The same, without the faults of rows that are not kept."""
        return replace(self, faults=tuple(each for each in self.faults if kept[each.row]))

    def errors(self, column: str) -> pa.Array:
        """The reasons of bad rows; null for the others."""
        texts = string_array(clause(column, fault) for fault in self.faults)
        places = np.zeros(len(self.values), np.int64)
        bad = self._bad_rows()
        places[bad] = np.arange(len(self.faults))
        there = np.zeros(len(self.values), np.bool_)
        there[bad] = True
        return texts.take(_integers(places, there))

    def bad_bytes(self, raw: pa.Array) -> pa.Array:
        """The bytes of bad rows; null for the others."""
        there = np.zeros(len(raw), np.bool_)
        there[self._bad_rows()] = True
        return raw.take(_integers(np.arange(len(raw)), there))

    def ids(self) -> pa.Array:
        """The ids of schemas; null where a row names none."""
        return _integers(self.numbers, self.has_id)

    def _bad_rows(self) -> list[int]:
        return [fault.row for fault in self.faults]


class TypedColumn:
    """Decodes one column.

    Args:
        schema: Its reader schema.
        decoder: The decoder.
        registry: Where the schemas of ids are; None if there is none.
    """

    def __init__(self, schema: ReaderSchema, decoder: Decoder, registry: Schemas | None) -> None:
        self.schema = schema
        self._decoder = decoder
        self._writers: Writers | None = None
        self._fingerprints: dict[int, int] = {}
        form = schema.form
        if form.framing == "singleObject":
            # The reader schemas are the writers': numbers 0, 1, ...
            for number, each in enumerate(schema.members or (schema,)):
                self._fingerprints[fingerprint_of(each.text)] = number
        if _is_by_id(form):
            assert registry is not None or form.format == "protobuf"
            self._writers = Writers(cast("WriterDecoder", decoder), schema, registry)

    def decoded(self, column: pa.Array, headers: pa.Array | None = None) -> TypedValues:
        """Decode a column.

        Args:
            column: The bytes.
            headers: The column of headers; None: they name no schemas.
        """
        form = self.schema.form
        named: list[NamedRows] = []
        if headers is not None and may_be_named(form):
            named = rows_by_header(
                headers, form.column, form.framing, indexed=form.format == "protobuf"
            )
        groups = _groups_of(named, len(column))
        framed = unframed(column, form.framing, None if groups is None else groups >= 0)
        starts, faults = framed.starts, list(framed.faults)
        there = starts >= 0
        has_id = there
        if named:
            named = [NamedRows(each.rows[there[each.rows]], each.named) for each in named]
            has_id = _with_ids(named, framed.ids, there)
        numbers = np.zeros(len(starts), np.int32)
        bad: list[Fault] = []
        if self._writers is not None:
            prefixed = there if groups is None else there & (groups < 0)
            numbers, bad = self._writers.numbers(framed.ids, prefixed, named)
        elif self._fingerprints:
            numbers, bad = self._of_fingerprints(framed.ids, there)
        bad += (
            Fault(row, "", each.named)
            for each in named
            if isinstance(each.named, str)
            for row in each.rows.tolist()
        )
        others = np.flatnonzero(numbers == OTHER)
        if bad or len(others):
            starts = starts.copy()
            starts[[fault.row for fault in bad]] = -1
            starts[others] = -1
            numbers[others] = 0
            faults += bad
        decoded = self._decoder.decode(Payloads(framed.data, starts, framed.ends, numbers))
        if self._writers is None or not self._writers.has_registry:
            faults += decoded.faults
        else:  # what the writer wrote is the writer's schema's
            faults += (
                replace(each, reason=f"{each.reason} (schema {which})")
                for each in decoded.faults
                for which in (_id_of(each.row, named, groups, framed.ids, form.framing),)
            )
        if len(faults) > len(decoded.faults):
            faults.sort(key=lambda fault: fault.row)
        others = np.concatenate((others, decoded.others))
        return TypedValues(decoded.values, tuple(faults), framed.ids, has_id, others)

    def _of_fingerprints(
        self, ids: npt.NDArray[np.int64], there: npt.NDArray[np.bool_]
    ) -> tuple[npt.NDArray[np.int32], list[Fault]]:
        """The number of each row's schema, and the rows of schemas that nothing says.

        A fingerprint says no name: one that is not known may be of a record that is asked for.
        """
        numbers = np.zeros(len(ids), np.int32)
        known = np.zeros(len(ids), np.bool_)
        for own, number in self._fingerprints.items():
            same = ids == own
            numbers[same] = number
            known |= same
        wanted = ", ".join(map(_hex, self._fingerprints))
        return numbers, [
            Fault(
                row,
                "",
                f"is of the schema with fingerprint {_hex(int(ids[row]))}, and "
                f"the reader schema has {wanted}",
            )
            for row in np.flatnonzero(there & ~known).tolist()
        ]


def _is_by_id(form: RowFormat) -> bool:
    """True if ids say with which schema a row was written; else it is the reader schema."""
    if form.format == "protobuf":
        return form.framing == "confluent"
    is_read_by_it = form.format == "avro" or form.others is not None
    return is_read_by_it and form.framing in {"confluent", "apicurio"}


def clause(column: str, fault: Fault) -> str:
    """The reason of a bad row, with the path of the field."""
    path = f"{column}.{fault.field}" if fault.field else column
    return f"{path} {fault.reason}"


def _groups_of(named: list[NamedRows], count: int) -> npt.NDArray[np.int64] | None:
    """Of each row, the number of its header among ``named``, or -1; None: no row has one."""
    if not named:
        return None
    groups = np.full(count, -1, np.int64)
    for number, each in enumerate(named):
        groups[each.rows] = number
    return groups


def _with_ids(
    named: list[NamedRows], ids: npt.NDArray[np.int64], there: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Write the ids of headers to those of rows; return which rows have one that is a number."""
    has_id = there.copy()
    for each in named:
        number = each.named.number if isinstance(each.named, HeaderId) else ""
        if isinstance(number, GlobalId):
            number = number.number
        if isinstance(number, int):
            ids[each.rows] = number
        else:
            has_id[each.rows] = False
    return has_id


def _id_of(
    row: int,
    named: list[NamedRows],
    groups: npt.NDArray[np.int64] | None,
    ids: npt.NDArray[np.int64],
    framing: Framing,
) -> str:
    """The id of a bad row, as messages name it."""
    if groups is not None and groups[row] >= 0:
        found = named[groups[row]].named
        assert isinstance(found, HeaderId)  # others are bad before they are decoded
        return named_id(found.number)
    return named_id(prefix_number(int(ids[row]), framing))


def _hex(number: int) -> str:
    return f"{number & (1 << 64) - 1:016x}"


def _integers(values: npt.NDArray[np.int64], there: npt.NDArray[np.bool_]) -> pa.Array:
    """An array of integers; null where there is none."""
    bits = pa.py_buffer(np.packbits(there, bitorder="little"))
    numbers = pa.py_buffer(np.ascontiguousarray(values, np.int64))
    return pa.Array.from_buffers(pa.int64(), len(there), [bits, numbers])
