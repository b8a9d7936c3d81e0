"""A processor in a plain process: a thread polls the consumer, an event loop calls handlers.

::

    consumer --poll, consume--> reader thread --call_soon_threadsafe--> engine --> handlers
       ^                            ^                                     |
       |                            +------------- room ------------------+
       +---- acknowledged rows, committed by the consumer itself ---------+

Guarantees: a record is acknowledged after its outcome, never before. Nothing is read while there is
no room. Before key hashes go to others, what handlers have of them is ended, within
``drain_timeout``.
"""

import asyncio
import logging
import re
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from kshare.core.hashing import HashRange, key_hash
from kshare.core.progress import TopicPartition
from kshare.errors import (
    AuthorizationError,
    ConsumerClosedError,
    FencedError,
    KafkaError,
    UnknownTopicError,
)
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.consumer.topic_lookup import SubscribedTopics
from kshare.group.message import Message
from kshare.processing.consumer_edge import (
    ConsumerEdge,
    KeptState,
    check_consumer,
    message_of,
    records_of,
)
from kshare.processing.core.record import Record
from kshare.processing.measures import LoopWatch, Progress, Running
from kshare.processing.processor import Processor
from kshare.processing.room import Allotment, Room, Shares

__all__ = ["Runner", "run"]

_log = logging.getLogger("kshare.processing")
_READ_MAX: Final = 500
_WAIT_SECONDS: Final = 0.2
_RETRY_SECONDS: Final = 60.0
_CANCEL_SECONDS: Final = 1.0
_Ranges = Mapping[TopicPartition, tuple[HashRange, ...]]
_T = TypeVar("_T")

_Topics: TypeAlias = Iterable[str | re.Pattern[str]] | re.Pattern[str] | None


