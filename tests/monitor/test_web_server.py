"""Strangers cannot wear out a server: connections, time and open files are bounded."""

import errno
import logging
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from typing import Any

import pytest

from kshare.monitor import web_server
from kshare.monitor.web_server import WebHandler, WebServer
from tests.support.groups import eventually


class Handler(WebHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:  # noqa: N802 - the base class calls it
        if self.path == "/fault":
            raise ZeroDivisionError
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"yes")


@contextmanager
def serving(request_seconds: float = 60.0) -> Iterator[WebServer]:
    with WebServer(("127.0.0.1", 0), Handler) as server:
        server.request_seconds = request_seconds
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def connected(server: WebServer) -> socket.socket:
    return socket.create_connection(server.server_address[:2], timeout=60)  # type: ignore[arg-type]


def asked(connection: socket.socket, path: str = "/") -> bytes:
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    answer = b""
    while not answer.endswith(b"yes") and (more := connection.recv(4096)):
        answer += more
    return answer


def is_over(connection: socket.socket) -> bool:
    """One byte more; True if the other end has hung up."""
    connection.setblocking(False)
    try:
        connection.send(b"x")
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def handlers() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def test_silent_connections_are_few_and_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(web_server, "_CONNECTIONS_MAX", 3)
    with serving() as server, ExitStack() as stack:
        silent = [stack.enter_context(connected(server)) for _ in range(3)]
        for each in silent:
            each.sendall(b"G")
        eventually(lambda: handlers() == 3)
        with connected(server) as fourth:
            assert fourth.recv(1) == b""
        assert handlers() == 3
        assert "takes no more connections for now: it has 3 connections" in caplog.text
        server.request_seconds = 0.0
        with server._lock:
            server._until = dict.fromkeys(server._until, 0.0)  # a minute later
        eventually(lambda: handlers() == 0)
        assert all(each.recv(1) == b"" for each in silent)


def test_a_request_that_comes_byte_by_byte_ends() -> None:
    """Each byte is in time; all of them are not."""
    with serving(request_seconds=0.3) as server, connected(server) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nX: ")
        eventually(lambda: is_over(slow))


def test_a_connection_has_its_time_for_each_request() -> None:
    with serving() as server, connected(server) as kept:
        assert asked(kept).endswith(b"yes")
        with server._lock:
            server._until = {each: until - 30 for each, until in server._until.items()}
        shortened = min(server._until.values())
        assert asked(kept).endswith(b"yes")
        eventually(lambda: min(server._until.values()) > shortened)


def test_without_a_free_file_it_pauses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection waits on, and its server does not ask for it again and again."""
    asks: list[str] = []
    real = socketserver.TCPServer.get_request

    def accept(server: Any) -> Any:
        asks.append("accept")
        if len(asks) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(server)

    monkeypatch.setattr(socketserver.TCPServer, "get_request", accept)
    monkeypatch.setattr(web_server, "_PAUSE_SECONDS", 3600.0)
    with serving() as server, connected(server):
        eventually(lambda: "Too many open files" in caplog.text)
    assert asks == ["accept"]  # and the end of the server is no matter of an hour
    asks.clear()
    monkeypatch.setattr(web_server, "_PAUSE_SECONDS", 0.0)
    with serving() as server, connected(server) as waiting:
        assert asked(waiting).endswith(b"yes")


def test_a_connection_that_has_gone_again_is_no_reason_to_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(_: Any) -> Any:
        raise ConnectionAbortedError(errno.ECONNABORTED, "gone")

    monkeypatch.setattr(socketserver.TCPServer, "get_request", gone)
    with WebServer(("127.0.0.1", 0), Handler) as server:
        monkeypatch.setattr(web_server, "_PAUSE_SECONDS", 3600.0)
        with pytest.raises(ConnectionAbortedError):
            server.get_request()


def test_a_fault_of_our_own_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.ERROR, "kshare.monitor.web_server"),
        serving() as server,
        connected(server) as asking,
    ):
        assert asked(asking, "/fault") == b""
        eventually(lambda: "ZeroDivisionError" in caplog.text)
