"""The batches of a response as a scan gets them: some at a time, decompressed, in windows.

Guarantees: the checksum of each batch is checked before anything of it is looked at. A batch that
inflates to more than a window is scanned in windows, and what is left of a record is carried over
to the next one, so that memory is that of its largest record, whatever the batch inflates to.

Cost: 4 us a batch; a copy of the rest of one record for each window of 8 MiB.
"""

from collections.abc import Iterator
from typing import NoReturn

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from kshare.core.progress import TopicPartition
from kshare.errors import UnsupportedFormatError
from kshare.read.decode import compiled
from kshare.read.decode.batch_index import BatchIndex, corrupt
from kshare.read.decode.codecs import Arena
from kshare.read.decode.compiled import Batches, Bytes, Ints
from kshare.read.decode.large_records import no_memory
from kshare.read.decode.layout import ScanState
from kshare.read.decode.streams import CODECS, BlockSizeError, InflateError, Stream, open_stream

__all__ = ["Flags", "Window", "Windows"]

Flags = npt.NDArray[np.bool_]

_GROUP_BYTES = 512 << 10  # decompressed bytes a kernel call: they stay in the processor's cache
_RATIO = 4  # of these to compressed ones, about
_CODEC = 0x07
_PASSED_OVER = -1  # instead of a codec
_EXTENT = ["start", "end", "base_offset", "checksum"]  # fields of a batch
_START, _END, _OFFSET = range(3)  # in an extent
_CHECKED_FROM = 40  # the checksum covers this many bytes before the records
_VARINT_MAX = 10
_LET_GO_FROM = 1 << 20  # bytes of a batch, from which on other threads run while it is checked


class Window:
    """Some batches in a buffer, for one scan. If there is one alone, it may go on behind it.

    Args:
        source: The buffer.
        batches: Where they are in it; a table of its own.
        arena: The arena that the buffer is of, if the batch goes on.
        rest: What is not decompressed yet.
        most: Size of a window, unless a record needs more.

    Attributes:
        batches: As given.
        goes_on: Whether there was more than the first window.
    """

    __slots__ = ("_arena", "_most", "_rest", "_source", "batches", "goes_on")

    def __init__(
        self,
        source: Bytes,
        batches: Batches,
        arena: Arena | None = None,
        rest: Stream | None = None,
        most: int = 0,
    ) -> None:
        self.batches = batches
        self._source = source
        self._arena = arena
        self._rest = rest
        self._most = most
        self.goes_on = rest is not None

    def begin(self, state: ScanState) -> None:
        """Set a scan to the first record."""
        compiled.begin_scan(state, self._source, self.batches)

    @property
    def has_more(self) -> bool:
        """True if the batch has bytes that the buffer has not."""
        return self._rest is not None and not self._rest.is_over

    def base_offset(self, batch: int) -> int:
        """The base offset of a batch."""
        return int(self.batches["base_offset"][batch])

    def see_more(self, state: ScanState, length: int) -> None:
        """Let a scan have more of the record where it stands, a window at least.

        Args:
            state: The scan, after RECORD_LENGTH.
            length: How much of the record it needs, without the bytes of its length.

        Raises:
            InflateError: The bytes are damaged.
            BlockSizeError: A block of them is too large, and nothing comes before it.
            MemoryError: There is none.
        """
        if self._arena is None or self._rest is None:
            return
        self._arena.move_up(state.position)
        self._put(state)  # before anything may fail
        before = self._arena.used
        try:
            self._arena.fill(self._rest, max(length + _VARINT_MAX, self._most))
        except BlockSizeError:
            if self._arena.used == before:
                raise
        self._put(state)

    def head(self, state: ScanState) -> memoryview:
        """The record where a scan stands, and what is behind it, as far as it is there."""
        return self._source.data[state.position : int(self.batches["end"][state.batch])]

    def pass_over(self, state: ScanState, size: int) -> bool:
        """Set a scan behind the record where it stands; its number is the caller's to count up.

        Args:
            state: The scan, after RECORD_LENGTH.
            size: Size of the record with its length.

        Returns:
            False if the batch ends before the record does.
        """
        missing = state.position + size - int(self.batches["end"][state.batch])
        state.position += size
        if missing <= 0:
            return True
        if self._arena is None or self._rest is None:
            return False
        is_whole = self._arena.pass_over(self._rest, missing)
        self._put(state)
        return is_whole

    def drop_rest(self) -> None:
        """Have no more of the batch."""
        self._rest = None

    def ends_here(self) -> bool:
        """True if there is nothing behind what was decompressed that counts as records."""
        if self._rest is None or self._rest.is_over or self._rest.may_end:
            return True
        return not self._rest.read(memoryview(bytearray(1)))

    def _put(self, state: ScanState) -> None:
        """Tell a scan, which stands at the arena's begin, what is in the arena now."""
        assert self._arena is not None
        self._source = self._arena.data
        self.batches["start"], self.batches["end"] = 0, len(self._source)
        state.position = 0
        compiled.move_scan(state, self._source)


