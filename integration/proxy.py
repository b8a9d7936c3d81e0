"""A TCP proxy on the loopback interface that counts what a broker sends, and may hold it back."""

import socket
import threading
import time
from contextlib import suppress
from typing import Self

HOST = "127.0.0.1"
_CHUNK = 1 << 16
_API_VERSIONS = b"\0\x12"


class CountingProxy:
    """Forwards connections to a port; the broker behind it advertises the proxy.

    Args:
        port: the broker's.

    Attributes:
        port: Its own port.
        received: Bytes that the broker has sent, over all connections.
        delay: By how many seconds each answer comes late.
    """

    def __init__(self, port: int) -> None:
        self._behind = port
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self.received = 0
        self.delay = 0.0
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection((HOST, self._behind))
            except OSError:
                client.close()
                continue
            self._sockets += (client, server)
            for source, sink, counts in ((client, server, False), (server, client, True)):
                threading.Thread(
                    target=self._pass_on, args=(source, sink, counts), daemon=True
                ).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, counts: bool) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK):
                if counts:
                    with self._lock:
                        self.received += len(data)
                    time.sleep(self.delay)
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            if end is source:
                end.close()


class StrictProxy(CountingProxy):
    """A proxy that behaves as services do: it hangs up on what it does not like.

    It closes a connection whose first request is an ApiVersions of another version than 0, unless
    librdkafka sends it (which has a way of its own), and every connection that is idle for long.

    Args:
        port: The broker's.
        idle_seconds: After so long without a byte a connection is cut.

    Attributes:
        refused: The number of connections that were closed for their first request.
        cut: The number of those that were idle.
    """

    def __init__(self, port: int, idle_seconds: float) -> None:
        self.refused = self.cut = 0
        self._busy: dict[frozenset[socket.socket], float] = {}
        self._idle_seconds = idle_seconds
        super().__init__(port)

    def _pass_on(self, source: socket.socket, sink: socket.socket, counts: bool) -> None:
        first = b"" if counts else source.recv(_CHUNK, socket.MSG_PEEK)
        key, version = first[4:6], first[6:8]
        if key == _API_VERSIONS and version != b"\0\0" and b"rdkafka" not in first:
            with self._lock:
                self.refused += 1
        else:
            self._pass_until_idle(source, sink, counts)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _pass_until_idle(self, source: socket.socket, sink: socket.socket, counts: bool) -> None:
        connection = frozenset((source, sink))
        source.settimeout(self._idle_seconds / 4)
        with suppress(OSError):
            while True:
                try:
                    data = source.recv(_CHUNK)
                except TimeoutError:
                    if time.monotonic() < self._busy.get(connection, 0.0) + self._idle_seconds:
                        continue
                    with self._lock:
                        self.cut += counts
                    return
                if not data:
                    return
                self._busy[connection] = time.monotonic()
                sink.sendall(data)
