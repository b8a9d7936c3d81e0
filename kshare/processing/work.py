"""What a task of Spark does with its rows for ``process_by_key``, as it is sent there."""

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from kshare.processing.frame_task import process_rows
from kshare.processing.handling import Handling
from kshare.worker_connection import SentToTasks, acknowledging

__all__ = ["Work"]


@dataclass(frozen=True)
class Work(SentToTasks):
    """What a task does with its rows: plain data, but for the processor, which is pickled with it.

    Attributes:
        processor: What is called.
        key: As of :func:`.process_by_key`.
        result: The same.
        options: The same.
    """

    processor: Handling
    key: str
    result: str | None
    options: Mapping[str, str] | None = field(repr=False)

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Process rows that have an end: see :func:`.process_rows`."""
        rows = acknowledging(batches)
        return process_rows(
            rows, self.processor, key=self.key, result=self.result, options=self.options
        )

    def open_rows(self, read: Any, says: Any) -> Generator[pa.RecordBatch, None, None]:
        """Process the rows of a task that reads for a while: see :func:`.process_open_rows`."""
        # Brings the reader, which no driver needs, and no client of Spark Connect has.
        from kshare.processing.open_rows import process_open_rows  # noqa: PLC0415

        return process_open_rows(
            read, self.processor, result=self.result, options=self.options, says=says
        )
