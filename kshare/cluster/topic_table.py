"""A table in a compacted topic, of JSON objects of texts: set by operators, followed by queries.

Guarantees: equal keys have equal bytes, or compaction would keep both. A record that cannot be read
is passed over, with a warning. What a query goes by is the table as it was at some moment of the
last seconds, or as last known if it cannot be read. A query that has never read it does not start
without it, unless it is not authorized to read it; a query that has read it never fails because of
it.

::

    not started --- read ---> running; every EVERY_SECONDS: read ---> the new table
      |  |                       ^                            error --> the last one, a warning
      |  +--- not authorized ----+
      +--- any other error, for default.api.timeout.ms: read again, then raise
"""

import json
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sized
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from kshare.cluster.compacted_topic import CompactedTopic
from kshare.errors import AuthenticationError, AuthorizationError, KafkaError
from kshare.options import KafkaConfig
from kshare.wire.protocol.retry import Clock, RetryDeadline

__all__ = [
    "EVERY_SECONDS",
    "Table",
    "TopicTable",
    "TopicWatch",
    "WatchTexts",
    "json_bytes",
    "texts",
]

_log = logging.getLogger(__name__)

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")
EVERY_SECONDS: Final = 2.0
"""Maximum age of the table that a running query goes by."""

RowsT = TypeVar("RowsT", bound=Sized)
Rows_co = TypeVar("Rows_co", covariant=True)


class TopicTable(Generic[KeyT, ValueT]):
    """The rows of a compacted topic.

    Every method raises a :class:`~kshare.errors.KafkaError` if the cluster does not answer within
    ``default.api.timeout.ms``, or refuses.

    Args:
        topic: The topic.
        decode_key: Reads a key; raises ``ValueError``.
        decode_value: Reads a value; raises ``ValueError``.
        what: What a record is, for warnings: ``"a parked key"``.
        loss: What follows if the topic deletes old records, for warnings.
    """

    def __init__(
        self,
        topic: CompactedTopic,
        decode_key: Callable[[bytes | None], KeyT],
        decode_value: Callable[[bytes], ValueT],
        *,
        what: str,
        loss: str,
    ) -> None:
        self._topic = topic
        self._decode_key = decode_key
        self._decode_value = decode_value
        self._what = what
        self._loss = loss
        self._rows: dict[KeyT, ValueT] = {}

    def read(self) -> Mapping[KeyT, ValueT]:
        """All rows, in any order."""
        changes = self._topic.read()
        if changes.restarted:
            self._rows = {}
        for row in changes.rows:
            try:
                key = self._decode_key(row.key)
                value = None if row.value is None else self._decode_value(row.value)
            except (ValueError, RecursionError) as fault:
                _log.warning(
                    "%s, offset %d, is no record of %s: %s",
                    self._topic.name,
                    row.offset,
                    self._what,
                    fault,
                )
                continue
            self._rows.pop(key, None)
            if value is not None:
                self._rows[key] = value
        return self._rows

    def put(self, rows: Collection[tuple[bytes, bytes]]) -> None:
        """Write rows; makes the topic if need be."""
        if self._topic.exists:
            self._check_topic()
        else:
            self._topic.create()
        self._topic.write(rows)

    def delete(self, keys: Collection[bytes]) -> None:
        """Delete rows."""
        self._topic.write([(key, None) for key in keys])

    def shorten_timeout(self, seconds: float) -> None:
        """From now on, let no read wait for an answer longer than this."""
        self._topic.shorten_timeout(seconds)

    def close(self) -> None:
        """Close the connections."""
        self._topic.close()

    def _check_topic(self) -> None:
        """Warn of a topic that someone has made in another way."""
        config = self._topic.config()
        if config is not None and config.deletes_last_values:
            _log.warning(
                "%s: topic %s deletes old records. Set its cleanup.policy to compact.",
                self._loss,
                self._topic.name,
            )


