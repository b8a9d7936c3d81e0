"""A processor over a consumer, on a mock cluster: acknowledgements, dead letters, signals."""

import asyncio
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Partition
from prometheus_client import CollectorRegistry

from kshare.core.hashing import WHOLE, HashRange, key_hash
from kshare.core.progress import TopicPartition
from kshare.errors import KafkaError, OptionsError, ProcessingError
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.log.retry_log import Attempts, Remembered, RetryLog
from kshare.group.message import Chunk
from kshare.processing import (
    DeadLetter,
    Outcome,
    Park,
    Processor,
    Record,
    Retry,
    Status,
    register_metrics,
)
from kshare.processing.blocking import LoopWatch
from kshare.processing.consumed import not_before, records_of
from kshare.processing.consumer_edge import ConsumerEdge
from kshare.processing.core.effects import GiveBack, TakeAgain
from kshare.processing.dead_letters import letter_headers
from kshare.processing.measures import Measures
from kshare.processing.policy import FailurePolicy
from kshare.processing.progress import Progress
from kshare.processing.retry_state import RetryState
from kshare.processing.room import Room
from kshare.processing.runner import Runner
from kshare.testing import FakeCluster
from tests.processing.engines import MemoryEdge
from tests.support.clock import WAIT_S
from tests.support.fake_session import FakeSessions, fake_consumers
from tests.support.parked_keys import keys_of

pytestmark = pytest.mark.usefixtures("each_loop")

ORDERS = TopicPartition("orders", 0)
RECORDS = 300
ROWS = [(f"k{at % 10}", str(at)) for at in range(RECORDS)]
SOON = Retry(attempts=2, first=0.001, most=0.01)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1, "dlq": 1}) as cluster:
        cluster.produce("orders", ROWS, partition=0)
        yield cluster


@pytest.fixture
def sessions() -> FakeSessions:
    return FakeSessions()


@pytest.fixture
def consumer(cluster: FakeCluster, sessions: FakeSessions) -> Iterator[Callable[..., Any]]:
    with fake_consumers(cluster, sessions) as make:

        def consumer(**config: Any) -> KeySharedConsumer:
            given = {"acknowledgement__mode": "explicit", "enable__auto__commit": True}
            made = make(**given | config)
            made.assign([ORDERS])
            return made

        yield consumer


def run(
    processor: Processor,
    consumer: KeySharedConsumer,
    until: Callable[[], bool],
    seconds: float = WAIT_S,
) -> None:
    """Run until something is so; then stop as a signal would."""
    runner = Runner(processor, consumer, None)
    deadline, is_over = time.monotonic() + seconds, list[bool]()

    def watch() -> None:
        while not until() and time.monotonic() < deadline and not is_over:
            time.sleep(0.01)
        runner.stop()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        asyncio.run(runner.run())
    finally:
        is_over.append(True)
        thread.join()


def letters(cluster: FakeCluster, count: int) -> list[tuple[Any, dict[str, Any]]]:
    reader = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "reader"})
    reader.assign([Partition("dlq", 0, 0)])
    messages = reader.consume(count, WAIT_S)
    reader.close()
    return [(message.value(), dict(message.headers() or ())) for message in messages]


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


def test_dead_letters_say_where_from_and_why_and_are_acknowledged(
    consumer: Callable[..., KeySharedConsumer], sessions: FakeSessions, cluster: FakeCluster
) -> None:
    ended = list[int]()

    async def handler(record: Record) -> None:
        if record.offset in {7, 17}:
            raise ValueError("no such customer")

    processor = Processor(
        handler,
        retry=SOON,
        on_failure=DeadLetter("dlq"),
        on_outcome=lambda outcome: ended.append(outcome.record.offset),
    )
    run(processor, consumer(), lambda: len(ended) == RECORDS)
    assert all(sessions.processed(ORDERS, offset) for offset in range(RECORDS))
    (value, headers), (second, _) = letters(cluster, 2)
    assert (value, second) == (b"7", b"17")
    assert headers["__connect.errors.topic"] == b"orders"
    assert headers["__connect.errors.partition"] == b"0"
    assert headers["__connect.errors.offset"] == b"7"
    assert headers["__connect.errors.exception.class.name"] == b"builtins.ValueError"
    assert headers["__connect.errors.exception.message"] == b"no such customer"
    assert headers["kshare.attempts"] == b"2"
    assert headers["kshare.first-failure"] <= headers["kshare.last-failure"]


