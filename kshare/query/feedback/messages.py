"""Messages of tasks to the planner, signed, over one small TCP connection each.

A message is a line: its HMAC-SHA256 in hexadecimal, a space, JSON. It counts only if it was signed
with the key of the ticket, and if every field is of the right type and in range: workers may run
another version of kshare.

A task's report never raises, and no call waits longer than 2 s. A planner that was not reached is
not tried again by this process for a minute.
"""

import contextlib
import hashlib
import hmac
import json
import logging
import socket
import time
from binascii import a2b_base64, b2a_base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from kshare.core.bounded_json import JsonBounds, read_object
from kshare.core.hashing import HASH_SPACE
from kshare.core.live import Latency
from kshare.core.slice_end import HOT_KEYS_MAX, KEY_BYTES_MAX, SAMPLE_MAX, HotKey, SliceEnd
from kshare.core.tasks import Ticket, TicketId

__all__ = [
    "LIVE_RANGES_MAX",
    "Done",
    "Executor",
    "Hello",
    "Message",
    "Reading",
    "TaskReport",
    "decode",
    "encode",
    "seal",
]

LIVE_RANGES_MAX = 1_000
"""Maximum number of ranges of a task that says where it is: these fit into a line."""

_OFFSET_MAX = 2**63 - 1
_MAC_SIZE = 64  # hexadecimal
_BOUNDS = JsonBounds(size=64 << 10, depth=4, containers=4 << 10)
_EXECUTOR_MAX = 300  # characters
_SLOTS_MAX = 1 << 16
_log = logging.getLogger(__name__)
_SECONDS_MAX = 2.0
_UNREACHABLE_SECONDS = 60.0
# Of this process: connections that stay open until it ends, and planners that were not reached.
_held: list[socket.socket] = []
_unreachable: dict[tuple[str, int], float] = {}


class Executor(NamedTuple):
    """The executor of a task.

    Attributes:
        name: Unique among the executors of a query.
        slots: Number of tasks that it runs at once; 0 if that is not known.
    """

    name: str
    slots: int


@dataclass(frozen=True, slots=True)
class Hello:
    """A task has begun.

    Attributes:
        ticket: The task's ticket.
        executor: Where it runs; None if that is not known.
    """

    ticket: TicketId
    executor: Executor | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """A task has read its slice.

    Attributes:
        ticket: The task's ticket.
        end: Where reading ended; without the times, which the planner sees.
    """

    ticket: TicketId
    end: SliceEnd


@dataclass(frozen=True, slots=True)
class Reading:
    """A task of an open batch reads on.

    Attributes:
        ticket: The task's ticket.
        positions: Below which offset all is handed over, for each of its ranges.
        ends: Where the log of each range's partition ended; 0 if that is not known.
        latency: That of all records that it has handed over.
    """

    ticket: TicketId
    positions: tuple[int, ...]
    ends: tuple[int, ...]
    latency: Latency


Message: TypeAlias = Hello | Done | Reading


def encode(key: bytes, message: Message) -> bytes:
    """A message as a signed line."""
    fields: dict[str, Any] = {"batch": message.ticket.batch, "task": message.ticket.number}
    match message:
        case Hello(executor=None):
            fields |= {"kind": "hello"}
        case Hello(executor=Executor(name, slots)):
            fields |= {"kind": "hello", "executor": name, "slots": slots}
        case Done(end=end):
            fields |= {"kind": "done", "end": end.end, "records": end.records, "held": end.held}
            fields["sample"] = list(end.sample)
            if end.hot_keys:
                fields["keys"] = [
                    [b2a_base64(hot.key, newline=False).decode(), hot.share] for hot in end.hot_keys
                ]
        case Reading(positions=positions, ends=ends, latency=latency):
            fields |= {"kind": "reading", "positions": positions, "ends": ends}
            fields["latency"] = latency.counts
    return seal(key, fields)


def decode(key: bytes, line: bytes) -> Message:
    """Read a signed line, without its line feed.

    Raises:
        ValueError: It is no message, or was not signed with the key.
    """
    fields = _unseal(key, line)
    batch, number = fields.get("batch"), _integer(fields, "task", _OFFSET_MAX)
    if not isinstance(batch, str):
        raise ValueError("'batch' is no text")  # noqa: TRY004 - one kind of fault for the caller
    ticket = TicketId(batch, number)
    match fields.get("kind"):
        case "hello":
            return Hello(ticket, _executor(fields))
        case "done":
            return _done(ticket, fields)
        case "reading":
            positions, ends = (_integers(fields, name) for name in ("positions", "ends"))
            if not len(positions) == len(ends) <= LIVE_RANGES_MAX:
                raise ValueError("'positions' and 'ends' are not of the same ranges, or too many")
            return Reading(ticket, positions, ends, Latency(_integers(fields, "latency")))
        case kind:
            raise ValueError(f"no message of kind {kind!r}")


def seal(key: bytes, fields: Mapping[str, Any]) -> bytes:
    """Any fields as a signed line."""
    body = json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()
    return hmac.new(key, body, hashlib.sha256).hexdigest().encode() + b" " + body + b"\n"


