"""A processor over a consumer, on a mock cluster: acknowledgements, faults, signals."""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import pytest

from kshare.core.progress import TopicPartition
from kshare.errors import KafkaError, ProcessingError
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.log.retry_log import Remembered, RetryLog
from kshare.group.message import Chunk
from kshare.processing import Outcome, Processor, Record, Retry, Status
from kshare.processing.consumer_edge import ConsumerEdge, records_of
from kshare.processing.core.effects import GiveBack, TakeAgain
from kshare.processing.intake import Intake
from kshare.processing.measures import Measures
from kshare.processing.reader import Ending, Reader
from kshare.processing.room import Room
from kshare.processing.runner import Runner
from kshare.testing import FakeCluster
from tests.processing.engines import MemoryEdge, comes
from tests.processing.running import ORDERS, RECORDS, SOON, run
from tests.support.clock import WAIT_S, Counted
from tests.support.fake_session import FakeSessions, fake_consumers

pytestmark = pytest.mark.usefixtures("each_loop")


def test_all_are_handled_in_order_acknowledged_and_committed(
    consumer: Callable[..., KeySharedConsumer], sessions: FakeSessions
) -> None:
    seen = list[tuple[bytes, int]]()

    async def handler(record: Record) -> None:
        await asyncio.sleep(0.001)
        seen.append((record.key, record.offset))

    run(Processor(handler, max_records=50), consumer(), lambda: len(seen) == RECORDS)
    assert sorted(offset for _, offset in seen) == list(range(RECORDS))
    for key in {key for key, _ in seen}:
        offsets = [offset for each, offset in seen if each == key]
        assert offsets == sorted(offsets)
    assert [at for at in range(RECORDS) if not sessions.processed(ORDERS, at)] == []


@pytest.mark.parametrize("is_answered", [True, False])
def test_attempts_are_forgotten_once_the_commit_of_an_outcome_is_answered(
    consumer: Callable[..., KeySharedConsumer],
    sessions: FakeSessions,
    monkeypatch: pytest.MonkeyPatch,
    is_answered: bool,
) -> None:
    """Else it has them all again after kill -9 before the brokers have that commit."""
    log, handled = dict[bytes, bytes | None](), set[int]()
    monkeypatch.setattr(RetryLog, "_write", lambda _, rows, seconds=0.0: log.update(rows))
    monkeypatch.setattr(RetryLog, "read", lambda _: Remembered())

    def refused(*_: Any, **__: Any) -> Any:
        raise KafkaError("the log cannot be written")

    async def handler(record: Record) -> None:
        if record.offset in {5, 7} and not record.failures:
            raise ValueError
        handled.add(record.offset)

    made = consumer()
    if not is_answered:
        monkeypatch.setattr(sessions.members[-1], "commit", refused)
    run(Processor(handler, retry=SOON), made, lambda: len(handled) == RECORDS)
    assert sorted(json.loads(key)[-1] for key in log) == [5, 7]
    assert [value is None for value in log.values()] == [is_answered] * 2


def test_several_partitions_are_read_in_short_turns() -> None:
    """So that what is held has the keys of all of them: see test_tail_reader.py."""
    count, sizes = 2_000, list[int]()

    async def handler(record: Record) -> None:
        chunk = record.source
        assert isinstance(chunk, Chunk)
        sizes.append(chunk.batch.num_rows)

    with FakeCluster(topics={"orders": 2}) as cluster:
        for at in range(2):
            rows = [(f"{number % 10}", "v") for number in range(count)]
            cluster.produce("orders", rows, partition=at)
        with fake_consumers(cluster, FakeSessions()) as make:
            consumer = make(acknowledgement__mode="explicit", enable__auto__commit=True)
            consumer.assign([TopicPartition("orders", at) for at in range(2)])
            run(Processor(handler), consumer, lambda: len(sizes) == 2 * count)
    assert max(sizes) <= 512


def test_what_is_not_processed_when_it_stops_is_pending(
    consumer: Callable[..., KeySharedConsumer], sessions: FakeSessions
) -> None:
    started = list[int]()

    async def handler(record: Record) -> None:
        started.append(record.offset)
        if record.key == b"k3":
            await asyncio.Event().wait()

    processor = Processor(handler, drain_timeout=0.3)
    run(processor, consumer(), lambda: len(started) >= RECORDS * 0.9 + 1)
    pending = [at for at in range(RECORDS) if not sessions.processed(ORDERS, at)]
    assert pending == [at for at in range(RECORDS) if at % 10 == 3]


