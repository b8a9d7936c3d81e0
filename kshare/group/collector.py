"""The collector of consumers' metrics, and the server, on prometheus-client (an optional extra)."""

import time
from collections.abc import Iterator
from typing import Final

from kshare.group.metrics import (
    LATENCY_BOUNDS,
    ConsumerMetrics,
    Latencies,
    MeasuredConsumer,
    ServedConsumer,
)
from kshare.monitor.collectors import Collectors, Measured
from kshare.monitor.web_server import WebHandler, WebServer

__all__ = ["ConsumerCollector", "add", "make_server"]

try:
    from prometheus_client import REGISTRY, CollectorRegistry, MetricsHandler
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "register_metrics needs prometheus-client: pip install 'kshare[prometheus]'"
    ) from error


_MEMBER: Final = ("group", "member")
_TOPIC: Final = (*_MEMBER, "topic")
_PARTITION: Final = (*_MEMBER, "topic", "partition")
_GAUGES: Final = {
    "assigned_ranges": "Ranges of key hashes that the consumer owns.",
    "assigned_share": "Which part of the partition's key hashes the consumer owns, from 0 to 1.",
    "lag_offsets": "Offsets with something pending of the consumer's key hashes.",
    "in_flight_records": "Records that were returned and are not processed.",
    "stable_offset": "The first offset that is not processed of the consumer's key hashes.",
    "gaps": "Stretches that were returned and are not acknowledged.",
    "oldest_unacknowledged_seconds": "Age of the oldest record that is not acknowledged.",
    "retention_margin_offsets": "Offsets that may be deleted before what is pending is.",
}
_MEMBERSHIP: Final = {
    "is_member": "1 if it is a member of the group now; only after subscribe.",
    "leads_group": "1 if it leads the group; only after subscribe.",
}
_LOG: Final = {
    "log_records": "Offsets of the log's partition: what a member that starts reads at most.",
    "log_groups": "Groups whose records were read in the log's partition.",
    "log_read_seconds": "How long the first read of the log took.",
}
_PARKED: Final = {
    "parked_keys": "Keys that are parked.",
    "oldest_parked_key_timestamp_seconds": "When the first of them was parked.",
}
_COUNTERS: Final = {
    "commit_failures": "Commits that have failed.",
    "rebalances": "How often the group has changed what the consumer owns.",
    "aborted_transactions": "Transactions that were aborted; their records come again.",
    "fenced_seconds": "How long polls had to wait, as the consumer might have been replaced.",
}
_HISTOGRAMS: Final = {
    "commits": ("commit_duration_seconds", "How long commits took that have succeeded."),
    "transactions": (
        "transaction_commit_duration_seconds",
        "How long commits of transactions took that have succeeded, purgatory included.",
    ),
}


_FAMILIES: Final = (
    (_PARTITION, _GAUGES),
    (_MEMBER, _MEMBERSHIP),
    (_MEMBER, _LOG),
    (_TOPIC, _PARKED),
)


