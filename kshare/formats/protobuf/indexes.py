"""Confluent's message indexes: which message of a file a record is, behind the schema's id.

https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html:
the number of indexes and then each, as zigzag varints; the first message of a file is one byte 0.

Cost: a few passes of numpy; Python once for each message of a column, and for rows whose indexes
are damaged, or longer than any that people write.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from kshare.formats.decoder import Fault
from kshare.formats.grouping import rows_by_number
from kshare.formats.payloads import Payloads
from kshare.formats.protobuf.evolution import WriterFile
from kshare.formats.protobuf.varints import read_varint, varint

__all__ = [
    "MessageRows",
    "index_bytes",
    "path_text",
    "read_indexes",
    "rows_by_message",
    "without_indexes",
]

_MOST_INDEXES: Final = 100  # messages that are in one another
_MOST_BYTES: Final = 10 * (_MOST_INDEXES + 1)
_HEAD_BYTES: Final = 6
_MOST_WRITERS: Final = 1 << 15
"""Indexes of 6 bytes and a writer's number of 15 bits are one number of 63 bits."""


@dataclass(frozen=True, slots=True)
class MessageRows:
    """Rows of one writer that begin with the same indexes.

    Attributes:
        rows: Their numbers.
        writer: The number of their writer.
        path: The indexes; or why there are none, as a clause.
        size: Of the indexes, in bytes.
    """

    rows: npt.NDArray[np.int64]
    writer: int
    path: tuple[int, ...] | str
    size: int = 0


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
        raise ValueError(f"their number is {count >> 1 ^ -(count & 1)}")
    found = []
    for _ in range(count // 2):
        index, at = read_varint(data, at)
        if index % 2:
            raise ValueError("one is negative")
        found.append(index // 2)
    return tuple(found), at


def rows_by_message(payloads: Payloads, rows: npt.NDArray[np.int64]) -> Iterator[MessageRows]:
    """Each writer and message, with the rows that are of it.

    Args:
        payloads: The payloads, which begin with indexes.
        rows: The rows that are looked at; each has a payload.
    """
    heads, is_known = _heads(payloads, rows)
    writers = payloads.writers[rows]
    is_known &= writers < _MOST_WRITERS
    keys = writers.astype(np.int64) << 8 * _HEAD_BYTES | heads
    for key, same in rows_by_number(keys[is_known], rows[is_known]):
        head = (key & (1 << 8 * _HEAD_BYTES) - 1).to_bytes(_HEAD_BYTES, "little")
        yield _message_rows(same, key >> 8 * _HEAD_BYTES, head)
    for row in rows[~is_known].tolist():
        start, end = int(payloads.starts[row]), int(payloads.ends[row])
        head = payloads.data[start : min(end, start + _MOST_BYTES)].tobytes()
        yield _message_rows(np.array([row]), int(payloads.writers[row]), head)


def _message_rows(rows: npt.NDArray[np.int64], writer: int, head: bytes) -> MessageRows:
    try:
        path, size = read_indexes(head)
    except ValueError as error:
        return MessageRows(rows, writer, f"begins with no message indexes: {error}")
    return MessageRows(rows, writer, path, size)


def _heads(
    payloads: Payloads, rows: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The bytes of each row's indexes as a number; and whether they are whole in it."""
    starts, sizes = payloads.starts[rows], payloads.ends[rows] - payloads.starts[rows]
    heads, wanted = np.zeros(len(rows), np.int64), np.ones(len(rows), np.int64)
    at = np.arange(len(rows))  # the rows whose indexes go on
    for place in range(_HEAD_BYTES):
        at = at[sizes[at] > place]
        if not len(at):
            break
        byte = payloads.data[starts[at] + place].astype(np.int64)
        heads[at] |= byte << 8 * place
        if place == 0:
            is_count = (byte < 0x80) & (byte & 1 == 0)
            at, byte = at[is_count], byte[is_count]
            wanted[at] = byte >> 1
        else:
            wanted[at] -= byte < 0x80
        at = at[wanted[at] > 0]
    return heads, wanted == 0


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
    left = np.flatnonzero(there & ~fits)
    faults: list[Fault] = []
    if len(left):
        indexed = np.array([each.indexed for each in files])[writers[left]]
        faults += (
            replace(_refused(files[writers[row]]), row=row) for row in left[~indexed].tolist()
        )
        for each in rows_by_message(payloads, left[indexed]):
            other = _other(each, files[each.writer], name)
            if other is None:
                behind[each.rows] = starts[each.rows] + each.size
            else:
                faults += (replace(other, row=row) for row in each.rows.tolist())
    return replace(payloads, starts=behind), tuple(faults)


def _other(found: MessageRows, file: WriterFile, name: str) -> Fault | None:
    """The reason why rows are not to be read; None: they are."""
    if not file.names and file.refused is not None:
        return _refused(file)  # nothing is known of its messages
    if isinstance(found.path, str):
        return Fault(0, "", found.path)
    if found.path == file.path:
        return None if file.refused is None else _refused(file)
    which = f"{path_text(found.path)} of its file"
    if not file.names:
        assert file.path is not None
        return Fault(0, "", f"is message {which}, and {name} is {path_text(file.path)}")
    if found.path not in file.names:
        return Fault(0, "", f"is message {which}, which has no such message")
    return Fault(0, "", f"is message {file.names[found.path]}, and {name} is wanted")


def _refused(file: WriterFile) -> Fault:
    assert file.refused is not None
    return Fault(0, file.refused.field, file.refused.reason)


def path_text(path: tuple[int, ...]) -> str:
    """Indexes as messages name them."""
    return ".".join(map(str, path))
