"""The newest reports as Prometheus metrics, on prometheus-client (an optional extra).

A range, partition or query that is gone from the newest reports has no series. A query has at most
``ranges_max`` series of ranges for each metric. Cost: nothing for a batch; a scrape is linear in
the partitions and ranges shown.
"""

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kshare.core.hashing import ALL_HASHES
from kshare.core.live import QUANTILES
from kshare.monitor.collectors import Collectors
from kshare.monitor.report import RangeReport
from spark_plugin.query_report import QueryReport, SourceReport, as_of_now

try:
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector

    from kshare.monitor.metric_families import Families, Table
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "KshareListener(prometheus=...) needs prometheus-client: pip install 'kshare[prometheus]'"
    ) from error

__all__ = ["ReportCollector", "collector_of"]

_log = logging.getLogger("kshare")

_QUERY: Final = ("query",)
_SOURCE: Final = (*_QUERY, "source")
_LATENCY: Final = (*_SOURCE, "of", "quantile")
_TOPIC: Final = (*_SOURCE, "topic")
_PARTITION: Final = (*_SOURCE, "topic", "partition")
_RANGE: Final = (*_PARTITION, "range")
_GAUGES: Final[Table] = {
    _QUERY: {
        "batch_duration_seconds": "How long the last batch took.",
    },
    _SOURCE: {
        "min_offsets_behind_latest": "The least of all partitions' offsets behind latest.",
        "max_offsets_behind_latest": "The most of all partitions' offsets behind latest.",
        "avg_offsets_behind_latest": "The mean of all partitions' offsets behind latest.",
    },
    _LATENCY: {
        "latency_seconds": (
            "Time from records' timestamps to their hand-over within which a share of them came, "
            "of the running batch (of=batch) and of the last 10 s (of=recent), with realTime."
        ),
    },
    _PARTITION: {
        "offsets_behind_latest": "End of the log minus the partition's stable or live offset.",
        "stable_offset": "Everything below this offset is processed.",
        "live_offset": "Everything below this offset was handed over, committed or not (realTime).",
        "ranges": "Ranges of key hashes.",
        "individual_commits": "Individual commits in the checkpoint.",
        "individual_commits_max": "The most that it may hold (maxRangesInCheckpoint).",
        "checkpoint_entry_bytes": "Size of the partition's own entry in the checkpoint.",
        "retention_at_risk": "1 if retention is about to take what is pending.",
    },
    _TOPIC: {
        "parked_keys": "Keys that are parked.",
        "oldest_parked_key_timestamp_seconds": "When the first of them was parked.",
    },
    _RANGE: {
        "range_position": "The first offset that is not processed for all of the range.",
        "range_offsets_behind_latest": "End of the log minus the range's position.",
        "range_batch_records": "Records that the last known batch of the range delivered.",
        "range_task_duration_seconds": "How long the range's task took, where measured.",
        "range_limit_records": "The most records that a batch of the range may deliver.",
    },
}
_COUNTERS: Final[Table] = {
    _QUERY: {
        "rows_dropped_by_watermark": (
            "Rows, after partial aggregation, that came behind the watermark."
        ),
    },
}


@dataclass(frozen=True, slots=True)
class _Dropped:
    """The rows of a query that came behind its watermark.

    Attributes:
        run: The run of the last batch that was counted.
        batch: The number of that batch.
        rows: All rows.
    """

    run: str = ""
    batch: int = -1
    rows: int = 0

    def with_(self, report: QueryReport) -> "_Dropped":
        """Count a batch, unless that was counted: listeners share the registry."""
        if report.run == self.run and report.batch <= self.batch:
            return self
        return _Dropped(report.run, report.batch, self.rows + report.dropped_rows)