class Windows:
    """Makes windows of responses, in turn: the next window ends the one before.

    Args:
        topic_partition: The partition of the records, for errors.
        arena: Where they are decompressed.
        check_crcs: Whether to check the CRC-32C of each batch.
        max_record: Maximum size of a record, and of what is decompressed at once (snappy).

    Attributes:
        current: The last window; None before the first.
    """

    def __init__(
        self, topic_partition: TopicPartition, arena: Arena, *, check_crcs: bool, max_record: int
    ) -> None:
        self._place = topic_partition
        self._arena = arena
        self._check_crcs = check_crcs
        self._max_record = max_record
        # What a larger record does not fit into: the bytes of its length are as many, or more.
        self._whole_max = max_record + ((max_record << 1).bit_length() + 6) // 7
        self._most = min(arena.window, self._whole_max)
        self.current: Window | None = None

    def of(self, index: BatchIndex, live: Flags) -> Iterator[Window]:
        """The live batches of a response, several at a time for one call of the kernel each.

        The checksums of all batches are checked, as by Java's consumer: a damaged bit may be what
        makes a batch one that is not live.

        Raises:
            CorruptRecordError: A batch is damaged.
            UnsupportedFormatError: A codec is unknown.
            RecordTooLargeError: There is no memory for a window.
        """
        batches = index.batches
        codecs = np.where(live, batches["attributes"] & _CODEC, _PASSED_OVER).tolist()
        extents = batches[_EXTENT].tolist()
        row = 0
        while row < len(codecs):
            rows, row = self._sound_rows(index.source.data, codecs, extents, row)
            if not rows:
                continue
            codec = codecs[rows[0]]
            span = extents[rows[-1]][_END] - extents[rows[0]][_START]
            if not codec and span <= self._whole_max:
                self.current = Window(index.source, batches[rows])
                yield self.current
                continue
            starts, ends, rest = self._inflated(
                index, codec, rows, [extents[chosen] for chosen in rows]
            )
            if len(starts) < len(rows):
                row = rows[len(starts)]
            group = batches[rows[: len(starts)]]
            group["start"] = starts
            group["end"] = ends
            self.current = Window(self._arena.data, group, self._arena, rest, self._most)
            yield self.current

    def _sound_rows(
        self, view: memoryview, codecs: list[int], extents: list[tuple[int, ...]], row: int
    ) -> tuple[list[int], int]:
        """Live batches of one codec from a row on, as many as make a group, and the row to go on.

        What comes before a batch that is damaged is good, and may be all that is wanted.
        """
        rows: list[int] = []
        size = 0
        for at in range(row, len(codecs)):
            start, end, offset, checksum = extents[at]
            codec = codecs[at]
            if rows and (size >= _GROUP_BYTES or codec not in (codecs[rows[0]], _PASSED_OVER)):
                return rows, at
            if self._check_crcs and _checksum(view[start - _CHECKED_FROM : end]) != checksum:
                if rows:
                    return rows, at
                corrupt("its checksum (CRC-32C) does not fit its bytes", *self._place, offset)
            if codec != _PASSED_OVER:
                rows.append(at)
                size += (end - start) * (_RATIO if codec else 1)
        return rows, len(codecs)

    def _inflated(
        self, index: BatchIndex, codec: int, rows: list[int], extents: list[tuple[int, ...]]
    ) -> tuple[Ints, Ints, Stream | None]:
        """Decompress the records of some batches into the arena.

        Returns:
            Where those of the first few start and end there, of one at least. If it is one alone,
            and there is more of it than a window: also the rest.
        """
        if codec >= len(CODECS):
            self._refuse_codec(codec, extents[0][_OFFSET])
        self._arena.clear()
        parts = [index.source.data[extent[_START] : extent[_END]] for extent in extents]
        if codec and len(parts) > 1:
            counts = index.batches["records"][rows]
            joined = self._arena.inflate_joined(codec, parts, counts)
            if joined is not None and self._arena.used <= self._whole_max:
                return *joined, None
            self._arena.clear()
        moved: list[tuple[int, int]] = []
        rest: Stream | None = None
        for part, extent in zip(parts, extents, strict=True):
            start = self._arena.used
            try:
                # A block may have many records: it is no larger than a window for each of them.
                stream = open_stream(codec, part, max(self._max_record, self._arena.window))
                at = self._arena.inflate(stream, self._most)
            except (InflateError, MemoryError) as error:
                if moved:
                    break
                if isinstance(error, MemoryError):
                    raise no_memory(self._place, extent[_OFFSET]) from error
                corrupt(str(error), *self._place, extent[_OFFSET])
            if not stream.is_over:
                if moved:  # one that goes on is alone
                    self._arena.cut(start)
                    break
                rest = stream
            moved.append(at)
            if rest is not None or self._arena.used >= _GROUP_BYTES:
                break
        starts, ends = np.array(moved, np.int64).T
        return starts, ends, rest

    def _refuse_codec(self, codec: int, offset: int) -> NoReturn:
        topic, partition = self._place
        raise UnsupportedFormatError(
            f"{topic}-{partition}, batch at offset {offset}: codec {codec} is not "
            "known (kshare reads gzip, snappy, lz4 and zstd)",
            topic=topic,
            partition=partition,
            offset=offset,
        )


def _checksum(checked: memoryview) -> int:
    """The CRC-32C of some bytes.

    Other threads run meanwhile only if there is much to check: 128 KiB take 5 us, and it may take
    5 ms (``sys.getswitchinterval``) until this thread runs again, if another one computes.
    """
    return crc32c(checked, gil_release_mode=-1 if len(checked) >= _LET_GO_FROM else 0)