def _unseal(key: bytes, line: bytes) -> dict[str, Any]:
    mac, space, body = line[:_MAC_SIZE], line[_MAC_SIZE : _MAC_SIZE + 1], line[_MAC_SIZE + 1 :]
    expected = hmac.new(key, body, hashlib.sha256).hexdigest().encode()
    if space != b" " or not hmac.compare_digest(mac, expected):
        raise ValueError("not signed with this server's key")
    return read_object(body, _BOUNDS)


def _done(ticket: TicketId, fields: Mapping[str, Any]) -> Done:
    sample, held = fields.get("sample"), fields.get("held")
    if not isinstance(sample, list) or len(sample) > SAMPLE_MAX:
        raise ValueError("'sample' is no list, or too long")
    if any(type(hashed) is not int or not 0 <= hashed < HASH_SPACE for hashed in sample):
        raise ValueError("'sample' holds what is no key hash")
    if not isinstance(held, bool):
        raise ValueError("'held' is neither true nor false")  # noqa: TRY004 - as above
    records = _integer(fields, "records", _OFFSET_MAX)
    end = SliceEnd(
        _integer(fields, "end", _OFFSET_MAX),
        records,
        tuple(sorted(sample)),
        held=held,
        hot_keys=_hot_keys(fields.get("keys", [])),
    )
    return Done(ticket, end)


def _hot_keys(pairs: Any) -> tuple[HotKey, ...]:
    if not isinstance(pairs, list) or len(pairs) > HOT_KEYS_MAX:
        raise ValueError("'keys' is no list, or too long")
    hot = []
    for pair in pairs:
        if not isinstance(pair, list) or [type(part) for part in pair] != [str, float]:
            raise ValueError("'keys' holds what is no key and share")
        key, share = a2b_base64(pair[0], strict_mode=True), pair[1]
        if len(key) > KEY_BYTES_MAX or not 0 < share <= 1:
            raise ValueError("'keys' holds a key that is too long, or no share")
        hot.append(HotKey(key, share))
    return tuple(hot)


def _executor(fields: Mapping[str, Any]) -> Executor | None:
    name = fields.get("executor")
    if name is None:
        return None
    if not isinstance(name, str) or not 0 < len(name) <= _EXECUTOR_MAX:
        raise ValueError("'executor' is no name")
    return Executor(name, _integer(fields, "slots", _SLOTS_MAX))


def _integers(fields: Mapping[str, Any], name: str) -> tuple[int, ...]:
    values = fields.get(name)
    if not isinstance(values, list) or not all(
        type(value) is int and 0 <= value < _OFFSET_MAX for value in values
    ):
        raise ValueError(f"{name!r} is no list of numbers in range")
    return tuple(values)


def _integer(fields: Mapping[str, Any], name: str, end: int) -> int:
    value = fields.get(name)
    if type(value) is not int or not 0 <= value < end:
        raise ValueError(f"{name!r} is not in range")
    return value


class TaskReport:
    """A task's report on its slices, over one connection.

    Args:
        tickets: The planner's address, and which slices these are: one or more.
    """

    def __init__(self, *tickets: Ticket) -> None:
        self._tickets = tickets
        self._left = {ticket.id for ticket in tickets}
        self._socket: socket.socket | None = None
        self._is_held = False

    @property
    def connected(self) -> bool:
        """True if a planner listens, as far as is known."""
        return self._socket is not None

    def begin(self, executor: Executor | None = None) -> None:
        """Connect, and say that the task has begun.

        Args:
            executor: Where the task runs; None if that is not known.
        """
        first = self._tickets[0]
        address = (first.host, first.port)
        if not first.port or time.monotonic() < _unreachable.get(address, 0.0):
            return
        try:
            self._socket = socket.create_connection(address, timeout=_SECONDS_MAX)
        except OSError as error:
            _unreachable[address] = time.monotonic() + _UNREACHABLE_SECONDS
            _log.info("the planner at %s:%d takes no reports: %s", *address, error)
            return
        self._send(*(Hello(ticket.id, executor) for ticket in self._tickets))

    def reading(
        self, ticket: Ticket, positions: Sequence[int], ends: Sequence[int], latency: Latency
    ) -> None:
        """Say where a task of an open batch is: see :class:`Reading`."""
        if len(positions) <= LIVE_RANGES_MAX:
            self._send(Reading(ticket.id, tuple(positions), tuple(ends), latency))

    def done(self, ticket: Ticket, end: SliceEnd, *, held: bool) -> None:
        """Say where reading ended; after all slices, close the connection unless it is held.

        Args:
            ticket: Of which slice.
            end: Where reading ended.
            held: Keep the connection open: this process ends with the task.
        """
        self._is_held |= held
        self._send(Done(ticket.id, replace(end, held=held)))
        self._left.discard(ticket.id)
        if not self._left:
            self.close()

    def close(self) -> None:
        """Close the connection, unless it is held. May be called again."""
        if self._socket is not None:
            if self._is_held:
                _held.append(self._socket)
            else:
                with contextlib.suppress(OSError):
                    self._socket.close()
            self._socket = None

    def _send(self, *messages: Message) -> None:
        if self._socket is None:
            return
        key = self._tickets[0].key
        try:
            self._socket.sendall(b"".join(encode(key, message) for message in messages))
        except OSError as error:
            _log.debug("the planner takes no more reports: %s", error)
            self._is_held = False
            self.close()
