"""The files that siblings on a host share chunks by: the index under its lock, files without names.

Law: nothing that is read, written or cut here is a file of somebody else, whatever an index says;
a process that dies leaves no records behind and holds nobody up. Errors of the operating system
are raised to the caller. Cost: 0.1 to 0.2 ms to open, read and write the index; one descriptor for
each chunk that waits.

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
fetching or writing a chunk.
"""

import errno
import os
import stat
import struct
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

from kshare.wire.chunk_index import Chunk, ChunkIndex, LostGroupError, Owner

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "CAN_LOCK",
    "CHUNK_HEAD",
    "CHUNK_MAGIC",
    "chunk_folder",
    "held_files",
    "is_alive",
    "nameless_file",
    "opened_file",
    "opened_folder",
    "opened_index",
    "read_file",
    "this_process",
    "write_file",
]

CAN_LOCK = fcntl is not None
"""Whether this system has locks that end with their holders."""
CHUNK_MAGIC = b"kschunk1"
# Magic, CRC-32C of what follows it; name, digest of the siblings, offsets, sizes of what comes.
CHUNK_HEAD = struct.Struct(">8sI16s16sqqIQ")

_INDEX = "index"
_INDEX_BYTES_MAX = 4 << 20
_LOCK_SECONDS = 0.5


# -- the folder and the index -------------------------------------------------------------------


def chunk_folder() -> Path:
    """Where this user's index is. Processes that cannot see each other have different ones."""
    with suppress(OSError):
        space = os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116 - follows a magic link
        return Path(tempfile.gettempdir(), f"kshare-chunks-{os.geteuid()}-{space}")
    raise OSError(errno.ENOSYS, "there is no /proc to share open files by")


@contextmanager
def opened_folder(*, create: bool = False) -> Iterator[int]:
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
def opened_index(*, create: bool = False) -> Iterator[ChunkIndex]:
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
                write_file(handle, [written], size=len(written))
    _free(index.gone)


@contextmanager
def _locked_index(*, create: bool) -> Iterator[tuple[int, int]]:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    for _ in range(100):
        try:
            with opened_folder(create=create) as folder:
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
_open_in: int | None = None
"""The process that they were opened in."""


def held_files() -> dict[str, int]:
    """The files that this process holds open for others, by the names of their chunks."""
    global _open_in, _open_files
    if _open_in != os.getpid():
        for handle in _open_files.values():  # the parent's, in a forked child
            with suppress(OSError):
                os.close(handle)
        _open_files, _open_in = {}, os.getpid()
    return _open_files


def _let_go(index: ChunkIndex) -> None:
    """Close the files that nobody will ask for any more; called with the index locked."""
    held = held_files()
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
        with suppress(OSError), opened_file(chunk, os.O_RDWR) as handle:
            if handle is None:
                continue
            head = os.pread(handle, CHUNK_HEAD.size, 0)
            if len(head) == CHUNK_HEAD.size:
                magic, _, name, *_ = CHUNK_HEAD.unpack(head)
                if (magic, name.hex()) == (CHUNK_MAGIC, chunk.name):
                    os.ftruncate(handle, 0)


@contextmanager
def opened_file(chunk: Chunk, flags: int) -> Iterator[int | None]:
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


def nameless_file(folder: int) -> int:
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


def write_file(handle: int, parts: Sequence[Any], size: int | None = None) -> None:
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


def read_file(handle: int, view: memoryview) -> bool:
    """Fill a view from the beginning; False if the file is shorter."""
    position = 0
    while position < len(view):
        got = os.preadv(handle, [view[position:]], position)
        if not got:
            return False
        position += got
    return True


# -- processes ----------------------------------------------------------------------------------


def this_process() -> Owner:
    """The owner of what this process leaves."""
    pid = os.getpid()
    birth = _birth(pid)
    if birth is None:
        raise OSError(errno.ENOSYS, "/proc does not show this process")
    return Owner(pid, birth)


def is_alive(owner: Owner) -> bool:
    """Whether a process has not ended."""
    return _birth(owner.pid) == owner.birth


def _birth(pid: int) -> int | None:
    """When a process started; None if there is none, or it has ended and nobody waited for it."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    state, *fields = text[text.rindex(b")") + 2 :].split()
    return None if state in {b"Z", b"X"} else int(fields[18])
