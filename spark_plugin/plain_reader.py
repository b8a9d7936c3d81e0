"""The reader of a stream for a Spark without admission control: before 4.2.

Such a Spark asks for the end of a batch, ``latestOffset()``, without saying where it starts, or
what limits it, and runs Trigger.AvailableNow as one batch. The options say the limits, and
:mod:`spark_plugin.held_ends` whether the query runs by ``available_now``. What Spark calls besides
says the start, the end of its offset log (``I``: where a new query starts; ``E``,
``L``: ends in the log)::

    new query             latestOffset, initialOffset, partitions(I, E), latestOffset, commit(E) ...
    restart               partitions(L, L), latestOffset, commit(L), partitions(L, E) ...
      amid a batch        partitions(L, L), partitions(K, L), latestOffset ...
      amid the first one  partitions(L, L), initialOffset, partitions(I, L), latestOffset ...
    AvailableNow, wrapped:
      new query           latestOffset, initialOffset, latestOffset, initialOffset, partitions(I, E)
      restart             latestOffset, partitions(L, L) ...

``partitions(L, L)`` comes from Spark's ``AcceptsLatestSeenOffset``. ``commit(S)`` comes when the
batch that starts at ``S`` has been written to the log, of the first batch ``initialOffset``. Where
the optimizer sees that a batch has no rows, its ``partitions`` are left out. A DataFrame of an
earlier batch that is used again is planned again, with the offsets of that batch.

Guarantees: an answer is never computed from another start than Spark's, nor before the batch that
ends there is committed: Spark runs one batch at a time, and asks on when it has noted the last one
as done. Until a call has shown that
an answer is in the log, it stays the same, so it does not matter how often Spark asks. A call that
fits none of these orders is an error. Cost: a comparison of offset dicts for each of Spark's calls.
"""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from kshare.edge import edge
from kshare.errors import KshareError
from spark_plugin.held_ends import SAY_SECONDS, Hold
from spark_plugin.spark_api import SPARK

if TYPE_CHECKING:
    import pyarrow as pa

    from kshare.options import SourceOptions
    from spark_plugin.readers import StreamReader


__all__ = ["WRAPPER", "LoggedEnd", "PlainReader"]

_log = logging.getLogger("kshare")
WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
Offsets = TypeVar("Offsets")


class PlainReader(DataSourceStreamReader):
    """Calls a reader as a newer Spark does.

    Args:
        reader: Gets the start and the limit of a batch.
        folder: Where queries hold the ends of the source; None: none does.
    """

    def __init__(self, reader: "StreamReader", folder: str | None = None) -> None:
        self.reader = reader
        self._folder = folder
        self._hold: Hold | None = None  # while the ends are held
        self._start: dict[str, Any] | None = None
        self._log: LoggedEnd[dict[str, Any]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"reader": self.reader}

    @edge
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a new query starts: the same each time."""
        self._known.initial_asked()
        return self._initial()

    @edge
    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        """Return where the next batch ends."""
        known = self._known
        if self._hold is not None and not self._hold:
            self._hold = None
            self.reader.follow_latest()
        end = known.next_end(self._end_after)
        if self._hold is not None and self._hold.is_late(at_end=known.is_idle):
            _log.warning(
                "has read all that was there %d s ago or longer, and waits for the end of "
                "available_now: another source of its query, or another query of the same load(), "
                "is still being read",
                SAY_SECONDS,
            )
        return end

    @edge
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch."""
        self._known.planned(start, end)
        return self.reader.partitions(start, end)

    @edge
    def commit(self, end: dict[str, Any]) -> None:
        """Take note that the batch that starts at ``end`` is in the offset log."""
        self._known.committed(end)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Read a task's slices, as Arrow batches."""
        return self.reader.read(partition)

    def stop(self) -> None:
        """End the planner, if there is one."""
        self.reader.stop()

    @property
    def _known(self) -> "LoggedEnd[dict[str, Any]]":
        if self._log is None:
            options = self.reader.options
            hold = Hold(self._folder)
            if hold:
                self.reader.prepareForTriggerAvailableNow()
                self._hold = hold
            else:
                _say_limits(options)
            self._log = LoggedEnd(self._initial, SPARK)
        return self._log

    def _initial(self) -> dict[str, Any]:
        if self._start is None:
            self._start = _from_json(self.reader.initialOffset())
        return self._start

    def _end_after(self, start: dict[str, Any]) -> dict[str, Any]:
        limit = self.reader.getDefaultReadLimit()
        return _from_json(self.reader.latestOffset(start, limit))


def _from_json(offsets: dict[str, Any]) -> dict[str, Any]:
    """Return offsets as Spark will hand them back."""
    parsed: dict[str, Any] = json.loads(json.dumps(offsets))
    return parsed


