"""The chunks that wait on this host, for whom, and who fetches the next: bookkeeping without I/O.

Guarantees: a chunk waits as long as a task may still want it and there is room, and no longer. One
task at a time fetches what begins at an offset.
Cost: a look reads and changes the group that it is about. Of the others it sees one row for each
group and each chunk, of which there are at most 1,024; once a second, a task that begins reads all.

**Which chunks stay when room is short.** Spark runs the ranges of a partition in waves: the tasks
of a wave read side by side, and the next wave reads the same offsets from the beginning. That is a
cyclic scan. To drop the oldest chunk suits the tasks of one wave, but with a cache smaller than the
log it drops each chunk just before the next wave comes for it. So three quarters of the room are
kept for the chunks that came first, which stay until all tasks have passed them, and the newest
chunks pass through the last quarter, so that a wave fetches once even where nothing is kept.

The room is one for all groups of a host, so their chunks are in one table.
"""

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from kshare.core.tasks import SharedRange
from kshare.read.sharing.group import Chunk, Claim, Group, GroupKey, LostGroupError, Owner
from kshare.read.sharing.pages import (
    CHUNK_ROW,
    CHUNKS_MAX,
    GROUP_ROW,
    GROUPS_MAX,
    Edit,
    Head,
    Read,
    Rows,
    chunk_of,
    chunk_row,
    decode_head,
    decode_page,
    encode_head,
    encode_page,
    group_row,
    hash_of,
    name_of,
    page_at,
)

__all__ = ["OWNED_MAX", "ChunkIndex"]

OWNED_MAX: Final = 128
"""Chunks of one process: each is an open file."""
_ROLLING_PART: Final = 4
"""The newest chunks pass through this part of the room: a quarter."""
_IDLE_SECONDS: Final = 60

Mask: TypeAlias = npt.NDArray[np.bool_]
"""One for each chunk."""


@dataclass(slots=True)
class _Page:
    """A page that was read or made.

    Attributes:
        key: The key of its group.
        group: The group.
        before: Its bytes as they are in the file.
    """

    key: GroupKey
    group: Group
    before: bytes


def _nothing(_size: int, _start: int) -> bytes:
    return b""


