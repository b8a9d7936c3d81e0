"""Handlers as they are called: in the loop, in threads, late, failing, in batches."""

import asyncio
import math
import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any

import pytest

from kshare.errors import ProcessingError
from kshare.processing import FILTERED, DeadLetter, Processor, Record, Retry, Status
from kshare.processing import loop as loop_module
from kshare.processing.engine import Engine
from tests.processing.engines import (
    SOON,
    MemoryEdge,
    assert_in_order,
    comes,
    handle,
    nothing,
    records_of,
)
from tests.support.clock import WAIT_S, Ahead, Clock

pytestmark = pytest.mark.usefixtures("each_loop")

KEYS = [b"%d" % (at % 7) for at in range(70)]


def test_a_coroutine_function_runs_for_many_keys_at_a_time_and_one_after_another_for_each() -> None:
    running, peak = defaultdict[Any, int](int), [0]

    async def handler(record: Record) -> int:
        running[record.key] += 1
        assert running[record.key] == 1
        peak[0] = max(peak[0], sum(running.values()))
        await asyncio.sleep(0.001)
        running[record.key] -= 1
        return record.offset * 2

    edge, engine = handle(Processor(handler, concurrency=5), KEYS)
    assert sorted(edge.offsets()) == list(range(70))
    assert all(each.result == 2 * each.record.offset for each in edge.outcomes)
    assert peak == [5]
    assert engine.measures.calls == 70
    assert_in_order(edge)


def test_a_plain_function_runs_in_threads() -> None:
    threads, barrier = set(), threading.Barrier(4, timeout=10)

    def handler(record: Record) -> None:
        threads.add(threading.current_thread())
        if record.offset < 4:
            barrier.wait()

    edge, _ = handle(Processor(handler, concurrency=4), KEYS)
    assert sorted(edge.offsets()) == list(range(70))
    assert threading.main_thread() not in threads
    assert len(threads) == 4
    assert_in_order(edge)


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_handler_that_hangs_is_ended_and_all_others_go_on(*, is_plain: bool) -> None:
    release = threading.Event()

    async def hangs(record: Record) -> None:
        if record.key == b"a":
            await asyncio.Event().wait()

    def blocks(record: Record) -> None:
        if record.key == b"a":
            release.wait()

    function = blocks if is_plain else hangs
    processor = Processor(
        function,
        timeout=0.5,
        retry=Retry(attempts=2, first=0.001),
        on_failure=DeadLetter("dlq"),
    )
    edge, engine = handle(processor, [b"a", b"b", b"b"])
    release.set()
    assert engine.measures.failures >= 2
    assert engine.measures.calls - engine.measures.failures == 2
    assert edge.offsets() == [1, 2]
    assert edge.offsets(Status.DEAD_LETTERED) == [0]
    error = edge.outcomes[-1].error
    assert isinstance(error, TimeoutError)
    assert "longer than its timeout, 0.5 s" in str(error)


def test_a_handler_that_returns_after_its_timeout_is_not_heard() -> None:
    returned = list[int]()

    async def handler(record: Record) -> str:
        attempt = record.attempt
        if attempt == 1:
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                await asyncio.sleep(0.05)
        returned.append(attempt)
        return f"attempt {attempt}"

    processor = Processor(handler, timeout=0.1, retry=Retry(attempts=2, first=0.001))
    edge, engine = handle(processor, [b"a", b"a"])
    assert engine.measures.failures >= 2
    assert engine.measures.calls - engine.measures.failures == 2
    assert next(each.result for each in edge.outcomes) == "attempt 2"
    assert edge.offsets() == [0, 1]


def test_a_call_that_is_cancelled_before_it_begins_has_failed_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """uvloop runs timers that are due before tasks that are new."""

    async def handle_late() -> Engine:
        processor = Processor(nothing, timeout=0.05, retry=Retry(attempts=1))
        engine = processor.engine(MemoryEdge())
        engine.offer(records_of(processor, [b"a"]))
        engine.scheduler.tick(engine.loop.now() + 0.1)
        engine.settle()  # before the task's first step
        await engine.loop.wait(lambda: engine.failure is not None, WAIT_S)
        await engine.close()
        return engine

    engine = asyncio.run(handle_late())
    assert "longer than its timeout" in str(engine.failure)
    assert "goes on although" not in caplog.text


