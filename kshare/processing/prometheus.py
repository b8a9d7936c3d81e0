"""The metrics of processors for Prometheus. It can be imported without the extra ``prometheus``."""

from typing import TYPE_CHECKING

from kshare.processing.processor import Processor

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["register_metrics"]


def register_metrics(processor: Processor, registry: "CollectorRegistry | None" = None) -> None:
    """Show a processor's metrics in Prometheus while :meth:`.Processor.run` runs.

    The caller serves them, for instance with ``prometheus_client.start_http_server(port)``.

    Args:
        processor: The processor; before or while it runs.
        registry: The registry. None: prometheus-client's default.

    Raises:
        ModuleNotFoundError: The package prometheus-client is not installed.
    """
    from kshare.processing.collector import add  # noqa: PLC0415 - an extra

    add(processor, registry)