class ChunkIndex:
    """The index of a host.

    Args:
        read: Reads its bytes; whatever these are, they are an index.

    Attributes:
        removed: Chunks that were removed; their files are to be freed.
    """

    def __init__(self, read: Read = _nothing) -> None:
        self._read = read
        head = decode_head(read)
        self._is_head_new = head is None  # or changed
        self._groups, self._chunks, self._swept = head or Head(
            np.empty(0, GROUP_ROW), np.empty(0, CHUNK_ROW)
        )
        self._pages: dict[int, _Page] = {}
        self.removed: list[Chunk] = []

    def edits(self) -> list[Edit]:
        """The parts to write, in this order: pages that have changed, and then the head.

        Raises:
            ValueError: A group is too large.
        """
        edits = []
        for number, page in self._pages.items():
            data = encode_page(page.key, page.group)
            if data != page.before:
                edits.append((page_at(number), data))
        if self._is_head_new:
            edits.append((0, encode_head(Head(self._groups, self._chunks, self._swept))))
        return edits

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

        That is what is left of the query's older batches and, once a second, of dead processes and
        of groups that have had no task for a minute.

        Args:
            key: The task's group.
            ranges: The offsets that each member reads.
            number: The task's number in the group.
            owner: Its process.
            is_alive: Whether a process lives.
            now: Seconds of the host's clock.

        Raises:
            OSError: There are too many groups.
        """
        if now != self._swept:
            self._sweep(is_alive, now)
        row = _, query, batch = group_row(key)
        others = (self._groups["query"] == query) & (self._groups["batch"] != batch)
        for page in np.flatnonzero(others).tolist():
            self._drop(page)
        found = self._find_page(key)
        if found is None or found[1].ranges != ranges:
            if found is not None:
                self._drop(found[0])
            found = self._free_page(), Group(ranges)
            self._set_row(found[0], row)
            self._pages[found[0]] = _Page(key, found[1], b"")
        _, group = found
        group.end_of(number)
        group.positions.pop(number, None)  # it may be there for the second time
        group.members[number] = owner
        group.touched = now

    def leave(self, key: GroupKey, number: int, owner: Owner, *, done: bool, now: int) -> None:
        """Remove a task that has ended; ``done`` says that it has read all it wants."""
        page, group = self._group(key)
        group.touched = now
        group.claims = [c for c in group.claims if (c.number, c.owner) != (number, owner)]
        if group.members.get(number) == owner:
            del group.members[number]
        if done:
            self._advance(page, group, number, group.end_of(number))
        if group.is_done or not (group.members or self._is_of(page).any()):
            self._drop(page)

    def drop_query(self, query: str) -> None:
        """Remove all groups of a query, which has ended."""
        for page in np.flatnonzero(self._groups["query"] == hash_of(query)).tolist():
            self._drop(page)

    @property
    def is_empty(self) -> bool:
        """True if the index holds nothing."""
        return not self._groups["key"].any()

    @property
    def keys(self) -> list[GroupKey]:
        """The keys of all groups; reads all pages."""
        pages = [self._load(page) for page in self._used_pages()]
        return [page.key for page in pages if page is not None]

    # -- chunks and claims ------------------------------------------------------------------

    @property
    def chunks(self) -> Iterator[Chunk]:
        """All chunks."""
        return map(chunk_of, self._chunks.tolist())

    def names_of(self, pid: int) -> set[str]:
        """The names of the chunks of a process."""
        names = self._chunks["name"][self._chunks["pid"] == pid].tolist()
        return {name_of(name) for name in names}

    def chunks_of(self, key: GroupKey) -> tuple[Chunk, ...]:
        """The chunks of a group."""
        page, _ = self._group(key)
        return tuple(map(chunk_of, self._chunks[self._is_of(page)].tolist()))

    @property
    def size(self) -> int:
        """Size of all chunks, in bytes."""
        return int(self._chunks["size"].sum())

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
        page, group = self._group(key)
        self._advance(page, group, claim.number, claim.start)
        offset = claim.start
        starts, ends = self._chunks["start"], self._chunks["end"]
        holding = self._chunks[self._is_of(page) & (starts <= offset) & (offset < ends)]
        if len(holding):
            return chunk_of(holding[holding["end"].argmax()].item())
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
        _, group = self._group(key)
        return group.is_wanted(claim.start, claim.end, except_for=claim.number)

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
        page, group = self._group(key)
        group.claims = [c for c in group.claims if (c.number, c.owner) != (number, chunk.owner)]
        self._advance(page, group, number, chunk.end)
        starts, ends = self._chunks["start"], self._chunks["end"]
        if (self._is_of(page) & (starts <= chunk.start) & (chunk.end <= ends)).any():
            return False
        if not group.is_wanted(chunk.start, chunk.end, except_for=number):
            return False
        admitted = self._admitted(chunk, limit)
        if admitted is None:
            return False
        self._set_chunks(np.concatenate([self._chunks, chunk_row(page, admitted)]))
        return True

    def discard(self, key: GroupKey, name: str) -> None:
        """Remove a chunk that no one can use."""
        page, _ = self._group(key)
        self._remove(self._is_of(page) & (self._chunks["name"] == name.encode()))

    def _admitted(self, chunk: Chunk, limit: int) -> Chunk | None:
        """The chunk as it is added, after making room for it; None if there is no room."""
        rolling_room = limit // _ROLLING_PART
        chunks, sizes = self._chunks, self._chunks["size"]
        rolling = np.flatnonzero(chunks["rolling"]).tolist()
        is_own = (chunks["pid"] == chunk.owner.pid) & (chunks["birth"] == chunk.owner.birth)
        size = chunk.size + self.size
        passing = chunk.size + int(sizes[rolling].sum())
        count = 1 + len(sizes)
        owned = 1 + int(is_own.sum())
        if size <= limit and count <= CHUNKS_MAX and owned <= OWNED_MAX:
            if size - passing + chunk.size <= limit - rolling_room:
                return chunk
            if passing <= rolling_room:
                return chunk._replace(rolling=True)
        for number, row in enumerate(rolling, 1):
            freed = int(sizes[row])
            size, passing, count = size - freed, passing - freed, count - 1
            owned -= int(is_own[row])
            over = (passing - rolling_room, size - limit, count - CHUNKS_MAX, owned - OWNED_MAX)
            if max(over) <= 0:
                self._remove(np.isin(np.arange(len(chunks)), rolling[:number]))
                return chunk._replace(rolling=True)
        return None

    # -- its own order: groups and their pages ------------------------------------------------

    def _group(self, key: GroupKey) -> tuple[int, Group]:
        """The page of a group, and the group."""
        found = self._find_page(key)
        if found is None:
            raise LostGroupError(key)
        return found

    def _find_page(self, key: GroupKey) -> tuple[int, Group] | None:
        for number in np.flatnonzero(self._groups["key"] == hash_of(key)).tolist():
            page = self._load(number)
            if page is not None and page.key == key:
                self._pages[number] = page
                return number, page.group
        return None

    def _load(self, number: int) -> _Page | None:
        """A page that is used; None if it was damaged."""
        page = self._pages.get(number)
        if page is not None:
            return page
        found = decode_page(self._read, number)
        if found is None or hash_of(found[0]) != self._groups["key"][number]:
            return None
        return _Page(*found)

    def _used_pages(self) -> list[int]:
        return np.flatnonzero(self._groups["key"]).tolist()

    def _free_page(self) -> int:
        free = np.flatnonzero(self._groups["key"] == 0)
        number = int(free[0]) if len(free) else len(self._groups)
        if number == GROUPS_MAX:
            raise OSError(errno.ENOSPC, f"{GROUPS_MAX} groups of tasks share chunks on this host")
        return number

    def _set_row(self, page: int, row: tuple[int, int, int]) -> None:
        rows = np.zeros(max(page + 1, len(self._groups)), GROUP_ROW)
        rows[: len(self._groups)] = self._groups
        rows[page] = row
        used = np.flatnonzero(rows["key"])
        self._groups, self._is_head_new = rows[: used[-1] + 1 if len(used) else 0], True

    def _drop(self, page: int) -> None:
        self._set_row(page, (0, 0, 0))
        self._pages.pop(page, None)
        self._remove(self._is_of(page))

    def _advance(self, page: int, group: Group, number: int, offset: int) -> None:
        before = group.positions.get(number, 0)
        if number in group.positions and offset <= before:
            return
        group.positions[number] = offset
        # Of the others, this task wants as much as before.
        passed = (self._chunks["start"] < offset) & (before < self._chunks["end"])
        passed &= self._is_of(page)
        for row in np.flatnonzero(passed).tolist():
            chunk = self._chunks[row]
            passed[row] = not group.is_wanted(int(chunk["start"]), int(chunk["end"]))
        self._remove(passed)

    def _sweep(self, is_alive: Callable[[Owner], bool], now: int) -> None:
        known: dict[Owner, bool] = {}

        def lives(owner: Owner) -> bool:
            if owner not in known:
                known[owner] = is_alive(owner)
            return known[owner]

        self._swept, self._is_head_new = now, True
        # The files of dead processes are gone already: the kernel has closed them.
        living = [lives(Owner(*each)) for each in self._chunks[["pid", "birth"]].tolist()]
        self._set_chunks(self._chunks[np.array(living, bool)])
        for number in self._used_pages():
            page = self._load(number)
            if page is None:
                self._drop(number)
                continue
            group = page.group
            claims = [claim for claim in group.claims if lives(claim.owner)]
            members = {n: owner for n, owner in group.members.items() if lives(owner)}
            if (claims, members) != (group.claims, group.members):
                group.claims, group.members = claims, members
                self._pages[number] = page
            # One that has only just lost its last member is between two waves of tasks.
            if not members and abs(now - group.touched) > _IDLE_SECONDS:
                self._drop(number)

    # -- rows of chunks -----------------------------------------------------------------------

    def _is_of(self, page: int) -> Mask:
        """True for each chunk of a page's group."""
        mask: Mask = self._chunks["page"] == page
        return mask

    def _remove(self, gone: Mask) -> None:
        if gone.any():
            self.removed += map(chunk_of, self._chunks[gone].tolist())
            self._set_chunks(self._chunks[~gone])

    def _set_chunks(self, chunks: Rows) -> None:
        self._chunks, self._is_head_new = chunks, True
