"""Feedback: tasks tell the planner where they ended, over one small TCP connection each.

Law: best effort, in both directions. Whatever is lost, late, doubled, cut short or forged, no call
raises, and no result changes: a message counts only if it carries the server's HMAC and is for a
task that the server gave a ticket to; of attempts of a task that differ, the lowest end counts, so
that nothing is passed over. Cost: one thread in the planner, whatever the number of tasks; memory
for two batches, and at most 64 KiB for each of at most 1,000 connections.
"""

import contextlib
import hashlib
import hmac
import json
import logging
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from kshare.core.hashing import HASH_SPACE
from kshare.core.slice_end import SAMPLE_MAX, SliceEnd

__all__ = ["Executor", "FeedbackServer", "TaskReport", "TaskResult", "Ticket"]

_log = logging.getLogger(__name__)

_LINE_MAX = 64 << 10
_FIRST_LINE_MAX = 4 << 10  # a stranger's
_CONNECTIONS_MAX = 1_000
_HELLO_SECONDS_MAX = 10.0
_TICK_SECONDS = 1.0
_BATCHES_MAX = 2
_TASK_SECONDS_MAX = 2.0  # a task waits no longer for its planner
_UNREACHABLE_SECONDS = 60.0
_OFFSET_MAX = 2**63 - 1
_MAC_SIZE = 64  # hexadecimal
_EXECUTOR_MAX = 300  # characters
_SLOTS_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a task needs to report; goes to the tasks, pickled.

    Attributes:
        host: where the server listens.
        port: likewise; 0 if there is none, and the task then reports nothing.
        key: the server's secret.
        batch: names the batch.
        task: the number of the task within it.
        hold: whether the connection should stay open as long as the task's process lives, so that
            the server sees when the task has ended, and not only its reader.
    """

    host: str
    port: int
    key: bytes = field(repr=False)
    batch: str
    task: int
    hold: bool = False


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task told.

    Attributes:
        end: the offset where its reading ended.
        records: how many it delivered.
        sample: key hashes of evenly spaced ones, ascending.
        seconds: by the server's clock, from the task's first message to the end of its connection;
            None if that is still open.
        held: whether ``seconds`` are those of the task, not only of its reader.
        began: when its first message came, by this machine's monotonic clock.
    """

    end: int
    records: int
    sample: tuple[int, ...]
    seconds: float | None
    held: bool
    began: float | None = None


class Executor(NamedTuple):
    """Where a task runs.

    Attributes:
        name: unique among the executors of a query.
        slots: how many tasks it runs at once; 0 if that is not known.
    """

    name: str
    slots: int


def _seal(key: bytes, message: Mapping[str, Any]) -> bytes:
    """A message as a line: its HMAC-SHA256, a space, JSON."""
    body = json.dumps(message, separators=(",", ":"), sort_keys=True).encode()
    return hmac.new(key, body, hashlib.sha256).hexdigest().encode() + b" " + body + b"\n"


def _unseal(key: bytes, line: bytes) -> dict[str, Any]:
    """The message of a line without its end.

    Raises:
        ValueError: it is none, or not from somebody who has the key.
    """
    mac, space, body = line[:_MAC_SIZE], line[_MAC_SIZE : _MAC_SIZE + 1], line[_MAC_SIZE + 1 :]
    expected = hmac.new(key, body, hashlib.sha256).hexdigest().encode()
    if space != b" " or not hmac.compare_digest(mac, expected):
        raise ValueError("not sealed with this server's key")
    message = json.loads(body)
    if not isinstance(message, dict):
        raise ValueError("not an object")  # noqa: TRY004 - one kind of fault for the caller
    return message


def _integer(message: Mapping[str, Any], name: str, end: int) -> int:
    value = message.get(name)
    if type(value) is not int or not 0 <= value < end:
        raise ValueError(f"{name!r} is not in range")
    return value


def _end_told(message: Mapping[str, Any]) -> tuple[SliceEnd, bool]:
    sample = message.get("sample")
    if not isinstance(sample, list) or len(sample) > SAMPLE_MAX:
        raise ValueError("'sample' is no list, or too long")
    if any(type(hashed) is not int or not 0 <= hashed < HASH_SPACE for hashed in sample):
        raise ValueError("'sample' holds what is no key hash")
    held = message.get("held")
    if not isinstance(held, bool):
        raise ValueError("'held' is neither true nor false")  # noqa: TRY004 - as above
    records = _integer(message, "records", _OFFSET_MAX)
    return SliceEnd(_integer(message, "end", _OFFSET_MAX), records, tuple(sorted(sample))), held


# -- the planner's side ---------------------------------------------------------------------------


def _executor_told(message: Mapping[str, Any]) -> Executor | None:
    name = message.get("executor")
    if name is None:
        return None
    if not isinstance(name, str) or not 0 < len(name) <= _EXECUTOR_MAX:
        raise ValueError("'executor' is no name")
    return Executor(name, _integer(message, "slots", _SLOTS_MAX))


