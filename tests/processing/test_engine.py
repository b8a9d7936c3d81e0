"""Handlers as they are called: in the loop, in threads, late, failing, in batches."""

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from kshare.errors import ProcessingError
from kshare.processing import (
    FILTERED,
    DeadLetter,
    Outcome,
    Park,
    Processor,
    Record,
    Retry,
    RetryAfter,
    Status,
    Stop,
)
from kshare.processing.engine import Engine
from tests.processing.engines import MemoryEdge, comes, handle, records_of
from tests.support.clock import WAIT_S, Ahead, Clock

pytestmark = pytest.mark.usefixtures("each_loop")

SOON = Retry(attempts=3, first=0.001, most=0.01)
KEYS = [b"%d" % (at % 7) for at in range(70)]


def assert_in_order(edge: MemoryEdge) -> None:
    by_key = defaultdict(list)
    for each in edge.outcomes:
        by_key[each.record.raw_key].append(each.record.offset)
    assert all(offsets == sorted(offsets) for offsets in by_key.values())


async def nothing(record: Record) -> None:
    pass


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


def test_a_record_that_fails_is_tried_again_and_remembered_until_it_is_done() -> None:
    seen = list[tuple[int, int]]()

    async def handler(record: Record) -> None:
        seen.append((record.offset, record.attempt))
        if record.offset == 0 and record.attempt < 3:
            raise ValueError("no")

    edge, _ = handle(Processor(handler, retry=SOON), [b"a", b"a"])
    assert seen == [(0, 1), (0, 2), (0, 3), (1, 1)]
    assert [each.attempts for each in edge.outcomes] == [3, 1]
    assert not edge.remembered


@pytest.mark.parametrize("is_plain", [False, True])
def test_what_fails_for_good_is_a_dead_letter_and_its_key_goes_on(*, is_plain: bool) -> None:
    async def handler(record: Record) -> None:
        if record.offset == 1:
            raise ValueError("no")

    def plain(record: Record) -> None:
        if record.offset == 1:
            raise ValueError("no")

    function = plain if is_plain else handler
    edge, _ = handle(Processor(function, retry=SOON, on_failure=DeadLetter("dlq")), [b"a"] * 3)
    assert [record.offset for record in edge.letters] == [1]
    assert edge.offsets(Status.DEAD_LETTERED) == [1]
    assert edge.outcomes[1].attempts == 3
    assert_in_order(edge)


class Panic(BaseException):
    """What PyO3 raises when Rust's code panics; gevent's Timeout is no Exception, either."""


@pytest.mark.parametrize("error", [Panic, GeneratorExit])
@pytest.mark.parametrize("is_plain", [False, True])
def test_an_error_that_is_no_exception_is_an_attempt_that_has_failed(
    *, is_plain: bool, error: type[BaseException]
) -> None:
    async def handler(record: Record) -> None:
        plain(record)

    def plain(record: Record) -> None:
        if record.offset == 0:
            raise error

    policy, once = DeadLetter("dlq"), Retry(attempts=1)
    processor = Processor(plain if is_plain else handler, retry=once, on_failure=policy)
    edge, engine = handle(processor, [b"a", b"a"])
    assert [record.offset for record in edge.letters] == [0]
    assert edge.offsets() == [1]
    assert engine.measures.failures == 1


def test_a_dead_letter_that_cannot_be_written_leaves_its_record_pending() -> None:
    async def handler(record: Record) -> None:
        if record.key == b"a":
            raise ValueError("no")

    edge = MemoryEdge()
    edge.refuses = lambda record: OSError("the topic is missing")
    processor = Processor(handler, retry=SOON, on_failure=DeadLetter("dlq"))

    def is_tried_again(engine: Engine) -> bool:
        return engine.measures.undelivered > 1 and edge.offsets() == [1]

    _, engine = handle(processor, [b"a", b"b", b"a"], edge, until=is_tried_again, drain=0.1)
    assert edge.offsets() == [1]
    assert edge.offsets(Status.LEFT_OVER) == [0, 2]
    assert engine.measures.undelivered > 1


