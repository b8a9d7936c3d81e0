"""The planner's side of feedback: a server that tasks report to.

Guarantees: best effort. What is lost, late, sent twice, cut short or forged changes no result: a
message counts only if it is signed (see :mod:`kshare.query.feedback.messages`) and for a ticket of
a batch that the server knows. If attempts of a task differ, the lowest end counts, so that no
record is passed over.
Cost: one thread for any number of tasks; at most 64 KiB for each of at most 1,000
connections, one for each task that runs.
"""

import contextlib
import logging
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from kshare.core.slice_end import SliceEnd
from kshare.core.tasks import Ticket, TicketId
from kshare.query.feedback.messages import Done, Executor, Hello, Message, Reading, decode

__all__ = ["FeedbackServer"]

_log = logging.getLogger(__name__)

_LINE_MAX = 64 << 10
_FIRST_LINE_MAX = 4 << 10  # of a stranger
_CONNECTIONS_MAX = 1_000
_HELLO_SECONDS_MAX = 10.0
_TICK_SECONDS = 1.0
_NOWHERE = ("", 0)  # to which tasks report nothing


@dataclass(slots=True)
class _Peer:
    """A connection.

    Attributes:
        socket: The connection.
        accepted: When it was accepted.
        data: What was received and is no whole line yet.
        began: When the hello of each slice came, by its ticket: a task has one or more.
    """

    socket: socket.socket
    accepted: float
    data: bytearray = field(default_factory=bytearray)
    began: dict[TicketId, float] = field(default_factory=dict)


