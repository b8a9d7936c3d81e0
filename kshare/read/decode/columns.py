"""Arrow columns that kernels append to: the rows of one record batch under construction.

Guarantees: a record batch has Spark's schema to the last detail, less the columns that are not
wanted; at most ``max_rows`` rows; and at most ``max_bytes`` bytes of keys, values and headers,
unless one record alone has more, so that no 32-bit offset overflows.

Cost: memory that is handed over to Arrow without a copy; 40 us a record batch.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kshare.arrow_values import scalar, string_array
from kshare.read.decode import compiled
from kshare.read.decode.layout import COPY_SLACK, BinaryColumn, ScanState

__all__ = ["COLUMNS", "SMALL_ROWS", "Columns", "Rows", "allocate", "schema", "shrink"]

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

_BINARY = {"key": "keys", "value": "values", "headers": "headers"}  # in the state
_FIXED = {"offset": "offsets", "timestamp": "timestamps", "timestampType": "timestamp_types"}
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


SMALL_ROWS: Final = 16_384
"""Record batches of up to this many rows are in the C library's memory: a consumer that reads many
of them takes 40 MB less than in Arrow's own pool, which keeps what was freed, and no more time."""


def allocate(size: int, pool: pa.MemoryPool | None = None) -> pa.Buffer:
    """Memory of Arrow's, not cleared; of its default pool, if none is given."""
    return pa.allocate_buffer(size, pool, resizable=True)


def shrink(buffer: pa.Buffer, size: int) -> pa.Buffer:
    """Give back what is behind the first ``size`` bytes, if that is much."""
    if 2 * size < buffer.size:
        buffer.resize(size, shrink_to_fit=True)
        return buffer
    return buffer.slice(0, size)


class _Binary:
    """A binary column under construction.

    Args:
        column: What the kernels see of it.
        rows: Maximum number of rows.
        size: Number of bytes that fit at first.
        pool: Whose memory it takes; None for Arrow's default pool.

    Attributes:
        rows: As given.
    """

    def __init__(
        self, column: BinaryColumn, rows: int, size: int, pool: pa.MemoryPool | None = None
    ) -> None:
        self.rows = rows
        self._column = column
        self._pool = pool
        self._offsets = allocate(4 * (rows + 1), pool)
        self._validity = allocate((rows >> 3) + 1, pool)
        np.frombuffer(self._offsets, np.int32, 1)[0] = 0
        np.frombuffer(self._validity, np.uint8)[:] = 0xFF
        column.offsets, column.validity = self._offsets.address, self._validity.address
        column.used = column.needed = column.nulls = 0
        self._put(allocate(size + COPY_SLACK, pool))

    def _put(self, data: pa.Buffer) -> None:
        self._data = data
        self._column.data, self._column.capacity = data.address, data.size - COPY_SLACK

    def reserve(self) -> None:
        """Make room for the value that did not fit, and at least twice as much as before."""
        column = self._column
        if column.needed > column.capacity:
            room = max(column.needed, 2 * column.capacity) + COPY_SLACK
            wider = allocate(room, self._pool)
            used = slice(column.used)
            np.frombuffer(wider, np.uint8)[used] = np.frombuffer(self._data, np.uint8)[used]
            self._put(wider)

    def finish(self, rows: int) -> pa.Array:
        """Hand the column over; the object is of no use afterwards."""
        column = self._column
        validity = shrink(self._validity, rows + 7 >> 3) if column.nulls else None
        offsets, data = shrink(self._offsets, 4 * (rows + 1)), shrink(self._data, column.used)
        return pa.Array.from_buffers(pa.binary(), rows, [validity, offsets, data], column.nulls)


def _headers(raw: BinaryColumn, rows: int) -> pa.Array:
    """The nested column of headers, from the raw bytes that a scan has checked and collected.

    Null, as in Spark's source, where a record has no headers.
    """
    sizes = compiled.measure_headers(raw, rows)
    if not sizes.headers:  # as with most records: it takes a quarter of the time
        return pa.nulls(rows, _HEADERS)
    key_column, value_column = BinaryColumn(), BinaryColumn()
    keys = _Binary(key_column, sizes.headers, sizes.key_bytes)
    values = _Binary(value_column, sizes.headers, sizes.value_bytes)
    lists = allocate(4 * (rows + 1))
    compiled.copy_headers(raw, rows, lists.address, key_column, value_column)
    entries = pa.StructArray.from_arrays(
        [_as_text(keys.finish(sizes.headers)), values.finish(sizes.headers)], fields=list(_HEADER)
    )
    present = np.diff(np.frombuffer(lists, np.int32)) > 0
    absent = rows - int(np.count_nonzero(present))
    validity = pa.py_buffer(np.packbits(present, bitorder="little")) if absent else None
    return pa.Array.from_buffers(_HEADERS, rows, [validity, lists], absent, children=[entries])


def _as_text(keys: pa.Array) -> pa.Array:
    """Header keys as strings; what is not UTF-8 becomes U+FFFD as Java's ``new String`` has it."""
    try:
        text = keys.view(pa.string())  # cast() would import pyarrow.compute: 9 MB
        text.validate(full=True)
    except pa.ArrowInvalid:
        # Java makes one U+FFFD of an encoded surrogate where Python makes three.
        return string_array(
            _SURROGATE.sub(b"\xef\xbf\xbd", key).decode(errors="replace")
            for key in keys.to_pylist()
        )
    return text


