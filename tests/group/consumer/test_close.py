"""Calls that another thread or a signal ends."""

import gc
import os
import signal
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from kshare.errors import ConsumerClosedError
from kshare.group.consumer import consumer_parts
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.kafka.protocol.background import Waker
from kshare.testing import FakeCluster
from tests.group.consumer.records import MIDDLE, fill, offsets, take
from tests.support.clock import WAIT_S, until
from tests.support.fake_session import FakeSessions
from tests.support.parked_keys import FakeParked
from tests.support.policies import FakePolicies
from tests.support.requests import times_asked

LONG_S = 600.0


def test_close_wakes_a_poll_of_another_thread(
    cluster: FakeCluster,
    group: FakeSessions,
    make: Callable[..., KeySharedConsumer],
    policies: FakePolicies,
) -> None:
    consumer = make(fetch__max__wait__ms=20_000, request__timeout__ms=30_000)
    consumer.assign({("orders", 0): []})
    returned: list[Any] = []
    thread = threading.Thread(target=lambda: returned.append(list(consumer)))
    thread.start()
    until(consumer.position)
    consumer.close()
    thread.join(WAIT_S)
    assert returned == [[]]
    assert group.members[0].is_closed
    consumer.close()
    policies.asked.clear()
    ranges = partial(consumer.assign, {("orders", 0): [(0, MIDDLE)]})
    receiving = (consumer.poll, consumer.consume, consumer.consume_batch, consumer.commit)
    asking = (consumer.assignment, consumer.position, consumer.memberid, consumer.unsubscribe)
    moving = (partial(consumer.seek, ("orders", 0), 1), partial(consumer.pause, [("orders", 0)]))
    for call in (*receiving, *asking, *moving, ranges):
        with pytest.raises(RuntimeError, match="Consumer closed"):
            call()
    assert policies.asked == []


@pytest.mark.parametrize("call", ["poll", "consume", "consume_batch"])
def test_close_wakes_each_call_amid_a_long_poll(
    cluster: FakeCluster,
    make: Callable[..., KeySharedConsumer],
    monkeypatch: pytest.MonkeyPatch,
    call: str,
) -> None:
    """The broker would answer after 600 s: only a wake-up ends the call before the test fails."""
    monkeypatch.setattr("kshare.group.consumer.receiver._TICK_SECONDS", LONG_S)
    consumer = make(fetch__max__wait__ms=600_000, request__timeout__ms=900_000)
    consumer.assign({("orders", 0): []})
    cluster.track_requests()
    calls: dict[str, Callable[[], object]] = {
        "poll": lambda: consumer.poll(LONG_S),
        "consume": lambda: consumer.consume(10, LONG_S),
        "consume_batch": lambda: consumer.consume_batch(LONG_S),
    }
    returned: list[object] = []
    thread = threading.Thread(target=lambda: returned.append(calls[call]()), daemon=True)
    thread.start()
    until(lambda: times_asked(cluster, "Fetch"))
    assert not returned
    closing = threading.Thread(target=consumer.close, daemon=True)  # it waits for the call
    closing.start()
    for each in (thread, closing):
        each.join(WAIT_S)
        assert not each.is_alive()
    assert returned in ([None], [[]])


