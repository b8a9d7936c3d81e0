"""The collector of consumers' metrics, and the server, on prometheus-client (an optional extra)."""

import time
from collections.abc import Iterator
from typing import Final

from kshare.group.metrics import (
    LATENCY_BOUNDS,
    ConsumerMetrics,
    MeasuredConsumer,
    ServedConsumer,
)
from kshare.monitor.collectors import Collectors, Measured
from kshare.monitor.web_server import WebHandler, WebServer

__all__ = ["ConsumerCollector", "add", "make_server"]

try:
    from prometheus_client import REGISTRY, CollectorRegistry, MetricsHandler
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector

    from kshare.monitor.metric_families import Families, Table
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "register_metrics needs prometheus-client: pip install 'kshare[prometheus]'"
    ) from error


_MEMBER: Final = ("group", "member")
_TOPIC: Final = (*_MEMBER, "topic")
_PARTITION: Final = (*_MEMBER, "topic", "partition")
_GAUGES: Final[Table] = {
    _PARTITION: {
        "assigned_ranges": "Ranges of key hashes that the consumer owns.",
        "assigned_share": (
            "Which part of the partition's key hashes the consumer owns, from 0 to 1."
        ),
        "lag_offsets": "Offsets with something pending of the consumer's key hashes.",
        "in_flight_records": "Records that were returned and are not processed.",
        "stable_offset": "The first offset that is not processed of the consumer's key hashes.",
        "gaps": "Stretches that were returned and are not acknowledged.",
        "oldest_unacknowledged_seconds": "Age of the oldest record that is not acknowledged.",
        "retention_margin_offsets": "Offsets that may be deleted before what is pending is.",
    },
    _MEMBER: {
        "is_member": "1 if it is a member of the group now; only after subscribe.",
        "leads_group": "1 if it leads the group; only after subscribe.",
        "log_records": "Offsets of the log's partition: what a member that starts reads at most.",
        "log_groups": "Groups whose records were read in the log's partition.",
        "log_read_seconds": "How long the first read of the log took.",
    },
    _TOPIC: {
        "parked_keys": "Keys that are parked.",
        "oldest_parked_key_timestamp_seconds": "When the first of them was parked.",
    },
}
_COUNTERS: Final[Table] = {
    _MEMBER: {
        "commit_failures": "Commits that have failed.",
        "rebalances": "How often the group has changed what the consumer owns.",
        "aborted_transactions": "Transactions that were aborted; their records come again.",
        "fenced_seconds": "How long polls had to wait, as the consumer might have been replaced.",
    },
}
_HISTOGRAMS: Final[Table] = {
    _MEMBER: {
        "commit_duration_seconds": "How long commits took that have succeeded.",
        "transaction_commit_duration_seconds": (
            "How long commits of transactions took that have succeeded, purgatory included."
        ),
    },
}


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
        families = Families("kshare_consumer_", _GAUGES, _COUNTERS, _HISTOGRAMS)
        for metrics in shown:
            _add(families, (metrics.group, metrics.member), metrics)
        yield from families


def _add(families: Families, member: tuple[str, str], metrics: ConsumerMetrics) -> None:
    for tp, partition in sorted(metrics.partitions.items()):
        oldest_ms = partition.oldest_unacknowledged_ms
        values = {
            "assigned_ranges": len(partition.hashes),
            "assigned_share": partition.share,
            "lag_offsets": partition.lag,
            "in_flight_records": partition.in_flight,
            "stable_offset": partition.stable_offset,
            "gaps": partition.gaps,
            "oldest_unacknowledged_seconds": (
                None if oldest_ms is None else max(time.time() - oldest_ms / 1000, 0.0)
            ),
            "retention_margin_offsets": partition.retention_margin,
        }
        families.add((*member, tp.topic, str(tp.partition)), values)
    log = metrics.log
    of_member = {
        "is_member": metrics.is_member,
        "leads_group": metrics.leads,
        "log_records": None if log is None else log.records,
        "log_groups": None if log is None else log.groups,
        "log_read_seconds": None if log is None else log.read_seconds,
        "commit_failures": metrics.commit_failures,
        "rebalances": metrics.rebalances,
        "aborted_transactions": metrics.aborted_transactions,
        "fenced_seconds": metrics.fenced_seconds,
    }
    families.add(member, of_member)
    for topic, parked in sorted(metrics.parked.items()):
        of_topic = {
            "parked_keys": parked.keys,
            "oldest_parked_key_timestamp_seconds": parked.since,
        }
        families.add((*member, topic), of_topic)
    for name, took in (
        ("commit_duration_seconds", metrics.commits),
        ("transaction_commit_duration_seconds", metrics.transactions),
    ):
        families.add_histogram(member, name, LATENCY_BOUNDS, took.counts, took.seconds)


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
