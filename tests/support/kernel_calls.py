"""Calls of the scan kernel without a decoder around it."""

from typing import Any

import numpy as np
import numpy.typing as npt

from kshare.core.hashing import WHOLE
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Rectangle, Slice
from kshare.wire.decode import kernels
from kshare.wire.decode.columns import COLUMNS, Columns
from kshare.wire.decode.records import _Wanted

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
            "t", 0, names=names, with_keys=False, rows_max=rows, bytes_max=1 << 20
        )
        self._with_headers = with_headers
        self._rows: list[Row] = []
        self._counting = counting
        if counting:
            self.state = np.zeros(kernels.STATE_SIZE, np.int64)
            self.state[kernels.ROWS_MAX], self.state[kernels.COUNTING] = rows, 1
        else:
            self.state = self._columns.state
            self._columns.begin(rows)
        self._wanted = _Wanted(slice_.bands())
        self._wanted.put(self.state, floor, 0)

    def batch(self, count: int, last_delta: int, size: int) -> npt.NDArray[np.int64]:
        """The table of a batch whose records fill the buffer."""
        table = np.zeros((1, kernels.BATCH_FIELDS), np.int64)
        table[0, kernels.END] = size
        table[0, kernels.BASE_OFFSET] = self._base
        table[0, kernels.LAST_DELTA] = last_delta
        table[0, kernels.RECORDS] = count
        table[0, kernels.FIRST_TIMESTAMP] = self._first_timestamp
        return table

    def again(self, source: npt.NDArray[np.uint8], count: int, last_delta: int) -> int:
        """The same with another batch, from the start."""
        if self._counting:
            self.state[kernels.ROWS] = 0
        elif self._rows:
            self._columns.begin(12)
        else:  # the same columns, as good as new
            self.state[kernels.ROWS] = 0
            for column in (kernels.KEYS, kernels.VALUES, kernels.HEADERS):
                self.state[[column + kernels.USED, column + kernels.NULLS]] = 0
            for binary in self._columns._binaries.values():
                np.frombuffer(binary._valid, np.uint8)[:] = 0xFF
        self._rows = []
        self.state[kernels.BAND] = 0
        return self.run(source, count, last_delta)

    def run(self, source: npt.NDArray[np.uint8], count: int, last_delta: int) -> int:
        """Scan to the end, or to a fault; what a kernel said last."""
        table = self.batch(count, last_delta, len(source))
        self.state[kernels.BATCH] = self.state[kernels.RECORD] = 0
        while True:
            status = int(kernels.scan(source, table, self.state))
            if status != kernels.FULL or self._counting:
                return status
            if not self._columns.reserve():
                self._collect()
                self._columns.begin(100)

    def rows(self) -> list[Row]:
        """What was appended: offset, timestamp, its type, key, value, headers; once."""
        if self.state[kernels.ROWS]:
            self._collect()
            self.state[kernels.ROWS] = 0
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