def test_a_poll_that_a_close_wakes_waits_for_nothing_more(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kshare.group.consumer.receiver._TICK_SECONDS", LONG_S)
    consumer = make(fetch__max__wait__ms=600_000, request__timeout__ms=900_000)
    consumer.assign({("orders", 0): []})
    waits: list[tuple[float, bool]] = []  # and whether one has ended since it was closed
    ended = list[float]()
    wait = Waker.wait

    def waited(waker: Waker, seconds: float, *sockets: Mapping[int, int]) -> list[int]:
        if threading.current_thread() is not thread:
            return wait(waker, seconds, *sockets)
        waits.append((seconds, bool(ended)))
        ready = wait(waker, seconds, *sockets)
        if consumer._state.is_closed:  # one may begin as it is closed, and is woken
            ended.append(seconds)
        return ready

    monkeypatch.setattr(Waker, "wait", waited)
    cluster.track_requests()
    thread = threading.Thread(target=consumer.poll, args=[LONG_S], daemon=True)
    thread.start()
    until(lambda: times_asked(cluster, "Fetch") and waits and waits[-1][0] > WAIT_S)
    consumer.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert not any(is_after for _, is_after in waits)


def test_closing_amid_a_call_waits_for_the_call(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    """As a signal handler does it, which may interrupt what holds a lock."""
    fill(cluster, 10)
    consumer = make()
    consumer.assign({("orders", 0): []})
    session = group.members[0]
    amid: list[tuple[bool, bool]] = []

    def check() -> None:
        consumer.close()
        amid.append((consumer.is_closed, session.is_closed))

    session.check = check  # type: ignore[method-assign]
    assert consumer.poll(WAIT_S) is None
    assert amid == [(True, False)]
    assert session.is_closed


# -- signals --------------------------------------------------------------------------------------


def test_a_signal_ends_an_iteration(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 10)
    consumer = make(fetch__max__wait__ms=20_000, request__timeout__ms=30_000)
    consumer.assign({("orders", 0): []})
    seen: list[int] = []

    def consume() -> None:
        for message in consumer:
            seen.append(message.offset())
            if len(seen) == 10:
                later(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            consume()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == list(range(10))
    fill(cluster, 5, first=10)
    assert offsets(take(consumer, 5)) == list(range(10, 15))


def test_a_signal_handler_may_close(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer]
) -> None:
    consumer = make(fetch__max__wait__ms=20_000, request__timeout__ms=30_000)
    consumer.assign({("orders", 0): []})
    before = signal.signal(signal.SIGUSR1, lambda *_: consumer.close())
    try:
        later(signal.SIGUSR1)
        assert list(consumer) == []
    finally:
        signal.signal(signal.SIGUSR1, before)


def later(number: signal.Signals) -> None:
    """Send the main thread a signal, most likely while it waits."""
    thread = threading.main_thread().ident
    assert thread is not None
    threading.Timer(0.3, signal.pthread_kill, [thread, number]).start()


def test_a_commit_that_nobody_waited_for_is_called_back_after_the_end_of_its_session(
    group: FakeSessions, make: Callable[..., KeySharedConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_parts, "_LAST_COMMIT_SECONDS", 0.01)
    told: list[tuple[object, bool]] = []

    def on_commit(error: Exception | None, _: object) -> None:
        told.append((type(error), session.is_closed))

    consumer = make(on_commit=on_commit)
    consumer.assign([("orders", 0)])
    until(lambda: consumer.poll(0.05) is None and consumer.position())
    session, has_begun = group.members[0], threading.Event()

    def never(*_: object, **__: object) -> Any:
        has_begun.set()
        until(lambda: session.is_closed)
        raise ConsumerClosedError

    monkeypatch.setattr(session, "commit", never)
    consumer.commit(asynchronous=True)
    assert has_begun.wait(WAIT_S)
    for _ in range(2):
        consumer.commit(asynchronous=True)
    consumer.close()
    assert told == [(ConsumerClosedError, True)] * 3


def test_one_that_nobody_holds_any_more_is_closed(
    cluster: FakeCluster, group: FakeSessions
) -> None:
    """Its threads do not hold it. As confluent-kafka's, its key hashes go to others then."""
    fill(cluster, 10)
    config = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = KeySharedConsumer(
        config, session=group, policies=FakePolicies(), parked=FakeParked()
    )
    consumer.assign({("orders", 0): []})
    assert consumer.poll(WAIT_S) is not None
    with pytest.warns(ResourceWarning, match="a consumer of group g was not closed"):
        del consumer
    until(lambda: group.members[0].is_closed)


def test_one_that_was_never_used_needs_no_end(cluster: FakeCluster) -> None:
    config = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g"}
    consumer = KeySharedConsumer(config)
    reading = os.dup(consumer._fresh.waker._reading)
    del consumer
    gc.collect()
    try:
        assert os.read(reading, 1) == b""  # nobody can write any more
    finally:
        os.close(reading)
