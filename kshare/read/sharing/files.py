"""The files by which siblings on a host share chunks, none with a name; the index, and its lock.

Guarantees: no file of another user or program is read, written or cut here, even if an index says
so. A process that dies leaves nothing behind and holds no one up. Errors of the operating system
are raised to the caller.
Cost: 0.1 ms to open, read and write the index, and to find it (once a task at most) 0.1 to 0.2 ms
for each thousand unix sockets of the host; two descriptors for the index and one for each chunk
that waits.

**Files without names.** A chunk lies in a file of the temporary folder which has no name from the
start (``O_TMPFILE``), and which the task that fetched it holds open; siblings open it through
``/proc/<pid>/fd``. So no process can leave users' data behind, however it dies: the kernel frees
the file when its holder ends, also by ``kill -9``. Only the same user can open it. The index
(topics and offsets, no keys or values) is such a file too, and every process that uses it holds it
open: it is there as long as one of them lives, and goes with the last.

**How the index is found.** Each of its holders binds an abstract unix socket, on which no one
listens: its name in ``/proc/net/unix`` says which descriptor of which process the index is, and
goes with the process. Who looks for the index, and makes one if no one has it, binds the name
before the slash meanwhile: only one process can, so there is one index. A name that does not tell
the truth is ignored: the file must be this user's, nameless, and begin as an index does.

The temporary folder, not ``/dev/shm``: what is written there counts as a container's memory, and
may be 64 MB in all; pages of a file may be reclaimed, and most are freed before they reach a disk.
Nothing is mapped: a mapping of a file that another process cuts short kills its reader, and bytes
that can change after they were checked are not checked. A copy costs a fraction of receiving them.

**One lock, held for no more than a look.** All that siblings agree on is in the index, read and
written under ``flock``, which the kernel lets go of when its holder dies. No one holds it while
fetching or writing a chunk.
"""

import errno
import os
import re
import socket
import stat
import struct
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from secrets import token_hex
from typing import Any, NamedTuple

from kshare.operating_system import OperatingSystem, this_system
from kshare.read.sharing.group import Chunk, LostGroupError, Owner
from kshare.read.sharing.index import ChunkIndex
from kshare.read.sharing.pages import INDEX_MAGIC

__all__ = [
    "CHUNK_HEAD",
    "CHUNK_MAGIC",
    "held_files",
    "index_name",
    "is_alive",
    "nameless_file",
    "opened_file",
    "opened_folder",
    "opened_index",
    "read_file",
    "this_process",
    "write_file",
]

CHUNK_MAGIC = b"kschunk1"
# Magic, CRC-32C of what follows it; name, digest of the siblings, offsets, sizes of what comes.
CHUNK_HEAD = struct.Struct(">8sI16s16sqqIQ")

_LOCK_SECONDS = 0.5
_TAKEN_SECONDS = 60.0


# -- the index ----------------------------------------------------------------------------------


class _HeldIndex(NamedTuple):
    """The open parts of an index in this process: the socket that tells of it, and its file."""

    sign: int
    handle: int


_held_indexes: dict[str, _HeldIndex] = {}
_elections: set[int] = set()
"""Sockets of threads that look for an index."""
_taken_until: dict[str, float] = {}
"""Names that another process kept for too long: until when this one does without, monotonic."""


def index_name() -> str:
    """The name of this user's index. Processes that cannot see each other have different ones.

    So have those with different temporary folders, since the room there is what they share.

    Raises:
        OSError: This system shows no open files of other processes.
    """
    folder = sha256(os.fsencode(tempfile.gettempdir())).hexdigest()[:16]
    space = this_system().process_namespace()
    return f"kshare-chunks-{os.geteuid()}-{space}-{folder}"


