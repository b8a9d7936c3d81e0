"""The newest reports as Prometheus metrics, on prometheus-client (an optional extra).

A range, partition or query that is gone from the newest reports has no series. A query has at most
``ranges_max`` series of ranges for each metric. Cost: nothing for a batch; a scrape is linear in
the partitions and ranges shown.
"""

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Final

from kshare.core.hashing import ALL_HASHES
from kshare.monitor.collectors import Collectors
from kshare.monitor.report import RangeReport
from spark_plugin.query_report import QueryReport, SourceReport

try:
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "KshareListener(prometheus=...) needs prometheus-client: pip install 'kshare[prometheus]'"
    ) from error

__all__ = ["ReportCollector", "collector_of"]

_log = logging.getLogger("kshare")

_QUERY: Final = ("query",)
_SOURCE: Final = (*_QUERY, "source")
_TOPIC: Final = (*_SOURCE, "topic")
_PARTITION: Final = (*_SOURCE, "topic", "partition")
_RANGE: Final = (*_PARTITION, "range")
_METRICS: Final = {
    "batch_duration_seconds": (_QUERY, "How long the last batch took."),
    "min_offsets_behind_latest": (_SOURCE, "The least of all partitions' offsets behind latest."),
    "max_offsets_behind_latest": (_SOURCE, "The most of all partitions' offsets behind latest."),
    "avg_offsets_behind_latest": (_SOURCE, "The mean of all partitions' offsets behind latest."),
    "offsets_behind_latest": (_PARTITION, "End of the log minus the partition's stable offset."),
    "stable_offset": (_PARTITION, "Everything below this offset is processed."),
    "ranges": (_PARTITION, "Ranges of key hashes."),
    "individual_commits": (_PARTITION, "Individual commits in the checkpoint."),
    "individual_commits_max": (_PARTITION, "The most that it may hold (maxRangesInCheckpoint)."),
    "checkpoint_entry_bytes": (_PARTITION, "Size of the partition's own entry in the checkpoint."),
    "retention_at_risk": (_PARTITION, "1 if retention is about to take what is pending."),
    "parked_keys": (_TOPIC, "Keys that are parked."),
    "oldest_parked_key_timestamp_seconds": (_TOPIC, "When the first of them was parked."),
    "range_position": (_RANGE, "The first offset that is not processed for all of the range."),
    "range_offsets_behind_latest": (_RANGE, "End of the log minus the range's position."),
    "range_batch_records": (_RANGE, "Records that the last known batch of the range delivered."),
    "range_task_duration_seconds": (_RANGE, "How long the range's task took, where measured."),
    "range_limit_records": (_RANGE, "The most records that a batch of the range may deliver."),
}

_Families = dict[str, GaugeMetricFamily]


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
        self._dropped: Counter[str] = Counter()  # rows of a query that came behind its watermark

    def show(self, report: QueryReport) -> None:
        """Replace a query's report."""
        with self._lock:
            self._reports[report.query] = report
            self._dropped[report.query] += report.dropped_rows
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
        families = {
            name: GaugeMetricFamily(f"kshare_{name}", help_, labels=labels)
            for name, (labels, help_) in _METRICS.items()
        }
        late = CounterMetricFamily(
            "kshare_rows_dropped_by_watermark",
            "Rows, after partial aggregation, that came behind the watermark.",
            labels=_QUERY,
        )
        # People know queries by name, but queries of two sessions may have the same one.
        names = Counter(report.name for report in reports)
        for report in reports:
            unique = report.name if names[report.name] == 1 else None
            query = (unique or report.query,)
            families["batch_duration_seconds"].add_metric(query, report.seconds)
            late.add_metric(query, dropped[report.query])
            for source in report.sources:
                labels = (*query, str(source.number))
                _add_source(families, labels, source, ranges=_count(report) <= self.ranges_max)
        yield from families.values()
        yield late


def _count(report: QueryReport) -> int:
    """Count the ranges of all sources."""
    return sum(len(p.ranges) for source in report.sources for p in source.partitions.values())


def _add_source(
    families: _Families, labels: tuple[str, ...], source: SourceReport, *, ranges: bool
) -> None:
    for kind in ("min", "max", "avg"):
        value = source.metrics.get(f"{kind}OffsetsBehindLatest")
        if value is not None:
            families[f"{kind}_offsets_behind_latest"].add_metric(labels, float(value))
    parked = {tp.topic: each.parked for tp, each in source.partitions.items() if each.parked}
    for topic, count in parked.items():
        values = {"parked_keys": count.keys, "oldest_parked_key_timestamp_seconds": count.since}
        _add(families, (*labels, topic), values)
    for tp, partition in source.partitions.items():
        partition_labels = (*labels, tp.topic, str(tp.partition))
        values = {
            "offsets_behind_latest": source.offsets_behind_latest.get(tp),
            "stable_offset": partition.stable,
            "ranges": len(partition.ranges),
            "individual_commits": partition.gaps,
            "individual_commits_max": partition.gaps_max,
            "checkpoint_entry_bytes": partition.entry_bytes,
            "retention_at_risk": partition.retention_at_risk,
        }
        _add(families, partition_labels, values)
        end = partition.end if tp in source.offsets_behind_latest else None
        for range_ in partition.ranges if ranges else ():
            _add_range(families, partition_labels, range_, end)


def _add_range(
    families: _Families, labels: tuple[str, ...], range_: RangeReport, end: int | None
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
    _add(families, (*labels, hashes.as_percent()), values)


def _add(
    families: _Families,
    labels: tuple[str, ...],
    values: dict[str, float | None] | dict[str, int | None],
) -> None:
    for name, value in values.items():
        if value is not None:
            families[name].add_metric(labels, value)


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
