"""The decompressors of one batch's records, as streams that are read in pieces.

Guarantees: what comes out is what went in, or an :class:`InflateError` says what is wrong. Memory
is that of the codec's window, or of one snappy block, whose size is checked before it is made. Each
codec takes the oddities that Java's consumer takes: docs/design/read-path.md lists them.

Cost: to begin a stream 1 us (snappy) to 30 us (zstd).
"""

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

import pyarrow as pa

from kshare.read.decode.lz4_frames import first_frame

__all__ = ["CODECS", "BlockSizeError", "InflateError", "Stream", "arrow_stream", "open_stream"]

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
"""By Kafka's numbers."""

_GZIP_MAGIC: Final = b"\x1f\x8b\x08"
_GZIP_MEMBER_MIN: Final = 20  # header, an empty block, trailer
_GZIP_INPUT: Final = 64 << 10
_GZIP_BITS: Final = 47  # a window of 32 KiB; a gzip header, or zlib's, which Arrow takes too
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEAD_BYTES: Final = 16
_SNAPPY_COPY: Final = 64  # bytes that 3 bytes stand for, at most
_LENGTH: Final = struct.Struct(">i")


class InflateError(ValueError):
    """Compressed records that cannot be decompressed; the text says why."""


class BlockSizeError(Exception):
    """A block that must be decompressed at once is larger than is allowed.

    Args:
        size: Its size, decompressed.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class Stream(Protocol):
    """The decompressed records of one batch.

    Attributes:
        is_over: Whether all was read.
        may_end: Whether the records may end here, whatever is behind: then :meth:`read` returned
            fewer bytes than there was room for.
    """

    is_over: bool
    may_end: bool

    def read(self, room: memoryview) -> int:
        """Fill some room; with less at the end, and where the records may end.

        Raises:
            InflateError: The bytes are damaged.
            BlockSizeError: A block is too large.
            MemoryError: There is none for the decompressor.
        """


@contextmanager
def _faults(name: str) -> Iterator[None]:
    """Turn a library's errors into this module's."""
    try:
        yield
    except (MemoryError, InflateError):
        raise
    except (OSError, ValueError, pa.ArrowException, zlib.error) as error:
        text = str(error)
        if "allocat" in text.lower() or "not enough memory" in text:  # zstd and lz4 say so
            raise MemoryError(text) from error
        raise InflateError(f"its records cannot be decompressed by {name}: {text}") from error


def arrow_stream(name: str, compressed: memoryview | bytes) -> "pa.CompressedInputStream":
    """Arrow's own stream over some frames in a row."""
    return pa.CompressedInputStream(pa.BufferReader(compressed), name)


class _Stored:
    """Records that are not compressed."""

    may_end = False

    def __init__(self, records: memoryview) -> None:
        self._left = records
        self.is_over = not len(records)

    def read(self, room: memoryview) -> int:
        part = self._left[: len(room)]
        room[: len(part)] = part
        self._left = self._left[len(part) :]
        self.is_over = not len(self._left)
        return len(part)


class _Zstd:
    """Any number of frames, skippable ones too."""

    may_end = False

    def __init__(self, compressed: memoryview) -> None:
        self.is_over = False
        with _faults("zstd"):
            self._stream = arrow_stream("zstd", compressed)

    def read(self, room: memoryview) -> int:
        with _faults("zstd"):
            got: int = self._stream.readinto(room)
        self.is_over = got < len(room)
        return got


class _Lz4:
    """The first frame, and what may be behind it.

    Java's client reads one frame. If a batch has fewer records in it, the next one is read here.
    """

    def __init__(self, compressed: memoryview) -> None:
        self._rest = compressed
        self.is_over = self.may_end = False
        self._begin()

    def _begin(self) -> None:
        with _faults("lz4"):
            frame, size = first_frame(self._rest)
            self._rest = self._rest[size:]
            self._stream = arrow_stream("lz4", frame)

    def read(self, room: memoryview) -> int:
        if self.may_end:
            self.may_end = False
            self._begin()
        with _faults("lz4"):
            got: int = self._stream.readinto(room)
        if got < len(room):
            self.is_over = not len(self._rest)
            self.may_end = not self.is_over
        return got


