"""The unread records of slices: what to fetch next, and what responses bring of them.

A request is large enough for the next record batch, sooner or later, however large that is.
Cost: what is asked for beyond a slice's end is at most a quarter of its rest, and 64 KiB.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from kshare.core.slice_end import Cursor, KeySample, RecordLimit, SliceEnd
from kshare.core.tasks import FetchGroup, PlannedSlice
from kshare.kafka.protocol.fetch import PartitionFetch
from kshare.options import KafkaConfig, SourceOptions
from kshare.read.decode.codecs import Arena
from kshare.read.decode.records import ROWS_MAX, BatchIndex, Decoder

__all__ = ["FetchSize", "PartitionRecords", "SliceRecords"]

_FIRST_BYTES = 1 << 20
_BYTES_MIN = 64 << 10
_BYTES_MAX = 1 << 30
_RECORD_BYTES = 1 << 10  # a guess, until the first response


class SliceRecords:
    """Decodes the records of a slice, up to its limit, and keeps account of them.

    Args:
        planned: The slice, and how many of its records.
        options: Options of the source.
        is_sampled: Whether :attr:`slice_end` has a sample of the keys.
        count_only: Find where reading ends, and deliver nothing; there is a limit.
        arena: Where records are decompressed; may be shared with others. None for an own one.
        is_one_of_many: Whether slices are so numerous that each must give up its buffers after
            each response.
        max_rows: Maximum number of rows of a record batch.
        drops_times: As for :class:`.Decoder`.

    Attributes:
        planned: The slice, and how many of its records.
        cursor: Which offsets are fetched and delivered.
        limit: How many records are delivered.

    Raises:
        ValueError: The maximum number of records is less than 1.
    """

    def __init__(
        self,
        planned: PlannedSlice,
        options: SourceOptions,
        *,
        is_sampled: bool = False,
        count_only: bool = False,
        arena: Arena | None = None,
        is_one_of_many: bool = False,
        max_rows: int = ROWS_MAX,
        drops_times: bool = False,
    ) -> None:
        self.planned = planned
        self.cursor = Cursor(planned.slice.bounds)
        self.limit = RecordLimit(planned.max_records)
        self._sample = KeySample() if is_sampled else None
        self._count_only = count_only
        self._is_one_of_many = is_one_of_many
        self._new_decoder = partial(
            Decoder,
            planned.slice,
            columns=options.column_names,
            keys=options.keys,
            with_keys=self._sample is not None,
            read_committed=options.kafka.read_committed,
            check_crcs=options.kafka.check_crcs,
            max_rows=max_rows,
            arena=arena,
            max_record=options.max_record_bytes,
            leaves_out_large=options.leaves_out_large,
            drops_times=drops_times,
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
        if self._decoder is None:
            self._decoder = self._new_decoder()
        if self._count_only:
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


@dataclass(frozen=True, slots=True)
class _Fetched:
    """A response that is not delivered yet, and the slices that want something in it."""

    index: BatchIndex
    aborted: Sequence[tuple[int, int]]
    takers: Sequence[SliceRecords]


class FetchSize:
    """Bytes to ask of one partition: a quarter of full size at first, then full size.

    Args:
        kafka: ``max.partition.fetch.bytes`` is full size.
        max_records: Maximum number of records that are wanted in all; None for no limit.

    Attributes:
        has_grown: Whether a response was too small for one record batch.
    """

    def __init__(self, kafka: KafkaConfig, max_records: int | None) -> None:
        self._full = kafka.max_partition_fetch_bytes
        first = _FIRST_BYTES
        if max_records is not None:
            first = max(_BYTES_MIN, min(first, max_records * _RECORD_BYTES))
        self._wanted = min(first, self._full)
        self._per_offset: float | None = None
        self.has_grown = False

    def bytes_for(self, offsets: float) -> int:
        """The number of bytes to ask for when that many offsets are likely to be needed."""
        if self._per_offset is None:
            return self._wanted
        rest = offsets * self._per_offset
        return max(min(self._wanted, int(rest * 1.25) + _BYTES_MIN), _BYTES_MIN)

    def offsets_for(self, offsets: float) -> int:
        """The number of these offsets that the next request is likely to bring, at least 1."""
        per_offset = self._per_offset or _RECORD_BYTES
        return max(int(self.bytes_for(offsets) / max(per_offset, 1.0)), 1)

    def learn(self, size: int, offsets: int) -> None:
        """A response of ``size`` bytes brought that many offsets."""
        self._per_offset = size / max(offsets, 1)
        self._wanted = min(4 * self._wanted, self._full)

    def grow(self) -> None:
        """A response was too small for one record batch."""
        self._wanted = min(2 * self._wanted, _BYTES_MAX)
        self.has_grown = True
        self._per_offset = None


class PartitionRecords:
    """The records of some slices of one partition, read in one pass.

    Args:
        slices: The slices; at least one, and all of one partition.
        kafka: How much to ask for at once.

    Attributes:
        topic_partition: The partition.
        slices: The slices.
    """

    def __init__(self, slices: Sequence[SliceRecords], kafka: KafkaConfig) -> None:
        self.topic_partition = slices[0].planned.slice.topic_partition
        self.slices = slices
        limits = [part.planned.max_records for part in slices]
        self._size = FetchSize(
            kafka, None if None in limits else sum(limit or 0 for limit in limits)
        )
        self._fetched: _Fetched | None = None

    # -- what is wanted ---------------------------------------------------------------------

    @property
    def offset(self) -> int | None:
        """The next offset to ask for; None if everything is fetched."""
        return _lowest(self.slices)

    @property
    def end(self) -> int:
        """The offset after the last one that a slice holds."""
        return max(part.cursor.end for part in self.slices)

    def wants_beyond(self, last: int) -> bool:
        """True if a slice goes on behind an offset."""
        offsets = (part.cursor.next_offset for part in self.slices)
        return any(offset is not None and offset > last for offset in offsets)

    @property
    def fetch_group(self) -> FetchGroup | None:
        """The fetch group of the task, which is that of each of its slices."""
        return self.slices[0].planned.fetch_group

    @property
    def has_grown(self) -> bool:
        """True if a response had no room for one record batch."""
        return self._size.has_grown

    @property
    def response(self) -> BatchIndex | None:
        """The response that is not delivered yet; None if there is none."""
        return None if self._fetched is None else self._fetched.index

    def fetch(self) -> PartitionFetch | None:
        """The next fetch; None if everything is fetched."""
        return self._fetch(self.slices)

    def fetch_ahead(self) -> PartitionFetch | None:
        """The fetch to send while the last response is delivered.

        None if everything is fetched, or probably will be found in that response.
        """
        if self._fetched is None:
            return self.fetch()
        records, takers = self._fetched.index.records, self._fetched.takers
        return self._fetch(
            [
                part
                for part in self.slices
                if part not in takers or not part.limit.is_likely_within(records)
            ]
        )

    def expected_end(self, offset: int) -> int:
        """The offset after the last one that a fetch from there would probably bring."""
        return min(self.end, offset + self._size.offsets_for(self._offsets_needed(offset)))

    def grow(self) -> None:
        """Ask for more: a response had no room for one record batch."""
        self._size.grow()

    def _fetch(self, slices: Sequence[SliceRecords]) -> PartitionFetch | None:
        offset = _lowest(slices)
        if offset is None:
            return None
        size = self._size.bytes_for(self._offsets_needed(offset))
        return PartitionFetch(self.topic_partition, offset, size)

    def _offsets_needed(self, offset: int) -> float:
        """The number of offsets that are likely to be needed from there on."""
        reach = float(offset)
        for part in self.slices:
            start = part.cursor.next_offset
            if start is not None:
                reach = max(reach, start + part.limit.offsets_needed(part.cursor.end - start))
        return reach - offset

    # -- responses --------------------------------------------------------------------------

    def accept(
        self, index: BatchIndex, aborted: Sequence[tuple[int, int]], size: int, start: int
    ) -> None:
        """Keep a response for delivery to the slices that want something in it.

        Args:
            index: The response; it has at least one whole record batch.
            aborted: Its aborted transactions: (producer id, first offset).
            size: Its bytes.
            start: The first offset that it answers for.
        """
        assert index.next_offset is not None
        self._size.learn(size, index.next_offset - start)
        takers = []
        for part in self.slices:
            offset = part.cursor.next_offset
            if offset is not None and index.fetch_offset <= offset < index.next_offset:
                part.cursor = part.cursor.fetch_to(index.next_offset)
                takers.append(part)
        self._fetched = _Fetched(index, aborted, takers)

    def deliver(self) -> Iterator[pa.RecordBatch]:
        """Deliver the records of the last response, until :meth:`rewind` is called."""
        fetched = self._fetched
        if fetched is None:
            return
        for part in fetched.takers:
            for batch in part.take(fetched.index, fetched.aborted):
                yield batch
                if self._fetched is not fetched:
                    return
        self._fetched = None

    def rewind(self) -> None:
        """Drop the response: what is not delivered is to be fetched again."""
        self._fetched = None
        for part in self.slices:
            part.cursor = part.cursor.rewind()


def _lowest(slices: Sequence[SliceRecords]) -> int | None:
    """The lowest offset that some slices want next."""
    offsets = [
        offset for offset in (part.cursor.next_offset for part in slices) if offset is not None
    ]
    return min(offsets, default=None)
