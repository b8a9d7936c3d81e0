"""A consumer's metrics and health over HTTP: for Prometheus, and for probes of Kubernetes.

::

    /metrics   what Prometheus scrapes
    /healthz   200 while the consumer is alive, else 503: start the process again
    /readyz    200 while it processes its part of the group's records, else 503

Cost: a thread that waits, and one for each request.
"""

import threading
from http.server import ThreadingHTTPServer
from typing import Protocol, Self

from kshare.group.consumer.health import ConsumerHealth
from kshare.group.prometheus import MeasuredConsumer, register_metrics

# kshare.group.prometheus says what to install if it is missing.
from prometheus_client import REGISTRY, CollectorRegistry, MetricsHandler  # isort: skip

__all__ = ["MetricsServer", "ServedConsumer", "serve_metrics"]


class ServedConsumer(MeasuredConsumer, Protocol):
    """The used part of the consumer."""

    def health(self) -> ConsumerHealth:
        """Return its health."""


class _Handler(MetricsHandler):
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


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(
        self, place: tuple[str, int], registry: CollectorRegistry, consumer: ServedConsumer
    ) -> None:
        self.consumer = consumer
        super().__init__(place, _Handler.factory(registry))


class MetricsServer:
    """Serves one consumer's metrics and health until it is closed; a context manager.

    Attributes:
        port: Its port.
    """

    def __init__(self, server: ThreadingHTTPServer) -> None:
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
    address: str = "0.0.0.0",  # noqa: S104 - as prometheus-client does; scrapes come from outside
    registry: CollectorRegistry | None = None,
) -> MetricsServer:
    """Serve a consumer's metrics at ``/metrics``, and its health at ``/healthz`` and ``/readyz``.

    Call it before the consumer subscribes, so that probes are answered while it joins.

    Args:
        consumer: A :class:`~kshare.group.KeySharedConsumer`, or the one of asyncio.
        port: Where to listen; 0 for a free port.
        address: The interface to listen at; all of them unless given.
        registry: The registry. None: prometheus-client's default.

    Raises:
        ModuleNotFoundError: prometheus-client is not installed.
        OSError: The port is taken.
    """
    registry = REGISTRY if registry is None else registry
    register_metrics(consumer, registry)
    return MetricsServer(_Server((address, port), registry, consumer))