def test_a_handler_that_cleans_up_after_its_timeout_has_its_key_until_then() -> None:
    running, seen = list[int](), list[tuple[int, int]]()

    async def handler(record: Record) -> None:
        assert not running
        seen.append((record.offset, record.attempt))
        running.append(record.offset)
        try:
            if record.offset == 0:
                await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)  # such as a rollback
            running.remove(record.offset)

    processor = Processor(
        handler,
        concurrency=1,
        timeout=0.1,
        retry=Retry(attempts=2, first=0.001),
        on_failure=DeadLetter("dlq"),
    )
    edge, engine = handle(processor, [b"a", b"a"])
    assert seen == [(0, 1), (0, 2), (1, 1)]
    assert edge.offsets(Status.DEAD_LETTERED) == [0]
    assert (engine.measures.calls, engine.measures.failures) == (3, 2)


def test_batches_of_a_key_and_of_many_keys() -> None:
    seen = list[list[Record]]()

    async def handler(records: list[Record]) -> list[Any]:
        seen.append(records)
        return [FILTERED if record.offset == 3 else record.offset for record in records]

    edge, _ = handle(Processor(handler, batch_size=4, concurrency=1), KEYS)
    assert all(len({record.key for record in batch}) == 1 for batch in seen)
    assert max(map(len, seen)) == 4
    assert edge.offsets(Status.FILTERED) == [3]
    seen.clear()
    edge, _ = handle(Processor(handler, on_batch=True, concurrency=1), KEYS)
    assert len(edge.outcomes) == 70
    assert len(seen) == 1
    assert_in_order(edge)


def test_an_exception_in_a_batchs_results_is_that_records() -> None:
    async def handler(records: list[Record]) -> list[Any]:
        return [ValueError("no") if record.offset == 2 else None for record in records]

    processor = Processor(handler, on_batch=True, retry=SOON, on_failure=DeadLetter("dlq"))
    edge, _ = handle(processor, KEYS)
    assert edge.offsets(Status.DEAD_LETTERED) == [2]
    assert len(edge.offsets()) == 69
    assert_in_order(edge)


def test_a_tuple_of_results_is_a_list_and_an_exception_that_is_returned_is_one() -> None:
    def handler(records: list[Record]) -> Any:
        return (ValueError("no"), None)[: len(records)]

    processor = Processor(
        handler, on_batch=True, retry=Retry(attempts=1), on_failure=DeadLetter("dlq")
    )
    edge, _ = handle(processor, [b"a", b"b"])
    assert edge.offsets(Status.DEAD_LETTERED) == [0]
    assert edge.offsets() == [1]
    single = Processor(
        lambda _: ValueError("no"), retry=Retry(attempts=1), on_failure=DeadLetter("dlq")
    )
    edge, _ = handle(single, [b"a"])
    assert edge.offsets(Status.DEAD_LETTERED) == [0]


def test_a_generator_is_no_result() -> None:
    def generate(record: Record) -> Any:
        yield record

    _, engine = handle(Processor(lambda record: generate(record)), [b"a"])  # noqa: PLW0108
    assert "returned a generator, of which nothing has run" in str(engine.failure)


def test_a_batch_that_was_filtered_has_no_results() -> None:
    """A column of results in Spark does not take what says so."""

    async def handler(records: list[Record]) -> object:
        return FILTERED

    edge, _ = handle(Processor(handler, batch_size=2), [b"a", b"a"])
    assert [(each.status, each.result) for each in edge.outcomes] == [(Status.FILTERED, None)] * 2


def test_a_list_that_is_too_short_is_one_call_that_has_failed() -> None:
    async def handler(records: list[Record]) -> list[Any]:
        return []

    processor = Processor(
        handler, batch_size=2, retry=Retry(attempts=1), on_failure=DeadLetter("d")
    )
    edge, engine = handle(processor, [b"a"])
    assert "a list of 0 results for 1 records" in str(edge.outcomes[0].error)
    assert (engine.measures.calls, engine.measures.failures) == (1, 1)