def test_what_stays_of_a_lane_whose_letter_was_refused_goes_on() -> None:
    """Others got the record of the letter meanwhile, of a partition that is shared by keys."""
    refused = asyncio.Event()

    class Edge(MemoryEdge):
        async def deliver(self, record: Record, error: BaseException | None) -> None:
            self.letters.append(record)
            await refused.wait()
            raise OSError("not now")

    async def handler(record: Record) -> None:
        if record.offset == 0:
            raise ValueError("no")

    async def run() -> None:
        processor = Processor(
            handler, order="partition", retry=Retry(attempts=1), on_failure=DeadLetter("dlq")
        )
        engine = processor.engine(edge)
        engine.offer(records_of(processor, [b"a", b"b"]))
        assert await engine.wait(lambda: bool(edge.letters), WAIT_S)
        engine.revoke(lambda record: record.raw_key == b"a")
        engine.settle()
        refused.set()
        assert await engine.wait(lambda: edge.offsets() == [1], WAIT_S)
        await engine.close()

    edge = Edge()
    asyncio.run(run())
    assert edge.offsets(Status.LEFT_OVER) == [0]


def test_a_sequence_follows_into_the_dead_letter_topic() -> None:
    async def handler(record: Record) -> None:
        if record.offset == 1:
            raise ValueError("no")

    policy = DeadLetter("dlq", sequence=True)
    edge, _ = handle(Processor(handler, retry=SOON, on_failure=policy), [b"a"] * 4)
    assert edge.offsets() == [0]
    assert [record.offset for record in edge.letters] == [1, 2, 3]
    assert [record.offset for record in edge.sequences] == [1]


def test_a_parked_key_is_released_and_all_others_go_on() -> None:
    async def handler(record: Record) -> None:
        if record.key == b"a":
            raise ValueError("no")

    processor = Processor(handler, retry=SOON, on_failure=Park())
    edge, _ = handle(processor, [b"a", b"b", b"a"], gives_back=True)
    assert [record.offset for record in edge.released] == [0]
    assert edge.offsets(Status.LEFT_OVER) == [2]
    assert edge.offsets() == [1]
    assert edge.offsets(Status.PARKED) == [0]


def test_what_comes_of_a_key_after_it_was_parked_is_left_over() -> None:
    tried = set[int]()

    async def handler(record: Record) -> None:
        tried.add(record.offset)
        if record.offset == 0:
            raise ValueError("no")

    processor = Processor(handler, retry=SOON, on_failure=Park(), max_records=1)
    edge, _ = handle(processor, [b"a", b"a", b"b", b"a"])
    assert tried == {0, 2}
    assert edge.offsets(Status.PARKED) == [0]
    assert edge.offsets(Status.LEFT_OVER) == [1, 3]


def test_stop_says_which_record_it_was() -> None:
    async def handler(record: Record) -> None:
        raise ValueError("no")

    edge, engine = handle(
        Processor(handler, retry=Retry(attempts=1), on_failure=Stop()), [b"a"] * 2
    )
    assert engine.failure is not None
    assert engine.failure.record.offset == 0
    assert edge.offsets(Status.FAILED) == [0]
    assert edge.offsets(Status.LEFT_OVER) == [1]


@pytest.mark.parametrize("is_plain", [False, True])
def test_what_is_under_way_when_it_stops_is_ended(*, is_plain: bool) -> None:
    async def handler(record: Record) -> None:
        await asyncio.to_thread(plain, record)

    def plain(record: Record) -> None:
        begun.wait()
        if record.offset == 0:
            raise ValueError("no")
        stopped.wait(WAIT_S)

    class Edge(MemoryEdge):
        def settle(self, outcomes: Sequence[Outcome]) -> None:
            super().settle(outcomes)
            asyncio.get_running_loop().call_later(0.01, stopped.set)  # after the drain has begun

    begun, stopped = threading.Barrier(4, timeout=20), threading.Event()
    processor = Processor(plain if is_plain else handler, retry=Retry(attempts=1), concurrency=4)
    edge, _ = handle(processor, [b"a", b"b", b"c", b"d", b"d"], Edge(), drain=20.0)
    assert edge.offsets(Status.FAILED) == [0]
    assert sorted(edge.offsets()) == [1, 2, 3]
    assert edge.offsets(Status.LEFT_OVER) == [4]


def test_a_dead_letter_that_is_under_way_when_it_stops_is_written() -> None:
    written = asyncio.Event()

    class Edge(MemoryEdge):
        async def deliver(self, record: Record, error: BaseException | None) -> None:
            await written.wait()
            await super().deliver(record, error)

    async def handler(record: Record) -> Any:
        if record.offset == 0:
            raise ValueError("no")
        asyncio.get_running_loop().call_later(0.01, written.set)
        return nothing(record)

    processor = Processor(handler, retry=Retry(attempts=1), on_failure=DeadLetter("dlq"))
    edge, engine = handle(processor, [b"a", b"b", b"a"], Edge(), drain=20.0)
    assert "nobody awaits" in str(engine.failure)
    assert edge.offsets(Status.DEAD_LETTERED) == [0]
    assert edge.offsets(Status.LEFT_OVER) == [1, 2]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("leaves", [False, True])
