"""Servers of HTTP that answer as a test says."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ssl import SSLContext
from typing import Any


@contextmanager
def server(
    answer: Callable[[str], tuple[int, Any]], tls: SSLContext | None = None
) -> Iterator[str]:
    """A server of HTTP that is no FakeRegistry.

    Args:
        answer: From the path of a request to status and body: bytes, or what becomes JSON.
        tls: With TLS, by this context.

    Yields:
        Its URL.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, body = answer(self.path.partition("?")[0])
            text = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_GET  # noqa: N815 - http.server's name

        def log_message(self, *_: object) -> None:
            """Say nothing of requests."""

    served = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        served.socket = tls.wrap_socket(served.socket, server_side=True)
    thread = threading.Thread(target=served.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{served.server_address[1]}"
    finally:
        served.shutdown()
        served.server_close()
        thread.join()
