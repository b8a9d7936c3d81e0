"""Key hashes that go to others while a processor runs over a consumer."""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import Mock

import pytest

from kshare.core.hashing import WHOLE, HashRange, key_hash
from kshare.core.progress import Progress
from kshare.errors import FencedError, KafkaError
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.processing import DeadLetter, Park, Processor, Record, Retry, loop
from kshare.processing.consumer_edge import records_of
from kshare.processing.core.effects import GiveBack
from kshare.processing.handling_right import HandlingRight
from kshare.processing.intake import Intake
from kshare.processing.kept_state import KeptState
from kshare.processing.reader import Ending, Reader
from kshare.processing.room import Allotment, Room
from kshare.processing.runner import Runner
from tests.processing.engines import MemoryEdge, comes
from tests.processing.engines import records_of as records_of_keys
from tests.processing.running import ORDERS, RECORDS, run
from tests.support.clock import WAIT_S, Counted

pytestmark = pytest.mark.usefixtures("each_loop")


def test_what_is_revoked_is_ended_first_and_no_more_is_begun(
    consumer: Callable[..., KeySharedConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, begun, ended = consumer(), list[int](), list[int]()
    go_on, listeners = threading.Event(), dict[str, Any]()

    async def handler(record: Record) -> None:
        begun.append(record.offset)
        while not go_on.is_set():  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0.001)
        ended.append(record.offset)

    monkeypatch.setattr(made, "subscribe", lambda _, **given: listeners.update(given))
    runner = Runner(Processor(handler, concurrency=3), made, "orders")

    at_the_end = list[list[int]]()

    def revoke() -> None:
        while len(begun) < 3:
            time.sleep(0.01)
        threading.Timer(0.1, go_on.set).start()
        try:
            listeners["on_revoked"]({ORDERS: (WHOLE,)})
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
            await intake._give_up(lambda _: True)
            acknowledged.append(edge.offsets())

        processor, edge = Processor(handler), MemoryEdge()
        engine = processor.engine(edge)
        intake = Intake(Mock(), engine, edge, Mock(), WAIT_S)  # type: ignore[arg-type]
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
        def give_back(self, firsts: Sequence[Record]) -> None:
            seen.append("given back")

    async def rebalance() -> None:
        processor = Processor(print)
        records = list(records_of(processor, made.consume(40, WAIT_S)))
        edge, room = Edge(), Room(lambda: (1, 1), 1)
        engine = processor.engine(edge, gives_back=True)
        loop = asyncio.get_running_loop()
        intake = Intake(loop, engine, edge, room, WAIT_S)  # type: ignore[arg-type]
        reader = Reader(processor, made, intake, Ending())

        def lose() -> None:
            reader._lost({ORDERS: (WHOLE,)})
            seen.append("lost")
            has_lost.set()

        def revoke(is_gone: Callable[[Record], bool], **given: bool) -> None:
            has_lost.wait(0.1)  # who does not wait for this goes on first
            scheduler.revoke(is_gone, **given)
            engine.settle_soon()

        scheduler = engine.scheduler
        engine.revoke = revoke  # type: ignore[method-assign]
        engine.scheduler.add(records, 0.0)
        engine.scheduler.effects.append(GiveBack((records[13],)))
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
    reader = Reader(Processor(print), made, Mock(), Ending())
    consume, gone = made.consume, HashRange.of(key_hash(b"k0", 0))

    def rebalances(most: int, seconds: float) -> Any:
        reader._lost({ORDERS: (gone,)})
        return consume(most, WAIT_S)

    monkeypatch.setattr(made, "consume", rebalances)
    assert [message.offset() for message in reader._received(Allotment(3, 1 << 20))] == [1, 2]
    assert [message.offset() for message in reader._received(Allotment(3, 1 << 20))] == [3, 4, 5]


@pytest.mark.parametrize("is_lost", [False, True])
def test_nothing_is_begun_while_others_may_have_the_records(
    monkeypatch: pytest.MonkeyPatch, *, is_lost: bool
) -> None:
    """Neither handlers nor dead letters; what is under way cannot be helped."""
    monkeypatch.setattr(loop, "_LOOK_SECONDS", 0.001)
    edge, seen = MemoryEdge(), list[int]()
    looks = Counted(lambda: edge.left)

    async def handler(record: Record) -> None:
        seen.append(record.offset)
        if record.offset == 0:
            edge.left = -1.0
            await asyncio.sleep(0.01)  # ten times what was allowed before
            raise ValueError("no")

    async def cut_off() -> None:
        processor = Processor(
            handler, concurrency=1, retry=Retry(attempts=1), on_failure=DeadLetter("dlq")
        )
        engine = processor.engine(edge)
        engine.offer(records_of_keys(processor, [b"a", b"b", b"a"]))
        await comes(lambda: bool(engine.scheduler.figures().ending))
        await comes(looks.has_more(100))
        assert (seen, edge.letters, edge.outcomes) == ([0], [], [])
        if is_lost:
            engine.revoke(lambda _: True)
        edge.left = math.inf
        await engine.loop.wait(lambda: engine.is_idle, WAIT_S)
        await engine.close()

    monkeypatch.setattr(edge, "seconds_left", looks)
    asyncio.run(cut_off())
    assert seen == ([0] if is_lost else [0, 1, 2])
    assert [record.offset for record in edge.letters] == ([] if is_lost else [0])


def test_what_is_held_is_dropped_when_another_consumer_has_claimed_it(
    consumer: Callable[..., KeySharedConsumer],
) -> None:
    made, seen = consumer(), list[int]()
    runner: Runner

    async def handler(record: Record) -> None:
        seen.append(record.offset)
        if len(seen) == 1:
            made._session.error = FencedError(  # type: ignore[attr-defined]
                "another has it", topic="orders", partition=0, hashes=(), other=None
            )
            await comes(runner._ending.begun.is_set)

    runner = Runner(Processor(handler, concurrency=1), made, None)
    with pytest.raises(FencedError):
        asyncio.run(runner.run())
    assert len(seen) == 1


@pytest.mark.parametrize("failures", [0, 3])
def test_what_is_held_is_dropped_when_others_may_have_come_and_gone(
    consumer: Callable[..., KeySharedConsumer], monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """The consumer goes on behind what they have committed, and so does the processor.

    Once, even if what they have kept cannot be read at first: what comes then is to be handled.
    """
    monkeypatch.setattr(loop, "_LOOK_SECONDS", 0.001)
    made, seen, read = consumer(), list[int](), KeptState.read
    refused = list[None]()

    def fails(kept: KeptState) -> None:
        session: Any = made._session
        if session.times_anew and len(refused) < failures:
            refused.append(None)
            raise KafkaError("no broker answers")
        read(kept)

    monkeypatch.setattr(KeptState, "read", fails)

    async def handler(record: Record) -> None:
        seen.append(record.offset)
        if len(seen) == 1:
            session: Any = made._session
            await comes(lambda: len(runner_lanes()) == 10)
            session.times_anew += 1
            session.restart(ORDERS, Progress.at(100))
            await asyncio.sleep(0.01)  # ten times what was allowed before

    processor = Processor(handler, concurrency=1)

    def runner_lanes() -> list[Any]:
        return [] if processor.running is None else processor.running.scheduler.lanes()

    run(processor, made, lambda: len(seen) >= 1 + RECORDS - 100)
    assert sorted(seen) == [0, *range(100, RECORDS)]
    assert len(refused) == failures


def test_what_still_counts_is_held_on_when_others_may_have_come_and_gone(
    consumer: Callable[..., KeySharedConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another partition was claimed anew: of this one, nothing comes again."""
    monkeypatch.setattr(loop, "_LOOK_SECONDS", 0.001)
    made, seen = consumer(), list[int]()

    async def handler(record: Record) -> None:
        seen.append(record.offset)
        if len(seen) == 1:
            await comes(lambda: len(lanes()) == 10)
            made._session.times_anew += 1  # type: ignore[misc]

    processor = Processor(handler, concurrency=1)

    def lanes() -> list[Any]:
        return [] if processor.running is None else processor.running.scheduler.lanes()

    run(processor, made, lambda: len(seen) >= RECORDS)
    assert sorted(seen) == [*range(RECORDS)]


def test_a_parked_key_stays_parked_when_others_may_have_come_and_gone(
    consumer: Callable[..., KeySharedConsumer],
) -> None:
    """Nothing of it is held, and it is read from what is committed once it is unparked."""
    made, seen = consumer(), list[bytes | None]()

    async def handler(record: Record) -> None:
        seen.append(record.raw_key)
        if len(seen) == 1:
            raise ValueError("no")
        if len(seen) == 2:
            await comes(lambda: bool(parked()))
            made._session.times_anew += 1  # type: ignore[misc]

    processor = Processor(handler, concurrency=1, retry=Retry(attempts=1), on_failure=Park())

    def parked() -> Any:
        return None if processor.running is None else processor.running.scheduler.parked_lanes

    others = RECORDS * 9 // 10
    run(processor, made, lambda: len(seen) > others)
    assert len(seen) == 1 + others
    assert seen.count(seen[0]) == 1


def test_of_a_key_that_is_held_no_more_nothing_counts_no_more() -> None:
    """It is parked, or put off as its time has not come and others need the room."""
    (record,) = records_of_keys(Processor(print), [b"a"])
    assert HandlingRight(Mock()).counts(record.without_rows().source)
