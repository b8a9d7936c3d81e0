"""The report on a query after a batch, as values; of one that reads for a while, as it runs."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from kshare.core.live import NO_LATENCY, Latency, Live, LiveRange
from kshare.core.progress import TopicPartition
from kshare.monitor.live_file import read_live
from kshare.monitor.report import PartitionReport, RangeReport, hottest, slowest

__all__ = ["QueryReport", "SourceReport", "as_of_now"]


@dataclass(frozen=True, slots=True)
class SourceReport:
    """The report on one source of a query after a batch.

    Attributes:
        number: The source's number within the query, from 0.
        partitions: The report of each partition.
        offsets_behind_latest: The end of the log when the batch was planned, minus the offset below
            which all is read with the batch. Where a partition has record limits, what the batch
            itself reads does not count as read. Only partitions whose end is known.
        batch: The name of the batch if it reads for a while (``realTime``); else None.
        live: By partition, below which offset all was handed over, committed or not. Where it is
            known, the report's ranges and ends are live, too, and offsets behind latest are those
            of live positions; ``stable`` of a partition is what the last batches have committed.
        latency: How long after their timestamps records of the running batch were handed over.
        recent_latency: The same of the last 10 s.
    """

    number: int
    partitions: Mapping[TopicPartition, PartitionReport]
    offsets_behind_latest: Mapping[TopicPartition, int]
    batch: str | None = None
    live: Mapping[TopicPartition, int] = field(default_factory=lambda: MappingProxyType({}))
    latency: Latency = NO_LATENCY
    recent_latency: Latency = NO_LATENCY

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
        run: The id of the query's run, which each start has anew.
    """

    query: str
    name: str | None
    batch: int
    seconds: float
    sources: tuple[SourceReport, ...]
    dropped_rows: int = 0
    run: str = ""

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


def as_of_now(report: QueryReport) -> QueryReport:
    """A report with where ranges are now, of sources that read for a while; else as it is.

    That is known on the host of the query's planner, which is the driver's.
    """
    return replace(report, sources=tuple(map(_source_now, report.sources)))


def _source_now(source: SourceReport) -> SourceReport:
    said = None if source.batch is None else read_live(source.batch)
    return source if said is None else _with(source, said)


def _with(source: SourceReport, said: Live) -> SourceReport:
    by_partition: defaultdict[TopicPartition, list[LiveRange]] = defaultdict(list)
    for each in said.ranges:
        by_partition[each.partition].append(each)
    partitions, behind = dict(source.partitions), dict(source.offsets_behind_latest)
    live = {tp: min(each.position for each in ranges) for tp, ranges in by_partition.items()}
    for tp, ranges in by_partition.items():
        before = partitions.get(tp, PartitionReport(0, 0))
        end = max([before.end, *(max(each.end, each.position) for each in ranges)])
        shown = [
            *(RangeReport((each.hashes,), each.position, end - each.position) for each in ranges),
            *(each for each in before.ranges if each.is_parked),
        ]
        shown.sort(key=lambda each: each.span.lo)
        partitions[tp] = replace(before, end=end, ranges=tuple(shown))
        behind[tp] = end - live[tp]
    return replace(
        source,
        partitions=MappingProxyType(partitions),
        offsets_behind_latest=MappingProxyType(behind),
        live=MappingProxyType(live),
        latency=said.latency,
        recent_latency=said.recent,
    )
