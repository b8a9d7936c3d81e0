"""A call returns what it has a right to at the moment of its return; all else goes back."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from kshare.core.progress import Progress, TopicPartition
from kshare.errors import ConsumerClosedError, FencedError, KafkaError
from kshare.group.consumer import async_consumer as async_module
from kshare.group.consumer import calls as calls_module
from kshare.group.consumer import consumer as consumer_module
from kshare.group.consumer import receiver as receiver_module
from kshare.group.consumer.async_consumer import AsyncKeySharedConsumer
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.message import Message
from kshare.testing import FakeCluster
from tests.group.consumer.records import offsets
from tests.support.clock import WAIT_S, Ahead, until
from tests.support.fake_session import FakeSessions
from tests.support.policies import FakePolicies

ORDERS = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)
FENCED = FencedError("taken over", topic="orders", partition=0, hashes=((0, 5),), other="m2")
RECORDS = 4
LONG_S = 600.0


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 2}) as running:
        fill(running, RECORDS)
        yield running


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Ahead:
    """What calls end by."""
    ahead = Ahead()
    for module in (calls_module, receiver_module, async_module):
        monkeypatch.setattr(module, "time", ahead)
    return ahead


def fill(cluster: FakeCluster, records: int, partition: int = 0) -> None:
    rows = [(f"k{i % 2}", str(i)) for i in range(records)]
    cluster.produce("orders", rows, partition=partition)


class Call:
    """``consume`` in a thread of its own, which waits for more than there is.

    It would for ten minutes, by a clock that the tests put ahead.
    """

    def __init__(self, consumer: KeySharedConsumer, records: int = RECORDS) -> None:
        self._consumer = consumer
        self._executor = ThreadPoolExecutor(1)
        self._future: Future[list[Message]] = self._executor.submit(
            consumer.consume, records + 1, LONG_S
        )
        self.collects(records)

    def collects(self, records: int) -> None:
        """Wait until it has collected so many."""
        until(lambda: has_collected(self._consumer, records) or self._future.done())
        assert not self._future.done()

    def answer(self) -> list[int]:
        """What it returns by itself."""
        try:
            return offsets(self._future.result(WAIT_S))
        finally:
            self._executor.shutdown(wait=False)

    def at_its_end(self, clock: Ahead) -> list[int]:
        """What it returns when its time is over."""
        clock.seconds += LONG_S
        self._consumer.receiver.fresh.interrupt()
        return self.answer()


def has_collected(consumer: KeySharedConsumer, records: int) -> bool:
    return len(consumer.receiver.call.messages) == records


# -- the right is lost amid a call ---------------------------------------------------------------


def test_a_fence_amid_a_call_is_raised_and_nothing_is_returned(
    group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    consumer = make()
    consumer.assign([ORDERS])
    call = Call(consumer)
    group.members[0].error = FENCED
    group.members[0].change()
    with pytest.raises(FencedError):
        call.answer()
    group.members[0].error = None
    assert offsets(consumer.consume(RECORDS, WAIT_S)) == list(range(RECORDS))


def test_a_right_that_is_there_again_by_the_end_of_a_call_loses_nothing(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    consumer = make()
    consumer.assign([ORDERS])
    call = Call(consumer)
    group.members[0].can_deliver = False
    group.members[0].change()
    fill(cluster, 1)
    until(lambda: group.members[0].looks)
    group.members[0].can_deliver = True
    group.members[0].change()
    assert call.answer() == list(range(RECORDS + 1))


def test_a_close_amid_a_call_returns_nothing_and_commits_nothing(
    group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    consumer = make(enable__auto__commit=True)
    consumer.assign([ORDERS])
    call = Call(consumer)
    consumer.close()
    with suppress(ConsumerClosedError):
        assert call.answer() == []
    assert group.done.get(ORDERS, Progress.at(0)) == Progress.at(0)


def test_a_signal_handler_that_closes_amid_a_call_lets_nothing_out(
    group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    consumer = make(enable__auto__commit=True)
    consumer.assign([ORDERS])
    before = signal.signal(signal.SIGUSR1, lambda *_: consumer.close())

    def interrupt() -> None:
        until(lambda: has_collected(consumer, RECORDS))
        os.kill(os.getpid(), signal.SIGUSR1)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        assert consumer.consume(RECORDS + 1, LONG_S) == []
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    assert consumer.is_closed
    assert group.done.get(ORDERS, Progress.at(0)) == Progress.at(0)


@pytest.mark.parametrize("looks", range(6))
def test_a_call_ends_at_its_deadline_wherever_its_process_was_stopped(
    make: Callable[..., KeySharedConsumer], monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """It goes on after the deadline, with its next look at the clock."""
    before = iter(range(looks))

    class Stopped(Ahead):
        def monotonic(self) -> float:
            if has_collected(consumer, RECORDS) and next(before, None) is None:
                self.seconds = LONG_S
            return super().monotonic()

    clock = Stopped()
    for module in (calls_module, receiver_module):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(receiver_module, "_TICK_SECONDS", 0.05)
    consumer = make()
    consumer.assign([ORDERS])
    call = ThreadPoolExecutor(1).submit(consumer.consume, RECORDS + 1, LONG_S)
    assert offsets(call.result(WAIT_S)) == list(range(RECORDS))


@pytest.mark.parametrize("what", ["pause", "seek", "assign"])
def test_what_is_read_changes_amid_a_call(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer], clock: Ahead, what: str
) -> None:
    fill(cluster, RECORDS, partition=1)
    consumer = make()
    consumer.assign([ORDERS, OTHER])
    call = Call(consumer, 2 * RECORDS)
    if what == "pause":
        consumer.pause([ORDERS])
    elif what == "seek":
        consumer.seek(ORDERS, 3)
    else:
        consumer.assign([OTHER])
    expected = {"pause": [], "seek": [3], "assign": []}[what]
    call.collects(RECORDS + len(expected))
    assert sorted(call.at_its_end(clock)) == sorted([*range(RECORDS), *expected])
    if what == "pause":
        consumer.resume([ORDERS])
        assert offsets(consumer.consume(RECORDS, WAIT_S)) == list(range(RECORDS))


def test_a_callback_that_raises_amid_a_call_loses_nothing(
    make: Callable[..., KeySharedConsumer],
) -> None:
    faults = [ValueError("no")]

    def on_commit(*_: object) -> None:
        if faults and has_collected(consumer, RECORDS):
            raise faults.pop()

    consumer = make(enable__auto__commit=True, auto__commit__interval__ms=100, on_commit=on_commit)
    consumer.assign([ORDERS])
    with pytest.raises(ValueError, match="no"):
        consumer.consume(RECORDS + 1, LONG_S)
    assert offsets(consumer.consume(RECORDS, WAIT_S)) == list(range(RECORDS))


NEXT: dict[str, Callable[[KeySharedConsumer], object]] = {
    "poll": lambda consumer: consumer.poll(WAIT_S),
    "consume": lambda consumer: consumer.consume(1, WAIT_S),
    "consume_batch": lambda consumer: consumer.consume_batch(WAIT_S),
    "an iteration": lambda consumer: next(iter(consumer)),
    "close": lambda consumer: consumer.close(),
}


@pytest.mark.parametrize("how", NEXT)
def test_an_error_amid_a_call_that_has_records_is_raised_by_the_next_one(
    make: Callable[..., KeySharedConsumer], how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be said only once, as by a callback, or of a topic that may not be described."""
    faults = [KafkaError("only once")]

    def on_commit(*_: object) -> None:
        if faults and has_collected(consumer, RECORDS):
            raise faults.pop()

    consumer = make(enable__auto__commit=True, auto__commit__interval__ms=100, on_commit=on_commit)
    consumer.assign([ORDERS])
    assert offsets(consumer.consume(RECORDS + 1, LONG_S)) == list(range(RECORDS))
    if how == "close":
        NEXT[how](consumer)
        assert [each for each in caplog.records if "only once" in each.message]
        return
    with pytest.raises(KafkaError, match="only once"):
        NEXT[how](consumer)
    consumer.seek(ORDERS, 2)
    assert offsets(consumer.consume(RECORDS - 2, WAIT_S)) == list(range(2, RECORDS))


