"""``KshareListener`` reports what each range of each kshare query does, from Spark's events.

It changes nothing, and no event and no callback can make it raise. A query of an older kshare, or a
partition without a report in the event, shows what its offsets say. Cost: one parse of two offset
dicts for each source and event, and that of Prometheus metrics when they are scraped.

    listener = KshareListener()
    spark.streams.addListener(listener)
    ...
    report = listener.last[str(query.id)]
    report.sources[0].metrics["maxOffsetsBehindLatest"], report.slowest, report.hottest
"""

import json
import logging
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from kshare.core.checkpoint import EXTRA_KEY, decode
from kshare.core.checkpoint import BatchOffsets as OffsetDict
from kshare.core.listing import join_names, show_key
from kshare.core.live import latency_text
from kshare.core.progress import TopicPartition
from kshare.errors import CheckpointError
from kshare.monitor.report import (
    PartitionReport,
    RangeReport,
    are_measured,
    decode_report,
    hottest,
    partition_report,
    slowest,
)
from spark_plugin.one_batch import OneBatchWatch
from spark_plugin.query_report import QueryReport, SourceReport, as_of_now
from spark_plugin.spark_api import REPORTS_LATEST, SPARK, TELLS_START, shown_offsets

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from spark_plugin.prometheus import ReportCollector

__all__ = ["KshareListener", "QueryReport", "SourceReport", "report_of"]

_OTHERS: Final = ("KafkaV2", "KafkaSource", "KafkaV1")
_log = logging.getLogger("kshare")
_QUERIES_MAX: Final = 1_000


def report_of(progress: Any) -> QueryReport | None:
    """Convert a ``StreamingQueryProgress``; None if it has no kshare source."""
    reports = [
        _source(
            number,
            shown_offsets(source.endOffset),
            # Without reports of sources, it is the end of the batch, and says nothing of the log.
            shown_offsets(source.latestOffset) if REPORTS_LATEST else None,
        )
        for number, source in enumerate(progress.sources)
        if not source.description.startswith(_OTHERS)
    ]
    sources = tuple(report for report in reports if report is not None)
    if not sources:
        return None
    taken_ms = progress.durationMs.get("triggerExecution", progress.batchDuration)
    return QueryReport(
        query=str(progress.id),
        name=progress.name,
        batch=progress.batchId,
        seconds=taken_ms / 1000,
        sources=sources,
        dropped_rows=sum(each.numRowsDroppedByWatermark for each in progress.stateOperators),
        run=str(progress.runId),
    )


def _batch(progress: Any) -> tuple[str, int, str, list[OffsetDict | None]]:
    """A batch as :meth:`OneBatchWatch.ended_batch` takes it."""
    ends = [
        None
        if source.description.startswith(_OTHERS)
        else _decoded(shown_offsets(source.endOffset))
        for source in progress.sources
    ]
    return str(progress.runId), progress.batchId, progress.timestamp, ends


def _source(number: int, end: str | None, latest: str | None) -> SourceReport | None:
    """Return a source's report; partitions without one show what their offsets say."""
    reached = _decoded(end)
    if reached is None:
        return None
    partitions: dict[TopicPartition, PartitionReport] = {}
    ends: dict[TopicPartition, int] = {}
    try:
        reported = json.loads(latest or "null")
        if isinstance(reported, dict):
            partitions = decode_report(reported)
            plain = _decoded({name: part for name, part in reported.items() if name != EXTRA_KEY})
            ends = {tp: progress.stable for tp, progress in plain.progress.items()} if plain else {}
    except ValueError as error:
        _log.debug("a report that cannot be read: %s", error)
    for tp, progress in reached.progress.items():
        if tp not in partitions:
            seen = max(progress.front, ends.get(tp, 0))
            partitions[tp] = partition_report(seen, progress, reached.limits.get(tp, ()))
    behind = {
        tp: max(ends[tp] - partition.stable, 0)
        for tp, partition in partitions.items()
        if tp in ends
    }
    return SourceReport(
        number,
        MappingProxyType(partitions),
        MappingProxyType(behind),
        None if reached.open is None else reached.open.name,
    )


