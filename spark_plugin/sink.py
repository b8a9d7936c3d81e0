"""The sink: ``df.write.format("kshare")`` and ``writeStream.format("kshare")``.

Options and columns are checked, and all faults reported together, before a task starts. So are the
brokers' transactions, where ``exactlyOnce`` needs them. What is sent to tasks is plain data.

Cost: a call of Spark is a call of :mod:`kshare.query.produce`, which only tasks import, and
drivers that commit or make a sink with ``exactlyOnce``: these open a connection, once in each
process.

Spark makes a new writer on the driver for each batch, and another to commit or abort it, so a
writer keeps nothing. The latter asks nobody whether rows may be written: they are. Spark tells a
task which query, run and batch it writes in the job's local properties.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from kshare.edge import edge
from kshare.errors import KafkaError, OptionsError
from kshare.import_caches import forget_finders
from kshare.options.frozen import digest_of
from kshare.options.row_encodings import RowEncodings
from kshare.options.sink import SinkOptions, parse_sink_options
from kshare.worker_connection import SentToTasks, acknowledging
from spark_plugin.logs import show_log
from spark_plugin.spark_api import DataSourceStreamArrowWriter
from spark_plugin.tables import told_of_tables

if TYPE_CHECKING:
    import pyarrow as pa

    from kshare.query.produce import Prepared

__all__ = [
    "BatchSink",
    "PreparedMessage",
    "StreamSink",
    "WrittenMessage",
    "batch_sink",
    "ending_sink",
    "stream_sink",
]

_log = logging.getLogger("kshare")

_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"
_RUN = "spark.jobGroup.id"  # StreamExecution: one job group a run, named by the run's id
_SPECULATION = "spark.speculation"
_asked: Final = set[bytes]()
"""Clusters that this process has asked for transactions, as digests of what the options say."""


@dataclass(frozen=True)
class WrittenMessage(WriterCommitMessage):
    """A task's rows are on the brokers."""

    rows: int


@dataclass(frozen=True)
class PreparedMessage(WriterCommitMessage):
    """A task's rows are on the brokers, in a transaction that the driver ends."""

    prepared: "Prepared"


class BatchSink(SentToTasks, DataSourceArrowWriter):
    """Writes a DataFrame, at least once."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    @edge
    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        """Write a task's rows, and return when the brokers have them."""
        return _write(acknowledging(iterator), self._options, is_start=True)