def test_with_asyncio_an_error_amid_a_call_that_has_records_is_raised_by_the_next_one(
    cluster: FakeCluster, group: FakeSessions
) -> None:
    faults, consumers = [KafkaError("only once")], list[KeySharedConsumer]()

    def on_commit(*_: object) -> None:
        if faults and has_collected(consumers[0], RECORDS):
            raise faults.pop()

    async def test(consumer: AsyncKeySharedConsumer) -> None:
        consumers.append(consumer._consumer)
        assert len(await consumer.consume(RECORDS + 1, LONG_S)) == RECORDS
        with pytest.raises(KafkaError, match="only once"):
            await consumer.poll(WAIT_S)

    run(cluster, group, test, **{"auto.commit.interval.ms": 100, "on_commit": on_commit})


# -- the process sleeps between any two looks at the clock ---------------------------------------

WAYS: dict[str, Callable[[KeySharedConsumer], object]] = {
    "poll": lambda consumer: consumer.poll(0.3),
    "consume": lambda consumer: consumer.consume(RECORDS, 0.3),
    "consume without a timeout": lambda consumer: consumer.consume(1),
    "consume_batch": lambda consumer: consumer.consume_batch(0.3),
    "iteration": lambda consumer: next(iter(consumer)),
}


@pytest.mark.parametrize("way", ["poll", "consume", "consume_batch"])
def test_a_process_that_was_stopped_returns_nothing_it_had_got_before(
    group: FakeSessions,
    make: Callable[..., KeySharedConsumer],
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    """Whichever look at the clock it was stopped before: by then, the session is over."""
    stops = 0
    for number in range(1, 12):
        consumer = make()
        session, looks = group.members[-1], 0
        consumer.assign([ORDERS])

        def clock(number: int = number, session: Any = session) -> float:
            nonlocal looks
            looks += 1
            if looks == number:
                session.can_deliver = False
            return time.time() + (100.0 if looks >= number else 0.0)

        for module in (calls_module, receiver_module, consumer_module):
            monkeypatch.setattr(module, "wall_time", clock)
        answer = WAYS[way](consumer)
        if looks >= number:
            stops += 1
            assert not answer
        monkeypatch.undo()
    assert stops > 1


# -- commits amid a call -------------------------------------------------------------------------


def test_a_commit_counts_what_calls_have_returned_and_not_what_one_holds(
    group: FakeSessions, make: Callable[..., KeySharedConsumer], clock: Ahead
) -> None:
    consumer = make()
    consumer.assign([ORDERS])
    assert offsets(consumer.consume(1, WAIT_S)) == [0]
    call = Call(consumer, RECORDS - 1)
    assert consumer.position() == {ORDERS: 1}
    assert consumer.commit() == {ORDERS: 1}
    with pytest.raises(ValueError, match="beyond the position 1"):
        consumer.commit(offsets={ORDERS: 2})
    assert call.at_its_end(clock) == [1, 2, 3]
    assert group.done[ORDERS] == Progress.at(1)
    assert consumer.commit() == {ORDERS: RECORDS}


# -- asyncio -------------------------------------------------------------------------------------


def run(cluster: FakeCluster, group: FakeSessions, test: Callable[..., Any], **given: Any) -> None:
    config = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g"} | given

    async def main() -> None:
        make = partial(KeySharedConsumer, session=group, policies=FakePolicies())
        async with AsyncKeySharedConsumer(config, consumer=make) as consumer:
            await consumer.assign([ORDERS])
            await test(consumer)

    asyncio.run(asyncio.wait_for(main(), 60))


async def cancelled(consumer: AsyncKeySharedConsumer, way: str) -> None:
    """Cancel a call: consume when it has collected all; others before they get what is there."""
    ended, is_there = consumer._ended, asyncio.Event()

    async def never(future: Any) -> Any:
        assert await ended(future)
        is_there.set()
        await asyncio.Event().wait()

    if way == "consume":
        task = asyncio.create_task(consumer.consume(RECORDS + 1, LONG_S))
        core = consumer._consumer
        await asyncio.to_thread(until, lambda: has_collected(core, RECORDS))
    else:
        consumer._ended = never  # type: ignore[method-assign]
        task = asyncio.create_task(getattr(consumer, way)(20))
        await is_there.wait()
        consumer._ended = ended  # type: ignore[method-assign]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("way", ["poll", "consume", "consume_batch"])
@pytest.mark.parametrize("mode", ["implicit", "explicit"])
def test_a_cancelled_call_has_returned_nothing(
    cluster: FakeCluster, group: FakeSessions, way: str, mode: str
) -> None:
    async def test(consumer: AsyncKeySharedConsumer) -> None:
        await cancelled(consumer, way)
        assert await consumer.commit() == {ORDERS: 0}
        await cancelled(consumer, way)
        message = await consumer.poll(WAIT_S)
        assert message is not None
        rest = await consumer.consume(RECORDS - 1, WAIT_S)
        assert offsets([message, *rest]) == list(range(RECORDS))
        for each in [message, *rest]:
            consumer.acknowledge(each)
        assert await consumer.commit() == {ORDERS: RECORDS}

    run(cluster, group, test, **{"acknowledgement.mode": mode, "enable.auto.commit": False})


@pytest.mark.parametrize("way", ["poll", "consume", "consume_batch"])
def test_a_close_after_a_cancelled_call_commits_nothing_of_it(
    cluster: FakeCluster, group: FakeSessions, way: str
) -> None:
    run(cluster, group, partial(cancelled, way=way))
    assert group.done.get(ORDERS, Progress.at(0)) == Progress.at(0)


@pytest.mark.parametrize("way", ["poll", "consume", "consume_batch"])
def test_the_right_is_looked_at_when_the_task_gets_the_records(
    cluster: FakeCluster, group: FakeSessions, clock: Ahead, way: str
) -> None:
    """The event loop was busy while the session lapsed."""

    async def test(consumer: AsyncKeySharedConsumer) -> None:
        session = group.members[0]
        ended = consumer._ended

        async def late(future: Any) -> Any:
            has_some = await ended(future)
            session.can_deliver = False
            consumer._consumer.receiver.fresh.look_again()  # as time would
            clock.seconds += LONG_S
            return has_some

        consumer._ended = late  # type: ignore[method-assign]
        arguments = (RECORDS, LONG_S) if way == "consume" else (LONG_S,)
        assert not await getattr(consumer, way)(*arguments)
        consumer._ended = ended  # type: ignore[method-assign]
        session.can_deliver = True
        assert offsets(await consumer.consume(RECORDS, WAIT_S)) == list(range(RECORDS))

    run(cluster, group, test)


# -- calls between two looks at the session ------------------------------------------------------


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands still: what a look has allowed goes on until something changes."""
    for module in (calls_module, receiver_module, consumer_module):
        monkeypatch.setattr(module, "wall_time", lambda: 1e9)


@pytest.mark.usefixtures("stopped")
def test_consume_takes_what_is_there_without_a_look_until_something_changes(
    group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    consumer = make()
    consumer.assign([ORDERS])
    assert offsets(consumer.consume(1, WAIT_S)) == [0]
    session = group.members[0]
    session.can_deliver = False  # and nobody says so
    assert offsets(consumer.consume(1, WAIT_S)) == [1]
    session.change()
    assert consumer.consume(1, 0.0) == []
    session.can_deliver = True
    session.change()
    assert offsets(consumer.consume(RECORDS, 0.0)) == [2, 3]


@pytest.mark.usefixtures("stopped")
@pytest.mark.parametrize(
    ("steps", "processed"),
    [((2,), 0), ((1, 1), 1), ((1, 2), 1), ((1, 1, 2), 2), ((2, 0), 2), ((1, 0, 0), 2), ((0, 2), 1)],
)
def test_a_call_without_a_look_counts_what_was_returned_before(
    group: FakeSessions,
    make: Callable[..., KeySharedConsumer],
    steps: tuple[int, ...],
    processed: int,
) -> None:
    """``consume`` of so many records; 0 is ``poll``. Until the next call, none of it counts."""
    consumer = make(enable__auto__commit=True)
    consumer.assign([ORDERS])
    for step in steps:
        returned = consumer.consume(step, WAIT_S) if step else [consumer.poll(WAIT_S)]
        assert len(returned) == max(step, 1)
    consumer.close()
    done = group.done.get(ORDERS, Progress.at(0))
    assert done == Progress.at(processed)
