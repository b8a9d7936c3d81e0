"""Where a limited slice ends, found in the log by scanning keys.

The answer is that of a reader with the same limit, at any time, as long as the log holds what it
held. Cost: all bytes to the end are fetched and their keys hashed; no value is copied.
"""

from kshare.core.progress import Slice
from kshare.options import SourceOptions
from kshare.wire.protocol.broker_pool import Brokers
from kshare.wire.reader.slice_reader import SliceReader
from kshare.wire.reader.slice_records import WantedSlice

__all__ = ["find_end"]


def find_end(
    slice_: Slice, options: SourceOptions, max_records: int, *, brokers: Brokers | None = None
) -> int:
    """The offset where the reading of a slice with a limit ends.

    Args:
        slice_: The slice.
        options: Options as for :func:`kshare.wire.reader.read_slice.read_slice`.
        max_records: Maximum number of records to read, at least 1.
        brokers: The brokers of the cluster; None for those that the options name.

    Raises:
        ValueError: ``max_records`` is less than 1.
        KshareError: As for :func:`kshare.wire.reader.read_slice.read_slice`.
    """
    wanted = WantedSlice(slice_, max_records, count_only=True)
    reader = SliceReader([wanted], options, brokers=brokers)
    for _ in reader.batches():
        raise AssertionError("a scan delivers nothing")
    return reader.slices[0].slice_end.end
