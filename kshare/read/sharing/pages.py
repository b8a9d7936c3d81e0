"""The bytes of an index: a head for the whole host, and a page for each group.

::

    0         head     magic, checksum; how many rows follow; when dead members were looked for
                       a row for each page: hashes of its group's key, query and batch, or zeros
                       a row for each chunk, in the order in which they came
    1 MiB     page 0   checksum, size; a group as JSON
    + 128 KiB page 1   ...

So a task reads and writes the page of its own group, and of all others no more than their rows. The
file is sparse: a page takes as much of a disk as is written.

Guarantees: any bytes make an index. A head that is not whole, or another version's, is that of an
empty one; a page that is not whole, or not that of its row, is no group. A task may be killed while
it writes: all that belongs together in the head is written at once, and after the pages.
Cost: 0.01 ms for a page, and for the rows of 1,000 groups.
"""

import json
import struct
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from kshare.core.tasks import GROUP_MAX
from kshare.read.sharing.group import Chunk, Claim, Group, GroupKey, Owner

__all__ = [
    "CHUNKS_MAX",
    "CHUNK_ROW",
    "GROUPS_MAX",
    "GROUP_ROW",
    "INDEX_MAGIC",
    "Edit",
    "Head",
    "Read",
    "Rows",
    "chunk_of",
    "chunk_row",
    "decode_head",
    "decode_page",
    "encode_head",
    "encode_page",
    "group_row",
    "hash_of",
    "name_of",
    "page_at",
]

INDEX_MAGIC: Final = b"kshare-chunks 2 "
"""The first bytes of every index."""
CHUNKS_MAX: Final = 1024
GROUPS_MAX: Final = 16_384

Read: TypeAlias = Callable[[int, int], bytes]
"""Reads bytes of the index: how many, and where they begin; fewer at its end."""
Edit: TypeAlias = tuple[int, bytes]
"""Something to write, and where."""
Rows: TypeAlias = npt.NDArray[np.void]

GROUP_ROW: Final = np.dtype([("key", "<u8"), ("query", "<u8"), ("batch", "<u8")])
CHUNK_ROW: Final = np.dtype(
    [
        ("page", "<u4"),
        ("name", "S32"),
        ("start", "<i8"),
        ("end", "<i8"),
        ("size", "<i8"),
        ("pid", "<i8"),
        ("birth", "<i8"),
        ("handle", "<i8"),
        ("device", "<u8"),
        ("inode", "<u8"),
        ("rolling", "u1"),
    ]
)

_HEAD: Final = struct.Struct("<16sIIIq")
_CHECKED_FROM: Final = len(INDEX_MAGIC) + 4
_PAGE: Final = struct.Struct("<II")
_PAGES_FROM: Final = 1 << 20
_PAGE_BYTES: Final = 1 << 17  # the names and numbers of 256 members are less than half of it
_READ_BYTES: Final = 4096  # at first
_JSON: Final = json.JSONEncoder(separators=(",", ":"))

# -- the head ---------------------------------------------------------------------------------


class Head(NamedTuple):
    """The head of an index.

    Attributes:
        groups: Rows of :data:`GROUP_ROW`, by page; zeros for a page that is free.
        chunks: Rows of :data:`CHUNK_ROW`, in the order in which they came.
        swept: When dead members were looked for, in seconds of the host's clock.
    """

    groups: Rows
    chunks: Rows
    swept: int = 0


def encode_head(head: Head) -> bytes:
    """The bytes of a head."""
    rows = head.groups.tobytes() + head.chunks.tobytes()
    fields = (len(head.groups), len(head.chunks), head.swept)
    counts = _HEAD.pack(INDEX_MAGIC, 0, *fields)[_CHECKED_FROM:]
    return _HEAD.pack(INDEX_MAGIC, crc32c(rows, crc32c(counts)), *fields) + rows


