"""The chunks that wait on this host, for whom, and who fetches the next: bookkeeping without I/O.

Guarantees: a chunk waits as long as a task may still want it and there is room, and no longer. One
task at a time fetches what begins at an offset.
Cost: 0.1 ms to read, change and write an index; it has at most 1,024 chunks.

**Which chunks stay when room is short.** Spark runs the ranges of a partition in waves: the tasks
of a wave read side by side, and the next wave reads the same offsets from the beginning. That is a
cyclic scan. To drop the oldest chunk suits the tasks of one wave, but with a cache smaller than the
log it drops each chunk just before the next wave comes for it. So three quarters of the room are
kept for the chunks that came first, which stay until all tasks have passed them, and the newest
chunks pass through the last quarter, so that a wave fetches once even where nothing is kept.

**As bytes.** Any bytes make an index: an empty one, if they are not those of this version.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from crc32c import crc32c

from kshare.core.tasks import GROUP_MAX, SharedRange
from kshare.read.sharing.group import Chunk, Claim, Group, GroupKey, LostGroupError, Owner

__all__ = ["CHUNKS_MAX", "INDEX_MAGIC", "OWNED_MAX", "ChunkIndex"]

CHUNKS_MAX: Final = 1024
OWNED_MAX: Final = 128
"""Chunks of one process: each is an open file."""
_ROLLING_PART: Final = 4
"""The newest chunks pass through this part of the room: a quarter."""
_IDLE_SECONDS: Final = 60


class ChunkIndex:
    """The index of a host.

    Attributes:
        removed: Chunks that were removed; their files are to be freed.
    """

    def __init__(self, groups: dict[GroupKey, Group] | None = None, serial: int = 0) -> None:
        self._groups = groups or {}
        self._serial = serial
        self.removed: list[Chunk] = []

    # -- tasks ------------------------------------------------------------------------------

    def join(
        self,
        key: GroupKey,
        ranges: tuple[SharedRange, ...],
        number: int,
        owner: Owner,
        *,
        is_alive: Callable[[Owner], bool],
        now: int,
    ) -> None:
        """Add a task that begins, and drop what no one needs.

        That is what is left of dead processes, of the query's older batches, and of groups that
        have had no task for a minute.

        Args:
            key: The task's group.
            ranges: The offsets that each member reads.
            number: The task's number in the group.
            owner: Its process.
            is_alive: Whether a process lives.
            now: Seconds of the host's clock.
        """
        self._sweep(is_alive, now)
        for other in list(self._groups):
            if other.query == key.query and other.batch != key.batch:
                self._drop_group(other)
        group = self._groups.get(key)
        if group is None or group.ranges != ranges:
            self._drop_group(key)
            group = self._groups[key] = Group(ranges)
        group.end_of(number)
        group.positions.pop(number, None)  # it may be there for the second time
        group.members[number] = owner
        group.touched = now

    def leave(self, key: GroupKey, number: int, owner: Owner, *, done: bool, now: int) -> None:
        """Remove a task that has ended; ``done`` says that it has read all it wants."""
        group = self._group(key)
        group.touched = now
        group.claims = [c for c in group.claims if (c.number, c.owner) != (number, owner)]
        if group.members.get(number) == owner:
            del group.members[number]
        if done:
            self._advance(group, number, group.end_of(number))
        if group.is_done or not (group.members or group.chunks):
            self._drop_group(key)

    def drop_query(self, query: str) -> None:
        """Remove all groups of a query, which has ended."""
        for key in list(self._groups):
            if key.query == query:
                self._drop_group(key)

    @property
    def is_empty(self) -> bool:
        """True if the index holds nothing."""
        return not self._groups

    # -- chunks and claims ------------------------------------------------------------------

    @property
    def chunks(self) -> Iterator[Chunk]:
        """All chunks."""
        return (chunk for group in self._groups.values() for chunk in group.chunks)

    def chunks_of(self, key: GroupKey) -> tuple[Chunk, ...]:
        """The chunks of a group."""
        return tuple(self._group(key).chunks)

    @property
    def size(self) -> int:
        """Size of all chunks, in bytes."""
        return sum(chunk.size for chunk in self.chunks)

    def find(
        self,
        key: GroupKey,
        claim: Claim,
        *,
        is_alive: Callable[[Owner], bool],
        stalled: Claim | None = None,
    ) -> Chunk | Claim | None:
        """Find what holds the offset at which a task is: the start of its claim.

        Args:
            key: The task's group.
            claim: What the task will fetch if there is nothing.
            is_alive: Whether a process lives.
            stalled: A claim of another that was waited for in vain.

        Returns:
            A chunk that holds the offset; another's claim to it; or None, and the claim is made.
        """
        group = self._group(key)
        self._advance(group, claim.number, claim.start)
        offset = claim.start
        holding = [chunk for chunk in group.chunks if chunk.start <= offset < chunk.end]
        if holding:
            return max(holding, key=lambda chunk: chunk.end)
        kept = []
        fetching = None
        for other in group.claims:
            is_own = (other.number, other.owner) == (claim.number, claim.owner)
            if is_own or other == stalled:
                continue
            if other.start <= offset < other.end:
                if not is_alive(other.owner):
                    continue
                fetching = other
            kept.append(other)
        group.claims = kept if fetching else [*kept, claim]
        return fetching

    def is_wanted_by_others(self, key: GroupKey, claim: Claim) -> bool:
        """True if another task may want some of what a claim is for."""
        return self._group(key).is_wanted(claim.start, claim.end, except_for=claim.number)

    def put(self, key: GroupKey, number: int, chunk: Chunk, limit: int) -> bool:
        """Add a chunk that a task has fetched.

        Args:
            key: The task's group.
            number: The task's number in the group.
            chunk: The chunk.
            limit: Maximum size of all chunks, in bytes.

        Returns:
            Whether it was added: someone wants it, it is not there yet, and there is room.
        """
        group = self._group(key)
        group.claims = [c for c in group.claims if (c.number, c.owner) != (number, chunk.owner)]
        self._advance(group, number, chunk.end)
        if any(other.start <= chunk.start and chunk.end <= other.end for other in group.chunks):
            return False
        if not group.is_wanted(chunk.start, chunk.end, except_for=number):
            return False
        self._serial += 1
        admitted = self._admitted(chunk._replace(serial=self._serial), limit)
        if admitted is not None:
            group.chunks.append(admitted)
        return admitted is not None

    def discard(self, key: GroupKey, name: str) -> None:
        """Remove a chunk that no one can use."""
        group = self._group(key)
        self._remove(group, lambda chunk: chunk.name == name)

    def _admitted(self, chunk: Chunk, limit: int) -> Chunk | None:
        """The chunk as it is added, after making room for it; None if there is no room."""
        rolling_room = limit // _ROLLING_PART
        chunks = sorted(self.chunks, key=lambda other: other.serial)
        rolling = [other for other in chunks if other.rolling]
        size = chunk.size + sum(other.size for other in chunks)
        passing = chunk.size + sum(other.size for other in rolling)
        count = 1 + len(chunks)
        owned = 1 + sum(other.owner == chunk.owner for other in chunks)
        if size <= limit and count <= CHUNKS_MAX and owned <= OWNED_MAX:
            if size - passing + chunk.size <= limit - rolling_room:
                return chunk
            if passing <= rolling_room:
                return chunk._replace(rolling=True)
        dropped = set()
        for other in rolling:
            dropped.add(other.name)
            size, passing, count = size - other.size, passing - other.size, count - 1
            owned -= other.owner == chunk.owner
            over = (passing - rolling_room, size - limit, count - CHUNKS_MAX, owned - OWNED_MAX)
            if max(over) <= 0:
                for group in self._groups.values():
                    self._remove(group, lambda other: other.name in dropped)
                return chunk._replace(rolling=True)
        return None

    # -- its own order ----------------------------------------------------------------------

    def _group(self, key: GroupKey) -> Group:
        group = self._groups.get(key)
        if group is None:
            raise LostGroupError(key)
        return group

    def _advance(self, group: Group, number: int, offset: int) -> None:
        group.positions[number] = max(offset, group.positions.get(number, 0))
        self._remove(group, lambda chunk: not group.is_wanted(chunk.start, chunk.end))

    def _remove(self, group: Group, which: Callable[[Chunk], bool]) -> None:
        removed = [chunk for chunk in group.chunks if which(chunk)]
        if removed:
            self.removed += removed
            group.chunks = [chunk for chunk in group.chunks if chunk not in removed]

    def _drop_group(self, key: GroupKey) -> None:
        group = self._groups.pop(key, None)
        if group is not None:
            self.removed += group.chunks

    def _sweep(self, is_alive: Callable[[Owner], bool], now: int) -> None:
        known: dict[Owner, bool] = {}

        def lives(owner: Owner) -> bool:
            if owner not in known:
                known[owner] = is_alive(owner)
            return known[owner]

        for key, group in list(self._groups.items()):
            # The files of dead processes are gone already: the kernel has closed them.
            group.chunks = [chunk for chunk in group.chunks if lives(chunk.owner)]
            group.claims = [claim for claim in group.claims if lives(claim.owner)]
            group.members = {n: owner for n, owner in group.members.items() if lives(owner)}
            # One that has only just lost its last member is between two waves of tasks.
            if not group.members and abs(now - group.touched) > _IDLE_SECONDS:
                self._drop_group(key)

    # -- as bytes ---------------------------------------------------------------------------

    def encode(self) -> bytes:
        """The index as bytes."""
        return _encode(self._serial, self._groups)

    @classmethod
    def decode(cls, data: bytes) -> "ChunkIndex":
        """An index from bytes; an empty one if they are not those of an index."""
        serial, groups = _decode(data)
        return cls(groups, serial)


INDEX_MAGIC: Final = b"kshare-chunks 1 "
"""The first bytes of every index."""
_HEAD_BYTES: Final = len(INDEX_MAGIC) + 9


def _encode(serial: int, groups: Mapping[GroupKey, Group]) -> bytes:
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


def _decode(data: bytes) -> tuple[int, dict[GroupKey, Group]]:
    """The argument of :func:`_encode`; ``(0, {})`` if the bytes are not those of an index."""
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
