"""Handlers that fail: another attempt, dead letters, parked keys, the end."""

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from kshare.processing import (
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
from tests.processing.engines import SOON, MemoryEdge, assert_in_order, handle, nothing, records_of
from tests.support.clock import WAIT_S

pytestmark = pytest.mark.usefixtures("each_loop")


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
        return engine.measures.failed_endings > 1 and edge.offsets() == [1]

    _, engine = handle(processor, [b"a", b"b", b"a"], edge, until=is_tried_again, drain=0.1)
    assert edge.offsets() == [1]
    assert edge.offsets(Status.LEFT_OVER) == [0, 2]
    assert engine.measures.failed_endings > 1


def test_what_stays_of_a_lane_whose_letter_was_refused_goes_on() -> None:
    """Others got the record of the letter meanwhile, of a partition that is shared by keys."""
    refused = asyncio.Event()

    class Edge(MemoryEdge):
        async def write_letter(self, record: Record, error: BaseException | None) -> None:
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
        assert await engine.loop.wait(lambda: bool(edge.letters), WAIT_S)
        engine.revoke(lambda record: record.raw_key == b"a")
        engine.settle()
        refused.set()
        assert await engine.loop.wait(lambda: edge.offsets() == [1], WAIT_S)
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
    assert [record.offset for record in edge.given_back] == [0]
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


@pytest.mark.parametrize("is_late", [False, True])
def test_a_plain_function_may_end_the_process_as_a_coroutine_function_does(
    *, is_late: bool
) -> None:
    def handler(record: Record) -> None:
        if is_late:
            time.sleep(0.1)
        raise SystemExit(7)

    processor = Processor(
        handler,
        timeout=0.01 if is_late else None,
        retry=Retry(attempts=1),
        on_failure=DeadLetter("dlq"),
        concurrency=1,
    )
    edge, engine = handle(
        processor, [b"a", b"b"], until=lambda engine: engine.exit_error is not None
    )
    assert isinstance(engine.exit_error, SystemExit)
    assert engine.exit_error.code == 7
    assert is_late or edge.offsets(Status.LEFT_OVER) == [0, 1]


def test_a_dead_letter_that_is_under_way_when_it_stops_is_written() -> None:
    written = asyncio.Event()

    class Edge(MemoryEdge):
        async def write_letter(self, record: Record, error: BaseException | None) -> None:
            await written.wait()
            await super().write_letter(record, error)

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
    assert isinstance(engine.exit_error, SystemExit) == leaves
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


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("policy", [DeadLetter("dlq"), Park()], ids=["letter", "park"])
def test_the_last_attempt_that_fails_while_others_are_to_get_its_record(
    policy: Any, *, in_order: bool
) -> None:
    """It is ended here if they wait for that, or they would try once more; else it is theirs."""
    edge = MemoryEdge()

    async def run() -> None:
        begun, goes_on = asyncio.Event(), asyncio.Event()

        async def handler(record: Record) -> None:
            begun.set()
            await goes_on.wait()
            raise ValueError("no")

        processor = Processor(handler, retry=Retry(attempts=1), on_failure=policy)
        engine = processor.engine(edge)
        engine.offer(records_of(processor, [b"a", b"a"]))
        await begun.wait()
        engine.revoke(lambda _: True, in_order=in_order)
        goes_on.set()
        assert await engine.loop.wait(lambda: engine.is_idle, WAIT_S)
        engine.settle()
        await engine.close()

    asyncio.run(run())
    ended = [each.offset for each in (*edge.letters, *edge.parked)]
    assert ended == ([0] if in_order else [])
    assert [each.record.offset for each in edge.outcomes] == [0]  # the other one is held no more
    wanted = Status.DEAD_LETTERED if isinstance(policy, DeadLetter) else Status.PARKED
    assert edge.outcomes[0].status is (wanted if in_order else Status.LEFT_OVER)
