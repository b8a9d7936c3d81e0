"""In which event loop handlers run."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
import uvloop

from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.processing import Processor, Record
from kshare.processing.frame_task import process_rows
from kshare.processing.loop import new_event_loop


class OwnLoop(asyncio.SelectorEventLoop):
    """A user's."""


HAS_POLICIES = sys.version_info < (3, 14)


@pytest.fixture(params=["uvloop", "not installed", *["a policy"] * HAS_POLICIES])
def wanted(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[type[asyncio.AbstractEventLoop]]:
    """The class of the loop in which handlers are to run."""
    if request.param == "uvloop":
        yield uvloop.Loop
    elif request.param == "not installed":
        monkeypatch.setitem(sys.modules, "uvloop", None)
        yield asyncio.SelectorEventLoop
    else:

        class Policy(asyncio.DefaultEventLoopPolicy):
            def new_event_loop(self) -> asyncio.AbstractEventLoop:
                return OwnLoop()

        before = asyncio.get_event_loop_policy()
        asyncio.set_event_loop_policy(Policy())
        yield OwnLoop
        asyncio.set_event_loop_policy(before)


def test_which_loop_is_made(wanted: type[Any]) -> None:
    loop = new_event_loop()
    loop.close()
    assert isinstance(loop, wanted)


def test_a_processor_runs_in_it(
    consumer: Callable[..., KeySharedConsumer], wanted: type[Any]
) -> None:
    loops = list[asyncio.AbstractEventLoop]()

    async def handler(record: Record) -> None:
        if not loops:
            loops.append(asyncio.get_running_loop())
            os.kill(os.getpid(), signal.SIGTERM)

    Processor(handler).run(consumer(), None)
    assert [isinstance(each, wanted) for each in loops] == [True]
    assert loops[0].is_closed()


@pytest.mark.usefixtures("own_loop")
def test_so_does_one_in_a_task_of_spark(wanted: type[Any]) -> None:
    loops = list[asyncio.AbstractEventLoop]()

    async def handler(record: Record) -> None:
        loops.append(asyncio.get_running_loop())

    batch = pa.RecordBatch.from_pydict({"key": [b"a"], "value": [b"0"]})
    list(process_rows([batch], Processor(handler)))
    assert [isinstance(each, wanted) for each in loops] == [True]
