"""The compressed records of batches, as bytes one after the other in an arena.

Guarantees: what comes out is what went in, or an :class:`.InflateError` says what is wrong. Nothing
on the wire makes the arena larger than twice what really came out of it. A batch that inflates to
more than a window is there in part, and goes on: so memory is that of its largest record.

Cost: 5 us for a batch of 16 KB (lz4). Memory: 1 MiB, or what the largest record needs, of which no
more than 8 MiB is kept.

The codecs are pyarrow's, and zlib's. To begin a stream costs more than a small batch does (lz4: 6
us, zstd: 30 us), so several batches go through one stream, joined: gzip, lz4 and zstd allow several
frames in a row. A mark, which is a frame of random bytes, behind each batch shows where it ends.
Snappy alone has no stream format that pyarrow knows.
"""

import os
import struct
from collections.abc import Sequence
from functools import cache
from typing import Final

import numpy as np
import pyarrow as pa

from kshare.read.decode import compiled
from kshare.read.decode.compiled import Bytes, Ints
from kshare.read.decode.streams import CODECS, BlockSizeError, Stream, arrow_stream

__all__ = ["WINDOW_BYTES", "Arena"]

WINDOW_BYTES: Final = 8 << 20
"""Bytes of a batch that are decompressed before they are scanned."""

_FIRST: Final = 1 << 20
_KEPT_MAX: Final = 8 << 20  # a window, which most batches fit into
_JOINED_MAX: Final = 4 << 20
_MARK_BYTES: Final = 16
_NO_RECORD: Final = b"\x01"  # the varint -1: no record is that long, so none begins with a mark


@cache
def _mark(name: str) -> tuple[tuple[int, int], bytes]:
    """Bytes that no batch holds, since nobody can know them, as two integers and as a frame."""
    mark = _NO_RECORD + os.urandom(_MARK_BYTES - len(_NO_RECORD))
    low, high = struct.unpack("=qq", mark)
    return (low, high), pa.compress(mark, name, asbytes=True)


_FAULTS: Final = (OSError, ValueError, MemoryError, pa.ArrowException)


class Arena:
    """A growing buffer for the decompressed records of some batches.

    Args:
        window: Bytes of a batch that are decompressed before they are scanned.

    Attributes:
        window: As given.
    """

    def __init__(self, window: int = WINDOW_BYTES) -> None:
        self.window = window
        self._room: Bytes = np.empty(0, np.uint8)
        self._used = 0
        self._joins = True

    @property
    def used(self) -> int:
        """Bytes since the last :meth:`clear`."""
        return self._used

    @property
    def size(self) -> int:
        """Bytes that the arena takes."""
        return len(self._room)

    @property
    def data(self) -> Bytes:
        """These bytes, read-only; valid until the next change."""
        view = self._room[: self._used]
        view.flags.writeable = False
        return view

    def clear(self) -> None:
        """Forget all batches."""
        self.cut(0)
        if len(self._room) > _KEPT_MAX:
            self._room = np.empty(0, np.uint8)

    def cut(self, end: int) -> None:
        """Forget what is behind a position."""
        self._used = end

    def inflate_joined(
        self, codec: int, parts: Sequence[memoryview], counts: Ints
    ) -> tuple[Ints, Ints] | None:
        """Decompress the records of several batches at once.

        Args:
            codec: Kafka's number of the codec, 1 to 4.
            parts: The records of each batch.
            counts: The number of records of each.

        Returns:
            Where those of each start and end in :attr:`data`; ``None`` if it must be tried one by
            one: because of the codec, because one of them is damaged, or because they are large.
        """
        name = CODECS[codec]
        if name == "snappy" or not self._joins:
            return None
        start = self._used
        mark, frame = _mark(name)
        ends = counts.copy()
        try:
            self._read_all(arrow_stream(name, frame.join((*parts, b""))), start + _JOINED_MAX)
            reached = compiled.find_marks(self.data, start, ends, mark)
        except _FAULTS:
            reached = -1
        if reached != self._used:
            self._used = start
            self._joins = False
            return None
        starts = np.empty_like(ends)
        starts[0] = start
        starts[1:] = ends[:-1] + _MARK_BYTES
        return starts, ends

    def inflate(self, stream: Stream, most: int) -> tuple[int, int]:
        """Decompress the records of a batch behind those that are there.

        Args:
            stream: The records, from their begin.
            most: Maximum number of bytes.

        Returns:
            Where they are in :attr:`data`: start and end. There are more unless the stream is over:
            those behind a block that is too large, perhaps, which :meth:`fill` says.

        Raises:
            InflateError: They are damaged.
            MemoryError: There is none.
        """
        start = self._used
        try:
            self.fill(stream, start + most)
        except BlockSizeError:
            pass  # whoever needs the block hears of it
        except BaseException:
            self._used = start
            raise
        return start, self._used

    def move_up(self, start: int) -> None:
        """Move what is from a position on to the begin, and forget the rest."""
        kept = self._room[start : self._used]
        if len(self._room) > _KEPT_MAX and len(kept) <= _FIRST:
            self._room = np.empty(_FIRST, np.uint8)
        self._room[: len(kept)] = kept
        self._used = len(kept)

    def fill(self, stream: Stream, end: int) -> None:
        """Decompress more, up to a position; less where the records may end.

        Args:
            stream: As for :meth:`inflate`.
            end: The position.

        Raises:
            InflateError: As for :meth:`inflate`.
            BlockSizeError: A block is too large. What comes before it is there.
            MemoryError: As for :meth:`inflate`.
        """
        while self._used < end and not stream.is_over:
            if self._used == len(self._room):
                self._reserve(end)
            room = memoryview(self._room)[self._used : end]  # type: ignore[arg-type]
            self._used += stream.read(room)
            if stream.may_end:
                return

    def pass_over(self, stream: Stream, count: int) -> bool:
        """Decompress and forget some bytes, and all that is there.

        Returns:
            False if the stream ends before.
        """
        self._used = 0
        if not len(self._room):
            self._reserve(_FIRST)
        room = memoryview(self._room)  # type: ignore[arg-type]
        while count > 0 and not stream.is_over:
            count -= stream.read(room[:count])
        return count == 0

    def _read_all(self, stream: pa.CompressedInputStream, limit: int) -> None:
        while True:
            if self._used == len(self._room):
                self._reserve(limit + 1)  # the byte over the limit shows that there are more
            room = memoryview(self._room)[self._used :]  # type: ignore[arg-type]
            got = stream.readinto(room)
            self._used += got
            if self._used > limit:
                raise ValueError("more than are joined")
            if got < len(room):
                return

    def _reserve(self, most: int) -> None:
        """Make room for more bytes, twice as much as before, up to a limit."""
        size = max(_FIRST, 2 * len(self._room))
        wider = np.empty(max(min(size, most), self._used + 1), np.uint8)
        wider[: self._used] = self._room[: self._used]
        self._room = wider
