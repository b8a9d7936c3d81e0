"""The index of a host as bytes, and back.

Guarantees: any bytes make an index: an empty one, if they are not those of this version.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from crc32c import crc32c

from kshare.core.fetch_groups import GROUP_MAX
from kshare.wire.sharing.group import Chunk, Claim, Group, GroupKey, Owner

__all__ = ["INDEX_MAGIC", "decode", "encode"]

INDEX_MAGIC: Final = b"kshare-chunks 1 "
"""The first bytes of every index."""
_HEAD_BYTES: Final = len(INDEX_MAGIC) + 9


def encode(serial: int, groups: Mapping[GroupKey, Group]) -> bytes:
    """The bytes of an index.

    Args:
        serial: The highest serial number of a chunk.
        groups: The groups by their keys.
    """
    entries = [
        [
            key,
            group.ranges,
            group.touched,
            [*group.positions.items()],
            [*group.members.items()],
            group.chunks,
            group.claims,
        ]
        for key, group in groups.items()
    ]
    text = json.dumps([serial, entries], separators=(",", ":")).encode()
    return INDEX_MAGIC + b"%08x\n" % crc32c(text) + text


def decode(data: bytes) -> tuple[int, dict[GroupKey, Group]]:
    """The argument of :func:`encode`; ``(0, {})`` if the bytes are not those of an index."""
    head, text = data[:_HEAD_BYTES], data[_HEAD_BYTES:]
    if head != INDEX_MAGIC + b"%08x\n" % crc32c(text):
        return 0, {}
    try:
        serial, entries = json.loads(text)
        return int(serial), {GroupKey(*key): _group_of(*entry) for key, *entry in entries}
    except (ValueError, TypeError, OverflowError, RecursionError):
        return 0, {}  # another version's, although its checksum fits


def _group_of(
    ranges: list[Any],
    touched: int,
    positions: list[Any],
    members: list[Any],
    chunks: list[Any],
    claims: list[Any],
) -> Group:
    if not 0 < sum(count for _, _, count in ranges) <= GROUP_MAX:
        raise ValueError("an impossible number of members")
    return Group(
        ranges=tuple((int(low), int(high), int(count)) for low, high, count in ranges),
        touched=int(touched),
        positions={int(number): int(offset) for number, offset in positions},
        members={int(number): _owner_of(owner) for number, owner in members},
        chunks=[_chunk_of(*chunk) for chunk in chunks],
        claims=[Claim(int(n), _owner_of(o), int(start), int(end)) for n, o, start, end in claims],
    )


def _owner_of(fields: list[Any]) -> Owner:
    pid, birth = map(int, fields)
    return Owner(pid, birth)


def _chunk_of(name: str, start: int, end: int, size: int, owner: list[Any], *rest: int) -> Chunk:
    handle, device, inode, serial, rolling = map(int, rest)
    content = (int(start), int(end), int(size), _owner_of(owner))
    return Chunk(str(name), *content, handle, device, inode, serial, bool(rolling))
