"""An HTTP server that strangers cannot wear out: the base of those for metrics and the page.

Guarantees: no more than 64 connections, and as many threads; a connection ends when it has brought
no whole request, or not taken its answer, in time, however slowly it goes on. Without a free file
the server pauses: a connection that waits would wake it at once.
Cost: a thread that waits, and one for each connection.
"""

import errno
import logging
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Final

__all__ = ["WebHandler", "WebServer"]

_log = logging.getLogger(__name__)

_CONNECTIONS_MAX: Final = 64
_PAUSE_SECONDS: Final = 1.0
_GONE: Final = frozenset({errno.ECONNABORTED, errno.EAGAIN, errno.EINTR, errno.EPROTO})


class WebServer(ThreadingHTTPServer):
    """Serves what a :class:`WebHandler` answers.

    Args:
        place: The address and the port to listen at; 0 for any port.
        handler: Makes the answers.

    Attributes:
        request_seconds: A request and its answer take no longer, the wait for it included.

    Raises:
        OSError: It cannot listen there.
    """

    daemon_threads = True
    block_on_close = False  # a client that keeps its connection open
    request_queue_size = _CONNECTIONS_MAX
    request_seconds = 10.0

    def __init__(self, place: tuple[str, int], handler: type["WebHandler"]) -> None:
        self._lock = threading.Lock()  # guards the next one
        self._until: dict[socket.socket, float] = {}  # when each connection ends
        self._ending = threading.Event()
        self._has_warned = False
        self.address_family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        super().__init__(place, handler)

    def server_bind(self) -> None:
        """Take the port; without the look-up of this machine's name that HTTPServer makes."""
        TCPServer.server_bind(self)

    def shutdown(self) -> None:
        """Serve no more."""
        self._ending.set()
        super().shutdown()

    def begin(self, connection: socket.socket) -> None:
        """A connection waits for its next request: the time for it begins."""
        with self._lock:
            if connection in self._until:
                self._until[connection] = time.monotonic() + self.request_seconds

    def get_request(self) -> tuple[socket.socket, Any]:
        """Take a connection."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno not in _GONE:
                self._warn(str(error))
                self._ending.wait(_PAUSE_SECONDS)
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002
        """True if there is room for a connection."""
        with self._lock:
            if has_room := len(self._until) < _CONNECTIONS_MAX:
                self._until[request] = time.monotonic() + self.request_seconds
        if not has_room:
            self._warn(f"it has {_CONNECTIONS_MAX} connections")
        return has_room

    def shutdown_request(self, request: Any) -> None:
        """A connection is over."""
        with self._lock:
            self._until.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End the connections that take too long; called twice a second."""
        now = time.monotonic()
        with self._lock:  # so none of them is closed, and its number another file's, meanwhile
            for connection in [each for each, until in self._until.items() if until < now]:
                try:
                    connection.shutdown(socket.SHUT_RDWR)  # its thread sees that, and closes it
                except OSError as error:
                    _log.debug("a connection has gone by itself: %s", error)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Clients break connections off, which is no fault; anything else is one of ours."""
        if not isinstance(sys.exc_info()[1], OSError):
            _log.exception("a request has failed")

    def _warn(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "port %s takes no more connections for now: %s", self.server_address[1], why
            )


class WebHandler(BaseHTTPRequestHandler):
    """Answers the requests of one connection of a :class:`WebServer`."""

    server: WebServer

    def setup(self) -> None:
        """Let no call of the system take longer than a request may."""
        super().setup()
        self.connection.settimeout(self.server.request_seconds)

    def handle_one_request(self) -> None:
        """Answer a request."""
        self.server.begin(self.connection)
        super().handle_one_request()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named by http.server
        """Say nothing of requests."""