def test_the_call_that_ends_it_is_not_waited_for(
    caplog: pytest.LogCaptureFixture, *, leaves: bool
) -> None:
    async def handler(record: Record) -> Any:
        if leaves:
            raise SystemExit(3)
        return nothing(record)

    began = time.monotonic()
    edge, engine = handle(Processor(handler), [b"a", b"a"], drain=30.0)
    assert time.monotonic() - began < 20
    assert "not processed in time" not in caplog.text
    assert edge.offsets(Status.LEFT_OVER) == [0, 1]
    assert isinstance(engine.exits, SystemExit) == leaves
    assert not engine.scheduler.figures().calls


def test_errors_that_are_not_worth_it_are_not_tried_again() -> None:
    async def handler(record: Record) -> None:
        raise KeyError if record.offset else ValueError

    retry = Retry(attempts=3, first=0.001, on=(KeyError,))
    edge, _ = handle(Processor(handler, retry=retry, on_failure=DeadLetter("dlq")), [b"a", b"b"])
    assert {each.record.offset: each.attempts for each in edge.outcomes} == {0: 1, 1: 3}


def test_retry_after_waits_as_long_as_the_server_says_and_counts_no_attempt() -> None:
    seen = list[float]()

    async def handler(record: Record) -> None:
        seen.append(time.monotonic())
        if len(seen) <= 4:
            raise RetryAfter(0.02, "429")

    retry = Retry(attempts=2, first=5)
    edge, _ = handle(Processor(handler, retry=retry, on_failure=DeadLetter("dlq")), [b"a"])
    assert edge.offsets() == [0]
    assert seen[-1] - seen[0] >= 0.08


def test_retry_after_in_a_batchs_results_is_the_same_and_lets_fewer_calls_run() -> None:
    seen, wanted = list[tuple[float, int]](), 0.02

    async def handler(records: list[Record]) -> list[Any]:
        seen.append((time.monotonic(), records[0].failures))
        return [RetryAfter(wanted) if len(seen) <= 4 else record.offset for record in records]

    retry = Retry(attempts=2, first=5)
    policy = DeadLetter("dlq")
    processor = Processor(handler, batch_size=4, retry=retry, on_failure=policy, concurrency="auto")
    edge, engine = handle(processor, [b"a", b"a"])
    assert [each.result for each in edge.outcomes] == [0, 1]
    assert [failures for _, failures in seen] == [0] * 5
    assert seen[-1][0] - seen[0][0] >= 4 * wanted
    assert engine.scheduler.concurrency < processor.settings.concurrency


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


def test_what_cannot_be_decoded_has_failed_for_good() -> None:
    async def handler(record: Record) -> int:
        value: int = record.value
        return value

    def decode(data: bytes | None, context: Any) -> int:
        return 6 // int(data or b"")

    processor = Processor(handler, value_deserializer=decode, on_failure=DeadLetter("dlq"))
    edge, _ = handle(processor, [b"a"] * 3)
    assert [(each.status, each.result) for each in edge.outcomes] == [
        (Status.DEAD_LETTERED, None),
        (Status.DONE, 6),
        (Status.DONE, 3),
    ]
    assert "offset 0: the value cannot be decoded" in str(edge.outcomes[0].error)


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

    async def handler(record: Record) -> None:
        await asyncio.sleep(0.01 if record.offset < 900 else 600)

    processor = Processor(handler, concurrency=1_000)

    async def run() -> None:
        engine = processor.engine(edge)
        engine.offer(records_of(processor, [b"%d" % at for at in range(1_000)]))
        drains = asyncio.create_task(engine.drain(600.0))
        await comes(lambda: len(edge.outcomes) >= 900)
        clock.seconds += 600.0
        engine.changed()
        await drains
        await engine.close()

    asyncio.run(asyncio.wait_for(run(), WAIT_S))
    assert sorted(edge.offsets()) == list(range(900))
    assert sorted(edge.offsets(Status.LEFT_OVER)) == list(range(900, 1_000))


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
        assert await engine.wait(lambda: engine.is_idle)
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
        engine.scheduler.next_tick = lambda: engine.now() - 1.0  # type: ignore[method-assign]
        engine.settle()
        engine.settle()
        await engine.close()

    asyncio.run(run())
