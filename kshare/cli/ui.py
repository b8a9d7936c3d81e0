"""``kshare ui``: a web page that shows a query or a group. Three files, and the snapshot as JSON.

Guarantees: it only answers, and changes nothing: GET and HEAD alone. Each answer comes from memory,
so it does not matter how many look. A server that listens on this machine alone answers no page of
another site that has its name point here (DNS rebinding), and a browser loads nothing but these
files for it. One that listens elsewhere does so too, for the names of ``--allowed-host``.
"""

import argparse
import ipaddress
import json
import sys
from collections.abc import Collection
from http import HTTPStatus
from importlib.resources import files
from typing import Final

from kshare.cli.live.snapshot import as_json
from kshare.cli.live.watch import Latest, Watch, looker
from kshare.cli.output import complain, say
from kshare.errors import KshareError
from kshare.monitor.web_server import WebHandler, WebServer

__all__ = ["PageServer", "is_loopback", "run"]

_FILES: Final = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
}
_SNAPSHOT: Final = "/snapshot.json"
_HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Serve until the user ends it.

    Raises:
        SystemExit: A group without a cluster, or a port that there is not (code 2).
        KshareError: The port cannot be had, or the first look has failed.
    """
    if not 0 <= arguments.port < 1 << 16:
        parser.error(f"--port {arguments.port}: wanted 0 to 65535")
    with PageServer(arguments.host, arguments.port, arguments.allowed_host) as server:

        def publish(latest: Latest) -> None:
            fields = as_json(latest.snapshot, fault=latest.fault, has_picture=True)
            server.publish(json.dumps({"interval": arguments.interval, **fields}).encode())

        watch = Watch(looker(parser, arguments), arguments.interval, publish)
        try:
            watch.start()
            if not is_loopback(arguments.host):
                complain(
                    f"warning: {arguments.host} is not only this machine, and the page has no "
                    "login: who reaches it sees topics, members and parked keys"
                )
                if not arguments.allowed_host:
                    complain(
                        "warning: any site that a browser in this network visits can have its "
                        "name point here and read the page: name the page's own host with "
                        "--allowed-host"
                    )
            say(f"{server.url} shows it; Ctrl+C ends")
            sys.stdout.flush()
            server.serve_forever()
        finally:
            watch.close()
    return 0


def is_loopback(host: str) -> bool:
    """True if an address is reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class PageServer(WebServer):
    """Serves the page.

    Args:
        host: The address to listen at.
        port: The port; 0 for any.
        allowed_hosts: The names by which the page may be asked for, beside those of this machine.
            None given: any name, if it listens not only on this machine.

    Raises:
        KshareError: It cannot listen there.
    """

    request_seconds = 30.0  # a browser keeps its connection between two looks

    def __init__(self, host: str, port: int, allowed_hosts: Collection[str] = ()) -> None:
        folder = files("kshare.cli.live") / "page"
        self._files = {
            path: ((folder / name).read_bytes(), kind) for path, (name, kind) in _FILES.items()
        }
        self._snapshot = (b"{}", '"0"')
        self._host = host
        known = {"localhost", "127.0.0.1", "::1", host, *map(str.lower, allowed_hosts)}
        self._known_hosts = known if is_loopback(host) or allowed_hosts else None
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise KshareError(
                f"cannot listen at {host}:{port} ({reason}): give another --port, or 0 for any"
            ) from error

    @property
    def url(self) -> str:
        """The URL of the page."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.server_address[1]}/"

    def publish(self, snapshot: bytes) -> None:
        """Let this JSON be what everybody sees, from any thread."""
        number = int(self._snapshot[1].strip('"')) + 1
        self._snapshot = (snapshot, f'"{number}"')

    def answer(self, path: str) -> tuple[bytes, str, str | None] | None:
        """Content, kind and version of what is at a path; None if nothing is."""
        if path == _SNAPSHOT:
            content, version = self._snapshot
            return content, "application/json", version
        found = self._files.get(path)
        return None if found is None else (*found, None)

    def knows_host(self, header: str | None) -> bool:
        """True if a request may name this host."""
        if self._known_hosts is None:
            return True
        name = (header or "").strip().lower()
        name = name.partition("]")[0].lstrip("[") if name.startswith("[") else name.split(":")[0]
        return name in self._known_hosts


class _Handler(WebHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "kshare", ""
    server: PageServer

    def do_GET(self) -> None:  # noqa: N802 - the base class calls it
        """Answer with content."""
        self._respond(has_body=True)

    def do_HEAD(self) -> None:  # noqa: N802 - as above
        """Answer with headers alone."""
        self._respond(has_body=False)

    def _respond(self, *, has_body: bool) -> None:
        if not self.server.knows_host(self.headers.get("Host")):
            self._send(HTTPStatus.MISDIRECTED_REQUEST, b"", "text/plain", None, has_body=False)
            return
        found = self.server.answer(self.path.partition("?")[0])
        if found is None:
            self._send(HTTPStatus.NOT_FOUND, b"not found\n", "text/plain", None, has_body=has_body)
            return
        content, kind, version = found
        if version is not None and self.headers.get("If-None-Match") == version:
            self._send(HTTPStatus.NOT_MODIFIED, b"", kind, version, has_body=False)
            return
        self._send(HTTPStatus.OK, content, kind, version, has_body=has_body)

    def _send(
        self, status: HTTPStatus, content: bytes, kind: str, version: str | None, *, has_body: bool
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if status != HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Length", str(len(content)))
        if version is not None:
            self.send_header("ETag", version)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if has_body:
            self.wfile.write(content)