@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.filterwarnings("error")
def test_a_coroutine_that_nobody_awaits_is_no_result(*, batches: bool) -> None:
    def alone(record: Record) -> Any:
        return nothing(record)

    def together(records: list[Record]) -> Any:
        return [nothing(record) for record in records]

    async def awaits_half(record: Record) -> Any:
        return nothing(record)

    for handler in (together,) if batches else (alone, awaits_half):
        policy = DeadLetter("dlq")
        edge, engine = handle(Processor(handler, on_batch=batches, on_failure=policy), [b"a"] * 3)
        assert edge.offsets(Status.LEFT_OVER) == [0, 1, 2]
        assert len(edge.outcomes) == 3
        assert not edge.letters
        said = (
            r"offset 0 \(1 attempt\).*a coroutine that nobody awaits.*the coroutine function itself"
        )
        with pytest.raises(ProcessingError, match=said):
            engine.raise_failure()


@pytest.mark.parametrize(("order", "groups"), [("none", 4), ("partition", 1)])
def test_order_may_be_that_of_partitions_or_none(order: Any, groups: int) -> None:
    running, peak = [0], [0]

    async def handler(record: Record) -> None:
        running[0] += 1
        peak[0] = max(peak[0], running[0])
        await asyncio.sleep(0.002)
        running[0] -= 1

    handle(Processor(handler, order=order, concurrency=4), [b"a", b"b", b"a", b"a"])
    assert peak == [groups]


