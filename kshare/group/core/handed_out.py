"""How far the chunks of a partition are handed out.

::

                 collect()                        confirm()
    handed out -----------> handed out, collected ---------> handed out, returned
         ^                           |
         +------- take_back() -------+
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kshare.group.message import Chunk, Rows

__all__ = ["HandedOut", "Offsets"]

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Mark:
    """Where a call began to collect.

    Attributes:
        position: The offset after the last record that was returned before.
        before_last: The position before that record.
        records: Number of records that were handed out before.
        chunks: Chunks with rows that the call has collected, each with the first such row.
    """

    position: int
    before_last: int
    records: int
    chunks: list[tuple[Chunk, int]]


_Current: TypeAlias = tuple[Chunk, Rows, int, int]
"""The chunk that is being handed out, its rows that are left, and the positions around it."""


def _taken(current: _Current | None) -> int:
    """The number of rows of a chunk that are handed out."""
    return 0 if current is None else len(current[0].acknowledged) - current[1].left


class HandedOut:
    """How far chunks are handed out, one after the other, by rows.

    One thread hands out; others may read properties meanwhile: each looks once at the current
    chunk, which may be another one a moment later.

    Args:
        position: The offset after the last record that was handed out.
    """

    def __init__(self, position: int) -> None:
        self._position = self._before_last = position
        self._current: _Current | None = None
        self._records = 0  # of the chunks before the current one
        self._mark: _Mark | None = None
        self._closing: list[tuple[Chunk, int]] = []  # taken back, and rows may not be closed yet
        # By :meth:`stop`: the chunk, the records before it, and what was not handed out of it.
        self._stopping: tuple[_Current, int, list[object]] | None = None

    @property
    def position(self) -> int:
        """The offset after the last record that was handed out."""
        current = self._current
        return self._position_at(current, _taken(current))

    @property
    def is_collected(self) -> bool:
        """True if a call has collected records that it has not returned."""
        return self._mark is not None

    @property
    def returned(self) -> int:
        """The offset after the last record that was handed out, and not only collected."""
        return self.position if self._mark is None else self._mark.position

    @property
    def before_last(self) -> int:
        """The position before the last record was handed out."""
        current = self._current
        rows = _taken(current)
        return self._position_at(current, rows - 1) if rows else self._before_last

    @property
    def records(self) -> int:
        """Number of records that were handed out."""
        return self._records + self._rows

    @property
    def left(self) -> int:
        """Number of rows of the current chunk that are still to be handed out."""
        current = self._current
        return 0 if current is None else current[1].left

    def begin(self, chunk: Chunk, end: int) -> Rows:
        """Hand out the rows of the next chunk: those that are taken are handed out.

        Args:
            chunk: The rows; the chunk before is handed out.
            end: The offset up to which everything is handed out with it.
        """
        self._finish()
        rows = chunk.messages()
        self._current = chunk, rows, self._position, end
        if self._mark is not None:
            self._mark.chunks.append((chunk, 0))
        return rows

    def will_add(self, chunk: Chunk) -> None:
        """A chunk is about to be added: what takes back, after an interrupt, finds it."""
        if self._mark is not None:
            self._mark.chunks.append((chunk, 0))

    def add(self, chunk: Chunk, end: int) -> None:
        """A chunk is handed out as a whole; see :meth:`will_add`."""
        self._finish()
        rows = len(chunk.acknowledged)
        # From here on without a call, so that no interrupt comes between.
        self._position = end
        self._records += rows

    def collect(self) -> None:
        """What is handed out from now on is collected by a call, which may return it later."""
        if self._mark is None:
            current, rows = self._current, self._rows
            before_last = self._position_at(current, rows - 1) if rows else self._before_last
            self._mark = _Mark(
                self._position_at(current, rows),
                before_last,
                self._records + rows,
                [] if current is None else [(current[0], rows)],
            )

    def confirm(self) -> None:
        """Count as returned what was collected."""
        self._mark = None

    def take_back(self) -> list[tuple[Chunk, int]]:
        """Undo handing out what was collected; there is no current chunk.

        Returns:
            The chunks that it is of, each with its first row; again until :meth:`closed`.
        """
        mark = self._mark
        if mark is not None:  # without a call, so that no interrupt comes between
            self._mark, self._closing = None, mark.chunks
            self._position, self._before_last = mark.position, mark.before_last
            self._records = mark.records
        return self._closing

    def closed(self) -> None:
        """The rows of what was taken back are no gaps any more."""
        self._closing = []

    def pass_to(self, offset: int) -> None:
        """All up to an offset is handed out."""
        self._finish()
        self._position = max(self._position, offset)

    def stop(self) -> None:
        """Hand out no more of the current chunk; what was not handed out of it is no gap.

        After an interrupt amid this, another call ends it.
        """
        if self._current is not None:
            self._stopping = self._current, self._records, []
        if self._stopping is None:
            return
        current, records, rest = self._stopping
        chunk, left, _, _ = current
        # Before it is emptied: after an interrupt, what was not taken is not handed out.
        self._stop_at(current, _taken(current) - len(rest), records)
        rest.extend(left.rest)  # at once: another thread may be about to take a message
        rows = len(chunk.acknowledged) - len(rest)
        self._stop_at(current, rows, records)
        chunk.close_rows(rows)
        self._stopping = None

    def _stop_at(self, current: _Current, rows: int, records: int) -> None:
        before_last = self._position_at(current, max(rows - 1, 0))
        position = self._position_at(current, rows)
        self._before_last, self._position, self._current = before_last, position, None
        self._records = records + rows

    def seek(self, offset: int) -> None:
        """Go on at an offset; there is no current chunk."""
        self._position = self._before_last = offset

    @property
    def _rows(self) -> int:
        return _taken(self._current)

    def _position_at(self, current: _Current | None, rows: int) -> int:
        """The position when this number of rows of a chunk is handed out."""
        if current is None:
            return self._position
        chunk, _, start, end = current
        if not rows:
            return start
        return int(chunk.offsets[rows]) if rows < len(chunk.offsets) else end

    def _finish(self) -> None:
        if self._stopping is not None:
            self.stop()
        if self._current is not None:
            assert self._rows == len(self._current[0].acknowledged)
            self._records += self._rows
            self._before_last = self.before_last
            self._position, self._current = self._current[3], None
