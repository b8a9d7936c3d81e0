"""The cache of fetched chunks: what one task has fetched waits on the host for its siblings.

Siblings are the tasks of one fetch group: they read the same offsets of one partition.

Guarantees: rows never depend on the cache. A file that is damaged, gone or another's is a miss, and
so is every error of the operating system: the task fetches for itself, as without a cache. No task
waits for another for more than a few seconds in all, and never for a dead one.
Cost: 1 ms to leave a chunk of 4 MiB, 0.7 ms to take one (to decode one takes at least 15 ms), 0.1
ms for each look into the index, of which a partition takes four or more: measured 0.08 to 0.15 ms
with 10, and with 1,000, partitions shared on the host. A task without siblings never comes here.

**Who fetches.** A claim in the index says who fetches what. Others wait for it while its holder
lives, up to half a second (the holder may be waiting for a slow sink), and then fetch themselves.
So the fastest task leads and the others follow. :mod:`kshare.read.sharing.files` has the files and
the lock on the index.

Where processes cannot open each other's files (Linux alone lets them, and only where its ``/proc``
shows them), each task fetches for itself.
"""

import logging
import os
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from secrets import token_hex
from typing import Any, NamedTuple

import numpy as np
from crc32c import crc32c

from kshare.core.tasks import FetchGroup
from kshare.operating_system import OperatingSystem, this_system
from kshare.read.sharing.files import (
    CHUNK_HEAD,
    CHUNK_MAGIC,
    held_files,
    is_alive,
    nameless_file,
    opened_file,
    opened_folder,
    opened_index,
    read_file,
    this_process,
    write_file,
)
from kshare.read.sharing.group import Chunk, Claim, GroupKey, LostGroupError, Owner

__all__ = ["FetchedChunk", "SharedChunks", "forget_query"]

_log = logging.getLogger(__name__)

_STALLED_SECONDS = 0.5
_WAIT_SECONDS_MAX = 3.0
_PAUSE_SECONDS = (0.001, 0.005)
_CHECKED_FROM = 12  # of the head: behind the CRC
_ABORTED = struct.Struct(">qq")


class FetchedChunk(NamedTuple):
    """A chunk that a sibling has fetched.

    Attributes:
        start: First offset that the records answer for.
        end: The offset after the last one.
        aborted: Aborted transactions, as in :class:`~kshare.kafka.protocol.messages.FetchAnswer`.
        records: Whole record batches; valid until the next chunk is taken.
    """

    start: int
    end: int
    aborted: tuple[tuple[int, int], ...]
    records: memoryview


