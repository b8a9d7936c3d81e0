"""Confluent's message indexes: which message of a file a record is, behind the schema's id.

https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html:
the number of indexes and then each, as zigzag varints; the first message of a file is one byte 0.

Cost: a few passes of numpy; Python for rows of another message alone.
"""

from dataclasses import replace

import numpy as np

from kshare.formats.decoder import Fault
from kshare.formats.payloads import Payloads
from kshare.formats.protobuf.varints import read_varint, varint

__all__ = ["index_bytes", "without_indexes"]

_MOST_INDEXES = 100  # messages that are in one another


def index_bytes(path: tuple[int, ...]) -> bytes:
    """Return the indexes of a message as bytes.

    Args:
        path: Its number in the file, and those of the messages below, down to it.
    """
    if path == (0,):
        return b"\0"
    return b"".join(varint(2 * number) for number in (len(path), *path))


def without_indexes(
    payloads: Payloads, path: tuple[int, ...], name: str
) -> tuple[Payloads, tuple[Fault, ...]]:
    """Return payloads behind their indexes, and the rows of other messages as faults.

    Args:
        payloads: The payloads.
        path: The indexes of the message that is wanted.
        name: Its name.
    """
    wanted = np.frombuffer(index_bytes(path), np.uint8)
    starts, ends, data = payloads.starts, payloads.ends, payloads.data
    there = starts >= 0
    fits = there & (ends - starts >= len(wanted))
    if fits.any():
        at = np.where(fits, starts, starts[np.argmax(fits)])
        for place, byte in enumerate(wanted):
            fits &= data[at + place] == byte
    behind = np.where(fits, starts + len(wanted), -1)
    faults = []
    for row in np.flatnonzero(there & ~fits).tolist():
        payload = data[starts[row] : ends[row]].tobytes()
        try:
            found, size = _read(payload)
        except ValueError as error:
            faults.append(Fault(row, "", f"begins with no message indexes: {error}"))
            continue
        if found == path:
            behind[row] = starts[row] + size
        else:
            faults.append(
                Fault(
                    row, "", f"is message {_text(found)} of its file, and {name} is {_text(path)}"
                )
            )
    return replace(payloads, starts=behind), tuple(faults)


def _read(payload: bytes) -> tuple[tuple[int, ...], int]:
    """The indexes of a payload, and their size.

    Raises:
        ValueError: There are none.
    """
    count, at = read_varint(payload, 0)
    if count == 0:
        return (0,), at
    if count % 2 or count > 2 * _MOST_INDEXES:
        raise ValueError(f"their number is {count / 2:g}")
    found = []
    for _ in range(count // 2):
        index, at = read_varint(payload, at)
        if index % 2:
            raise ValueError("one is negative")
        found.append(index // 2)
    return tuple(found), at


def _text(path: tuple[int, ...]) -> str:
    return ".".join(map(str, path))
