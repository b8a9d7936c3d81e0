"""Record batches v2: the records of a Fetch response -> Arrow. The one door to compiled code.

Law: of a slice come exactly the records that it holds, in offset order; whatever the bytes are, the
outcome is rows or a :class:`~kshare.errors.RecordError` with topic, partition and offset, never
another exception, a crash or a read out of bounds. Cost: 0.15 us CPU a record of 100 bytes (lz4;
0.11 us if another slice holds it) and 4 us for a batch; memory: an arena of 1 to 8 MiB and the
columns of one record batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from kshare.core.hashing import WHOLE
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Band, Slice
from kshare.errors import CorruptRecordError, UnsupportedFormatError
from kshare.wire.decode import kernels
from kshare.wire.decode.codecs import CODECS, Arena, Bytes, InflateError
from kshare.wire.decode.columns import COLUMNS, Columns, Rows, State

__all__ = [
    "DEFAULT_COLUMNS",
    "ROWS_MAX",
    "BatchIndex",
    "Decoder",
    "Rows",
    "index_batches",
]

DEFAULT_COLUMNS = tuple(name for name in COLUMNS if name != "headers")
ROWS_MAX = 65_536
BYTES_MAX = 8 << 20
_GROUP_BYTES = 512 << 10  # decompressed bytes a kernel call: they stay in the processor's cache
_RATIO = 4  # of these to compressed ones, about

_CODEC = 0x07
_PASSED_OVER = -1  # instead of a codec
_PLACE = [kernels.START, kernels.END, kernels.BASE_OFFSET, kernels.CHECKSUM]
_START, _END, _OFFSET = range(3)  # in a place
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_CHECKED_FROM = 40  # the checksum covers this many bytes before the records
_ABORT = 0

Flags: TypeAlias = npt.NDArray[np.bool_]
Table: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BatchIndex:
    """The headers of the complete batches of one response.

    Attributes:
        topic: where the records come from.
        partition: likewise.
        fetch_offset: the offset that was asked for; records before it are passed over.
        source: the response's records, not copied.
        batches: a row per batch, with the columns of :mod:`kshare.wire.decode.kernels`.
        next_offset: the offset after the last complete batch, to fetch from next; ``None`` if no
            complete batch reaches beyond ``fetch_offset``.
        tail_bytes: the size of the batch that is cut off at the end.
    """

    topic: str
    partition: int
    fetch_offset: int
    source: Bytes
    batches: Table
    next_offset: int | None
    tail_bytes: int

    @property
    def records(self) -> int:
        """How many records the batches hold."""
        return int(self.batches[:, kernels.RECORDS].sum())


def index_batches(records: Any, *, topic: str, partition: int, fetch_offset: int) -> BatchIndex:
    """Read the headers of all complete batches of a Fetch response.

    Cheap (0.1 us a batch), so that the next request can be sent before the records are decoded.

    Args:
        records: bytes-like: the records of one partition; cut off anywhere.
        topic: the topic, for errors and the column.
        partition: the partition, likewise.
        fetch_offset: the offset that was asked for.

    Returns:
        The index. It holds on to ``records``, which must not change while it is in use.

    Raises:
        UnsupportedFormatError: a batch in message format v0 or v1.
        CorruptRecordError: a batch with an impossible length, or offsets that go backwards.
    """
    source = _as_bytes(records)
    found = np.zeros(3, np.int64)
    batches = np.empty((64, kernels.BATCH_FIELDS), np.int64)
    status = kernels.index(source, batches, found)
    count, end, next_offset = found.tolist()
    if status != kernels.DONE:
        _refuse(status, topic, partition, next_offset)
    if count > len(batches):
        batches = np.empty((count, kernels.BATCH_FIELDS), np.int64)
        kernels.index(source, batches, found)
    return BatchIndex(
        topic=topic,
        partition=partition,
        fetch_offset=fetch_offset,
        source=source,
        batches=batches[:count],
        next_offset=next_offset if count and next_offset > fetch_offset else None,
        tail_bytes=len(source) - end,
    )


def _as_bytes(records: Any) -> Bytes:
    view = memoryview(records)
    if not view.c_contiguous:
        view = memoryview(view.tobytes())
    source = np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)
    source.flags.writeable = False  # kernels are compiled for bytes that they may only read
    return source


def _refuse(fault: int, topic: str, partition: int, offset: int) -> NoReturn:
    if fault in (kernels.OLD_FORMAT, kernels.UNKNOWN_FORMAT):
        raise UnsupportedFormatError(
            f"{topic}-{partition}, batch at offset {offset}: {kernels.FAULTS[fault]}, which kshare "
            "does not read (producers and brokers since Kafka 0.11 write v2)",
            topic=topic,
            partition=partition,
            offset=offset,
        )
    _corrupt(kernels.FAULTS[fault], topic, partition, offset)


def _corrupt(why: str, topic: str, partition: int, offset: int) -> NoReturn:
    raise CorruptRecordError(
        f"{topic}-{partition}, batch at offset {offset} is corrupt: {why}",
        topic=topic,
        partition=partition,
        offset=offset,
    )


class _Wanted:
    """The bands of a slice, as the kernels take them."""

    def __init__(self, bands: Sequence[Band]) -> None:
        ranges = [() if band.hashes == (WHOLE,) else band.hashes for band in bands]
        self.starts = np.array([band.offsets.start for band in bands], np.int64)
        self.ends = np.array([band.offsets.end for band in bands], np.int64)
        self._firsts = np.cumsum([0, *map(len, ranges)], dtype=np.int64)
        self._lows = np.array([hashes.lo for band in ranges for hashes in band], np.int64)
        self._lasts = np.array([hashes.hi - 1 for band in ranges for hashes in band], np.int64)

    def put(self, state: State, floor: int, first_offset: int) -> None:
        """Begin a scan for them at ``first_offset``, without records before ``floor``.

        The addresses in the state are good as long as this object is.
        """
        state[kernels.FLOOR : kernels.LASTS + 1] = (
            floor,
            len(self.ends),
            self.starts.ctypes.data,
            self.ends.ctypes.data,
            self._firsts.ctypes.data,
            self._lows.ctypes.data,
            self._lasts.ctypes.data,
        )
        state[kernels.BAND] = np.searchsorted(self.ends, first_offset, "right")


class Decoder:
    """Decodes the responses that hold one slice, in the order of their offsets.

    Args:
        slice_: What is wanted.
        columns: The columns of the record batches, in their order; by default all but ``headers``.
            Nothing else is copied or built.
        with_keys: Whether :meth:`Rows.key_at` can be asked, whatever the columns are.
        read_committed: Leave out records of aborted transactions.
        check_crcs: Check the CRC-32C of each batch.
        max_rows: Maximum number of rows of a record batch.
        max_bytes: Maximum size of keys, values and headers of a record batch; a larger record makes
            a batch of its own.
        arena: Where records are decompressed; decoders that take turns may share one. None for an
            arena of its own.

    Raises:
        ValueError: ``columns`` is empty, or has an unknown name or one twice.
    """

    def __init__(
        self,
        slice_: Slice,
        *,
        columns: Sequence[str] = DEFAULT_COLUMNS,
        with_keys: bool = False,
        read_committed: bool = False,
        check_crcs: bool = True,
        max_rows: int = ROWS_MAX,
        max_bytes: int = BYTES_MAX,
        arena: Arena | None = None,
    ) -> None:
        self._topic, self._partition = slice_.topic, slice_.partition
        self._wanted = _Wanted(slice_.bands())
        self._read_committed = read_committed
        self._check_crcs = check_crcs
        self._arena = Arena() if arena is None else arena
        self._calls = 0
        self._columns = Columns(
            slice_.topic,
            slice_.partition,
            names=columns,
            with_keys=with_keys,
            rows_max=max_rows,
            bytes_max=max_bytes,
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
            CorruptRecordError: a batch is damaged; what came before it may have been yielded.
            UnsupportedFormatError: an unknown codec.
            RuntimeError: another call has begun since; a decoder has one set of buffers.
        """
        self._calls += 1
        call = self._calls
        columns, state = self._columns, self._columns.state
        live = self._live_batches(index, aborted)
        self._wanted.put(state, index.fetch_offset, index.fetch_offset)
        most = int(index.batches[live, kernels.RECORDS].sum())
        left = most + 1 if limit is None else limit
        columns.begin(min(most, left))
        for source, group in self._groups(index, live):
            state[kernels.BATCH] = state[kernels.RECORD] = 0
            while status := kernels.scan(source, group, state):
                if status != kernels.FULL:
                    bad = int(group[state[kernels.BATCH], kernels.BASE_OFFSET])
                    _refuse(status, self._topic, self._partition, bad)
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
            index: the response.
            aborted: as for :meth:`decode`.
            limit: count up to this number, at least 1.

        Returns:
            How many there are, and the offset after the last one that was counted (0: none).

        Raises:
            CorruptRecordError: a batch is damaged, and the limit was not reached before.
            UnsupportedFormatError: an unknown codec.
        """
        state = np.zeros(kernels.STATE_SIZE, np.int64)
        live = self._live_batches(index, aborted)
        self._wanted.put(state, index.fetch_offset, index.fetch_offset)
        state[kernels.ROWS_MAX], state[kernels.COUNTING] = limit, 1
        for source, group in self._groups(index, live):
            state[kernels.BATCH] = state[kernels.RECORD] = 0
            status = kernels.scan(source, group, state)
            if status == kernels.FULL:
                break
            if status != kernels.DONE:
                bad = int(group[state[kernels.BATCH], kernels.BASE_OFFSET])
                _refuse(status, self._topic, self._partition, bad)
        return int(state[kernels.ROWS]), int(state[kernels.END_OFFSET])

    # -- which batches ----------------------------------------------------------------------

    def _live_batches(self, index: BatchIndex, aborted: Sequence[tuple[int, int]]) -> Flags:
        """Which batches have wanted offsets, without control batches and aborted transactions."""
        batches = index.batches
        starts, ends = self._wanted.starts, self._wanted.ends
        first = np.maximum(batches[:, kernels.BASE_OFFSET], index.fetch_offset)
        end = batches[:, kernels.BASE_OFFSET] + batches[:, kernels.LAST_DELTA] + 1
        band = np.searchsorted(ends, first, side="right")
        reached = np.append(starts, np.iinfo(np.int64).max)[band] < end
        live = reached & (first < end) & (batches[:, kernels.RECORDS] > 0)
        live &= (batches[:, kernels.ATTRIBUTES] & _CONTROL) == 0
        if self._read_committed and aborted:
            live &= ~self._aborted_batches(index, aborted)
        return live

    def _aborted_batches(self, index: BatchIndex, aborted: Sequence[tuple[int, int]]) -> Flags:
        """The algorithm of Java's ``CompletedFetch``, over the batches of transactions."""
        batches = index.batches
        dropped = np.zeros(len(batches), np.bool_)
        waiting = sorted(aborted, key=lambda transaction: -transaction[1])
        active: set[int] = set()
        for row in np.flatnonzero(batches[:, kernels.PRODUCER] >= 0).tolist():
            batch = batches[row]
            last = batch[kernels.BASE_OFFSET] + batch[kernels.LAST_DELTA]
            while waiting and waiting[-1][1] <= last:
                active.add(waiting.pop()[0])
            producer = int(batch[kernels.PRODUCER])
            if producer not in active:
                continue
            if batch[kernels.ATTRIBUTES] & _CONTROL:
                if self._is_abort(index, row):
                    active.discard(producer)
            elif batch[kernels.ATTRIBUTES] & _TRANSACTIONAL:
                dropped[row] = True
        return dropped

    def _is_abort(self, index: BatchIndex, row: int) -> bool:
        """Whether a control batch ends its transaction by an abort (KIP-98: key version, type)."""
        batch = index.batches[row]
        if not batch[kernels.RECORDS]:
            return False
        columns = Columns("", 0, names=["key"], with_keys=False, rows_max=1, bytes_max=BYTES_MAX)
        columns.begin(1)
        offset = int(batch[kernels.BASE_OFFSET])
        everything = _Wanted([Band(OffsetRange(0, 2**63 - 1), (WHOLE,))])
        everything.put(columns.state, 0, offset)
        alone = replace(index, batches=index.batches[row : row + 1])
        for source, group in self._groups(alone, np.ones(1, np.bool_)):
            while not columns.rows:
                status = kernels.scan(source, group, columns.state)
                if status > 0:
                    _refuse(status, self._topic, self._partition, offset)
                columns.reserve()
        key = columns.finish().batch["key"][0].as_py()
        if key is None or len(key) < 4:
            self._corrupt("the key of a control record is too short", offset)
        return int.from_bytes(key[2:4], "big") == _ABORT

    # -- their bytes ------------------------------------------------------------------------

    def _groups(self, index: BatchIndex, live: Flags) -> Iterator[tuple[Bytes, Table]]:
        """The live batches, decompressed, several at a time for one call of the kernel each.

        The checksums of all batches are checked, as by Java's consumer: a damaged bit may be what
        makes a batch one that is not live.
        """
        batches = index.batches
        codecs = np.where(live, batches[:, kernels.ATTRIBUTES] & _CODEC, _PASSED_OVER).tolist()
        places = batches[:, _PLACE].tolist()
        row = 0
        while row < len(codecs):
            rows, row = self._sound_rows(index.source.data, codecs, places, row)
            if not rows:
                continue
            codec = codecs[rows[0]]
            if not codec:
                yield index.source, batches[rows]
                continue
            starts, ends = self._inflated(index, codec, rows, [places[chosen] for chosen in rows])
            if len(starts) < len(rows):
                row = rows[len(starts)]
            group = batches[rows[: len(starts)]]
            group[:, kernels.START] = starts
            group[:, kernels.END] = ends
            yield self._arena.data, group

    def _sound_rows(
        self, view: memoryview, codecs: list[int], places: list[list[int]], row: int
    ) -> tuple[list[int], int]:
        """Live batches of one codec from a row on, as many as make a group, and the row to go on.

        What comes before a batch that is damaged is good, and may be all that is wanted.
        """
        rows: list[int] = []
        size = 0
        for at in range(row, len(codecs)):
            start, end, offset, checksum = places[at]
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
        self, index: BatchIndex, codec: int, rows: list[int], places: list[list[int]]
    ) -> tuple[State, State]:
        """Decompress the records of some batches into the arena.

        Returns:
            Where those of the first few start and end there, of one at least.
        """
        if codec >= len(CODECS):
            self._refuse_codec(codec, places[0][_OFFSET])
        self._arena.clear()
        parts = [index.source.data[place[_START] : place[_END]] for place in places]
        if len(parts) > 1:
            counts = index.batches[rows, kernels.RECORDS]
            joined = self._arena.inflate_joined(codec, parts, counts)
            if joined is not None:
                return joined
        moved: list[tuple[int, int]] = []
        for part, place in zip(parts, places, strict=True):
            try:
                moved.append(self._arena.inflate(codec, part))
            except InflateError as error:
                if moved:
                    break
                self._corrupt(str(error), place[_OFFSET])
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
        _corrupt(why, self._topic, self._partition, offset)