def test_a_key_that_waits_for_its_retry_does_not_fill_max_records(
    consumer: Callable[..., KeySharedConsumer], sessions: FakeSessions, cluster: FakeCluster
) -> None:
    """What is held of it is given back to the log, and comes again in order."""
    cluster.produce("orders", [("hot", "v")] * 600 + [("cold", "v")] * 50, partition=0)
    seen, others = list[tuple[bytes, int]](), RECORDS + 50

    async def handler(record: Record) -> None:
        if record.key == b"hot" and len(seen) < others:  # all others come meanwhile
            raise ValueError("no")
        seen.append((record.key, record.offset))

    def is_over() -> bool:
        return sessions.processed(ORDERS, others + 599)

    retry = Retry(attempts=10_000, first=0.2, most=0.2, jitter=0.0)
    made = consumer(auto__commit__interval__ms=50)
    run(Processor(handler, retry=retry, max_records=100), made, is_over)
    assert [at for key, at in seen if key == b"hot"] == list(range(RECORDS, RECORDS + 600))
    assert len(seen) == len(set(seen)) == others + 600
    assert [at for at in range(others + 600) if not sessions.processed(ORDERS, at)] == []


def test_what_was_on_its_way_when_it_was_given_back_is_not_handled(
    consumer: Callable[..., KeySharedConsumer],
) -> None:
    made, processor = consumer(), Processor(print)
    messages = made.consume(40, WAIT_S)
    edge = ConsumerEdge(processor, made, lambda: None)
    engine = Mock(measures=Measures())
    records = list(records_of(processor, messages))
    edge.give_back([records[13]])
    Intake(Mock(), engine, edge, Mock(), 1.0)._take(records)
    (taken,) = engine.offer.call_args.args
    assert [each.offset for each in taken] == [at for at in range(40) if at not in {13, 23, 33}]
    edge.close()


def test_stop_ends_with_the_place_of_the_record(
    consumer: Callable[..., KeySharedConsumer], sessions: FakeSessions
) -> None:
    async def charge(record: Record) -> None:
        if record.offset == 42:
            raise ValueError("no")

    with pytest.raises(ProcessingError, match=r"orders-0 offset 42 \(2 attempts\)") as error:
        run(Processor(charge, retry=SOON), consumer(), lambda: False)
    assert (error.value.topic, error.value.offset, error.value.attempts) == ("orders", 42, 2)
    assert not sessions.processed(ORDERS, 42)


def test_it_ends_while_calls_of_handlers_hang_in_the_threads_of_asyncio(
    consumer: Callable[..., KeySharedConsumer],
) -> None:
    made, release, closed = consumer(), threading.Event(), list[bool]()
    hanging = list[int]()

    def hang(offset: int) -> None:
        hanging.append(offset)
        release.wait()

    async def handler(record: Record) -> None:
        asyncio.get_running_loop().set_default_executor(threads)
        await asyncio.to_thread(hang, record.offset)

    def watch() -> None:
        """The event loop waits for these threads at its end."""
        deadline = time.monotonic() + WAIT_S
        while not made.is_closed and time.monotonic() < deadline:
            time.sleep(0.01)
        closed.append(made.is_closed)
        release.set()

    threads = ThreadPoolExecutor(2)
    watching = threading.Thread(target=watch)
    watching.start()
    processor = Processor(handler, concurrency=8, drain_timeout=0.1)
    run(processor, made, lambda: len(hanging) == 2)
    watching.join()
    assert closed == [True]


@pytest.mark.parametrize("by_outcome", [False, True])
def test_what_ends_the_process_ends_all_handlers_before_the_consumer(
    consumer: Callable[..., KeySharedConsumer], sessions: FakeSessions, *, by_outcome: bool
) -> None:
    begun, made = list[int](), consumer()

    async def handler(record: Record) -> None:
        assert not made.is_closed
        begun.append(record.offset)
        if len(begun) < 5:  # those that come behind them would be done at once
            await asyncio.Event().wait()
        if len(begun) == 5 and not by_outcome:
            sys.exit(3)

    def on_outcome(outcome: Outcome) -> None:
        if by_outcome:
            sys.exit(3)

    processor = Processor(handler, concurrency=5, on_outcome=on_outcome, drain_timeout=0.1)
    with pytest.raises(SystemExit) as exit_:
        run(processor, made, lambda: False)
    assert exit_.value.code == 3
    assert made.is_closed
    assert not any(sessions.processed(ORDERS, at) for at in begun[:4])
    if not by_outcome:
        assert len(begun) == 5