def _say_limits(options: "SourceOptions") -> None:
    """Log what one batch reads, for who asks: of other triggers nothing is wrong.

    Spark does not say what triggers the query, and ends this process when the query ends. So what a
    query has left is said by ``kshare status`` and :class:`~spark_plugin.listener.KshareListener`.
    """
    limits = {
        "maxOffsetsPerTrigger": options.max_offsets_per_trigger,
        "minOffsetsPerTrigger": options.min_offsets_per_trigger,
        "maxRecordsPerTask": options.max_records_per_task,
        "targetTaskDuration": options.target_task_seconds,
        "realTime": options.real_time_seconds,
    }
    given = ", ".join(name for name, value in limits.items() if value is not None)
    if str(options.starting) == "group":  # see start_with_gaps(): the first batch only notes gaps
        _log.info(
            "%s runs Trigger.AvailableNow and Trigger.Once as one batch: where the group of "
            "startingOffsets=group has gaps, the first start of a query only notes them, and the "
            "next one reads. Use spark_plugin.available_now(writer), or Spark 4.2 or later",
            SPARK,
        )
    if given:
        _log.info(
            "%s runs Trigger.AvailableNow and Trigger.Once as one batch, for which %s holds: what "
            "is beyond stays for the next start. Use spark_plugin.available_now(writer), or Spark "
            "4.2 or later",
            SPARK,
            given,
        )


class _Phase(Enum):
    FRESH = auto()  # nothing is known
    NEW = auto()  # a new query's first end was asked for
    BEGUN = auto()  # its first batch is in the log, or Spark's wrapper asks where it starts
    SKIPPED = auto()  # the same, and the end was asked for again
    RUNNING = auto()  # the end of the log is known


class LoggedEnd(Generic[Offsets]):
    """Follows the calls for one query in one process of Spark.

    Args:
        initial: Return where a new query starts.
        spark: Spark's version, for errors.
    """

    def __init__(self, initial: Callable[[], Offsets], spark: str) -> None:
        self._initial = initial
        self._spark = spark
        self._phase = _Phase.FRESH
        self._end: Offsets | None = None  # of the log; while the phase is NEW, where it starts
        self._answer: Offsets | None = None  # which is not known to be in the log

    def next_end(self, after: Callable[[Offsets], Offsets]) -> Offsets:
        """Return the end of the next batch: Spark calls ``latestOffset``.

        Args:
            after: Return the end of the batch that starts at some offsets.

        Raises:
            KshareError: Spark's calls come in an unknown order.
        """
        if self._phase is _Phase.FRESH:
            self._phase, self._end = _Phase.NEW, self._initial()
        elif self._phase is _Phase.BEGUN:
            self._phase = _Phase.SKIPPED
        elif self._phase is _Phase.SKIPPED:
            self._advance()
        assert self._end is not None
        if self._answer is None or self.is_idle:
            self._answer = after(self._end)
        return self._answer

    @property
    def is_idle(self) -> bool:
        """True if nothing was new when Spark last asked for an end."""
        return self._phase is _Phase.RUNNING and self._answer == self._end

    def initial_asked(self) -> None:
        """Take note that Spark calls ``initialOffset``."""
        if self._phase is _Phase.NEW:
            self._phase = _Phase.BEGUN
        elif self._phase in {_Phase.BEGUN, _Phase.SKIPPED}:
            raise self._wrapped()

    def planned(self, start: Offsets, end: Offsets) -> None:
        """Take note that Spark calls ``partitions``."""
        if self._phase is _Phase.FRESH:
            self._phase, self._end = _Phase.RUNNING, end
        elif self._phase is _Phase.NEW and start == end:
            raise self._wrapped()
        elif end == self._answer and end != self._end:
            if start != self._end:
                raise self._unknown("partitions", start)
            self._advance()
        elif self._phase is not _Phase.RUNNING:
            if (start, end) != (self._end, self._answer):
                raise self._unknown("partitions", start)
            self._advance()

    def committed(self, start: Offsets) -> None:
        """Take note that Spark calls ``commit``: a batch that starts there is in the log."""
        if self._phase in {_Phase.BEGUN, _Phase.SKIPPED}:  # a second batch, without new offsets
            self._advance()
        if self._phase is not _Phase.RUNNING or start != self._end:
            raise self._unknown("commit", start)
        if self._answer is not None:
            self._advance()

    def _advance(self) -> None:
        self._phase, self._end, self._answer = _Phase.RUNNING, self._answer, None

    def _wrapped(self) -> KshareError:
        return KshareError(
            f"{self._spark} asks for an end before it says where the query is; turn {WRAPPER} off, "
            "which makes it do so, and run the query by spark_plugin.available_now(writer)"
        )

    def _unknown(self, call: str, offsets: Offsets) -> KshareError:
        return KshareError(
            f"{self._spark} calls {call} with offsets that it should not have reached: {offsets}, "
            f"where the offset log ends at {self._end}. Nothing was read. Please report this, with "
            "the name of the platform"
        )
