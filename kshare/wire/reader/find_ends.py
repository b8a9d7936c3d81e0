"""The ends of limited slices, found in the log by scanning keys.

The answers are those of readers with the same limits, at any time, as long as the log holds what it
held. Cost: all bytes to the ends are fetched once for all slices of a partition, and their keys
hashed for each; no value is copied.
"""

from collections.abc import Sequence

from kshare.core.progress import Slice
from kshare.core.slice_end import SliceEnd
from kshare.options import SourceOptions
from kshare.wire.protocol.broker_pool import Brokers
from kshare.wire.reader.slice_reader import SliceReader
from kshare.wire.reader.slice_records import WantedSlice

__all__ = ["find_ends"]


def find_ends(
    limited: Sequence[tuple[Slice, int]],
    options: SourceOptions,
    *,
    brokers: Brokers | None = None,
) -> list[SliceEnd]:
    """Where the reading of slices with limits ends, and after how many records; in one pass.

    Args:
        limited: The slices, each with its maximum number of records; no two of them hold the same
            record.
        options: Options as for :func:`kshare.wire.reader.read_slice.read_slice`.
        brokers: The brokers of the cluster; None for those that the options name.

    Raises:
        ValueError: A limit is less than 1.
        KshareError: One of the slices cannot be read; as for
            :func:`kshare.wire.reader.read_slice.read_slices`.
    """
    wanted = [WantedSlice(slice_, most, count_only=True) for slice_, most in limited]
    reader = SliceReader(wanted, options, brokers=brokers)
    for _ in reader.batches():
        raise AssertionError("a scan delivers nothing")
    return [part.slice_end for part in reader.slices]
