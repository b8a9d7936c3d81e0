"""The reader of a stream for a Spark without admission control: before 4.2.

Such a Spark asks for the end of a batch without saying where it starts, or what limits it, and runs
Trigger.AvailableNow as one batch. :class:`spark_plugin.logged_end.LoggedEnd` finds the start, and
the options say the limits. Cost: a comparison of offset dicts for each of Spark's calls.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from spark_plugin.logged_end import LoggedEnd
from spark_plugin.spark_api import SPARK

if TYPE_CHECKING:
    import pyarrow as pa

    from kshare.options import SourceOptions
    from spark_plugin.source import StreamReader

__all__ = ["PlainReader"]

_log = logging.getLogger("kshare")


class PlainReader(DataSourceStreamReader):
    """Calls a reader as a newer Spark does.

    Args:
        reader: Gets the start and the limit of a batch.
    """

    def __init__(self, reader: "StreamReader") -> None:
        self.reader = reader
        self._start: dict[str, Any] | None = None
        self._log: LoggedEnd[dict[str, Any]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"reader": self.reader}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a new query starts: the same each time."""
        self._known.initial_asked()
        return self._initial()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        """Return where the next batch ends."""
        return self._known.next_end(self._end_after)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch; of one that starts where it ends, none."""
        self._known.planned(start, end)
        return [] if start == end else self.reader.partitions(start, end)

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
    def _known(self) -> LoggedEnd[dict[str, Any]]:
        if self._log is None:
            self._log = LoggedEnd(self._initial, SPARK)
            _warn(self.reader.options)
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


def _warn(options: "SourceOptions") -> None:
    limits = {
        "maxOffsetsPerTrigger": options.max_offsets_per_trigger,
        "maxBytesPerTrigger": options.max_bytes_per_trigger,
        "minOffsetsPerTrigger": options.min_offsets_per_trigger,
        "maxRecordsPerTask": options.max_records_per_task,
        "targetTaskDuration": options.target_task_seconds,
    }
    given = ", ".join(name for name, value in limits.items() if value is not None)
    if str(options.starting) == "group":  # see start_with_gaps(): the first batch only notes gaps
        _log.warning(
            "%s runs Trigger.AvailableNow and Trigger.Once as one batch: where the group of "
            "startingOffsets=group has gaps, the first start of a query only notes them, and the "
            "next one reads. Use Trigger.ProcessingTime, or Spark 4.2 or later",
            SPARK,
        )
    if given:
        _log.warning(
            "%s runs Trigger.AvailableNow and Trigger.Once as one batch, for which %s holds: what "
            "is beyond stays for the next start. Use Trigger.ProcessingTime, or Spark 4.2 or later",
            SPARK,
            given,
        )
