"""Reading slices without Spark: the library's way into the read path.

Options that cannot be used are reported at the call, before anything is contacted. Cost: the
reader's own, and for ``on_end`` a few key hashes for each record batch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from kshare.core.fetch_groups import FetchGroup
from kshare.core.progress import Slice
from kshare.core.slice_end import SliceEnd
from kshare.options import SourceOptions, parse_options
from kshare.wire.reader.slice_reader import SliceReader
from kshare.wire.reader.slice_records import WantedSlice

__all__ = ["WantedSlice", "read_slice", "read_slices", "reader_options"]


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
            ``keys``, ``includeHeaders`` and ``failOnDataLoss`` matter here. A mapping needs no
            subscription.
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
    return read_slices([WantedSlice(slice_, max_records, on_end, fetch_group)], options)


def read_slices(
    wanted: Sequence[WantedSlice], options: Mapping[str, str] | SourceOptions
) -> Iterator[pa.RecordBatch]:
    """Read the records of several slices together, with one Fetch request at a time to each leader.

    Each slice yields the same rows as :func:`read_slice`, in offset order, and up to the same end.
    So the order within each key holds, and a task that is run again reads the same. How rows of
    different slices alternate depends on the sizes of responses; slices of one partition are read
    in one pass.

    A leader that moves, a fault that passes, and offsets that are lost concern their partition
    alone: others are read on meanwhile. An error ends the reading of all slices.

    Cost: a round trip for each leader where all that is wanted fits into a response. The responses
    of all leaders together are no larger than one of ``max.partition.fetch.bytes``, and small
    record batches are joined, so memory is that of :func:`read_slice`.

    Args:
        wanted: The slices, each with its own limit, callback and fetch group; see
            :class:`WantedSlice`. They may be of any topics and partitions, and any number may be of
            one partition, but no two may hold the same record. None at all is no error.
        options: As for :func:`read_slice`; the same for all slices.

    Yields:
        Batches of the columns of Spark's kafka source, about 8 MiB each at most. A batch may hold
        rows of several slices, one after the other. The ``on_end`` of each slice is called after
        the batch with its last row was taken, while others may still be read.

    Raises:
        OptionsError: The options cannot be used; raised at the call, before anything is contacted.
        KafkaError: :mod:`kshare.errors` has the kinds. The error names the partition.
        DataLossError: Wanted offsets of a slice are gone, and ``failOnDataLoss`` is true.
        RecordError: The log's bytes are damaged or in a format that is not read.
    """
    if not wanted:
        return iter(())
    parsed = reader_options(options, *{each.slice.topic for each in wanted})
    return SliceReader(wanted, parsed).batches()


def reader_options(options: Mapping[str, str] | SourceOptions, *topics: str) -> SourceOptions:
    """The options of a reader of some topics, parsed.

    Raises:
        OptionsError: They cannot be used.
    """
    if isinstance(options, SourceOptions):
        return options
    names = {name.lower() for name in options}
    if not names & {"subscribe", "subscribepattern", "assign"}:
        options = {**options, "subscribe": ",".join(topics)}
    return parse_options(options, streaming=False).options
