"""``release``: a record comes again after its delay, in the order of its key, and is counted."""

import asyncio
import threading
import time
from collections.abc import Callable
from functools import cache, partial
from hashlib import md5
from typing import Any
from unittest.mock import Mock

import pytest

from kshare.core.progress import Progress, TopicPartition
from kshare.errors import OptionsError
from kshare.group import AsyncKeySharedConsumer, KeySharedConsumer, Message
from kshare.group import message as messages
from kshare.group.consumer import processed
from kshare.group.consumer.receiver import Receiver
from kshare.group.core.delivery import Delivery
from kshare.group.core.handing_out import Call, HandingOut
from kshare.group.core.open_chunks import OpenChunks
from kshare.testing import FakeCluster
from tests.group.consumer.records import offsets
from tests.group.consumer.released import RECORDS, Make, received
from tests.support.clock import Ahead
from tests.support.fake_session import FakeSessions, fake_consumers
from tests.support.groups import SECONDS, T0, eventually, rectangle


def test_a_record_comes_again_after_its_delay_and_its_key_behind_it(
    make: Make, group: FakeSessions, clock: Ahead
) -> None:
    consumer = make()
    first = received(consumer, 20)
    for message in first:
        if message.offset() != 5 and message.offset() < 9:
            consumer.acknowledge(message)
    consumer.release(first[5], 600.0)
    again = [9, 13, 17]
    assert [message.offset() for message in first if message.is_released()] == [5, *again]
    consumer.acknowledge(first[9])  # too late: it comes again
    others = received(consumer, 15)
    assert offsets(others) == [at for at in range(20, RECORDS) if at % 4 != 1]
    consumer.commit()
    assert group.done[T0].stable == 5
    clock.seconds += 500.0
    assert consumer.consume(1, 0.2) == []
    clock.seconds += 100.0
    rest = received(consumer, 9)
    assert offsets(rest) == [5, *again, *range(21, RECORDS, 4)]
    assert [message.delivery_count() for message in rest[:3]] == [2, 1, 1]
    for message in [*first, *others, *rest]:
        consumer.acknowledge(message)
    eventually(lambda: (consumer.poll(0.05), consumer.commit()) == (None, {T0: RECORDS}))


def test_a_seek_holds_for_a_key_that_comes_again(make: Make) -> None:
    """Also records that were processed before the seek; none comes that it has passed over."""
    consumer = make()
    first = received(consumer, 20)
    for message in first[6:]:
        consumer.acknowledge(message)
    consumer.commit()
    consumer.seek(T0, 6)
    second = received(consumer, 14)
    assert offsets(second) == list(range(6, 20))
    consumer.acknowledge(second[13 - 6])
    consumer.release(second[9 - 6], 0.2)
    assert [each.offset() for each in second if each.is_released()] == [9, 17]
    rest = received(consumer, 22)
    assert [at for at in offsets(rest) if at % 4 == 1] == [9, 17, *range(21, RECORDS, 4)]
    assert [at for at in offsets(rest) if at % 4 != 1] == [
        at for at in range(20, RECORDS) if at % 4 != 1
    ]
    for message in [*second, *rest]:
        consumer.acknowledge(message)
    eventually(lambda: (consumer.poll(0.05), consumer.position()) == (None, {T0: RECORDS}))
    assert consumer.commit() == {T0: 0}


def test_a_release_of_what_a_seek_hands_out_again_counts_until_it_is_processed_since(
    make: Make,
) -> None:
    """Though it was processed before the seek, so that a commit would forget it."""
    consumer = make()
    for message in received(consumer, 20):
        consumer.acknowledge(message)
    consumer.commit()
    consumer.seek(T0, 4)
    again = received(consumer, 16)
    consumer.release(again[0])
    consumer.commit()
    (once_more,) = (each for each in received(consumer, 20) if each.offset() == 4)
    assert once_more.delivery_count() == 2
    consumer.acknowledge(once_more)
    consumer.commit()
    assert once_more.delivery_count() == 1