class _Room:
    """Room for the bytes of a binary column, by what the last record batch has taken for a row.

    By the row, as a response ends with a short record batch, and the next one begins with a long
    one: in the room of the short one, it would have to move its bytes several times.
    """

    def __init__(self) -> None:
        self._per_row: float | None = None
        self._most = 0

    def bytes_for(self, rows: int) -> int:
        """The bytes that a record batch of at most ``rows`` rows is likely to take.

        Not much more than the largest so far: one row may have been huge.
        """
        if self._per_row is None:
            return _BYTES_FIRST
        likely = min(int(self._per_row * rows) + 1, self._most)
        return likely + (likely >> 3)

    def learn(self, used: int, rows: int) -> None:
        """A record batch has taken ``used`` bytes, where there was room for ``rows`` rows."""
        self._per_row = used / rows
        self._most = max(self._most, used)


class _Repeated:
    """A column whose rows are all the same."""

    def __init__(self, value: str | int) -> None:
        self._value = scalar(value)
        self._array = pa.repeat(self._value, 0)

    def first(self, rows: int) -> pa.Array:
        """The column, with this number of rows."""
        if rows > len(self._array):
            self._array = pa.repeat(self._value, rows)
        return self._array.slice(0, rows)


class Columns:
    """The rows of one record batch, until it is finished; then those of the next.

    Args:
        topic: The value of the column ``topic``.
        partition: The value of the column ``partition``.
        names: The columns of a record batch, in its order; nothing else is built.
        with_keys: Whether keys and offsets are built in any case, for :attr:`Rows.key_at`.
        max_rows: Maximum number of rows of a record batch.
        max_bytes: Maximum size of the binary columns of a record batch together; a record that is
            larger makes a batch alone.

    Attributes:
        state: What the kernel ``scan`` works on.

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
        max_rows: int,
        max_bytes: int,
    ) -> None:
        self._schema = schema(names)
        built = {*names, *(("key", "offset") if with_keys else ())}
        self._with_keys = with_keys
        constants: dict[str, str | int] = {"topic": topic, "partition": partition}
        self._repeated = {
            name: _Repeated(value) for name, value in constants.items() if name in built
        }
        self._fixed: dict[str, Any] = dict.fromkeys(name for name in _FIXED if name in built)
        self._rooms = {name: _Room() for name in _BINARY if name in built}
        self._max_rows = max_rows
        self._unused_rows = 0  # for which there are columns that nothing was written to
        self.state = ScanState(max_bytes=max_bytes)

    @property
    def _pool(self) -> pa.MemoryPool | None:
        return pa.system_memory_pool() if self._max_rows <= SMALL_ROWS else None

    @property
    def rows(self) -> int:
        """Rows so far."""
        return self.state.rows

    def begin(self, rows: int) -> None:
        """Start a record batch that will have at most ``rows`` rows."""
        rows = max(1, min(rows, self._max_rows))
        state = self.state
        state.rows, state.max_rows = 0, rows
        unused, self._unused_rows = self._unused_rows, 0
        if rows <= unused:
            return
        pool = self._pool
        self._fixed = {name: allocate(_width(name) * rows, pool) for name in self._fixed}
        for name, buffer in self._fixed.items():
            setattr(state, _FIXED[name], buffer.address)
        self._binaries = {
            name: _Binary(self._column(name), rows, room.bytes_for(rows), pool)
            for name, room in self._rooms.items()
        }

    def keep(self) -> None:
        """Use the columns for the next record batch: all was scanned, and there is no row.

        As with most responses, where a key range is one of several.
        """
        rooms = [buffer.size // _width(name) for name, buffer in self._fixed.items()]
        rooms += [binary.rows for binary in self._binaries.values()]
        self._unused_rows = min(rooms, default=0)

    def reserve(self) -> bool:
        """After FULL: make room for the next record; False: finish the record batch first."""
        state = self.state
        needed = sum(self._column(name).needed for name in self._binaries)
        if self.rows and (self.rows >= state.max_rows or needed > state.max_bytes):
            return False
        for binary in self._binaries.values():
            binary.reserve()
        return True

    def finish(self) -> Rows:
        """Hand over the rows; a new record batch must be begun then."""
        rows = self.rows
        built = {name: column.first(rows) for name, column in self._repeated.items()}
        for name, buffer in self._fixed.items():
            data = shrink(buffer, _width(name) * rows)
            built[name] = pa.Array.from_buffers(COLUMNS[name], rows, [None, data], 0)
        for name, binary in self._binaries.items():
            self._rooms[name].learn(self._column(name).used, self.state.max_rows)
            if name == "headers":
                built[name] = _headers(self.state.headers, rows)
            else:
                built[name] = binary.finish(rows)
        columns = [built[name] for name in self._schema.names]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        keys = (built["key"], built["offset"]) if self._with_keys else None
        return Rows(batch, self.state.end_offset, keys)

    def _column(self, name: str) -> BinaryColumn:
        """A binary column, as the kernels see it."""
        column: BinaryColumn = getattr(self.state, _BINARY[name])
        return column


def _width(name: str) -> int:
    """Bytes of a value of a column of fixed width."""
    return int(COLUMNS[name].bit_width) // 8