def decode_head(read: Read) -> Head | None:
    """The head of an index; None if the bytes are not those of one."""
    data = read(_READ_BYTES, 0)
    if len(data) < _HEAD.size:
        return None
    magic, crc, groups, chunks, swept = _HEAD.unpack_from(data)
    if magic != INDEX_MAGIC or groups > GROUPS_MAX or chunks > CHUNKS_MAX:
        return None
    chunks_from = _HEAD.size + groups * GROUP_ROW.itemsize
    size = chunks_from + chunks * CHUNK_ROW.itemsize
    if size > len(data):
        data += read(size - len(data), len(data))
    if len(data) < size or crc != crc32c(memoryview(data)[_CHECKED_FROM:size]):
        return None
    head = Head(
        np.frombuffer(data, GROUP_ROW, groups, _HEAD.size),
        np.frombuffer(data, CHUNK_ROW, chunks, chunks_from),
        swept,
    )
    pages = head.chunks["page"]
    if (pages >= groups).any() or not head.groups["key"][pages].all():
        return None  # another version's, although its checksum fits
    return head


def group_row(key: GroupKey) -> tuple[int, int, int]:
    """The row of a group's page."""
    return hash_of(key), hash_of(key.query), hash_of(key.batch)


def hash_of(name: GroupKey | str) -> int:
    """64 bits, never 0."""
    return int.from_bytes(sha256(repr(name).encode()).digest()[:8]) or 1


def chunk_row(page: int, chunk: Chunk) -> Rows:
    """The row of a chunk of the group of some page, as an array."""
    name, start, end, size, owner, *file, rolling = chunk
    row = (page, name.encode("latin-1"), start, end, size, *owner, *file, rolling)
    return np.array([row], CHUNK_ROW)


def chunk_of(row: tuple[Any, ...]) -> Chunk:
    """The chunk of a row, which is one of ``rows.tolist()``."""
    _, name, start, end, size, pid, birth, *file, rolling = row
    handle, device, inode = file
    content = (name_of(name), start, end, size, Owner(pid, birth))
    return Chunk(*content, handle, device, inode, bool(rolling))


def name_of(name: bytes) -> str:
    """The name of a chunk, from its row."""
    return name.decode("latin-1")


# -- pages ------------------------------------------------------------------------------------


def page_at(page: int) -> int:
    """The offset of a page in the file."""
    return _PAGES_FROM + page * _PAGE_BYTES


def encode_page(key: GroupKey, group: Group) -> bytes:
    """The bytes of a page.

    Raises:
        ValueError: They are too many.
    """
    content = [
        key,
        group.ranges,
        group.touched,
        [*group.positions.items()],
        [*group.members.items()],
        group.claims,
    ]
    text = _JSON.encode(content).encode()
    if _PAGE.size + len(text) > _PAGE_BYTES:
        raise ValueError(f"{len(text)} bytes for the tasks of {key.topic}-{key.partition}")
    return _PAGE.pack(crc32c(text), len(text)) + text


def decode_page(read: Read, page: int) -> tuple[GroupKey, Group, bytes] | None:
    """The group of a page, and its bytes; None if they are not those of one."""
    data = read(_READ_BYTES, page_at(page))
    if len(data) < _PAGE.size:
        return None
    crc, size = _PAGE.unpack_from(data)
    end = _PAGE.size + size
    if end > _PAGE_BYTES:
        return None
    if end > len(data):
        data += read(end - len(data), page_at(page) + len(data))
    data = data[:end]
    text = data[_PAGE.size :]
    if len(text) < size or crc != crc32c(text):
        return None
    try:
        key, *content = json.loads(text)
        return GroupKey(*key), _group_of(*content), data
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None  # another version's, although its checksum fits


def _group_of(
    ranges: list[Any],
    touched: int,
    positions: list[Any],
    members: list[Any],
    claims: list[Any],
) -> Group:
    if not 0 < sum(count for _, _, count in ranges) <= GROUP_MAX:
        raise ValueError("an impossible number of members")
    return Group(
        ranges=tuple((int(low), int(high), int(count)) for low, high, count in ranges),
        touched=int(touched),
        positions={int(number): int(offset) for number, offset in positions},
        members={int(number): _owner_of(owner) for number, owner in members},
        claims=[Claim(int(n), _owner_of(o), int(start), int(end)) for n, o, start, end in claims],
    )


def _owner_of(fields: list[Any]) -> Owner:
    pid, birth = map(int, fields)
    return Owner(pid, birth)
