"""Which chunks wait on this host, for whom, and who fetches the next: bookkeeping without I/O.

Law: a chunk waits as long as a sibling may still want it and there is room, and no longer. One
sibling at a time fetches what begins at an offset. Whatever bytes an index is read from, the
outcome is an index. Cost: some 0.1 ms to read, change and write one; at most 1,024 chunks.

**What stays when there is no more room.** Spark runs the ranges of a partition in waves: those of
a wave read side by side, the next wave reads the same offsets from the beginning. That is a cyclic
scan, and the rule that suits the siblings of one wave (drop the oldest) would, with a cache smaller
than the log, drop each chunk just before the next wave comes for it. So three quarters of the room
are kept for chunks that came first, which stay until all siblings have passed them, and the newest
chunks pass through the last quarter, so that a wave fetches once even where nothing is kept.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from crc32c import crc32c

from kshare.core.fetch_groups import GROUP_MAX, SharedRange

__all__ = [
    "CHUNKS_MAX",
    "INDEX_MAGIC",
    "OWNED_MAX",
    "Chunk",
    "ChunkIndex",
    "Claim",
    "GroupKey",
    "LostGroupError",
    "Owner",
]

CHUNKS_MAX = 1024
OWNED_MAX = 128
"""Chunks of one process: each is an open file."""
_ROLLING_SHARE = 4
_LEFT_ALONE_SECONDS = 60
INDEX_MAGIC = b"kshare-chunks 1 "
"""What every index begins with, as bytes."""
_HEAD_BYTES = len(INDEX_MAGIC) + 9


class Owner(NamedTuple):
    """A process.

    Attributes:
        pid: its number.
        birth: when it started, in the kernel's ticks; numbers are used again.
    """

    pid: int
    birth: int


class GroupKey(NamedTuple):
    """The siblings of one partition in one batch."""

    query: str
    batch: str
    family: int
    topic: str
    partition: int


class LostGroupError(LookupError):
    """The index does not know these siblings (any more)."""


class Chunk(NamedTuple):
    """What one Fetch response brought, in an open file without a name.

    Attributes:
        name: random, and in the file's header too.
        start: the first offset that the chunk answers for.
        end: the offset after the last one.
        size: of the file, in bytes.
        owner: the process that holds the file open.
        handle: its file descriptor there.
        device: what the file system calls the file.
        inode: likewise.
        serial: later chunks have higher ones.
        rolling: it gives way to newer ones.
    """

    name: str
    start: int
    end: int
    size: int
    owner: Owner
    handle: int
    device: int
    inode: int
    serial: int = 0
    rolling: bool = False


class Claim(NamedTuple):
    """A sibling fetches what begins at ``start``, and will probably get all below ``end``."""

    number: int
    owner: Owner
    start: int
    end: int


@dataclass(slots=True)
class _Group:
    """Attributes: what siblings read, when the last came or left, where they are, and so on."""

    runs: tuple[SharedRange, ...]
    touched: int = 0
    positions: dict[int, int] = field(default_factory=dict)
    members: dict[int, Owner] = field(default_factory=dict)
    chunks: list[Chunk] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)

    def is_wanted(self, start: int, end: int, *, besides: int | None = None) -> bool:
        """Whether a sibling may still want some of these offsets."""
        first = 0
        for low, high, count in self.runs:
            if low < end and start < high:
                bound = min(end, high)
                for number in range(first, first + count):
                    if number != besides and self.positions.get(number, low) < bound:
                        return True
            first += count
        return False

    @property
    def is_done(self) -> bool:
        """Whether no sibling wants anything any more."""
        return not self.is_wanted(0, 1 << 63)

    def end_of(self, number: int) -> int:
        """The offset after the last one that a sibling reads."""
        first = 0
        for _, high, count in self.runs:
            first += count
            if number < first:
                return high
        raise LostGroupError(number)


class ChunkIndex:
    """The index of a host.

    Attributes:
        gone: chunks that were taken out; their files are to be freed.
    """

    def __init__(self, groups: dict[GroupKey, _Group] | None = None, serial: int = 0) -> None:
        self._groups = groups or {}
        self._serial = serial
        self.gone: list[Chunk] = []

    # -- who is there -----------------------------------------------------------------------

    def join(
        self,
        key: GroupKey,
        runs: tuple[SharedRange, ...],
        number: int,
        owner: Owner,
        *,
        is_alive: Callable[[Owner], bool],
        now: int,
    ) -> None:
        """A task begins. What is left of dead processes and of the query's older batches goes.

        So does what nobody came back to for a minute: ``now`` are seconds of the host's clock.
        """
        self._sweep(is_alive, now)
        for other in list(self._groups):
            if other.query == key.query and other.batch != key.batch:
                self._drop(other)
        group = self._groups.get(key)
        if group is None or group.runs != runs:
            self._drop(key)
            group = self._groups[key] = _Group(runs)
        group.end_of(number)
        group.positions.pop(number, None)  # it may be there for the second time
        group.members[number] = owner
        group.touched = now

    def leave(self, key: GroupKey, number: int, owner: Owner, *, done: bool, now: int) -> None:
        """A task has ended; ``done``: and will not come again, as far as can be known."""
        group = self._group(key)
        group.touched = now
        group.claims = [c for c in group.claims if (c.number, c.owner) != (number, owner)]
        if group.members.get(number) == owner:
            del group.members[number]
        if done:
            self._advance(group, number, group.end_of(number))
        if group.is_done or not (group.members or group.chunks):
            self._drop(key)

    def drop_query(self, query: str) -> None:
        """The query has ended."""
        for key in list(self._groups):
            if key.query == query:
                self._drop(key)

    @property
    def is_empty(self) -> bool:
        """Whether the index holds nothing."""
        return not self._groups

    # -- what waits -------------------------------------------------------------------------

    @property
    def chunks(self) -> Iterator[Chunk]:
        """All chunks."""
        return (chunk for group in self._groups.values() for chunk in group.chunks)

    def chunks_of(self, key: GroupKey) -> tuple[Chunk, ...]:
        """The chunks of some siblings."""
        return tuple(self._group(key).chunks)

    @property
    def size(self) -> int:
        """The bytes of all chunks."""
        return sum(chunk.size for chunk in self.chunks)

    def look(
        self,
        key: GroupKey,
        claim: Claim,
        *,
        is_alive: Callable[[Owner], bool],
        stalled: Claim | None = None,
    ) -> Chunk | Claim | None:
        """What there is at the offset where a sibling is, the start of its claim.

        Args:
            key: the siblings.
            claim: what the sibling will fetch if nothing is there.
            is_alive: whether a process lives.
            stalled: a claim that was waited for in vain.

        Returns:
            A chunk that holds the offset; or another's claim to it; or None: the claim stands.
        """
        group = self._group(key)
        self._advance(group, claim.number, claim.start)
        offset = claim.start
        held = [chunk for chunk in group.chunks if chunk.start <= offset < chunk.end]
        if held:
            return max(held, key=lambda chunk: chunk.end)
        kept = []
        found = None
        for other in group.claims:
            mine = (other.number, other.owner) == (claim.number, claim.owner)
            if mine or other == stalled:
                continue
            if other.start <= offset < other.end:
                if not is_alive(other.owner):
                    continue
                found = other
            kept.append(other)
        group.claims = kept if found else [*kept, claim]
        return found

    def is_worth(self, key: GroupKey, claim: Claim) -> bool:
        """Whether another sibling may want some of what a claim is for."""
        return self._group(key).is_wanted(claim.start, claim.end, besides=claim.number)

    def put(self, key: GroupKey, number: int, chunk: Chunk, limit: int) -> bool:
        """A sibling has fetched a chunk.

        Args:
            key: the siblings.
            number: which one it was.
            chunk: what it fetched.
            limit: bytes of all chunks at most.

        Returns:
            Whether the chunk is in the index: it is wanted, is not there yet, and there is room.
        """
        group = self._group(key)
        group.claims = [c for c in group.claims if (c.number, c.owner) != (number, chunk.owner)]
        self._advance(group, number, chunk.end)
        if any(other.start <= chunk.start and chunk.end <= other.end for other in group.chunks):
            return False
        if not group.is_wanted(chunk.start, chunk.end, besides=number):
            return False
        self._serial += 1
        placed = self._place(chunk._replace(serial=self._serial), limit)
        if placed is not None:
            group.chunks.append(placed)
        return placed is not None

    def condemn(self, key: GroupKey, name: str) -> None:
        """A chunk is of no use to anybody."""
        group = self._group(key)
        self._take_out(group, lambda chunk: chunk.name == name)

    def _place(self, chunk: Chunk, limit: int) -> Chunk | None:
        """Make room, if that may be; None if there is none."""
        share = limit // _ROLLING_SHARE
        there = sorted(self.chunks, key=lambda other: other.serial)
        rolling = [other for other in there if other.rolling]
        size = chunk.size + sum(other.size for other in there)
        passing = chunk.size + sum(other.size for other in rolling)
        count = 1 + len(there)
        owned = 1 + sum(other.owner == chunk.owner for other in there)
        if size <= limit and count <= CHUNKS_MAX and owned <= OWNED_MAX:
            if size - passing + chunk.size <= limit - share:
                return chunk
            if passing <= share:
                return chunk._replace(rolling=True)
        dropped = set()
        for other in rolling:
            dropped.add(other.name)
            size, passing, count = size - other.size, passing - other.size, count - 1
            owned -= other.owner == chunk.owner
            if max(passing - share, size - limit, count - CHUNKS_MAX, owned - OWNED_MAX) <= 0:
                for group in self._groups.values():
                    self._take_out(group, lambda other: other.name in dropped)
                return chunk._replace(rolling=True)
        return None

    # -- how it is kept in order ------------------------------------------------------------

    def _group(self, key: GroupKey) -> _Group:
        group = self._groups.get(key)
        if group is None:
            raise LostGroupError(key)
        return group

    def _advance(self, group: _Group, number: int, offset: int) -> None:
        group.positions[number] = max(offset, group.positions.get(number, 0))
        self._take_out(group, lambda chunk: not group.is_wanted(chunk.start, chunk.end))

    def _take_out(self, group: _Group, which: Callable[[Chunk], bool]) -> None:
        gone = [chunk for chunk in group.chunks if which(chunk)]
        if gone:
            self.gone += gone
            group.chunks = [chunk for chunk in group.chunks if chunk not in gone]

    def _drop(self, key: GroupKey) -> None:
        group = self._groups.pop(key, None)
        if group is not None:
            self.gone += group.chunks

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
            if not group.members and abs(now - group.touched) > _LEFT_ALONE_SECONDS:
                self._drop(key)

    # -- as bytes ---------------------------------------------------------------------------

    def encode(self) -> bytes:
        """The index as bytes."""
        groups = [
            [
                key,
                g.runs,
                g.touched,
                [*g.positions.items()],
                [*g.members.items()],
                g.chunks,
                g.claims,
            ]
            for key, g in self._groups.items()
        ]
        text = json.dumps([self._serial, groups], separators=(",", ":")).encode()
        return INDEX_MAGIC + b"%08x\n" % crc32c(text) + text

    @classmethod
    def decode(cls, data: bytes) -> "ChunkIndex":
        """An index from bytes; an empty one if they are not those of an index."""
        head, text = data[:_HEAD_BYTES], data[_HEAD_BYTES:]
        if head != INDEX_MAGIC + b"%08x\n" % crc32c(text):
            return cls()
        try:
            serial, entries = json.loads(text)
            groups = {GroupKey(*key): _group_of(*entry) for key, *entry in entries}
            return cls(groups, int(serial))
        except (ValueError, TypeError, OverflowError, RecursionError):
            return cls()  # another version's, whatever its checksum says


def _group_of(
    runs: list[Any],
    touched: int,
    positions: list[Any],
    members: list[Any],
    chunks: list[Any],
    claims: list[Any],
) -> _Group:
    if not 0 < sum(count for _, _, count in runs) <= GROUP_MAX:
        raise ValueError("an impossible number of siblings")
    return _Group(
        runs=tuple((int(low), int(high), int(count)) for low, high, count in runs),
        touched=int(touched),
        positions={int(number): int(offset) for number, offset in positions},
        members={int(number): _owner_of(owner) for number, owner in members},
        chunks=[_chunk_of(*chunk) for chunk in chunks],
        claims=[Claim(int(n), _owner_of(o), int(start), int(end)) for n, o, start, end in claims],
    )


def _owner_of(found: list[Any]) -> Owner:
    pid, birth = map(int, found)
    return Owner(pid, birth)


def _chunk_of(name: str, start: int, end: int, size: int, owner: list[Any], *rest: int) -> Chunk:
    handle, device, inode, serial, rolling = map(int, rest)
    place = (int(start), int(end), int(size), _owner_of(owner))
    return Chunk(str(name), *place, handle, device, inode, serial, bool(rolling))
