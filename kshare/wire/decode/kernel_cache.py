"""Files of machine code, which one process makes and all others read.

Guarantees: processes that start at once make the code once, and the others wait for it; one that is
killed meanwhile blocks nobody, since the kernel drops its lock; a file that is damaged, or was made
for another processor or from another source, is never used.
"""

import fcntl
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

__all__ = ["cached", "directories"]

_log = logging.getLogger(__name__)

_DIGEST_BYTES: Final = 32
_WAIT_SECONDS: Final = 600.0  # for another process that makes the code, on a machine that is busy
_POLL_SECONDS: Final = 0.05


def directories(environment: Mapping[str, str], package: Path) -> list[Path]:
    """Where code is looked for, and kept in the first that can be written.

    Args:
        environment: ``NUMBA_CACHE_DIR``, if set, is the only directory.
        package: Folder of the source. Its ``__pycache__`` comes first otherwise, and then the
            user's cache (``XDG_CACHE_HOME``), for installations that are read-only.
    """
    stated = environment.get("NUMBA_CACHE_DIR")
    if stated:
        return [Path(stated)]
    user = environment.get("XDG_CACHE_HOME")
    folders = [package / "__pycache__"]
    with suppress(RuntimeError):  # there is no home directory
        folders.append((Path(user) if user else Path.home() / ".cache") / "kshare")
    return folders


def cached(name: str, make: Callable[[], bytes], folders: list[Path]) -> bytes:
    """Return the machine code for a name (a digest of its source); make it if it is missing.

    Args:
        name: Name of the file.
        make: Makes the code.
        folders: Where to look for it. The first that can be written gets it if it is made; if none
            can be, a warning says so.
    """
    for folder in folders:
        code = _read(folder / name)
        if code is not None:
            return code
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _lock(folder / f"{name}.lock"):
                code = _read(folder / name)
                if code is None:
                    code = make()
                    _write(folder / name, code)
                return code
        except OSError as error:
            _log.info("machine code cannot be kept in %s: %s", folder, error)
    _log.warning(
        "kshare's kernels are compiled anew in each process: no directory for them can be written; "
        "set NUMBA_CACHE_DIR to one that can",
    )
    return make()


def _read(path: Path) -> bytes | None:
    """A file's code; None if there is none, or it is damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, code = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    return code if hashlib.sha256(code).digest() == digest else None


def _write(path: Path, code: bytes) -> None:
    """Write a file that is whole from the first moment on."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(hashlib.sha256(code).digest() + code)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a file's lock, or go on without it where there are no locks or its holder is stuck."""
    with path.open("ab") as file:
        until = time.monotonic() + _WAIT_SECONDS
        while time.monotonic() < until:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_POLL_SECONDS)
            except OSError:
                break  # a file system without locks
        yield
