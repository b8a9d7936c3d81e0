"""Reading a slice without Spark: the library's way into the read path.

Options that cannot be used are reported at the call, before anything is contacted. Cost: the
reader's own, and for ``on_end`` a few key hashes for each record batch.
"""

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa

from kshare.core.fetch_groups import FetchGroup
from kshare.core.progress import Slice
from kshare.core.slice_end import SliceEnd
from kshare.options import SourceOptions, parse_options
from kshare.wire.reader.slice_reader import SliceReader
from kshare.wire.reader.slice_records import WantedSlice

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
        slice_: Topic, partition and rectangles of offsets x key hashes. Every offset must have been
            below the high watermark (``read_committed``: the last stable offset) when the slice was
            made; the reader waits for it otherwise, up to ``default.api.timeout.ms``.
        options: Options of ``format("kshare")``; of these the ``kafka.*`` ones,
            ``includeHeaders`` and ``failOnDataLoss`` matter here. A mapping needs no subscription.
        max_records: Maximum number of records to read, at least 1; None for no limit.
        on_end: Called once, after the last batch was taken, with where reading ended. Not called
            when the reader fails or is closed before.
        fetch_group: Tasks that read the same offsets: what one of them fetches on this host, the
            others take from there. None, or ``max.bytes.key.range.results`` = 0, to fetch all.

    Yields:
        Batches of the columns of Spark's kafka source, about 8 MiB each at most, in offset order.

    Raises:
        ValueError: ``max_records`` is less than 1; raised at the call.
        OptionsError: The options cannot be used; raised at the call, before anything is contacted.
        KafkaError: :mod:`kshare.errors` has the kinds.
        DataLossError: Wanted offsets are gone, and ``failOnDataLoss`` is true.
        RecordError: The log's bytes are damaged or in a format that is not read.
    """
    parsed = reader_options(options, slice_.topic)
    return SliceReader([WantedSlice(slice_, max_records, on_end, fetch_group)], parsed).batches()


def reader_options(options: Mapping[str, str] | SourceOptions, topic: str) -> SourceOptions:
    """The options of a reader of one topic, parsed.

    Raises:
        OptionsError: They cannot be used.
    """
    if isinstance(options, SourceOptions):
        return options
    names = {name.lower() for name in options}
    if not names & {"subscribe", "subscribepattern", "assign"}:
        options = {**options, "subscribe": topic}
    return parse_options(options, streaming=False).options
