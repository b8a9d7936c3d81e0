"""Framings: the bytes in front of a payload that name its schema, of a whole column at once.

::

    confluent      00           id: 4 bytes, big-endian               payload
    apicurio       00           global id: 8 bytes, big-endian        payload
    glue           03 00        uuid: 16 bytes                        payload (03 05: zlib, bad)
    singleObject   C3 01        fingerprint: 8 bytes, little-endian   payload
    none                                                              payload

Of Protobuf, the message indexes come next: they are the decoder's. Rows that name their schema in a
header (:mod:`kshare.formats.header_ids`) have nothing in front.

Cost: a few passes of numpy; Python for bad rows alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kshare.formats.decoder import Fault
from kshare.options.typed_rows import Framing

__all__ = ["NO_IDS", "Framed", "bytes_of", "unframed"]

_MAGIC: Final[dict[Framing, bytes]] = {
    "confluent": b"\0",
    "apicurio": b"\0",
    "glue": b"\3\0",
    "singleObject": b"\xc3\1",
    "none": b"",
}
_ID_BYTES: Final[dict[Framing, int]] = {
    "confluent": 4,
    "apicurio": 8,
    "glue": 16,
    "singleObject": 8,
    "none": 0,
}
_ZLIB: Final = 5
NO_IDS: Final[npt.NDArray[np.int64]] = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Framed:
    """The payloads of a column.

    Attributes:
        data: The column's bytes.
        starts: Of each row, where its payload begins; -1: there is none, it is null or bad.
        ends: Of each row, where it ends.
        ids: Of each row, the id or fingerprint of its schema, of any value where there is no
            payload; empty where the framing has none that are numbers.
        faults: Why rows are bad, ascending.
    """

    data: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64]
    faults: tuple[Fault, ...] = ()


def unframed(
    column: pa.Array, framing: Framing, bare: npt.NDArray[np.bool_] | None = None
) -> Framed:
    """Find payloads, and the ids of their schemas.

    Args:
        column: The bytes of all rows, of type ``binary``.
        framing: What stands in front.
        bare: The rows that have nothing in front; None: none.
    """
    data, starts, ends = bytes_of(column)
    magic, width = _MAGIC[framing], _ID_BYTES[framing]
    head = len(magic) + width
    if not head:
        return Framed(data, starts, ends, NO_IDS)
    there = starts >= 0
    if bare is not None:
        there &= ~bare
    fits = there & (ends - starts >= head)
    at = np.where(fits, starts, 0)
    if fits.any():
        for k, byte in enumerate(magic):
            fits &= data[at + k] == byte
    faults = tuple(_faults(np.flatnonzero(there & ~fits), data, starts, ends, framing))
    ids = NO_IDS
    if framing != "glue":
        ids = np.zeros(len(starts), np.int64)
        if fits.any():
            at = np.where(fits, starts, starts[np.argmax(fits)]) + len(magic)
            for k in range(width)[:: -1 if framing == "singleObject" else 1]:
                ids <<= 8
                ids |= data[at + k]
    behind = np.where(fits, starts + head, -1)
    if bare is not None:
        behind = np.where(bare, starts, behind)
    return Framed(data, behind, ends, ids, faults)


def bytes_of(
    column: pa.Array,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The bytes of a binary column, and of each row where they begin and end; begin -1: null."""
    validity, offsets, values = column.buffers()
    rows, first = len(column), column.offset
    if not rows:
        none = np.zeros(0, np.int64)
        return np.zeros(0, np.uint8), none, none
    bounds = np.frombuffer(offsets, np.int32, rows + 1, first * 4).astype(np.int64)
    data = np.zeros(0, np.uint8) if values is None else np.frombuffer(values, np.uint8)
    starts, ends = bounds[:-1], bounds[1:]
    if validity is not None and column.null_count:
        bits = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
        starts = np.where(bits[first : first + rows], starts, -1)
    return data, starts, ends


def _faults(
    rows: npt.NDArray[np.int64],
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    framing: Framing,
) -> Iterator[Fault]:
    magic = _MAGIC[framing]
    head = len(magic) + _ID_BYTES[framing]
    for row in rows.tolist():
        size = int(ends[row] - starts[row])
        found = data[starts[row] : starts[row] + len(magic)].tobytes()
        if framing == "glue" and found[:1] == magic[:1] and found[1:] == bytes([_ZLIB]):
            reason = "is compressed with zlib, which is not built"
        elif found != magic[: len(found)]:
            reason = f"begins with {_hex(found)}, where the framing {framing} has {_hex(magic)}"
        else:
            bytes_ = "byte" if size == 1 else "bytes"
            reason = f"has {size} {bytes_}, where the framing {framing} alone has {head}"
        yield Fault(row, "", reason)


def _hex(text: bytes) -> str:
    return f"0x{text.hex()}"
