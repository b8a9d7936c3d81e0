"""Record batches v2: the records of a Fetch response, as Arrow.

Guarantees: a decoder yields exactly the records that its slice holds, in offset order. Whatever the
bytes are, the outcome is rows or a :class:`~kshare.errors.RecordError` with topic, partition and
offset, never another exception, a crash or a read out of bounds.

Cost: 0.15 us CPU a record of 100 bytes (lz4; 0.11 us if another slice holds it) and 4 us a batch.
Memory: an arena of 1 to 8 MiB and the columns of one record batch.
"""

import ctypes
import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from kshare.core.hashing import WHOLE
from kshare.core.offsets import OFFSET_MAX
from kshare.core.progress import Slice, Stripe
from kshare.errors import UnsupportedFormatError
from kshare.wire.decode import compiled, status
from kshare.wire.decode.batch_index import BatchIndex, corrupt, index_batches, refuse
from kshare.wire.decode.codecs import CODECS, Arena, InflateError
from kshare.wire.decode.columns import COLUMNS, Columns, Rows
from kshare.wire.decode.compiled import Batches, Bytes, Ints
from kshare.wire.decode.layout import ScanState
from kshare.wire.decode.wanted import WantedRecords

__all__ = [
    "DEFAULT_COLUMNS",
    "ROWS_MAX",
    "BatchIndex",
    "Decoder",
    "index_batches",
]

_log = logging.getLogger(__name__)

DEFAULT_COLUMNS = tuple(name for name in COLUMNS if name != "headers")
ROWS_MAX = 65_536
BYTES_MAX = 8 << 20
_GROUP_BYTES = 512 << 10  # decompressed bytes a kernel call: they stay in the processor's cache
_RATIO = 4  # of these to compressed ones, about

_CODEC = 0x07
_PASSED_OVER = -1  # instead of a codec
_EXTENT = ["start", "end", "base_offset", "checksum"]  # fields of a batch
_START, _END, _OFFSET = range(3)  # in an extent
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_CHECKED_FROM = 40  # the checksum covers this many bytes before the records
_ABORT = 0

Flags: TypeAlias = npt.NDArray[np.bool_]


