"""What a registry of Prometheus has."""

from prometheus_client import CollectorRegistry


def series(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    """Name and label values to value."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in registry.collect()
        for sample in family.samples
    }
