"""Keeps attempts, due times, and keys that go to dead letters, through kill -9.

Processors and ``KeySharedConsumer.release`` write it.

It lies in the group's log, beside its individual commits. A record's key is
``[1, {"kshare.processing of group": group}, kind, topic, partition, detail]`` as JSON: the group is
no text, so whatever reads the log passes over it, earlier versions too. By kind:

- ``attempt``: detail is the offset of a record that waits; the value has ``failures``,
  ``since_ms``, ``due_ms`` and, of released ones, the ``hash`` of its key. A tombstone says that its
  outcome is committed, or that it is parked.
- ``sequence``: detail is the key in hexadecimal; the value has the first ``offset`` that went to
  the dead-letter topic, and why (``error``, ``text``, ``failures``, ``since_ms``); those after it
  follow, those before it do not. A tombstone releases the key. With ``release``, a record of the
  key that bears it as a header ends the sequence; then ``until`` has that record's offset: those
  between are put back behind it.

Guarantees: a mark of a sequence is on the brokers before its first dead letter is. Attempts are
written behind: a crash may forget the last one, never add one.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from kshare.core.bounded_json import (
    DAMAGE,
    JsonBounds,
    count_of,
    read_json,
    read_object,
    text_of,
)
from kshare.core.progress import TopicPartition
from kshare.errors import KshareError, UnknownTopicError
from kshare.kafka.compacted_topic import CompactedTopic
from kshare.kafka.topic_table import json_bytes

__all__ = [
    "YEAR_10000_MS",
    "Attempted",
    "Attempts",
    "Keyed",
    "Reason",
    "Remembered",
    "RetryLog",
    "Sequenced",
]

_log = logging.getLogger("kshare.processing")

_MARK: Final = "kshare.processing of group"
_ROWS_MAX: Final = 10_000  # of one write; librdkafka queues 100,000
_REASON_MAX: Final = 1_000
_BOUNDS: Final = JsonBounds(size=2 << 20, depth=4, containers=1 << 16)
_RECORD_MAX: Final = 2 << 20  # a key in hexadecimal of 1 MB, which is what brokers take
YEAR_10000_MS: Final = 253_402_300_800_000
"""Milliseconds from 1970 to the year 10000: a time is before it."""
_CLOSE_SECONDS: Final = 30.0
_Row: TypeAlias = tuple[bytes, bytes | None]
_GRACE_SECONDS: Final = 0.5
"""Time for the last write to say why it has failed."""
_LOST: Final = "a restart does not know of them, and may try those records more often, and sooner"


class Attempted(Protocol):
    """A record that was tried: :class:`~kshare.processing.Record`.

    Attributes:
        offset: Its offset.
        failures: How often it was tried and failed.
        since: When it failed first, in seconds since 1970; None if it has not.
        due: From when on it may be tried, in seconds since 1970.
    """

    offset: int
    failures: int
    since: float | None
    due: float

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition."""


class Attempts(NamedTuple):
    """The failed attempts of a record, as they are kept through a restart.

    Attributes:
        failures: As in :class:`Attempted`.
        since: When it failed first, in seconds since 1970.
        due: As in :class:`Attempted`.
        point: Its key hash; None if it is not known.
    """

    failures: int
    since: float
    due: float
    point: int | None = None


class Reason(NamedTuple):
    """An error, as it is kept.

    Attributes:
        name: Module and name of its class; empty if there is none.
        text: Its text.
    """

    name: str = ""
    text: str = ""


class Sequenced(NamedTuple):
    """The record that began a sequence.

    Attributes:
        offset: Its offset.
        reason: Why it failed.
        failures: How often it was tried and failed.
        since: When it failed first, in seconds since 1970; None if it was not kept.
        release: What a later record bears that ends the sequence; empty if nothing does.
        until: Offset of the record that has ended it; None if none has.
    """

    offset: int
    reason: Reason = Reason()
    failures: int = 0
    since: float | None = None
    release: str = ""
    until: int | None = None


