"""Several schemas in a column: a struct for each record's name, of which a row has one.

::

    a row's writer -> its record's name -> the schema of that name, decoded -> struct<Placed, Paid>
                                        -> there is none: bad, or nothing to decode

Cost: that of the decoders, each of which passes over the rows of the others; an Arrow column for
each field of each name.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kshare.formats.avro.schema import Record, parse
from kshare.formats.decoder import Decoded, Decoder, Fault
from kshare.formats.json_schema import json_schema_title
from kshare.formats.make import WriterDecoder
from kshare.formats.payloads import Payloads
from kshare.formats.protobuf.files import find_message, named_files

__all__ = ["OTHER", "NamedDecoder", "RecordsDecoder", "names_of", "short_name"]

OTHER: Final = -1
"""In place of a writer's number: its record has another name, and is not decoded."""


def names_of(form: str, text: str) -> tuple[str, ...]:
    """The full name of a schema's record, and others that it had before.

    Args:
        form: The format, ``avro``, ``json`` or ``protobuf``.
        text: The schema.

    Raises:
        ValueError: It is no schema of a record with a name; the text is the end of a sentence.
    """
    if form == "avro":
        try:
            schema = parse(text)
        except ValueError as error:
            raise ValueError(f"cannot be used: {error}") from None
        if not isinstance(schema, Record):
            raise ValueError(f"is of type {schema.kind}, where a record with a name is wanted")
        return (schema.name, *sorted(schema.aliases - {schema.name}))
    if form == "protobuf":
        files, name = named_files(text)
        return (find_message(files, name)[0].full_name,)
    title = json_schema_title(text)
    if not title:
        raise ValueError("has no title, which is a JSON Schema's name")
    return (title,)


def short_name(name: str) -> str:
    """A name without its namespace."""
    return name.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class NamedDecoder:
    """The decoder of the records of one name.

    Attributes:
        names: The full name, and others that it had before.
        decoder: Decodes them.
    """

    names: tuple[str, ...]
    decoder: Decoder

    @property
    def field(self) -> str:
        """The name of its column."""
        return short_name(self.names[0])


class RecordsDecoder:
    """Decodes records by their names. Rows name their writers by numbers of this decoder.

    The reader schemas are numbers 0, 1, ... in their order.

    Args:
        form: The format, ``avro`` or ``json``.
        named: The decoder of each name.
        is_struct: Whether rows are a struct with a field for each name; else there is one name, and
            rows are its records.
        is_other_bad: Whether a record of another name is bad.
    """

    def __init__(
        self, form: str, named: Sequence[NamedDecoder], *, is_struct: bool, is_other_bad: bool
    ) -> None:
        self._form = form
        self._named = tuple(named)
        self._is_struct = is_struct
        self._is_other_bad = is_other_bad
        self._by_name = {
            name: number for number, each in enumerate(named) for name in reversed(each.names)
        }
        for number, each in enumerate(named):  # a name of now wins over one of before
            self._by_name[each.names[0]] = number
        # Of each writer the number of its decoder, and its own number there.
        self._decoders = np.arange(len(named), dtype=np.int32)
        self._inner = np.zeros(len(named), np.int32)
        self.type: pa.DataType = (
            pa.struct([(each.field, each.decoder.type) for each in named])
            if is_struct
            else named[0].decoder.type
        )

    def add_writer(self, text: str, _: tuple[int, ...] | None = None) -> int:
        """Add a writer's schema.

        Args:
            text: The schema, with those that it refers to.

        Returns:
            Its number; :data:`OTHER` if its records are of another name, and not bad.

        Raises:
            ValueError: Its records are bad; the text is the end of a sentence.
        """
        number = self._number_of(names_of(self._form, text)[0])
        if number == OTHER:
            return OTHER
        return self._added(number, self._writer_of(number, text) if self._form == "avro" else 0)

    @property
    def writers(self) -> int:
        """The number of writers."""
        return len(self._inner)

    def _number_of(self, name: str) -> int:
        """The number of a name's decoder; :data:`OTHER` if there is none, which is not bad.

        Raises:
            ValueError: There is none, and its records are bad.
        """
        number = self._by_name.get(name)
        if number is not None:
            return number
        if not self._is_other_bad:
            return OTHER
        wanted = ", ".join(each.names[0] for each in self._named)
        is_of = "has message" if self._form == "protobuf" else "is of record"
        raise ValueError(f"{is_of} {name}, where these are read: {wanted}")

    def _writer_of(self, number: int, text: str, path: tuple[int, ...] | None = None) -> int:
        """The number of a writer's schema in a name's decoder."""
        return cast("WriterDecoder", self._named[number].decoder).add_writer(text, path)

    def _added(self, number: int, inner: int) -> int:
        """A number for a name's decoder and a writer there."""
        self._decoders = np.append(self._decoders, np.int32(number))
        self._inner = np.append(self._inner, np.int32(inner))
        return len(self._inner) - 1

    def decode(self, payloads: Payloads) -> Decoded:
        """Make rows of payloads. A bad one costs no other row anything."""
        inner = self._inner.take(payloads.writers)
        if not self._is_struct:
            return self._named[0].decoder.decode(replace(payloads, writers=inner))
        of, there = self._decoders.take(payloads.writers), payloads.starts >= 0
        columns: list[pa.Array] = []
        faults: list[Fault] = []
        for number, each in enumerate(self._named):
            own = there & (of == number)
            if not own.any():
                columns.append(pa.nulls(len(own), each.decoder.type))
                continue
            decoded = each.decoder.decode(
                replace(
                    payloads,
                    starts=np.where(own, payloads.starts, -1),
                    writers=inner * own,
                )
            )
            columns.append(decoded.values)
            faults += (
                replace(fault, field=f"{each.field}.{fault.field}" if fault.field else each.field)
                for fault in decoded.faults
            )
        faults.sort(key=lambda fault: fault.row)
        return Decoded(_one_of(columns, self.type), tuple(faults))


def _one_of(columns: Sequence[pa.Array], kind: pa.StructType) -> pa.Array:
    """A struct of columns; null where all of them are."""
    there = np.zeros(len(columns[0]), np.bool_)
    for column in columns:
        there |= _is_there(column)
    bits = pa.py_buffer(np.packbits(there, bitorder="little"))
    return pa.Array.from_buffers(kind, len(there), [bits], children=list(columns))


def _is_there(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Of each row, whether it is no null."""
    bits, first = column.buffers()[0], column.offset
    if bits is None:
        return np.ones(len(column), np.bool_)
    unpacked = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    return unpacked[first : first + len(column)].astype(np.bool_)
