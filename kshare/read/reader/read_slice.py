"""The read path's calls: the records of slices; where they end, and their times.

Options that cannot be used are reported at the call, before anything is contacted. Cost: the
reader's own, and for ``on_end`` a few key hashes for each record batch. What is looked for in the
log alone is fetched, but no value is copied: see each function.
"""

import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kshare.core.admission import StampedOffset
from kshare.core.progress import Slice, TopicPartition
from kshare.core.slice_end import SliceEnd
from kshare.core.tasks import FetchGroup, PlannedSlice
from kshare.errors import OptionsError
from kshare.kafka.protocol.broker_pool import BrokerPool
from kshare.kafka.protocol.brokers import Brokers
from kshare.kafka.protocol.retry import Clock
from kshare.options import SourceOptions, parse_options
from kshare.read.decode.batch_index import BatchIndex
from kshare.read.decode.codecs import Arena
from kshare.read.decode.records import BYTES_MAX, ROWS_MAX
from kshare.read.reader.faults import LostOffsets
from kshare.read.reader.fetch_loop import FetchLoop
from kshare.read.reader.fetcher import Fetcher
from kshare.read.reader.slice_records import SliceRecords

__all__ = [
    "SliceReader",
    "find_ends",
    "find_first",
    "find_later",
    "read_slice",
    "read_slices",
    "reader_options",
]

OnEnd: TypeAlias = Callable[[SliceEnd], None]

_log = logging.getLogger(__name__)

_NONE: Final[Mapping[Slice, Any]] = {}

_CLAIMED_SECONDS = 0.01  # between looks at what siblings are fetching
_DECODERS_MAX = 8  # that keep their buffers, of some 2 MiB each


