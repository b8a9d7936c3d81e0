"""What one task has fetched waits on the host for its siblings: the cache of fetched chunks.

Law: rows never depend on it. A file that is damaged, gone or another's is a miss, and so is every
error of the operating system: the task fetches for itself, as without a cache. No task waits for
another for more than a few seconds in all, and never for a dead one. Cost: to leave a chunk of
4 MiB, 1 ms, to take one 0.7 ms (to decode one takes 15 ms at least), and 0.1 to 0.2 ms for each
look into the index; a task without siblings never comes here.

**Files without names.** A chunk lies in a file of the temporary folder which has no name from the
start (``O_TMPFILE``), and which the task that fetched it holds open; siblings open it through
``/proc/<pid>/fd``. So no process can leave users' data behind, however it dies: the kernel frees
the file when its holder ends, also by ``kill -9``. Only the same user can open it. What has a name
is a folder (mode 0700, owned by the user or not used) with one small file, the index: topics and
offsets, no keys or values. Whoever takes the last entry out of it removes both. A process that is
killed can leave them behind; the next task or planner of the user on this host sweeps them.

The temporary folder, not ``/dev/shm``: what is written there counts as a container's memory, and
may be 64 MB in all; pages of a file may be reclaimed, and most are freed before they reach a disk.
Nothing is mapped: a mapping of a file that another process cuts short kills its reader, and bytes
that can change after they were checked are not checked. A copy costs a fraction of receiving them.

**One lock, held for no more than a look.** All that siblings agree on is in the index, read and
written under ``flock``, which the kernel lets go of when its holder dies. Nobody holds it while
fetching or writing a chunk. A claim in the index says who fetches what; others wait for it while
its holder lives, up to half a second (the holder may be waiting for a slow sink), then they fetch
themselves. So the fastest task leads and the others follow.

Linux only. Elsewhere, and where ``/proc`` is hidden, each task fetches for itself.
"""

import errno
import logging
import os
import stat
import struct
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

import numpy as np
from crc32c import crc32c

from kshare.core.siblings import Siblings
from kshare.wire.chunk_index import Chunk, ChunkIndex, Claim, GroupKey, LostGroupError, Owner

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["FetchedChunk", "SharedChunks", "chunk_folder", "forget_query"]

_log = logging.getLogger(__name__)

_INDEX = "index"
_INDEX_BYTES_MAX = 4 << 20
_LOCK_SECONDS = 0.5
_STALLED_SECONDS = 0.5
_WAIT_SECONDS_MAX = 3.0
_PAUSE_SECONDS = (0.001, 0.005)
_MAGIC = b"kschunk1"
# Magic, CRC-32C of what follows it; name, digest of the siblings, offsets, sizes of what comes.
_HEAD = struct.Struct(">8sI16s16sqqIQ")
_CHECKED_FROM = 12
_ABORTED = struct.Struct(">qq")


class FetchedChunk(NamedTuple):
    """What a sibling has fetched.

    Attributes:
        start: the first offset that the records answer for.
        end: the offset after the last one.
        aborted: as :class:`~kshare.wire.messages.FetchAnswer` has it.
        records: whole record batches; good until the next chunk is taken.
    """

    start: int
    end: int
    aborted: tuple[tuple[int, int], ...]
    records: memoryview


