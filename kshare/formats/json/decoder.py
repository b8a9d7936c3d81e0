"""JSON to rows: the compiled reader, and the plain one for what is too hard for it.

Guarantees: whatever the bytes are, a row comes of each payload, and memory is at most a few times
their size. A record is bad or good by itself alone.

Cost: some 250 ns for a record of 155 bytes and 8 fields; 40 us for one that the plain reader has
to read: a name that is there twice, escapes in what becomes a text again, a time with a zone's
name, a pattern with names, options beyond Spark's defaults. A bad record costs no more than a good
one, and 2 us for its text.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kshare.formats.decoder import Decoded, Fault
from kshare.formats.json.options import JsonOptions
from kshare.formats.json.plain import PlainReader
from kshare.formats.json.reasons import EXCERPT_MAX, excerpt, grammar_reason, type_name
from kshare.formats.json.steps import Steps
from kshare.formats.payloads import Payloads, payload_of
from kshare.formats.selection import selected
from kshare.read.decode import compiled, json_kind, status
from kshare.read.decode.layout import JsonState
from kshare.read.decode.output import Output

__all__ = ["JsonDecoder"]

_MAX_NULLS: Final = 1 << 22


class JsonDecoder:
    """Reads records of JSON as Spark's ``from_json`` does, in PERMISSIVE.

    Args:
        schema: The struct that the records are; see :func:`kshare.formats.ddl.parse_schema`.
        options: How they are read.
        fields: Dotted paths of the fields to read; none: all. Others only have to be JSON.

    Attributes:
        type: The type of the rows: the schema, less what is not wanted.

    Raises:
        ValueError: A path names a field that is not there.
        TypeError: The schema has a type that JSON cannot be read as.
    """

    def __init__(
        self,
        schema: pa.StructType,
        options: JsonOptions | None = None,
        fields: Iterable[str] = (),
    ) -> None:
        self.type: pa.StructType = selected(schema, fields)
        self._options = options or JsonOptions()
        self._steps = Steps(self.type, self._options)
        self._plain = PlainReader(self.type, self._options)

    def decode(self, payloads: Payloads) -> Decoded:
        """Make rows of payloads.

        Returns:
            The rows. Null where there is nothing but blanks, without a fault. A bad record is what
            ``from_json`` makes of it, a struct with null for what cannot be read; or null, if the
            options do not say ``partial``.

        Raises:
            OverflowError: The rows have more than 2^31 - 1 bytes or items of a field.
        """
        output, found = self._read(payloads)
        values = output.finish()
        hard = found["code"] == json_kind.HARD
        reread = {}
        if hard.any():
            rows = found["row"][hard]
            reread = {int(row): self._plain.read(payload_of(payloads, row)) for row in rows}
            values = self._with_reread(values, rows, reread)
        return Decoded(values, tuple(self._faults(payloads, found, reread)))

    def _read(self, payloads: Payloads) -> tuple[Output, npt.NDArray[np.void]]:
        """Run the compiled reader; return its output, and faults of FAULT."""
        starts = np.ascontiguousarray(payloads.starts, np.int64)
        ends = np.ascontiguousarray(payloads.ends, np.int64)
        data = np.ascontiguousarray(payloads.data, np.uint8)
        state, rows = JsonState(), len(starts)
        size = int(np.where(starts >= 0, ends - starts, 0).clip(0).sum())
        output = Output(self.type, rows, size // 2)
        state.rows.source, state.rows.size = compiled.address(data, np.uint8), len(data)
        state.rows.starts = compiled.address(starts, np.int64)
        state.rows.ends = compiled.address(ends, np.int64)
        state.rows.rows, state.max_nulls = rows, _MAX_NULLS
        faults = output.begin(state.rows)
        memory = self._steps.begin(state)
        while compiled.decode_json(state) == status.FULL:
            output.grow()
        del memory  # until here it is used
        return output, faults[: state.rows.fault_count]

    def _with_reread(
        self, values: pa.Array, rows: npt.NDArray[np.int64], reread: dict[int, Any]
    ) -> pa.Array:
        """Put the rows of the plain reader into their places."""
        read = [reread[int(row)] for row in rows]
        kept = [None if fault and not self._options.partial else value for value, fault in read]
        places = np.arange(len(values))
        places[rows] = len(values) + np.arange(len(rows))
        return pa.concat_arrays([values, pa.array(kept, self.type)]).take(pa.array(places))

    def _faults(
        self, payloads: Payloads, found: npt.NDArray[np.void], reread: dict[int, Any]
    ) -> Iterator[Fault]:
        for row, place, code, at in found.tolist():
            if code == json_kind.HARD:
                fault = reread[row][1]
                if fault is not None:
                    yield Fault(row, *fault)
            elif code == json_kind.TYPE:
                start = int(payloads.starts[row]) + at
                end = min(int(payloads.ends[row]), start + EXCERPT_MAX)
                text = payloads.data[start:end].tobytes().decode(errors="replace")
                path, wanted = self._steps.place(place)
                reason = f"has {excerpt(text)} where {type_name(wanted)} is wanted"
                yield Fault(row, path, reason)
            else:
                yield Fault(row, "", self._reason(payloads, row, code, at))

    def _reason(self, payloads: Payloads, row: int, code: int, at: int) -> str:
        """The fault of a record as a whole."""
        if code == json_kind.NO_OBJECT:
            text = payload_of(payloads, row)[at : at + EXCERPT_MAX].decode(errors="replace")
            return f"is {excerpt(text)}, where an object is wanted"
        if code == json_kind.TOO_LARGE:
            return f"has no value for more than {_MAX_NULLS:,} fields of its objects"
        return grammar_reason(code, at, self._options.max_depth)
