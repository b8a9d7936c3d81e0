"""Where a limited slice ends, found in the log by scanning keys.

Law: the answer is that of a reader with the same limit, at any time, as long as the log holds what
it held. Cost: all bytes to the end are fetched and their keys hashed; no value is copied.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from kshare.core.progress import Slice
from kshare.options import SourceOptions
from kshare.wire.decode.records import BatchIndex
from kshare.wire.reader.slice_reader import SliceReader

__all__ = ["find_end"]


class _Scanner(SliceReader):
    """Counts the records that a reader would deliver."""

    def _deliver(
        self, index: BatchIndex, aborted: Sequence[tuple[int, int]]
    ) -> Iterator[pa.RecordBatch]:
        assert self._max_records is not None
        self._count(*self._decoder.count(index, aborted, self._max_records - self._records))
        return iter(())


def find_end(slice_: Slice, options: SourceOptions, max_records: int) -> int:
    """The offset where the reading of a slice ends that stops after so many records.

    Args:
        slice_: the slice.
        options: as for :func:`kshare.wire.reader.read_slice.read_slice`, and its errors.
        max_records: the limit, at least 1.
    """
    reader = _Scanner(slice_, options, max_records=max_records)
    for _ in reader.batches():
        raise AssertionError("a scan delivers nothing")
    return reader.slice_end.end