class Decoder:
    """Decodes the responses that hold one slice, in the order of their offsets.

    Args:
        slice_: What is wanted.
        columns: The columns of the record batches, in their order; by default all but ``headers``.
            Nothing else is copied or built.
        keys: Only records with these keys; None: all records, also those without a key.
        with_keys: Whether :meth:`Rows.key_at` can be asked, whatever the columns are.
        read_committed: Leave out records of aborted transactions.
        check_crcs: Check the CRC-32C of each batch.
        max_rows: Maximum number of rows of a record batch.
        max_bytes: Maximum size of keys, values and headers of a record batch; a larger record makes
            a batch of its own.
        arena: Where records are decompressed; decoders that take turns may share one. None for an
            arena of its own.
        drops_times: Whether a record has no timestamp (-1 ms) if microseconds in 64 bits cannot
            hold its own; else that is an error, where the column ``timestamp`` is wanted.

    Raises:
        ValueError: ``columns`` is empty, or has an unknown name or one twice; or ``keys`` is empty.
    """

    def __init__(
        self,
        slice_: Slice,
        *,
        columns: Sequence[str] = DEFAULT_COLUMNS,
        keys: Collection[bytes] | None = None,
        with_keys: bool = False,
        read_committed: bool = False,
        check_crcs: bool = True,
        max_rows: int = ROWS_MAX,
        max_bytes: int = BYTES_MAX,
        arena: Arena | None = None,
        drops_times: bool = False,
    ) -> None:
        self._topic, self._partition = slice_.topic, slice_.partition
        self._wanted = WantedRecords(slice_.stripes, keys)
        self._read_committed = read_committed
        self._check_crcs = check_crcs
        self._drops_times = drops_times
        self._arena = Arena() if arena is None else arena
        self._calls = 0
        self._columns = Columns(
            slice_.topic,
            slice_.partition,
            names=columns,
            with_keys=with_keys,
            max_rows=max_rows,
            max_bytes=max_bytes,
        )

    def decode(
        self,
        index: BatchIndex,
        aborted: Sequence[tuple[int, int]] = (),
        limit: int | None = None,
    ) -> Iterator[Rows]:
        """The records of a response that the slice holds.

        Args:
            index: The response.
            aborted: The response's aborted transactions: (producer id, first offset). The broker
                lists all that touch the response's offsets, so that nothing is kept between calls.
            limit: Maximum number of records, at least 1.

        Yields:
            At least one row each time.

        Raises:
            CorruptRecordError: A batch is damaged; what came before it may have been yielded.
            UnsupportedFormatError: A codec is unknown, or microseconds cannot hold a timestamp.
            RuntimeError: Another call has begun since; a decoder has one set of buffers.
        """
        self._calls += 1
        call = self._calls
        columns, state = self._columns, self._columns.state
        live = self._live_batches(index, aborted)
        self._wanted.put(state, index.fetch_offset, index.fetch_offset)
        most = int(index.batches["records"][live].sum())
        left = most + 1 if limit is None else limit
        columns.begin(min(most, left))
        for source, group in self._groups(index, live):
            compiled.begin_scan(state, source, group)
            while self._scan(group, state) == status.FULL:
                if not columns.reserve():
                    most, left = most - columns.rows, left - columns.rows
                    yield columns.finish()
                    if left == 0:
                        return
                    if call != self._calls:  # the state is another scan's
                        raise RuntimeError("a decoder decodes one response at a time")
                    columns.begin(min(most, left))
        if columns.rows:
            yield columns.finish()

    def count(
        self, index: BatchIndex, aborted: Sequence[tuple[int, int]], limit: int
    ) -> tuple[int, int]:
        """Count the records that :meth:`decode` would deliver, without looking at their values.

        Args:
            index: The response.
            aborted: As for :meth:`decode`.
            limit: Maximum number of records to count, at least 1.

        Returns:
            The number of records, and the offset after the last one that was counted (0: none).

        Raises:
            CorruptRecordError: A batch is damaged, and the limit was not reached before.
            UnsupportedFormatError: A codec is unknown.
        """
        state = ScanState(max_rows=limit, counting=1)
        live = self._live_batches(index, aborted)
        self._wanted.put(state, index.fetch_offset, index.fetch_offset)
        for source, group in self._groups(index, live):
            compiled.begin_scan(state, source, group)
            if self._scan(group, state) == status.FULL:
                break
        return state.rows, state.end_offset

    def _scan(self, group: Batches, state: ScanState) -> int:
        """Go on with a scan.

        Returns:
            DONE or FULL.

        Raises:
            CorruptRecordError: The batch where the scan stands is damaged.
            UnsupportedFormatError: A wanted timestamp of it does not fit.
        """
        result = compiled.scan(state)
        while result == status.TIMESTAMP and (self._drops_times or not state.timestamps):
            if state.timestamps:
                _warn_dropped(self._topic, self._partition)
            result = _take_without_time(group[state.batch : state.batch + 1], state)
            if result == status.DONE:
                result = compiled.scan(state)
        if result not in (status.DONE, status.FULL):
            bad = int(group["base_offset"][state.batch])
            refuse(result, self._topic, self._partition, bad)
        return result

    # -- which batches ----------------------------------------------------------------------

    def _live_batches(self, index: BatchIndex, aborted: Sequence[tuple[int, int]]) -> Flags:
        """The batches with wanted offsets, without control batches and aborted transactions."""
        batches = index.batches
        starts, ends = self._wanted.bands.starts, self._wanted.bands.ends
        first = np.maximum(batches["base_offset"], index.fetch_offset)
        end = batches["base_offset"] + batches["last_delta"] + 1
        band = np.searchsorted(ends, first, side="right")
        reached = np.append(starts, np.iinfo(np.int64).max)[band] < end
        live: Flags = reached & (first < end) & (batches["records"] > 0)
        live &= (batches["attributes"] & _CONTROL) == 0
        if self._read_committed and aborted:
            live &= ~self._aborted_batches(index, aborted)
        return live

    def _aborted_batches(self, index: BatchIndex, aborted: Sequence[tuple[int, int]]) -> Flags:
        """The algorithm of Java's ``CompletedFetch``, over the batches of transactions."""
        batches = index.batches
        dropped = np.zeros(len(batches), np.bool_)
        waiting = sorted(aborted, key=lambda transaction: -transaction[1])
        active: set[int] = set()
        for row in np.flatnonzero(batches["producer_id"] >= 0).tolist():
            batch = batches[row]
            last = batch["base_offset"] + batch["last_delta"]
            while waiting and waiting[-1][1] <= last:
                active.add(waiting.pop()[0])
            producer = int(batch["producer_id"])
            if producer not in active:
                continue
            if batch["attributes"] & _CONTROL:
                if self._is_abort(index, row):
                    active.discard(producer)
            elif batch["attributes"] & _TRANSACTIONAL:
                dropped[row] = True
        return dropped

    def _is_abort(self, index: BatchIndex, row: int) -> bool:
        """True if a control batch ends its transaction by an abort (KIP-98: key version, type)."""
        batch = index.batches[row]
        if not batch["records"]:
            return False
        columns = Columns("", 0, names=["key"], with_keys=False, max_rows=1, max_bytes=BYTES_MAX)
        columns.begin(1)
        offset = int(batch["base_offset"])
        everything = WantedRecords([Stripe(WHOLE, (0, OFFSET_MAX))])
        everything.put(columns.state, 0, offset)
        alone = replace(index, batches=index.batches[row : row + 1])
        for source, group in self._groups(alone, np.ones(1, np.bool_)):
            compiled.begin_scan(columns.state, source, group)
            while not columns.rows:
                self._scan(group, columns.state)
                columns.reserve()
        key = columns.finish().batch["key"][0].as_py()
        if key is None or len(key) < 4:
            self._corrupt("the key of a control record is too short", offset)
        return int.from_bytes(key[2:4], "big") == _ABORT

    # -- their bytes ------------------------------------------------------------------------

    def _groups(self, index: BatchIndex, live: Flags) -> Iterator[tuple[Bytes, Batches]]:
        """The live batches, decompressed, several at a time for one call of the kernel each.

        The checksums of all batches are checked, as by Java's consumer: a damaged bit may be what
        makes a batch one that is not live.
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
            if not codec:
                yield index.source, batches[rows]
                continue
            starts, ends = self._inflated(index, codec, rows, [extents[chosen] for chosen in rows])
            if len(starts) < len(rows):
                row = rows[len(starts)]
            group = batches[rows[: len(starts)]]
            group["start"] = starts
            group["end"] = ends
            yield self._arena.data, group

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
            if self._check_crcs and crc32c(view[start - _CHECKED_FROM : end]) != checksum:
                if rows:
                    return rows, at
                self._corrupt("its checksum (CRC-32C) does not fit its bytes", offset)
            if codec != _PASSED_OVER:
                rows.append(at)
                size += (end - start) * (_RATIO if codec else 1)
        return rows, len(codecs)

    def _inflated(
        self, index: BatchIndex, codec: int, rows: list[int], extents: list[tuple[int, ...]]
    ) -> tuple[Ints, Ints]:
        """Decompress the records of some batches into the arena.

        Returns:
            Where those of the first few start and end there, of one at least.
        """
        if codec >= len(CODECS):
            self._refuse_codec(codec, extents[0][_OFFSET])
        self._arena.clear()
        parts = [index.source.data[extent[_START] : extent[_END]] for extent in extents]
        if len(parts) > 1:
            counts = index.batches["records"][rows]
            joined = self._arena.inflate_joined(codec, parts, counts)
            if joined is not None:
                return joined
        moved: list[tuple[int, int]] = []
        for part, extent in zip(parts, extents, strict=True):
            try:
                moved.append(self._arena.inflate(codec, part))
            except InflateError as error:
                if moved:
                    break
                self._corrupt(str(error), extent[_OFFSET])
            if self._arena.used >= _GROUP_BYTES:
                break
        starts, ends = np.array(moved, np.int64).T
        return starts, ends

    def _refuse_codec(self, codec: int, offset: int) -> NoReturn:
        raise UnsupportedFormatError(
            f"{self._topic}-{self._partition}, batch at offset {offset}: codec {codec} is not "
            "known (kshare reads gzip, snappy, lz4 and zstd)",
            topic=self._topic,
            partition=self._partition,
            offset=offset,
        )

    def _corrupt(self, why: str, offset: int) -> NoReturn:
        corrupt(why, self._topic, self._partition, offset)


def _take_without_time(batch: Batches, state: ScanState) -> int:
    """Take the record where a scan stands as one whose timestamp is -1, and no other one.

    Returns:
        DONE, or FULL if there is no room for it or for another one.
    """
    row, most, before = state.rows, state.max_rows, batch.copy()
    batch["attributes"] |= _LOG_APPEND_TIME  # then all of the batch have the time in its head
    batch["max_timestamp"] = -1
    state.max_rows = row + 1
    try:
        compiled.scan(state)
    finally:
        batch[:] = before
        state.max_rows = most
    if row < state.rows and state.timestamp_types:
        is_by_log = int(before["attributes"][0]) & _LOG_APPEND_TIME != 0
        ctypes.c_int32.from_address(state.timestamp_types + 4 * row).value = is_by_log
    return status.DONE if row < state.rows < most else status.FULL


@cache
def _warn_dropped(topic: str, partition: int) -> None:
    """Warn once in a process."""
    _log.warning(
        "%s-%d has timestamps that microseconds in 64 bits cannot hold: their records are "
        "delivered as if they had none. Kafka's are milliseconds since 1970; a producer may have "
        "given nanoseconds",
        topic,
        partition,
    )
