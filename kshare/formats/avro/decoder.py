"""Avro records to typed rows: each row by its writer's schema, all as the reader's.

Cost: a quarter of a microsecond for a record of eight fields; some milliseconds for a new schema.
"""

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kshare.formats.avro.compiler import compile_writer, nodes_of
from kshare.formats.avro.faults import reason
from kshare.formats.avro.program import Incompatible, Program
from kshare.formats.avro.schema import parse
from kshare.formats.avro.types import arrow_type, refuse_recursion
from kshare.formats.decoder import Decoded, Fault
from kshare.formats.payloads import Payloads
from kshare.formats.selection import selected
from kshare.read.decode import avro_step, compiled, status
from kshare.read.decode.layout import AvroState
from kshare.read.decode.output import Output

__all__ = ["AvroDecoder"]

_FRAME_NUMBERS: Final = 4
_LEAST_OUTPUT: Final = 64 << 20
"""Bytes that the items of a record may take, whatever its size, as 8 Mi values of Protobuf may: a
limit by size alone refuses small records of wide items that are null, of a byte each."""


class AvroDecoder:
    """Decodes Avro records.

    Args:
        reader: The reader's schema, as JSON.
        fields: Dotted paths of the fields that are wanted; none: all are.

    Attributes:
        type: The type of the rows; all in it is nullable.
        program: The steps of all writers.

    Raises:
        ValueError: The schema is none, has no type in Arrow (it is recursive, a decimal has more
            than 38 digits), or lacks a field that is wanted.
    """

    def __init__(self, reader: str, fields: Iterable[str] = ()) -> None:
        self._reader = parse(reader)
        self.type: pa.DataType = selected(arrow_type(self._reader), fields)
        refuse_recursion(self.type)
        self._root = nodes_of(self.type)
        self.program = Program()
        self._tables: _Tables | None = None
        self._writers: dict[str, int] = {}
        self.add_writer(reader)

    def add_writer(self, text: str, _: tuple[int, ...] | None = None) -> int:
        """Add a writer's schema, which rows name by its number.

        It is never an error: rows of a schema that is none, or that is not compatible with the
        reader's, are bad, and each says so.

        Args:
            text: The schema, as JSON.

        Returns:
            Its number; 0 is the reader's own schema. One text has one number.
        """
        if text not in self._writers:
            self._writers[text] = len(self._writers)
            self._tables = None
            try:
                writer = parse(text)
            except ValueError as error:
                self.program.begin()
                self.program.refuse(Incompatible("", f"has no schema that can be used: {error}"))
            else:
                compile_writer(self.program, writer, self._reader, self._root)
        return self._writers[text]

    def decode(self, payloads: Payloads) -> Decoded:
        """Make rows of payloads. A bad one costs no other row anything.

        Raises:
            OverflowError: A field of these rows has more than 2^31 - 1 bytes or items.
        """
        if self._tables is None:
            self._tables = _Tables(self.program)
        count = len(payloads.starts)
        output = Output(self.type, count, len(payloads.data))
        state = self._tables.state(payloads)
        faults = output.begin(state.rows)
        while compiled.decode_avro(state) == status.FULL:
            output.grow()
        found = faults[: state.rows.fault_count].tolist()
        return Decoded(output.finish(), tuple(self._fault(*one) for one in found))

    def _fault(self, row: int, number: int, code: int, value: int) -> Fault:
        field = "" if code == avro_step.OUTSIDE else self.program.places[number]
        return Fault(row, field, reason(self.program, number, code, value))


class _Tables:
    """A program as the kernel sees it."""

    def __init__(self, program: Program) -> None:
        self._entries = np.array(program.entries, np.int64)
        self._steps = program.table()
        self._jumps = np.array(program.jumps, np.int64)
        self._constants = np.frombuffer(bytes(program.constants), np.uint8)
        self._stack = np.empty(_FRAME_NUMBERS * avro_step.STACK, np.int64)

    def state(self, payloads: Payloads) -> AvroState:
        """A decoding from the first payload on; it keeps addresses of this object, and of them."""
        state, rows = AvroState(), len(payloads.starts)
        state.rows.rows, state.rows.size = rows, len(payloads.data)
        if not len(payloads.ends) == len(payloads.writers) == rows:
            raise ValueError("payloads do not have an end and a writer each")
        state.rows.source = compiled.address(payloads.data, np.uint8)
        state.rows.starts = compiled.address(payloads.starts, np.int64)
        state.rows.ends = compiled.address(payloads.ends, np.int64)
        state.writers = compiled.address(payloads.writers, np.int32)
        state.entries, state.writer_count = _at(self._entries), len(self._entries)
        state.steps, state.jumps, state.stack = (
            _at(self._steps),
            _at(self._jumps),
            _at(self._stack),
        )
        state.constants, state.constants_size = _at(self._constants), len(self._constants)
        state.least_output = _LEAST_OUTPUT
        return state


def _at(array: npt.NDArray[Any]) -> int:
    return compiled.address(array, array.dtype)
