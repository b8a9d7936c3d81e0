"""The examples of consumers, as files that users copy: run against a mock cluster."""

import _thread
import asyncio
import runpy
import signal
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kshare.group import Message
from kshare.testing import FakeCluster

EXAMPLES = Path(__file__).parents[2] / "examples"
RECORDS = [(b"customer-%d" % (n % 7), b"%d" % n) for n in range(200)]


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """SIGINT is handled as usual, though a shell ignores it for what it runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1, "__individual_commit_offsets": 1}) as running:
        running.produce("orders", RECORDS)
        yield running


def main_of(name: str) -> Any:
    return runpy.run_path(str(EXAMPLES / name))["main"]


class Ledger:
    """Takes each record once, each key in order, and ends the example with the last one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: defaultdict[bytes | None, list[int]] = defaultdict(list)
        self._left = len(RECORDS)

    def bill(self, message: Message) -> None:
        with self._lock:
            value = message.value()
            assert value is not None
            self._values[message.key()].append(int(value))
            self._left -= 1
            if not self._left:
                _thread.interrupt_main()

    async def bill_async(self, message: Message) -> None:
        self.bill(message)
        if not self._left:
            await asyncio.sleep(30)  # until the interrupt comes

    def check(self) -> None:
        assert sum(map(len, self._values.values())) == len(RECORDS)
        assert all(values == sorted(values) for values in self._values.values())


def test_a_consumer_handles_each_record_in_order(cluster: FakeCluster) -> None:
    ledger = Ledger()
    with pytest.raises(KeyboardInterrupt):
        main_of("consumer_group.py")(cluster.bootstrap_servers, "orders", ledger.bill)
    ledger.check()


def test_a_consumer_of_asyncio_does_too(cluster: FakeCluster) -> None:
    ledger = Ledger()
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(
            main_of("consumer_async.py")(cluster.bootstrap_servers, "orders", ledger.bill_async)
        )
    ledger.check()
