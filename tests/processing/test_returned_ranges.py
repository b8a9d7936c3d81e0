"""Key hashes that come back to the same processor: it was at work on them all the time."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kshare.group import KeySharedConsumer
from kshare.processing import Processor, Record
from kshare.processing.core.lane import Lane
from kshare.processing.runner import Runner
from kshare.testing import FakeCluster
from tests.processing.running import ORDERS, RECORDS, ROWS
from tests.support.clock import WAIT_S
from tests.support.groups import eventually, quick_settings

KEYS = {key for key, _ in ROWS}
OFFSETS = {key: {at for at, row in enumerate(ROWS) if row[0] == key} for key in KEYS}


class Handling:
    """A plain handler, which hangs with the first record of each key until it may go on.

    Attributes:
        begun: The offsets of all calls, in order, by key.
        worst: The most calls of a key that were under way at a time.
    """

    def __init__(self) -> None:
        self.begun: dict[str, list[int]] = {key: [] for key in KEYS}
        self.worst = 0
        self.may_go_on = threading.Event()
        self._running = Counter[str]()
        self._lock = threading.Lock()

    def __call__(self, record: Record) -> None:
        key = record.key.decode()
        with self._lock:
            self.begun[key].append(record.offset)
            self._running[key] += 1
            self.worst = max(self.worst, self._running[key])
        assert self.may_go_on.wait(WAIT_S)
        with self._lock:
            self._running[key] -= 1

    @property
    def count(self) -> int:
        return sum(map(len, self.begun.values()))


@pytest.fixture
def consumer(cluster: FakeCluster) -> Iterator[Callable[..., KeySharedConsumer]]:
    """Makes members of a group that subscribe."""
    made = list[KeySharedConsumer]()

    def make(**given: Any) -> KeySharedConsumer:
        made.append(KeySharedConsumer(quick_settings(cluster.bootstrap_servers, **given)))
        return made[-1]

    yield make
    for each in made:
        each.close()


@contextmanager
def running(handler: Handling, processor: Processor, consumer: KeySharedConsumer) -> Iterator[None]:
    """A processor in a thread of its own; stopped at the end."""
    runner = Runner(processor, consumer, "orders")
    thread = threading.Thread(target=lambda: asyncio.run(runner.run()))
    thread.start()
    try:
        yield
    finally:
        handler.may_go_on.set()
        runner.stop()
        thread.join(WAIT_S)
        assert not thread.is_alive()


@contextmanager
def polled(consumer: KeySharedConsumer) -> Iterator[None]:
    """A member of the group that polls; it leaves at the end."""
    is_over = threading.Event()

    def poll() -> None:
        while not is_over.is_set():
            consumer.poll(0.05)
        consumer.close()

    consumer.subscribe(["orders"])
    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(WAIT_S)
        assert not thread.is_alive()


def lanes(processor: Processor) -> list[Lane]:
    return [] if processor.running is None else processor.running.scheduler.lanes()


@pytest.mark.parametrize(
    "drain_timeout",
    [
        pytest.param("50ms", id="its handlers outlive the hand-over"),
        pytest.param("60s", id="it still drains"),
    ],
)
def test_no_key_that_comes_back_is_handled_twice_at_a_time(
    consumer: Callable[..., KeySharedConsumer], drain_timeout: str
) -> None:
    handler, made = Handling(), consumer(acknowledgement_mode="explicit")
    processor = Processor(handler, concurrency=2 * len(KEYS), drain_timeout=drain_timeout)
    is_drained = drain_timeout == "60s"
    with running(handler, processor, made):
        eventually(lambda: handler.count == len(KEYS))
        other = consumer(enable_auto_commit=False)
        with polled(other):
            eventually(lambda: any(lane.revoked for lane in lanes(processor)))
            if not is_drained:
                eventually(other.assignment)
        if not is_drained:  # the records that were handed over come again
            eventually(
                lambda: any(lane.revoked and len(lane.records) > 1 for lane in lanes(processor))
            )
        assert handler.count == len(KEYS)
        handler.may_go_on.set()
        eventually(lambda: all(set(handler.begun[key]) == OFFSETS[key] for key in KEYS))
        eventually(
            lambda: (
                ORDERS in (found := made.committed([ORDERS])) and found[ORDERS].offset == RECORDS
            )
        )
    assert handler.worst == 1
    for key in KEYS:
        begun = handler.begun[key]
        again = begun[1:] if begun[0] == begun[1] else begun
        assert again == sorted(OFFSETS[key])
    if is_drained:
        assert handler.count == RECORDS
