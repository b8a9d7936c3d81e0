"""Calls of the scan kernel without a decoder around it."""

from functools import cache
from typing import Any

import numpy as np

from kshare.core.hashing import WHOLE
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Rectangle, Slice
from kshare.read.decode import compiled, status
from kshare.read.decode.columns import COLUMNS, Columns
from kshare.read.decode.compiled import Batches, Bytes
from kshare.read.decode.layout import BATCH, ScanState
from kshare.read.decode.wanted import WantedRecords

EVERYTHING = Slice("t", 0, (Rectangle(OffsetRange(0, (1 << 63) - 1), WHOLE),))
Row = tuple[int, int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


class Scan:
    """One scan, of one batch.

    Args:
        rows: rows of a record batch; the limit of a count.
        slice_: what is wanted.
        floor: offsets below it are passed over.
        with_headers: whether headers are collected.
        counting: count only.
        base: the batch's base offset.
        first_timestamp: the batch's.
    """

    def __init__(
        self,
        *,
        rows: int,
        slice_: Slice = EVERYTHING,
        floor: int = 0,
        with_headers: bool = False,
        counting: bool = False,
        base: int = 0,
        first_timestamp: int = 1_000,
    ) -> None:
        self._base, self._first_timestamp = base, first_timestamp
        names = [name for name in COLUMNS if name != "headers" or with_headers]
        self._columns = Columns(
            "t", 0, names=names, with_keys=False, max_rows=rows, max_bytes=1 << 20
        )
        self._with_headers = with_headers
        self._rows: list[Row] = []
        self._counting = counting
        if counting:
            self.state = ScanState(max_rows=rows, counting=1)
        else:
            self.state = self._columns.state
            self._columns.begin(rows)
        self._wanted = WantedRecords(slice_.stripes)
        self._wanted.put(self.state, floor, 0)

    def batch(self, count: int, last_delta: int, size: int) -> Batches:
        """The table of a batch whose records fill the buffer."""
        table = np.zeros(1, BATCH)
        table["end"] = size
        table["base_offset"] = self._base
        table["last_delta"] = last_delta
        table["records"] = count
        table["first_timestamp"] = self._first_timestamp
        return table

    def again(self, source: Bytes, count: int, last_delta: int) -> int:
        """The same with another batch, from the start."""
        if self._counting:
            self.state.rows = 0
        elif self._rows:
            self._columns.begin(12)
        else:  # the same columns, as good as new
            self.state.rows = 0
            for column in (self.state.keys, self.state.values, self.state.headers):
                column.used = column.nulls = 0
            for binary in self._columns._binaries.values():
                np.frombuffer(binary._validity, np.uint8)[:] = 0xFF
        self._rows = []
        self.state.band = 0
        return self.run(source, count, last_delta)

    def run(self, source: Bytes, count: int, last_delta: int) -> int:
        """Scan to the end, or to a fault; what a kernel said last."""
        table = self.batch(count, last_delta, len(source))
        compiled.begin_scan(self.state, source, table)
        while True:
            result = compiled.scan(self.state)
            if result != status.FULL or self._counting:
                return result
            if not self._columns.reserve():
                self._collect()
                self._columns.begin(100)

    def rows(self) -> list[Row]:
        """What was appended: offset, timestamp, its type, key, value, headers; once."""
        if self.state.rows:
            self._collect()
            self.state.rows = 0
        return self._rows

    def _collect(self) -> None:
        batch = self._columns.finish().batch
        names = ("offset", "timestamp", "timestampType", "key", "value")
        columns = [batch[name] for name in names]
        columns[1] = columns[1].cast("int64")
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        headers: list[Any] = batch["headers"].to_pylist() if self._with_headers else []
        for number, row in enumerate(rows):
            entries = (headers[number] if headers else None) or ()
            self._rows.append((*row, tuple((e["key"], e["value"]) for e in entries)))


def murmur(key: Bytes, offset: int) -> int:
    """The key hash by compiled code: of a key, or (``offset`` not negative) of a record without."""
    begin = int(key.ctypes.data)
    return int(_murmur()(begin, len(key), offset))


@cache
def _murmur() -> Any:
    """Compiled when it is called first: that takes a second, and few of the callers need it."""
    from numba import njit, types

    from kshare.read.decode.kernels.native import hash_key, hash_offset

    @njit(types.int64(types.int64, types.int64, types.int64))
    def compiled_murmur(begin: Any, size: Any, offset: Any) -> Any:
        return hash_offset(offset) if offset >= 0 else hash_key(begin, size, begin + size)

    return compiled_murmur
