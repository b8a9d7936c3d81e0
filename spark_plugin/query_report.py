"""The report on a query after a batch, as values."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kshare.core.progress import TopicPartition
from kshare.monitor.report import PartitionReport, RangeReport, hottest, slowest

__all__ = ["QueryReport", "SourceReport"]


@dataclass(frozen=True, slots=True)
class SourceReport:
    """The report on one source of a query after a batch.

    Attributes:
        number: The source's number within the query, from 0.
        partitions: The report of each partition.
        offsets_behind_latest: The end of the log when the batch was planned, minus the offset below
            which all is read with the batch. Where a partition has record limits, what the batch
            itself reads does not count as read. Only partitions whose end is known.
    """

    number: int
    partitions: Mapping[TopicPartition, PartitionReport]
    offsets_behind_latest: Mapping[TopicPartition, int]

    @property
    def metrics(self) -> dict[str, str]:
        """``sources[number].metrics``, as Spark's kafka source shows them; empty if unknown."""
        behind = self.offsets_behind_latest.values()
        if not behind:
            return {}
        return {
            "minOffsetsBehindLatest": str(min(behind)),
            "maxOffsetsBehindLatest": str(max(behind)),
            "avgOffsetsBehindLatest": str(sum(behind) / len(behind)),
        }


@dataclass(frozen=True, slots=True)
class QueryReport:
    """The report on a query after a batch.

    Attributes:
        query: The query's id, which it keeps over restarts.
        name: The query's name; None if it has none.
        batch: The number of the batch.
        seconds: The duration of the batch.
        sources: The query's kshare sources; at least one.
        dropped_rows: Number of rows that stateful operators have dropped in the batch, as they came
            behind the watermark. Spark counts them after partial aggregation: one row may stand for
            thousands of records.
    """

    query: str
    name: str | None
    batch: int
    seconds: float
    sources: tuple[SourceReport, ...]
    dropped_rows: int = 0

    @property
    def partitions(self) -> Mapping[TopicPartition, PartitionReport]:
        """The report of each partition; of several, the one with the lowest stable offset."""
        merged: dict[TopicPartition, PartitionReport] = {}
        for source in self.sources:
            for tp, partition in source.partitions.items():
                if tp not in merged or partition.stable < merged[tp].stable:
                    merged[tp] = partition
        return MappingProxyType(merged)

    @property
    def ranges(self) -> tuple[tuple[TopicPartition, RangeReport], ...]:
        """The ranges of all partitions."""
        return tuple(
            (tp, range_)
            for tp, partition in sorted(self.partitions.items())
            for range_ in partition.ranges
        )

    @property
    def slowest(self) -> tuple[TopicPartition, RangeReport] | None:
        """The range with the most time per record, of those measured; None if none was."""
        ranges = self.ranges
        return _with_partition(slowest(range_ for _, range_ in ranges), ranges)

    @property
    def hottest(self) -> tuple[TopicPartition, RangeReport] | None:
        """The range with the most records/s; None if no range delivered records."""
        ranges = self.ranges
        return _with_partition(hottest(range_ for _, range_ in ranges), ranges)

    @property
    def gaps(self) -> int:
        """Individual commits in the checkpoint, over all partitions."""
        return sum(partition.gaps for partition in self.partitions.values())

    @property
    def entry_bytes(self) -> int:
        """Bytes of the checkpoint's ``"@kshare"`` entry, over all partitions."""
        return sum(partition.entry_bytes for partition in self.partitions.values())

    def records_per_second(self, range_: RangeReport) -> float | None:
        """Records of a range divided by the duration of the batch; None if unknown."""
        if range_.records is None or self.seconds <= 0:
            return None
        return range_.records / self.seconds


def _with_partition(
    range_: RangeReport | None, ranges: tuple[tuple[TopicPartition, RangeReport], ...]
) -> tuple[TopicPartition, RangeReport] | None:
    return next((pair for pair in ranges if pair[1] is range_), None)