class FeedbackServer:
    """Listens for the reports of tasks, in a thread of its own from :meth:`start` on.

    Args:
        host_hint: A host and port (a Kafka broker's) through which the tasks' machines are reached.
            The server listens on this machine's address in that network.
        without: What becomes of it if it cannot listen, for the log.

    Attributes:
        rejected: The number of connections that were dropped for a line that does not count.
    """

    def __init__(
        self,
        host_hint: tuple[str, int],
        without: str = "the planner will look for their ends in Kafka",
    ) -> None:
        self._hint = host_hint
        self._without = without
        self._key = secrets.token_bytes(32)
        self._ends = _TaskEnds()
        self._address: tuple[str, int] = _NOWHERE  # unless the server listens
        self._thread: threading.Thread | None = None
        self._wake: tuple[socket.socket, socket.socket] | None = None
        self._closed = False
        self.rejected = 0
        self._has_warned = False

    def start(self) -> bool:
        """Start listening if that was not tried; return whether the server is listening.

        Never raises: feedback is best effort.
        """
        if self._thread is not None or self._closed:
            return self._address != _NOWHERE
        listener = None
        try:
            listener = _listen(self._hint)
            self._wake = socket.socketpair()
        except OSError as error:
            _log.warning(
                "no feedback from tasks, %s: cannot listen on this machine's address towards "
                "%s:%d: %s",
                self._without,
                *self._hint,
                error,
            )
            if listener is not None:
                listener.close()
            self._closed = True
            return False
        self._address = listener.getsockname()[:2]
        self._thread = threading.Thread(
            target=self._run, args=(listener,), name="kshare-feedback", daemon=True
        )
        self._thread.start()
        return True

    def close(self) -> None:
        """Stop listening, and drop all connections. May be called again."""
        self._closed = True
        if self._thread is None or self._wake is None:
            return
        with contextlib.suppress(OSError):
            self._wake[1].close()  # which the thread sees
        self._thread.join()
        self._thread = None

    def ticket(self, batch: str, number: int, *, hold: bool) -> Ticket:
        """Make a ticket; what comes with it is kept until the batch is forgotten.

        Args:
            batch: The name of the batch.
            number: The number of the ticket within the batch.
            hold: See :class:`~kshare.query.feedback.messages.Ticket`.
        """
        self._ends.expect(TicketId(batch, number))
        return Ticket(*self._address, self._key, batch, number, hold)

    def reports(self, batch: str, *, wait_seconds: float = 0.0) -> dict[int, SliceEnd]:
        """Reported ends of a batch's tasks, by ticket number.

        Args:
            batch: The name of the batch.
            wait_seconds: Maximum time to wait for tasks that have not reported yet.
        """
        return self._ends.of_batch(batch, wait_seconds)

    def executors(self, batch: str) -> dict[int, Executor]:
        """Reported executors of a batch's tasks, by ticket number."""
        return self._ends.executors_of(batch)

    def readings(self, batch: str) -> dict[int, Reading]:
        """What the tasks of an open batch have said last, by ticket number."""
        return self._ends.readings_of(batch)

    def retain(self, batches: Collection[str]) -> None:
        """Forget all other batches."""
        self._ends.retain(batches)

    # -- the thread -------------------------------------------------------------------------

    def _run(self, listener: socket.socket) -> None:
        assert self._wake is not None
        listen_at = 0.0
        with selectors.DefaultSelector() as selector:
            try:
                selector.register(listener, selectors.EVENT_READ)
                selector.register(self._wake[0], selectors.EVENT_READ)
                while not self._closed:
                    for key, _ in selector.select(_TICK_SECONDS):
                        if key.fileobj is not listener:
                            if key.data is not None:
                                self._receive(selector, key.data)
                        elif not self._accept(selector, listener):
                            # The connection waits on, and would wake this thread at once.
                            selector.unregister(listener)
                            listen_at = time.monotonic() + _TICK_SECONDS
                    if listener not in selector.get_map() and time.monotonic() >= listen_at:
                        listen_at = time.monotonic() + _TICK_SECONDS
                        with contextlib.suppress(OSError):  # the system watches no more files
                            selector.register(listener, selectors.EVENT_READ)
                    self._drop_silent(selector)
            except Exception:
                _log.exception("feedback from tasks has ended; the planner goes on without")
            finally:
                self._address = _NOWHERE
                for key in list(selector.get_map().values()):
                    with contextlib.suppress(OSError):
                        key.fileobj.close()  # type: ignore[union-attr]
                listener.close()
                self._wake[0].close()  # neither may be watched yet

    def _accept(self, selector: selectors.BaseSelector, listener: socket.socket) -> bool:
        """Take a connection; return False if that is not possible now, say without a free file."""
        try:
            accepted, _ = listener.accept()
        except (BlockingIOError, ConnectionError):
            return True  # it has gone again
        except OSError as error:
            self._warn_of_rejected(str(error))
            return False
        if len(selector.get_map()) - 2 >= _CONNECTIONS_MAX:
            accepted.close()
            self._reject("too many connections")
            self._warn_of_rejected(f"it has {_CONNECTIONS_MAX:,} connections")
            return True
        accepted.setblocking(False)
        with contextlib.suppress(OSError):
            # A machine that is gone says nothing: notice it some day.
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        try:
            selector.register(accepted, selectors.EVENT_READ, _Peer(accepted, time.monotonic()))
        except OSError as error:  # the system watches no more files
            accepted.close()
            self._warn_of_rejected(str(error))
            return False
        return True

    def _warn_of_rejected(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "the planner takes no more reports of tasks at once, and looks for the ends of "
                "those that it does not hear in Kafka: %s. Fewer tasks at once, or more open files "
                "(ulimit -n), would help.",
                why,
            )

    def _receive(self, selector: selectors.BaseSelector, peer: _Peer) -> None:
        """Take what a connection brings; drop the connection if that does not count."""
        try:
            received = peer.socket.recv(_LINE_MAX)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._drop(selector, peer)
            return
        peer.data += received
        try:
            while (end := peer.data.find(b"\n")) >= 0:
                line = bytes(peer.data[:end])
                del peer.data[: end + 1]
                self._take(peer, decode(self._key, line))
            if len(peer.data) > (_LINE_MAX if peer.began else _FIRST_LINE_MAX):
                raise ValueError("a line without end")
        except (ValueError, RecursionError) as error:
            self._reject(str(error))
            self._drop(selector, peer)

    def _take(self, peer: _Peer, message: Message) -> None:
        """Act on a message. ValueError: it comes in the wrong order."""
        match message:
            case Hello(ticket, executor) if ticket not in peer.began:
                peer.began[ticket] = time.monotonic()
                if executor is not None:
                    self._ends.began(ticket, executor)
            case Reading(ticket) if ticket in peer.began:
                self._ends.reading(message)
            case Done(ticket, end) if ticket in peer.began:
                self._ends.add(ticket, replace(end, began=peer.began[ticket]), peer)
            case _:
                raise ValueError("a message in the wrong order")

    def _drop(self, selector: selectors.BaseSelector, peer: _Peer) -> None:
        """The connection is over; the times of the results that it brought are known now."""
        selector.unregister(peer.socket)
        peer.socket.close()
        now = time.monotonic()
        for ticket, began in peer.began.items():
            self._ends.closed(ticket, peer, now - began)

    def _drop_silent(self, selector: selectors.BaseSelector) -> None:
        """Drop strangers that say nothing."""
        now = time.monotonic()
        for key in list(selector.get_map().values()):
            peer = key.data
            if peer and not peer.began and now - peer.accepted > _HELLO_SECONDS_MAX:
                self._reject("silence")
                self._drop(selector, peer)

    def _reject(self, why: str) -> None:
        self.rejected += 1
        _log.debug("a feedback connection was dropped: %s", why)


