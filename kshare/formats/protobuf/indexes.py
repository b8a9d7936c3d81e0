"""Confluent's message indexes: which message of a file a record is, behind the schema's id.

https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html:
the number of indexes and then each, as zigzag varints; the first message of a file is one byte 0.

Cost: a few passes of numpy; Python for rows of another message alone.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kshare.formats.decoder import Fault
from kshare.formats.payloads import Payloads
from kshare.formats.protobuf.evolution import WriterFile
from kshare.formats.protobuf.varints import read_varint, varint

__all__ = ["index_bytes", "read_indexes", "without_indexes"]

_MOST_INDEXES = 100  # messages that are in one another


def index_bytes(path: tuple[int, ...]) -> bytes:
    """Return the indexes of a message as bytes.

    Args:
        path: Its number in the file, and those of the messages below, down to it.
    """
    if path == (0,):
        return b"\0"
    return b"".join(varint(2 * number) for number in (len(path), *path))


def read_indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """Return the indexes at the beginning of some bytes, and their size.

    Raises:
        ValueError: There are none.
    """
    count, at = read_varint(data, 0)
    if count == 0:
        return (0,), at
    if count % 2 or count > 2 * _MOST_INDEXES:
        raise ValueError(f"their number is {count / 2:g}")
    found = []
    for _ in range(count // 2):
        index, at = read_varint(data, at)
        if index % 2:
            raise ValueError("one is negative")
        found.append(index // 2)
    return tuple(found), at


def without_indexes(
    payloads: Payloads, files: Sequence[WriterFile], name: str
) -> tuple[Payloads, tuple[Fault, ...]]:
    """Return payloads behind their indexes, and the rows of other messages as faults.

    Args:
        payloads: The payloads; their writers are numbers of files.
        files: The files that they were written with.
        name: The name of the message that is wanted.
    """
    heads = [index_bytes(each.path) if each.indexed and each.path else b"" for each in files]
    width = max(map(len, heads))
    table = np.array([list(head.ljust(width, b"\0")) for head in heads], np.uint8)
    table = table.reshape(len(heads), width)
    usable = np.array([each.path is not None and each.refused is None for each in files])
    starts, ends, data, writers = payloads.starts, payloads.ends, payloads.data, payloads.writers
    sizes = np.array([len(head) for head in heads], np.int64)[writers]
    there = starts >= 0
    fits = there & usable[writers] & (ends - starts >= sizes)
    for place in range(width):
        in_head = fits & (place < sizes)
        if in_head.any():
            at = np.where(in_head, starts, starts[np.argmax(in_head)]) + place
            fits &= ~in_head | (data[at] == table[writers, place])
    behind = np.where(fits, starts + sizes, -1)
    faults = []
    for row in np.flatnonzero(there & ~fits).tolist():
        file = files[writers[row]]
        payload = data[starts[row] : ends[row]].tobytes()
        found = _other(payload, file, name) if file.indexed else _refused(file)
        if isinstance(found, int):
            behind[row] = starts[row] + found
        else:
            faults.append(replace(found, row=row))
    return replace(payloads, starts=behind), tuple(faults)


def _other(payload: bytes, file: WriterFile, name: str) -> int | Fault:
    """The size of a payload's indexes, if it is to be read; else why it is not."""
    if not file.names and file.refused is not None:
        return _refused(file)  # nothing is known of its messages
    try:
        found, size = read_indexes(payload)
    except ValueError as error:
        return Fault(0, "", f"begins with no message indexes: {error}")
    if found == file.path:
        return size if file.refused is None else _refused(file)
    which = f"{_text(found)} of its file"
    if not file.names:
        assert file.path is not None
        return Fault(0, "", f"is message {which}, and {name} is {_text(file.path)}")
    if found not in file.names:
        return Fault(0, "", f"is message {which}, which has no such message")
    return Fault(0, "", f"is message {file.names[found]}, and {name} is wanted")


def _refused(file: WriterFile) -> Fault:
    assert file.refused is not None
    return Fault(0, file.refused.field, file.refused.reason)


def _text(path: tuple[int, ...]) -> str:
    return ".".join(map(str, path))
