"""The unread part of some slices of one partition, and the response that is delivered to them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from kshare.core.fetch_groups import FetchGroup
from kshare.options import KafkaConfig
from kshare.wire.decode.records import BatchIndex
from kshare.wire.protocol.messages import PartitionFetch
from kshare.wire.reader.fetch_size import FetchSize
from kshare.wire.reader.slice_records import SliceRecords

__all__ = ["PartitionRecords"]


@dataclass(frozen=True, slots=True)
class _Fetched:
    """A response that is not delivered yet, and the slices that want something in it."""

    index: BatchIndex
    aborted: Sequence[tuple[int, int]]
    takers: Sequence[SliceRecords]


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
        self.topic_partition = slices[0].wanted.slice.topic_partition
        self.slices = slices
        limits = [part.wanted.max_records for part in slices]
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
    def fetch_groups(self) -> list[FetchGroup]:
        """The fetch groups of the slices that have one."""
        groups = (part.wanted.fetch_group for part in self.slices)
        return [group for group in groups if group is not None]

    @property
    def undelivered(self) -> int | None:
        """The first offset of the response that is not delivered yet; None if there is none."""
        return None if self._fetched is None else self._fetched.index.fetch_offset

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
        """Deliver the records of the last response."""
        fetched = self._fetched
        if fetched is None:
            return
        for part in fetched.takers:
            yield from part.take(fetched.index, fetched.aborted)
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
