"""The compressed records of batches -> bytes, one after the other, in an arena.

Law: what comes out is what went in, or an :class:`InflateError` that says what is wrong; no word of
the wire makes the arena larger than twice what really came out of it. Cost: 15 us for a batch of
16 KB (lz4); memory: 1 MiB, or what the largest batch needs, of which no more than 8 MiB is kept.

The codecs are pyarrow's. Snappy alone has no stream format that it knows: there are blocks, bare
(librdkafka) or in the framing of snappy-java (Java's clients), https://github.com/xerial/snappy-java.
"""

import struct
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["CODECS", "INFLATED_MAX", "Arena", "Bytes", "InflateError"]

Bytes: TypeAlias = npt.NDArray[np.uint8]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""By Kafka's numbers."""

INFLATED_MAX = 1 << 30
"""Bytes of the records of one batch at most."""

_FIRST = 1 << 20
_KEPT_MAX = 8 << 20
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEAD_BYTES = 16
_SNAPPY_RATIO = 64  # of a block's size to its compressed size, at most: 64 bytes for a tag and two
_LENGTH = struct.Struct(">i")


class InflateError(ValueError):
    """Compressed records that cannot be decompressed; the text says why."""


class Arena:
    """A growing buffer for the decompressed records of some batches.

    Args:
        inflated_max: bytes of one batch at most.
    """

    def __init__(self, inflated_max: int = INFLATED_MAX) -> None:
        self._inflated_max = inflated_max
        self._room: Bytes = np.empty(0, np.uint8)
        self._used = 0

    @property
    def used(self) -> int:
        """Bytes of all batches since the last :meth:`clear`."""
        return self._used

    @property
    def size(self) -> int:
        """Bytes that the arena takes."""
        return len(self._room)

    @property
    def bytes(self) -> Bytes:
        """These bytes, read-only; valid until the next :meth:`clear`."""
        view = self._room[: self._used]
        view.flags.writeable = False
        return view

    def clear(self) -> None:
        """Forget all batches."""
        self._used = 0
        if len(self._room) > _KEPT_MAX:
            self._room = np.empty(0, np.uint8)

    def inflate(self, codec: int, compressed: memoryview) -> tuple[int, int]:
        """Decompress the records of a batch behind those that are there.

        Args:
            codec: Kafka's number of it, 1 to 4.
            compressed: the records.

        Returns:
            Where they are in :attr:`bytes`: start and end.

        Raises:
            InflateError: they are damaged, or larger than is allowed.
        """
        start = self._used
        name = CODECS[codec]
        try:
            if name == "snappy":
                self._inflate_blocks(compressed)
            else:
                self._inflate_stream(name, compressed)
        except (OSError, ValueError, pa.ArrowException) as error:
            self._used = start
            if isinstance(error, InflateError):
                raise
            raise InflateError(f"its records cannot be decompressed by {name}: {error}") from error
        return start, self._used

    def _inflate_stream(self, name: str, compressed: memoryview) -> None:
        start = self._used
        stream = pa.CompressedInputStream(pa.BufferReader(compressed), name)
        while True:
            if self._used == len(self._room):
                self._reserve(1, start)
            room = self._room.data[self._used :]
            got = stream.readinto(room)
            self._used += got
            self._check(self._used - start)
            if got < len(room):
                return

    def _inflate_blocks(self, compressed: memoryview) -> None:
        start = self._used
        for block in _snappy_blocks(compressed):
            size = _snappy_size(block)
            self._check(self._used - start + size)
            if size > _SNAPPY_RATIO * len(block):
                raise InflateError("a snappy block claims to be larger than it can be")
            data = pa.decompress(block, size, "snappy")
            if self._used + size > len(self._room):
                self._reserve(size, start)
            self._room[self._used : self._used + size] = np.frombuffer(data, np.uint8)
            self._used += size

    def _check(self, size: int) -> None:
        if size > self._inflated_max:
            raise InflateError(
                f"its records take more than {self._inflated_max} bytes decompressed, "
                "which kshare does not read"
            )

    def _reserve(self, more: int, start: int) -> None:
        """Make room for ``more`` bytes, and at least twice as much as before."""
        # One byte over the limit shows that a batch is over it.
        limit = max(start + self._inflated_max + 1, self._used + more)
        size = min(max(_FIRST, 2 * len(self._room), self._used + more), limit)
        wider = np.empty(size, np.uint8)
        wider[: self._used] = self._room[: self._used]
        self._room = wider


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
