"""A processor in a plain process: a thread polls the consumer, an event loop calls handlers.

::

    consumer --poll, consume--> Reader's thread --Intake--> Engine's loop --> handlers
       ^                            ^                           |
       |                            +----------- Room ----------+
       +---- acknowledged rows, committed by the consumer itself

Guarantees: a record is acknowledged after its outcome, never before. Nothing is read while there is
no room. Before key hashes go to others, what handlers have of them is ended, within
``drain_timeout``.
"""

import asyncio
import logging
import re
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from typing import Any, Final

from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.consumer.topic_lookup import SubscribedTopics
from kshare.processing.consumer_edge import ConsumerEdge, check_consumer
from kshare.processing.handling import Handling
from kshare.processing.intake import Intake
from kshare.processing.loop import new_event_loop
from kshare.processing.measures import LoopWatch, Progress, Running
from kshare.processing.reader import READ_MAX, Ending, Reader, Topics
from kshare.processing.room import Room

__all__ = ["Runner", "run"]

_log = logging.getLogger("kshare.processing")
_CANCEL_SECONDS: Final = 1.0


def run(processor: Handling, consumer: KeySharedConsumer, topics: Topics) -> None:
    """Process records until a signal or a fault ends it; closes the consumer."""
    runner = Runner(processor, consumer, topics)
    if not _is_in_a_loop():
        _run(runner)
        return
    # A notebook's cell runs in a loop, and a thread has one at a time: the processor has its own.
    with ThreadPoolExecutor(1, thread_name_prefix="kshare-processor") as thread, _ended(runner):
        thread.submit(_run, runner).result()


def _is_in_a_loop() -> bool:
    """True if an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@contextmanager
def _ended(runner: "Runner") -> Iterator[None]:
    """Stop what runs in another thread at a signal, as it cannot ask for signals, and in the end.

    A handler of its own: that of ``asyncio.run`` only cancels the task that waits here.
    """
    before: dict[signal.Signals, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                before[number] = signal.signal(number, lambda *_: runner.stop())
        yield
    finally:
        runner.stop()
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(runner: "Runner") -> None:
    """Run in an event loop of its own, to the end.

    Raises:
        BaseException: What has ended it.
    """
    # asyncio.run waits for ever for a task that ignores its cancellation, and for a function in
    # asyncio.to_thread; signals do not end it.
    loop = new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(runner.run())
    finally:
        try:
            _end_tasks(loop)
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what handlers have begun, and wait a second for it."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        _, left = loop.run_until_complete(asyncio.wait(tasks, timeout=_CANCEL_SECONDS))
        if left:
            _log.warning(
                "%d tasks of handlers go on although they are cancelled, such as %r: they are left "
                "behind",
                len(left),
                next(iter(left)).get_coro(),
            )
            return
    loop.run_until_complete(loop.shutdown_asyncgens())


class Runner:
    """Runs a processor over a consumer.

    Args:
        processor: The processor.
        consumer: The consumer, with ``acknowledgement.mode=explicit``.
        topics: What to subscribe to, as the consumer takes it; None if it has partitions already.

    Raises:
        OptionsError: The consumer is configured in another way.
    """

    def __init__(self, processor: Handling, consumer: KeySharedConsumer, topics: Topics) -> None:
        if topics is not None and not isinstance(topics, str | re.Pattern):
            topics = list(topics)
        check_consumer(consumer, processor, None if topics is None else SubscribedTopics.of(topics))
        consumer.take_turns()
        self._processor = processor
        self._consumer = consumer
        self._topics = topics
        self._ending = Ending()
        self._wake: Callable[[], object] = lambda: None  # nothing waits before it runs

    def stop(self) -> None:
        """End: take no more records, and end what is under way. From any thread."""
        self._ending.begun.set()
        self._wake()

    async def run(self) -> None:
        """Process records until :meth:`stop`, a signal or a fault."""
        loop = asyncio.get_running_loop()
        intake = self._intake_of(loop)
        engine = intake.engine
        reader = Reader(self._processor, self._consumer, intake, self._ending)
        self._wake = intake.changed
        self._add_signals(loop)
        watch = LoopWatch(loop, engine.handler_name)
        # Its own: handlers may fill those of asyncio.to_thread, with calls that hang.
        thread = ThreadPoolExecutor(1, thread_name_prefix="kshare-consumer")
        reading = loop.run_in_executor(thread, reader.read, self._topics)
        reading.add_done_callback(lambda _: self.stop())
        try:
            group, member = self._consumer.config.group, self._consumer.memberid()
            running = Running(group, member, engine.scheduler, engine.measures)
            self._processor.running = running
            with closing(Progress(running)):
                await engine.loop.wait(
                    lambda: self._ending.begun.is_set() or engine.failure is not None
                )
                self.stop()
                await engine.drain(self._processor.drain_seconds)
        finally:
            self._processor.running = None
            self.stop()
            try:
                await engine.close()  # before others get what it holds
            finally:
                self._ending.over.set()
                watch.close()
                with suppress(asyncio.CancelledError):
                    await reading
                closing_fault = await self._close(thread, reader, intake)
        if engine.exit_error is not None:
            raise engine.exit_error
        engine.raise_failure()
        fault = closing_fault if reader.fault is None else reader.fault
        if fault is not None:
            raise fault

    def _intake_of(self, loop: asyncio.AbstractEventLoop) -> Intake:
        """Make the engine, and what is around it."""
        settings = self._processor.settings
        room = Room(
            lambda: (engine.room, engine.scheduler.bytes_left),
            min(READ_MAX, max(settings.records_max // 8, 1)),
        )
        edge = ConsumerEdge(self._processor, self._consumer, room.changed)
        engine = self._processor.engine(edge, gives_back=True)
        return Intake(loop, engine, edge, room, self._processor.drain_seconds)

    def _add_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self.stop)

    async def _close(
        self, thread: ThreadPoolExecutor, reader: Reader, intake: Intake
    ) -> Exception | None:
        """Close the consumer; return why that has failed, if nothing had before."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(thread, self._consumer.close)
        except Exception as error:
            if reader.fault is None and intake.engine.failure is None:
                return error
            _log.exception("closing the consumer has failed, too")
        finally:
            await loop.run_in_executor(thread, intake.edge.close)
            thread.shutdown(wait=False)
        return None
