"""Metrics and health of consumers over HTTP: for Prometheus, and for probes of Kubernetes.

On prometheus-client, an optional extra; this module can be imported without it::

    /metrics   what Prometheus scrapes
    /healthz   200 while the consumer is alive, else 503: start the process again
    /readyz    200 while it processes its part of the group's records, else 503

A consumer that is closed, or that nobody refers to any more, has no series. Cost: nothing for a
record; a scrape is linear in the partitions. Serving takes a thread that waits, and one for each
of at most 64 connections.
"""

import threading
from typing import TYPE_CHECKING, Self

from kshare.group.metrics import MeasuredConsumer, ServedConsumer
from kshare.monitor.web_server import WebServer

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["MetricsServer", "register_metrics", "serve_metrics"]


def register_metrics(
    consumer: MeasuredConsumer, registry: "CollectorRegistry | None" = None
) -> None:
    """Show a consumer's metrics in Prometheus, until it is closed.

    The caller serves them, for instance with ``prometheus_client.start_http_server(port)``.

    Args:
        consumer: A :class:`~kshare.group.KeySharedConsumer`, or the one of asyncio.
        registry: The registry. None: prometheus-client's default.

    Raises:
        ModuleNotFoundError: The package prometheus-client is not installed.
    """
    from kshare.group.collector import add  # noqa: PLC0415 - an extra

    add(consumer, registry)


class MetricsServer:
    """Serves one consumer's metrics and health until it is closed; a context manager.

    Attributes:
        port: Its port.
    """

    def __init__(self, server: WebServer) -> None:
        self.port: int = server.server_address[1]
        self._server = server
        self._thread = threading.Thread(
            target=server.serve_forever, name="kshare metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Serve no more. May be called again."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve_metrics(
    consumer: ServedConsumer,
    port: int,
    address: str = "127.0.0.1",
    registry: "CollectorRegistry | None" = None,
) -> MetricsServer:
    """Serve a consumer's metrics at ``/metrics``, and its health at ``/healthz`` and ``/readyz``.

    Call it before the consumer subscribes, so that probes are answered while it joins.

    Args:
        consumer: A :class:`~kshare.group.KeySharedConsumer`, or the one of asyncio.
        port: Where to listen; 0 for a free port.
        address: The interface to listen at. Unless given, only this machine reaches it: a scrape
            and probes from outside need ``"0.0.0.0"``, or ``"::"``, and the page has no login.
        registry: The registry. None: prometheus-client's default.

    Raises:
        ModuleNotFoundError: The package prometheus-client is not installed.
        OSError: The port is taken.
    """
    from kshare.group.collector import make_server  # noqa: PLC0415 - an extra

    return MetricsServer(make_server(consumer, (address, port), registry))
