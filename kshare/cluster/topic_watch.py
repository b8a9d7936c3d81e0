"""Keeps a running query's copy of a table topic up to date.

Guarantees: the table is as it was at some moment of the last seconds, or as last known if it cannot
be read. A query that has never read it does not start without it, unless it is not authorized to
read it; a query that has read it never fails because of it.

::

    not started --- read ---> running; every EVERY_SECONDS: read ---> the new table
      |  |                       ^                            error --> the last one, a warning
      |  +--- not authorized ----+
      +--- any other error, for default.api.timeout.ms: read again, then raise
"""

import logging
import time
from collections.abc import Sized
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from kshare.errors import AuthenticationError, AuthorizationError, KafkaError
from kshare.options import KafkaConfig
from kshare.wire.protocol.retry import Clock, RetryDeadline

__all__ = ["EVERY_SECONDS", "Table", "TopicWatch", "WatchTexts"]

_log = logging.getLogger(__name__)

EVERY_SECONDS: Final = 2.0
"""Maximum age of the table that a running query goes by."""

RowsT = TypeVar("RowsT", bound=Sized)
Rows_co = TypeVar("Rows_co", covariant=True)


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
            KafkaError: the table has never been read, and cannot be within
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
