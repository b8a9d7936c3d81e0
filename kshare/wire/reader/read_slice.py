"""Reading a slice without Spark: the library's way into the read path.

Law: options that cannot be used are told at the call, before anything is contacted; the records are
those of :class:`~kshare.wire.reader.slice_reader.SliceReader`. Cost: the reader's own, and for
``on_end`` the sample's few hashes a record batch.
"""

from collections.abc import Callable, Generator, Iterator, Mapping

import pyarrow as pa

from kshare.core.fetch_groups import FetchGroup
from kshare.core.progress import Slice
from kshare.core.slice_end import KeySample, SliceEnd
from kshare.options import SourceOptions, parse_options
from kshare.wire.reader.slice_reader import SliceReader

__all__ = ["read_slice", "reader_options"]


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
        slice_: topic, partition and rectangles of offsets x key hashes. Every offset must have been
            below the high watermark (``read_committed``: the last stable offset) when the slice was
            made; the reader waits for it otherwise, up to ``default.api.timeout.ms``.
        options: the options of ``format("kshare")``; of these the ``kafka.*`` ones,
            ``includeHeaders`` and ``failOnDataLoss`` matter here. A mapping needs no subscription.
        max_records: stop after so many records, at least 1; None is no limit.
        on_end: called once, after the last batch was taken, with where reading ended. Not called
            when the reader fails or is closed before.
        fetch_group: tasks that read the same offsets: what one of them fetches on this host, the
            others take from there. None, or ``max.bytes.key.range.results`` = 0: fetch all.

    Yields:
        Batches of the columns of Spark's kafka source, about 8 MiB each at most, in offset order.

    Raises:
        ValueError: ``max_records`` is not at least 1; raised at the call.
        OptionsError: the options cannot be used; raised at the call, before anything is contacted.
        KafkaError: :mod:`kshare.errors` has the kinds.
        DataLossError: wanted offsets are gone, and ``failOnDataLoss`` is true.
        RecordError: the log's bytes are damaged or in a format that is not read.
    """
    options = reader_options(options, slice_.topic)
    sample = None if on_end is None else KeySample()
    reader = SliceReader(
        slice_, options, max_records=max_records, sample=sample, fetch_group=fetch_group
    )
    return reader.batches() if on_end is None else _reported(reader, on_end)


def reader_options(options: Mapping[str, str] | SourceOptions, topic: str) -> SourceOptions:
    """The options of a reader of one topic, parsed.

    Raises:
        OptionsError: they cannot be used.
    """
    if isinstance(options, SourceOptions):
        return options
    names = {name.lower() for name in options}
    if not names & {"subscribe", "subscribepattern", "assign"}:
        options = {**options, "subscribe": topic}
    return parse_options(options, streaming=False).options


def _reported(
    reader: SliceReader, on_end: Callable[[SliceEnd], None]
) -> Generator[pa.RecordBatch, None, None]:
    yield from reader.batches()
    on_end(reader.slice_end)
