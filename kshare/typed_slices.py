"""The records of slices with typed columns: what tasks of Spark read, and ``kshare.read_slice``.

Without ``valueFormat`` or ``keyFormat``, slices have bytes, and nothing of formats is imported.
"""

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from secrets import token_hex
from typing import TYPE_CHECKING

import pyarrow as pa

from kshare.core.progress import Slice
from kshare.core.slice_end import SliceEnd
from kshare.core.tasks import FetchGroup, PlannedSlice
from kshare.options import SourceOptions
from kshare.read.reader.read_slice import OnEnd, read_slices, reader_options

if TYPE_CHECKING:
    from kshare.formats.schemas import ReaderSchemas

__all__ = ["read_slice", "typed_batches", "typed_slices"]


def read_slice(
    slice_: Slice,
    options: Mapping[str, str] | SourceOptions,
    *,
    max_records: int | None = None,
    on_end: Callable[[SliceEnd], None] | None = None,
    fetch_group: FetchGroup | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read the records of a slice from Kafka, without Spark.

    Args:
        slice_: Topic, partition and rectangles of offsets x key hashes. Every offset must have been
            below the high watermark (``read_committed``: the last stable offset) when the slice was
            made; the reader waits for it otherwise, up to ``default.api.timeout.ms``.
        options: Options of ``format("kshare")``; of these the ``kafka.*`` ones, ``columns``,
            ``keys``, ``includeHeaders``, ``failOnDataLoss`` and those of typed rows matter here. A
            mapping needs no subscription.
        max_records: Maximum number of records to read, at least 1; None for no limit.
        on_end: Called once, after the last batch was taken, with where reading ended. Not called
            when the reader fails or is closed before.
        fetch_group: Tasks that read the same offsets: what one of them fetches on this host, the
            others take from there. None, or ``max.bytes.key.range.results`` = 0, to fetch all.

    Yields:
        Batches of the columns of Spark's kafka source, about 8 MiB each at most, in offset order;
        with ``valueFormat`` or ``keyFormat``, of typed columns.

    Raises:
        ValueError: ``max_records`` is less than 1; raised at the call.
        OptionsError: The options or schemas cannot be used; raised at the call.
        SchemaRegistryError: The registry does not answer, or refuses.
        BadRecordError: A record cannot be decoded, with ``badRecords=fail``.
        KafkaError: :mod:`kshare.errors` has the kinds.
        DataLossError: Wanted offsets are gone, and ``failOnDataLoss`` is true.
        RecordError: The log's bytes are damaged or in a format that is not read.
    """
    parsed = reader_options(options, slice_.topic, typed=True)
    planned = [PlannedSlice(slice_, max_records, fetch_group=fetch_group)]
    ends: Mapping[Slice, OnEnd] = {} if on_end is None else {slice_: on_end}
    if parsed.typed_rows is None:
        return read_slices(planned, parsed, ends)
    from kshare.formats.schemas import found_schemas  # noqa: PLC0415 - others do without

    schemas = found_schemas(parsed.typed_rows, parsed.kafka, token_hex(8))
    return typed_slices(planned, parsed, schemas, ends)


def typed_slices(
    slices: Sequence[PlannedSlice],
    options: SourceOptions,
    schemas: "ReaderSchemas",
    on_end: Mapping[Slice, OnEnd],
) -> Iterator[pa.RecordBatch]:
    """Read slices, and type their rows.

    A slice's end is reported when its last rows are typed, and bad ones are written.

    Args:
        slices: The slices.
        options: The options.
        schemas: The reader schemas.
        on_end: As for :func:`kshare.read.reader.read_slice.read_slices`.
    """
    places = {each.slice.topic_partition for each in slices}
    typed = typed_batches(lambda raw: read_slices(slices, raw, on_end), places, options, schemas)
    return _with_rows(typed)


def _with_rows(batches: Generator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with closing(batches):
        for batch in batches:
            if batch.num_rows:
                yield batch


def typed_batches(
    read: Callable[[SourceOptions], Generator[pa.RecordBatch]],
    places: Collection[tuple[str, int]],
    options: SourceOptions,
    schemas: "ReaderSchemas",
) -> Generator[pa.RecordBatch, None, None]:
    """Type the rows that a reader brings: a batch for each of its batches, also without rows.

    A task that reads for a while notices only by a batch that nobody wants its rows any more. So
    one whose rows are all set aside says that it is there, too.

    Args:
        read: Reads as bytes, by the options that it gets.
        places: Topics and partitions that it reads.
        options: The options of the typed rows.
        schemas: The reader schemas.
    """
    from kshare.formats.typed_columns import raw_columns  # noqa: PLC0415 - others do without

    place = next(iter(places)) if len(places) == 1 else None
    raw = raw_columns(schemas.rows, options.column_names, one_partition=place is not None)
    reading = replace(options, columns=raw, include_headers="headers" in raw)
    return _typed(read(reading), options, schemas, place)


def _typed(
    raw: Generator[pa.RecordBatch],
    options: SourceOptions,
    schemas: "ReaderSchemas",
    place: tuple[str, int] | None,
) -> Generator[pa.RecordBatch, None, None]:
    from kshare.formats.typed_columns import RowTyper  # noqa: PLC0415 - others do without

    with ExitStack() as stack:
        stack.enter_context(closing(raw))  # a bad record ends the reading here, not there
        set_aside = None
        topic = schemas.rows.bad_records.topic
        if topic is not None:
            # Brings librdkafka's producer, which others do without.
            from kshare.dead_letters.bad_records import BadRecordLetters  # noqa: PLC0415

            set_aside = stack.enter_context(closing(BadRecordLetters(options.kafka, topic)))
        typer = RowTyper(
            schemas, options.kafka, options.column_names, place=place, set_aside=set_aside
        )
        yield from typer.batches(raw)
