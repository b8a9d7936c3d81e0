"""The things that this operating system has and others lack, in one place; each module asks here.

kshare is made for Linux, and works with less: a Mac has no ``/proc``, no files in memory, and no
sockets without a file. What is lacking costs time, and nothing else (:meth:`OperatingSystem.costs`;
docs/tuning.md). ``KSHARE_PORTABLE=1`` does without all of it, on Linux too: so a fault that comes
from it is seen as one, and the tests see how kshare works on a Mac.

Guarantees: whoever asks for what is lacking gets an OSError (ENOSYS), as from a system call. Only
the standalone program of :mod:`spark_plugin.forked_start`, which can import nothing, asks the
system by itself.
Cost: 0.05 ms, once a process. It imports nothing that a process of kshare's does not import anyway.
"""

import errno
import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["PORTABLE", "POSIX", "OperatingSystem", "observed", "this_system"]

PORTABLE: Final = "KSHARE_PORTABLE"
"""The variable of the environment that takes away what not all systems have."""
_PROCESSES: Final = "/proc"


@dataclass(frozen=True, slots=True)
class OperatingSystem:
    """The answers of one operating system.

    Attributes:
        process_files: ``/proc`` shows processes: parents, command lines, open files, sockets.
        abstract_sockets: Unix sockets without a file, which go with their process.
        peer_credentials: A unix socket says whose process is at its other end.
        memory_files: Files in memory, which have a path (``/proc/self/fd``) while they are open.
        unnamed_files: Files that have no name from the start.
        file_locks: Locks of files that end with their holder.
        forks_after_imports: A forked process may use the libraries that its parent has loaded.
            macOS ends one that does: its frameworks start threads.
        quick_acknowledgements: A TCP connection can acknowledge at once, when asked to.
        boot_clock: The clock that goes on while the machine is suspended.
    """

    process_files: bool = False
    abstract_sockets: bool = False
    peer_credentials: bool = False
    memory_files: bool = False
    unnamed_files: bool = False
    file_locks: bool = False
    forks_after_imports: bool = False
    quick_acknowledgements: bool = False
    boot_clock: int = time.CLOCK_MONOTONIC

    @property
    def shares_open_files(self) -> bool:
        """True if processes of a user find and open what others hold open, and lock it."""
        return self.process_files and self.abstract_sockets and self.file_locks

    @property
    def has_fork_server(self) -> bool:
        """True if one process may fork others for those of its user that ask."""
        return (
            self.process_files
            and self.abstract_sockets
            and self.peer_credentials
            and self.forks_after_imports
        )

    def costs(self) -> list[str]:
        """The costs of all that is lacking, a clause each; the executors' system counts."""
        found = []
        if not self.shares_open_files:
            found.append("ranges of a partition on one host each fetch it for themselves")
        if not self.has_fork_server:
            found.append("processes that plan start 0.3 to 0.5 s later each")
        if not self.forks_after_imports:
            found.append("each new Python worker does its own imports, about 1 s")
        if not self.process_files:
            found.append(
                "minPartitions=auto and task assignors count one task slot for each executor"
            )
        if not self.quick_acknowledgements:
            found.append("a task may wait 0.04 s for what Spark sends it second")
        return found

    # -- processes --------------------------------------------------------------------------------

    def process_namespace(self) -> int:
        """The namespace of processes that this one is in: those of another are not seen here."""
        return os.stat(self._of("self", "ns/pid")).st_ino  # noqa: PTH116 - follows a magic link

    def start_of(self, process: int) -> int | None:
        """When a process started, in clock ticks; None if it has ended, or no one has waited."""
        path = self._of(process, "stat")
        try:
            state, *fields = _fields(Path(path).read_bytes())
        except OSError:
            return None
        return None if state in {b"Z", b"X"} else int(fields[18])

    def parent_of(self, process: int) -> int:
        """The parent of a process.

        Raises:
            OSError: It is not seen.
        """
        return int(_fields(Path(self._of(process, "stat")).read_bytes())[1])

    def command_of(self, process: int) -> list[str]:
        """The program of a process, and its arguments.

        Raises:
            OSError: It is not seen.
        """
        text = Path(self._of(process, "cmdline")).read_bytes()
        return text.decode(errors="replace").split("\0")[:-1]

    def name_process(self, name: str) -> None:
        """Set what ``ps -o comm`` and ``top`` show of this process, where that can be set."""
        try:
            Path(self._of("self", "comm")).write_text(name)
        except OSError:
            return

    # -- files ------------------------------------------------------------------------------------

    def path_of(self, descriptor: int, process: int | None = None) -> str:
        """The path by which an open file of a process, by default this one, is opened once more.

        Raises:
            OSError: There is none.
        """
        return self._of("self" if process is None else process, f"fd/{descriptor}")

    def memory_file(self, name: str, content: bytes) -> int:
        """A file in no folder with some content; returns its descriptor.

        Raises:
            OSError: It cannot be had, or not be opened by a path.
        """
        if not self.memory_files:
            raise OSError(errno.ENOSYS, "this system has no files in memory")
        descriptor = os.memfd_create(name)
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(content)
            os.stat(self.path_of(descriptor))  # noqa: PTH116 - follows a magic link
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def unnamed_file(self, folder: int) -> int:
        """A new file without a name in an open folder, open for reading and writing.

        Raises:
            OSError: EOPNOTSUPP: Neither this system nor the folder's file system need have them.
        """
        if not self.unnamed_files:
            raise OSError(errno.EOPNOTSUPP, "this system has no files without a name")
        flags = os.O_TMPFILE | os.O_RDWR | os.O_EXCL | os.O_CLOEXEC
        return os.open(".", flags, 0o600, dir_fd=folder)

    def try_lock(self, descriptor: int) -> bool:
        """Lock an open file; False if it is locked.

        Raises:
            OSError: There are no locks here.
        """
        return self._flock(descriptor, fcntl.LOCK_EX)

    def is_locked(self, descriptor: int) -> bool:
        """True if another process holds the lock of an open file.

        Raises:
            OSError: There are no locks here.
        """
        if not self._flock(descriptor, fcntl.LOCK_SH):
            return True
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        return False

    def _flock(self, descriptor: int, kind: int) -> bool:
        """Take a kind of lock of an open file, without waiting; False if another one is held."""
        if not self.file_locks:
            raise OSError(errno.ENOSYS, "this system has no locks that end with their holder")
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    # -- sockets ----------------------------------------------------------------------------------

    def abstract_address(self, name: str) -> str:
        """The address of a unix socket that has a name, and no file.

        Raises:
            OSError: There are none.
        """
        if not self.abstract_sockets:
            raise OSError(errno.ENOSYS, "this system has no unix sockets without a file")
        return f"\0{name}"

    def abstract_names(self) -> set[bytes]:
        """The names of all sockets of :meth:`abstract_address` that are bound.

        Raises:
            OSError: They are not shown.
        """
        listed = Path(self._of("net", "unix")).read_bytes().splitlines()
        paths = (line.rpartition(b" ")[2] for line in listed)
        return {path[1:] for path in paths if path.startswith(b"@")}

    def acknowledge(self, connection: socket.socket) -> None:
        """Acknowledge at once what a TCP connection has received, rather than with the next answer.

        Raises:
            OSError: That cannot be asked for, or the connection is no TCP one.
        """
        if not self.quick_acknowledgements:
            raise OSError(errno.ENOSYS, "this system has no acknowledgements that can be asked for")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def _of(self, process: int | str, what: str) -> str:
        if not self.process_files:
            raise OSError(errno.ENOSYS, f"this system has no {_PROCESSES}")
        return f"{_PROCESSES}/{process}/{what}"