class SharedChunks:
    """The chunks of one partition, as one task sees them.

    Args:
        group: The tasks that it shares chunks with.
        topic: The topic.
        partition: The partition.
        limit: Maximum size of all chunks of this user on this host, in bytes
            (``max.bytes.key.range.results``).
        system: What the operating system has; by default, that of this process.
    """

    def __init__(
        self,
        group: FetchGroup,
        topic: str,
        partition: int,
        limit: int,
        system: OperatingSystem | None = None,
    ) -> None:
        self._key = GroupKey(group.query, group.batch, group.number, topic, partition)
        self._digest = sha256(repr(self._key).encode()).digest()[:16]
        self._number = group.member
        self._limit = limit
        self._buffer = np.empty(0, np.uint8)
        self._is_wanted = False
        self._waiting: _Waiting | None = None
        self._owner = Owner(0, 0)
        self._works = (system or this_system()).shares_open_files
        if not self._works:
            return
        with self._as_without_cache():
            self._owner = this_process()
            with opened_index(create=True) as index:
                index.join(
                    self._key,
                    group.ranges,
                    self._number,
                    self._owner,
                    is_alive=is_alive,
                    now=int(time.monotonic()),
                )

    def find(self, offset: int, expected_end: int) -> FetchedChunk | None:
        """The chunk that holds an offset; waits for a sibling that is fetching it.

        Args:
            offset: Offset at which the task is; it wants nothing before it.
            expected_end: The offset after the last one that a fetch would probably bring.

        Returns:
            None if the task shall fetch.
        """
        while isinstance(found := self.look(offset, expected_end), float):
            time.sleep(found)
        return found

    def look(self, offset: int, expected_end: int) -> FetchedChunk | float | None:
        """The same without waiting.

        Returns:
            The chunk; None if the task shall fetch; or the seconds after which to look again, as a
            sibling is fetching it.
        """
        claim = Claim(self._number, self._owner, offset, expected_end)
        waiting, self._waiting = self._waiting or _Waiting(), None
        with self._as_without_cache():
            while self._works:
                holder = self._find_or_claim(claim, waiting.stalled)
                if holder is None:
                    return None
                if isinstance(holder, Claim):
                    if seconds := waiting.on(holder):
                        self._waiting = waiting
                        return seconds
                    continue
                content = self._content(holder, offset)
                if content is not None:
                    return content
                with opened_index() as index:
                    index.discard(self._key, holder.name)
        return None

    def claim(self, offset: int, expected_end: int) -> bool:
        """Claim what comes next; return whether the task shall fetch it. Does not wait."""
        with self._as_without_cache():
            if self._works:
                claim = Claim(self._number, self._owner, offset, expected_end)
                return self._find_or_claim(claim, None) is None
        return True

    def put(
        self,
        start: int,
        end: int,
        aborted: Sequence[tuple[int, int]],
        records: memoryview,
    ) -> None:
        """Leave what was fetched to the siblings, if any of them may want it.

        Args:
            start: The offset that was asked for.
            end: The offset after the last whole batch.
            aborted: The response's aborted transactions.
            records: Whole record batches.
        """
        with self._as_without_cache():
            if not self._works or not self._is_wanted:
                return
            name = token_hex(16)
            parts = self._parts(name, start, end, aborted, records)
            size = sum(map(len, parts))
            with opened_folder() as folder:
                room = os.fstatvfs(folder)
                handle = nameless_file(folder)
            try:
                write_file(handle, parts)
                made = os.fstat(handle)
                chunk = Chunk(name, start, end, size, self._owner, handle, made.st_dev, made.st_ino)
                with opened_index() as index:
                    # A temporary folder that is nearly full is left to others.
                    free = room.f_bavail * room.f_frsize + index.size
                    if index.put(self._key, self._number, chunk, min(self._limit, free // 2)):
                        held_files()[name] = handle
                        handle = -1
            finally:
                if handle >= 0:
                    os.close(handle)

    def discard(self, start: int) -> None:
        """Remove chunks that hold an offset: they cannot be read, and a retry asks the broker."""
        with self._as_without_cache():
            if self._works:
                with opened_index() as index:
                    for chunk in index.chunks_of(self._key):
                        if chunk.start <= start < chunk.end:
                            index.discard(self._key, chunk.name)

    def close(self, *, done: bool) -> None:
        """Leave the group; ``done`` says that the task has read all it wants."""
        with self._as_without_cache():
            if self._works:
                with opened_index() as index:
                    now = int(time.monotonic())
                    index.leave(self._key, self._number, self._owner, done=done, now=now)
        self._works = False
        self._buffer = np.empty(0, np.uint8)

    # -- the index and the files --------------------------------------------------------------

    @contextmanager
    def _as_without_cache(self) -> Iterator[None]:
        """After any error, let the task read on without the cache."""
        try:
            yield
        except LostGroupError:  # the query has ended, or the index was damaged
            self._works = False
        except (OSError, ValueError, MemoryError) as error:
            self._works = False
            _warn(error)

    def _find_or_claim(self, claim: Claim, stalled: Claim | None) -> Chunk | Claim | None:
        with opened_index() as index:
            holder = index.find(self._key, claim, is_alive=is_alive, stalled=stalled)
            self._is_wanted = holder is None and index.is_wanted_by_others(self._key, claim)
            return holder

    def _parts(
        self,
        name: str,
        start: int,
        end: int,
        aborted: Sequence[tuple[int, int]],
        records: memoryview,
    ) -> list[Any]:
        listed = b"".join(_ABORTED.pack(*transaction) for transaction in aborted)
        fields = (bytes.fromhex(name), self._digest, start, end, len(aborted), len(records))
        head = CHUNK_HEAD.pack(CHUNK_MAGIC, 0, *fields)
        crc = crc32c(records, crc32c(head[_CHECKED_FROM:] + listed))
        return [CHUNK_HEAD.pack(CHUNK_MAGIC, crc, *fields), listed, records]

    def _content(self, chunk: Chunk, offset: int) -> FetchedChunk | None:
        """The content of a chunk's file; None if it is not what the index says."""
        if not CHUNK_HEAD.size <= chunk.size <= max(self._limit, CHUNK_HEAD.size):
            return None
        with opened_file(chunk, os.O_RDONLY) as handle:
            if handle is None:
                return None
            if len(self._buffer) < chunk.size:
                self._buffer = np.empty(chunk.size, np.uint8)
            view = self._buffer.data[: chunk.size]
            if not read_file(handle, view):
                return None
        magic, crc, name, digest, start, end, count, size = CHUNK_HEAD.unpack_from(view)
        records_from = CHUNK_HEAD.size + _ABORTED.size * count
        if (
            magic != CHUNK_MAGIC
            or name.hex() != chunk.name
            or digest != self._digest
            or not start <= offset < end
            or records_from + size != chunk.size
            or crc != crc32c(view[_CHECKED_FROM:])
        ):
            return None
        aborted = tuple(_ABORTED.iter_unpack(view[CHUNK_HEAD.size : records_from]))
        return FetchedChunk(start, end, aborted, view[records_from:])


class _Waiting:
    """Time that a task has waited for one claim, and in all."""

    def __init__(self) -> None:
        self._until = time.monotonic() + _WAIT_SECONDS_MAX
        self._claim: Claim | None = None
        self._since = 0.0
        self._pause = _PAUSE_SECONDS[0]
        self.stalled: Claim | None = None

    def on(self, claim: Claim) -> float:
        """The seconds to wait for it now; 0 after half a second, when it is :attr:`stalled`."""
        now = time.monotonic()
        if claim != self._claim:
            self._claim, self._since = claim, now
            self._pause = _PAUSE_SECONDS[0]
        if now - self._since >= _STALLED_SECONDS or now >= self._until:
            self.stalled = claim
            return 0.0
        pause = self._pause
        self._pause = min(1.5 * pause, _PAUSE_SECONDS[1])
        return pause


def forget_query(query: str, system: OperatingSystem | None = None) -> None:
    """Free what waits on this host for the tasks of a query that has ended. Raises nothing."""
    if not (system or this_system()).shares_open_files:
        return
    try:
        with opened_index() as index:
            index.drop_query(query)
    except LostGroupError:
        return
    except (OSError, ValueError) as error:
        _warn(error)


_warned: set[int] = set()  # processes


def _warn(error: Exception) -> None:
    """Warn, once in each process."""
    if os.getpid() not in _warned:
        _warned.add(os.getpid())
        _log.warning(
            "the cache of fetched chunks is not used where this happens: %s. Nothing is lost: "
            "each range of a partition fetches for itself (max.bytes.key.range.results = 0 turns "
            "the cache off)",
            error,
        )