class SharedChunks:
    """The chunks of one partition, as one task sees them.

    Args:
        siblings: what the planner says of them.
        topic: the topic.
        partition: the partition.
        limit: bytes of all chunks of this user on this host at most
            (``max.bytes.key.range.results``).
    """

    def __init__(self, siblings: Siblings, topic: str, partition: int, limit: int) -> None:
        self._key = GroupKey(siblings.query, siblings.batch, siblings.family, topic, partition)
        self._digest = sha256(repr(self._key).encode()).digest()[:16]
        self._number = siblings.number
        self._limit = limit
        self._buffer = np.empty(0, np.uint8)
        self._is_worth = False
        self._owner = Owner(0, 0)
        self._works = fcntl is not None
        with self._or_not():
            self._owner = _this_process()
            with _opened_index(create=True) as index:
                index.join(
                    self._key,
                    siblings.runs,
                    self._number,
                    self._owner,
                    is_alive=_is_alive,
                    now=int(time.monotonic()),
                )

    def find(self, offset: int, expected_end: int) -> FetchedChunk | None:
        """The chunk that holds an offset; waits for a sibling that is fetching it.

        Args:
            offset: where the task is; it will want nothing before it any more.
            expected_end: what the task would probably get if it fetched.

        Returns:
            None: the task shall fetch.
        """
        claim = Claim(self._number, self._owner, offset, expected_end)
        with self._or_not():
            waiting = _Waiting()
            while self._works:
                found = self._look(claim, waiting.stalled)
                if found is None:
                    return None
                if isinstance(found, Claim):
                    waiting.on(found)
                    continue
                content = self._content(found, offset)
                if content is not None:
                    return content
                with _opened_index() as index:
                    index.condemn(self._key, found.name)
        return None

    def claim(self, offset: int, expected_end: int) -> bool:
        """Whether the task shall fetch what comes next already; waits for nobody."""
        with self._or_not():
            if self._works:
                claim = Claim(self._number, self._owner, offset, expected_end)
                return self._look(claim, None) is None
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
            start: the offset that was asked for.
            end: the offset after the last whole batch.
            aborted: the response's aborted transactions.
            records: whole record batches.
        """
        with self._or_not():
            if not self._works or not self._is_worth:
                return
            name = token_hex(16)
            parts = self._parts(name, start, end, aborted, records)
            size = sum(map(len, parts))
            with _folder() as folder:
                room = os.fstatvfs(folder)
                handle = _nameless_file(folder)
            try:
                _write(handle, parts)
                made = os.fstat(handle)
                chunk = Chunk(name, start, end, size, self._owner, handle, made.st_dev, made.st_ino)
                with _opened_index() as index:
                    # A temporary folder that is nearly full is left to others.
                    free = room.f_bavail * room.f_frsize + index.size
                    if index.put(self._key, self._number, chunk, min(self._limit, free // 2)):
                        _held()[name] = handle
                        handle = -1
            finally:
                if handle >= 0:
                    os.close(handle)

    def condemn(self, start: int) -> None:
        """What was fetched there cannot be read: a next attempt shall ask the broker."""
        with self._or_not():
            if self._works:
                with _opened_index() as index:
                    for chunk in index.chunks_of(self._key):
                        if chunk.start <= start < chunk.end:
                            index.condemn(self._key, chunk.name)

    def close(self, *, done: bool) -> None:
        """The task ends; ``done``: it has all it wants."""
        with self._or_not():
            if self._works:
                with _opened_index() as index:
                    now = int(time.monotonic())
                    index.leave(self._key, self._number, self._owner, done=done, now=now)
        self._works = False
        self._buffer = np.empty(0, np.uint8)

    # -- how ----------------------------------------------------------------------------------

    @contextmanager
    def _or_not(self) -> Iterator[None]:
        """Whatever goes wrong, the task reads on without the cache."""
        try:
            yield
        except LostGroupError:  # the query has ended, or the index was damaged
            self._works = False
        except (OSError, ValueError, MemoryError) as error:
            self._works = False
            _warn(error)

    def _look(self, claim: Claim, stalled: Claim | None) -> Chunk | Claim | None:
        with _opened_index() as index:
            found = index.look(self._key, claim, is_alive=_is_alive, stalled=stalled)
            self._is_worth = found is None and index.is_worth(self._key, claim)
            return found

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
        head = _HEAD.pack(_MAGIC, 0, *fields)
        crc = crc32c(records, crc32c(head[_CHECKED_FROM:] + listed))
        return [_HEAD.pack(_MAGIC, crc, *fields), listed, records]

    def _content(self, chunk: Chunk, offset: int) -> FetchedChunk | None:
        """What the file of a chunk holds; None if it is not (any more) what it should be."""
        if not _HEAD.size <= chunk.size <= max(self._limit, _HEAD.size):
            return None
        with _opened_file(chunk, os.O_RDONLY) as handle:
            if handle is None:
                return None
            if len(self._buffer) < chunk.size:
                self._buffer = np.empty(chunk.size, np.uint8)
            view = self._buffer.data[: chunk.size]
            if not _read(handle, view):
                return None
        magic, crc, name, digest, start, end, count, size = _HEAD.unpack_from(view)
        records_from = _HEAD.size + _ABORTED.size * count
        if (
            magic != _MAGIC
            or name.hex() != chunk.name
            or digest != self._digest
            or not start <= offset < end
            or records_from + size != chunk.size
            or crc != crc32c(view[_CHECKED_FROM:])
        ):
            return None
        aborted = tuple(_ABORTED.iter_unpack(view[_HEAD.size : records_from]))
        return FetchedChunk(start, end, aborted, view[records_from:])


class _Waiting:
    """How long a task has waited for one claim, and in all."""

    def __init__(self) -> None:
        self._until = time.monotonic() + _WAIT_SECONDS_MAX
        self._claim: Claim | None = None
        self._since = 0.0
        self._pause = _PAUSE_SECONDS[0]
        self.stalled: Claim | None = None

    def on(self, claim: Claim) -> None:
        """Wait a bit; in the end the claim is :attr:`stalled`."""
        now = time.monotonic()
        if claim != self._claim:
            self._claim, self._since = claim, now
            self._pause = _PAUSE_SECONDS[0]
        if now - self._since >= _STALLED_SECONDS or now >= self._until:
            self.stalled = claim
            return
        time.sleep(self._pause)
        self._pause = min(1.5 * self._pause, _PAUSE_SECONDS[1])


def forget_query(query: str) -> None:
    """The query has ended: free what waits for its tasks on this host. Raises nothing."""
    if fcntl is None or not chunk_folder().is_dir():
        return
    try:
        with _opened_index() as index:
            index.drop_query(query)
    except LostGroupError:
        return
    except (OSError, ValueError) as error:
        _warn(error)


# -- the folder and the index -------------------------------------------------------------------


def chunk_folder() -> Path:
    """Where this user's index is. Processes that cannot see each other have different ones."""
    with suppress(OSError):
        space = os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116 - follows a magic link
        return Path(tempfile.gettempdir(), f"kshare-chunks-{os.geteuid()}-{space}")
    raise OSError(errno.ENOSYS, "there is no /proc to share open files by")


