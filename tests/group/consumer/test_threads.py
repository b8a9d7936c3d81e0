"""One thread polls while others change what is read, and cancel."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from kshare.core.progress import TopicPartition
from kshare.errors import ConsumerClosedError
from kshare.group.consumer.calls import deadline_of
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.core.handing_out import Call
from kshare.testing import FakeCluster
from tests.support.clock import WAIT_S
from tests.support.groups import SECONDS, eventually

ORDERS = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)
RECORDS = 4


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 2}) as running:
        fill(running)
        yield running


def fill(cluster: FakeCluster) -> None:
    cluster.produce("orders", [(f"k{i % 2}", str(i)) for i in range(RECORDS)], partition=0)


def consumes(consumer: KeySharedConsumer) -> None:
    """Wait for more than there is, until it is closed."""
    with suppress(ConsumerClosedError):
        consumer.consume(RECORDS + 1, 600)


def test_a_callback_and_another_thread_pause_at_once(
    make: Callable[..., KeySharedConsumer],
) -> None:
    paused = threading.Event()

    def is_at_the_gate() -> bool:
        gate = consumer.receiver._state.gate
        if not gate.acquire(blocking=False):
            return True
        gate.release()
        return False

    def on_commit(*_: object) -> None:
        if not paused.is_set():
            other.start()
            while not is_at_the_gate():
                time.sleep(0.01)
            consumer.pause([OTHER])
            paused.set()

    config = {"enable__auto__commit": True, "auto__commit__interval__ms": 50}
    consumer = make(on_commit=on_commit, **config)
    consumer.assign([ORDERS, OTHER])
    other = threading.Thread(target=consumer.pause, args=[[ORDERS]], daemon=True)
    polls = threading.Thread(target=consumes, args=[consumer], daemon=True)
    polls.start()
    assert paused.wait(WAIT_S)
    other.join(WAIT_S)
    assert not other.is_alive()
    assert consumer.receiver._dispatcher.state.paused == {ORDERS, OTHER}
    consumer.close()
    polls.join(WAIT_S)
    assert not polls.is_alive()


def test_a_pause_of_another_partition_as_poll_takes_its_record(
    make: Callable[..., KeySharedConsumer],
) -> None:
    consumer = make()
    consumer.assign([ORDERS, OTHER])
    assert consumer.calls.next_rows(deadline_of(WAIT_S))
    consumer.pause([OTHER])
    message = consumer.calls.take()
    assert message is not None
    again = [message, *consumer.consume(RECORDS - 1, WAIT_S)]
    assert [each.offset() for each in again] == list(range(RECORDS))


def test_a_partition_that_is_not_paused_is_resumed(make: Callable[..., KeySharedConsumer]) -> None:
    consumer = make()
    consumer.assign([ORDERS])
    first = consumer.poll(WAIT_S)
    assert first is not None
    consumer.resume([ORDERS])
    again = [*consumer.consume(RECORDS - 1, WAIT_S), *consumer.consume(1, 0.1)]
    assert [each.offset() for each in again] == list(range(1, RECORDS))


def test_a_call_that_is_cancelled_as_it_gets_more_gives_back_all_in_order(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer]
) -> None:
    consumer = make()
    consumer.assign([ORDERS])
    calls, dispatcher = consumer.calls, consumer._dispatcher
    call, fetch = Call(), dispatcher._fetch

    def fetched(seconds: float) -> object:
        records = fetch(seconds)
        if call.messages and records is None:
            fill(cluster)
        elif call.messages:
            cancels = threading.Thread(target=calls.cancel, args=[call])
            cancels.start()
            cancels.join(WAIT_S)
        return records

    dispatcher._fetch = fetched  # type: ignore[method-assign, assignment]
    assert not calls.gather(call, 3 * RECORDS, float("inf"))
    dispatcher._fetch = fetch  # type: ignore[method-assign]
    again = [*consumer.consume(2 * RECORDS, WAIT_S), *consumer.consume(RECORDS, 0.1)]
    assert [each.offset() for each in again[: 2 * RECORDS]] == list(range(2 * RECORDS))
    assert len({each.offset() for each in again}) == len(again)


def test_a_signal_handler_closes_amid_a_change_that_another_thread_waits_for(
    make: Callable[..., KeySharedConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an event loop's thread, which cancels a call while the consumer polls in another."""
    consumer = make()
    consumer.assign([ORDERS])
    state, looks = consumer._state, threading.Event()
    serve = consumer._commits.serve

    def serves(*arguments: Any) -> None:
        serve(*arguments)
        looks.set()

    monkeypatch.setattr(consumer._commits, "serve", serves)
    polling = threading.Thread(target=consumes, args=[consumer])
    polling.start()
    assert looks.wait(SECONDS)
    with state.lock:
        looks.clear()
        consumer.receiver.fresh.interrupt()
        assert looks.wait(SECONDS)  # it polls, and what it wants next is the lock
        consumer.close()
        assert not state.has_ended
    polling.join(SECONDS)
    assert not polling.is_alive()
    eventually(lambda: state.has_ended)
