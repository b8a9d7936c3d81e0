"""A table in a compacted topic, of JSON objects of texts: set by operators, followed by queries.

Guarantees: equal keys have equal bytes, or compaction would keep both. A record that cannot be read
is passed over, with a warning: what its key had before stays. :meth:`TopicTable.drop_damaged`
deletes such records, and no others. What a query goes by is the table as it was at some moment of
the last seconds, or as last known if it cannot be read. A query that has never read it does not
start without it, unless it is not authorized to read it; a query that has read it never fails
because of it.

::

    not started --- read ---> running; every EVERY_SECONDS: read ---> the new table
      |  |                       ^                            error --> the last one, a warning
      |  +--- not authorized ----+
      +--- any other error, for default.api.timeout.ms: read again, then raise
"""

import json
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, Final, Generic, TypeVar

from confluent_kafka.admin import AdminClient

from kshare.core.bounded_json import DAMAGE, read_object, text_of
from kshare.errors import AuthenticationError, AuthorizationError, KafkaError
from kshare.kafka.compacted_topic import CompactedTopic, Row
from kshare.kafka.protocol.retry import Clock, RetryDeadline
from kshare.kafka.topics import TopicSpec
from kshare.options import KafkaConfig

__all__ = [
    "EVERY_SECONDS",
    "TableTexts",
    "TopicTable",
    "TopicWatch",
    "json_bytes",
    "texts_of",
]

_log = logging.getLogger(__name__)

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")
EVERY_SECONDS: Final = 2.0
"""Maximum age of the table that a running query goes by."""


@dataclass(frozen=True, slots=True)
class TableTexts:
    """Texts about a table. An error follows those of a table that cannot be read.

    Attributes:
        record: What a record is: ``"a parked key"``.
        loss: What follows if the topic deletes old records.
        unauthorized: When a query starts, and goes on without the table.
        refused: When a query does not start.
        stale: When a running query goes on by the table last read, of ``{count}`` rows.
        repair: What deletes the records that cannot be read.
    """

    record: str
    loss: str
    unauthorized: str
    refused: str
    stale: str
    repair: str


class TopicTable(Generic[KeyT, ValueT]):
    """The rows of a compacted topic.

    Every method raises a :class:`~kshare.errors.KafkaError` if the cluster does not answer within
    ``default.api.timeout.ms``, or refuses.

    Args:
        kafka: How to reach the cluster.
        now: Time of day.
        admin: Makes the client that makes the topic.
        said: What was warned of already, and is said at DEBUG. Tables that share it, as those of
            the tasks of a process do, warn once; by default a table has its own.

    Attributes:
        spec: The topic.
        reader: Consumer group, as brokers see it. It is never joined.
        texts: What is said of it.
    """

    spec: ClassVar[TopicSpec]
    reader: ClassVar[str]
    texts: ClassVar[TableTexts]

    def __init__(
        self,
        kafka: KafkaConfig,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        admin: Callable[..., AdminClient] = AdminClient,
        said: set[str] | None = None,
    ) -> None:
        self._now = now
        self._said: set[str] = set() if said is None else said
        self._topic = CompactedTopic(kafka, self.spec, group=self.reader, admin=admin)
        self._rows: dict[KeyT, ValueT] = {}
        self._damaged: set[bytes] = set()  # keys whose last record cannot be read

    @staticmethod
    def decode_key(data: bytes | None) -> KeyT:
        """Read a key.

        Raises:
            ValueError: It is none.
        """
        raise NotImplementedError

    @staticmethod
    def decode_value(data: bytes) -> ValueT:
        """Read a value.

        Raises:
            ValueError: It is none.
        """
        raise NotImplementedError

    def read(self) -> Mapping[KeyT, ValueT]:
        """All rows, in any order."""
        changes = self._topic.read()
        if changes.restarted:
            self._rows, self._damaged = {}, set()
        for row in changes.rows:
            self._damaged.discard(row.key or b"")
            try:
                self._apply(row)
            except DAMAGE as fault:
                self._pass_over(row, fault)
        return self._rows

    def drop_damaged(self) -> int:
        """Delete the records that cannot be read, and nothing else; return their number."""
        self.read()
        if not self._damaged:
            return 0
        keys = sorted(self._damaged)
        self.delete(keys)
        return len(keys)

    def _apply(self, row: Row) -> None:
        key = self.decode_key(row.key)
        value = None if row.value is None else self.decode_value(row.value)
        self._rows.pop(key, None)
        if value is not None:
            self._rows[key] = value

    def _pass_over(self, row: Row, fault: Exception) -> None:
        if row.key is not None:
            if row.value is None:  # it deletes what could not be read either
                return
            self._damaged.add(row.key)
        self.warn_once(
            f"{self.spec.name}, offset {row.offset}: {row.key!r}",
            "%s, offset %d, is no record of %s, and is passed over: %.300s. %s",
            self.spec.name,
            row.offset,
            self.texts.record,
            fault,
            self.texts.repair,
        )

    def warn_once(self, what: str, text: str, *values: object) -> None:
        """Warn of something, unless it was warned of already.

        Args:
            what: Of what.
            text: The text, for ``values`` to be put in.
            values: These.
        """
        _log.log(logging.DEBUG if what in self._said else logging.WARNING, text, *values)
        self._said.add(what)

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

    def stamp(self) -> str:
        """The time of day for a row: ISO 8601, in UTC."""
        return self._now().astimezone(UTC).isoformat(timespec="seconds")

    def _check_topic(self) -> None:
        """Warn of a topic that someone has made in another way."""
        config = self._topic.config()
        if config is not None and config.deletes_last_values:
            _log.warning(
                "%s: topic %s deletes old records. Set its cleanup.policy to compact.",
                self.texts.loss,
                self.spec.name,
            )


