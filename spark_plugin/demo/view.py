"""What the demo shows: how far its query came, as a live table or line by line.

Law: what is shown is what Spark handed over and what the planner told; nothing is asked of the
broker. Cost: all rows (without their values) are kept in memory, about 50 bytes each.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kshare.core.checkpoint import decode
from kshare.core.hashing import HASH_SPACE
from kshare.core.progress import TopicPartition
from kshare.monitor.report import PartitionReport, decode_report, partition_report

__all__ = ["SCHEMA", "Watch", "line", "view"]

# What is kept of each row.
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


@dataclass(slots=True)
class Watch:
    """What is known of the query while it runs.

    Attributes:
        wanted: how many records are to be read.
        rows: the rows of each batch; a batch that is run again replaces what it left.
        partitions: the ranges of each partition, as the planner told them for its newest batch.
    """

    wanted: int
    rows: dict[int, pa.Table] = field(default_factory=dict)
    partitions: dict[TopicPartition, PartitionReport] = field(default_factory=dict)
    _first: tuple[float, int] | None = None

    def keep(self, batch: int, rows: pa.Table) -> None:
        """Take in the rows of a batch."""
        self.rows[batch] = rows
        if self._first is None:
            self._first = (time.monotonic(), rows.num_rows)

    @property
    def records(self) -> int:
        """How many rows were read."""
        return sum(table.num_rows for table in list(self.rows.values()))

    @property
    def per_second(self) -> float | None:
        """Rows a second since the first batch, for which interpreters start; None before."""
        if self._first is None or len(self.rows) < 2:
            return None
        since, records = self._first
        return (self.records - records) / max(time.monotonic() - since, 1e-9)

    def received(self) -> pa.Table:
        """All rows, by batch, with the number of their batch."""
        tables = [
            table.append_column("batch", pa.array([batch] * table.num_rows, pa.int64()))
            for batch, table in sorted(self.rows.items())
        ]
        return pa.concat_tables([SCHEMA.empty_table(), *(t.cast(SCHEMA) for t in tables)])

    def told(self, progress: Mapping[str, Any]) -> None:
        """Take in a progress event of Spark's: where ranges stood when its batch was planned."""
        for source in progress.get("sources", ()):
            found: dict[TopicPartition, PartitionReport] = {}
            latest, end = _parsed(source.get("latestOffset")), _parsed(source.get("endOffset"))
            if latest:
                found = decode_report(latest)
            if end:
                offsets = decode(end)
                for place, reached in offsets.progress.items():
                    limits = offsets.limits.get(place, ())
                    found.setdefault(place, partition_report(reached.front, reached, limits))
            self.partitions.update(found)

    def stable(self, place: TopicPartition) -> int:
        """The offset below which all of a partition is read for sure."""
        report = self.partitions.get(place)
        return 0 if report is None else report.stable


def _parsed(offsets: Any) -> dict[str, Any]:
    """A source's offsets in a progress event: JSON, or nothing."""
    found = json.loads(offsets) if isinstance(offsets, str) else offsets
    return found if isinstance(found, dict) else {}


def view(watch: Watch) -> Group:
    """The query as a table, for a terminal: where each range stands."""
    table = Table(box=None, padding=(0, 2), title_justify="left")
    for name in ("partition", "key hashes", "position", "", "lag", "last batch"):
        numbers = name in {"position", "lag", "last batch"}
        table.add_column(name, justify="right" if numbers else "left", no_wrap=True)
    for place, report in sorted(watch.partitions.items()):
        for range_ in report.ranges:
            done = ProgressBar(total=max(report.end, 1), completed=range_.position, width=30)
            table.add_row(
                str(place),
                _share(range_.hashes[0].lo, range_.hashes[-1].hi),
                f"{range_.position:,}",
                done,
                f"{range_.lag:,}",
                "" if range_.records is None else f"{range_.records:,}",
            )
        table.add_row(str(place), "stable offset", f"{report.stable:,}", style="bold")
    return Group(Text(_headline(watch), style="bold"), table)


def line(watch: Watch) -> str:
    """The same in a line, for what is no terminal."""
    places = [
        f"{place} stable {report.stable:,}, ranges at "
        + " ".join(f"{range_.position:,}" for range_ in report.ranges)
        for place, report in sorted(watch.partitions.items())
    ]
    return "; ".join([_headline(watch), *places])


def _headline(watch: Watch) -> str:
    rate = watch.per_second
    speed = "" if rate is None else f", {rate:,.0f} records/s"
    batch = max(watch.rows, default=0)
    return f"batch {batch}: {watch.records:,} of {watch.wanted:,} records{speed}"


def _share(lo: int, hi: int) -> str:
    return f"{100 * lo / HASH_SPACE:.1f} % to {100 * hi / HASH_SPACE:.1f} %"
