"""How far the chunks of a partition are handed out, and which rows are not acknowledged.

::

                 collect()                        confirm()
    handed out -----------> handed out, collected ---------> handed out, returned
         ^                           |
         +------- take_back() -------+
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kshare.core.hashing import NO_HASHES, KeyRanges, key_hash
from kshare.core.offsets import OFFSET_MAX, Bounds
from kshare.group.message import ACKNOWLEDGED, RELEASED, Chunk, Rows

__all__ = ["HandedOut", "Offsets", "OpenChunks", "is_of"]

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


_WHOLE = 8
"""Chunks that are kept as they are: what is acknowledged soon is not worth a copy."""

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


class OpenChunks:
    """Chunks with rows that are not acknowledged.

    Args:
        chunks: Those that there are, ascending.
    """

    def __init__(self, chunks: tuple[Chunk, ...] = ()) -> None:
        self._chunks = list(chunks)

    def add(self, chunk: Chunk, ahead_end: int) -> None:
        """Add rows that are handed out and not acknowledged yet.

        Args:
            chunk: The rows.
            ahead_end: Up to here, records may have been handed out before.
        """
        self._sweep()
        chunk.overtaken = int(chunk.offsets[0]) < ahead_end
        self._chunks.append(chunk)

    def chunks(self) -> tuple[Chunk, ...]:
        """The chunks that are left."""
        self._sweep()
        return tuple(self._chunks)

    def acknowledge(self, offsets: Offsets, chunks: Collection[int] = ()) -> None:
        """Acknowledge records by their offsets; unknown ones change nothing.

        Args:
            offsets: The offsets.
            chunks: Numbers of the chunks that they are of; none: of any.
        """
        for chunk, rows in self._open_among(offsets, chunks):
            np.frombuffer(chunk.acknowledged, np.uint8)[rows] = ACKNOWLEDGED

    def _open_among(
        self, offsets: Offsets, chunks: Collection[int]
    ) -> Iterator[tuple[Chunk, Offsets]]:
        """The rows of each chunk that are of some offsets, and neither acknowledged nor come again.

        Those come in another row.
        """
        wanted = np.sort(offsets)
        for chunk in self._chunks:
            if chunks and chunk.number not in chunks:
                continue
            low, high = np.searchsorted(wanted, (chunk.offsets[0], chunk.offsets[-1] + 1))
            if low == high:
                continue
            rows = np.searchsorted(chunk.offsets, wanted[low:high])
            rows = rows[chunk.offsets[rows] == wanted[low:high]]
            values = np.frombuffer(chunk.acknowledged, np.uint8)
            yield chunk, rows[values[rows] == 0]

    def acknowledge_between(self, start: int, end: int, but: KeyRanges = NO_HASHES) -> None:
        """All records with offsets ``[start, end)`` are acknowledged, but those of some hashes."""
        for chunk in self._chunks:
            first, last = np.searchsorted(chunk.offsets, (start, end)).tolist()
            values = np.frombuffer(chunk.acknowledged, np.uint8)
            rows = first + np.flatnonzero(values[first:last] == 0)  # but those that come again
            if but and chunk.has_keys:
                keys = chunk.column("key")
                rows = [
                    row
                    for row in rows.tolist()
                    if not is_of(keys[row], int(chunk.offsets[row]), but)
                ]
            values[rows] = ACKNOWLEDGED

    def replace_from(self, start: int, but: KeyRanges = NO_HASHES) -> None:
        """Replace released rows from an offset on, but those of some hashes: they are read anew."""
        for chunk in self._chunks:
            for row in chunk.released_rows():
                offset = int(chunk.offsets[row])
                if offset >= start and not is_of(chunk.column("key")[row], offset, but):
                    chunk.replace(row)

    def release(self, key: bytes | None, first: int) -> None:
        """Mark the records of a key from an offset on that are not acknowledged."""
        for chunk in list(self._chunks):
            if chunk.offsets[-1] >= first:
                row = int(np.searchsorted(chunk.offsets, first))
                if key is None and chunk.offsets[row] != first:
                    continue  # it has nothing in common with any record of this chunk
                for each in _rows_of(chunk, key, row):
                    chunk.release(each)

    def release_all(self, firsts: Mapping[bytes, int], alone: Collection[int]) -> None:
        """The same for many keys, in one pass.

        Args:
            firsts: The first offset of each key.
            alone: Offsets of records without a key.
        """
        lowest = min([*firsts.values(), *alone])
        for chunk in list(self._chunks):
            if chunk.offsets[-1] < lowest:
                continue
            for row, key in enumerate(chunk.column("key")):
                offset = int(chunk.offsets[row])
                if offset in alone if key is None else offset >= firsts.get(key, OFFSET_MAX):
                    chunk.release(row)

    def come_again(self) -> list[tuple[bytes | None, int, Bounds]]:
        """Records that are marked count as not handed out from now on.

        Returns:
            Of each key in each chunk: the key, the offset of its first marked record, and offsets
            that hold all of its marked records and no other one of it that was handed out.
        """
        found = []
        for chunk in self._chunks:
            if RELEASED not in chunk.released:
                continue
            keys = chunk.column("key")
            by_key: dict[tuple[bytes | None, int], list[int]] = {}
            for row in chunk.released_rows():
                by_key.setdefault((keys[row], -1 if keys[row] is not None else row), []).append(row)
            for (key, _), rows in by_key.items():
                bounds: list[int] = []
                is_open = False
                for row in _rows_of(chunk, key, rows[0]) if key is not None else rows:
                    offset, comes = int(chunk.offsets[row]), chunk.released[row] == RELEASED
                    if comes and (is_open or bounds[-1:] == [offset]):
                        bounds[-1] = offset + 1
                    elif comes:
                        bounds += (offset, offset + 1)
                    is_open = comes and not chunk.overtaken
                found.append((key, int(chunk.offsets[rows[0]]), tuple(bounds)))
                for row in rows:
                    chunk.replace(row)
        return found

    @property
    def records(self) -> int:
        """Number of records that are not acknowledged."""
        return sum([chunk.records for chunk in self._chunks])

    def offsets(self) -> Offsets:
        """The offsets of the records that are not acknowledged, ascending, each once."""
        # No sweep: another thread may be about to add a chunk.
        parts = [chunk.offsets[chunk.open_rows()] for chunk in self._chunks]
        parts = [part for part in parts if len(part)]
        offsets = np.concatenate(parts) if parts else np.empty(0, np.int64)
        if all(one[-1] < other[0] for one, other in pairwise(parts)):
            return offsets
        # Not np.unique: from numpy 2.3 on it hashes, which takes a hundred times as long.
        offsets.sort(kind="stable")
        return offsets[np.diff(offsets, prepend=-1) > 0]

    def oldest_ms(self, below: int) -> int | None:
        """Timestamp of the first record that is not acknowledged; None if there is none.

        Args:
            below: Records from this offset on do not count.
        """
        first = [
            (int(chunk.offsets[row]), chunk, row)
            for chunk in self._chunks
            if (row := chunk.first_open()) >= 0 and chunk.offsets[row] < below
        ]
        if not first:
            return None
        _, chunk, row = min(first, key=itemgetter(0))
        if "timestamp" not in chunk.batch.schema.names:
            return None
        milliseconds = int(chunk.column("timestamp")[row])
        return milliseconds if milliseconds >= 0 else None

    def slim(self) -> None:
        """Forget the values of all: nobody waits for them soon."""
        self._sweep()
        self._chunks = [each if each.is_slim else each.slim for each in self._chunks]

    def _sweep(self) -> None:
        """Forget the chunks that are acknowledged, and the values of those that stay for long."""
        chunks = [chunk for chunk in self._chunks if chunk.first_open() >= 0]
        for at, chunk in enumerate(chunks[:-_WHOLE]):
            if not chunk.is_slim:
                chunks[at] = chunk.slim
        self._chunks = chunks


def is_of(key: bytes | None, offset: int, hashes: KeyRanges) -> bool:
    """Return True if a record with this key and offset is of some key hashes."""
    return hashes.holds(key_hash(key, offset))


def _rows_of(chunk: Chunk, key: bytes | None, first: int) -> Iterator[int]:
    """The rows of a key, from one on; without a key, a row has nothing in common with others."""
    keys, row = chunk.column("key"), first - 1
    with suppress(ValueError):
        while key is not None or row < first:
            row = keys.index(key, row + 1) if key is not None else first
            yield row
