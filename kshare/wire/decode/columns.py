"""Arrow columns that kernels append to: the rows of one record batch under construction.

Law: a record batch has Spark's schema to the last detail, at most ``rows_max`` rows, and at most
``bytes_max`` bytes of keys, values and headers, unless one record alone has more; so no 32-bit
offset overflows. Cost: memory that is handed over to Arrow without a copy; 40 us a record batch.
"""

import re
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kshare.wire.decode import kernels

__all__ = ["SCHEMA", "SCHEMA_WITH_HEADERS", "Columns", "State"]

State: TypeAlias = npt.NDArray[np.int64]
"""What :func:`kshare.wire.decode.kernels.scan` works on."""

_TIMESTAMP = pa.timestamp("us", "UTC")
_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_HEADERS = pa.list_(pa.field("element", _HEADER))

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", _TIMESTAMP),
        ("timestampType", pa.int32()),
    ]
)
"""The columns of Spark's kafka source, in its order."""

SCHEMA_WITH_HEADERS = SCHEMA.append(pa.field("headers", _HEADERS))
"""The same with ``includeHeaders``."""

_PARTS = 7  # fields of a binary column in the state
_BYTES_FIRST = 64 << 10  # room for the bytes of a column, before anything is known
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")  # UTF-16 surrogates, encoded like others


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
        topic: the value of the column ``topic``.
        partition: the value of the column ``partition``.
        with_headers: whether there is a column ``headers``.
        rows_max: rows of a record batch.
        bytes_max: bytes of key, value and headers together; a larger record makes a batch alone.

    Attributes:
        state: what :func:`kshare.wire.decode.kernels.scan` works on.
    """

    def __init__(
        self, topic: str, partition: int, *, with_headers: bool, rows_max: int, bytes_max: int
    ) -> None:
        self._constants = (pa.scalar(topic, pa.string()), pa.scalar(partition, pa.int32()))
        self._repeated = [pa.repeat(constant, 0) for constant in self._constants]
        self._schema = SCHEMA_WITH_HEADERS if with_headers else SCHEMA
        self._kinds = [kernels.KEYS, kernels.VALUES, *([kernels.HEADERS] if with_headers else [])]
        self._sizes = [_BYTES_FIRST for _ in self._kinds]
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
        self._fixed = [allocate(width * rows) for width in (8, 8, 4)]
        state[kernels.RECORD_OFFSETS] = self._fixed[0].address
        state[kernels.TIMESTAMPS] = self._fixed[1].address
        state[kernels.TIMESTAMP_TYPES] = self._fixed[2].address
        self._binaries = [
            _Binary(state, column, rows, size)
            for column, size in zip(self._kinds, self._sizes, strict=True)
        ]

    def reserve(self) -> bool:
        """After FULL: make room for the next record; False: finish the record batch first."""
        state = self.state
        need = sum(int(state[column + kernels.NEED]) for column in self._kinds)
        full = self.rows >= state[kernels.ROWS_MAX] or need > state[kernels.BYTES_MAX]
        if self.rows and full:
            return False
        for binary in self._binaries:
            binary.reserve()
        return True

    def finish(self) -> pa.RecordBatch:
        """The record batch; a new one must be begun then."""
        rows = self.rows
        self._sizes = [binary.used + (binary.used >> 3) for binary in self._binaries]
        keys, values = (binary.finish(pa.binary(), rows) for binary in self._binaries[:2])
        kinds = (pa.int64(), _TIMESTAMP, pa.int32())
        fixed = [
            pa.Array.from_buffers(kind, rows, [None, shrink(buffer, kind.bit_width // 8 * rows)], 0)
            for kind, buffer in zip(kinds, self._fixed, strict=True)
        ]
        columns = [keys, values, *self._constant_columns(rows), *fixed]
        if kernels.HEADERS in self._kinds:
            columns.append(_headers(self.state, rows))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _constant_columns(self, rows: int) -> list[pa.Array]:
        if rows > len(self._repeated[0]):
            self._repeated = [pa.repeat(constant, rows) for constant in self._constants]
        return [column.slice(0, rows) for column in self._repeated]
