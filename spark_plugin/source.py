"""The source: ``spark.read.format("kshare")`` and ``spark.readStream.format("kshare")``.

Nothing is contacted before a query is planned, and nothing is opened at import. What is sent to
tasks is plain data. A query starts several Python processes, and all of them import this module:
what only planners need is in :mod:`spark_plugin.planner_side`, what only tasks need in
:mod:`spark_plugin.task_side`, and each is imported when it is first used.
"""

import logging
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
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

from kshare.core.tasks import PlannedSlice, Task
from kshare.edge import edge
from kshare.errors import KshareError, OptionsError, SchemaRegistryError
from kshare.options import SourceOptions, parse_options
from kshare.options.model import ParsedOptions
from kshare.options.typed_rows import TypedRows
from spark_plugin.logs import show_log
from spark_plugin.read_info import filters_may_be_pushed
from spark_plugin.spark_api import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
    new_folder,
    stream_reader,
)
from spark_plugin.tables import told_of_tables

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from kshare.formats.schemas import ReaderSchemas
    from kshare.planner import StreamPlanner
    from spark_plugin.sink import BatchSink, StreamSink


__all__ = ["KshareDataSource", "SlicePartition", "StreamReader", "as_partitions"]

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


@dataclass
class SlicePartition(InputPartition):
    """A task, as Spark sends it.

    Attributes:
        slices: The slices to read, together; at least one.
    """

    slices: tuple[PlannedSlice, ...]


def as_partitions(tasks: Iterable[Task]) -> list[InputPartition]:
    """Convert tasks into Spark's input partitions, in the order of the plan."""
    return [SlicePartition(task.slices) for task in tasks]


class KshareDataSource(DataSource):
    """``format("kshare")``: Kafka, each partition read by several key-ordered tasks.

    Attributes:
        folder: By which its streams hear of ``available_now``; None if Spark tells them.
        schemas: The reader schemas of typed rows, once they were asked for: Spark sends this object
            on to where readers are made. None: keys and values are bytes.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.folder = new_folder()
        self.schemas: ReaderSchemas | None = None

    @classmethod
    def name(cls) -> str:
        """The name that users write in ``format(...)``."""
        return "kshare"

    @edge
    def schema(self) -> StructType:
        """The columns of the source: all of them, or those that ``columns`` names.

        No task assignor is made: this may be a batch query, which has none.

        Raises:
            OptionsError: The options fit neither a batch nor a streaming query; or a schema of
                typed rows cannot be read.
            SchemaRegistryError: The registry does not answer, or refuses.
        """
        options = dict(self.options)
        try:
            parsed = parse_options(
                options, streaming=True, makes_assignor=False, check_rows=_inline_faults
            )
        except OptionsError as streaming:
            try:
                parsed = parse_options(options, streaming=False, check_rows=_inline_faults)
            except OptionsError as batch:
                raise OptionsError(_merged(streaming.problems, batch.problems)) from None
        self.schemas = _schemas_of(parsed.options)
        return _schema(parsed.options, self.schemas)

    @edge
    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch query."""
        parsed, schemas = _parse(self, schema, streaming=False)
        _warn(parsed.warnings)
        make = _FilteredReader if filters_may_be_pushed() else _BatchReader
        return make(parsed.options, schemas)

    @edge
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """The reader of a streaming query; if its options are wrong, one that raises what is wrong.

        Spark 4.3 stops a reader also when it has got none, and an ``UnboundLocalError`` of its own
        would be the last line that users see.
        """
        try:
            parsed, schemas = _parse(self, schema, streaming=True)
            reader = StreamReader(parsed.options, parsed.warnings, schemas)
        except (OptionsError, SchemaRegistryError) as error:
            reader = _RefusedReader(error)
        return stream_reader(reader, self.folder)

    @edge
    def writer(self, schema: StructType, overwrite: bool) -> "BatchSink":
        """The writer of a batch query."""
        # Not a module import: no process of a reading query needs it (6 ms in each of them).
        from spark_plugin.sink import batch_sink  # noqa: PLC0415

        return batch_sink(self.options, schema, overwrite=overwrite)

    @edge
    def streamWriter(  # noqa: N802
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002 - a log cannot be overwritten
    ) -> "StreamSink":
        """The writer of a stream's batches."""
        from spark_plugin.sink import stream_sink  # noqa: PLC0415 - as in writer()

        return stream_sink(self.options, schema)