class Keyed(Protocol):
    """A record with a key."""

    offset: int
    raw_key: bytes | None
    failures: int
    since: float | None

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition."""


@dataclass(slots=True)
class Remembered:
    """Attempts and sequences of a group that were kept through a restart.

    Attributes:
        attempts: Those of records, by partition and offset.
        sequences: The records that began sequences, by partition and key: they and those behind
            them go to the dead-letter topic, unless the sequence has ended.
    """

    attempts: dict[tuple[TopicPartition, int], Attempts] = field(default_factory=dict)
    sequences: dict[tuple[TopicPartition, bytes], Sequenced] = field(default_factory=dict)

    def recall(self, record: Attempted) -> None:
        """Tell a record what is known of it."""
        known = self.attempts.get((record.topic_partition, record.offset))
        if known is not None:
            record.failures, record.since, record.due = known[:3]


class RetryLog:
    """Reads and writes what is kept. Writing behind has a thread; other methods may be in any.

    Args:
        table: The group's partition of the log.
        group: Id of the group.
        make: Makes the log's topic, for the first record in a group that keeps nothing else there;
            None: it is there, or nothing is kept.
    """

    def __init__(
        self, table: CompactedTopic, group: str, make: Callable[[], object] | None = None
    ) -> None:
        self._table = table
        self._group = group
        self._make = make
        # Of this group alone: a record of others cannot do any harm.
        self._begins = json_bytes([1, {_MARK: group}])[:-1] + b","
        self._known = Remembered()
        self._lock = threading.Lock()
        self._queue: SimpleQueue[_Row | threading.Event | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()  # not the other one: a read takes long
        self._until = float("inf")  # the end of the last write
        self._is_cut = False  # that end came before the last rows were written

    def read(self) -> Remembered:
        """What is kept now; none of it if the log does not exist yet.

        Raises:
            KafkaError: The log cannot be read.
        """
        with self._lock:
            changes = self._table.read()
            if changes.restarted:
                self._known = Remembered()
            for row in changes.rows:
                self._apply(row.key or b"", row.value)
            return Remembered(dict(self._known.attempts), dict(self._known.sequences))

    def _apply(self, key: bytes, value: bytes | None) -> None:
        """Take a record; one of this group that cannot be read costs only what it speaks of."""
        if not key.startswith(self._begins):
            return
        try:
            if len(key) + len(value or b"") > _RECORD_MAX:
                raise ValueError(f"{len(key) + len(value or b'')} bytes")
            _, _, kind, topic, number, detail = read_json(key, _BOUNDS)
            fields = None if value is None else read_object(value, _BOUNDS)
            partition = TopicPartition(text_of(topic), count_of(number, 2**31 - 1))
            self._keep(kind, partition, detail, fields)
        except DAMAGE as fault:
            _log.warning(
                "%.200r is no record of a processor, and is passed over: %.200r", key, fault
            )

    def _keep(
        self, kind: str, partition: TopicPartition, detail: Any, fields: Mapping[str, Any] | None
    ) -> None:
        """Keep what a record says, by its fields; None is a tombstone."""
        if kind == "sequence":
            entry = partition, bytes.fromhex(detail)
            if fields is None:
                self._known.sequences.pop(entry, None)
            else:
                self._known.sequences[entry] = _sequenced(fields)
        elif kind == "attempt":
            if fields is None:
                self._known.attempts.pop((partition, int(detail)), None)
            else:
                self._known.attempts[partition, int(detail)] = _attempts(fields)

    # -- writing ----------------------------------------------------------------------------

    def begin_sequence(self, record: Keyed, reason: Reason) -> None:
        """This and later records of a key go to the dead letters; return when brokers have it.

        Args:
            record: The record that has failed.
            reason: Why.

        Raises:
            KshareError: They have not.
            ValueError: The record has no key.
        """
        if record.raw_key is None:
            raise ValueError("a record without a key has no sequence")
        mark = Sequenced(record.offset, reason, record.failures, record.since)
        self._mark(record.topic_partition, record.raw_key, mark)

    def offer_release(
        self, partition: TopicPartition, key: bytes, mark: Sequenced, release: str
    ) -> None:
        """A later record of a key will end its sequence: the first one that bears ``release``.

        Raises:
            KshareError: It is not written.
        """
        self._mark(partition, key, mark._replace(release=release))

    def end_sequence_at(
        self, partition: TopicPartition, key: bytes, mark: Sequenced, offset: int
    ) -> None:
        """A record has ended a key's sequence: from its offset on, they are handled again.

        Raises:
            KshareError: It is not written.
        """
        self._mark(partition, key, mark._replace(until=offset))

    def _mark(self, partition: TopicPartition, key: bytes, mark: Sequenced) -> None:
        fields: dict[str, Any] = {
            "offset": mark.offset,
            "error": mark.reason.name[:_REASON_MAX],
            "text": mark.reason.text[:_REASON_MAX],
            "failures": mark.failures,
        }
        if mark.since is not None:
            fields["since_ms"] = round(mark.since * 1000)
        if mark.release:
            fields["release"] = mark.release
        if mark.until is not None:
            fields["until"] = mark.until
        self._write([(self._key("sequence", partition, key.hex()), json_bytes(fields))])

    def end_sequence(self, partition: TopicPartition, key: bytes) -> None:
        """Let a key's records be handled again.

        Raises:
            KshareError: It is not written.
        """
        self._write([(self._key("sequence", partition, key.hex()), None)])

    def remember(self, record: Attempted, point: int | None = None) -> None:
        """Keep failures and due time of a record; written behind.

        Args:
            record: The record.
            point: Its key hash, so that others can tell whose record it is.
        """
        since = record.due if record.since is None else record.since
        fields = {
            "failures": record.failures,
            "since_ms": round(since * 1000),
            "due_ms": round(record.due * 1000),
        }
        self._behind(record, json_bytes(fields if point is None else {**fields, "hash": point}))

    def forget(self, record: Attempted) -> None:
        """A record comes no more, or has all its attempts again; written behind."""
        self._behind(record, None)

    def flush(self, seconds: float) -> None:
        """Wait until what was to be written behind is written, or a warning says why it is not.

        Args:
            seconds: Maximum time; a warning says that it was not enough.
        """
        with self._starting:
            if self._thread is None:
                return
        written = threading.Event()
        self._queue.put(written)
        if not written.wait(seconds):
            _log.warning(
                "attempts were not written within %g s: whoever gets these records "
                "may try them more often, and sooner",
                seconds,
            )

    def close(self, seconds: float = _CLOSE_SECONDS) -> None:
        """Write what is still to be written, and close the connections.

        Args:
            seconds: Maximum time. A write that is under way then ends in the background.
        """
        with self._starting:
            thread = self._thread
        if thread is None:
            self._table.close()
            return
        self._until = time.monotonic() + seconds
        self._table.shorten_timeout(seconds)
        self._queue.put(None)
        thread.join(seconds + _GRACE_SECONDS)
        if thread.is_alive() or self._is_cut:
            _log.warning("the last attempts were not written within %g s: %s", seconds, _LOST)

    def _behind(self, record: Attempted, value: bytes | None) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kshare memory", daemon=True)
                self._thread.start()
        key = self._key("attempt", record.topic_partition, record.offset)
        self._queue.put((key, value))

    def _run(self) -> None:
        with closing(self._table):
            self._write_behind()

    def _write_behind(self) -> None:
        is_open = True
        while is_open:
            rows, waiting = dict[bytes, bytes | None](), list[threading.Event]()
            while is_open and ((not rows and not waiting) or not self._queue.empty()):
                entry = self._queue.get()
                if entry is None:
                    is_open = False
                elif isinstance(entry, threading.Event):
                    waiting.append(entry)
                else:
                    rows[entry[0]] = entry[1]
                if len(rows) >= _ROWS_MAX:
                    break
            seconds = self._until - time.monotonic()
            if seconds <= 0:  # who closes says it
                self._is_cut = bool(rows) or is_open
                return
            try:
                self._write(list(rows.items()), seconds)
            except KshareError as error:
                _log.warning("attempts were not written: %s: %s", error, _LOST)
            for written in waiting:
                written.set()

    def _write(self, rows: list[tuple[bytes, bytes | None]], seconds: float = float("inf")) -> None:
        if rows:
            (partition,) = self._partitions()
            self._table.write(rows, partition.partition, seconds)

    def _partitions(self) -> tuple[TopicPartition, ...]:
        try:
            return self._table.partitions()
        except UnknownTopicError:
            if self._make is None:
                raise
        self._make()
        self._table.await_topic()
        return self._table.partitions()

    def _key(self, kind: str, partition: TopicPartition, detail: str | int) -> bytes:
        return json_bytes([1, {_MARK: self._group}, kind, *partition, detail])


def _sequenced(fields: Mapping[str, Any]) -> Sequenced:
    """A mark; one of an earlier version has the offset alone."""
    return Sequenced(
        _count(fields["offset"]),
        Reason(str(fields.get("error", "")), str(fields.get("text", ""))),
        _count(fields.get("failures", 0)),
        None if fields.get("since_ms") is None else _seconds(fields["since_ms"]),
        str(fields.get("release", "")),
        None if fields.get("until") is None else _count(fields["until"]),
    )


def _attempts(fields: Mapping[str, Any]) -> Attempts:
    point = fields.get("hash")
    return Attempts(
        _count(fields["failures"]),
        _seconds(fields["since_ms"]),
        _seconds(fields["due_ms"]),
        None if point is None else _count(point),
    )


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r} is no count")
    return value


def _seconds(milliseconds: Any) -> float:
    """Seconds since 1970, before the year 10000, of milliseconds."""
    if _count(milliseconds) >= YEAR_10000_MS:
        raise ValueError(f"{milliseconds} ms is no time")
    return _count(milliseconds) / 1000
