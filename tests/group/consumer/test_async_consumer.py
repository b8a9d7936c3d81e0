"""The consumer for asyncio: the same records, and none lost by a cancelled call."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from kshare.core.progress import Progress, TopicPartition
from kshare.errors import ConsumerClosedError
from kshare.group.consumer import async_consumer as async_module
from kshare.group.consumer import calls as calls_module
from kshare.group.consumer import consumer as consumer_module
from kshare.group.consumer import receiver as receiver_module
from kshare.group.consumer.async_consumer import AsyncKeySharedConsumer
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.message import CHUNK_ROWS
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


@pytest.mark.parametrize(
    ("milliseconds", "most"), [(3, 5), (0, CHUNK_ROWS)], ids=["each 10 ms", "each chunk"]
)
def test_other_tasks_run_while_an_iteration_has_records(
    cluster: FakeCluster,
    run: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    milliseconds: int,
    most: int,
) -> None:
    """A body that awaits nothing: tasks wait for a look at the session, however many records."""
    fill(cluster, 5_000)
    now, seen, seen_at_turns = [time.time()], list[int](), list[int]()

    def clock() -> float:
        now[0] += milliseconds / 1000
        return now[0]

    for module in (async_module, calls_module, consumer_module, receiver_module):
        monkeypatch.setattr(module, "wall_time", clock)

    async def take_turns() -> None:
        while True:
            seen_at_turns.append(len(seen))
            await asyncio.sleep(0)

    async def test(consumer: AsyncKeySharedConsumer) -> None:
        turns = asyncio.create_task(take_turns())
        async for message in consumer:
            seen.append(message.offset())
            if len(seen) == 4_500:
                break
        turns.cancel()

    run(test, FakeSessions())
    assert seen == list(range(4_500))
    assert max(b - a for a, b in pairwise([*seen_at_turns, 4_500])) <= most


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
def test_an_iteration_goes_on_after_what_was_cancelled_amid_it(
    cluster: FakeCluster, run: Callable[..., None], mode: str
) -> None:
    """Calls within its body, and the task that iterates."""
    fill(cluster, 3_000)
    random = Random(7)

    async def test(consumer: AsyncKeySharedConsumer) -> None:
        seen = list[int]()

        async def cancelled_call() -> None:
            call = asyncio.create_task(consumer.consume(10_000, WAIT_S))
            for _ in range(random.randrange(1, 4)):
                await asyncio.sleep(0)
            call.cancel()
            with suppress(asyncio.CancelledError):
                seen.extend(each.offset() for each in await call)

        async def iterate() -> None:
            this = asyncio.current_task()
            assert this is not None
            async for message in consumer:
                seen.append(message.offset())
                if mode == "explicit":
                    consumer.acknowledge(message)
                if len(seen) == 3_000:
                    return
                if this.cancelling():  # it ends when the iteration awaits next
                    continue
                if random.random() < 0.01:
                    await cancelled_call()
                if random.random() < 0.01:
                    this.cancel()

        while len(seen) < 3_000:
            with suppress(asyncio.CancelledError):
                await asyncio.create_task(iterate())
        assert seen == list(range(3_000))
        assert await consumer.commit() == {ORDERS: 3_000}

    run(test, FakeSessions(), acknowledgement__mode=mode)


def test_an_iteration_waits_for_the_thread_of_a_call_that_was_cancelled_amid_it(
    cluster: FakeCluster, run: Callable[..., None]
) -> None:
    """That may still be at the rows, though the last look at the session says they are there."""
    fill(cluster, 10)

    async def test(consumer: AsyncKeySharedConsumer) -> None:
        iteration = aiter(consumer)
        assert (await anext(iteration)).offset() == 0
        call = consumer._left = asyncio.get_running_loop().create_future()
        following = asyncio.ensure_future(anext(iteration))
        await asyncio.sleep(0)
        assert not following.done()
        call.set_result(False)
        assert (await following).offset() == 1

    run(test, FakeSessions())


def test_an_iteration_returns_nothing_after_another_thread_has_closed_the_consumer(
    cluster: FakeCluster, run: Callable[..., None]
) -> None:
    fill(cluster, 100)
    seen = list[int]()

    async def test(consumer: AsyncKeySharedConsumer) -> None:
        async for message in consumer:
            seen.append(message.offset())
            if len(seen) == 10:
                await asyncio.to_thread(consumer._consumer.close)

    run(test, FakeSessions())
    assert seen == list(range(10))


def test_an_iteration_leaves_out_a_key_that_is_released_amid_it(
    cluster: FakeCluster, run: Callable[..., None]
) -> None:
    fill(cluster, 100)  # five keys in turn
    seen = list[int]()

    async def test(consumer: AsyncKeySharedConsumer) -> None:
        async for message in consumer:
            seen.append(message.offset())
            if seen == [0, 1, 2]:
                await consumer.release(message, 3_600.0)
            if message.offset() == 99:
                break

    run(test, FakeSessions(), acknowledgement__mode="explicit")
    assert seen == [0, 1, 2, *(at for at in range(3, 100) if at % 5 != 2)]


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
