"""Records that cannot be decoded, written as dead letters by the task that reads them.

What is written is what a :class:`~kshare.processing.Processor` writes: key, value, timestamp and
headers of the record, and where from and why. A task that is run again writes them again: two
letters of the same topic, partition and offset are one record.

Cost: a producer for each task that has a bad record.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

import pyarrow as pa

from kshare.arrow_values import int64_array, int64_numbers
from kshare.core.progress import TopicPartition
from kshare.dead_letters.record import Record
from kshare.dead_letters.writer import DeadLetters, Letters
from kshare.formats.typed_columns import BadRow
from kshare.options import KafkaConfig

__all__ = ["BadRecordLetters"]

_TOGETHER: Final = 1_000
"""Letters under way at once."""


class BadRecordLetters:
    """Writes dead letters from a thread without an event loop.

    Args:
        kafka: How to reach the cluster.
        topic: The topic of dead letters.
        letters: Makes the writer.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        topic: str,
        letters: Callable[[KafkaConfig, str], Letters] = DeadLetters,
    ) -> None:
        self._open: Callable[[], Letters] = lambda: letters(kafka, topic)
        self._letters: Letters | None = None
        self._runner: asyncio.Runner | None = None

    def __call__(self, batch: pa.RecordBatch, bad: Sequence[BadRow]) -> None:
        """Write the bad rows of a record batch, in order; return when the broker has them.

        Args:
            batch: The rows, with all columns of the source, as bytes.
            bad: Those that are bad.

        Raises:
            KafkaError: A letter cannot be written.
        """
        if self._runner is None:
            self._runner = asyncio.Runner()
        self._runner.run(self._write(batch, bad))

    async def _write(self, batch: pa.RecordBatch, bad: Sequence[BadRow]) -> None:
        if self._letters is None:
            self._letters = self._open()
        now = time.time()
        for some in _parts(bad):
            records = _records(batch, some)
            # Each task produces its letter before it first waits, and they start in this order.
            await asyncio.gather(
                *(
                    self._letters.write(record, each.error, now)
                    for record, each in zip(records, some, strict=True)
                )
            )

    def close(self) -> None:
        """Write no more."""
        if self._letters is not None:
            self._letters.close()
        if self._runner is not None:
            self._runner.close()


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of one partition, as the columns of a batch: the :class:`.Source` of records."""

    topic_partition: TopicPartition
    batch: pa.RecordBatch
    _columns: dict[str, list[Any]] = field(default_factory=dict)

    def column(self, name: str) -> list[Any]:
        # Each record asks for the whole column.
        if name not in self._columns:
            self._columns[name] = self._converted(name)
        return self._columns[name]

    def _converted(self, name: str) -> list[Any]:
        array = self.batch.column(name)
        if name != "timestamp":
            values: list[Any] = array.to_pylist()
            return values
        milliseconds: list[Any] = (int64_numbers(array.view(pa.int64())) // 1000).tolist()
        return milliseconds


def _parts(bad: Sequence[BadRow]) -> list[Sequence[BadRow]]:
    return [bad[first : first + _TOGETHER] for first in range(0, len(bad), _TOGETHER)]


def _records(batch: pa.RecordBatch, bad: Sequence[BadRow]) -> list[Record]:
    """The bad rows as records, each tried once."""
    records = []
    for place, rows in groupby(bad, lambda each: (each.error.topic, each.error.partition)):
        topic, partition = place
        assert topic is not None
        assert partition is not None
        of_partition = [each.row for each in rows]
        some = pa.RecordBatch.from_arrays(
            [column.take(int64_array(of_partition)) for column in batch.columns],
            schema=batch.schema,
        )
        rows_of_it = _Rows(TopicPartition(topic, partition), some)
        cells = (rows_of_it.column(name) for name in ("offset", "key", "value"))
        for row, (offset, key, value) in enumerate(zip(*cells, strict=True)):
            record = Record(rows_of_it, row, offset, key, value, key)
            record.failures = 1
            records.append(record)
    return records
