"""The source: ``spark.read.format("kshare")`` and ``spark.readStream.format("kshare")``.

Nothing is contacted before a query is planned, and nothing is opened at import. What is sent to
tasks is plain data. A query starts several Python processes, and all of them import this module:
what only planners need is in :mod:`spark_plugin.planner_side`, what only tasks need in
:mod:`spark_plugin.task_side`, and each is imported when it is first used.
"""

from collections.abc import MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
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

from kshare.edge import edge
from kshare.errors import OptionsError, SchemaRegistryError
from kshare.format_name import FORMAT, name_with_handlers
from kshare.options import SourceOptions, parse_options
from kshare.options.model import ParsedOptions
from kshare.options.typed_rows import TypedRows
from spark_plugin.logs import show_log
from spark_plugin.read_info import filters_may_be_pushed
from spark_plugin.readers import BatchReader, FilteredReader, RefusedReader, StreamReader, warn
from spark_plugin.spark_api import TELLS_START, new_folder
from spark_plugin.tables import told_of_tables

if TYPE_CHECKING:
    from kshare.formats.schemas import ReaderSchemas
    from spark_plugin.sink import BatchSink, StreamSink


__all__ = ["KshareDataSource"]

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


class KshareDataSource(DataSource):
    """``format("kshare")``: Kafka, each partition read by several key-ordered tasks.

    Attributes:
        folder: By which its streams hear of ``available_now``; None if Spark tells them.
        schemas: The reader schemas of typed rows, once they were asked for: Spark sends this object
            on to where readers are made. None: keys and values are bytes.
        work: What tasks do with rows before they hand them over, pickled: see :meth:`working`.
        adds: The columns that this adds.
        is_sent: Whether Spark has sent it here from the process that has made it.
    """

    format_name = FORMAT
    is_sent = False
    work: bytes | None = None
    adds = StructType()

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.folder = new_folder()
        self.schemas: ReaderSchemas | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "is_sent": True}

    @classmethod
    def name(cls) -> str:
        """The name that users write in ``format(...)``."""
        return cls.format_name

    @classmethod
    def working(cls, work: bytes, adds: StructType) -> "type[KshareDataSource]":
        """A source to register beside this one, whose tasks process their rows in the reader.

        A class, as an option would be one of SQL tables, too: whoever names a table could have code
        run where it is read.

        Args:
            work: A pickled :class:`~kshare.processing.work.Work`.
            adds: The columns that it adds.
        """
        given = {"format_name": name_with_handlers(), "work": work, "adds": adds}
        return type("Working", (cls,), given)

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
        return self._with_added(_schema(parsed.options, self.schemas))

    def _with_added(self, schema: StructType) -> StructType:
        return StructType([*schema.fields, *self.adds.fields])

    @edge
    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch query."""
        parsed, schemas = _parse(self, schema, streaming=False)
        warn(parsed.warnings)
        make = FilteredReader if filters_may_be_pushed() else BatchReader
        return make(parsed.options, schemas)

    @edge
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """The reader of a streaming query; if its options are wrong, one that raises what is wrong.

        Spark 4.3 stops a reader also when it has got none, and an ``UnboundLocalError`` of its own
        would be the last line that users see.
        """
        try:
            parsed, schemas = _parse(self, schema, streaming=True)
            reader = StreamReader(parsed.options, parsed.warnings, schemas, self.work)
        except (OptionsError, SchemaRegistryError) as error:
            reader = RefusedReader(error)
        if TELLS_START:
            return reader
        # Only older versions need it.
        from spark_plugin.plain_reader import PlainReader  # noqa: PLC0415

        return PlainReader(reader, self.folder)

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
        from spark_plugin.sink import ending_sink, stream_sink  # noqa: PLC0415 - as in writer()

        # For tasks, Spark makes a new source. To end a batch, it sends the one that it has.
        if self.is_sent:
            return ending_sink(self.options)
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
    if schema != source._with_added(_schema(parsed.options, schemas)):  # noqa: SLF001 - of this module
        why = (
            "as Spark's kafka source has them"
            if schemas is None
            else f"as the schemas say: {', '.join(map(str, schemas.columns))}"
        )
        raise OptionsError([f"schema: the columns are fixed, {why}; leave out .schema()"])
    return parsed, schemas


def _merged(streaming: Sequence[str], batch: Sequence[str]) -> list[str]:
    """The faults of both kinds of query, while it is not known which of them this will be."""
    return [
        *(text for text in streaming if text in batch),
        *(f"{text} [as a stream]" for text in streaming if text not in batch),
        *(f"{text} [as a batch]" for text in batch if text not in streaming),
    ]
