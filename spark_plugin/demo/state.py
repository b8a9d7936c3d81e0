"""The state of the demo's query while it runs, and its display.

It comes from the rows that Spark handed over and from Spark's progress events; the broker is never
asked. Cost: all rows, without their values, are kept in memory: about 50 bytes each.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kshare.core.checkpoint import decode
from kshare.core.hashing import span
from kshare.core.progress import TopicPartition
from kshare.monitor.report import PartitionReport, decode_report, partition_report

__all__ = ["SCHEMA", "QueryState", "as_line", "as_table"]

SCHEMA: Final = pa.schema(
    {
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "key": pa.binary(),
        "task": pa.int32(),
        "batch": pa.int64(),
    }.items()
)
"""The columns that are kept of each row."""


@dataclass(slots=True)
class QueryState:
    """The state of the query.

    Attributes:
        target: The number of records to read.
        clock: Seconds of a monotonic clock.
        batches: The rows of each batch. A batch that runs again replaces its rows.
        partitions: The newest report of each partition.
    """

    target: int
    clock: Callable[[], float] = time.monotonic
    batches: dict[int, pa.Table] = field(default_factory=dict)
    partitions: dict[TopicPartition, PartitionReport] = field(default_factory=dict)
    _first_batch: tuple[float, int] | None = None

    def add_batch(self, batch: int, rows: pa.Table) -> None:
        """Add the rows of a batch."""
        self.batches[batch] = rows
        if self._first_batch is None:
            self._first_batch = (self.clock(), rows.num_rows)

    def add_progress(self, progress: Mapping[str, Any]) -> None:
        """Add a progress event of Spark's: where each range stood when its batch was planned."""
        for source in progress.get("sources", ()):
            reports: dict[TopicPartition, PartitionReport] = {}
            latest, end = _offsets(source.get("latestOffset")), _offsets(source.get("endOffset"))
            if latest:
                reports = decode_report(latest)
            if end:
                offsets = decode(end)
                for partition, reached in offsets.progress.items():
                    limits = offsets.limits.get(partition, ())
                    report = partition_report(reached.front, reached, limits)
                    reports.setdefault(partition, report)
            self.partitions.update(reports)

    @property
    def records(self) -> int:
        """The number of records read so far."""
        return sum(rows.num_rows for rows in list(self.batches.values()))

    @property
    def records_per_second(self) -> float | None:
        """The rate since the first batch, which waits for interpreters; None until the second."""
        if self._first_batch is None or len(self.batches) < 2:
            return None
        since, records = self._first_batch
        return (self.records - records) / max(self.clock() - since, 1e-9)

    def rows(self) -> pa.Table:
        """All rows in the order of their batches, in :data:`SCHEMA`."""
        tables = [
            rows.append_column("batch", pa.array([batch] * rows.num_rows, pa.int64()))
            for batch, rows in sorted(self.batches.items())
        ]
        return pa.concat_tables([SCHEMA.empty_table(), *(t.cast(SCHEMA) for t in tables)])

    def stable_offset(self, partition: TopicPartition) -> int:
        """The offset below which the whole partition is known to be read."""
        report = self.partitions.get(partition)
        return 0 if report is None else report.stable


def as_table(state: QueryState) -> Group:
    """Show the query as a table for a terminal, one line for each range."""
    table = Table(box=None, padding=(0, 2), title_justify="left")
    for name in ("partition", "key hashes", "position", "", "lag", "last batch"):
        is_number = name in {"position", "lag", "last batch"}
        table.add_column(name, justify="right" if is_number else "left", no_wrap=True)
    for partition, report in sorted(state.partitions.items()):
        for range_ in report.ranges:
            bar = ProgressBar(total=max(report.end, 1), completed=range_.position, width=30)
            table.add_row(
                str(partition),
                span(range_.hashes).as_percent(),
                f"{range_.position:,}",
                bar,
                f"{range_.lag:,}",
                "" if range_.records is None else f"{range_.records:,}",
            )
        table.add_row(str(partition), "stable offset", f"{report.stable:,}", style="bold")
    return Group(Text(_headline(state), style="bold"), table)


def as_line(state: QueryState) -> str:
    """Show the query as one line, for output that is not a terminal."""
    partitions = [
        f"{partition} stable {report.stable:,}, ranges at "
        + " ".join(f"{range_.position:,}" for range_ in report.ranges)
        for partition, report in sorted(state.partitions.items())
    ]
    return "; ".join([_headline(state), *partitions])


def _headline(state: QueryState) -> str:
    rate = state.records_per_second
    speed = "" if rate is None else f", {rate:,.0f} records/s"
    batch = max(state.batches, default=0)
    return f"batch {batch}: {state.records:,} of {state.target:,} records{speed}"


def _offsets(value: Any) -> dict[str, Any]:
    """Return a source's offsets in a progress event, which are JSON text, a dict or null."""
    offsets = json.loads(value) if isinstance(value, str) else value
    return offsets if isinstance(offsets, dict) else {}
