"""Strings: payloads that are UTF-8.

Cost: one pass of Arrow's check over all bytes, and no copy where rows lie side by side. If a row is
bad, one more pass of Python's decoder finds which; Python's objects are made of bad rows alone, and
of those beside a character that rows share.
"""

import codecs
from bisect import bisect_right
from threading import Lock
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kshare.formats.decoder import Decoded, Fault
from kshare.formats.payloads import Payloads

__all__ = ["StringDecoder", "binary_array"]

_HANDLER: Final = "kshare.find-rows"


class StringDecoder:
    """Decodes UTF-8."""

    @property
    def type(self) -> pa.DataType:
        """``string``."""
        return pa.string()

    def decode(self, payloads: Payloads) -> Decoded:
        """Make strings of payloads; one that is not UTF-8 is bad."""
        starts, ends = payloads.starts, payloads.ends
        values = binary_array(payloads.data, starts, ends, pa.string())
        try:
            values.validate(full=True)
        except pa.ArrowInvalid:
            faults = _faults(payloads)
            starts = starts.copy()
            starts[[fault.row for fault in faults]] = -1
            return Decoded(binary_array(payloads.data, starts, ends, pa.string()), faults)
        return Decoded(values, ())


def binary_array(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    kind: pa.DataType,
) -> pa.Array:
    """An array of the bytes from each start to its end; null where the start is -1.

    Args:
        data: The bytes, fewer than 2 GiB.
        starts: Of each row, the begin; ascending but for -1.
        ends: Of each row, the end.
        kind: ``string`` or ``binary``.
    """
    rows = len(starts)
    there = starts >= 0
    validity = None
    if not there.all():
        validity = pa.py_buffer(np.packbits(there, bitorder="little"))
    first = np.where(there, starts, ends)
    if rows and (first[1:] == ends[:-1]).all():
        offsets = np.concatenate([first[:1], ends]).astype(np.int32)
        kept: Any = data
    else:
        sizes = ends - first
        offsets = np.zeros(rows + 1, np.int32)
        np.cumsum(sizes, out=offsets[1:])
        # Of each byte that is kept, its place: where its row begins there, less where here.
        places = np.repeat(first - offsets[:-1], sizes) + np.arange(int(offsets[-1]))
        kept = data[places]
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(kept)]
    return pa.Array.from_buffers(kind, rows, buffers)


def _faults(payloads: Payloads) -> tuple[Fault, ...]:
    """The rows that are not UTF-8, ascending."""
    starts, ends, data = payloads.starts, payloads.ends, payloads.data
    rows = np.flatnonzero((starts >= 0) & (ends > starts))
    if not len(rows):
        return ()
    begin, end = int(starts[rows[0]]), int(ends[rows[-1]])
    # Bytes between rows, such as framings, are no text: then rows are looked at one after another.
    side_by_side = (starts[rows[1:]] == ends[rows[:-1]]).all()
    suspects = set[int]()
    if side_by_side:
        whole = data[begin:end].tobytes()
        if not whole.isascii():
            bounds = (starts[rows] - begin).tolist()
            suspects |= {int(rows[k]) for k in _invalid(whole, [*bounds, end - begin])}
            # A character that begins in one row and goes on in the next is one of the whole only.
            shared = np.flatnonzero(data[starts[rows]] & 0xC0 == 0x80)
            suspects |= set(rows[shared].tolist()) | set(rows[np.maximum(shared - 1, 0)].tolist())
    else:
        kept = binary_array(data, starts, ends, pa.binary())
        _, offsets, values = kept.buffers()
        bounds64 = np.frombuffer(offsets, np.int32, len(kept) + 1).astype(np.int64)
        dense = Payloads(
            np.frombuffer(values, np.uint8),
            np.where(starts >= 0, bounds64[:-1], -1),
            bounds64[1:],
            payloads.writers,
        )
        return _faults(dense)
    found = []
    for row in sorted(suspects):
        try:
            data[starts[row] : ends[row]].tobytes().decode()
        except UnicodeDecodeError as error:
            found.append(Fault(row, "", f"is not UTF-8: byte {error.start} is wrong"))
    return tuple(found)


def _invalid(whole: bytes, bounds: list[int]) -> set[int]:
    """The rows in which Python's decoder finds something wrong, by their number.

    Args:
        whole: The rows side by side.
        bounds: Where each begins, and where the last one ends.
    """
    found = set[int]()

    def next_row(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeDecodeError)
        row = bisect_right(bounds, error.start) - 1
        found.add(row)
        return "", bounds[row + 1]

    with _REGISTERED:  # the name is one for all threads
        codecs.register_error(_HANDLER, next_row)
        whole.decode("utf-8", _HANDLER)
    return found


_REGISTERED: Final = Lock()