def read_slice(
    slice_: Slice,
    options: Mapping[str, str] | SourceOptions,
    *,
    max_records: int | None = None,
    on_end: OnEnd | None = None,
    fetch_group: FetchGroup | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read the records of a slice, as bytes.

    Arguments, batches and errors are those of :func:`kshare.typed_slices.read_slice`, without the
    options of typed rows.
    """
    planned = PlannedSlice(slice_, max_records, fetch_group=fetch_group)
    return read_slices([planned], options, {} if on_end is None else {slice_: on_end})


def read_slices(
    planned: Sequence[PlannedSlice],
    options: Mapping[str, str] | SourceOptions,
    on_end: Mapping[Slice, OnEnd] = _NONE,
) -> Generator[pa.RecordBatch]:
    """Read the records of several slices together, with one Fetch request at a time to each leader.

    Each slice yields the same rows as :func:`read_slice`, in offset order, and up to the same end.
    So the order within each key holds, and a task that is run again reads the same. How rows of
    different slices alternate depends on the sizes of responses; slices of one partition are read
    in one pass.

    A leader that moves, a fault that passes, and offsets that are lost concern their partition
    alone: others are read on meanwhile. An error ends the reading of all slices.

    Cost: a round trip for each leader where all that is wanted fits into a response. The responses
    of all leaders together are no larger than one of ``max.partition.fetch.bytes``, and small
    record batches are joined, so memory is that of :func:`read_slice`.

    Args:
        planned: The slices, each with its own limit. They may be of any topics and partitions, and
            any number may be of one partition, but no two may hold the same record. Those of a
            partition have one fetch group.
            None at all is no error.
        options: As for :func:`read_slice`; the same for all slices.
        on_end: As for :func:`read_slice`, for some of the slices.

    Yields:
        Batches of the columns of Spark's kafka source, about 8 MiB each at most. A batch may hold
        rows of several slices, one after the other. The ``on_end`` of each slice is called after
        the batch with its last row was taken, while others may still be read. ``close()`` ends the
        reading.

    Raises:
        ValueError: A limit is less than 1; raised at the call.
        OptionsError: The options cannot be used; raised at the call, before anything is contacted.
        KafkaError: :mod:`kshare.errors` has the kinds. The error names the partition.
        DataLossError: Wanted offsets of a slice are gone, and ``failOnDataLoss`` is true.
        RecordError: The log's bytes are damaged or in a format that is not read.
    """
    if not planned:
        return _nothing()
    parsed = reader_options(options, *{each.slice.topic for each in planned})
    return SliceReader(planned, parsed, on_end=on_end).batches()


def _nothing() -> Generator[pa.RecordBatch]:
    yield from ()


class SliceReader:
    """Reads some slices once, together.

    The batches hold exactly the records of the slices that the log holds, those of a partition in
    offset order, or an error says what is missing. A fault that lasts ends in an error that names
    broker, topic, partition and offset. With a limit, they hold the first records of a slice: where
    that ends is a function of the log.

    Args:
        planned: The slices; no two of them hold the same record.
        options: Options of the source.
        on_end: By slice, a function to call with its end, once its last record was taken.
        count_only: Find where reading ends, and deliver nothing; each slice has a limit.
        brokers: The brokers of the cluster; None for those that the options name.
        clock: Source of time.

    Attributes:
        slices: What was read of each slice, in the order of ``planned``.
    """

    def __init__(
        self,
        planned: Sequence[PlannedSlice],
        options: SourceOptions,
        *,
        on_end: Mapping[Slice, OnEnd] = _NONE,
        count_only: bool = False,
        brokers: Brokers | None = None,
        clock: Clock = time,
    ) -> None:
        arena = Arena()  # slices are decoded in turn
        self.slices = [
            SliceRecords(
                each,
                options,
                is_sampled=each.slice in on_end,
                count_only=count_only,
                arena=arena,
                is_one_of_many=len(planned) > _DECODERS_MAX,
            )
            for each in planned
        ]
        self._on_end = on_end
        self._handler = _ToTheEnd(options.fail_on_data_loss)
        brokers = BrokerPool(options.kafka) if brokers is None else brokers
        self._loop = FetchLoop(options, brokers, clock)

    def batches(self) -> Generator[pa.RecordBatch]:
        """The record batches of the slices, up to their limits. To be called once."""
        unfinished = self.slices
        by_partition: dict[TopicPartition, list[SliceRecords]] = {}
        for part in self.slices:
            by_partition.setdefault(part.planned.slice.topic_partition, []).append(part)
        try:
            for slices in by_partition.values():
                self._loop.read(slices, self._handler)
            while self._loop.partitions:
                step = (batch for _, batch in self._loop.step(self._answered))
                for batch in _gathered(step) if len(self.slices) > 1 else step:
                    with self._loop.clock.stopped():
                        yield batch
                unfinished = self._report_ends(unfinished)
        finally:
            self._loop.close()

    def _answered(self) -> list[Fetcher]:
        """The fetcher that was asked first; none, after a pause, if nobody is asked."""
        asked = self._loop.asked
        if asked:
            return asked[:1]
        pauses, throttles = self._loop.pauses
        pause = min(pauses + throttles, default=0.0)
        if throttles and pause <= 0:  # siblings are fetching what is due, or it would be asked for
            pause = min(_CLAIMED_SECONDS, *throttles)
        if pause > 0:
            self._loop.clock.sleep(pause)
        return []

    def _report_ends(self, slices: Sequence[SliceRecords]) -> list[SliceRecords]:
        """Report the ends of those that are read; return the others."""
        for part in slices:
            if part.cursor.is_done and part.planned.slice in self._on_end:
                self._on_end[part.planned.slice](part.slice_end)
        return [part for part in slices if not part.cursor.is_done]


@dataclass(frozen=True, slots=True)
class _ToTheEnd:
    """The obstacle handler of slices that have ends: faults that last are errors."""

    fail_on_data_loss: bool
    is_endless = False
    awaits_topic = False

    def answered(self, first: int, end: int, log_end: int) -> None:
        pass

    def delivering(self, index: BatchIndex) -> None:
        pass

    def lost(self, lost: LostOffsets) -> int:
        if self.fail_on_data_loss:
            raise lost.error
        _log.warning(
            "%s. Skipped, since failOnDataLoss is false: offsets %d to %d",
            lost,
            lost.wanted[0],
            lost.end,
        )
        return lost.end


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, in few batches; nothing is held back at the end."""
    small: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        rows += batch.num_rows
        size += batch.nbytes
        if small and (rows > ROWS_MAX or size > BYTES_MAX):
            yield pa.concat_batches(small)
            small, rows, size = [], batch.num_rows, batch.nbytes
        small.append(batch)
    if small:
        yield small[0] if len(small) == 1 else pa.concat_batches(small)


def reader_options(
    options: Mapping[str, str] | SourceOptions, *topics: str, typed: bool = False
) -> SourceOptions:
    """The options of a reader of some topics, parsed.

    Args:
        options: As for :func:`read_slice`.
        topics: The topics.
        typed: Whether who reads types the rows.

    Raises:
        OptionsError: They cannot be used.
    """
    if isinstance(options, SourceOptions):
        return options
    names = {name.lower() for name in options}
    if not names & {"subscribe", "subscribepattern", "assign"}:
        options = {**options, "subscribe": ",".join(topics)}
    parsed = parse_options(options, streaming=False).options
    if parsed.typed_rows is not None and not typed:
        raise OptionsError(
            [f"{each.column}Format: here, slices have bytes" for each in parsed.typed_rows.formats]
        )
    return parsed


def find_ends(
    limited: Sequence[PlannedSlice],
    options: SourceOptions,
    *,
    brokers: Brokers | None = None,
) -> list[SliceEnd]:
    """Find where slices with limits end, and after how many records; in one pass.

    Args:
        limited: The slices; no two of them hold the same record.
        options: Options as for :func:`kshare.read.reader.read_slice.read_slice`.
        brokers: The brokers of the cluster; None for those that the options name.

    Raises:
        ValueError: A limit is less than 1.
        KshareError: One of the slices cannot be read; as for
            :func:`kshare.read.reader.read_slice.read_slices`.
    """
    reader = SliceReader(limited, options, count_only=True, brokers=brokers)
    for _ in reader.batches():
        raise AssertionError("a scan delivers nothing")
    return [part.slice_end for part in reader.slices]


def find_first(
    slices: Sequence[Slice], options: SourceOptions, *, brokers: Brokers | None = None
) -> list[StampedOffset | None]:
    """The first record of each slice; None for a slice without records. One pass for all.

    Args:
        slices: Slices of any partitions; no offset of a partition is in two of them.
        options: Options as for :func:`kshare.read.reader.read_slice.read_slice`.
        brokers: The brokers of the cluster; None for those that the options name.

    Raises:
        KshareError: One of the slices cannot be read; as for
            :func:`kshare.read.reader.read_slice.read_slices`.
    """
    planned = [PlannedSlice(slice_, 1) for slice_ in slices]
    columns = ("topic", "partition", "offset", "timestamp")
    reader = SliceReader(planned, _reading(options, columns), brokers=brokers)
    found: dict[TopicPartition, list[StampedOffset]] = {}
    for batch in reader.batches():
        topics, partitions, offsets = (batch.column(name).to_pylist() for name in columns[:3])
        times = _milliseconds(batch).tolist()
        for topic, partition, *at in zip(topics, partitions, offsets, times, strict=True):
            found.setdefault(TopicPartition(topic, partition), []).append(StampedOffset(*at))
    return [_within(slice_, found.get(slice_.topic_partition, ())) for slice_ in slices]


def find_later(
    slice_: Slice, than_ms: int, options: SourceOptions, *, brokers: Brokers | None = None
) -> int | None:
    """The offset of a slice's first record with a later timestamp; None if it has none.

    Args:
        slice_: The slice.
        than_ms: The timestamp, milliseconds since 1970.
        options: As for :func:`find_first`; so are brokers and errors.
        brokers: The brokers of the cluster.
    """
    columns = ("offset", "timestamp")
    reader = SliceReader([PlannedSlice(slice_)], _reading(options, columns), brokers=brokers)
    batches = reader.batches()
    try:
        for batch in batches:
            later = _milliseconds(batch) > than_ms
            if later.any():
                offset: int = batch.column("offset")[int(later.argmax())].as_py()
                return offset
    finally:
        batches.close()
    return None


def _reading(options: SourceOptions, columns: tuple[str, ...]) -> SourceOptions:
    """The options, for some columns alone, and for all keys: one that is rare is far away."""
    return replace(options, columns=columns, include_headers=False, keys=None)


def _milliseconds(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    times: npt.NDArray[np.int64] = batch.column("timestamp").cast(pa.int64()).to_numpy()
    return times // 1000


def _within(slice_: Slice, found: Sequence[StampedOffset]) -> StampedOffset | None:
    offsets = slice_.offsets
    return next((at for at in found if offsets.start <= at.offset < offsets.end), None)
