"""``Processor.run`` where an event loop runs already, as in a notebook's cell."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable

import pytest

from kshare.errors import ConsumerClosedError, ProcessingError
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.processing import Processor, Record, Stop
from tests.processing.running import ORDERS, RECORDS, SOON
from tests.support.fake_session import FakeSessions


async def cell(processor: Processor, consumer: KeySharedConsumer) -> None:
    """A cell, as IPython runs it: in a coroutine. Its loop serves other tasks afterwards."""
    beside = asyncio.get_running_loop().create_task(asyncio.sleep(0.01, "served"))
    try:
        processor.run(consumer, None)
    finally:
        assert await beside == "served"
        assert asyncio.get_running_loop().is_running()
        with pytest.raises(ConsumerClosedError):
            consumer.poll(0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_runs_in_a_thread_of_its_own_until_the_cell_is_interrupted(
    consumer: Callable[..., KeySharedConsumer], sessions: FakeSessions, number: signal.Signals
) -> None:
    assert threading.current_thread() is threading.main_thread()
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    threads = set[str]()
    handled = list[int]()

    async def handler(record: Record) -> None:
        await asyncio.sleep(0)
        threads.add(threading.current_thread().name)
        handled.append(record.offset)
        if len(handled) == RECORDS:
            os.kill(os.getpid(), number)

    asyncio.run(cell(Processor(handler), consumer()))
    assert threads == {"kshare-processor_0"}
    assert [at for at in range(RECORDS) if not sessions.processed(ORDERS, at)] == []
    assert {each: signal.getsignal(each) for each in before} == before


@pytest.mark.parametrize("is_main", [True, False])
def test_a_fault_comes_out_of_the_call(
    consumer: Callable[..., KeySharedConsumer], *, is_main: bool
) -> None:
    async def handler(record: Record) -> None:
        raise ValueError("no")

    processor = Processor(handler, retry=SOON, on_failure=Stop())
    raised = list[BaseException]()

    def run() -> None:
        with pytest.raises(ProcessingError, match="ValueError") as error:
            asyncio.run(cell(processor, consumer()))
        raised.append(error.value)

    if is_main:
        run()
    else:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert len(raised) == 1


def test_the_loop_of_a_thread_is_its_own_again(consumer: Callable[..., KeySharedConsumer]) -> None:
    """The second cell has the first one's loop."""

    def handler(record: Record) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with asyncio.Runner() as runner:
        runner.run(cell(Processor(handler), consumer()))
        assert runner.run(asyncio.sleep(0, "again")) == "again"
