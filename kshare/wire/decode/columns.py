"""Arrow columns that kernels append to: the rows of one record batch under construction.

Law: a record batch has Spark's schema to the last detail, less the columns that are not wanted, at
most ``rows_max`` rows, and at most ``bytes_max`` bytes of keys, values and headers, unless one
record alone has more; so no 32-bit offset overflows. Cost: memory that is handed over
to Arrow without a copy; 40 us a record batch.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kshare.wire.decode import kernels

__all__ = ["COLUMNS", "Columns", "Rows", "State", "schema"]

State: TypeAlias = npt.NDArray[np.int64]
"""What :func:`kshare.wire.decode.kernels.scan` works on."""

_TIMESTAMP = pa.timestamp("us", "UTC")
_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_HEADERS = pa.list_(pa.field("element", _HEADER))

COLUMNS: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": _TIMESTAMP,
    "timestampType": pa.int32(),
    "headers": _HEADERS,
}
"""The columns of Spark's kafka source and their types, in its order."""

_BINARY = {"key": kernels.KEYS, "value": kernels.VALUES, "headers": kernels.HEADERS}
_FIXED = {
    "offset": kernels.RECORD_OFFSETS,
    "timestamp": kernels.TIMESTAMPS,
    "timestampType": kernels.TIMESTAMP_TYPES,
}
_PARTS = 7  # fields of a binary column in the state
_BYTES_FIRST = 64 << 10  # room for the bytes of a column, before anything is known
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")  # UTF-16 surrogates, encoded like others


def schema(names: Sequence[str]) -> pa.Schema:
    """The schema of these columns, in this order.

    Raises:
        ValueError: There is no name, an unknown one, or one twice.
    """
    if not names or len(set(names)) < len(names) or not COLUMNS.keys() >= set(names):
        raise ValueError(f"columns are {', '.join(names)!r}; wanted some of {', '.join(COLUMNS)}")
    return pa.schema([(name, COLUMNS[name]) for name in names])


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one record batch.

    Attributes:
        batch: The columns that were asked for.
        end: The offset after that of the last row.
        keys: Key and offset of each row; None if they were not asked for.
    """

    batch: pa.RecordBatch
    end: int
    keys: tuple[pa.Array, pa.Array] | None

    def key_at(self, row: int) -> tuple[bytes | None, int]:
        """Key and offset of a row, where there are :attr:`keys`."""
        assert self.keys is not None
        keys, offsets = self.keys
        return keys[row].as_py(), offsets[row].as_py()


def allocate(size: int) -> pa.Buffer:
    """Memory of Arrow's, not cleared."""
    return pa.allocate_buffer(size, resizable=True)


def shrink(buffer: pa.Buffer, size: int) -> pa.Buffer:
    """Give back what is behind the first ``size`` bytes, if that is much."""
    if 2 * size < buffer.size:
        buffer.resize(size, shrink_to_fit=True)
        return buffer
    return buffer.slice(0, size)


class _Binary:
    """A binary column under construction.

    Args:
        state: where the kernels look for it.
        column: which one it is there: KEYS, VALUES or HEADERS.
        rows: the number of rows at most.
        size: room for so many bytes.
    """

    def __init__(self, state: State, column: int, rows: int, size: int) -> None:
        self._state, self._column = state, column
        self._offsets = allocate(4 * (rows + 1))
        self._valid = allocate((rows >> 3) + 1)
        np.frombuffer(self._offsets, np.int32, 1)[0] = 0
        np.frombuffer(self._valid, np.uint8)[:] = 0xFF
        state[column : column + _PARTS] = 0
        state[column + kernels.OFFSETS] = self._offsets.address
        state[column + kernels.VALID] = self._valid.address
        self._room(allocate(size + kernels.COLUMNS_SLACK))

    def _room(self, data: pa.Buffer) -> None:
        self._data = data
        self._state[self._column + kernels.DATA] = data.address
        self._state[self._column + kernels.ROOM] = data.size - kernels.COLUMNS_SLACK

    def reserve(self) -> None:
        """Make room for the value that did not fit, and at least twice as much as before."""
        _, _, _, room, used, need, _ = self._parts()
        if need > room:
            wider = allocate(max(need, 2 * room) + kernels.COLUMNS_SLACK)
            np.frombuffer(wider, np.uint8)[:used] = np.frombuffer(self._data, np.uint8)[:used]
            self._room(wider)

    def _parts(self) -> list[int]:
        parts: list[int] = self._state[self._column : self._column + _PARTS].tolist()
        return parts

    @property
    def used(self) -> int:
        """Bytes so far."""
        return int(self._state[self._column + kernels.USED])

    def finish(self, kind: pa.DataType, rows: int) -> pa.Array:
        """Hand over; the object is of no use afterwards."""
        _, _, _, _, used, _, nulls = self._parts()
        valid = shrink(self._valid, rows + 7 >> 3) if nulls else None
        offsets = shrink(self._offsets, 4 * (rows + 1))
        return pa.Array.from_buffers(kind, rows, [valid, offsets, shrink(self._data, used)], nulls)


