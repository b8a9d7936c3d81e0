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
from kshare.formats.protobuf.indexes import without_indexes
from kshare.formats.protobuf.merging import merged
from kshare.formats.protobuf.schema import Message, arrow_type
from kshare.formats.protobuf.tables import Tables
from kshare.wire.decode import compiled, status
from kshare.wire.decode import message_table as table
from kshare.wire.decode.layout import (
    ENUM_NAME,
    FRAME,
    MESSAGE,
    MESSAGE_ENUM,
    MESSAGE_FIELD,
    MessageDecoding,
    RowDecoding,
)
from kshare.wire.decode.output import Output

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
        self._tables = Tables(message, emit_defaults=emit_defaults)

    def decode(self, payloads: Payloads) -> Decoded:
        """Make rows of payloads. A bad one costs no other row anything."""
        of_others: tuple[Fault, ...] = ()
        if self._framed:
            message = self._message
            payloads, of_others = without_indexes(payloads, message.path, message.name)
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