def test_a_dead_letter_topic_that_refuses_leaves_the_record_pending(
    consumer: Callable[..., KeySharedConsumer],
    sessions: FakeSessions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = list[int]()

    async def refuse(*_: Any) -> None:
        raise OSError("not writable")

    monkeypatch.setattr("kshare.processing.dead_letters.DeadLetters.write", refuse)

    async def handler(record: Record) -> None:
        if record.offset == 7:
            raise ValueError("no")

    processor = Processor(
        handler,
        retry=SOON,
        on_failure=DeadLetter("dlq"),
        drain_timeout=0.2,
        on_outcome=lambda outcome: ended.append(outcome.record.offset),
    )
    run(processor, consumer(), lambda: len(ended) == RECORDS * 9 // 10)
    pending = [at for at in range(RECORDS) if not sessions.processed(ORDERS, at)]
    assert pending == list(range(7, RECORDS, 10))


def test_a_key_that_is_unparked_goes_on_in_the_process_that_parked_it(
    consumer: Callable[..., KeySharedConsumer],
    sessions: FakeSessions,
    cluster: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In order, and with the record that has failed; those that had come are not lost."""
    monkeypatch.setattr("kshare.processing.retry_state._LOOK_SECONDS", 0.05)
    seen, parked = list[int](), list[float]()
    list_of = keys_of(cluster)

    async def handler(record: Record) -> None:
        if record.offset == 103 and not parked:
            raise ValueError("no")
        seen.append(record.offset)

    def is_over() -> bool:
        if len(seen) == RECORDS - 20 and not parked and ("orders", b"k3") in list_of.read():
            cluster.produce("orders", [("k3", "later")], partition=0)
            time.sleep(0.3)
            assert len(seen) == RECORDS - 20
            parked.append(time.time())
            list_of.unpark("orders", [b"k3"])
        return len(seen) == RECORDS + 1 and sessions.processed(ORDERS, RECORDS)

    processor = Processor(handler, retry=SOON, on_failure=Park(), max_records=150)
    run(processor, consumer(auto__commit__interval__ms=50), is_over)
    list_of.close()
    assert [at for at in seen if at % 10 == 3 or at == RECORDS] == [*range(3, 300, 10), RECORDS]
    assert len(seen) == RECORDS + 1
    assert all(sessions.processed(ORDERS, offset) for offset in range(RECORDS + 1))


def test_an_unparked_record_has_all_its_attempts_though_some_were_known_at_the_start() -> None:
    loop, engine, edge = Mock(), Mock(), Mock()
    state = RetryState(engine, edge, loop, has_sequences=False)
    state._remembered = Remembered({(ORDERS, 7): Attempts(4, 0.0, 0.0, None)})
    known = list[int]()

    def let_go(*_: object) -> None:
        known.append(len(state._remembered.attempts))

    loop.call_soon_threadsafe = let_go
    engine.scheduler.parked_lanes = {b"k7": Mock()}
    engine.scheduler.sequences = set()
    edge.unparked.return_value = [b"k7"]
    edge.retry_log.read.return_value = Remembered()  # it was forgotten when it was parked
    state.look_for_released()
    assert known == [0]


def test_one_thread_at_a_time_uses_the_list_of_parked_keys(
    consumer: Callable[..., KeySharedConsumer],
) -> None:
    """Its connections are not for several: they take each other's answers."""
    inside, overlaps, calls = [0], list[int](), list[str]()
    meeting = threading.Barrier(2)

    def use(name: str) -> set[tuple[str, bytes]]:
        calls.append(name)
        inside[0] += 1
        with suppress(threading.BrokenBarrierError):
            meeting.wait(0.2)
        overlaps.append(inside[0])
        inside[0] -= 1
        return set()

    made, processor = consumer(), Processor(print, on_failure=Park())
    edge = ConsumerEdge(processor, made, lambda: None)
    edge._parked = Mock(
        park=lambda *_, **__: use("park"), read=lambda: use("read"), close=lambda: use("close")
    )
    first, second, *_ = records_of(processor, made.consume(2, WAIT_S))

    async def all_at_once() -> None:
        looks = asyncio.to_thread(edge.unparked, {first.lane: first})
        ends = asyncio.to_thread(edge.close)
        await asyncio.gather(edge.park(first, None), edge.park(second, None), looks, ends)

    asyncio.run(all_at_once())
    assert sorted(calls) in (
        ["close", "park", "park"],  # one that looks meanwhile does not wait
        ["close", "park", "park", "read"],
    )
    assert set(overlaps) == {1}


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
    runner = Runner(processor, made, None)
    runner._edge = edge = ConsumerEdge(processor, made, lambda: None)
    runner._engine = engine = Mock(measures=Measures())
    records = list(records_of(processor, messages))
    edge.release(records[13])
    runner._take(records)
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


@pytest.mark.parametrize("policy", [Park(), DeadLetter("dlq", sequence=True)])
def test_keys_end_while_calls_of_handlers_hang_in_the_threads_of_asyncio(
    consumer: Callable[..., KeySharedConsumer], policy: FailurePolicy
) -> None:
    made, release = consumer(), threading.Event()
    edge = ConsumerEdge(Processor(print, on_failure=policy), made, lambda: None)
    edge._parked = parked = Mock()
    edge.retry_log = log = Mock()
    record, *_ = records_of(Processor(print), made.consume(1, WAIT_S))

    async def end() -> None:
        threads = ThreadPoolExecutor(1)
        asyncio.get_running_loop().set_default_executor(threads)
        hanging = asyncio.ensure_future(asyncio.to_thread(release.wait))
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(10):
                if isinstance(policy, Park):
                    await edge.park(record, None)
                else:
                    await edge.begin_sequence(record)
        finally:
            release.set()
            await hanging

    asyncio.run(end())
    edge.close()
    assert parked.park.called == isinstance(policy, Park)
    assert log.begin_sequence.called != isinstance(policy, Park)


def test_sequences_of_several_keys_begin_at_once(
    consumer: Callable[..., KeySharedConsumer],
) -> None:
    made, both = consumer(), threading.Barrier(2, timeout=20)
    processor = Processor(print, on_failure=DeadLetter("dlq", sequence=True))
    edge = ConsumerEdge(processor, made, lambda: None)
    edge.retry_log = Mock(begin_sequence=lambda _: both.wait())
    first, second, *_ = records_of(processor, made.consume(2, WAIT_S))

    async def begin() -> None:
        await asyncio.gather(edge.begin_sequence(first), edge.begin_sequence(second))

    asyncio.run(begin())
    edge.close()


def test_a_look_for_unparked_keys_does_not_wait_for_one_that_is_being_parked(
    consumer: Callable[..., KeySharedConsumer],
) -> None:
    made = consumer()
    edge = ConsumerEdge(Processor(print, on_failure=Park()), made, lambda: None)
    edge._parked = Mock(read=lambda: ())
    record, *_ = records_of(Processor(print), made.consume(1, WAIT_S))
    looked = list[list[Hashable]]()
    look = threading.Thread(target=lambda: looked.append(edge.unparked({record.lane: record})))
    with edge._parking:
        look.start()
        look.join(WAIT_S)
    assert looked == [[]]
    assert edge.unparked({record.lane: record}) == [record.lane]
    edge.close()


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


def test_a_consumer_that_does_not_fit_is_refused(
    consumer: Callable[..., KeySharedConsumer],
) -> None:
    made = consumer(max__in__flight__per__key=1, enable__auto__commit=False)
    with pytest.raises(OptionsError) as error:
        Runner(Processor(print), made, None)
    assert [problem.split(" ")[0] for problem in error.value.problems] == [
        "enable.auto.commit",
        "max.in.flight.per.key",
    ]
    implicit = consumer(acknowledgement__mode="implicit")
    with pytest.raises(OptionsError, match=r"acknowledgement\.mode is implicit"):
        Runner(Processor(print), implicit, None)


def test_the_columns_that_a_dead_letter_has_are_read(
    consumer: Callable[..., KeySharedConsumer],
) -> None:
    made = consumer(columns="key,value,offset,timestamp")
    with pytest.raises(OptionsError, match="columns has no headers; a dead letter has them"):
        Runner(Processor(print, on_failure=DeadLetter("dlq")), made, None)
    Runner(Processor(print), made, None)


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
        if runner._is_stopping.is_set():
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


@pytest.mark.parametrize("value", [b"1" * 310, b"-" + b"9" * 400, b"9" * 5_000, b"soon", b"", None])
def test_a_header_that_is_no_time_is_passed_over(value: bytes | None) -> None:
    record = Mock(headers=[("trace", b"1"), ("not-before", value)])
    assert not_before(record) == 0.0


def test_releases_are_looked_at_while_there_is_no_room_but_not_while_it_ends(
    consumer: Callable[..., KeySharedConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fills it may be the very keys that an operator releases."""
    made = consumer()
    runner = Runner(Processor(print), made, None)
    calls = list[str]()
    runner._room = Room(lambda: 0, 1)
    runner._retries = Mock(look_for_released=lambda: calls.append("look"))
    monkeypatch.setattr(made, "poll", lambda _: calls.append("poll"))
    runner._follow(lambda: calls.count("poll") == 2)
    assert calls == ["look", "poll"] * 2
    runner._is_stopping.set()
    runner._follow(lambda: calls.count("poll") == 4)
    assert calls == ["look", "poll"] * 2 + ["poll"] * 2


def test_what_is_revoked_is_ended_first_and_no_more_is_begun(
    consumer: Callable[..., KeySharedConsumer],
) -> None:
    begun, ended = list[int](), list[int]()
    go_on = threading.Event()

    async def handler(record: Record) -> None:
        begun.append(record.offset)
        while not go_on.is_set():  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0.001)
        ended.append(record.offset)

    runner = Runner(Processor(handler, concurrency=3), consumer(), None)

    at_the_end = list[list[int]]()

    def revoke() -> None:
        while len(begun) < 3:
            time.sleep(0.01)
        threading.Timer(0.1, go_on.set).start()
        try:
            runner._revoked({ORDERS: (WHOLE,)})
            at_the_end.append(sorted(ended))
        finally:
            runner.stop()

    thread = threading.Thread(target=revoke)
    thread.start()
    asyncio.run(runner.run())
    thread.join()
    assert at_the_end == [sorted(begun)]


def test_what_ends_in_the_moment_of_a_rebalance_is_acknowledged_before_others_get_it(
    consumer: Callable[..., KeySharedConsumer],
) -> None:
    made, acknowledged = consumer(), list[list[int]]()
    begun = asyncio.Event()

    async def rebalance() -> None:
        ends = asyncio.get_running_loop().create_future()

        async def handler(record: Record) -> None:
            begun.set()
            await ends

        async def give_up() -> None:
            await runner._give_up({ORDERS: (WHOLE,)})
            acknowledged.append(edge.offsets())

        processor, edge = Processor(handler), MemoryEdge()
        runner = Runner(processor, made, None)
        runner._engine = engine = processor.engine(edge)
        engine.offer(list(records_of(processor, made.consume(1, WAIT_S))))
        await begun.wait()
        ends.set_result(None)
        await asyncio.create_task(give_up())
        await engine.close()

    asyncio.run(rebalance())
    assert acknowledged == [[0]]


def test_what_is_lost_is_held_no_more_before_its_keys_may_come_back(
    consumer: Callable[..., KeySharedConsumer],
) -> None:
    """Or a key that was to be given back would be held then, and nobody would let it go."""
    made, seen, has_lost = consumer(), list[str](), threading.Event()

    class Edge(MemoryEdge):
        def release(self, record: Record) -> None:
            seen.append("given back")

    async def rebalance() -> None:
        processor = Processor(print)
        records = list(records_of(processor, made.consume(40, WAIT_S)))
        runner = Runner(processor, made, None)
        runner._loop = asyncio.get_running_loop()
        runner._engine = engine = processor.engine(Edge(), gives_back=True)

        def lose() -> None:
            runner._lost({ORDERS: (WHOLE,)})
            seen.append("lost")
            has_lost.set()

        def revoke(is_gone: Callable[[Record], bool]) -> None:
            has_lost.wait(0.1)  # who does not wait for this goes on first
            scheduler.revoke(is_gone)
            engine.flush()

        scheduler = engine.scheduler
        engine.revoke = revoke  # type: ignore[method-assign]
        engine.scheduler.add(records, 0.0)
        engine.scheduler.effects.append(GiveBack(records[13]))
        await asyncio.to_thread(lose)
        assert engine.scheduler.figures().records == 0
        await engine.close()

    asyncio.run(rebalance())
    assert seen == ["given back", "lost"]


def test_what_is_revoked_while_more_is_received_is_not_handled(
    consumer: Callable[..., KeySharedConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer calls back while the reader has one record that the engine does not know."""
    made = consumer()
    runner = Runner(Processor(print), made, None)
    monkeypatch.setattr(runner, "_drop", Mock())
    monkeypatch.setattr(runner, "_done", Mock())
    consume, gone = made.consume, HashRange.of(key_hash(b"k0", 0))

    def rebalances(most: int, seconds: float) -> Any:
        runner._lost({ORDERS: (gone,)})
        return consume(most, WAIT_S)

    monkeypatch.setattr(made, "consume", rebalances)
    assert [message.offset() for message in runner._received(3)] == [1, 2]
    assert [message.offset() for message in runner._received(3)] == [3, 4, 5]


def test_metrics_in_prometheus_while_it_runs(consumer: Callable[..., KeySharedConsumer]) -> None:
    registry, scrapes = CollectorRegistry(), list[dict[tuple[str, ...], float]]()

    async def handler(record: Record) -> None:
        await asyncio.sleep(0)
        if record.offset == 7:
            raise ValueError("no")
        if record.offset == 296:
            scrapes.append(series(registry))

    processor = Processor(
        handler, concurrency=8, retry=Retry(attempts=9, first=60, most=60), drain_timeout=1.0
    )
    register_metrics(processor, registry)
    assert not series(registry)
    run(processor, consumer(), lambda: bool(scrapes))
    assert not series(registry)
    (scrape,) = scrapes
    values = {
        (name.removeprefix("kshare_processor_"), *rest): value
        for (name, _, _, *rest), value in scrape.items()
    }
    assert values["waiting_lanes",] == 1
    assert values["ending_lanes",] == 0
    assert values["concurrency",] == 8
    assert 1 <= values["running_calls",] <= 8
    assert values["lanes",] >= 2
    assert values["held_bytes",] >= values["held_records",] >= 29
    assert 0 <= values["oldest_failure_seconds",] < 20
    assert 297 <= values["records_total",] <= RECORDS
    assert values["failed_calls_total",] == 1
    assert values["undelivered_total",] == 0
    assert 200 <= values["outcomes_total", "done"] < RECORDS
    assert values["outcomes_total", "dead_lettered"] == 0
    calls = values["call_duration_seconds_count",]
    assert calls >= values["outcomes_total", "done"] + 1
    assert values["call_duration_seconds_bucket", "+Inf"] == calls
    assert values["call_duration_seconds_sum",] > 0


def series(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


def test_a_handler_that_blocks_the_loop_is_named(
    consumer: Callable[..., KeySharedConsumer],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, warnings = list[int](), list[logging.LogRecord]()

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "blocks the event loop" in record.getMessage():
                warnings.append(record)

    async def careless(record: Record) -> None:
        seen.append(record.offset)
        deadline = time.monotonic() + WAIT_S
        while not warnings and time.monotonic() < deadline:
            time.sleep(0.05)  # noqa: ASYNC251 - that is what it is about

    monkeypatch.setattr(logging.getLogger("kshare.processing"), "handlers", [Kept()])
    with caplog.at_level(logging.WARNING):
        run(Processor(careless), consumer(), lambda: len(seen) == RECORDS)
    (warning,) = [text for text in caplog.messages if "blocks the event loop" in text]
    assert "careless blocks" in warning
    assert "test_runner.py" in warning


def test_a_turn_of_many_short_calls_is_not_blamed_on_the_handler(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a busy machine: each look finds another call."""
    calls: list[Any] = []
    engine = {"__name__": "kshare.processing.engine"}
    exec("def turn(call):\n    call()\n", engine)
    frames = {threading.get_ident(): None}
    monkeypatch.setattr("sys._current_frames", lambda: frames)
    loop = asyncio.new_event_loop()
    watch = LoopWatch(loop, "careless", most_seconds=3600)

    def short() -> None:
        frames[threading.get_ident()] = sys._getframe()  # type: ignore[assignment]
        calls.append(watch._warn(1.0))

    def long() -> None:
        short()
        calls.append(watch._warn(1.1))

    engine["turn"](short)  # type: ignore[operator]
    engine["turn"](short)  # type: ignore[operator]
    short()
    assert calls == [False] * 3
    engine["turn"](long)  # type: ignore[operator]
    watch.close()
    loop.close()
    assert calls[3:] == [False, True]
    assert len([text for text in caplog.messages if "careless blocks" in text]) == 1


def test_a_line_of_progress_names_what_is_held_longest(
    consumer: Callable[..., KeySharedConsumer],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Progress, "seconds", 0.1)

    async def handler(record: Record) -> None:
        if record.offset == 5:
            raise ValueError("no")
        if record.offset == 17:
            await asyncio.Event().wait()

    def lines() -> list[str]:
        return [text for text in caplog.messages if "records/s" in text]

    wanted = re.compile(
        r"group \S+: 0 records/s, 1 in flight, 59 held of 2 keys, 1 retrying, 0 dead-lettered, "
        r"0 parked, oldest held: orders-0 offset 5, \d+ s after it was produced"
    )
    retry = Retry(attempts=2, first=600, most=600)
    processor = Processor(handler, retry=retry, drain_timeout=0.1)
    with caplog.at_level(logging.INFO, "kshare.processing"):
        run(processor, consumer(), lambda: bool(lines()) and bool(wanted.fullmatch(lines()[-1])))
    assert wanted.fullmatch(lines()[-1])
    rates = [text.split(" ")[2] for text in lines()]
    assert sum(float(rate.replace(",", "")) * 0.1 for rate in rates) == RECORDS - 59


def test_a_processor_that_has_nothing_to_do_tells_nothing(
    consumer: Callable[..., KeySharedConsumer],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Progress, "seconds", 0.05)
    seen, told, tell = list[int](), list[int](), Progress._tell

    def lines() -> list[str]:
        return [text for text in caplog.messages if "records/s" in text]

    def tells(progress: Progress) -> None:
        tell(progress)
        told.append(len(lines()))

    async def handler(record: Record) -> None:
        seen.append(record.offset)

    def has_told_nothing() -> bool:
        is_done = len(seen) == RECORDS and "0 held of 0 keys" in "".join(lines()[-1:])
        return is_done and told[-5:] == [len(lines())] * 5

    monkeypatch.setattr(Progress, "_tell", tells)
    with caplog.at_level(logging.INFO, "kshare.processing"):
        run(Processor(handler), consumer(), has_told_nothing)
    assert has_told_nothing()
    assert ": 0 records/s" not in lines()[-1]


def test_an_on_outcome_that_fails_stops_nothing(
    consumer: Callable[..., KeySharedConsumer],
    sessions: FakeSessions,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended = list[int]()

    async def handler(record: Record) -> None:
        pass

    def on_outcome(outcome: Outcome) -> None:
        ended.append(outcome.record.offset)
        raise LookupError("of the callback")

    run(Processor(handler, on_outcome=on_outcome), consumer(), lambda: len(ended) == RECORDS)
    assert all(sessions.processed(ORDERS, at) for at in range(RECORDS))
    assert "on_outcome has failed" in caplog.text


def test_after_a_fatal_error_of_the_producer_letters_are_written_by_another_one(
    cluster: FakeCluster, consumer: Callable[..., KeySharedConsumer], sessions: FakeSessions
) -> None:
    failed = list[int]()

    async def handler(record: Record) -> None:
        if record.offset % 100 == 7:
            if not failed:
                cluster.fail("Produce", ["OUT_OF_ORDER_SEQUENCE_NUMBER"])
            failed.append(record.offset)
            raise ValueError("no")

    def are_all() -> bool:
        return all(sessions.processed(ORDERS, at) for at in range(RECORDS))

    run(Processor(handler, retry=SOON, on_failure=DeadLetter("dlq")), consumer(), are_all)
    assert are_all()
    assert {value for value, _ in letters(cluster, 3)} >= {b"7", b"107", b"207"}


def test_marks_of_another_policy_are_said_and_not_obeyed(
    consumer: Callable[..., KeySharedConsumer],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = list[int]()

    async def handler(record: Record) -> None:
        seen.append(record.offset)

    marks = Remembered(sequences={(ORDERS, b"k3")})
    monkeypatch.setattr(RetryLog, "read", lambda _: marks)
    run(Processor(handler), consumer(), lambda: len(seen) == RECORDS)
    assert sorted(seen) == list(range(RECORDS))
    assert "1 keys have dead letters that later records were to follow" in caplog.text


def test_what_is_given_back_in_this_turn_is_marked_before_later_records_are_taken(
    consumer: Callable[..., KeySharedConsumer],
) -> None:
    made, processor = consumer(), Processor(print)
    messages = made.consume(40, WAIT_S)
    records = list(records_of(processor, messages))
    runner = Runner(processor, made, None)
    runner._edge = edge = ConsumerEdge(processor, made, lambda: None)

    async def take() -> list[int]:
        engine = runner._engine = processor.engine(edge, gives_back=True)
        offered = list[int]()
        engine.offer = offered.extend  # type: ignore[assignment, method-assign]
        engine.scheduler.effects += [GiveBack(records[13]), TakeAgain(records[13])]
        runner._take(records[20:30])
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
        has_released = False

        def take_again(self, record: Record) -> None:
            acknowledged.append(self.offsets())

    async def take() -> None:
        runner = Runner(processor, made, None)
        runner._edge = edge = Edge()  # type: ignore[assignment]
        runner._engine = engine = processor.engine(edge, gives_back=True)
        engine.scheduler.outcomes.append(Outcome(records[3], Status.DONE))
        engine.scheduler.effects.append(TakeAgain(records[13]))
        runner._take([])
        await engine.close()

    asyncio.run(take())
    assert acknowledged == [[3]]


class SilentError(Exception):
    """Cannot say what is wrong."""

    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("error", "says"),
    [(ValueError("bad \ud800 name"), "bad \\ud800 name"), (SilentError(), "cannot be made")],
)
def test_an_error_whose_text_is_no_utf8_is_a_dead_letter_too(
    error: Exception, says: str, consumer: Callable[..., Any]
) -> None:
    (record,) = records_of(Processor(print), consumer().consume(1, WAIT_S))
    headers = dict(letter_headers(record, error, 0.0))
    assert says in (headers["__connect.errors.exception.message"] or b"").decode()