def json_bytes(value: Any) -> bytes:
    """A value as JSON; the same bytes for equal ones. What no UTF-8 has is a question mark."""
    dumps = partial(json.dumps, value, separators=(",", ":"), sort_keys=True)
    try:
        dumps(ensure_ascii=False).encode()
    except UnicodeEncodeError:  # of an argument that is no text: nobody could read it
        return dumps(ensure_ascii=False).encode(errors="replace")
    return dumps().encode()


def texts_of(data: bytes | None, *names: str) -> list[str]:
    """The texts in a JSON object by their names.

    Raises:
        ValueError: They are not there.
    """
    decoded = read_object(data or b"")
    try:
        return [text_of(decoded[name]) for name in names]
    except (KeyError, TypeError):
        raise ValueError(f"wanted a JSON object with the texts {', '.join(names)}") from None


class TopicWatch(Generic[KeyT, ValueT]):
    """A table, read again every :data:`EVERY_SECONDS`, unless that is said otherwise.

    Args:
        table: Makes the table. It is taken to be empty while this client may not read it.
        kafka: How to reach the cluster; for how long, and at which pauses, a start is tried again.
        look_seconds: Maximum time that a later read may take: a trigger waits for it.
        clock: Source of time.
        every_seconds: Age from which on the table is read again.
    """

    def __init__(
        self,
        table: Callable[[KafkaConfig], TopicTable[KeyT, ValueT]],
        kafka: KafkaConfig,
        *,
        look_seconds: float,
        clock: Clock,
        every_seconds: float = EVERY_SECONDS,
    ) -> None:
        self._every_seconds = every_seconds
        self._table = table(replace(kafka, offset_attempts=1))
        self._rows: Mapping[KeyT, ValueT] = {}
        self._start_deadline = RetryDeadline.for_requests(kafka, clock)
        self._look_seconds = look_seconds
        self._clock = clock
        self._next: float | None = None  # None before the first read
        self._warned = False

    def current(self) -> Mapping[KeyT, ValueT]:
        """The table, at most that old or as last read.

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
        self._next = self._clock.monotonic() + self._every_seconds
        return self._rows

    def close(self) -> None:
        """Close the connections."""
        self._table.close()

    def _start(self) -> None:
        """Read for the first time: there is nothing last known to go on with."""
        try:
            self._rows = self._read_patiently()
        except AuthorizationError as error:
            text = self._table.texts.unauthorized
            self._table.warn_once(text, "%s: %s", text, error)
            self._warned = True
        # Between two batches, a table that cannot be read is not waited for.
        self._table.shorten_timeout(self._look_seconds)

    def _read_patiently(self) -> Mapping[KeyT, ValueT]:
        lasting, topic = (AuthorizationError, AuthenticationError), self._table.spec.name
        self._start_deadline.reset()
        try:
            return self._start_deadline.retried(
                _log,
                f"read topic {topic}",
                self._table.read,
                lambda error: isinstance(error, KafkaError) and not isinstance(error, lasting),
            )
        except AuthorizationError:
            raise
        except KafkaError as error:
            raise KafkaError(f"{self._table.texts.refused}: {error}", topic=topic) from error

    def _look(self) -> None:
        try:
            self._rows = self._table.read()
        except KafkaError as error:
            level = logging.DEBUG if self._warned else logging.WARNING
            stale = self._table.texts.stale.format(count=len(self._rows))
            _log.log(level, "%s: %s", stale, error)
            self._warned = True
        else:
            self._warned = False