def json_bytes(value: Any) -> bytes:
    """A value as JSON; the same bytes for equal ones."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def texts(data: bytes | None, *names: str) -> list[str]:
    """The texts in a JSON object by their names.

    Raises:
        ValueError: They are not there.
    """
    decoded = json.loads(data or b"")
    values = [decoded.get(name) if isinstance(decoded, dict) else None for name in names]
    if any(not isinstance(value, str) for value in values):
        raise ValueError(f"wanted a JSON object with the texts {', '.join(names)}")
    return [str(value) for value in values]


class Table(Protocol[Rows_co]):
    """The watched table."""

    def read(self) -> Rows_co:
        """The table as it is now."""

    def shorten_timeout(self, seconds: float) -> None:
        """From now on, let no read wait for an answer longer than this."""

    def close(self) -> None:
        """Close the connections."""


@dataclass(frozen=True, slots=True)
class WatchTexts:
    """Texts for a table that cannot be read; the error follows each text.

    Attributes:
        unauthorized: When the query starts, and goes on without the table.
        refused: When the query does not start.
        stale: When a running query goes on by the table last read, of ``{count}`` rows.
    """

    unauthorized: str
    refused: str
    stale: str


class TopicWatch(Generic[RowsT]):
    """A table, read again every :data:`EVERY_SECONDS`.

    Args:
        table: The table.
        empty: What it is taken for while this client is not authorized to read it.
        texts: What is said of faults.
        kafka: For how long, and at which pauses, a start is tried again.
        topic: The topic that errors name.
        look_seconds: Maximum time that a later read may take: a trigger waits for it.
        clock: Source of time.
    """

    def __init__(
        self,
        table: Table[RowsT],
        empty: RowsT,
        texts: WatchTexts,
        kafka: KafkaConfig,
        topic: str,
        *,
        look_seconds: float = 5.0,
        clock: Clock = time,
    ) -> None:
        self._table = table
        self._rows = empty
        self._texts = texts
        self._start_deadline = RetryDeadline.for_requests(kafka, clock)
        self._topic = topic
        self._look_seconds = look_seconds
        self._clock = clock
        self._next: float | None = None  # None before the first read
        self._warned = False

    def current(self) -> RowsT:
        """The table, at most :data:`EVERY_SECONDS` old or as last read.

        Raises:
            KafkaError: The table has never been read, and cannot be within
                ``default.api.timeout.ms``. The next call tries again.
        """
        if self._next is None:
            self._start()
        elif self._clock.monotonic() >= self._next:
            self._look()
        else:
            return self._rows
        # Counted from the end: reading may have taken a while.
        self._next = self._clock.monotonic() + EVERY_SECONDS
        return self._rows

    def close(self) -> None:
        """Close the connections."""
        self._table.close()

    def _start(self) -> None:
        """Read for the first time: there is nothing last known to go on with."""
        try:
            self._rows = self._read_patiently()
        except AuthorizationError as error:
            _log.warning("%s: %s", self._texts.unauthorized, error)
            self._warned = True
        # Between two batches, a table that cannot be read is not waited for.
        self._table.shorten_timeout(self._look_seconds)

    def _read_patiently(self) -> RowsT:
        deadline = self._start_deadline
        deadline.reset()
        deadline.start()
        while True:
            try:
                return self._table.read()
            except AuthorizationError:
                raise
            except KafkaError as error:
                if isinstance(error, AuthenticationError) or deadline.expired:
                    text = f"{self._texts.refused}: {error}"
                    raise KafkaError(text, topic=self._topic) from error
                _log.info("reading %s again after: %s", self._topic, error)
            deadline.sleep()

    def _look(self) -> None:
        try:
            self._rows = self._table.read()
        except KafkaError as error:
            level = logging.DEBUG if self._warned else logging.WARNING
            _log.log(level, "%s: %s", self._texts.stale.format(count=len(self._rows)), error)
            self._warned = True
        else:
            self._warned = False
