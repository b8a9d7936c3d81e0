"""The collector of processors' metrics, on prometheus-client (an optional extra).

A processor has series while :meth:`.Processor.run` runs. Cost: nothing for a record; a scrape is
linear in the lanes.
"""

import time
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from kshare.dead_letters.record import Status
from kshare.monitor.collectors import Collectors, Measured
from kshare.processing.measures import BOUNDS, Running
from kshare.processing.processor import Processor

try:
    from prometheus_client import REGISTRY, CollectorRegistry
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

__all__ = ["ProcessorCollector", "add"]

_LABELS: Final = ("group", "member")
_GAUGES: Final = {
    "held_records": "Records that are held and have no outcome.",
    "held_bytes": "Size of them.",
    "lanes": "Keys with such records.",
    "running_calls": "Calls of the handler that are under way.",
    "concurrency": "The most calls at a time; it changes with concurrency='auto'.",
    "waiting_lanes": "Keys whose first record waits for its next attempt, or its time.",
    "ending_lanes": "Keys whose first record waits for its dead letter, or to be parked.",
    "oldest_failure_seconds": "For how long a record that is held has failed; the oldest such one.",
}
_COUNTERS: Final = {
    "records": "Records that were read.",
    "failed_calls": "Calls of the handler that have failed, or took too long.",
    "undelivered": "How often a dead letter could not be written, or a key not be parked.",
}


class ProcessorCollector(Collector):
    """Shows the metrics of processors of a process, while they run."""

    def __init__(self) -> None:
        self._processors: Measured[Processor] = Measured()

    def add(self, processor: Processor) -> None:
        """Show a processor whenever it runs."""
        self._processors.add(processor)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, for a scrape."""
        processors = self._processors.all()
        shown = [running for each in processors if (running := each.running) is not None]
        shown.sort(key=lambda running: (running.group, running.member))
        gauges = {
            name: GaugeMetricFamily(f"kshare_processor_{name}", help_, labels=_LABELS)
            for name, help_ in _GAUGES.items()
        }
        counters = {
            name: CounterMetricFamily(f"kshare_processor_{name}", help_, labels=_LABELS)
            for name, help_ in _COUNTERS.items()
        }
        outcomes = CounterMetricFamily(
            "kshare_processor_outcomes",
            "Records by what became of them.",
            labels=(*_LABELS, "status"),
        )
        seconds = HistogramMetricFamily(
            "kshare_processor_call_duration_seconds",
            "How long calls of the handler took, failed ones too.",
            labels=_LABELS,
        )
        for running in shown:
            _add_gauges(gauges, running)
            _add_counts(counters, outcomes, seconds, running)
        yield from gauges.values()
        yield from counters.values()
        yield outcomes
        yield seconds


def _add_gauges(gauges: dict[str, GaugeMetricFamily], running: Running) -> None:
    figures = running.scheduler.figures()
    values = {
        "held_records": figures.records,
        "held_bytes": figures.size,
        "lanes": figures.lanes,
        "running_calls": figures.calls,
        "concurrency": running.scheduler.concurrency,
        "waiting_lanes": figures.waiting,
        "ending_lanes": figures.ending,
    }
    if figures.oldest is not None:
        gauges["oldest_failure_seconds"].add_metric(
            (running.group, running.member), max(time.time() - figures.oldest, 0.0)
        )
    for name, value in values.items():
        gauges[name].add_metric((running.group, running.member), value)


def _add_counts(
    counters: dict[str, CounterMetricFamily],
    outcomes: CounterMetricFamily,
    seconds: HistogramMetricFamily,
    running: Running,
) -> None:
    labels, measures = (running.group, running.member), running.measures
    counters["records"].add_metric(labels, measures.read)
    counters["failed_calls"].add_metric(labels, measures.failures)
    counters["undelivered"].add_metric(labels, measures.failed_endings)
    for status in Status:
        outcomes.add_metric((*labels, status.value), measures.outcomes[status])
    counts = map(float, accumulate(measures.buckets))
    buckets = list(zip([*map(str, BOUNDS), "+Inf"], counts, strict=True))
    seconds.add_metric(labels, buckets, measures.seconds)


# -- the registries -------------------------------------------------------------------------------

_collectors: Collectors[ProcessorCollector] = Collectors()


def add(processor: Processor, registry: CollectorRegistry | None) -> None:
    """Show a processor's metrics in a registry; None: prometheus-client's default."""
    registry = REGISTRY if registry is None else registry
    _collectors.of(registry, ProcessorCollector).add(processor)