def _decoded(offsets: str | dict[str, Any] | None) -> OffsetDict | None:
    """Decode an offset dict; None if it is not one of kshare's."""
    if not offsets:
        return None
    try:
        decoded = decode(offsets)
    except CheckpointError:
        return None
    return decoded if decoded.progress else None


class KshareListener(StreamingQueryListener):
    """Reports the ranges of all queries that read ``format("kshare")``.

    For each batch it logs to the logger ``kshare``: a line for each source and for each partition
    at level INFO, a line for each range at DEBUG, and a WARNING for each partition of which
    retention is about to take pending records, and for rows that Spark has dropped behind a
    watermark. On Spark 4.0 and 4.1, a WARNING says what a query with Trigger.AvailableNow or Once
    has left unread, by topic.

    Args:
        callback: Called with every :class:`QueryReport`, in Spark's listener thread.
        prometheus: The registry to show the newest reports in, as Prometheus metrics. True:
            prometheus-client's default registry. The caller serves it, for instance with
            ``prometheus_client.start_http_server(port)``.
        prometheus_ranges_max: Maximum number of a query's ranges that are shown; a query with more
            shows only its partitions.

    Attributes:
        last: The newest report of each query, by query id.

    Raises:
        ModuleNotFoundError: ``prometheus`` is given and prometheus-client is not installed.
    """

    def __init__(
        self,
        callback: Callable[[QueryReport], None] | None = None,
        *,
        prometheus: "CollectorRegistry | bool" = False,
        prometheus_ranges_max: int = 1_000,
    ) -> None:
        self.last: dict[str, QueryReport] = {}
        self._callback = callback
        self._collector: ReportCollector | None = None
        if prometheus is not False:
            # prometheus-client is an optional extra.
            from spark_plugin.prometheus import collector_of  # noqa: PLC0415

            registry = None if prometheus is True else prometheus
            self._collector = collector_of(registry, ranges_max=prometheus_ranges_max)
        self._one_batch = None if TELLS_START else OneBatchWatch()
        if not REPORTS_LATEST:
            _log.warning(
                "%s shows no report of a source in its events: lags, records and times of ranges "
                "are not known. Use `kshare status`, commitOffsets=true, or Spark 4.2 or later",
                SPARK,
            )

    def now(self, query: str) -> QueryReport:
        """The report of a query with where its ranges are now, if it has ``realTime``.

        Args:
            query: Its id.

        Raises:
            KeyError: It has no report yet.
        """
        return as_of_now(self.last[query])

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Look at the query's trigger, where Spark may end it after one batch."""
        if self._one_batch is not None:
            try:
                self._one_batch.started(str(event.id), str(event.runId))
            except Exception:  # as below; of a Spark of a vendor, for instance
                _log.debug("the trigger of a query is not known", exc_info=True)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Report a batch."""
        try:
            if self._one_batch is not None:
                self._one_batch.ended_batch(*_batch(event.progress))
            report = report_of(event.progress)
            if report is None:
                return
            report = as_of_now(report)
            self.last.pop(report.query, None)
            self.last[report.query] = report
            while len(self.last) > _QUERIES_MAX:
                del self.last[next(iter(self.last))]
            if self._collector is not None:
                self._collector.show(report)
            _log_report(report)
            if self._callback is not None:
                self._callback(report)
        except Exception:  # Spark would log it at each event, or stop calling
            _log.warning("kshare's listener could not report a batch", exc_info=True)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing: the last report still holds."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Drop the query's Prometheus metrics, keep its last report, and say what it has left."""
        try:
            if self._collector is not None:
                self._collector.forget(str(event.id))
        except Exception:  # as above
            _log.warning("kshare's listener could not forget a query", exc_info=True)
        if self._one_batch is not None:
            last, failed = self.last.get(str(event.id)), event.exception is not None
            name = str(event.id) if last is None or last.name is None else last.name
            try:
                self._one_batch.ended(name, str(event.runId), failed=failed)
            except Exception as error:  # as above
                _log.warning(
                    "%s ended after one batch, and it is not known what it left: %s", name, error
                )


