"""The consumer for asyncio: the same records, and none lost by a cancelled call."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from kshare.core.progress import Progress, TopicPartition
from kshare.errors import ConsumerClosedError
from kshare.group.consumer.async_consumer import AsyncKeySharedConsumer
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.testing import FakeCluster
from tests.support.clock import WAIT_S
from tests.support.fake_session import FakeSessions
from tests.support.policies import FakePolicies

ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1}) as running:
        yield running


@pytest.fixture
def run(cluster: FakeCluster) -> Callable[..., None]:
    """Run a test with a consumer of all that is in the topic."""

    def run(
        test: Callable[[AsyncKeySharedConsumer], Coroutine[Any, Any, None]],
        group: FakeSessions,
        **given: Any,
    ) -> None:
        config = {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "g",
        } | {name.replace("__", "."): value for name, value in given.items()}

        async def main() -> None:
            make = partial(KeySharedConsumer, session=group, policies=FakePolicies())
            async with AsyncKeySharedConsumer(config, consumer=make) as consumer:
                await consumer.assign({ORDERS: []})
                assert consumer.assignment() == {ORDERS: ()}
                await test(consumer)

        asyncio.run(asyncio.wait_for(main(), 60))

    return run


def fill(cluster: FakeCluster, records: int, first: int = 0) -> None:
    rows = [(f"k{i % 5}", str(i)) for i in range(first, first + records)]
    cluster.produce("orders", rows, partition=0)


def test_iteration_acknowledgement_and_commit(
    cluster: FakeCluster, run: Callable[..., None]
) -> None:
    fill(cluster, 5_000)
    group = FakeSessions()

    async def test(consumer: AsyncKeySharedConsumer) -> None:
        seen = []
        async for message in consumer:
            seen.append(message.offset())
            if message.offset() != 7:
                consumer.acknowledge(message)
            if len(seen) == 4_000:
                break
        assert seen == list(range(4_000))
        assert await consumer.commit() == {ORDERS: 7}
        messages = await consumer.consume(10, WAIT_S)
        assert [message.offset() for message in messages] == list(range(4_000, 4_010))
        assert consumer.position() == {ORDERS: 4_010}
        rows = 4_010
        while rows < 5_000:
            batch = await consumer.consume_batch(WAIT_S)
            assert batch is not None
            consumer.acknowledge_batch(batch)
            rows += batch.num_rows
        assert await consumer.commit(messages[-1]) == {ORDERS: 5_000}
        assert (await consumer.committed())[ORDERS].offset == 5_000
        assert consumer.memberid() == "member-0"

    run(test, group, acknowledgement__mode="explicit")
    assert group.members[0].is_closed


def test_a_cancelled_call_loses_nothing(cluster: FakeCluster, run: Callable[..., None]) -> None:
    group = FakeSessions()

    async def test(consumer: AsyncKeySharedConsumer) -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(consumer.poll(), 0.3)
        fill(cluster, 3)
        seen = [message.offset() for message in await consumer.consume(1, WAIT_S)]
        for _ in range(2):
            message = await consumer.poll()
            assert message is not None
            seen.append(message.offset())
        assert seen == [0, 1, 2]
        assert await consumer.commit() == {ORDERS: 3}

    run(test, group)


def test_other_tasks_control_a_consumer_that_waits(
    cluster: FakeCluster, run: Callable[..., None]
) -> None:
    group = FakeSessions()

    async def test(consumer: AsyncKeySharedConsumer) -> None:
        seen: list[int] = []
        is_read = asyncio.Event()

        async def read() -> None:
            async for message in consumer:
                seen.append(message.offset())
                if seen[-3:] == [2, 3, 4]:
                    is_read.set()

        reading = asyncio.create_task(read())
        await asyncio.sleep(0.1)
        await consumer.pause([ORDERS])
        await consumer.resume([ORDERS])
        fill(cluster, 5)
        await consumer.seek(ORDERS, 2)
        await is_read.wait()
        await consumer.unassign()
        await consumer.close()
        await reading

    run(test, group)
    # 0: the seek left 0 and 1 out; 4: the last record was returned, and no later call had begun.
    assert group.done.get(ORDERS, Progress.at(0)).stable in {0, 4, 5}


def test_an_iteration_ends_if_the_consumer_is_closed_before_it_polls(
    cluster: FakeCluster, run: Callable[..., None]
) -> None:
    async def test(consumer: AsyncKeySharedConsumer) -> None:
        is_closed = threading.Event()
        consumer._polling.submit(is_closed.wait)  # so the poll below waits for its thread
        iteration = aiter(consumer)
        waiting = asyncio.ensure_future(anext(iteration, None))
        await asyncio.sleep(0)
        await asyncio.to_thread(consumer._consumer.close)
        is_closed.set()
        assert await waiting is None

    run(test, FakeSessions())


def test_calls_that_hang_in_the_threads_of_asyncio_keep_nothing_back(
    cluster: FakeCluster, run: Callable[..., None]
) -> None:
    fill(cluster, 3)

    async def test(consumer: AsyncKeySharedConsumer) -> None:
        release = threading.Event()
        with ThreadPoolExecutor(1) as threads:
            asyncio.get_running_loop().set_default_executor(threads)
            hangs = asyncio.create_task(asyncio.to_thread(release.wait))
            try:
                async with asyncio.timeout(WAIT_S):
                    assert len(await consumer.consume(3, WAIT_S)) == 3
                    assert await consumer.commit() == {ORDERS: 3}
                    await consumer.pause([ORDERS])
                    await consumer.close()
            finally:
                release.set()
                await hangs

    run(test, FakeSessions())


def test_a_closed_consumer_says_so_also_if_no_records_are_wanted(run: Callable[..., None]) -> None:
    async def test(consumer: AsyncKeySharedConsumer) -> None:
        assert await consumer.consume(0) == []
        await consumer.close()
        with pytest.raises(ConsumerClosedError):
            await consumer.consume(0)

    run(test, FakeSessions())


def test_an_end_that_a_callback_fails_leaves_no_thread(
    cluster: FakeCluster, run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, ended = list[threading.Thread](), list[bool]()

    async def test(consumer: AsyncKeySharedConsumer) -> None:
        await consumer.poll(0.01)
        threads.extend(consumer._polling._threads)
        close = consumer._consumer.close

        def fails() -> None:
            close()
            raise LookupError("of on_revoked")

        monkeypatch.setattr(consumer._consumer, "close", fails)
        with pytest.raises(LookupError):
            await consumer.close()
        monkeypatch.undo()

        for thread in threads:
            await asyncio.to_thread(thread.join, WAIT_S)
        ended.extend(not thread.is_alive() for thread in threads)

    run(test, FakeSessions())
    assert ended == [True]
