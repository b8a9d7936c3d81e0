"""Keys that a processor parks, and operators unpark."""

import asyncio
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import pytest

from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.log.retry_log import Attempts, Remembered
from kshare.processing import (
    DeadLetter,
    Outcome,
    Park,
    Processor,
    Record,
    Retry,
    Status,
    Stop,
    consumer_edge,
)
from kshare.processing.consumer_edge import ConsumerEdge, records_of
from kshare.processing.core.sequences import Sequences
from kshare.processing.kept_state import KeptState
from kshare.processing.parker import Parker
from kshare.processing.policy import FailurePolicy
from kshare.testing import FakeCluster
from tests.processing.engines import comes
from tests.processing.running import ORDERS, RECORDS, SOON, run
from tests.support.clock import WAIT_S, Counted, until
from tests.support.fake_session import FakeSessions, fake_consumers
from tests.support.parked_keys import FakeParked, keys_of

pytestmark = pytest.mark.usefixtures("each_loop")


def test_a_key_that_is_unparked_goes_on_in_the_process_that_parked_it(
    consumer: Callable[..., KeySharedConsumer],
    sessions: FakeSessions,
    cluster: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In order, and with the record that has failed; those that had come are not lost."""
    monkeypatch.setattr("kshare.processing.kept_state._LOOK_SECONDS", 0.05)
    seen, parked = list[int](), list[float]()
    list_of = keys_of(cluster)

    async def handler(record: Record) -> None:
        if record.offset == 103 and not parked:
            raise ValueError("no")
        seen.append(record.offset)

    def is_over() -> bool:
        if len(seen) == RECORDS - 20 and not parked and ("orders", b"k3") in list_of.read():
            cluster.produce("orders", [("k3", "later")], partition=0)
            until(polls.has_more())
            assert len(seen) == RECORDS - 20
            parked.append(time.time())
            list_of.unpark("orders", [b"k3"])
        return len(seen) == RECORDS + 1 and sessions.processed(ORDERS, RECORDS)

    processor = Processor(handler, retry=SOON, on_failure=Park(), max_records=150)
    made = consumer(auto__commit__interval__ms=50)
    polls = Counted(made.poll)
    monkeypatch.setattr(made, "poll", polls)
    run(processor, made, is_over)
    list_of.close()
    assert [at for at in seen if at % 10 == 3 or at == RECORDS] == [*range(3, 300, 10), RECORDS]
    assert len(seen) == RECORDS + 1
    assert all(sessions.processed(ORDERS, offset) for offset in range(RECORDS + 1))


@pytest.mark.parametrize("policy", [Stop(), DeadLetter("dlq"), Park()])
def test_a_key_that_an_operator_parks_is_handled_no_more_until_it_is_unparked(
    sessions: FakeSessions,
    cluster: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
    policy: FailurePolicy,
) -> None:
    """It fails until then; its dead letter would be final, and to stop would end all others."""
    monkeypatch.setattr("kshare.processing.kept_state._LOOK_SECONDS", 0.05)
    monkeypatch.setattr("kshare.kafka.parking.EVERY_SECONDS", 0.05)
    parked, seen, calls = FakeParked(), list[int](), list[float]()
    outcomes, is_whole = list[Outcome](), threading.Event()

    async def handler(record: Record) -> None:
        if record.offset == 103 and not is_whole.is_set():
            calls.append(time.monotonic())
            raise ValueError("no")
        seen.append(record.offset)

    def is_over() -> bool:
        if calls and not parked.keys and not is_whole.is_set():
            parked.keys.add(("orders", b"k3"))
        if len(seen) == RECORDS - 20 and Status.PARKED in [each.status for each in outcomes]:
            before = len(calls)
            time.sleep(1.5)  # the next attempt would have been begun
            assert len(calls) == before
            is_whole.set()
            parked.keys.clear()
        return len(seen) == RECORDS and sessions.processed(ORDERS, RECORDS - 1)

    with fake_consumers(cluster, sessions, parked=parked) as make:
        made = make(
            acknowledgement__mode="explicit",
            enable__auto__commit=True,
            auto__commit__interval__ms=50,
        )
        made.assign([ORDERS])
        processor = Processor(
            handler,
            retry=Retry(attempts=2, first=1.0, most=1.0),
            on_failure=policy,
            on_outcome=outcomes.append,
        )
        run(processor, made, is_over)
    assert [at for at in seen if at % 10 == 3] == [*range(3, 300, 10)]
    assert len(seen) == RECORDS
    assert all(sessions.processed(ORDERS, offset) for offset in range(RECORDS))


def test_an_unparked_record_has_all_its_attempts_though_some_were_known_at_the_start() -> None:
    engine, edge = Mock(), Mock()
    state = KeptState(engine, edge, has_sequences=False)
    state._remembered = Remembered({(ORDERS, 7): Attempts(4, 0.0, 0.0, None)})
    known = list[int]()

    engine.unparked = lambda _: known.append(len(state._remembered.attempts))
    engine.loop.soon_from_thread = lambda call: call()
    engine.scheduler.parked_lanes = {b"k7": Mock()}
    engine.scheduler.sequences = Sequences()
    edge.unparked.return_value = [b"k7"]
    edge.retry_log.read.return_value = Remembered()  # it was forgotten when it was parked
    state.follow_parking()
    assert known == [0]


def with_keys(**methods: Any) -> Parker:
    return Parker(Mock(**methods))


def test_keys_that_wait_to_be_parked_are_written_together() -> None:
    written, may_end = list[dict[Any, str]](), threading.Event()

    def park_all(keys: dict[Any, str], by: str) -> None:
        written.append(keys)
        if not may_end.wait(WAIT_S) or len(keys) == 3:
            raise OSError("not now")

    async def park() -> list[Any]:
        parker = with_keys(park_all=park_all)
        parks = [asyncio.ensure_future(parker.park(("orders", b"0"), "why"))]
        await comes(lambda: bool(written))
        parks += [
            asyncio.ensure_future(parker.park(("orders", b"%d" % at), "")) for at in (1, 2, 3)
        ]
        await asyncio.sleep(0)
        may_end.set()
        return await asyncio.gather(*parks, return_exceptions=True)

    first, *others = asyncio.run(park())
    assert first is None
    assert [str(each) for each in others] == ["not now"] * 3
    assert written == [{("orders", b"0"): "why"}, {("orders", b"%d" % at): "" for at in (1, 2, 3)}]


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
    edge._parker = with_keys(
        park_all=lambda *_, **__: use("park"), read=lambda: use("read"), close=lambda: use("close")
    )
    first, second, *_ = records_of(processor, made.consume(2, WAIT_S))

    async def all_at_once() -> None:
        looks = asyncio.to_thread(edge.unparked, {first.lane: first})
        ends = asyncio.to_thread(edge.close)
        parks = asyncio.ensure_future(edge.park(first, None))
        await comes(lambda: "park" in calls)  # so that the second one is another write
        await asyncio.gather(parks, edge.park(second, None), looks, ends)

    asyncio.run(all_at_once())
    assert sorted(calls) in (
        ["close", "park", "park"],  # one that looks meanwhile does not wait
        ["close", "park", "park", "read"],
    )
    assert set(overlaps) == {1}


def test_a_look_for_unparked_keys_does_not_wait_for_one_that_is_being_parked(
    consumer: Callable[..., KeySharedConsumer],
) -> None:
    made = consumer()
    edge = ConsumerEdge(Processor(print, on_failure=Park()), made, lambda: None)
    edge._parker = parker = with_keys(read=lambda: ())
    record, *_ = records_of(Processor(print), made.consume(1, WAIT_S))
    looked = list[list[Hashable]]()
    look = threading.Thread(target=lambda: looked.append(edge.unparked({record.lane: record})))
    with parker._is_used:
        look.start()
        look.join(WAIT_S)
    assert looked == [[]]
    assert edge.unparked({record.lane: record}) == [record.lane]
    edge.close()


@pytest.mark.parametrize("policy", [Park(), DeadLetter("dlq", sequence=True)])
def test_keys_end_while_calls_of_handlers_hang_in_the_threads_of_asyncio(
    consumer: Callable[..., KeySharedConsumer], policy: FailurePolicy
) -> None:
    made, release = consumer(), threading.Event()
    edge = ConsumerEdge(Processor(print, on_failure=policy), made, lambda: None)
    parked = Mock()
    edge._parker = Parker(parked)
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
                    await edge.begin_sequence(record, None)
        finally:
            release.set()
            await hanging

    asyncio.run(end())
    edge.close()
    assert parked.park_all.called == isinstance(policy, Park)
    assert log.begin_sequence.called != isinstance(policy, Park)


def test_the_end_does_not_wait_for_a_key_that_is_being_parked(
    consumer: Callable[..., KeySharedConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a cluster that does not answer: neither that of the edge nor that of the process."""
    monkeypatch.setattr(consumer_edge, "_CLOSE_SECONDS", 0.01)
    edge = ConsumerEdge(Processor(print, on_failure=Park()), consumer(), lambda: None)
    parked = Mock()
    edge._parker = parker = Parker(parked)
    with parker._is_used:
        closes = threading.Thread(target=edge.close, daemon=True)
        closes.start()
        closes.join(WAIT_S)
        assert not closes.is_alive()
    assert not parked.close.called


def test_no_thread_of_the_edge_delays_the_end_of_the_process(
    consumer: Callable[..., KeySharedConsumer],
) -> None:
    made, daemons = consumer(), list[bool]()
    edge = ConsumerEdge(Processor(print, on_failure=Park()), made, lambda: None)
    edge._parker = with_keys(
        park_all=lambda *_, **__: daemons.append(threading.current_thread().daemon)
    )
    record, *_ = records_of(Processor(print), made.consume(1, WAIT_S))
    asyncio.run(edge.park(record, None))
    edge.close()
    assert daemons == [True]