class ReportCollector(Collector):
    """Shows the newest report of each running query.

    Args:
        ranges_max: Maximum number of a query's ranges; a query with more shows none of them.
    """

    def __init__(self, ranges_max: int) -> None:
        self.ranges_max = ranges_max
        self._lock = threading.Lock()
        self._reports: dict[str, QueryReport] = {}
        self._too_many: set[str] = set()
        self._dropped: dict[str, _Dropped] = {}

    def show(self, report: QueryReport) -> None:
        """Replace a query's report; a batch counts once, however many listeners hear of it."""
        with self._lock:
            self._reports[report.query] = report
            self._dropped[report.query] = self._dropped.get(report.query, _Dropped()).with_(report)
            count = _count(report)
            first = count > self.ranges_max and report.query not in self._too_many
            if first:
                self._too_many.add(report.query)
        if first:
            _log.warning(
                "%s has %d ranges, more than prometheus_ranges_max (%d): Prometheus gets series of "
                "its partitions only",
                report.name or report.query,
                count,
                self.ranges_max,
            )

    def forget(self, query: str) -> None:
        """Drop the report of a query that has ended."""
        with self._lock:
            self._reports.pop(query, None)
            self._too_many.discard(query)
            self._dropped.pop(query, None)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, for a scrape."""
        with self._lock:
            reports = list(self._reports.values())
            dropped = self._dropped.copy()
        reports = list(map(as_of_now, reports))
        families = Families("kshare_", _GAUGES, _COUNTERS)
        # People know queries by name, but queries of two sessions may have the same one.
        names = Counter(report.name for report in reports)
        for report in reports:
            unique = report.name if names[report.name] == 1 else None
            query = (unique or report.query,)
            values = {
                "batch_duration_seconds": report.seconds,
                "rows_dropped_by_watermark": dropped[report.query].rows,
            }
            families.add(query, values)
            for source in report.sources:
                labels = (*query, str(source.number))
                _add_source(families, labels, source, ranges=_count(report) <= self.ranges_max)
        yield from families


def _count(report: QueryReport) -> int:
    """Count the ranges of all sources."""
    return sum(len(p.ranges) for source in report.sources for p in source.partitions.values())


def _add_source(
    families: Families, labels: tuple[str, ...], source: SourceReport, *, ranges: bool
) -> None:
    for kind in ("min", "max", "avg"):
        value = source.metrics.get(f"{kind}OffsetsBehindLatest")
        if value is not None:
            families.add(labels, {f"{kind}_offsets_behind_latest": float(value)})
    for of, latency in (("batch", source.latency), ("recent", source.recent_latency)):
        for share in QUANTILES:
            values = {"latency_seconds": latency.quantile(share)}
            families.add((*labels, of, f"{share:g}"), values)
    parked = {tp.topic: each.parked for tp, each in source.partitions.items() if each.parked}
    for topic, count in parked.items():
        values = {"parked_keys": count.keys, "oldest_parked_key_timestamp_seconds": count.since}
        families.add((*labels, topic), values)
    for tp, partition in source.partitions.items():
        partition_labels = (*labels, tp.topic, str(tp.partition))
        values = {
            "offsets_behind_latest": source.offsets_behind_latest.get(tp),
            "stable_offset": partition.stable,
            "live_offset": source.live.get(tp),
            "ranges": len(partition.ranges),
            "individual_commits": partition.gaps,
            "individual_commits_max": partition.gaps_max,
            "checkpoint_entry_bytes": partition.entry_bytes,
            "retention_at_risk": partition.retention_at_risk,
        }
        families.add(partition_labels, values)
        end = partition.end if tp in source.offsets_behind_latest else None
        for range_ in partition.ranges if ranges else ():
            _add_range(families, partition_labels, range_, end)


def _add_range(
    families: Families, labels: tuple[str, ...], range_: RangeReport, end: int | None
) -> None:
    if range_.is_parked:
        return  # it stands still as it should
    if range_ == RangeReport(ALL_HASHES, range_.position, range_.lag):
        return  # it would only repeat the partition's series
    hashes = range_.span
    values = {
        "range_position": range_.position,
        "range_offsets_behind_latest": None if end is None else range_.behind(end),
        "range_batch_records": range_.records,
        "range_task_duration_seconds": range_.seconds,
        "range_limit_records": range_.limit,
    }
    families.add((*labels, hashes.as_percent()), values)


# -- the registries -------------------------------------------------------------------------------

_collectors: Collectors[ReportCollector] = Collectors()


def collector_of(registry: CollectorRegistry | None, *, ranges_max: int) -> ReportCollector:
    """Return the collector of a registry, which all listeners share; register it if it is new.

    Args:
        registry: The registry. None: prometheus-client's default.
        ranges_max: The collector's new ``ranges_max``.
    """
    registry = REGISTRY if registry is None else registry
    collector = _collectors.of(registry, lambda: ReportCollector(ranges_max))
    collector.ranges_max = ranges_max
    return collector
