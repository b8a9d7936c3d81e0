"""The word between :func:`~spark_plugin.triggers.available_now` and a source, before Spark 4.2.

Such a Spark has no call that asks a Python source to stop at the ends that partitions have now. So
the driver's Python says it by a file. Each ``load()`` names a folder, and what Spark keeps of the
source has that name. A query that shall end holds a locked file in the folder. A source that finds
one when it starts takes the ends of then for all there is, until the file is gone.

Guarantees: the kernel unlocks the file of a driver that was killed, so no source waits for it: one
whose JVM goes on ends with an error. A folder exists while a query holds a file there, and its name
cannot be guessed. Two queries of one ``load()`` share the folder: one that starts while another is
held stops at its own ends until that one is done, and then goes on.

Cost: a source that is not held looks once for a folder that is not there; one that is held, for its
files at each trigger.
"""

import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from kshare.errors import KshareError
from kshare.operating_system import this_system

__all__ = ["SAY_SECONDS", "Hold", "folder_name", "hold"]

_LOOK_SECONDS: Final = 0.001

SAY_SECONDS: Final = 30.0
"""How long a source stands at held ends before it says so."""


def folder_name() -> str:
    """Return a new name for the folder of a ``load()``; the folder is not made."""
    return str(Path(tempfile.gettempdir()) / f"kshare-{os.geteuid()}-{uuid.uuid4().hex}")


@contextmanager
def hold(folder: str) -> Iterator[Callable[[], bool]]:
    """Hold the ends of the sources that start within the block, which one ``load()`` has made.

    Args:
        folder: Its folder.

    Yields:
        Returns whether a source has found the hold.

    Raises:
        OSError: The file cannot be made, or not be locked.
    """
    handle, file = _new_file(folder)
    try:
        while not this_system().try_lock(handle):  # a source is just looking
            time.sleep(_LOOK_SECONDS)
        yield lambda: os.fstat(handle).st_size > 0
    finally:
        with suppress(OSError):  # a cleaner of temporary files may have been here
            Path(file).unlink()
        os.close(handle)  # after it: a file that is there and not locked is one of a dead driver
        with suppress(OSError):  # another query holds a file there
            Path(folder).rmdir()


class Hold:
    """The queries that hold the ends of a source, as far as it knows.

    Args:
        folder: The folder of the ``load()`` that made the source; None if there is none.
        clock: Seconds.
    """

    def __init__(self, folder: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._files = [] if folder is None else list(_held_files(folder))
        self._at_end_since: float | None = None
        self._has_said = False

    def __bool__(self) -> bool:
        """True while a query holds the ends.

        Raises:
            KshareError: The driver's Python has gone, and its JVM has not: nobody would end the
                query.
        """
        files, self._files = self._files, [file for file in self._files if _is_locked(file)]
        for file in files:
            if file not in self._files and Path(file).exists():
                raise KshareError(
                    f"the Python process that ran available_now has gone ({file} is not locked "
                    "any more): start the query again to read the rest"
                )
        return bool(self._files)

    def is_late(self, *, at_end: bool) -> bool:
        """Return, once, that the source has stood at the held ends for :data:`SAY_SECONDS`.

        Args:
            at_end: Whether it stands there.
        """
        if not at_end:
            self._at_end_since = None
            return False
        if self._at_end_since is None:
            self._at_end_since = self._clock()
        if self._has_said or self._clock() - self._at_end_since < SAY_SECONDS:
            return False
        self._has_said = True
        return True


def _new_file(folder: str) -> tuple[int, str]:
    while True:
        Path(folder).mkdir(mode=0o700, exist_ok=True)
        try:
            return tempfile.mkstemp(dir=folder)
        except FileNotFoundError:  # another query of this load() has just removed the folder
            continue


def _held_files(folder: str) -> Iterator[str]:
    """Find the held files of a folder, and leave a byte in each, which says that it was found."""
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - names, and the folder may be missing
    except OSError:
        return
    for name in names:
        file = str(Path(folder) / name)
        if not _is_locked(file):
            continue
        with suppress(OSError), Path(file).open("ab") as found:
            found.write(b"1")
            yield file


def _is_locked(file: str) -> bool:
    try:
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return this_system().is_locked(handle)
    except OSError:
        return False
    finally:
        os.close(handle)
