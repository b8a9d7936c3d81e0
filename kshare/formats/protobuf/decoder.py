"""Protobuf messages to rows.

Guarantees: rows are those of Spark's ``from_protobuf`` without options: a field that is not there
is null, and so is one of proto3 that has its default value, unless it is ``optional``; a list or
map that is not there is empty. Bad are messages that are cut short or no Protobuf, a string that is
no UTF-8, a time that microseconds cannot count, a field of the message itself that has another type
than the schema, and one that lacks what is ``required``. Fields that nobody wants are passed over.

Cost: one call of compiled code for many rows. A message whose single field comes in several parts,
or that has several members of a oneof, is put together in Python first: no serializer writes such.
"""

from dataclasses import replace
from operator import attrgetter
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kshare.formats.decoder import Decoded, Fault
from kshare.formats.payloads import Payloads
from kshare.formats.protobuf.evolution import Incompatible, WriterFile, written_as
from kshare.formats.protobuf.indexes import without_indexes
from kshare.formats.protobuf.merging import merged
from kshare.formats.protobuf.schema import Message, arrow_type
from kshare.formats.protobuf.tables import Tables
from kshare.read.decode import compiled, status
from kshare.read.decode import message_table as table
from kshare.read.decode.layout import (
    ENUM_NAME,
    FRAME,
    MESSAGE,
    MESSAGE_ENUM,
    MESSAGE_FIELD,
    MessageDecoding,
    RowDecoding,
)
from kshare.read.decode.output import Output

__all__ = ["ProtobufDecoder"]

_GROUPS: Final = 100
_MOST_VALUES: Final = 1 << 23
"""Of a row: 64 MB of numbers."""

_REASONS: Final = {
    table.CUT: "is cut short, or longer than the value",
    table.TAG: "is no Protobuf",
    table.WIRE_TYPE: "has another type than in the schema",
    table.TEXT: "is no UTF-8",
    table.ENUM_VALUE: "has {found}, which its enum does not have",
    table.RANGE: "is beyond what microseconds in 64 bits can hold",
    table.MISSING: "is missing, and required",
    table.REPEATED_FIELD: "is there more than once",
    table.SIZE: f"has more than {_MOST_VALUES:,} values",
}


class ProtobufDecoder:
    """Makes rows of messages.

    Args:
        message: The schema, with the fields that are wanted.
        framed: Whether Confluent's message indexes stand in front.
        emit_defaults: Whether fields of proto3 that have their default value are not null, as with
            Spark's option ``emit.default.values``.

    Attributes:
        type: The type of the rows.
    """

    def __init__(
        self, message: Message, *, framed: bool = False, emit_defaults: bool = False
    ) -> None:
        self._framed = framed
        self.type: pa.DataType = arrow_type(message)
        self._message = message
        self._tables = Tables.of(message, emit_defaults=emit_defaults)
        self._files = [WriterFile(message.path, {})]
        self._numbers: dict[tuple[str, tuple[int, ...] | None], int] = {}

    def add_writer(self, text: str, path: tuple[int, ...] | None = None) -> int:
        """Add a schema that rows were written with, which they name by its number.

        It is never an error: rows of a schema that is none, or that is not compatible with the
        reader's, are bad, and each says so.

        Args:
            text: The schema, as :func:`~kshare.formats.protobuf.schema.read_schema` takes it.
            path: The message, if no indexes stand in front of rows.

        Returns:
            Its number; 0 is the reader's own schema. The same schema and path have one number.
        """
        if (text, path) not in self._numbers:
            self._numbers[text, path] = len(self._files)
            file = written_as(self._message, text)
            self._files.append(file if path is None else _of_message(file, path, self._message))
        return self._numbers[text, path]

    def decode(self, payloads: Payloads) -> Decoded:
        """Make rows of payloads. A bad one costs no other row anything."""
        of_others: tuple[Fault, ...] = ()
        if self._framed:
            payloads, of_others = without_indexes(payloads, self._files, self._message.name)
        values, faults = self._decode(payloads)
        in_parts = faults["row"][faults["code"] == table.REPEATED_FIELD].tolist()
        if not in_parts and not of_others:
            return Decoded(values, self._faults(faults))
        bad = [*of_others, *self._faults(faults[faults["code"] != table.REPEATED_FIELD])]
        if not in_parts:
            return Decoded(values, tuple(sorted(bad, key=attrgetter("row"))))
        whole, of_whole = self._decode(self._put_together(payloads, in_parts))
        places = np.arange(len(values))
        places[in_parts] = np.arange(len(values), len(values) + len(in_parts))
        bad += [replace(fault, row=in_parts[fault.row]) for fault in self._faults(of_whole)]
        bad.sort(key=attrgetter("row"))
        return Decoded(pa.concat_arrays([values, whole]).take(pa.array(places)), tuple(bad))

    def _put_together(self, payloads: Payloads, rows: list[int]) -> Payloads:
        """The payloads of rows with each single field in one part."""
        made = []
        for row in rows:
            begin, end = int(payloads.starts[row]), int(payloads.ends[row])
            made.append(merged(payloads.data[begin:end].tobytes(), self._message))
        ends = np.cumsum([len(one) for one in made], dtype=np.int64)
        return Payloads(
            np.frombuffer(b"".join(made), np.uint8),
            np.concatenate((np.zeros(1, np.int64), ends[:-1])),
            ends,
            np.zeros(len(rows), np.int32),
        )

    def _decode(self, payloads: Payloads) -> tuple[pa.Array, npt.NDArray[np.void]]:
        tables = self._tables
        count = len(payloads.starts)
        starts = np.ascontiguousarray(payloads.starts, np.int64)
        ends = np.ascontiguousarray(payloads.ends, np.int64)
        stack, groups = np.empty(tables.depth, FRAME), np.empty(_GROUPS, np.int64)
        output = Output(self.type, count, int(np.maximum(ends - starts, 0)[starts >= 0].sum()))
        rows = RowDecoding(
            source=compiled.address(payloads.data, np.uint8),
            size=len(payloads.data),
            starts=compiled.address(starts, np.int64),
            ends=compiled.address(ends, np.int64),
            rows=count,
        )
        faults = output.begin(rows)
        state = MessageDecoding(
            rows=rows,
            messages=compiled.address(tables.messages, MESSAGE),
            fields=compiled.address(tables.fields, MESSAGE_FIELD),
            enums=compiled.address(tables.enums, MESSAGE_ENUM),
            names=compiled.address(tables.names, ENUM_NAME),
            texts=compiled.address(tables.texts, np.uint8),
            texts_size=len(tables.texts),
            stack=compiled.address(stack, FRAME),
            groups=compiled.address(groups, np.int64),
            most_values=_MOST_VALUES,
        )
        while compiled.decode_messages(state) == status.FULL:
            output.grow()
        return output.finish(), faults[: state.rows.fault_count]

    def _faults(self, found: npt.NDArray[np.void]) -> tuple[Fault, ...]:
        paths = self._tables.paths
        return tuple(
            Fault(row, paths[place] if place >= 0 else "", _REASONS[code].format(found=value))
            for row, place, code, value in found.tolist()
        )


def _of_message(file: WriterFile, path: tuple[int, ...], message: Message) -> WriterFile:
    """A file whose rows are all of one message, and have no indexes."""
    if not file.names or path == file.path:
        return replace(file, indexed=False)
    known = file.names.get(path)
    which = f"message {known}" if known is not None else "a message that its file does not have"
    refused = Incompatible("", f"is {which}, and {message.name} is wanted")
    return replace(file, indexed=False, refused=refused)