# -- the log --------------------------------------------------------------------------------------


def _log_report(report: QueryReport) -> None:
    query = f"{report.name or report.query} batch {report.batch}"
    if report.dropped_rows:
        _log.warning(
            "%s: Spark has dropped %d rows that came behind the watermark "
            "(numRowsDroppedByWatermark). They are counted after partial aggregation, so they may "
            "stand for many more records. Ranges, partitions and unparked keys that are behind "
            "come late: set maxTimeAhead to the watermark's delay, for example "
            '.option("maxTimeAhead", "10m")',
            query,
            report.dropped_rows,
        )
    for source in report.sources:
        if source.metrics:
            _log.info(
                "%s, source %d: offsets behind latest: min %s, max %s, avg %s",
                query,
                source.number,
                *source.metrics.values(),
            )
        if source.live:
            times = latency_text(source.recent_latency, source.latency)
            _log.info("%s, source %d: positions are live%s", query, source.number, times)
        for tp, partition in sorted(source.partitions.items()):
            _log_partition(report, query, tp, partition, source.live.get(tp))


def _log_partition(
    report: QueryReport,
    query: str,
    tp: TopicPartition,
    partition: PartitionReport,
    live: int | None,
) -> None:
    if partition.retention_at_risk:
        _log.warning(
            "%s: retention is about to take records of %s that are pending, from offset %d on",
            report.name or report.query,
            tp,
            partition.stable if partition.at_risk_from is None else partition.at_risk_from,
        )
    if _log.isEnabledFor(logging.INFO):
        _log.info("%s, %s: %s", query, tp, ", ".join(_facts(report, partition, live)))
    if _log.isEnabledFor(logging.DEBUG):
        for range_ in partition.ranges:
            facts = ", ".join(_range_facts(report, partition, range_))
            _log.debug("%s, %s, %s: %s", query, tp, range_.span.as_percent(), facts)


def _facts(report: QueryReport, partition: PartitionReport, live: int | None) -> Iterator[str]:
    ranges = partition.ranges
    if live is None:
        yield f"stable {partition.stable}"
    else:
        yield f"live {live}"
        yield f"committed {partition.stable}"
    yield f"end {partition.end}"
    if ranges:
        positions = [range_.position for range_ in ranges]
        yield f"{len(ranges)} ranges at {min(positions)} to {max(positions)}"
        yield f"lag up to {max(range_.lag for range_ in ranges)}"
    slow, hot = slowest(ranges), hottest(ranges)
    if slow is not None and slow.seconds_per_record is not None and are_measured(ranges):
        each = f"{1000 * slow.seconds_per_record:.3g} ms a record"
        yield f"slowest {slow.span.as_percent()}: {each}{_keys(slow)}"
    rate = None if hot is None else report.records_per_second(hot)
    if hot is not None and rate is not None:
        yield f"hottest {hot.span.as_percent()}: {rate:.3g} records/s{_keys(hot)}"
    yield f"{partition.gaps} gaps in {partition.entry_bytes} bytes"


def _range_facts(
    report: QueryReport, partition: PartitionReport, range_: RangeReport
) -> Iterator[str]:
    yield f"position {range_.position}"
    yield f"offsets behind latest {range_.behind(partition.end)}"
    yield f"pending {range_.lag}"
    if range_.records is not None:
        yield f"{range_.records} records"
    rate = report.records_per_second(range_)
    if rate is not None:
        yield f"{rate:.3g} records/s"
    if range_.seconds is not None:
        yield f"{range_.seconds:.3g} s"
    if range_.seconds_per_record is not None:
        yield f"{1000 * range_.seconds_per_record:.3g} ms a record"
    if range_.limit is not None:
        yield f"limit {range_.limit}"


def _keys(range_: RangeReport) -> str:
    """The keys that stand out in a range, in words; empty if there are none."""
    keys = [f"{show_key(hot.key)!r} {100 * hot.share:.0f} %" for hot in range_.hot_keys]
    return f" (keys {join_names(keys)})" if keys else ""
