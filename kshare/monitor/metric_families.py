"""The metrics of one scrape, made from a table, on prometheus-client (an optional extra)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

__all__ = ["Families", "Table"]

Table: TypeAlias = Mapping[tuple[str, ...], Mapping[str, str]]
"""Names of labels, and the metrics that have them: what each says, by name."""


class Families:
    """The metrics of one scrape, in the order of their tables.

    Args:
        prefix: What the names begin with; the tables have the rest.
        gauges: Metrics that may fall.
        counters: Those that only rise.
        histograms: Those of times.
    """

    def __init__(
        self, prefix: str, gauges: Table, counters: Table, histograms: Table | None = None
    ) -> None:
        self._families: dict[str, Any] = {
            name: kind(f"{prefix}{name}", text, labels=labels)
            for kind, table in (
                (GaugeMetricFamily, gauges),
                (CounterMetricFamily, counters),
                (HistogramMetricFamily, histograms or {}),
            )
            for labels, texts in table.items()
            for name, text in texts.items()
        }

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._families.values())

    def add(self, labels: Sequence[str], values: Mapping[str, float | None]) -> None:
        """Add values of some metrics, by name; None is left out.

        Args:
            labels: The values of their labels.
            values: The values.
        """
        for name, value in values.items():
            if value is not None:
                self._families[name].add_metric(labels, value)

    def add_histogram(
        self,
        labels: Sequence[str],
        name: str,
        bounds: Sequence[float],
        counts: Sequence[float],
        seconds: float,
    ) -> None:
        """Add a histogram of times.

        Args:
            labels: The values of its labels.
            name: The metric.
            bounds: The upper bounds of its buckets, in seconds; the last one has none.
            counts: Cumulative counts, one for each bucket.
            seconds: All of it together.
        """
        buckets = list(zip([*map(str, bounds), "+Inf"], map(float, counts), strict=True))
        self._families[name].add_metric(labels, buckets, seconds)
