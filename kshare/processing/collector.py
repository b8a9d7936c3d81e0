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
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector

    from kshare.monitor.metric_families import Families, Table
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "register_metrics needs prometheus-client: pip install 'kshare[prometheus]'"
    ) from error

__all__ = ["ProcessorCollector", "add"]

_LABELS: Final = ("group", "member")
_GAUGES: Final[Table] = {
    _LABELS: {
        "held_records": "Records that are held and have no outcome.",
        "held_bytes": "Size of them.",
        "lanes": "Keys with such records.",
        "running_calls": "Calls of the handler that are under way.",
        "concurrency": "The most calls at a time; it changes with concurrency='auto'.",
        "waiting_lanes": "Keys whose first record waits for its next attempt, or its time.",
        "ending_lanes": "Keys whose first record waits for its dead letter, or to be parked.",
        "oldest_failure_seconds": (
            "For how long a record that is held has failed; the oldest such one."
        ),
    },
}
_COUNTERS: Final[Table] = {
    _LABELS: {
        "records": "Records that were read.",
        "failed_calls": "Calls of the handler that have failed, or took too long.",
        "undelivered": "How often a dead letter could not be written, or a key not be parked.",
    },
    (*_LABELS, "status"): {
        "outcomes": "Records by what became of them.",
    },
}
_HISTOGRAMS: Final[Table] = {
    _LABELS: {
        "call_duration_seconds": "How long calls of the handler took, failed ones too.",
    },
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
        families = Families("kshare_processor_", _GAUGES, _COUNTERS, _HISTOGRAMS)
        for running in shown:
            _add(families, running)
        yield from families


def _add(families: Families, running: Running) -> None:
    labels, measures = (running.group, running.member), running.measures
    figures = running.scheduler.figures()
    oldest = figures.oldest
    values = {
        "held_records": figures.records,
        "held_bytes": figures.size,
        "lanes": figures.lanes,
        "running_calls": figures.calls,
        "concurrency": running.scheduler.concurrency,
        "waiting_lanes": figures.waiting,
        "ending_lanes": figures.ending,
        "oldest_failure_seconds": None if oldest is None else max(time.time() - oldest, 0.0),
        "records": measures.read,
        "failed_calls": measures.failures,
        "undelivered": measures.failed_endings,
    }
    families.add(labels, values)
    for status in Status:
        families.add((*labels, status.value), {"outcomes": measures.outcomes[status]})
    counts = [*accumulate(measures.buckets)]
    families.add_histogram(labels, "call_duration_seconds", BOUNDS, counts, measures.seconds)


# -- the registries -------------------------------------------------------------------------------

_collectors: Collectors[ProcessorCollector] = Collectors()


def add(processor: Processor, registry: CollectorRegistry | None) -> None:
    """Show a processor's metrics in a registry; None: prometheus-client's default."""
    registry = REGISTRY if registry is None else registry
    _collectors.of(registry, ProcessorCollector).add(processor)
