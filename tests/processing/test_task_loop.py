"""The event loop that the tasks of a Python worker share, one after the other."""

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from kshare.errors import KshareError, ProcessingError
from kshare.processing import Processor, Record, Retry, task_loop
from kshare.processing.frame_task import process_rows
from kshare.processing.task_loop import TaskLoop
from tests.support.clock import WAIT_S, until

ONCE = Retry(attempts=1)
pytestmark = pytest.mark.usefixtures("each_loop", "own_loop")


def run_task(handler: Callable[[Record], Any], **given: Any) -> list[str]:
    """A task with two rows; what became of them."""
    batch = pa.record_batch({"key": [b"a", b"b"], "value": [b"1", b"2"]})
    processor = Processor(handler, retry=ONCE, **given)
    return [
        status
        for rows in process_rows([batch], processor)
        for status in rows.column("status").to_pylist()
    ]


async def work(_: Record) -> None:
    await asyncio.sleep(0)


DONE = ["done", "done"]


def test_a_client_that_handlers_keep_works_in_the_next_task() -> None:
    """Spark gives a worker many tasks, and a connection belongs to the loop that made it."""
    kept: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    ours, theirs = socket.socketpair()
    theirs.settimeout(WAIT_S)

    async def ask(_: Record) -> None:
        if not kept:
            kept.append(await asyncio.open_connection(sock=ours))
        reader, writer = kept[0]
        writer.write(b"a question\n")
        await writer.drain()
        await asyncio.to_thread(lambda: theirs.sendall(theirs.recv(100)))
        await reader.readline()

    async def leave(_: Record) -> None:
        kept[0][1].close()

    with theirs:
        for _ in range(3):
            assert run_task(ask, concurrency=1) == DONE
        run_task(leave)


def test_what_handlers_have_begun_goes_on_in_the_next_task() -> None:
    """Such as what keeps a client's connection alive."""
    begun: list[asyncio.Task[bool]] = []
    event = asyncio.Event()

    async def begin(_: Record) -> None:
        if not begun:
            begun.append(asyncio.create_task(event.wait()))

    async def end(_: Record) -> None:
        event.set()
        assert await begun[0]

    assert run_task(begin) == DONE
    assert run_task(end) == DONE


def test_a_task_that_ends_its_process_ends_no_loop() -> None:
    """The error goes through the loop; then whoever waits for the handler would wait for ever."""

    async def leave() -> None:
        raise SystemExit(3)

    async def handler(record: Record) -> None:
        if record.key == b"b":
            await asyncio.create_task(leave())

    for _ in range(2):
        with pytest.raises(ProcessingError, match=r"offset 1.*SystemExit\(3\)"):
            run_task(handler)
        assert run_task(work) == DONE


def test_a_loop_that_is_stopped_goes_on() -> None:
    async def stop(_: Record) -> None:
        asyncio.get_running_loop().stop()

    assert run_task(stop) == DONE
    assert run_task(work) == DONE


def test_a_call_that_ignores_its_end_is_named_and_disturbs_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    let_go, ended = asyncio.Event(), threading.Event()

    async def stubborn(record: Record) -> None:
        if record.key == b"b":
            raise ValueError("no")
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        ended.set()

    async def end(_: Record) -> None:
        let_go.set()

    with pytest.raises(ProcessingError, match="offset 1"):
        run_task(stubborn)
    (said,) = [text for text in caplog.messages if "although they are cancelled" in text]
    assert "1 calls of" in said
    assert "stubborn" in said
    assert run_task(work) == DONE
    assert run_task(end) == DONE
    assert ended.wait(WAIT_S)


@pytest.fixture
def let_go(own_loop: TaskLoop) -> Iterator[threading.Event]:
    """What ends that something an earlier task has left blocks the loop."""
    event = threading.Event()
    own_loop.ready().call_soon_threadsafe(event.wait, WAIT_S)
    until(lambda: "(wait)" in own_loop._where())
    yield event
    event.set()


def test_a_task_that_finds_the_loop_blocked_says_where_and_waits(
    let_go: threading.Event, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_loop, "_SAY_SECONDS", 0.05)
    outcomes: list[str] = []
    next_task = threading.Thread(target=lambda: outcomes.extend(run_task(work)))
    next_task.start()
    until(lambda: caplog.messages)
    (said,) = caplog.messages
    assert "the event loop of handlers does not go on for 0.05 s already, in " in said
    assert "threading.py:" in said
    assert outcomes == []
    let_go.set()
    next_task.join(WAIT_S)
    assert outcomes == DONE


def test_a_loop_that_stays_blocked_fails_the_task(let_go: threading.Event) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_loop, "_SAY_SECONDS", 0.02)
        patch.setattr(task_loop, "_MOST_SECONDS", 0.04)
        with pytest.raises(KshareError, match=r"not gone on for 0\.04 s, in .*threading\.py:"):
            run_task(work)
    let_go.set()
    assert run_task(work) == DONE


class Warned:
    """Keeps the lines about a blocked loop, and blocks it until there is one."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def lines(self) -> list[str]:
        return [text for text in self._caplog.messages if "blocks the event loop" in text]

    def block(self) -> None:
        until(self.lines)


def test_a_handler_that_blocks_the_loop_is_named(
    own_loop: TaskLoop, caplog: pytest.LogCaptureFixture
) -> None:
    warned = Warned(caplog)

    async def careless(_: Record) -> None:
        warned.block()

    assert run_task(careless) == DONE
    (said,) = warned.lines()
    assert "careless blocks" in said
    assert ": all other keys wait; await what takes long" in said
    (name,) = own_loop.quiet_until  # later tasks do not say it again at once
    assert name.endswith("careless")
    assert not any(each.name == "kshare loop watch" for each in threading.enumerate())


def test_a_handler_that_blocks_the_end_of_a_task_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warned, begun = Warned(caplog), threading.Event()

    async def careless(_: Record) -> None:
        begun.set()
        warned.block()

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"key": [b"a"], "value": [b"1"]})
        assert begun.wait(WAIT_S)
        raise OSError("the rows do not come")

    with pytest.raises(OSError, match="do not come"):
        list(process_rows(rows(), Processor(careless)))
    (said,) = warned.lines()
    assert "careless blocks" in said


FORK = """
import os, threading
import pyarrow as pa
from kshare.processing import Processor
from kshare.processing.frame_task import process_rows

assert threading.active_count() == 1

async def work(record):
    pass

def run():
    (rows,) = process_rows([pa.record_batch({"key": [b"a"], "value": [b"1"]})], Processor(work))
    assert rows.column("status").to_pylist() == ["done"]

run()
child = os.fork()
run()
if child == 0:
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_has_a_loop_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    assert done.stdout.strip() == "7"
