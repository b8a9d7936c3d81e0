"""What Spark calls of the source: the readers of batches and streams, in planners and in tasks.

What only planners need is in :mod:`spark_plugin.planner_side`, what only tasks need in
:mod:`spark_plugin.task_side`, and each is imported when it is first used.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from kshare.edge import edge
from kshare.errors import KshareError, OptionsError
from kshare.options import SourceOptions
from kshare.worker_connection import SentToTasks
from spark_plugin.partitions import OpenPartition, SlicePartition, as_partitions
from spark_plugin.spark_api import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from kshare.formats.schemas import ReaderSchemas
    from kshare.query.planner import StreamPlanner

__all__ = ["BatchReader", "FilteredReader", "RefusedReader", "StreamReader", "warn"]

_log = logging.getLogger("kshare")


def warn(warnings: Iterable[str]) -> None:
    """Log the warnings of a query's options."""
    for warning in warnings:
        _log.warning(warning)


class _TaskReader(SentToTasks):
    """The part of a reader that runs in tasks, which get a copy with its options and schemas."""

    def __init__(
        self,
        options: SourceOptions,
        schemas: "ReaderSchemas | None" = None,
        work: bytes | None = None,
    ) -> None:
        self._options = options
        self._schemas = schemas
        self._work = work

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_schemas": self._schemas, "_work": self._work}

    @edge
    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Read a task's slices, as Arrow batches."""
        if not isinstance(partition, SlicePartition | OpenPartition):
            return  # Spark makes one bare partition of an empty plan
        # The compiled kernels and what reads with them: 0.6 s and 88 MiB, which no planner needs.
        from spark_plugin.task_side import read_open_partition, read_partition  # noqa: PLC0415

        if isinstance(partition, OpenPartition):
            yield from read_open_partition(partition, self._options, self._schemas, self._work)
        else:
            yield from read_partition(partition, self._options, self._schemas, self._work)


class BatchReader(_TaskReader, DataSourceReader):
    """The reader of a batch query."""

    _filters: "tuple[Filter, ...]" = ()

    @edge
    def partitions(self) -> list[InputPartition]:
        """Return the tasks of the query."""
        # Tasks unpickle this class, and need no planner (0.2 s of imports).
        from spark_plugin.planner_side import batch_partitions  # noqa: PLC0415

        return batch_partitions(self._options, self._filters)


class FilteredReader(BatchReader):
    """A reader to which Spark may push filters: see :mod:`spark_plugin.read_info`."""

    @edge
    def pushFilters(self, filters: "list[Filter]") -> "list[Filter]":  # noqa: N802
        """Note the filters for planning, and leave all of them for Spark to apply."""
        self._filters = tuple(filters)
        return filters


class StreamReader(_TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a streaming query. It lives in the planner's process."""

    _opened: "StreamPlanner | None" = None

    def __init__(
        self,
        options: SourceOptions,
        warnings: Sequence[str] = (),
        schemas: "ReaderSchemas | None" = None,
        work: bytes | None = None,
    ) -> None:
        super().__init__(options, schemas, work)
        self._warnings = warnings

    @property
    def options(self) -> SourceOptions:
        """The query's options."""
        return self._options

    @property
    def _planner(self) -> "StreamPlanner":
        if self._opened is None:
            # Spark makes readers in processes that plan nothing, too (0.2 s of imports).
            from spark_plugin.planner_side import open_planner  # noqa: PLC0415

            warn(self._warnings)  # here, as only one process of a query comes here
            self._opened = open_planner(self._options, self._schemas)
        return self._opened

    @edge
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a new query starts."""
        return self._planner.initial_offsets()

    @edge
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that the options set."""
        # Spark has no limit of several kinds; what it does not hand back, the options say.
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.real_time_seconds is not None:
            return ReadMinRows(1)  # so that it is seen who asks for all there is
        least = options.min_offsets_per_trigger
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    @edge
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Take the log as it is now; records produced later are not read."""
        self._refuse_end("availableNow")
        self._planner.pin_latest()

    def follow_latest(self) -> None:
        """Read on beyond the ends that were taken for all there is: Spark has no such call."""
        self._planner.unpin_latest()

    @edge
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next batch ends."""
        max_offsets = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        # Trigger.Once asks for all there is: no limit applies, nor does the minimum.
        is_bounded = not isinstance(limit, ReadAllAvailable)
        if not is_bounded:
            self._refuse_end("once")
        return self._planner.latest_offsets(start, max_offsets, may_wait=is_bounded)

    def _refuse_end(self, trigger: str) -> None:
        """Refuse a trigger that reads what is there beside ``realTime``, which reads what comes."""
        if self.options.real_time_seconds is not None:
            wrong = f"realTime: reads what comes, and trigger({trigger}=True) reads what is there"
            raise OptionsError([f"{wrong}; leave out realTime, or the trigger"])

    @edge
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends of the partitions and a report, for the progress event."""
        return self._planner.seen_offsets()

    @edge
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a batch."""
        planner = self._planner
        opened = planner.open_tasks(start, end)
        return as_partitions(planner.tasks(start, end) if opened is None else opened)

    @edge
    def stop(self) -> None:
        """End the planner, if there is one."""
        if self._opened is not None:
            self._opened.close()


class RefusedReader(StreamReader):
    """The reader of a query whose options are wrong: each call but ``stop`` raises the error."""

    def __init__(self, error: KshareError) -> None:
        self._error = error

    @property
    def options(self) -> SourceOptions:
        """There are none."""
        raise self._error

    @property
    def _planner(self) -> "StreamPlanner":
        raise self._error

    @edge
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Raise the error."""
        raise self._error