class ConsumerCollector(Collector):
    """Shows the metrics of all consumers of a process."""

    def __init__(self) -> None:
        self._consumers: Measured[MeasuredConsumer] = Measured()

    def add(self, consumer: MeasuredConsumer) -> None:
        """Show a consumer until it is closed."""
        self._consumers.add(consumer)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, for a scrape."""
        consumers = self._consumers.all()
        shown = [consumer.metrics() for consumer in consumers if not consumer.is_closed]
        shown.sort(key=lambda metrics: (metrics.group, metrics.member))
        gauges = {
            name: GaugeMetricFamily(f"kshare_consumer_{name}", help_, labels=labels)
            for labels, texts in _FAMILIES
            for name, help_ in texts.items()
        }
        counters = {
            name: CounterMetricFamily(f"kshare_consumer_{name}", help_, labels=_MEMBER)
            for name, help_ in _COUNTERS.items()
        }
        histograms = {
            field: HistogramMetricFamily(f"kshare_consumer_{name}", help_, labels=_MEMBER)
            for field, (name, help_) in _HISTOGRAMS.items()
        }
        for metrics in shown:
            member = (metrics.group, metrics.member)
            _add_partitions(gauges, member, metrics)
            _add_membership(gauges, member, metrics)
            for name, family in counters.items():
                family.add_metric(member, getattr(metrics, name))
            for field, histogram in histograms.items():
                _add_latencies(histogram, member, getattr(metrics, field))
        yield from gauges.values()
        yield from counters.values()
        yield from histograms.values()


def _add_partitions(
    gauges: dict[str, GaugeMetricFamily], member: tuple[str, str], metrics: ConsumerMetrics
) -> None:
    for tp, partition in sorted(metrics.partitions.items()):
        labels = (*member, tp.topic, str(tp.partition))
        gauges["assigned_ranges"].add_metric(labels, len(partition.hashes))
        gauges["assigned_share"].add_metric(labels, partition.share)
        gauges["in_flight_records"].add_metric(labels, partition.in_flight)
        gauges["gaps"].add_metric(labels, partition.gaps)
        oldest_ms = partition.oldest_unacknowledged_ms
        known = {
            "lag_offsets": partition.lag,
            "stable_offset": partition.stable_offset,
            "retention_margin_offsets": partition.retention_margin,
            "oldest_unacknowledged_seconds": (
                None if oldest_ms is None else max(time.time() - oldest_ms / 1000, 0.0)
            ),
        }
        for name, value in known.items():
            if value is not None:
                gauges[name].add_metric(labels, value)


def _add_membership(
    gauges: dict[str, GaugeMetricFamily], member: tuple[str, str], metrics: ConsumerMetrics
) -> None:
    if metrics.is_member is not None:
        gauges["is_member"].add_metric(member, metrics.is_member)
    if metrics.leads is not None:
        gauges["leads_group"].add_metric(member, metrics.leads)
    if metrics.log is not None:
        gauges["log_records"].add_metric(member, metrics.log.records)
        gauges["log_groups"].add_metric(member, metrics.log.groups)
        if metrics.log.read_seconds is not None:
            gauges["log_read_seconds"].add_metric(member, metrics.log.read_seconds)
    for topic, parked in sorted(metrics.parked.items()):
        gauges["parked_keys"].add_metric((*member, topic), parked.keys)
        if parked.since is not None:
            since = gauges["oldest_parked_key_timestamp_seconds"]
            since.add_metric((*member, topic), parked.since)


def _add_latencies(
    histogram: HistogramMetricFamily, member: tuple[str, str], latencies: Latencies
) -> None:
    bounds = [*map(str, LATENCY_BOUNDS), "+Inf"]
    buckets = list(zip(bounds, map(float, latencies.counts), strict=True))
    histogram.add_metric(member, buckets, latencies.seconds)


# -- the registries -------------------------------------------------------------------------------

_collectors: Collectors[ConsumerCollector] = Collectors()


def add(consumer: MeasuredConsumer, registry: CollectorRegistry | None) -> None:
    """Show a consumer's metrics in a registry; None: prometheus-client's default."""
    registry = REGISTRY if registry is None else registry
    _collectors.of(registry, ConsumerCollector).add(consumer)


class _Handler(WebHandler, MetricsHandler):
    server: "_Server"

    def do_GET(self) -> None:  # noqa: N802 - the base class calls it
        """Answer a request."""
        path = self.path.partition("?")[0].rstrip("/")
        if path not in {"/healthz", "/readyz"}:
            super().do_GET()
            return
        health = self.server.consumer.health()
        is_good = health.is_alive if path == "/healthz" else health.is_ready
        body = f"{'ok' if is_good else health.reason}\n".encode()
        self.send_response(200 if is_good else 503)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Server(WebServer):
    def __init__(
        self, place: tuple[str, int], registry: CollectorRegistry, consumer: ServedConsumer
    ) -> None:
        self.consumer = consumer
        super().__init__(place, _Handler.factory(registry))


def make_server(
    consumer: ServedConsumer, place: tuple[str, int], registry: CollectorRegistry | None
) -> WebServer:
    """Return a server of a consumer's metrics and health, which listens and does not serve yet."""
    registry = REGISTRY if registry is None else registry
    add(consumer, registry)
    return _Server(place, registry, consumer)