@contextmanager
def _folder(*, create: bool = False) -> Iterator[int]:
    """The folder, open; nobody else's, and no link."""
    path = chunk_folder()
    if create:
        with suppress(FileExistsError):
            path.mkdir(0o700)
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(handle)
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(errno.EPERM, "the folder is not this user's alone", str(path))
        yield handle
    finally:
        os.close(handle)


@contextmanager
def _opened_index(*, create: bool = False) -> Iterator[ChunkIndex]:
    """The index, locked; what the block makes of it is written, and what it took out is freed.

    Raises:
        LostGroupError: there is none, and none shall be made.
        OSError: it cannot be had.
    """
    with _locked_index(create=create) as (folder, handle):
        data = os.pread(handle, _INDEX_BYTES_MAX, 0)
        index = ChunkIndex.decode(data)
        yield index
        _let_go(index)
        if index.is_empty:
            os.unlink(_INDEX, dir_fd=folder)
            with suppress(OSError):  # something else is in it
                chunk_folder().rmdir()
        else:
            written = index.encode()
            if written != data:
                _write(handle, [written], size=len(written))
    _free(index.gone)


@contextmanager
def _locked_index(*, create: bool) -> Iterator[tuple[int, int]]:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    for _ in range(100):
        try:
            with _folder(create=create) as folder:
                made = flags | (os.O_CREAT if create else 0)
                handle = os.open(_INDEX, made, 0o600, dir_fd=folder)
                try:
                    _lock(handle)
                    found = os.fstat(handle)
                    if not stat.S_ISREG(found.st_mode):
                        raise OSError(errno.EINVAL, "the index is no file")
                    if found.st_nlink:
                        yield folder, handle
                        return
                finally:
                    os.close(handle)
        except FileNotFoundError:
            if not create:
                raise LostGroupError from None
    raise OSError(errno.EAGAIN, "the index is removed again and again")


def _lock(handle: int) -> None:
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise OSError(errno.ETIMEDOUT, "the index stays locked") from None
            time.sleep(0.0005)
        else:
            return


# -- files --------------------------------------------------------------------------------------

_open_files: dict[str, int] = {}
"""The files that this process holds open for others, by the names of their chunks."""
_open_in: int | None = None