def _headers(state: State, rows: int) -> pa.Array:
    """The nested column of headers, from the raw bytes that a scan has checked and collected.

    Null, as in Spark's source, where a record has no headers.
    """
    offsets, data = state[kernels.HEADERS : kernels.HEADERS + 2].tolist()
    sizes = np.zeros(3, np.int64)
    kernels.measure_headers(offsets, data, rows, sizes)
    count, key_bytes, value_bytes = sizes.tolist()
    inner = np.zeros(kernels.STATE_SIZE, np.int64)
    keys = _Binary(inner, kernels.KEYS, count, key_bytes)
    values = _Binary(inner, kernels.VALUES, count, value_bytes)
    lists = allocate(4 * (rows + 1))
    kernels.copy_headers(offsets, data, rows, lists.address, inner)
    entries = pa.StructArray.from_arrays(
        [_as_text(keys.finish(pa.binary(), count)), values.finish(pa.binary(), count)],
        fields=list(_HEADER),
    )
    present = np.diff(np.frombuffer(lists, np.int32)) > 0
    absent = rows - int(np.count_nonzero(present))
    valid = pa.py_buffer(np.packbits(present, bitorder="little")) if absent else None
    return pa.Array.from_buffers(_HEADERS, rows, [valid, lists], absent, children=[entries])


def _as_text(keys: pa.Array) -> pa.Array:
    """Header keys as strings; what is not UTF-8 becomes U+FFFD as Java's ``new String`` has it."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        # Java makes one U+FFFD of an encoded surrogate where Python makes three.
        return pa.array(
            [
                _SURROGATE.sub(b"\xef\xbf\xbd", key).decode(errors="replace")
                for key in keys.to_pylist()
            ],
            pa.string(),
        )


class Columns:
    """The rows of one record batch, until it is finished; then those of the next.

    Args:
        topic: The value of the column ``topic``.
        partition: The value of the column ``partition``.
        names: The columns of a record batch, in its order; nothing else is built.
        with_keys: Whether keys and offsets are built in any case, for :attr:`Rows.key_at`.
        rows_max: Maximum number of rows of a record batch.
        bytes_max: Maximum size of the binary columns of a record batch together; a record that is
            larger makes a batch alone.

    Attributes:
        state: What :func:`kshare.wire.decode.kernels.scan` works on.

    Raises:
        ValueError: There is no name, an unknown one, or one twice.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        names: Sequence[str],
        with_keys: bool,
        rows_max: int,
        bytes_max: int,
    ) -> None:
        self._schema = schema(names)
        built = {*names, *(("key", "offset") if with_keys else ())}
        self._with_keys = with_keys
        constants = {"topic": topic, "partition": partition}
        self._constants = {
            name: pa.scalar(value, COLUMNS[name])
            for name, value in constants.items()
            if name in built
        }
        self._repeated = {name: pa.repeat(value, 0) for name, value in self._constants.items()}
        self._fixed_names = [name for name in _FIXED if name in built]
        self._sizes = {name: _BYTES_FIRST for name in _BINARY if name in built}
        self._rows_max = rows_max
        self.state = np.zeros(kernels.STATE_SIZE, np.int64)
        self.state[kernels.BYTES_MAX] = bytes_max

    @property
    def rows(self) -> int:
        """Rows so far."""
        return int(self.state[kernels.ROWS])

    def begin(self, rows: int) -> None:
        """Start a record batch that will have at most ``rows`` rows."""
        rows = max(1, min(rows, self._rows_max))
        state = self.state
        state[kernels.ROWS], state[kernels.ROWS_MAX] = 0, rows
        self._fixed = {name: allocate(_width(name) * rows) for name in self._fixed_names}
        for name, buffer in self._fixed.items():
            state[_FIXED[name]] = buffer.address
        self._binaries = {
            name: _Binary(state, _BINARY[name], rows, size) for name, size in self._sizes.items()
        }

    def reserve(self) -> bool:
        """After FULL: make room for the next record; False: finish the record batch first."""
        state = self.state
        need = sum(int(state[_BINARY[name] + kernels.NEED]) for name in self._binaries)
        full = self.rows >= state[kernels.ROWS_MAX] or need > state[kernels.BYTES_MAX]
        if self.rows and full:
            return False
        for binary in self._binaries.values():
            binary.reserve()
        return True

    def finish(self) -> Rows:
        """Hand over the rows; a new record batch must be begun then."""
        rows = self.rows
        end = int(self.state[kernels.END_OFFSET])
        built = {name: self._repeat(name, rows) for name in self._constants}
        for name, buffer in self._fixed.items():
            data = shrink(buffer, _width(name) * rows)
            built[name] = pa.Array.from_buffers(COLUMNS[name], rows, [None, data], 0)
        for name, binary in self._binaries.items():
            self._sizes[name] = binary.used + (binary.used >> 3)
            if name == "headers":
                built[name] = _headers(self.state, rows)
            else:
                built[name] = binary.finish(pa.binary(), rows)
        columns = [built[name] for name in self._schema.names]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        return Rows(batch, end, (built["key"], built["offset"]) if self._with_keys else None)

    def _repeat(self, name: str, rows: int) -> pa.Array:
        """A column of so many rows that are all the same."""
        if rows > len(self._repeated[name]):
            self._repeated[name] = pa.repeat(self._constants[name], rows)
        return self._repeated[name].slice(0, rows)


def _width(name: str) -> int:
    """Bytes of a value of a column of fixed width."""
    return int(COLUMNS[name].bit_width) // 8
