"""Siblings for the tests of the cache of chunks, here and in processes of their own."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import pytest

from kshare.core.tasks import FetchGroup, fetch_groups
from kshare.read.sharing.chunks import forget_query
from kshare.read.sharing.files import _held_indexes, held_files, index_name
from kshare.read.sharing.index import ChunkIndex

COUNT, RANGES = 300, 4


def signs() -> list[tuple[int, int]]:
    """The processes that hold the index, and as which descriptor."""
    prefix = f"@{index_name()}/"
    names = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()]
    numbers = [name.removeprefix(prefix).split("/") for name in names if name.startswith(prefix)]
    return [(int(pid), int(handle)) for pid, handle in numbers]


def index_in(data: bytes) -> ChunkIndex:
    """The index whose bytes these are."""
    return ChunkIndex(lambda size, start: data[start : start + size])


def let_go() -> None:
    """This process holds the index no longer."""
    for handle in _held_indexes.pop(index_name()):
        os.close(handle)


def groups(
    parts: Sequence[tuple[int, int]] = ((0, COUNT),) * RANGES, batch: str = "b"
) -> list[FetchGroup]:
    found = fetch_groups("q", batch, parts)
    return [siblings for siblings in found if siblings is not None]


HOLDER = """
import os, signal, sys, tempfile
tempfile.tempdir, what, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
from kshare.core.tasks import fetch_groups
from kshare.read.sharing import files
from kshare.read.sharing.chunks import SharedChunks
files._LOCK_SECONDS = 60.0  # a slow machine is no sibling that hangs
siblings = fetch_groups("q", "b", [(0, 300)] * 4)[number]
content = sys.stdin.buffer.read()  # all begin at once
shared = SharedChunks(siblings, "t", 0, 1 << 20)
assert shared.find(10 * number, 10 * number + 10) is None
if what != "claim":
    shared.put(10 * number, 10 * number + 10, [], memoryview(content))
if what == "fork" and (child := os.fork()):
    os.write(1, b"%d\\n" % child)  # at once: both write to one pipe
else:
    os.write(1, b"there\\n")
signal.pause()
"""


def own_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder for a test, and so an index; what is left in the cache is freed after it.

    For fixtures.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    forget_query("q")
    assert not held_files()
    assert not signs()
    assert not list(folder.iterdir())


def begin(holder: "subprocess.Popen[bytes]", content: bytes) -> IO[bytes]:
    """Have a sibling begin, with what it puts; returns what it writes."""
    assert holder.stdin
    assert holder.stdout
    holder.stdin.write(content)
    holder.stdin.close()
    return holder.stdout


@contextmanager
def holder_of(what: str, number: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    """A sibling in a process of its own, which begins when its input ends."""
    command = [sys.executable, "-c", HOLDER, tempfile.gettempdir(), what, str(number)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        try:
            yield holder
        finally:
            holder.kill()


def memory_files() -> set[str]:
    """The open files in memory: other ones are closed by threads of other tests meanwhile."""
    found = set()
    for file in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            target = str(file.readlink())
            found |= {file.name} if "memfd:" in target else set()
    return found