def run(processor: Processor, consumer: KeySharedConsumer, topics: _Topics) -> None:
    """Process records until a signal or a fault ends it; closes the consumer."""
    runner = Runner(processor, consumer, topics)
    # asyncio.run waits for ever for a task that ignores its cancellation, and for a function in
    # asyncio.to_thread; signals do not end it.
    loop = asyncio.new_event_loop()
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

    def __init__(self, processor: Processor, consumer: KeySharedConsumer, topics: _Topics) -> None:
        if topics is not None and not isinstance(topics, str | re.Pattern):
            topics = list(topics)
        check_consumer(consumer, processor, None if topics is None else SubscribedTopics.of(topics))
        consumer.take_turns()
        self._processor = processor
        self._consumer = consumer
        self._topics = topics
        self._room = Room(
            lambda: (self._engine.room, self._engine.scheduler.bytes_left),
            min(_READ_MAX, max(processor.settings.records_max // 8, 1)),
        )
        self._shares = Shares(processor, consumer, self._room)
        self._is_stopping = threading.Event()
        self._has_ended = threading.Event()
        self._fault: BaseException | None = None
        self._given_up: list[_Ranges] = []

    def stop(self) -> None:
        """End: take no more records, and end what is under way. From any thread."""
        self._is_stopping.set()
        self._room.changed()
        with suppress(RuntimeError, AttributeError):  # not begun, or over
            self._loop.call_soon_threadsafe(self._engine.loop.changed)

    async def run(self) -> None:
        """Process records until :meth:`stop`, a signal or a fault."""
        self._loop = asyncio.get_running_loop()
        edge = ConsumerEdge(self._processor, self._consumer, self._room.changed)
        self._edge = edge
        self._engine = engine = self._processor.engine(edge, gives_back=True)
        has_sequences = self._processor.settings.sequence
        self._kept = KeptState(engine, edge, has_sequences=has_sequences)
        self._add_signals()
        watch = LoopWatch(self._loop, engine.handler_name)
        # Its own: handlers may fill those of asyncio.to_thread, with calls that hang.
        thread = ThreadPoolExecutor(1, thread_name_prefix="kshare-consumer")
        reading = self._loop.run_in_executor(thread, self._read)
        reading.add_done_callback(lambda _: self.stop())
        try:
            group, member = self._consumer.config.group, self._consumer.memberid()
            running = Running(group, member, engine.scheduler, engine.measures)
            self._processor.running = running
            with closing(Progress(running)):
                await engine.loop.wait(
                    lambda: self._is_stopping.is_set() or engine.failure is not None
                )
                self.stop()
                await engine.drain(self._processor.drain_seconds)
        finally:
            self._processor.running = None
            self.stop()
            try:
                await engine.close()  # before others get what it holds
            finally:
                self._has_ended.set()
                watch.close()
                await self._close(reading, thread)
        if engine.exit_error is not None:
            raise engine.exit_error
        engine.raise_failure()
        if self._fault is not None:
            raise self._fault

    async def _close(self, reading: "asyncio.Future[None]", thread: ThreadPoolExecutor) -> None:
        with suppress(asyncio.CancelledError):
            await reading
        try:
            await self._loop.run_in_executor(thread, self._consumer.close)
        except Exception as error:
            if self._fault is None and self._engine.failure is None:
                self._fault = error
            else:
                _log.exception("closing the consumer has failed, too")
        finally:
            await self._loop.run_in_executor(thread, self._edge.close)
            thread.shutdown(wait=False)

    def _add_signals(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.add_signal_handler(number, self.stop)

    # -- the reader's thread ----------------------------------------------------------------

    def _read(self) -> None:
        try:
            if self._topics is None:
                self._started({})
            else:
                self._consumer.subscribe(
                    self._topics,
                    on_revoked=self._revoked,
                    on_lost=self._lost,
                    on_started=self._started,
                )
            while not self._is_stopping.is_set():
                self._kept.look_for_unparked()
                if not self._room.wait(self._is_stopping.is_set):
                    self._follow(self._is_stopping.is_set)
                elif messages := self._received(self._shares.allot(self._engine.scheduler.lanes)):
                    self._send(messages)
            # Others may want key hashes while what is held is ended.
            self._follow(self._has_ended.is_set)
        except ConsumerClosedError:
            pass
        except BaseException as error:
            if isinstance(error, FencedError):  # others have what is held
                self._run_in_loop(self._drop(lambda _: True))
            self._fault = error

    def _follow(self, until: Callable[[], bool]) -> None:
        """Poll with all partitions paused, until there is room or ``until()`` holds."""
        while not until():
            if not self._is_stopping.is_set():
                self._kept.look_for_unparked()
            paused = list(self._consumer.assignment())
            self._consumer.pause(paused)
            try:
                message = self._polled(_WAIT_SECONDS)
            finally:
                self._consumer.resume([tp for tp in paused if tp in self._consumer.assignment()])
                self._shares.forget()
            if message is not None:  # of a partition that was assigned meanwhile
                self._send([message])
            if self._room.left > 0 and not self._is_stopping.is_set():
                return

    def _received(self, most: Allotment) -> list[Message]:
        """Wait for a record; return it with all others that are there."""
        first = self._polled(_WAIT_SECONDS)
        if first is None:
            return []
        self._given_up.clear()
        batch = first[0].batch
        more = min(most.fits(batch.nbytes // batch.num_rows), _READ_MAX) - 1
        others = self._retried(lambda: self._consumer.consume(more, 0.0), list[Message]())
        place = first.topic_partition, first.key(), first.offset()
        # A rebalance in between could not tell the engine of the first one: drop it here.
        return (
            others if any(_has(ranges, *place) for ranges in self._given_up) else [first, *others]
        )

    def _polled(self, seconds: float) -> Message | None:
        return self._retried(lambda: self._consumer.poll(seconds), None)

    def _retried(self, call: Callable[[], _T], nothing: _T) -> _T:
        """Call the consumer; a cluster that does not answer is asked again, for a minute.

        During the end a silent cluster is no failure: handlers can finish.
        """
        deadline = time.monotonic() + _RETRY_SECONDS
        while True:
            try:
                return call()
            except (AuthorizationError, UnknownTopicError):
                raise
            except KafkaError as error:
                if self._is_stopping.is_set():
                    _log.warning("cannot follow the group while it ends: %s", error)
                    self._has_ended.wait(1.0)
                    return nothing
                if time.monotonic() > deadline:
                    raise
                _log.warning("cannot read, and try again: %s", error)
                self._is_stopping.wait(1.0)

    def _send(self, messages: Sequence[Message]) -> None:
        records = list(records_of(self._processor, messages))
        self._kept.recall(records)
        self._room.send(records)
        self._loop.call_soon_threadsafe(self._take, records)

    def _take(self, arrived: Sequence[Record]) -> None:
        self._engine.settle()  # what is given back now may be of the same keys
        records = arrived
        if self._edge.has_given_back:  # those that were on their way come again
            records = [each for each in arrived if not message_of(each).is_released()]
        self._engine.measures.read += len(records)
        self._engine.offer(records)
        # Last, so that each record counts at all times: in between some count twice.
        self._room.take(arrived)
        self._room.changed()

    # -- rebalances, called by the reader's thread -------------------------------------------

    def _started(self, _: _Ranges) -> None:
        """Key hashes are claimed, and nobody else writes of them: look at what was kept."""
        self._shares.forget()
        self._kept.read()

    def _revoked(self, ranges: _Ranges) -> None:
        """Others shall get some key hashes: end what handlers have of them."""
        self._shares.forget()
        self._given_up.append(ranges)
        self._run_in_loop(self._give_up(ranges))

    def _lost(self, ranges: _Ranges) -> None:
        """Others may have some key hashes already: hold nothing of them."""
        self._shares.forget()
        self._given_up.append(ranges)
        self._run_in_loop(self._drop(partial(_is_in, ranges)))

    def _run_in_loop(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for work in the event loop: then the consumer goes on with the rebalance."""
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _drop(self, is_gone: Callable[[Record], bool]) -> None:
        self._engine.revoke(is_gone)
        self._engine.settle()  # give back now: the key may come again at once

    async def _give_up(self, ranges: _Ranges) -> None:
        engine, is_gone = self._engine, partial(_is_in, ranges)
        engine.revoke(is_gone)
        seconds = self._processor.drain_seconds
        if not await engine.loop.wait(lambda: not engine.scheduler.is_running(is_gone), seconds):
            _log.warning(
                "%s is still at work on records that others get now: they may be handled twice",
                engine.handler_name,
            )
        engine.settle()  # acknowledge now: the caller commits next


def _is_in(ranges: _Ranges, record: Record) -> bool:
    return _has(ranges, record.topic_partition, record.raw_key, record.offset)


def _has(ranges: _Ranges, partition: TopicPartition, key: bytes | None, offset: int) -> bool:
    hashes = ranges.get(partition)
    if hashes is None:
        return False
    return not hashes or any(key_hash(key, offset) in part for part in hashes)
