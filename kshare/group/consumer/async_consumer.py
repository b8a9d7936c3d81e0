"""The consumer for asyncio: :class:`AsyncKeySharedConsumer`, on the same core.

Cost: what waits runs in one thread of the consumer's own; a record that is there already is
returned without leaving the event loop's thread.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Self, TypeVar

import pyarrow as pa

from kshare.core.hashing import HashRange
from kshare.core.progress import TopicPartition
from kshare.group.config.consumer_config import ConsumerConfig
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.consumer.subscriber import Listener
from kshare.group.consumer.transaction import Transaction
from kshare.group.message import Message
from kshare.group.metrics import ConsumerMetrics
from kshare.group.model import ConsumerClosedError, OffsetAndMetadata

__all__ = ["AsyncKeySharedConsumer"]

T = TypeVar("T")


class AsyncKeySharedConsumer:
    """:class:`~kshare.group.KeySharedConsumer` for asyncio: the same methods, awaited.

    One task polls; other tasks may acknowledge, commit and close meanwhile. A call that is
    cancelled loses nothing: the next one returns what it would have returned.

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
        self._cancelled: tuple[str, asyncio.Future[Any]] | None = None

    async def poll(self, timeout: float | None = None) -> Message | None:  # noqa: ASYNC109
        """The next record; None if none came in time."""
        if self._cancelled is None:
            message = self._consumer.poll_fresh()
            if message is not None:
                return message
        return await self._received("poll", partial(self._consumer.poll, timeout))

    async def consume(
        self,
        num_messages: int = 1,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> list[Message]:
        """The next records, as many as come in time."""
        work = partial(self._consumer.consume, num_messages, timeout)
        return await self._received("consume", work)

    async def consume_batch(self, timeout: float | None = None) -> pa.RecordBatch | None:  # noqa: ASYNC109
        """The next records of one partition, as Arrow."""
        work = partial(self._consumer.consume_batch, timeout)
        return await self._received("consume_batch", work)

    async def __aiter__(self) -> AsyncIterator[Message]:
        """The records, until the consumer is closed."""
        while not self._consumer.is_closed:
            try:
                message = await self.poll()
            except ConsumerClosedError:
                return
            if message is not None:
                yield message

    def acknowledge(self, message: Message) -> None:
        """A record is processed (``acknowledgement.mode=explicit``)."""
        self._consumer.acknowledge(message)

    def acknowledge_batch(self, batch: pa.RecordBatch | pa.Table) -> None:
        """All records of a batch are processed."""
        self._consumer.acknowledge_batch(batch)

    async def commit(
        self,
        message: Message | None = None,
        offsets: Iterable[Any] | Mapping[Any, int] | None = None,
    ) -> dict[TopicPartition, int]:
        """Commit what is processed; return the stable offset of each partition."""
        stable = await asyncio.to_thread(self._consumer.commit, message, offsets)
        assert stable is not None
        return stable

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """A transaction (``transactional.id``): outputs and what is processed, all or nothing."""
        context = self._consumer.transaction()
        run = asyncio.get_running_loop().run_in_executor
        transaction = await run(self._polling, context.__enter__)
        try:
            yield transaction
        except BaseException as error:
            leave = partial(context.__exit__, type(error), error, error.__traceback__)
            if not await asyncio.shield(run(self._polling, leave)):
                raise
        else:
            leave = partial(context.__exit__, None, None, None)
            await asyncio.shield(run(self._polling, leave))

    async def committed(
        self,
        partitions: Iterable[Any] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed, of the assigned partitions or of some."""
        return await asyncio.to_thread(self._consumer.committed, partitions, timeout)

    async def assign(self, partitions: Mapping[Any, Sequence[Any]] | Sequence[Any]) -> None:
        """Claim key ranges of partitions, in place of what was claimed before."""
        await asyncio.to_thread(self._consumer.assign, partitions)

    async def unassign(self) -> None:
        """Give up all partitions."""
        await self.assign({})

    async def subscribe(
        self,
        topics: Iterable[str],
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
    ) -> None:
        """Join the group; the callbacks are plain functions, called by the thread that polls."""
        subscribe = self._consumer.subscribe
        await asyncio.to_thread(subscribe, topics, on_assigned, on_revoked, on_lost)

    async def unsubscribe(self) -> None:
        """Give up all partitions, and leave the group."""
        await asyncio.to_thread(self._consumer.unsubscribe)

    def assignment(self) -> dict[TopicPartition, tuple[HashRange, ...]]:
        """The key ranges that are claimed, by partition; ``()`` is the whole partition."""
        return self._consumer.assignment()

    async def pause(self, partitions: Iterable[Any]) -> None:
        """Return no more records of some partitions, until they are resumed."""
        await asyncio.to_thread(self._consumer.pause, partitions)

    async def resume(self, partitions: Iterable[Any]) -> None:
        """Return records of paused partitions again."""
        await asyncio.to_thread(self._consumer.resume, partitions)

    async def seek(self, partition: Any, offset: int | None = None) -> None:
        """Go on at an offset."""
        await asyncio.to_thread(self._consumer.seek, partition, offset)

    def position(self, partitions: Iterable[Any] | None = None) -> dict[TopicPartition, int]:
        """The offset after the last record that was returned, of partitions that have started."""
        return self._consumer.position(partitions)

    def memberid(self) -> str:
        """The consumer's id in the group."""
        return self._consumer.memberid()

    async def close(self) -> None:
        """Commit (with ``enable.auto.commit``), give up all claims, and end iterations."""
        await asyncio.to_thread(self._consumer.close)
        self._polling.shutdown(wait=False)

    def metrics(self) -> ConsumerMetrics:
        """What the consumer owns, how far it is, its commits and rebalances."""
        return self._consumer.metrics()

    @property
    def is_closed(self) -> bool:
        """Whether the consumer is closed."""
        return self._consumer.is_closed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _received(self, name: str, receive: Callable[[], T]) -> T:
        """Receive in the polling thread; first what a cancelled call has left behind."""
        if self._cancelled is not None:
            left_by, future = self._cancelled
            if left_by != name:
                raise RuntimeError(f"{left_by}() was cancelled: call it again before {name}()")
        else:
            future = asyncio.get_running_loop().run_in_executor(self._polling, receive)
        self._cancelled = name, future
        try:
            received: T = await asyncio.shield(future)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._cancelled = None
            raise
        self._cancelled = None
        return received
