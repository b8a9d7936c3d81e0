"""The sizes of record batches, found in the log.

Cost: all bytes that are looked at are fetched; nothing is decompressed, and no record is read.
"""

from collections.abc import Sequence

from kshare.core.progress import Slice
from kshare.options import SourceOptions
from kshare.wire.decode.batch_index import BatchIndex
from kshare.wire.protocol.broker_pool import Brokers
from kshare.wire.reader.slice_reader import SliceReader
from kshare.wire.reader.slice_records import WantedSlice

__all__ = ["find_sizes"]

_HEAD_BYTES = 61


def find_sizes(
    wanted: Sequence[tuple[Slice, int]], options: SourceOptions, *, brokers: Brokers | None = None
) -> list[list[tuple[int, int]]]:
    """The record batches of slices, until they have more than some bytes. One pass for all.

    Args:
        wanted: Slices, each with a number of bytes; no two of them hold the same record.
        options: Options as for :func:`kshare.wire.reader.read_slice.read_slice`.
        brokers: The brokers of the cluster; None for those that the options name.

    Returns:
        For each slice the offset after each record batch, and its size in bytes; ascending. If a
        slice has no more than these bytes, the last offset is its end or beyond.

    Raises:
        KshareError: The slice cannot be read; as for
            :func:`kshare.wire.reader.read_slice.read_slices`.
    """
    heads = [_Heads(slice_, most) for slice_, most in wanted]
    slices = [WantedSlice(each.slice, on_heads=each.take) for each in heads]
    for _ in SliceReader(slices, options, brokers=brokers).batches():
        raise AssertionError("heads alone are looked at")
    return [each.found() for each in heads]


class _Heads:
    """The record batches of one slice."""

    def __init__(self, slice_: Slice, most: int) -> None:
        self.slice = slice_
        self._left = most
        self._batches: list[tuple[int, int]] = []

    def take(self, index: BatchIndex) -> bool:
        """Take a response; return whether that is enough."""
        heads = index.batches
        ends = (heads["base_offset"] + heads["last_delta"] + 1).tolist()
        sizes = (heads["end"] - heads["start"] + _HEAD_BYTES).tolist()
        new = [at for at in zip(ends, sizes, strict=True) if at[0] > index.fetch_offset]
        self._batches += new
        self._left -= sum(size for _, size in new)
        return self._left < 0

    def found(self) -> list[tuple[int, int]]:
        """The record batches; the slice's end too, if what is before it is gone."""
        end = self.slice.offsets.end
        if self._left >= 0 and (not self._batches or self._batches[-1][0] < end):
            return [*self._batches, (end, 0)]
        return self._batches
