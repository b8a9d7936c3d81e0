"""The index has no name, and goes with the last of the processes that use it."""

import os
import random
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kshare.read.sharing import chunks, files
from kshare.read.sharing.chunks import SharedChunks, forget_query
from kshare.read.sharing.files import index_name, opened_index
from kshare.read.sharing.pages import INDEX_MAGIC
from tests.support.clock import until
from tests.support.sharing import (
    RANGES,
    begin,
    groups,
    holder_of,
    index_in,
    let_go,
    own_folder,
    signs,
)

RECORDS = [random.Random(n).randbytes(900) for n in range(RANGES)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    yield from own_folder(tmp_path, monkeypatch)


def test_what_is_no_index_is_not_touched(tmp_path: Path) -> None:
    """Whatever the sockets say: a user's file, another file without a name, nobody's number."""
    named = tmp_path / "named"
    named.write_bytes(INDEX_MAGIC)
    mine = [os.open(named, os.O_RDWR), os.open(tmp_path, os.O_TMPFILE | os.O_RDWR, 0o600)]
    os.write(mine[1], b"somebody's")
    said = [(os.getpid(), mine[0]), (os.getpid(), mine[1]), (os.getpid(), 10**6), (10**8, 0)]
    sockets = []
    for pid, handle in said:
        sockets.append(socket.socket(socket.AF_UNIX))
        sockets[-1].bind(f"\0{index_name()}/{pid}/{handle}")
    first, second = (SharedChunks(siblings, "t", 0, 1 << 20) for siblings in groups()[:2])
    assert first.find(0, 10) is None
    first.put(0, 10, [], memoryview(RECORDS[0]))
    taken = second.find(0, 10)
    assert taken is not None
    assert bytes(taken.records) == RECORDS[0]
    assert [os.pread(handle, 99, 0) for handle in mine] == [INDEX_MAGIC, b"somebody's"]
    for handle in mine:
        os.close(handle)
    for made in sockets:
        made.close()
    named.unlink()


def test_a_name_that_a_stranger_keeps_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Then tasks fetch for themselves at once, and share again when it is free."""
    attempts: list[str] = []
    monkeypatch.setattr(files, "_taken_until", {})
    monkeypatch.setattr(chunks, "_warned", set())
    siblings = groups()
    with monkeypatch.context() as patch:
        patch.setattr(files, "_LOCK_SECONDS", 0.0)
        patch.setattr(files, "_try_bind", attempts.append)
        for each in siblings[:3]:
            assert SharedChunks(each, "t", 0, 1 << 20).find(0, 10) is None
    assert attempts == [index_name()]
    assert f"@{index_name()}" in caplog.text
    files._taken_until[index_name()] = 0.0  # a minute later
    SharedChunks(siblings[0], "t", 0, 1 << 20)
    assert signs()
    forget_query("q")


def test_all_are_killed(folder: Path) -> None:
    """Nothing has a name at any time, and what they share goes with the last of them."""
    with ExitStack() as stack:
        holders = [stack.enter_context(holder_of("chunk", number)) for number in range(RANGES)]
        for number, holder in enumerate(holders):
            assert holder.stdin
            holder.stdin.write(RECORDS[number])
            holder.stdin.flush()
        for holder in holders:
            assert holder.stdin
            holder.stdin.close()
        for holder in holders:
            assert holder.stdout
            assert holder.stdout.readline() == b"there\n"
        assert not list(folder.iterdir())
        assert {pid for pid, _ in signs()} == {holder.pid for holder in holders}
        assert len({Path(f"/proc/{pid}/fd/{n}").stat().st_ino for pid, n in signs()}) == 1
        for holder in holders[:3]:
            holder.kill()
        until(lambda: len(signs()) == 1)
        late = SharedChunks(groups()[1], "t", 0, 1 << 20)
        assert late.find(20, 21) is None  # its holder is dead
        taken = late.find(30, 31)
        assert taken is not None
        assert bytes(taken.records) == RECORDS[3]
        let_go()
        holders[3].kill()
        until(lambda: not signs())
        assert not list(folder.iterdir())


def test_a_query_ends_while_another_process_holds_the_index(folder: Path) -> None:
    with holder_of("chunk") as holder:
        assert begin(holder, RECORDS[0]).readline() == b"there\n"
        ((pid, handle),) = signs()
        assert pid == holder.pid
        path = Path(f"/proc/{pid}/fd/{handle}")
        assert not index_in(path.read_bytes()).is_empty
        forget_query("q")
        assert index_in(path.read_bytes()).is_empty
        assert signs() == [(pid, handle)]
        kept = [entry.stat() for entry in path.parent.iterdir() if entry != path]
        assert not any(found.st_nlink == 0 and found.st_size for found in kept)  # the chunk


def test_one_thread_empties_the_index_that_another_waits_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = threading.Event()
    real = files._try_lock

    def lock(handle: int) -> int | None:
        locked = real(handle)
        if locked is None:
            waits.set()
        return locked

    monkeypatch.setattr(files, "_try_lock", lock)
    monkeypatch.setattr(files, "_LOCK_SECONDS", 60.0)
    made: list[SharedChunks] = []
    siblings = groups()[0]
    thread = threading.Thread(target=lambda: made.append(SharedChunks(siblings, "t", 0, 1 << 20)))
    with opened_index(create=True) as index:
        assert index.is_empty
        thread.start()
        assert waits.wait(60)
    thread.join()
    assert made[0].find(0, 10) is None
    assert made[0]._works
    assert signs()


def test_a_child_of_a_killed_process_holds_nothing(folder: Path) -> None:
    with holder_of("fork") as holder:
        output = begin(holder, RECORDS[0])
        said = {output.readline(), output.readline()}
        (child,) = map(int, said - {b"there\n"})
        try:
            kept = [str(entry.readlink()) for entry in Path(f"/proc/{child}/fd").iterdir()]
            assert not [name for name in kept if str(folder) in name]
            assert len(signs()) == 1
            holder.kill()
            until(lambda: not signs())
        finally:
            os.kill(child, signal.SIGKILL)
