"""Typed rows in Spark: the columns of a query, and the rows of its tasks.

Imported by queries with ``valueFormat`` or ``keyFormat`` alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from secrets import token_hex
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType

from kshare.core.progress import Slice
from kshare.core.tasks import PlannedSlice
from kshare.formats.schemas import ReaderSchemas, found_schemas
from kshare.formats.typed_columns import RowTyper, column_types, raw_columns
from kshare.options import SourceOptions

if TYPE_CHECKING:
    from kshare.wire.reader.read_slice import OnEnd

__all__ = ["find_schemas", "spark_types", "typed_slices"]


def find_schemas(options: SourceOptions) -> ReaderSchemas:
    """Find the reader schemas that options with typed rows ask for.

    Raises:
        OptionsError: They cannot be read.
        SchemaRegistryError: The registry does not answer, or refuses.
    """
    assert options.typed_rows is not None
    return found_schemas(options.typed_rows, options.kafka, token_hex(8))


def spark_types(schemas: ReaderSchemas, names: Sequence[str]) -> dict[str, DataType]:
    """Spark's types of the columns that typed rows change or add, of those that are named."""
    return {name: from_arrow_type(kind) for name, kind in column_types(schemas, names).items()}


def typed_slices(
    slices: Sequence[PlannedSlice],
    options: SourceOptions,
    schemas: ReaderSchemas,
    on_end: "Mapping[Slice, OnEnd]",
) -> Iterator[pa.RecordBatch]:
    """Read a task's slices, and type their rows.

    A slice's end is reported when its last rows are typed, and bad ones are written.
    """
    from kshare.wire.reader.read_slice import read_slices  # noqa: PLC0415 - the kernels: tasks only

    names = options.column_names
    places = {(each.slice.topic, each.slice.partition) for each in slices}
    place = next(iter(places)) if len(places) == 1 else None
    raw = raw_columns(schemas, names, one_partition=place is not None)
    reading = replace(options, columns=raw, include_headers="headers" in raw)
    with ExitStack() as stack:
        set_aside = None
        topic = schemas.rows.bad_records.topic
        if topic is not None:
            # Brings the engine of handlers: 0.2 s that other tasks do without.
            from kshare.dead_letters.bad_records import BadRecordLetters  # noqa: PLC0415

            set_aside = stack.enter_context(closing(BadRecordLetters(options.kafka, topic)))
        typer = RowTyper(schemas, options.kafka, names, place=place, set_aside=set_aside)
        yield from typer.batches(read_slices(slices, reading, on_end))
