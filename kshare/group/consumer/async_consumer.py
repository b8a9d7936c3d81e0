"""The consumer for asyncio: :class:`AsyncKeySharedConsumer`, on the same core.

Cost: what waits runs in one thread of the consumer's own; a record that is there already is
returned without leaving the event loop's thread.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from functools import partial
from typing import Any, Self, TypeVar

import pyarrow as pa

from kshare.core.hashing import HashRange
from kshare.core.progress import TopicPartition
from kshare.errors import ConsumerClosedError
from kshare.group.config.table import ConsumerConfig
from kshare.group.consumer.calls import deadline_of
from kshare.group.consumer.consumer import KeySharedConsumer, check_number
from kshare.group.consumer.receiver import wall_time
from kshare.group.consumer.subscriber import Listener
from kshare.group.consumer.transaction import Transaction
from kshare.group.core.handing_out import Call
from kshare.group.log.primary import OffsetAndMetadata
from kshare.group.message import Message
from kshare.group.metrics import ConsumerHealth, ConsumerMetrics

__all__ = ["AsyncKeySharedConsumer"]

_Answer = TypeVar("_Answer")


class AsyncKeySharedConsumer:
    """:class:`~kshare.group.KeySharedConsumer` for asyncio: the same methods, awaited.

    One task polls; other tasks may acknowledge, commit and close meanwhile. A call that is
    cancelled has returned nothing: its records come with the next call, in order.

    Args:
        config: As for the other consumer.
        consumer: Makes the other consumer.

    Raises:
        OptionsError: The configuration cannot be used; every fault is listed.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | ConsumerConfig,
        *,
        consumer: Callable[[Any], KeySharedConsumer] = KeySharedConsumer,
    ) -> None:
        self._consumer = consumer(config)
        self._polling = ThreadPoolExecutor(1, "kshare-poll")
        # Its own: handlers may fill those of asyncio.to_thread, with calls that hang.
        self._calls = ThreadPoolExecutor(16, "kshare-call")
        self._left: asyncio.Future[bool] | None = None  # of a call that was cancelled

    async def poll(self, timeout: float | None = None) -> Message | None:  # noqa: ASYNC109
        """The next record; None if none came in time."""
        message = self._consumer.poll_fresh() if self._left is None else None
        if message is not None:
            return message
        calls, deadline = self._consumer.calls, deadline_of(timeout)
        while await self._wait_for(partial(calls.await_rows, deadline=deadline)):
            message = calls.take()
            if message is not None or self._is_over(deadline):
                return message
        return None

    async def consume(
        self,
        num_messages: int = 1,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> list[Message]:
        """The next records, as many as come in time."""
        check_number(num_messages)
        if self._consumer.is_closed:
            raise ConsumerClosedError
        if not num_messages:
            return []
        calls, deadline = self._consumer.calls, deadline_of(timeout)
        gather = partial(calls.gather, most=num_messages, deadline=deadline)
        while call := await self._wait_for(gather):
            messages = calls.return_gathered(call)
            if messages or self._is_over(deadline):
                return messages
        return []

    async def consume_batch(self, timeout: float | None = None) -> pa.RecordBatch | None:  # noqa: ASYNC109
        """The next records of one partition, as Arrow."""
        calls, deadline = self._consumer.calls, deadline_of(timeout)
        while call := await self._wait_for(partial(calls.await_batch, deadline=deadline)):
            batch = calls.return_batch(call)
            if batch is not None or self._is_over(deadline):
                return batch
        return None

    async def __aiter__(self) -> AsyncIterator[Message]:
        """The records, until the consumer is closed.

        Other tasks of the event loop run while it waits. While records are there they run each
        10 ms, and each 2,048 records, as then it waits for a look at the session. A body that
        never awaits, and takes long, keeps them waiting for as long.
        """
        consumer, fresh = self._consumer, self._consumer.receiver.fresh
        while not consumer.is_closed:
            try:
                first = await self.poll()
            except ConsumerClosedError:
                return
            if first is not None:
                yield first
            # What is there is yielded here: to await `poll` for each costs as much as all else.
            # After a call that was cancelled, a thread may still be at the rows: `poll` waits.
            if self._left is not None or not fresh.since <= wall_time() < fresh.until:
                continue
            for message in fresh.rows:
                yield message
                if self._left is not None or not fresh.since <= wall_time() < fresh.until:
                    break

    def acknowledge(self, message: Message) -> None:
        """A record is processed (``acknowledgement.mode=explicit``)."""
        self._consumer.acknowledge(message)

    def acknowledge_batch(self, batch: pa.RecordBatch | pa.Table) -> None:
        """All records of a batch are processed."""
        self._consumer.acknowledge_batch(batch)

    async def release(self, message: Message, delay: float = 0.0) -> None:
        """A record cannot be processed now: it comes again, and those of its key behind it."""
        await self._apart(self._consumer.release, message, delay)

    async def commit(
        self,
        message: Message | None = None,
        offsets: Iterable[Any] | Mapping[Any, int] | None = None,
    ) -> dict[TopicPartition, int]:
        """Commit what is processed; return the stable offset of each partition."""
        stable = await self._apart(self._consumer.commit, message, offsets)
        assert stable is not None
        return stable

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """A transaction (``transactional.id``): outputs and what is processed, all or nothing."""
        if self._consumer.is_closed:
            raise ConsumerClosedError
        context = self._consumer.transaction()
        entering = self._run(context.__enter__)
        try:
            transaction = await asyncio.shield(entering)
        except asyncio.CancelledError as error:
            # It may open yet, in the other thread: nobody else would end it.
            left = self._run(partial(context.__exit__, type(error), error, None))
            left.add_done_callback(_forget)
            entering.add_done_callback(_forget)
            raise
        try:
            yield transaction
        except BaseException as error:
            leave = partial(context.__exit__, type(error), error, error.__traceback__)
            if not await asyncio.shield(self._run(leave)):
                raise
        else:
            await asyncio.shield(self._run(partial(context.__exit__, None, None, None)))

    def _apart(self, call: Callable[..., _Answer], *given: Any) -> "asyncio.Future[_Answer]":
        """Call something beside the thread that polls."""
        run = asyncio.get_running_loop().run_in_executor
        return run(self._calls, partial(copy_context().run, call, *given))

    def _run(self, call: Callable[[], _Answer]) -> "asyncio.Future[_Answer]":
        """Call something in the thread that polls; after the end, in another one."""
        run = asyncio.get_running_loop().run_in_executor
        try:
            return run(self._polling, call)
        except RuntimeError:  # it takes nothing more
            return run(None, call)

    async def committed(
        self,
        partitions: Iterable[Any] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets of the assigned partitions, or of some."""
        return await self._apart(self._consumer.committed, partitions, timeout)

    async def assign(self, partitions: Mapping[Any, Sequence[Any]] | Sequence[Any]) -> None:
        """Claim key ranges of partitions, in place of what was claimed before."""
        await self._apart(self._consumer.assign, partitions)

    async def unassign(self) -> None:
        """Give up all partitions."""
        await self.assign({})

    async def subscribe(
        self,
        topics: Iterable[str | re.Pattern[str]] | re.Pattern[str],
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
        on_started: Listener | None = None,
    ) -> None:
        """Join the group; the callbacks are plain functions, called by the thread that polls."""
        subscribe = self._consumer.subscribe
        listeners = on_assigned, on_revoked, on_lost, on_started
        await self._apart(subscribe, topics, *listeners)

    async def unsubscribe(self) -> None:
        """Give up all partitions, and leave the group."""
        await self._apart(self._consumer.unsubscribe)

    def assignment(self) -> dict[TopicPartition, tuple[HashRange, ...]]:
        """The key ranges that are claimed, by partition; ``()`` is the whole partition."""
        return self._consumer.assignment()

    async def pause(self, partitions: Iterable[Any]) -> None:
        """Return no more records of some partitions, until they are resumed."""
        await self._apart(self._consumer.pause, partitions)

    async def resume(self, partitions: Iterable[Any]) -> None:
        """Return records of paused partitions again."""
        await self._apart(self._consumer.resume, partitions)

    async def seek(self, partition: Any, offset: int | None = None) -> None:
        """Go on at an offset."""
        await self._apart(self._consumer.seek, partition, offset)

    def position(self, partitions: Iterable[Any] | None = None) -> dict[TopicPartition, int]:
        """The offset after the last record that was returned, of partitions that have started."""
        return self._consumer.position(partitions)

    def memberid(self) -> str:
        """The consumer's id in the group."""
        return self._consumer.memberid()

    async def close(self) -> None:
        """Commit (with ``enable.auto.commit``), give up all claims, and end iterations."""
        try:
            await self._apart(self._consumer.close)
        finally:
            self._polling.shutdown(wait=False)

    def metrics(self) -> ConsumerMetrics:
        """Key ranges, positions, commits and rebalances of the consumer."""
        return self._consumer.metrics()

    def health(self) -> ConsumerHealth:
        """Return whether the consumer works; for probes."""
        return self._consumer.health()

    @property
    def config(self) -> ConsumerConfig:
        """The configuration, as it was understood."""
        return self._consumer.config

    @property
    def is_closed(self) -> bool:
        """True if the consumer is closed."""
        return self._consumer.is_closed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _is_over(self, deadline: float) -> bool:
        return self._consumer.is_closed or time.monotonic() >= deadline

    async def _wait_for(self, gather: Callable[[Call], bool]) -> Call | None:
        """Receive in the polling thread; what it has got is still to be returned.

        Args:
            gather: Waits for records; whether there are some.

        Returns:
            What it has got; None if it is nothing.
        """
        if self._left is not None:
            left, self._left = self._left, None
            await self._ended(left)  # what went wrong in it is raised now
        if self._consumer.is_closed:
            raise ConsumerClosedError
        call = Call()
        future = asyncio.get_running_loop().run_in_executor(self._polling, gather, call)
        try:
            return call if await self._ended(future) else None
        except asyncio.CancelledError:
            self._consumer.calls.cancel(call)
            raise

    async def _ended(self, future: asyncio.Future[bool]) -> bool:
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self._left = future
            raise


def _forget(ended: "asyncio.Future[Any]") -> None:
    """Nobody waits for what has become of a call."""
    if not ended.cancelled():
        ended.exception()