@pytest.mark.parametrize("order", ["seek, release", "release, seek", "release, poll, seek"])
def test_a_record_that_a_seek_has_passed_over_stays_pending_when_it_is_released(
    make: Make, group: FakeSessions, order: str
) -> None:
    consumer = make()
    first = received(consumer, 20)
    for step in order.split(", "):
        match step:
            case "seek":
                consumer.seek(T0, 12)
            case "release":
                consumer.release(first[5])
            case _:
                consumer.poll(0)
    rest = received(consumer, RECORDS - 12)
    assert sorted(offsets(rest)) == list(range(12, RECORDS))
    assert consumer.poll(0.2) is None  # though its delay is over
    assert first[5].delivery_count() == 2
    for message in rest:
        consumer.acknowledge(message)
    consumer.commit()
    consumer.close()
    assert not group.processed(T0, 5)
    again = received(make(), 12)
    assert [each.delivery_count() for each in again] == [1 + (at == 5) for at in range(12)]


def test_nothing_is_returned_of_a_key_that_is_released_amid_a_call(
    make: Make, clock: Ahead, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by another thread, while the call goes on with other chunks."""
    monkeypatch.setattr(messages, "CHUNK_ROWS", 3)
    consumer = make()
    (first,) = received(consumer, 1)
    collect, calls = HandingOut.collect, list[int]()

    def releases_amid(out: HandingOut, most: int, into: list[Any]) -> None:
        collect(out, most, into)
        calls.append(most)
        if len(calls) == 1:
            consumer.release(first, 600.0)

    monkeypatch.setattr(HandingOut, "collect", releases_amid)
    found = received(consumer, 2 * RECORDS // 4)
    assert len(calls) > 2
    assert [at for at in offsets(found) if at % 4 == 0] == []
    clock.seconds += 600.0
    found += received(consumer, RECORDS - len(found))
    assert [at for at in offsets(found) if at % 4 == 0] == list(range(0, RECORDS, 4))
    assert sorted(offsets(found)) == list(range(RECORDS))


def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that each look of calls waits for."""
    found, took = list[float](), Receiver._took

    def look(self: Receiver, take: Any, seconds: float) -> bool:
        found.append(seconds)
        return took(self, take, seconds)

    monkeypatch.setattr(Receiver, "_took", look)
    return found


def test_a_call_returns_what_it_has_when_a_released_key_is_due(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not see that, and look a thousand times a second meanwhile."""
    consumer = make()
    received(consumer, RECORDS)
    consumer.seek(T0, RECORDS - 3)
    (message,) = received(consumer, 1)
    consumer.release(message, 0.3)
    waits, begun, found = looks(monkeypatch), time.monotonic(), list[Message]()
    while len(found) < 3:
        found += consumer.consume(3 - len(found), 2 * SECONDS)
    assert offsets(found) == [RECORDS - 2, RECORDS - 1, RECORDS - 3]
    assert time.monotonic() - begun < SECONDS
    assert waits.count(0.0) < 20  # of some thousand


def test_a_call_returns_what_it_has_when_a_record_is_released(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = make()
    first = received(consumer, 20)
    waits, begun = looks(monkeypatch), time.monotonic()
    threading.Timer(0.2, consumer.release, (first[-1], 600.0)).start()
    found = consumer.consume(RECORDS, 2 * SECONDS)
    assert time.monotonic() - begun < SECONDS
    assert offsets(found) == [at for at in range(20, RECORDS) if at % 4 != 3]
    assert waits.count(0.0) < 20  # of some thousand


def test_a_call_whose_records_have_gone_back_goes_on_as_if_it_had_none(
    group: FakeSessions,
) -> None:
    """Else the released key would never come to a call without a timeout."""
    with FakeCluster(topics={"orders": 1}) as cluster, fake_consumers(cluster, group) as make:
        cluster.produce("orders", [("a", "0"), ("b", "1")], partition=0)
        consumer = make(acknowledgement__mode="explicit")
        consumer.assign([T0])
        (first,) = received(consumer, 1)
        consumer.release(first, 0.5)
        done = Progress.of(0, [rectangle(1, 2)])
        threading.Timer(0.2, group.members[0].restart, (T0, done)).start()
        more = partial(cluster.produce, "orders", [("c", "2")], partition=0)
        threading.Timer(1.0, more).start()
        begun = time.monotonic()
        assert sorted(offsets(consumer.consume(2, 2 * SECONDS))) == [0, 2]
        assert time.monotonic() - begun < SECONDS


Receives = Callable[[KeySharedConsumer], Message | None]


def polls(consumer: KeySharedConsumer) -> Message | None:
    return consumer.poll(0.05)


def polls_what_is_fresh(consumer: KeySharedConsumer) -> Message | None:
    return consumer.poll_fresh() or consumer.poll(0.05)


def iterates(consumer: KeySharedConsumer) -> Message | None:
    return next(iter(consumer))


@cache
def async_of(consumer: KeySharedConsumer) -> AsyncKeySharedConsumer:
    return AsyncKeySharedConsumer({}, consumer=lambda _: consumer)


def awaits(consumer: KeySharedConsumer) -> Message | None:
    async def poll() -> Message | None:
        return await async_of(consumer).poll(0.05)

    return asyncio.run(poll())


@pytest.mark.parametrize("receive", [polls, polls_what_is_fresh, iterates, awaits])
def test_many_releases_change_what_is_read_now_and_then(make: Make, receive: Receives) -> None:
    """Nothing comes of their keys meanwhile; each change would read anew what is on its way."""
    consumer = make()
    begun, stops = time.monotonic(), consumer._dispatcher.state.ended.stops
    found, expected = list[int](), [0, 1, 2, *range(3, RECORDS, 4)]
    while len(found) < len(expected):
        message = receive(consumer)
        if message is not None:
            found.append(message.offset())
            if len(found) < 4:  # of four keys
                consumer.release(message, 600.0)
    assert found == expected
    most = 1 + int((time.monotonic() - begun) / 0.1)
    assert consumer._dispatcher.state.ended.stops - stops <= most


def test_a_batch_has_nothing_of_keys_that_were_released_a_moment_ago(make: Make) -> None:
    consumer = make()
    for _ in range(3):
        message = consumer.poll(SECONDS)
        assert message is not None
        consumer.release(message, 600.0)
    batch = consumer.consume_batch(SECONDS)
    assert batch is not None
    assert batch.column("offset").to_pylist() == list(range(3, RECORDS, 4))


def test_it_is_for_explicit_mode(make: Make) -> None:
    consumer = make()
    (message,) = received(consumer, 1)
    with pytest.raises(ValueError, match=r"delay is -1; wanted seconds from 0 up"):
        consumer.release(message, -1)
    with pytest.raises(TypeError, match="not a str"):
        consumer.release("k")  # type: ignore[arg-type]
    with pytest.raises(OptionsError, match=r"acknowledgement\.mode: is implicit"):
        make(acknowledgement__mode="implicit").release(message)


def test_what_is_read_after_a_key_was_let_go_and_before_the_next_look_overtakes_nothing(
    group: FakeSessions,
) -> None:
    rows = [(f"k{i % 2}", "v") for i in range(8)]
    with FakeCluster(topics={"orders": 1}) as cluster, fake_consumers(cluster, group) as make:
        cluster.produce("orders", rows, partition=0)
        consumer = make(acknowledgement__mode="explicit")
        consumer.assign([T0])
        first = received(consumer, 8)
        dispatcher = consumer._dispatcher
        consumer.releases.defer([first[2]])
        consumer.releases.let_go(T0, first[2].key(), first[2].offset())
        cluster.produce("orders", rows, partition=0)
        deadline = time.monotonic() + SECONDS
        while not dispatcher.rows.left and time.monotonic() < deadline:
            with consumer._state.lock:
                dispatcher.refresh(continues=True)  # as amid a call that has got records
            dispatcher.next_rows(0.1)
        read = {message.offset(): message.is_released() for message in dispatcher.rows.messages}
        assert read == {at: at % 2 == 0 for at in range(8, 16)}
        again = offsets(received(consumer, 7))
        assert again == list(range(2, 16, 2))


def test_a_batch_that_was_ready_when_a_record_before_it_was_released_does_not_overtake_it(
    group: FakeSessions,
) -> None:
    with FakeCluster(topics={"orders": 1}) as cluster, fake_consumers(cluster, group) as make:
        cluster.produce("orders", [("k", "0")], partition=0)
        consumer = make(acknowledgement__mode="explicit")
        consumer.assign([T0])
        (first,) = received(consumer, 1)
        cluster.produce("orders", [("k", "1"), ("k", "2")], partition=0)
        call = Call()
        assert consumer.calls.await_batch(call, time.monotonic() + SECONDS)
        consumer.release(first, 0.0)
        assert consumer.calls.return_batch(call) is None
        assert offsets(received(consumer, 3)) == [0, 1, 2]


def test_a_processor_takes_over_a_consumer_that_has_been_polled(group: FakeSessions) -> None:
    """In turns, each partition has a buffer of its own, also one that is read already."""
    count = 60_000
    large = {"compression.type": "zstd", "batch.num.messages": 30_000, "batch.size": 4_000_000}
    large |= {"message.max.bytes": 8_000_000, "linger.ms": 5_000}
    with FakeCluster(topics={"orders": 2}) as cluster, fake_consumers(cluster, group) as make:
        for partition in range(2):
            rows = [
                (
                    f"k{i % 7}",
                    f"{partition}/{i:06}/{md5(b'%d' % i, usedforsecurity=False).hexdigest()}",
                )
                for i in range(count)
            ]
            cluster.produce("orders", rows, partition=partition, config=large)
        consumer = make(acknowledgement__mode="explicit")
        consumer.assign([T0, TopicPartition("orders", 1)])
        found = [consumer.poll(SECONDS)]
        consumer.take_turns()
        found += received(consumer, 2 * count - 1)
        values = [(each.value(), each.partition(), each.offset()) for each in found if each]
        assert len(values) == 2 * count
        wrong = [each for each in values if (each[0] or b"")[:8] != b"%d/%06d" % each[1:]]
        assert wrong == []


def test_a_signal_handler_closes_amid_a_release(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds what the end of the consumer needs."""
    consumer = make()
    (message,) = received(consumer, 1)
    start, ended = threading.Thread.start, list[bool]()

    def interrupted(thread: threading.Thread) -> None:
        if thread.name == "kshare memory":
            consumer.close()  # as the handler does, amid this call
            ended.append(consumer._state.has_ended)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    releases = threading.Thread(target=consumer.release, args=[message], daemon=True)
    start(releases)
    releases.join(SECONDS)
    assert ended == [False]
    assert consumer._state.has_ended


@pytest.mark.parametrize(
    ("of", "step"), [(OpenChunks, "come_again"), (Delivery, "without_released")]
)
def test_an_interrupt_as_a_key_comes_again_processes_nothing(
    make: Make,
    group: FakeSessions,
    monkeypatch: pytest.MonkeyPatch,
    of: type[Any],
    step: str,
) -> None:
    consumer = make()
    first = received(consumer, 4)
    original, faults = getattr(of, step), [KeyboardInterrupt()]

    def interrupted(*args: Any) -> Any:
        done = original(*args)
        if faults:
            raise faults.pop()
        return done

    monkeypatch.setattr(of, step, interrupted)
    consumer.release(first[1])
    for message in first:
        consumer.acknowledge(message)
    with pytest.raises(KeyboardInterrupt):
        consumer.poll(SECONDS)
    consumer.commit()
    assert [at for at in range(1, RECORDS) if group.processed(T0, at)] == []
    again = list[int]()
    while RECORDS - 3 not in again:
        (message,) = received(consumer, 1)
        again.append(message.offset())
        consumer.acknowledge(message)
    assert [at for at in again if at % 4 == 1] == list(range(1, RECORDS, 4))


def test_threads_whose_first_releases_come_at_once_have_one_retry_log(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread and the connections of another one would stay for ever."""
    consumer = make()
    made, original, others = list[Any](), processed._retry_log, list[threading.Thread]()

    def makes(config: Any) -> Any:
        made.append(original(config))
        if not others:  # another thread comes before this one is known
            others.append(threading.Thread(target=consumer.releases.retry_log))
            others[0].start()
            others[0].join(0.2)
        return made[-1]

    monkeypatch.setattr(processed, "_retry_log", makes)
    consumer.releases.retry_log()
    others[0].join(SECONDS)
    assert len(made) == 1


def test_the_end_waits_for_what_is_kept_of_releases_as_long_as_for_the_last_commit(
    make: Make,
) -> None:
    consumer, seconds = make(), list[float]()
    consumer.releases._retry_log = Mock(close=seconds.append)
    consumer.close()
    (limit,) = seconds
    assert 5.0 <= limit <= 30.0