@contextmanager
def opened_index(*, create: bool = False) -> Iterator[ChunkIndex]:
    """The index, locked; what the block makes of it is written, and what it took out is freed.

    Raises:
        LostGroupError: There is none, and none shall be made.
        OSError: It cannot be had.
    """
    name = index_name()
    with _locked_index(name, create=create) as handle:
        index = ChunkIndex(partial(os.pread, handle))
        yield index
        _let_go(index)
        _write_index(handle, index)
        if index.is_empty:
            for kept in _held_indexes.pop(name):
                os.close(kept)
    _free(index.removed)


def _write_index(handle: int, index: ChunkIndex) -> None:
    """Write what has changed, also if the index is empty: others may hold it."""
    end = 0
    for start, data in index.edits():
        write_file(handle, [data], start)
        end = start + len(data)
    if end and index.is_empty:
        os.ftruncate(handle, end)  # the head is written last


@contextmanager
def _locked_index(name: str, *, create: bool) -> Iterator[int]:
    for _ in range(100):
        held = _held_indexes.get(name) or _join_index(name, create=create)
        try:
            # Opened once more: a lock of its own keeps this process's other threads out, too.
            handle = os.open(this_system().path_of(held.handle), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            _in_time(partial(_try_lock, handle))
            if _held_indexes.get(name) is held:  # no other thread has emptied it
                yield handle
                return
        finally:
            os.close(handle)
    raise OSError(errno.EAGAIN, "the index is removed again and again")


def _join_index(name: str, *, create: bool) -> _HeldIndex:
    """Hold the index that others hold, or a new one if no one does."""
    with _elected(name) as signs:
        if name in _held_indexes:  # another thread was faster
            return _held_indexes[name]
        opened = map(_open_index, signs)
        handle = next((each for each in opened if each is not None), None)
        if handle is None and not create:
            raise LostGroupError(name)
        if handle is None:
            with opened_folder() as folder:
                handle = nameless_file(folder)
        try:
            if not os.fstat(handle).st_size:
                _write_index(handle, ChunkIndex())
            sign = _try_bind(f"{name}/{os.getpid()}/{handle}")
            if sign is None:
                raise OSError(errno.EADDRINUSE, "another process says that it is this one")
        except BaseException:
            os.close(handle)
            raise
        held = _held_indexes[name] = _HeldIndex(sign, handle)
        return held


@contextmanager
def _elected(name: str) -> Iterator[list[tuple[int, int]]]:
    """No other process is here meanwhile; yields the processes and descriptors of the holders."""
    elected = _bound(name)
    _elections.add(elected)
    try:
        signs = this_system().abstract_names()
        own = name.encode()
        if own not in signs:
            raise OSError(errno.ENOSYS, "the sockets of this process are not shown")
        matches = (re.fullmatch(rb"%s/(\d{1,9})/(\d{1,9})" % own, sign) for sign in sorted(signs))
        yield [(int(match[1]), int(match[2])) for match in matches if match]
    finally:
        _elections.discard(elected)
        os.close(elected)


def _bound(name: str) -> int:
    """A socket of this name; OSError: another process keeps it, now or a moment ago."""
    # Anybody can take a name and keep it. Then not every task shall wait for it.
    if time.monotonic() >= _taken_until.get(name, 0.0):
        with suppress(TimeoutError):
            return _in_time(partial(_try_bind, name))
        _taken_until[name] = time.monotonic() + _TAKEN_SECONDS
    raise OSError(
        errno.EADDRINUSE,
        f"another process keeps the unix socket @{name}, by which tasks of this user find each "
        f"other (its inode is in /proc/net/unix); this is tried again each {_TAKEN_SECONDS:.0f} s",
    )


def _open_index(sign: tuple[int, int]) -> int | None:
    """The index that a socket tells of; None if it is none, or its holder has just ended."""
    with suppress(OSError):
        handle = _open_again(*sign, os.O_RDWR, _is_nameless)
        if handle is not None:
            if os.pread(handle, len(INDEX_MAGIC), 0) == INDEX_MAGIC:
                return handle
            os.close(handle)
    return None


def _try_bind(name: str) -> int | None:
    """A socket of this name, which goes with the process; None if another has it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        try:
            made.bind(this_system().abstract_address(name))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return None
        return made.detach()


def _try_lock(handle: int) -> int | None:
    return handle if this_system().try_lock(handle) else None


def _in_time(attempt: Callable[[], int | None]) -> int:
    deadline = time.monotonic() + _LOCK_SECONDS
    while (done := attempt()) is None:
        if time.monotonic() >= deadline:
            raise OSError(errno.ETIMEDOUT, "the index stays locked")
        time.sleep(0.0005)
    return done


# -- files --------------------------------------------------------------------------------------

_open_files: dict[str, int] = {}


def held_files() -> dict[str, int]:
    """The files that this process holds open for others, by the names of their chunks."""
    return _open_files


def _close_the_parents() -> None:
    """In a forked child: what its parent holds goes with the parent."""
    indexes = [handle for held in _held_indexes.values() for handle in held]
    for handle in (*_open_files.values(), *indexes, *_elections):
        with suppress(OSError):
            os.close(handle)
    for kept in (_open_files, _held_indexes, _elections):
        kept.clear()


if this_system().shares_open_files:
    os.register_at_fork(after_in_child=_close_the_parents)


def _let_go(index: ChunkIndex) -> None:
    """Close the files that no one will ask for; called with the index locked."""
    held = held_files()
    if held:
        for name in held.keys() - index.names_of(os.getpid()):
            handle = held.pop(name)
            with suppress(OSError):
                os.ftruncate(handle, 0)  # a child of this process may hold it open, too
            os.close(handle)


def _free(chunks: Iterable[Chunk]) -> None:
    """Free the space of other processes' files, which close them when they come here next."""
    for chunk in chunks:
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

    def is_it(status: os.stat_result) -> bool:
        facts = (status.st_dev, status.st_ino, status.st_size)
        return _is_nameless(status) and facts == (chunk.device, chunk.inode, chunk.size)

    handle = None
    with suppress(FileNotFoundError):
        handle = _open_again(chunk.owner.pid, chunk.handle, flags, is_it)
    try:
        yield handle
    finally:
        if handle is not None:
            os.close(handle)


def _open_again(
    pid: int, handle: int, flags: int, is_it: Callable[[os.stat_result], bool]
) -> int | None:
    """Open a file of another process in this one; None if it is something else."""
    path = this_system().path_of(handle, pid)
    if not is_it(os.stat(path)):  # noqa: PTH116 - follows a magic link
        return None
    opened = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
    if is_it(os.fstat(opened)):
        return opened
    os.close(opened)
    return None


def _is_nameless(status: os.stat_result) -> bool:
    """True if this is a file without a name and this user's; never one that a user would see."""
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 0 and status.st_uid == os.geteuid()


@contextmanager
def opened_folder() -> Iterator[int]:
    """The folder for files without names, open."""
    handle = os.open(tempfile.gettempdir(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def nameless_file(folder: int, system: OperatingSystem | None = None) -> int:
    """A new file without a name, open for reading and writing.

    Where the system or the file system makes none, it has a name for an instant, and is empty then.
    """
    try:
        return (system or this_system()).unnamed_file(folder)
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT}:
            raise
    name = f"kshare-{token_hex(16)}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(name, flags, 0o600, dir_fd=folder)
    os.unlink(name, dir_fd=folder)
    return handle


def write_file(handle: int, parts: Sequence[Any], position: int = 0) -> None:
    """Write parts one after the other, by default from the beginning."""
    for part in parts:
        view = memoryview(part).cast("B")
        while len(view):
            written = os.pwrite(handle, view, position)
            position += written
            view = view[written:]


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
    birth = this_system().start_of(pid)
    if birth is None:
        raise OSError(errno.ENOSYS, "this process is not shown")
    return Owner(pid, birth)


def is_alive(owner: Owner) -> bool:
    """True if a process has not ended."""
    return this_system().start_of(owner.pid) == owner.birth
