"""A TCP proxy on the loopback interface that holds one request back, and lets it go later.

So does a network that breaks and heals: a request arrives that the client has long since repeated
over another connection.
"""

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

HOST = "127.0.0.1"
PRODUCE, ADD_PARTITIONS, END_TRANSACTION = 0, 24, 26
_FLEXIBLE_END_TRANSACTION: Final = 3  # the first version whose answers have tags in their header
_ANSWER_SECONDS: Final = 60.0


class Request(NamedTuple):
    """Requests of one API that hold some texts, such as a transactional id and a topic."""

    api: int
    texts: tuple[str, ...]

    def fits(self, frame: bytes) -> bool:
        """Whether a request is one of these."""
        api = int.from_bytes(frame[4:6], "big")
        return api == self.api and all(text.encode() in frame for text in self.texts)


@dataclass
class Late:
    """A request that is held back.

    Attributes:
        request: The first one of these is held back.
        until: It goes on when one of these is answered; that answer waits for its own.
        then: Called when it was answered.
        frame: The request, with its length; empty until it was seen.
        goes_on: Set when it is let go.
        is_over: Set when it was answered.
        error_code: What EndTxn was answered.
    """

    request: Request
    until: Request
    then: Callable[[], None]
    frame: bytes = b""
    goes_on: threading.Event = field(default_factory=threading.Event)
    is_over: threading.Event = field(default_factory=threading.Event)
    error_code: int | None = None

    def answered(self, frame: bytes) -> None:
        """Take the answer."""
        if self.request.api == END_TRANSACTION:
            start = 13 if self.frame[7] >= _FLEXIBLE_END_TRANSACTION else 12
            (self.error_code,) = struct.unpack_from(">h", frame, start)
        self.then()
        self.is_over.set()


class HoldingProxy:
    """Forwards connections to a port; the broker behind it advertises the proxy.

    Args:
        port: The broker's.

    Attributes:
        port: Its own port.
    """

    def __init__(self, port: int) -> None:
        self._behind = port
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._late: Late | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def hold(
        self,
        request: Request,
        until: Request,
        *,
        then: Callable[[], None] = lambda: None,
    ) -> Late:
        """Hold the next such request back, and reset the client's connection: it sends it again."""
        self._late = late = Late(request, until, then)
        return late

    def holds(self, frame: bytes) -> Late | None:
        """The request that is to be held back, if a frame is the first of its kind."""
        with self._lock:
            late = self._late
            if late is None or late.frame or not late.request.fits(frame):
                return None
            late.frame = frame
            return late

    def awaited(self, frame: bytes) -> Late | None:
        """The request that is held back until this one is answered."""
        late = self._late
        return late if late is not None and late.frame and late.until.fits(frame) else None

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    _Connection(self, client, socket.create_connection((HOST, self._behind)))
                except OSError:
                    client.close()


class _Connection:
    """A connection of a client, and the one to the broker that it is passed on to."""

    def __init__(self, proxy: HoldingProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client, self._server = client, server
        self._held: Late | None = None
        self._awaited: dict[bytes, Late] = {}
        pumps = [
            threading.Thread(target=pump, daemon=True)
            for pump in (self._pass_requests, self._pass_answers)
        ]
        for pump in pumps:
            pump.start()
        threading.Thread(target=self._close, args=(pumps,), daemon=True).start()

    def _pass_requests(self) -> None:
        with suppress(OSError):
            while frame := _frame(self._client):
                if late := self._proxy.holds(frame):
                    self._held = late
                    linger = struct.pack("ii", 1, 0)
                    self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    self._client.close()
                    late.goes_on.wait()
                elif late := self._proxy.awaited(frame):
                    self._awaited[frame[8:12]] = late
                self._server.sendall(frame)
        if self._held is not None:
            self._held.is_over.wait(_ANSWER_SECONDS)
        _shut_down(self._server)

    def _pass_answers(self) -> None:
        with suppress(OSError):
            while frame := _frame(self._server):
                held, awaited = self._held, self._awaited.pop(frame[4:8], None)
                if awaited is not None:
                    awaited.goes_on.set()
                    assert awaited.is_over.wait(_ANSWER_SECONDS)
                is_late = held is not None and frame[4:8] == held.frame[8:12]
                if held is not None and is_late:
                    held.answered(frame)
                if held is None:
                    self._client.sendall(frame)
                elif is_late:
                    break
        _shut_down(self._client)

    def _close(self, pumps: list[threading.Thread]) -> None:
        for pump in pumps:
            pump.join()
        self._client.close()
        self._server.close()


def _shut_down(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def _frame(source: socket.socket) -> bytes:
    """A request or an answer with its length; nothing at the end."""
    size = _read(source, 4)
    return size and size + _read(source, int.from_bytes(size, "big"))


def _read(source: socket.socket, count: int) -> bytes:
    parts = b""
    while len(parts) < count:
        part = source.recv(count - len(parts))
        if not part:
            return b""
        parts += part
    return parts
