"""The compressed records of batches, as bytes one after the other in an arena.

Guarantees: what comes out is what went in, or an :class:`InflateError` says what is wrong. Nothing
on the wire makes the arena larger than twice what really came out of it.

Cost: 5 us for a batch of 16 KB (lz4). Memory: 1 MiB, or what the largest batch needs, of which no
more than 8 MiB is kept.

The codecs are pyarrow's. To begin a stream costs more than a small batch does (lz4: 6 us, zstd:
30 us), so several batches go through one stream, joined: all three formats allow several frames in
a row. A mark, which is a frame of random bytes, behind each batch shows where it ends. Snappy alone
has no stream format that pyarrow knows: there are blocks, bare (librdkafka) or in the framing of
snappy-java (Java's clients), https://github.com/xerial/snappy-java.
"""

import os
import struct
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import pyarrow as pa

from kshare.wire.decode import compiled
from kshare.wire.decode.compiled import Bytes, Ints

__all__ = ["CODECS", "INFLATED_MAX", "Arena", "InflateError"]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""By Kafka's numbers."""

INFLATED_MAX = 1 << 30
"""Bytes of the records of one batch at most."""

_FIRST = 1 << 20
_KEPT_MAX = 8 << 20
_JOINED_MAX = 4 << 20
_MARK_BYTES = 16
_NO_RECORD = b"\x01"  # the varint -1: no record is that long, so none begins with a mark
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEAD_BYTES = 16
_SNAPPY_RATIO = 64  # of a block's size to its compressed size, at most: 64 bytes for a tag and two
_LENGTH = struct.Struct(">i")


@cache
def _mark(name: str) -> tuple[tuple[int, int], bytes]:
    """Bytes that no batch holds, since nobody can know them, as two integers and as a frame."""
    mark = _NO_RECORD + os.urandom(_MARK_BYTES - len(_NO_RECORD))
    low, high = struct.unpack("=qq", mark)
    return (low, high), pa.compress(mark, name, asbytes=True)


class InflateError(ValueError):
    """Compressed records that cannot be decompressed; the text says why."""


_FAULTS = (OSError, ValueError, pa.ArrowException)


class Arena:
    """A growing buffer for the decompressed records of some batches.

    Args:
        inflated_max: Maximum size of one batch.
    """

    def __init__(self, inflated_max: int = INFLATED_MAX) -> None:
        self._inflated_max = inflated_max
        self._room = bytearray()
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
        """These bytes, read-only; valid until the next :meth:`clear`."""
        view = np.frombuffer(self._room, np.uint8, self._used)
        view.flags.writeable = False
        return view

    def clear(self) -> None:
        """Forget all batches."""
        self._used = 0
        if len(self._room) > _KEPT_MAX:
            self._room = bytearray()

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
            self._inflate_stream(name, frame.join((*parts, b"")), _JOINED_MAX)
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

    def inflate(self, codec: int, compressed: memoryview) -> tuple[int, int]:
        """Decompress the records of a batch behind those that are there.

        Args:
            codec: Kafka's number of the codec, 1 to 4.
            compressed: The records.

        Returns:
            Where they are in :attr:`data`: start and end.

        Raises:
            InflateError: They are damaged, or larger than is allowed.
        """
        start = self._used
        name = CODECS[codec]
        try:
            if name == "snappy":
                self._inflate_blocks(compressed)
            else:
                self._inflate_stream(name, compressed, self._inflated_max)
        except _FAULTS as error:
            self._used = start
            if isinstance(error, InflateError):
                raise
            raise InflateError(f"its records cannot be decompressed by {name}: {error}") from error
        return start, self._used

    def _inflate_stream(self, name: str, compressed: memoryview | bytes, most: int) -> None:
        start = self._used
        stream = pa.CompressedInputStream(pa.BufferReader(compressed), name)
        while True:
            if self._used == len(self._room):
                self._reserve(1, start + most)
            room = memoryview(self._room)[self._used :]
            got = stream.readinto(room)
            self._used += got
            _check(self._used - start, most)
            if got < len(room):
                return

    def _inflate_blocks(self, compressed: memoryview) -> None:
        start = self._used
        for block in _snappy_blocks(compressed):
            size = _snappy_size(block)
            _check(self._used - start + size, self._inflated_max)
            if size > _SNAPPY_RATIO * len(block):
                raise InflateError("a snappy block claims to be larger than it can be")
            data = pa.decompress(block, size, "snappy")
            if self._used + size > len(self._room):
                self._reserve(size, start + self._inflated_max)
            self._room[self._used : self._used + size] = data
            self._used += size

    def _reserve(self, more: int, limit: int) -> None:
        """Make room for ``more`` bytes, and at least twice as much as before, up to a limit."""
        size = max(_FIRST, 2 * len(self._room), self._used + more)
        # One byte over the limit shows that a batch is over it.
        wider = bytearray(min(size, max(limit + 1, self._used + more)))
        wider[: self._used] = memoryview(self._room)[: self._used]
        self._room = wider


def _check(size: int, most: int) -> None:
    if size > most:
        raise InflateError(
            f"its records take more than {most} bytes decompressed, which kshare does not read"
        )


def _snappy_blocks(compressed: memoryview) -> Iterator[memoryview]:
    """The blocks of either layout."""
    if compressed[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        yield compressed
        return
    at = _XERIAL_HEAD_BYTES
    while at < len(compressed):
        if at + _LENGTH.size > len(compressed):
            raise InflateError("its snappy framing is cut short")
        (size,) = _LENGTH.unpack_from(compressed, at)
        at += _LENGTH.size
        if not 0 < size <= len(compressed) - at:
            raise InflateError("a snappy block does not fit into the batch")
        yield compressed[at : at + size]
        at += size


def _snappy_size(block: memoryview) -> int:
    """The size of a block when decompressed: a varint of 32 bits at its begin."""
    size = 0
    for shift, byte in zip(range(0, 35, 7), block, strict=False):
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return size
    raise InflateError("a snappy block does not begin with its size")
