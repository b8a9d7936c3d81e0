"""The records that a consumer has fetched and not handed out: a batch, or the rest of its chunks.

::

    hand: nothing --begin--> chunks, or a batch --> handed out
                                     |
                                   drop: forgotten, and its partition's reading begins anew

What begins anew stays listed until its reading has begun: after an interrupt, it still has to.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import length_hint

from kshare.core.progress import TopicPartition
from kshare.group.message import NO_ROWS, Chunk, Rows

__all__ = ["FetchedRows"]


@dataclass(slots=True)
class FetchedRows:
    """A batch of one partition, or the rest of one.

    Attributes:
        rows: Messages that may be handed out now.
        partition: The partition that they are of; None if none were taken since the last fetch.
        rest: The next chunks of the batch, each with the offset up to which all is handed out with
            it.
        rest_of: The partition that the chunks are of.
        batch: A batch that is handed out as a whole, and is not yet; and the same offset of it.
        anew: The partitions whose reading ends, or begins anew from where delivery is, in order.
        is_clean: Whether no call was interrupted while it fetched: what it fetched may be lost.
    """

    rows: Rows = NO_ROWS
    partition: TopicPartition | None = None
    rest: Iterator[tuple[Chunk, int]] = field(default_factory=lambda: iter(()))
    rest_of: TopicPartition | None = None
    batch: tuple[Chunk, int] | None = None
    anew: dict[TopicPartition, None] = field(default_factory=dict)
    is_clean: bool = True

    @property
    def has_rest(self) -> bool:
        """True if chunks are left."""
        return length_hint(self.rest) > 0

    @property
    def has_rows(self) -> bool:
        """True if the last batch was handed out as messages, or some of it."""
        return self.partition is not None or self.has_rest

    def has_all_out(self, partition: TopicPartition) -> bool:
        """True if all that was fetched of a partition is handed out."""
        return self.is_clean and partition not in self.anew and not self._holds(partition)

    def _holds(self, partition: TopicPartition) -> bool:
        if self.batch is not None and self.batch[0].topic_partition == partition:
            return True
        if self.rest_of == partition and self.has_rest:
            return True
        return self.partition == partition and self.rows.left > 0

    def begin(self, chunks: Iterable[Chunk], end: int) -> None:
        """Have the chunks of a batch next, with all that is below an offset."""
        *listed, last = chunks
        ends = [(chunk, int(chunk.offsets[-1]) + 1) for chunk in listed]
        self.rest, self.rest_of = iter([*ends, (last, end)]), last.topic_partition

    def drop(self, partition: TopicPartition) -> None:
        """Forget what is of a partition."""
        if self.batch is not None and self.batch[0].topic_partition == partition:
            self.batch = None
        if self.rest_of == partition:
            self.rest, self.rest_of = iter(()), None
        if self.partition == partition:
            self.rows, self.partition = NO_ROWS, None
