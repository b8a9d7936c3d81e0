"""The records of one slice, taken out of the responses that hold them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import pyarrow as pa

from kshare.core.cursor import Cursor, RecordLimit
from kshare.core.fetch_groups import FetchGroup
from kshare.core.progress import Slice
from kshare.core.slice_end import KeySample, SliceEnd
from kshare.options import SourceOptions
from kshare.wire.decode.codecs import Arena
from kshare.wire.decode.records import ROWS_MAX, BatchIndex, Decoder

__all__ = ["SliceRecords", "WantedSlice"]


@dataclass(frozen=True, slots=True)
class WantedSlice:
    """A slice to read, and how.

    Attributes:
        slice: Topic, partition and rectangles of offsets x key hashes.
        max_records: Maximum number of records to read; None for no limit.
        on_end: Called once with where reading ended, after the last record was taken.
        fetch_group: Tasks that read the same offsets of the partition; None for none.
        count_only: Find where reading ends, and deliver nothing.
        on_heads: Called with the heads of each response's record batches, whose records are not
            read; returns whether that was enough. None: records are read.

    Raises:
        ValueError: ``max_records`` is less than 1.
    """

    slice: Slice
    max_records: int | None = None
    on_end: Callable[[SliceEnd], None] | None = None
    fetch_group: FetchGroup | None = None
    count_only: bool = False
    on_heads: Callable[[BatchIndex], bool] | None = None

    def __post_init__(self) -> None:
        RecordLimit(self.max_records)


class SliceRecords:
    """Decodes the records of a slice, up to its limit, and keeps account of them.

    Args:
        wanted: The slice, and how to read it.
        options: Options of the source.
        arena: Where records are decompressed; may be shared with others. None for an own one.
        is_one_of_many: Whether slices are so numerous that each must give up its buffers after
            each response.

    Attributes:
        wanted: The slice, and how to read it.
        cursor: Which offsets are fetched and delivered.
        limit: How many records are delivered.
        rows_max: Maximum number of rows of a record batch.
    """

    rows_max: ClassVar[int] = ROWS_MAX

    def __init__(
        self,
        wanted: WantedSlice,
        options: SourceOptions,
        *,
        arena: Arena | None = None,
        is_one_of_many: bool = False,
    ) -> None:
        self.wanted = wanted
        self.cursor = Cursor(wanted.slice.bounds)
        self.limit = RecordLimit(wanted.max_records)
        self._sample = KeySample() if wanted.on_end is not None else None
        self._is_one_of_many = is_one_of_many
        self._new_decoder = partial(
            Decoder,
            wanted.slice,
            columns=options.column_names,
            keys=options.keys,
            with_keys=self._sample is not None,
            read_committed=options.kafka.read_committed,
            check_crcs=options.kafka.check_crcs,
            max_rows=self.rows_max,
            arena=arena,
        )
        self._decoder: Decoder | None = None  # until it is needed

    @property
    def slice_end(self) -> SliceEnd:
        """The end of reading; valid once :attr:`Cursor.is_done`."""
        end = self.cursor.end if self.limit.end is None else self.limit.end
        if self._sample is None:
            return SliceEnd(end, self.limit.records)
        sample = self._sample
        return SliceEnd(end, self.limit.records, sample.hashes, hot_keys=sample.hot_keys)

    def take(
        self, index: BatchIndex, aborted: Sequence[tuple[int, int]]
    ) -> Iterator[pa.RecordBatch]:
        """Deliver the records of a response that the slice holds, up to the limit.

        Args:
            index: The response. It may begin with offsets that are delivered already.
            aborted: The response's aborted transactions: (producer id, first offset).
        """
        assert index.next_offset is not None
        at = index.next_offset
        if index.fetch_offset < self.cursor.delivered:
            index = replace(index, fetch_offset=self.cursor.delivered)
        if self.wanted.on_heads is not None:
            is_enough = self.wanted.on_heads(index)
            self.cursor = self.cursor.finish() if is_enough else self.cursor.deliver_to(at)
            return
        if self._decoder is None:
            self._decoder = self._new_decoder()
        if self.wanted.count_only:
            self._count(self._decoder, index, aborted)
        else:
            yield from self._decode(self._decoder, index, aborted)
        if self._is_one_of_many:
            self._decoder = None  # its buffers are large
        if self.limit.is_reached:
            self.cursor = self.cursor.finish()
            return
        self.cursor = self.cursor.deliver_to(at)
        self.limit = self.limit.see(index.records, at - index.fetch_offset)

    def _decode(
        self, decoder: Decoder, index: BatchIndex, aborted: Sequence[tuple[int, int]]
    ) -> Iterator[pa.RecordBatch]:
        for rows in decoder.decode(index, aborted, self.limit.records_left):
            self.cursor = self.cursor.deliver_to(rows.end)
            if self._sample is not None:
                self._sample.add(rows.batch.num_rows, rows.key_at)
            self.limit = self.limit.deliver(rows.batch.num_rows, rows.end)
            yield rows.batch
            if self.limit.is_reached:
                return

    def _count(
        self, decoder: Decoder, index: BatchIndex, aborted: Sequence[tuple[int, int]]
    ) -> None:
        left = self.limit.records_left
        assert left is not None
        self.limit = self.limit.deliver(*decoder.count(index, aborted, left))