class _Place(NamedTuple):
    """A task of a batch."""

    batch: str
    task: int


@dataclass(slots=True)
class _Peer:
    """One connection."""

    socket: socket.socket
    accepted: float
    data: bytearray = field(default_factory=bytearray)
    place: _Place | None = None  # from its hello on
    hello: float = 0.0
    told: bool = False


@dataclass(slots=True)
class _Entry:
    """A task's result so far, and the connection that it came by."""

    result: TaskResult
    peer: _Peer


class FeedbackServer:
    """Listens for the reports of tasks, in a thread of its own from :meth:`start` on.

    Args:
        host_hint: a host and port (a Kafka broker's) that the tasks' machines are reached by; the
            server listens on this machine's address in that network.
    """

    def __init__(self, host_hint: tuple[str, int]) -> None:
        self._hint = host_hint
        self._key = secrets.token_bytes(32)
        self._address = ("", 0)
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._wake: tuple[socket.socket, socket.socket] | None = None
        self._closed = False
        self._changed = threading.Condition()  # guards what follows
        self._batches: dict[str, dict[int, _Entry | None]] = {}  # of each ticket; oldest first
        self._executors: dict[str, dict[int, Executor]] = {}  # of the same batches
        self._rejected = 0

    def start(self) -> bool:
        """Listen, unless that has begun; whether it has. Never raises: feedback is best effort."""
        if self._listener is not None or self._closed:
            return self._listener is not None
        try:
            self._listener = _listen(self._hint)
            self._wake = socket.socketpair()
        except OSError as error:
            _log.warning(
                "no feedback from tasks, the planner will look for their ends in Kafka: cannot "
                "listen on this machine's address towards %s:%d: %s",
                *self._hint,
                error,
            )
            if self._listener is not None:
                self._listener.close()
            self._listener, self._closed = None, True
            return False
        self._address = self._listener.getsockname()[:2]
        self._thread = threading.Thread(target=self._run, name="kshare-feedback", daemon=True)
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
        self._thread = self._listener = None

    # -- tickets and results ----------------------------------------------------------------

    def ticket(self, batch: str, task: int, *, hold: bool) -> Ticket:
        """A ticket for a task; the reports of all but the last two batches are forgotten."""
        with self._changed:
            tasks = self._batches.setdefault(batch, {})
            tasks.setdefault(task, None)
            while len(self._batches) > _BATCHES_MAX:
                forgotten = next(iter(self._batches))
                self._batches.pop(forgotten)
                self._executors.pop(forgotten, None)
        host, port = self._address
        return Ticket(host, port, self._key, batch, task, hold)

    def reports(self, batch: str, *, wait_seconds: float = 0.0) -> Mapping[int, TaskResult]:
        """What the tasks of a batch told, by their numbers; only of those that were done.

        Args:
            batch: as for :meth:`ticket`.
            wait_seconds: wait at most so long for tasks that have not told all yet.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._complete(batch), wait_seconds)
            tasks = self._batches.get(batch, {})
            return {task: entry.result for task, entry in sorted(tasks.items()) if entry}

    def executors(self, batch: str) -> dict[int, Executor]:
        """Where the tasks of a batch began, by their numbers; only of those that told."""
        with self._changed:
            return dict(self._executors.get(batch, {}))

    def forget(self, before: str) -> None:
        """Forget the batches older than one."""
        with self._changed:
            while before in self._batches and (oldest := next(iter(self._batches))) != before:
                self._batches.pop(oldest)
                self._executors.pop(oldest, None)

    @property
    def rejected(self) -> int:
        """How many connections were dropped for a line that could not be believed."""
        return self._rejected

    def _complete(self, batch: str) -> bool:
        tasks = self._batches.get(batch, {})
        return all(entry and entry.result.seconds is not None for entry in tasks.values())

    # -- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        assert self._listener is not None
        assert self._wake is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._wake[0], selectors.EVENT_READ)
            try:
                while not self._closed:
                    for key, _ in selector.select(_TICK_SECONDS):
                        if key.fileobj is self._listener:
                            self._accept(selector)
                        elif key.data is not None:
                            self._serve(selector, key.data)
                    self._expire(selector)
            except Exception:
                _log.exception("feedback from tasks has ended; the planner goes on without")
            finally:
                for key in list(selector.get_map().values()):
                    with contextlib.suppress(OSError):
                        key.fileobj.close()  # type: ignore[union-attr]

    def _accept(self, selector: selectors.BaseSelector) -> None:
        assert self._listener is not None
        try:
            accepted, _ = self._listener.accept()
        except OSError:
            return
        if len(selector.get_map()) - 2 >= _CONNECTIONS_MAX:
            accepted.close()
            self._reject("too many connections")
            return
        accepted.setblocking(False)
        with contextlib.suppress(OSError):
            # A machine that is gone says nothing: notice it some day.
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        peer = _Peer(accepted, time.monotonic())
        selector.register(accepted, selectors.EVENT_READ, peer)

    def _serve(self, selector: selectors.BaseSelector, peer: _Peer) -> None:
        """Take what a connection brings, and drop it if that is not to be believed."""
        try:
            received = peer.socket.recv(_LINE_MAX)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._ended(selector, peer)
            return
        peer.data += received
        try:
            while (at := peer.data.find(b"\n")) >= 0:
                line = bytes(peer.data[:at])
                del peer.data[: at + 1]
                self._take(peer, _unseal(self._key, line))
            if len(peer.data) > (_LINE_MAX if peer.place else _FIRST_LINE_MAX):
                raise ValueError("a line without end")
        except (ValueError, RecursionError) as error:
            self._reject(str(error))
            self._ended(selector, peer)

    def _take(self, peer: _Peer, message: Mapping[str, Any]) -> None:
        """Act on a message. ValueError: it is not what it should be."""
        batch, task = message.get("batch"), _integer(message, "task", _OFFSET_MAX)
        if not isinstance(batch, str):
            raise ValueError("'batch' is no text")  # noqa: TRY004 - one kind of fault
        place = _Place(batch, task)
        kind = message.get("kind")
        if kind == "hello" and peer.place is None:
            executor = _executor_told(message)
            peer.place, peer.hello = place, time.monotonic()
            with self._changed:
                if executor is not None and task in self._batches.get(batch, {}):
                    self._executors.setdefault(batch, {})[task] = executor
        elif kind == "done" and peer.place == place:
            self._done(peer, place, *_end_told(message))
        else:
            raise ValueError("a message out of place")

    def _done(self, peer: _Peer, place: _Place, told: SliceEnd, held: bool) -> None:
        with self._changed:
            tasks = self._batches.get(place.batch, {})
            if place.task not in tasks:
                return  # late, or of another server's batch
            known = tasks[place.task]
            if known is None or told.end < known.result.end:
                result = TaskResult(told.end, told.records, told.sample, None, held, peer.hello)
                tasks[place.task] = _Entry(result, peer)
                self._changed.notify_all()

    def _ended(self, selector: selectors.BaseSelector, peer: _Peer) -> None:
        """The connection is over; if it told a result, its time is known now."""
        selector.unregister(peer.socket)
        peer.socket.close()
        if peer.place is None:
            return
        seconds = time.monotonic() - peer.hello
        with self._changed:
            entry = self._batches.get(peer.place.batch, {}).get(peer.place.task)
            if entry is not None and entry.peer is peer:
                entry.result = replace(entry.result, seconds=seconds)
                self._changed.notify_all()

    def _expire(self, selector: selectors.BaseSelector) -> None:
        """Drop strangers that say nothing."""
        now = time.monotonic()
        for key in list(selector.get_map().values()):
            peer = key.data
            if peer and peer.place is None and now - peer.accepted > _HELLO_SECONDS_MAX:
                self._reject("silence")
                self._ended(selector, peer)

    def _reject(self, why: str) -> None:
        self._rejected += 1
        _log.debug("a feedback connection was dropped: %s", why)


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


# -- the task's side ------------------------------------------------------------------------------

# Of this process: connections that are held until it ends, and planners that were not reached.
_held: list[socket.socket] = []
_unreachable: dict[tuple[str, int], float] = {}


class TaskReport:
    """A task's connection to its planner.

    Law: no call raises or waits longer than 2 s, and a planner that was not reached is not tried
    again by this process for a minute.
    """

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._socket: socket.socket | None = None

    @property
    def connected(self) -> bool:
        """Whether there is a planner that listens, as far as is known."""
        return self._socket is not None

    def begin(self, executor: Executor | None = None) -> None:
        """Connect, and say that the task has begun, and where."""
        address = (self._ticket.host, self._ticket.port)
        if not self._ticket.port or time.monotonic() < _unreachable.get(address, 0.0):
            return
        try:
            self._socket = socket.create_connection(address, timeout=_TASK_SECONDS_MAX)
        except OSError as error:
            _unreachable[address] = time.monotonic() + _UNREACHABLE_SECONDS
            _log.info("the planner at %s:%d takes no reports: %s", *address, error)
            return
        where = {} if executor is None else {"executor": executor.name, "slots": executor.slots}
        self._send({"kind": "hello", **where})

    def done(self, end: SliceEnd, *, held: bool) -> None:
        """Say where reading ended.

        Args:
            end: where.
            held: this process ends with the task, and the connection with it.
        """
        sample = list(end.sample)
        fields = {"end": end.end, "records": end.records, "sample": sample, "held": held}
        self._send({"kind": "done", **fields})
        if held and self._socket is not None:
            _held.append(self._socket)
            self._socket = None
        self.close()

    def close(self) -> None:
        """Close the connection, unless it is held. May be called again."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None

    def _send(self, message: Mapping[str, Any]) -> None:
        if self._socket is None:
            return
        place = {"batch": self._ticket.batch, "task": self._ticket.task}
        try:
            self._socket.sendall(_seal(self._ticket.key, {**message, **place}))
        except OSError as error:
            _log.debug("the planner does not take reports any more: %s", error)
            self.close()
