"""Timestamps of records, found in the log.

Cost: for the first records of slices, a request of 64 KiB for each partition where the records lie
close; for a later record, all bytes up to it, without keys and values.
"""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from kshare.core.progress import Slice, TopicPartition
from kshare.core.time_bound import StampedOffset
from kshare.options import SourceOptions
from kshare.wire.protocol.broker_pool import Brokers
from kshare.wire.reader.slice_reader import SliceReader
from kshare.wire.reader.slice_records import WantedSlice

__all__ = ["find_first", "find_later"]


def find_first(
    slices: Sequence[Slice], options: SourceOptions, *, brokers: Brokers | None = None
) -> list[StampedOffset | None]:
    """The first record of each slice; None for a slice without records. One pass for all.

    Args:
        slices: Slices of any partitions; no offset of a partition is in two of them.
        options: Options as for :func:`kshare.wire.reader.read_slice.read_slice`.
        brokers: The brokers of the cluster; None for those that the options name.

    Raises:
        KshareError: One of the slices cannot be read; as for
            :func:`kshare.wire.reader.read_slice.read_slices`.
    """
    wanted = [WantedSlice(slice_, 1) for slice_ in slices]
    columns = ("topic", "partition", "offset", "timestamp")
    reader = SliceReader(wanted, _reading(options, columns), brokers=brokers)
    found: dict[TopicPartition, list[StampedOffset]] = {}
    for batch in reader.batches():
        topics, partitions, offsets = (batch.column(name).to_pylist() for name in columns[:3])
        times = _milliseconds(batch).to_pylist()
        for topic, partition, *at in zip(topics, partitions, offsets, times, strict=True):
            found.setdefault(TopicPartition(topic, partition), []).append(StampedOffset(*at))
    return [_within(slice_, found.get(slice_.topic_partition, ())) for slice_ in slices]


def find_later(
    slice_: Slice, than_ms: int, options: SourceOptions, *, brokers: Brokers | None = None
) -> int | None:
    """The offset of a slice's first record with a later timestamp; None if it has none.

    Args:
        slice_: The slice.
        than_ms: The timestamp, milliseconds since 1970.
        options: As for :func:`find_first`; so are brokers and errors.
        brokers: The brokers of the cluster.
    """
    columns = ("offset", "timestamp")
    reader = SliceReader([WantedSlice(slice_)], _reading(options, columns), brokers=brokers)
    batches = reader.batches()
    try:
        for batch in batches:
            first = pc.index(pc.greater(_milliseconds(batch), than_ms), True).as_py()
            if first >= 0:
                offset: int = batch.column("offset")[first].as_py()
                return offset
    finally:
        batches.close()  # type: ignore[attr-defined]
    return None


def _reading(options: SourceOptions, columns: tuple[str, ...]) -> SourceOptions:
    """The options, for some columns alone, and for all keys: one that is rare is far away."""
    return replace(options, columns=columns, include_headers=False, keys=None)


def _milliseconds(batch: pa.RecordBatch) -> pa.Array:
    return pc.divide(batch.column("timestamp").cast(pa.int64()), 1000)


def _within(slice_: Slice, found: Sequence[StampedOffset]) -> StampedOffset | None:
    offsets = slice_.offsets
    return next((at for at in found if offsets.start <= at.offset < offsets.end), None)