POSIX: Final = OperatingSystem(file_locks=fcntl is not None)
"""What every system has on which Spark and Kafka's clients run, a Mac too."""


def observed() -> OperatingSystem:
    """Look what the system that this process runs on has."""
    is_linux = sys.platform == "linux"
    shows = is_linux and os.path.exists(f"{_PROCESSES}/self/ns/pid")  # noqa: PTH110 - a magic link
    return OperatingSystem(
        process_files=shows,
        abstract_sockets=is_linux,
        peer_credentials=is_linux,
        memory_files=shows and hasattr(os, "memfd_create"),
        unnamed_files=hasattr(os, "O_TMPFILE"),
        file_locks=fcntl is not None,
        forks_after_imports=hasattr(os, "fork") and sys.platform != "darwin",
        quick_acknowledgements=hasattr(socket, "TCP_QUICKACK"),
        boot_clock=getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC),
    )


def _system_in(environment: Mapping[str, str]) -> OperatingSystem:
    """The answers for a process with this environment."""
    return POSIX if environment.get(PORTABLE) == "1" else observed()


@cache
def this_system() -> OperatingSystem:
    """The answers for this process; it is looked at once."""
    return _system_in(os.environ)


def _fields(stat: bytes) -> list[bytes]:
    """The fields of ``/proc/PID/stat`` behind the name, which may hold spaces and parentheses."""
    return stat[stat.rindex(b")") + 2 :].split()