@dataclass(slots=True)
class _Entry:
    """A task's end so far, and the connection that it came by."""

    end: SliceEnd
    peer: _Peer


class _TaskEnds:
    """Reports on some batches; called by the planner and by the server's thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards what follows
        self._entries: dict[str, dict[int, _Entry | None]] = {}  # of each ticket
        self._executors: dict[str, dict[int, Executor]] = {}
        self._readings: dict[str, dict[int, Reading]] = {}

    def expect(self, ticket: TicketId) -> None:
        with self._changed:
            self._entries.setdefault(ticket.batch, {}).setdefault(ticket.number, None)

    def retain(self, batches: Collection[str]) -> None:
        with self._changed:
            for batch in [batch for batch in self._entries if batch not in batches]:
                del self._entries[batch]
                self._executors.pop(batch, None)
                self._readings.pop(batch, None)

    def of_batch(self, batch: str, wait_seconds: float) -> dict[int, SliceEnd]:
        with self._changed:
            self._changed.wait_for(lambda: self._is_complete(batch), wait_seconds)
            entries = self._entries.get(batch, {})
            return {number: entry.end for number, entry in sorted(entries.items()) if entry}

    def executors_of(self, batch: str) -> dict[int, Executor]:
        with self._changed:
            return dict(self._executors.get(batch, {}))

    def began(self, ticket: TicketId, executor: Executor) -> None:
        with self._changed:
            if ticket.number in self._entries.get(ticket.batch, {}):
                self._executors.setdefault(ticket.batch, {})[ticket.number] = executor

    def reading(self, said: Reading) -> None:
        batch, number = said.ticket
        with self._changed:
            if number in self._entries.get(batch, {}):
                self._readings.setdefault(batch, {})[number] = said

    def readings_of(self, batch: str) -> dict[int, Reading]:
        with self._changed:
            return dict(self._readings.get(batch, {}))

    def add(self, ticket: TicketId, end: SliceEnd, peer: _Peer) -> None:
        with self._changed:
            entries = self._entries.get(ticket.batch, {})
            if ticket.number not in entries:
                return  # late, or of another server's batch
            known = entries[ticket.number]
            if known is None or end.end < known.end.end:
                entries[ticket.number] = _Entry(end, peer)
                self._changed.notify_all()

    def closed(self, ticket: TicketId, peer: _Peer, seconds: float) -> None:
        with self._changed:
            entry = self._entries.get(ticket.batch, {}).get(ticket.number)
            if entry is not None and entry.peer is peer:
                entry.end = replace(entry.end, seconds=seconds)
                self._changed.notify_all()

    def _is_complete(self, batch: str) -> bool:
        entries = self._entries.get(batch, {})
        return all(entry and entry.end.seconds is not None for entry in entries.values())


def _listen(hint: tuple[str, int]) -> socket.socket:
    """A listener on the local address that packets to a host leave from."""
    family, _, _, _, address = socket.getaddrinfo(*hint, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # sends nothing
        local = probe.getsockname()[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.bind((local, 0))
        listener.listen(128)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
