"""What a consumer has fetched and not handed out yet: a batch, or what is left of its chunks."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import length_hint

from kshare.core.progress import TopicPartition
from kshare.group.message import NO_ROWS, Chunk, Rows, chunks
from kshare.wire.reader.tail_reader import TailRecords

__all__ = ["InHand"]


@dataclass(slots=True)
class InHand:
    """A batch of one partition, and messages that may be of another one.

    Messages that were kept back for their keys come between the chunks of a batch.

    Attributes:
        rows: Messages that may be handed out now.
        partition: The partition that they are of; None if none were taken since the last fetch.
        rest: The next chunks of the batch, each with the offset up to which all is handed out with
            it.
        rest_of: The partition that the chunks are of.
        batch: A batch that is handed out as a whole, and is not yet.
        is_clean: Whether no call was interrupted while it fetched: what it fetched may be lost.
    """

    rows: Rows = NO_ROWS
    partition: TopicPartition | None = None
    rest: Iterator[tuple[Chunk, int]] = field(default_factory=lambda: iter(()))
    rest_of: TopicPartition | None = None
    batch: TailRecords | None = None
    is_clean: bool = True

    @property
    def has_rest(self) -> bool:
        """True if chunks are left."""
        return length_hint(self.rest) > 0

    @property
    def has_rows(self) -> bool:
        """True if the last batch was handed out as messages, or some of it."""
        return self.partition is not None or self.has_rest

    def holds(self, partition: TopicPartition) -> bool:
        """True if there is something of a partition."""
        if self.batch is not None and self.batch.topic_partition == partition:
            return True
        if self.rest_of == partition and self.has_rest:
            return True
        return self.partition == partition and self.rows.left > 0

    def begin(self, records: TailRecords) -> None:
        """Have the chunks of a batch next."""
        *listed, last = chunks(records.topic_partition, records.batch, records.epochs)
        ends = [(chunk, int(chunk.offsets[-1]) + 1) for chunk in listed]
        self.rest, self.rest_of = iter([*ends, (last, records.end)]), records.topic_partition

    def drop(self, partition: TopicPartition) -> None:
        """Forget what is of a partition."""
        if self.batch is not None and self.batch.topic_partition == partition:
            self.batch = None
        if self.rest_of == partition:
            self.rest, self.rest_of = iter(()), None
        if self.partition == partition:
            self.rows, self.partition = NO_ROWS, None