def _schemas_of(options: SourceOptions) -> "ReaderSchemas | None":
    """The reader schemas that options ask for; None: keys and values are bytes."""
    if options.typed_rows is None:
        return None
    # Formats and a registry's client: queries for bytes need none of it.
    from spark_plugin.typed_rows import find_schemas  # noqa: PLC0415

    return find_schemas(options)


def _inline_faults(rows: TypedRows) -> list[str]:
    """The faults of schemas that are given inline."""
    from kshare.formats.schemas import inline_faults  # noqa: PLC0415 - as above

    return inline_faults(rows)


def _schema(options: SourceOptions, schemas: "ReaderSchemas | None") -> StructType:
    """The columns that the options ask for, in the types of Spark's kafka source if not typed."""
    names, types = options.column_names, _TYPES
    if schemas is not None:
        from spark_plugin.typed_rows import spark_types  # noqa: PLC0415 - as above

        types = {**types, **spark_types(schemas, names)}
    return StructType([StructField(name, types[name]) for name in names])


def _parse(
    source: KshareDataSource, schema: StructType, *, streaming: bool
) -> "tuple[ParsedOptions, ReaderSchemas | None]":
    show_log()
    with told_of_tables(source.options):
        options = dict(source.options)
        parsed = parse_options(options, streaming=streaming, check_rows=_inline_faults)
    # Spark does not ask for the schema of a table, or where .schema() gives one.
    schemas = source.schemas or _schemas_of(parsed.options)
    if schema != _schema(parsed.options, schemas):
        why = (
            "as Spark's kafka source has them"
            if schemas is None
            else f"as the schemas say: {', '.join(map(str, schemas.columns))}"
        )
        raise OptionsError([f"schema: the columns are fixed, {why}; leave out .schema()"])
    return parsed, schemas


def _warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        _log.warning(warning)


def _merged(streaming: Sequence[str], batch: Sequence[str]) -> list[str]:
    """The faults of both kinds of query, while it is not known which of them this will be."""
    return [
        *(text for text in streaming if text in batch),
        *(f"{text} [as a stream]" for text in streaming if text not in batch),
        *(f"{text} [as a batch]" for text in batch if text not in streaming),
    ]


class _TaskReader:
    """The part of a reader that runs in tasks, which get a copy with its options and schemas."""

    def __init__(self, options: SourceOptions, schemas: "ReaderSchemas | None" = None) -> None:
        self._options = options
        self._schemas = schemas

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_schemas": self._schemas}

    @edge
    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Read a task's slices, as Arrow batches."""
        if not isinstance(partition, SlicePartition):
            return  # Spark makes one bare partition of an empty plan
        # The compiled kernels and what reads with them: 0.6 s and 88 MiB, which no planner needs.
        from spark_plugin.task_side import read_partition  # noqa: PLC0415

        yield from read_partition(partition, self._options, self._schemas)


class _BatchReader(_TaskReader, DataSourceReader):
    _filters: "tuple[Filter, ...]" = ()

    @edge
    def partitions(self) -> list[InputPartition]:
        # Tasks unpickle this class, and need no planner (0.2 s of imports).
        from spark_plugin.planner_side import batch_partitions  # noqa: PLC0415

        return batch_partitions(self._options, self._filters)


class _FilteredReader(_BatchReader):
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
    ) -> None:
        super().__init__(options, schemas)
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

            _warn(self._warnings)  # here, as only one process of a query comes here
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
        least = options.min_offsets_per_trigger
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    @edge
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Take the log as it is now; records produced later are not read."""
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
        return self._planner.latest_offsets(start, max_offsets, may_wait=is_bounded)

    @edge
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends of the partitions and a report, for the progress event."""
        return self._planner.seen_offsets()

    @edge
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a batch."""
        return as_partitions(self._planner.tasks(start, end))

    @edge
    def stop(self) -> None:
        """End the planner, if there is one."""
        if self._opened is not None:
            self._opened.close()


class _RefusedReader(StreamReader):
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
        raise self._error