def _held() -> dict[str, int]:
    global _open_in, _open_files
    if _open_in != os.getpid():
        for handle in _open_files.values():  # the parent's, in a forked child
            with suppress(OSError):
                os.close(handle)
        _open_files, _open_in = {}, os.getpid()
    return _open_files


def _let_go(index: ChunkIndex) -> None:
    """Close the files that nobody will ask for any more; called with the index locked."""
    held = _held()
    if held:
        listed = {chunk.name for chunk in index.chunks}
        for name in [name for name in held if name not in listed]:
            handle = held.pop(name)
            with suppress(OSError):
                os.ftruncate(handle, 0)  # a child of this process may hold it open, too
            os.close(handle)


def _free(gone: Iterable[Chunk]) -> None:
    """Free the space of other processes' files, which close them when they come here next."""
    for chunk in gone:
        if chunk.owner.pid == os.getpid():
            continue
        with suppress(OSError), _opened_file(chunk, os.O_RDWR) as handle:
            if handle is None:
                continue
            head = os.pread(handle, _HEAD.size, 0)
            if len(head) == _HEAD.size:
                magic, _, name, *_ = _HEAD.unpack(head)
                if (magic, name.hex()) == (_MAGIC, chunk.name):
                    os.ftruncate(handle, 0)


@contextmanager
def _opened_file(chunk: Chunk, flags: int) -> Iterator[int | None]:
    """The file of a chunk through its holder's table of open files; None if it is another."""
    path = f"/proc/{chunk.owner.pid}/fd/{chunk.handle}"
    try:
        if not _is_file_of(chunk, os.stat(path)):  # noqa: PTH116 - follows a magic link
            yield None
            return
        handle = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        yield None
        return
    try:
        yield handle if _is_file_of(chunk, os.fstat(handle)) else None
    finally:
        os.close(handle)


def _is_file_of(chunk: Chunk, found: os.stat_result) -> bool:
    """Whether this is a file without a name, and that of the chunk; never some user's file."""
    return (
        stat.S_ISREG(found.st_mode)
        and found.st_nlink == 0
        and found.st_uid == os.geteuid()
        and (found.st_dev, found.st_ino) == (chunk.device, chunk.inode)
        and found.st_size == chunk.size
    )


def _nameless_file(folder: int) -> int:
    """A new file without a name, open for reading and writing."""
    try:
        return os.open(
            ".", os.O_TMPFILE | os.O_RDWR | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder
        )
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT}:
            raise
    name = f"new-{token_hex(8)}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(name, flags, 0o600, dir_fd=folder)
    os.unlink(name, dir_fd=folder)
    return handle


def _write(handle: int, parts: Sequence[Any], size: int | None = None) -> None:
    """Write from the beginning; with a size, the file has that afterwards."""
    position = 0
    for part in parts:
        view = memoryview(part).cast("B")
        while len(view):
            written = os.pwrite(handle, view, position)
            position += written
            view = view[written:]
    if size is not None:
        os.ftruncate(handle, size)


def _read(handle: int, view: memoryview) -> bool:
    """Fill a view from the beginning; False if the file is shorter."""
    position = 0
    while position < len(view):
        got = os.preadv(handle, [view[position:]], position)
        if not got:
            return False
        position += got
    return True


# -- processes ----------------------------------------------------------------------------------


def _this_process() -> Owner:
    pid = os.getpid()
    birth = _birth(pid)
    if birth is None:
        raise OSError(errno.ENOSYS, "/proc does not show this process")
    return Owner(pid, birth)


def _is_alive(owner: Owner) -> bool:
    return _birth(owner.pid) == owner.birth


def _birth(pid: int) -> int | None:
    """When a process started; None if there is none, or it has ended and nobody waited for it."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    state, *fields = text[text.rindex(b")") + 2 :].split()
    return None if state in {b"Z", b"X"} else int(fields[18])


@cache
def _warned() -> list[int]:
    return []


def _warn(error: Exception) -> None:
    """Once a process."""
    if os.getpid() not in _warned():
        _warned().append(os.getpid())
        _log.warning(
            "the cache of fetched chunks is not used where this happens: %s. Nothing is lost: "
            "each range of a partition fetches for itself (max.bytes.key.range.results = 0 turns "
            "the cache off)",
            error,
        )