def test_a_thousand_in_flight_are_drained_or_left_over(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, edge = Ahead(), MemoryEdge()
    monkeypatch.setattr("kshare.processing.engine.time", clock)
    monkeypatch.setattr("kshare.processing.loop.time", clock)

    async def handler(record: Record) -> None:
        await asyncio.sleep(0.01 if record.offset < 900 else 600)

    processor = Processor(handler, concurrency=1_000)

    async def run() -> None:
        engine = processor.engine(edge)
        engine.offer(records_of(processor, [b"%d" % at for at in range(1_000)]))
        drains = asyncio.create_task(engine.drain(600.0))
        await comes(lambda: len(edge.outcomes) >= 900)
        clock.seconds += 600.0
        engine.loop.changed()
        await drains
        await engine.close()

    asyncio.run(asyncio.wait_for(run(), WAIT_S))
    assert sorted(edge.offsets()) == list(range(900))
    assert sorted(edge.offsets(Status.LEFT_OVER)) == list(range(900, 1_000))


def test_a_large_batch_that_waits_for_room_is_not_walked_through_each_time() -> None:
    """Each settling takes what there is room for: all of them together look at each record once."""
    looks = [0]

    class Counting(deque[Record]):
        def __iter__(self) -> Iterator[Record]:
            for record in super().__iter__():
                looks[0] += 1
                yield record

    async def run() -> MemoryEdge:
        processor, edge = Processor(nothing, concurrency=2, max_records=4), MemoryEdge()
        engine = processor.engine(edge)
        engine._offered = Counting()
        engine.offer(records_of(processor, [b"%d" % at for at in range(1_000)]))
        assert await engine.loop.wait(lambda: engine.is_idle, WAIT_S)
        await engine.close()
        return edge

    assert sorted(asyncio.run(run()).offsets()) == list(range(1_000))
    assert looks[0] <= 2 * 1_000


def test_a_predicate_that_fails_says_nothing_about_the_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def is_worth(error: BaseException) -> bool:
        raise LookupError("of the predicate")

    async def fails(record: Record) -> None:
        raise OSError("of the handler")

    retry = Retry(attempts=3, first=0.001, most=0.01, on=is_worth)
    edge, _ = handle(Processor(fails, retry=retry, on_failure=DeadLetter("dlq")), [b"a", b"a"])
    assert [record.offset for record in edge.letters] == [0, 1]
    assert {record.failures for record in edge.letters} == {3}
    assert "Retry(on=...) has failed" in caplog.text


@pytest.mark.parametrize("concurrency", [1, 4])
def test_coroutine_functions_that_never_wait_let_the_loop_go_on(
    monkeypatch: pytest.MonkeyPatch, concurrency: int
) -> None:
    clock, handled = Clock(), list[int]()
    monkeypatch.setattr("kshare.processing.engine.time", clock)
    monkeypatch.setattr("kshare.processing.loop.time", clock)

    async def handler(record: Record) -> None:
        clock.sleep(0.005)
        handled.append(record.offset)

    async def run() -> tuple[list[int], float]:
        edge = MemoryEdge()
        processor = Processor(handler, concurrency=concurrency)
        engine = processor.engine(edge)
        engine.offer(records_of(processor, [b"%d" % at for at in range(1_000)]))
        began = clock.now
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        turn = clock.now - began
        assert await engine.loop.wait(lambda: engine.is_idle)
        await asyncio.sleep(0)
        await engine.close()
        return edge.offsets(), turn

    offsets, turn = asyncio.run(run())
    assert sorted(offsets) == list(range(1_000)) == sorted(handled)
    assert 0 < turn < 0.2


def test_with_auto_fewer_calls_run_when_all_are_too_slow() -> None:
    async def hangs(record: Record) -> None:
        await asyncio.sleep(10)

    retry = Retry(attempts=50, first=0.001, most=0.01)
    processor = Processor(hangs, concurrency="auto", timeout=0.02, retry=retry)
    keys = [b"%d" % at for at in range(200)]
    most = processor.settings.concurrency
    handle(processor, keys, until=lambda engine: engine.scheduler.concurrency < most, drain=0.1)


def test_with_auto_functions_that_hang_once_do_not_end_it() -> None:
    """The limit is below the number of those that hang, as it falls with each window of them."""
    release = threading.Event()

    def hangs_once(record: Record) -> None:
        if record.attempt == 1:
            release.wait()

    retry = Retry(attempts=50, first=0.001, most=0.01)
    processor = Processor(hangs_once, concurrency="auto", timeout=0.05, retry=retry)
    edge, engine = handle(processor, [b"%d" % at for at in range(8)])
    release.set()
    assert engine.failure is None
    assert sorted(edge.offsets()) == list(range(8))


def test_a_time_that_is_over_already_may_be_looked_at_twice_in_a_turn() -> None:
    """A timer of uvloop that is due at once has no time."""

    async def run() -> None:
        engine = Processor(nothing).engine(MemoryEdge())
        engine.scheduler.next_tick = lambda: engine.loop.now() - 1.0  # type: ignore[method-assign]
        engine.settle()
        engine.settle()
        await engine.close()

    asyncio.run(run())


@pytest.mark.parametrize("is_plain", [False, True])
def test_what_was_begun_before_a_stop_is_not_called_after_it_while_others_may_have_it(
    monkeypatch: pytest.MonkeyPatch, *, is_plain: bool
) -> None:
    """Calls of one turn of the loop, and those that wait for a thread: they go back, in order."""
    edge, called, clock = MemoryEdge(), list[int](), Clock()
    monkeypatch.setattr(loop_module, "boot_time", clock.monotonic)

    def work(record: Record) -> None:
        called.append(record.offset)
        if edge.left > 0 and len(called) == 2:  # stopped amid the second call, for long
            clock.now += 100
            edge.left = -1.0

    async def in_loop(record: Record) -> None:
        work(record)

    def in_thread(record: Record) -> None:
        with one_at_a_time:
            work(record)

    one_at_a_time = threading.Lock()
    processor = Processor(in_thread if is_plain else in_loop, concurrency=1 if is_plain else 64)
    keys = [b"%d" % at for at in range(20)]

    async def run() -> None:
        engine = processor.engine(edge)
        engine.offer(records_of(processor, keys))
        await comes(lambda: edge.left < 0)
        for _ in range(5):  # turns of the loop, and looks at the right
            await asyncio.sleep(0.02)
        assert called == [0, 1]
        assert edge.offsets() == [0, 1]
        edge.left = math.inf
        await engine.loop.wait(lambda: engine.is_idle, WAIT_S)
        await engine.close()

    asyncio.run(run())
    assert called == list(range(20))
    assert sorted(edge.offsets()) == list(range(20))
