"""A relay between a client and a broker, that freezes amid an answer, as a broker or a link may."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from kshare.testing import FakeCluster

__all__ = ["Relay", "relayed"]

_LONG = 10_000


class Relay:
    """Passes on all that a broker says, until it has begun an answer that is long.

    Args:
        host: The broker's.
        port: The broker's.

    Attributes:
        connections: How many there were so far.
        is_frozen: Set when it has passed on the begin of a long answer; nothing follows then.
        goes_on: To be set: what is held back is passed on, and all else.
    """

    def __init__(self, host: str, port: int) -> None:
        self.connections = 0
        self.is_frozen, self.goes_on = threading.Event(), threading.Event()
        self._broker = host, port
        self._connect = socket.create_connection
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port = self._listener.getsockname()
        return host, port

    def close(self) -> None:
        """Close all connections."""
        self.goes_on.set()
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                broker = self._connect(self._broker)
                self._open += [client, broker]
                for source, target in ((client, broker), (broker, client)):
                    threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 20):
                if len(data) > _LONG and not self.goes_on.is_set():
                    target.sendall(data[:_LONG])
                    data = data[_LONG:]
                    self.is_frozen.set()
                    self.goes_on.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


@contextmanager
def relayed(monkeypatch: pytest.MonkeyPatch, cluster: FakeCluster, node: int) -> Iterator[Relay]:
    """Connect readers to one broker of a cluster through a relay."""
    host, port = cluster.bootstrap_servers.split(",")[node - 1].split(":")
    relay, connect = Relay(host, int(port)), socket.create_connection

    def connect_to(address: tuple[str, int], timeout: float) -> socket.socket:
        return connect(relay.address if address == (host, int(port)) else address, timeout)

    monkeypatch.setattr(socket, "create_connection", connect_to)
    try:
        yield relay
    finally:
        relay.close()
