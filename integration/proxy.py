"""A TCP proxy on the loopback interface that counts what a broker sends, and may hold it back."""

import socket
import threading
import time
from contextlib import suppress
from typing import Self

HOST = "127.0.0.1"
_CHUNK = 1 << 16


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
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

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