class StreamSink(SentToTasks, DataSourceStreamArrowWriter):
    """Writes a stream's batches, at least once or with ``exactlyOnce`` exactly once."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._began = time.time()  # the driver makes a sink when a batch begins

    @edge
    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        """Write a task's rows; with ``exactlyOnce`` :meth:`commit` makes them visible."""
        iterator = acknowledging(iterator)
        if not self._options.exactly_once:
            return _write(iterator, self._options, is_start=_is_first_batch())
        from kshare.query.produce import Attempt, prepare_rows  # noqa: PLC0415 - as in _write()

        context, query, run, batch = _task_and_batch()
        attempt = Attempt(
            query=query,
            run=run,
            batch=batch,
            task=context.partitionId(),
            number=context.attemptNumber(),
            began=self._began,
            speculative=context.getLocalProperty(_SPECULATION) == "true",
            prefix=self._options.id_prefix,
        )
        try:
            return PreparedMessage(prepare_rows(iterator, self._options, attempt))
        finally:
            forget_finders()

    @edge
    def commit(  # noqa: D102 - Spark's
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        self._end_batch(messages, batchId, commit=True)

    @edge
    def abort(  # noqa: D102 - Spark's
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        self._end_batch(messages, batchId, commit=False)

    def _end_batch(
        self, messages: Sequence[WriterCommitMessage | None], batch: int, *, commit: bool
    ) -> None:
        if not self._options.exactly_once:
            return
        from kshare.query.produce.driver import abort_batch, commit_batch  # noqa: PLC0415 - 0.15 s

        prepared = [
            message.prepared for message in messages if isinstance(message, PreparedMessage)
        ]
        if commit:
            commit_batch(prepared, batch, self._options)
        else:
            abort_batch(prepared, batch, self._options)


def batch_sink(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> BatchSink:
    """Make the writer of a batch query.

    Raises:
        OptionsError: Options or columns cannot be used, or the mode is ``overwrite``.
    """
    if overwrite:
        raise OptionsError(
            ["mode: 'overwrite' is not possible, a topic's records stay; use mode('append')"]
        )
    return BatchSink(_with_schemas(_parse(options, schema, streaming=False), schema))


def stream_sink(options: Mapping[str, str], schema: StructType) -> StreamSink:
    """Make the writer of a stream's batch, for its tasks.

    This is the first that Spark calls of a sink: on the driver, before a batch has a task.

    Raises:
        OptionsError: Options or columns cannot be used, or brokers lack what ``exactlyOnce`` needs.
        AuthenticationError: With ``exactlyOnce``: a broker refused the login.
        KafkaError: With ``exactlyOnce``: a broker refused the connection for good.
    """
    parsed = _with_schemas(_parse(options, schema, streaming=True), schema)
    if parsed.exactly_once:
        _ask_for_transactions(parsed)
    return StreamSink(parsed)


def ending_sink(options: Mapping[str, str]) -> StreamSink:
    """Make the writer that commits or aborts a stream's batch.

    Registry, files of schemas and brokers are not asked again: what has changed since the tasks
    began would refuse a batch whose rows are written, or leave its transactions open.

    Raises:
        OptionsError: Options cannot be used; a batch with such has no tasks.
    """
    show_log()
    return StreamSink(parse_sink_options(dict(options), streaming=True).options)


def _ask_for_transactions(options: SinkOptions) -> None:
    """Refuse brokers without transactions, once in each process: there is a sink for each batch."""
    cluster = digest_of(options.kafka)
    if cluster not in _asked:
        from kshare.query.produce import check_exactly_once  # noqa: PLC0415 - as in _write()

        check_exactly_once(options)
        _asked.add(cluster)


def _parse(options: Mapping[str, str], schema: StructType, *, streaming: bool) -> SinkOptions:
    show_log()
    columns = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    with told_of_tables(options):
        parsed = parse_sink_options(
            dict(options),
            columns,
            streaming=streaming,
            check_formats=lambda formats: _inline_faults(formats, schema),
        )
    for warning in parsed.warnings:
        _log.warning(warning)
    return parsed.options


def _with_schemas(options: SinkOptions, schema: StructType) -> SinkOptions:
    """The options with the schemas that columns are encoded by."""
    if options.formats is None:
        return options
    # Most sinks write bytes: the formats and the registry's client are not imported for them.
    from kshare.formats.encodings import found_encodings  # noqa: PLC0415

    columns = _encoded_columns(options.formats, schema)
    encodings = found_encodings(options.formats, columns, options.kafka)
    return replace(options, encodings=encodings)


def _inline_faults(formats: RowEncodings, schema: StructType) -> list[str]:
    """The faults of columns and schemas that no registry has to say."""
    from kshare.formats.encodings import inline_faults  # noqa: PLC0415 - as above

    try:
        return inline_faults(formats, _encoded_columns(formats, schema))
    except ValueError as error:
        return [str(error)]


def _encoded_columns(formats: RowEncodings, schema: StructType) -> "pa.Schema":
    """The columns that are encoded.

    Raises:
        ValueError: One has a type that no format has.
    """
    from spark_plugin.arrow_types import arrow_schema  # noqa: PLC0415 - as above

    names = tuple(form.column for form in formats.formats if form.format != "string")
    json = {form.column for form in formats.formats if form.format == "json"}
    return arrow_schema(schema, names, json)


def _write(
    batches: "Iterator[pa.RecordBatch]", options: SinkOptions, *, is_start: bool
) -> WrittenMessage:
    # The driver makes sinks and writes nothing (0.15 s of imports).
    from kshare.query.produce import write_rows  # noqa: PLC0415

    show_log()
    try:
        return WrittenMessage(write_rows(batches, options, is_start=is_start))
    finally:
        forget_finders()


def _is_first_batch() -> bool:
    """True in the first batch of a query: a later one waits for brokers that are away."""
    context = TaskContext.get()
    return context is not None and context.getLocalProperty(_BATCH) == "0"


def _task_and_batch() -> tuple[TaskContext, str, str, int]:
    """Return this task, and the query, run and batch that it writes."""
    context = TaskContext.get()
    if context is None:
        raise KafkaError("exactlyOnce: this is no task of Spark")
    query, run, batch = (context.getLocalProperty(name) for name in (_QUERY, _RUN, _BATCH))
    if not query or not run or batch is None:
        raise KafkaError(
            "exactlyOnce: this Spark does not tell tasks which batch of which query they write "
            f"({_QUERY}={query!r}, {_RUN}={run!r}, {_BATCH}={batch!r})"
        )
    return context, query, run, int(batch)