@pytest.mark.parametrize("kind", [SystemExit, ProcessingError])
def test_a_fault_of_closing_hides_nothing_that_has_ended_it(
    consumer: Callable[..., KeySharedConsumer],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: type[BaseException],
) -> None:
    """Such as what a callback ``on_commit`` raises."""
    made = consumer()
    close = made.close

    def fails() -> None:
        monkeypatch.setattr(made, "close", close)
        close()
        raise RuntimeError("a callback fails")

    async def handler(record: Record) -> None:
        raise SystemExit(7) if kind is SystemExit else ValueError("no")

    monkeypatch.setattr(made, "close", fails)
    with pytest.raises(kind):
        run(Processor(handler, retry=Retry(attempts=1)), made, lambda: False)
    assert "a callback fails" in caplog.text


def test_no_more_large_records_are_read_than_may_be_held(
    consumer: Callable[..., KeySharedConsumer],
    cluster: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size, made = 10_000, consumer()
    polls = Counted(made.poll)
    monkeypatch.setattr(made, "poll", polls)
    may_end, read = asyncio.Event(), list[int]()

    async def handler(record: Record) -> None:
        read.append(record.offset)
        if record.size > size:
            await may_end.wait()

    async def all_wait() -> None:
        task = asyncio.create_task(runner.run())
        await comes(lambda: len(read) == RECORDS)
        cluster.produce("orders", [(f"k{at}", b"v" * size) for at in range(200)], partition=0)
        await comes(lambda: len(read) >= RECORDS + 5)
        await comes(polls.has_more())  # which would read what is beyond
        assert processor.running is not None
        large.append(processor.running.measures.read - RECORDS)
        may_end.set()
        await comes(lambda: len(read) == RECORDS + 200)
        runner.stop()
        await task

    large = list[int]()
    processor = Processor(handler, max_bytes=60_000, concurrency=500)
    runner = Runner(processor, made, None)
    asyncio.run(all_wait())
    assert 5 <= large[0] <= 7


def test_a_record_keeps_no_value_of_others(consumer: Callable[..., KeySharedConsumer]) -> None:
    """It may wait for an hour, one of each chunk."""
    seen = list[Record]()
    processor = Processor(seen.append, order="none")
    run(processor, consumer(), lambda: len(seen) == RECORDS)
    assert {record.value for record in seen} == {b"%d" % at for at in range(RECORDS)}
    assert all(record.timestamp > 0 and record.headers == [] for record in seen)
    for record in seen:
        with pytest.raises(ValueError, match="value is not read"):
            record.source.column("value")


def test_a_handler_that_swallows_its_cancellation_does_not_keep_the_process(
    consumer: Callable[..., KeySharedConsumer], caplog: pytest.LogCaptureFixture
) -> None:
    is_over = threading.Event()

    async def handler(record: Record) -> None:
        if record.offset == 1:
            raise ValueError("fails for good")
        while not is_over.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    faults = list[BaseException]()

    def process() -> None:
        try:
            processor = Processor(
                handler, concurrency=2, retry=Retry(attempts=1), drain_timeout=0.1
            )
            processor.run(consumer(), None)
        except ProcessingError as error:
            faults.append(error)

    thread = threading.Thread(target=process, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    is_alive = thread.is_alive()
    is_over.set()
    assert not is_alive
    assert "fails for good" in str(faults[0])
    assert "go on although they are cancelled" in caplog.text


def test_a_cluster_that_does_not_answer_amid_a_read_is_asked_again(
    consumer: Callable[..., KeySharedConsumer],
    sessions: FakeSessions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, seen, faults = consumer(), set[int](), [KafkaError("no broker answers")]
    consume = made.consume

    def fails_once(most: int, seconds: float) -> Any:
        if faults:
            raise faults.pop()
        return consume(most, seconds)

    monkeypatch.setattr(made, "consume", fails_once)

    async def handler(record: Record) -> None:
        seen.add(record.offset)

    run(Processor(handler), made, lambda: len(seen) == RECORDS)
    assert [at for at in range(RECORDS) if not sessions.processed(ORDERS, at)] == []


def test_a_cluster_that_does_not_answer_while_it_ends_is_no_failure(
    consumer: Callable[..., KeySharedConsumer],
    sessions: FakeSessions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the group is followed on: others may want key hashes of what is still at work."""
    made, polls = consumer(), list[str]()
    poll = made.poll

    def fails_once(seconds: float) -> Any:
        if runner._ending.begun.is_set():
            polls.append("after the stop")
            if len(polls) == 1:
                raise KafkaError("no broker answers")
        return poll(seconds)

    monkeypatch.setattr(made, "poll", fails_once)

    async def handler(record: Record) -> None:
        runner.stop()
        while len(polls) < 2:  # noqa: ASYNC110 - another thread does it
            await asyncio.sleep(0.001)

    runner = Runner(Processor(handler, concurrency=1, drain_timeout="10s"), made, None)
    asyncio.run(runner.run())
    assert sessions.processed(ORDERS, 0)


def test_releases_are_looked_at_while_there_is_no_room_but_not_while_it_ends(
    consumer: Callable[..., KeySharedConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fills it may be the very keys that an operator unparks."""
    made, ending, calls = consumer(), Ending(), list[str]()
    intake = Mock(room=Room(lambda: (0, 1), 1))
    intake.engine.scheduler.firsts = list
    reader = Reader(Processor(print), made, intake, ending)
    reader._kept = Mock(follow_parking=lambda: calls.append("look"))
    monkeypatch.setattr(made, "poll", lambda _: calls.append("poll"))
    reader._follow(lambda: calls.count("poll") == 2)
    assert calls == ["look", "poll"] * 2
    ending.begun.set()
    reader._follow(lambda: calls.count("poll") == 4)
    assert calls == ["look", "poll"] * 2 + ["poll"] * 2


@pytest.mark.parametrize("kind", [LookupError, asyncio.CancelledError])
def test_an_on_outcome_that_fails_stops_nothing(
    consumer: Callable[..., KeySharedConsumer],
    sessions: FakeSessions,
    caplog: pytest.LogCaptureFixture,
    kind: type[BaseException],
) -> None:
    ended = list[int]()

    async def handler(record: Record) -> None:
        pass

    def on_outcome(outcome: Outcome) -> None:
        ended.append(outcome.record.offset)
        raise kind("of the callback")

    run(Processor(handler, on_outcome=on_outcome), consumer(), lambda: len(ended) == RECORDS)
    assert all(sessions.processed(ORDERS, at) for at in range(RECORDS))
    assert "on_outcome has failed" in caplog.text


def test_what_is_given_back_in_this_turn_is_marked_before_later_records_are_taken(
    consumer: Callable[..., KeySharedConsumer],
) -> None:
    made, processor = consumer(), Processor(print)
    messages = made.consume(40, WAIT_S)
    records = list(records_of(processor, messages))
    edge = ConsumerEdge(processor, made, lambda: None)

    async def take() -> list[int]:
        engine = processor.engine(edge, gives_back=True)
        offered = list[int]()
        engine.offer = offered.extend  # type: ignore[assignment, method-assign]
        engine.scheduler.effects += [GiveBack((records[13],)), TakeAgain(records[13])]
        Intake(Mock(), engine, edge, Mock(), 1.0)._take(records[20:30])
        return [record.offset for record in offered]  # type: ignore[attr-defined]

    assert asyncio.run(take()) == [at for at in range(20, 30) if at != 23]
    edge.close()


def test_what_has_ended_in_this_turn_is_acknowledged_before_its_key_comes_again(
    consumer: Callable[..., KeySharedConsumer],
) -> None:
    """Or the consumer, in its own thread, would return it with the ones behind it."""
    made, processor = consumer(), Processor(print)
    records = list(records_of(processor, made.consume(40, WAIT_S)))
    acknowledged = list[list[int]]()

    class Edge(MemoryEdge):
        has_given_back = False

        def take_again(self, record: Record) -> None:
            acknowledged.append(self.offsets())

    async def take() -> None:
        edge = Edge()
        engine = processor.engine(edge, gives_back=True)
        engine.scheduler.outcomes.append(Outcome(records[3], Status.DONE))
        engine.scheduler.effects.append(TakeAgain(records[13]))
        Intake(Mock(), engine, edge, Mock(), 1.0)._take([])  # type: ignore[arg-type]
        await engine.close()

    asyncio.run(take())
    assert acknowledged == [[3]]
