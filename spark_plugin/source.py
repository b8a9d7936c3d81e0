"""The source: ``spark.read.format("kshare")`` and ``spark.readStream.format("kshare")``.

Law: nothing is contacted before a query is planned, and nothing is opened at import; what is sent
to tasks is plain data. Cost: a call of Spark is a call of :mod:`kshare.planner`. A query starts
several Python processes, each of which needs a part of kshare only: so imports are at first use.
"""

import gc
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kshare.core.tasks import PlannedSlice, Ticket
from kshare.errors import OptionsError
from kshare.options import SourceOptions, parse_options
from spark_plugin.logs import show_log
from spark_plugin.planning import SlicePartition, as_partitions

if TYPE_CHECKING:
    import pyarrow as pa

    from kshare.core.slice_end import SliceEnd
    from kshare.feedback.report import TaskReport
    from kshare.planner import StreamPlanner
    from kshare.planner.filters import Bounds
    from spark_plugin.sink import BatchSink, StreamSink

__all__ = ["KshareDataSource"]

_log = logging.getLogger("kshare")

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(_HEADER),
}


def _schema(options: SourceOptions) -> StructType:
    """The columns that the options ask for, in the types of Spark's kafka source."""
    return StructType([StructField(name, _TYPES[name]) for name in options.column_names])


def _parse(options: Mapping[str, str], schema: StructType, *, streaming: bool) -> SourceOptions:
    show_log()
    parsed = parse_options(dict(options), streaming=streaming)
    if schema != _schema(parsed.options):
        raise OptionsError(
            ["schema: the columns are fixed, as Spark's kafka source has them; leave out .schema()"]
        )
    for warning in parsed.warnings:
        _log.warning(warning)
    return parsed.options


class KshareDataSource(DataSource):
    """``format("kshare")``: Kafka, each partition read by several key-ordered tasks."""

    @classmethod
    def name(cls) -> str:
        """The name that users write in ``format(...)``."""
        return "kshare"

    def schema(self) -> StructType:
        """The columns of the source: all of them, or those that ``columns`` names.

        No task assignor is made: this may be a batch query, which has none.

        Raises:
            OptionsError: the options fit neither a batch nor a streaming query.
        """
        options = dict(self.options)
        try:
            parsed = parse_options(options, streaming=True, makes_assignor=False)
        except OptionsError as streaming:
            try:
                parsed = parse_options(options, streaming=False)
            except OptionsError as batch:
                raise OptionsError(_of_either(streaming.problems, batch.problems)) from None
        return _schema(parsed.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The batch reader."""
        from spark_plugin.filters import filters_may_be_pushed  # noqa: PLC0415

        options = _parse(self.options, schema, streaming=False)
        return _FilteredReader(options) if filters_may_be_pushed() else _BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """The micro-batch reader."""
        return _StreamReader(_parse(self.options, schema, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> "BatchSink":
        """The batch sink."""
        from spark_plugin.sink import batch_sink  # noqa: PLC0415

        return batch_sink(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002 - of no meaning in a log
    ) -> "StreamSink":
        """The sink of a stream's batches."""
        from spark_plugin.sink import stream_sink  # noqa: PLC0415

        return stream_sink(self.options, schema)


def _of_either(streaming: Sequence[str], batch: Sequence[str]) -> list[str]:
    """All faults, while it is not known yet what kind of query this will be."""
    return [
        *(text for text in streaming if text in batch),
        *(f"{text} [as a stream]" for text in streaming if text not in batch),
        *(f"{text} [as a batch]" for text in batch if text not in streaming),
    ]


@cache
def _imported_reader() -> "Callable[..., Iterator[pa.RecordBatch]]":
    """The wire reader, imported once a process."""
    from kshare.wire.reader.read_slice import read_slice  # noqa: PLC0415

    show_log()
    # Spark's workers collect garbage after every task. Modules are none, and looking through those
    # of numba and its like takes longer than a small task does: leave them out.
    gc.freeze()
    return read_slice


class _TaskReader:
    """The half that runs in tasks."""

    _options: SourceOptions

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The records of a task's slices, as Arrow batches."""
        if not isinstance(partition, SlicePartition):
            return iter(())  # an empty plan still gets one bare partition from Spark
        return chain.from_iterable(map(self._read, partition.slices))

    def _read(self, planned: PlannedSlice) -> "Iterator[pa.RecordBatch]":
        """The records of one slice."""
        if planned.ticket is not None:
            return self._read_and_report(planned, planned.ticket)
        return _imported_reader()(
            planned.slice,
            self._options,
            max_records=planned.max_records,
            fetch_group=planned.fetch_group,
        )

    def _read_and_report(self, planned: PlannedSlice, ticket: Ticket) -> "Iterator[pa.RecordBatch]":
        """The same, and the planner is told when this begins and where it ends."""
        from kshare.feedback.report import TaskReport  # noqa: PLC0415
        from spark_plugin.executor import this_executor  # noqa: PLC0415

        report = TaskReport(ticket)
        report.begin(this_executor())
        try:
            yield from _imported_reader()(
                planned.slice,
                self._options,
                max_records=planned.max_records,
                on_end=lambda end: _tell(report, ticket, end),
                fetch_group=planned.fetch_group,
            )
        finally:
            report.close()


def _tell(report: "TaskReport", ticket: Ticket, end: "SliceEnd") -> None:
    """Report where reading ended, and leave the connection to the worker's end if that is near."""
    from spark_plugin.timing import end_worker_with_task  # noqa: PLC0415

    report.done(end, held=ticket.hold and report.connected and end_worker_with_task())


class _BatchReader(_TaskReader, DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._bounds: Bounds | None = None

    def partitions(self) -> list[InputPartition]:
        from kshare.cluster.cluster import Cluster  # noqa: PLC0415
        from kshare.planner import plan_batch  # noqa: PLC0415

        cluster = Cluster(self._options.kafka)
        try:
            bounds = () if self._bounds is None else (self._bounds,)
            return as_partitions(plan_batch(self._options, cluster, *bounds))
        finally:
            cluster.close()


class _FilteredReader(_BatchReader):
    """What Spark may push filters to: see :func:`spark_plugin.filters.filters_may_be_pushed`."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802
        """Take note of where rows can lie, and have Spark apply all filters as ever."""
        from kshare.planner.filters import bounds_of  # noqa: PLC0415
        from spark_plugin.filters import conditions_of  # noqa: PLC0415

        self._bounds = bounds_of(conditions_of(filters))
        return filters


class _StreamReader(_TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in the planner's process; a copy without its planner is sent to the tasks."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._planner_made: StreamPlanner | None = None

    @property
    def _planner(self) -> "StreamPlanner":
        if self._planner_made is None:
            from kshare.cluster.cluster import Cluster  # noqa: PLC0415
            from kshare.planner import StreamPlanner  # noqa: PLC0415

            self._planner_made = StreamPlanner(self._options, Cluster(self._options.kafka))
        return self._planner_made

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_planner_made": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._planner.initial_offsets()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        # There is no composite limit: where both are given, planning knows the other one itself.
        most, least = (
            self._options.max_offsets_per_trigger,
            self._options.min_offsets_per_trigger,
        )
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._planner.pin_latest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        max_offsets = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        # Trigger.AvailableNow asks for all there is, and then a minimum does not count.
        may_wait = not isinstance(limit, ReadAllAvailable)
        return self._planner.latest_offsets(start, max_offsets, may_wait=may_wait)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._planner.seen_offsets()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return as_partitions(self._planner.tasks(start, end))

    def stop(self) -> None:
        if self._planner_made is not None:
            self._planner_made.close()
