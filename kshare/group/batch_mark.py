"""Metadata in the schema of a consumer's record batch: its records.

pyarrow keeps the metadata when a batch is sliced, filtered or sorted, or columns are selected.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kshare.arrow_values import int64_numbers
from kshare.core.progress import TopicPartition
from kshare.group.message import Chunk

__all__ = ["BatchMark", "marked"]

_NAME: Final = b"kshare.batch"


@dataclass(frozen=True, slots=True)
class BatchMark:
    """The records that a batch holds.

    Attributes:
        partition: Their partition.
        chunks: Numbers of the chunks that they are of.
        first: The lowest of their offsets.
        last: The highest.
    """

    partition: TopicPartition
    chunks: frozenset[int]
    first: int
    last: int

    @classmethod
    def of(cls, batch: pa.RecordBatch | pa.Table) -> "BatchMark | None":
        """The mark of a batch; None if it has none."""
        text = (batch.schema.metadata or {}).get(_NAME)
        if text is None:
            return None
        topic, partition, chunks, first, last = json.loads(text)
        return cls(TopicPartition(topic, partition), frozenset(chunks), first, last)

    def holds(self, offsets: Any) -> bool:
        """True if all offsets may be of this batch: each is there once."""
        if not len(offsets):
            return True
        is_within = self.first <= offsets.min() and offsets.max() <= self.last
        return bool(is_within and np.all(np.diff(np.sort(offsets)) > 0))


def marked(batch: pa.RecordBatch, chunks: Sequence[Chunk]) -> pa.RecordBatch:
    """A batch with the mark of the chunks that its rows are of, at least one of one partition."""
    topic, partition = chunks[0].topic_partition
    offsets = int64_numbers(batch.column("offset"))
    numbers = sorted({chunk.number for chunk in chunks})
    text = json.dumps([topic, partition, numbers, int(offsets.min()), int(offsets.max())])
    return batch.replace_schema_metadata({_NAME: text.encode()})
