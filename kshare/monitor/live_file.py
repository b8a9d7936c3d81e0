"""Where an open batch is, in a file of the planner's host, for listeners in the driver.

A planner is another process than the driver, and Spark carries its reports once a batch. The file
is named by the planner's run, which the batch's name says, and is the user's own.
"""

import os
import re
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from kshare.core.live import Live, decode_live, encode_live, run_of

__all__ = ["clear_live", "clear_old", "read_live", "write_live"]

_RUN: Final = re.compile(r"[0-9a-f]{1,64}")
_LEFT_SECONDS: Final = 24 * 3_600.0
_MOST: Final = 1 << 20


def write_live(live: Live) -> None:
    """Replace a run's file.

    Raises:
        OSError: It cannot be written.
    """
    path = _path_of(run_of(live.batch))
    if path is None:
        return
    part = path.with_suffix(".part")
    with suppress(FileNotFoundError):
        part.unlink()  # of a write that has died
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(encode_live(live))
    part.replace(path)


def read_live(batch: str) -> Live | None:
    """What the run of a batch has written last; None if it has not, or not lately.

    Args:
        batch: The batch's name. A run's file may be of a later batch.
    """
    path = _path_of(run_of(batch))
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if found.st_uid != os.geteuid() or found.st_mode & 0o022:
                return None
            live = decode_live(file.read(_MOST))
    except (OSError, ValueError):
        return None
    return live if live.is_fresh(time.time()) else None


def clear_live(run: str) -> None:
    """Remove a run's file."""
    path = _path_of(run)
    if path is not None:
        with suppress(OSError):
            path.unlink()


def clear_old() -> None:
    """Remove this user's files that nobody has written for a day: of runs that were killed."""
    old = time.time() - _LEFT_SECONDS
    for path in Path(tempfile.gettempdir()).glob(f"{_prefix()}*"):
        with suppress(OSError):
            if path.stat().st_mtime < old:
                path.unlink()


def _path_of(run: str) -> Path | None:
    """The file of a run; None of a name that no planner draws."""
    if not _RUN.fullmatch(run):
        return None
    return Path(tempfile.gettempdir()) / f"{_prefix()}{run}.json"


def _prefix() -> str:
    return f"kshare-live-{os.geteuid()}-"