class _Gzip:
    """Members in a row; what is behind them and begins none does not matter, as in Java."""

    may_end = False

    def __init__(self, compressed: memoryview) -> None:
        self._left = compressed
        self._member = zlib.decompressobj(_GZIP_BITS)
        self.is_over = False

    def read(self, room: memoryview) -> int:
        used = 0
        while used < len(room) and not self.is_over:
            with _faults("gzip"):
                part = self._left[:_GZIP_INPUT]
                data = self._member.decompress(part, len(room) - used)
                room[used : used + len(data)] = data
            used += len(data)
            if self._member.eof:
                self._left = self._left[len(part) - len(self._member.unused_data) :]
                self._begin_next()
                continue
            taken = len(part) - len(self._member.unconsumed_tail)
            if not taken and not data:
                raise InflateError("its records cannot be decompressed by gzip: they are cut short")
            self._left = self._left[taken:]
        return used

    def _begin_next(self) -> None:
        is_member = bytes(self._left[: len(_GZIP_MAGIC)]) == _GZIP_MAGIC
        self.is_over = len(self._left) < _GZIP_MEMBER_MIN or not is_member
        self._member = zlib.decompressobj(_GZIP_BITS)


class _Snappy:
    """Blocks: bare (librdkafka), or in the framing of snappy-java (Java's clients).

    The framing: https://github.com/xerial/snappy-java. Its header may come again amid the stream,
    where streams were joined.

    Args:
        compressed: The bytes.
        most: Maximum size of a block, which is decompressed at once.
    """

    def __init__(self, compressed: memoryview, most: int) -> None:
        self._most = most
        self._blocks = _snappy_blocks(compressed)
        self._block = memoryview(b"")  # what is left of the last one, decompressed
        self.is_over = self.may_end = False
        self._look()

    def read(self, room: memoryview) -> int:
        used = 0
        while used < len(room) and not self.is_over and not (used and self.may_end):
            if not len(self._block):
                if self._next is None:
                    raise InflateError("its snappy framing is cut short")
                try:
                    self._block = self._inflated(self._next)
                except BlockSizeError:
                    if not used:
                        raise
                    break  # what comes before the block is handed out; the next call raises
            part = self._block[: len(room) - used]
            room[used : used + len(part)] = part
            used += len(part)
            self._block = self._block[len(part) :]
            if not len(self._block):
                self._look()
        return used

    def _look(self) -> None:
        """Find the next block."""
        self._next = next(self._blocks, memoryview(b""))
        self.may_end = self._next is None
        self.is_over = self._next is not None and not len(self._next)

    def _inflated(self, block: memoryview) -> memoryview:
        size = _snappy_size(block)
        if 3 * size > _SNAPPY_COPY * len(block):
            raise InflateError("a snappy block claims to be larger than it can be")
        if size > self._most:
            raise BlockSizeError(size)
        with _faults("snappy"):
            return memoryview(pa.decompress(block, size, "snappy")).cast("B")


def _snappy_blocks(compressed: memoryview) -> Iterator[memoryview | None]:
    """The blocks of either layout; None for what ends the stream for Java's client."""
    if bytes(compressed[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        yield compressed
        return
    rest = compressed[_XERIAL_HEAD_BYTES:]
    while len(rest):
        begin = bytes(rest[: len(_XERIAL_MAGIC)])
        if begin == _XERIAL_MAGIC and len(rest) >= _XERIAL_HEAD_BYTES:
            rest = rest[_XERIAL_HEAD_BYTES:]
            continue
        if len(rest) < _LENGTH.size or begin.startswith(_XERIAL_MAGIC[: _LENGTH.size]):
            yield None
            return
        (size,) = _LENGTH.unpack_from(rest)
        rest = rest[_LENGTH.size :]
        if not 0 < size <= len(rest):
            raise InflateError("a snappy block does not fit into the batch")
        yield rest[:size]
        rest = rest[size:]


def _snappy_size(block: memoryview) -> int:
    """The size of a block when decompressed: a varint of 32 bits at its begin."""
    size = 0
    for shift, byte in zip(range(0, 35, 7), block, strict=False):
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return size
    raise InflateError("a snappy block does not begin with its size")


def open_stream(codec: int, compressed: memoryview, most: int) -> Stream:
    """The decompressed records of one batch.

    Args:
        codec: Kafka's number of the codec, 0 to 4.
        compressed: The records.
        most: Maximum size of what is decompressed at once (snappy).

    Raises:
        InflateError: The bytes are damaged.
        MemoryError: There is none for the decompressor.
    """
    name = CODECS[codec]
    if name == "snappy":
        return _Snappy(compressed, most)
    if name == "gzip":
        return _Gzip(compressed)
    if name == "lz4":
        return _Lz4(compressed)
    return _Zstd(compressed) if name == "zstd" else _Stored(compressed)
