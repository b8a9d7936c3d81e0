"""Members that share a partition by load, on the mock cluster: the hot range gets narrower."""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from kshare.core.hashing import ALL_HASHES, HASH_SPACE, WHOLE, key_hash, split
from kshare.group import KeySharedConsumer
from kshare.testing import FakeCluster
from tests.support.groups import LOG, T0, eventually, join_together, quick_settings
from tests.support.policies import FakePolicies

KEYS = [f"k{i}".encode() for i in range(90)]
HOT = split(WHOLE, 3)[0]
HOT_SECONDS = 0.004


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1, LOG: 3}) as running:
        join_together(running)
        yield running


class Worker:
    """A consumer whose records of some keys take long."""

    def __init__(self, cluster: FakeCluster, **config: Any) -> None:
        self.records: list[tuple[int, int, bytes]] = []  # when, offset, key
        self.consumer = KeySharedConsumer(
            {
                **quick_settings(cluster.bootstrap_servers),
                "rangeAssignor": "adaptive",
                "probing.rebalance.interval.ms": 1_500,
                **config,
            },
            policies=FakePolicies(),
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.consumer.subscribe(["orders"])
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self.consumer.poll(0.05)
            if message is not None:
                key = message.key() or b""
                self.records.append((time.monotonic_ns(), message.offset(), key))
                if key_hash(key, 0) in HOT:
                    time.sleep(HOT_SECONDS)
                self.consumer.acknowledge(message)

    def shares(self, hashes: Any = WHOLE) -> float:
        """Which part of the partition's key hashes it has, of some."""
        owned = self.consumer.assignment().get(T0)
        if owned is None:
            return 0.0
        both = (part.intersect(hashes) for part in owned or ALL_HASHES)
        return sum(part.width for part in both if part is not None) / HASH_SPACE

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        self.consumer.close()


@pytest.fixture
def start(cluster: FakeCluster) -> Iterator[Callable[..., Worker]]:
    with ExitStack() as stack:

        def worker(**config: Any) -> Worker:
            each = Worker(cluster, **config)
            stack.callback(each.end)
            return each

        yield worker


def produce(cluster: FakeCluster, first: int, count: int) -> None:
    rows = [(KEYS[i % len(KEYS)], f"{i}") for i in range(first, first + count)]
    cluster.produce("orders", rows, partition=0)


def check_orders(workers: list[Worker], count: int) -> None:
    """Each record came once, and each key in order, whoever had it."""
    rows = sorted(row for worker in workers for row in worker.records)
    assert sorted(offset for _, offset, _ in rows) == list(range(count))
    by_key: dict[bytes, list[int]] = defaultdict(list)
    for _, offset, key in rows:
        by_key[key].append(offset)
    assert all(offsets == sorted(offsets) for offsets in by_key.values())


@pytest.mark.parametrize("mode", ["implicit", pytest.param("explicit", marks=pytest.mark.slow)])
def test_the_hot_range_gets_narrower_after_a_probing_rebalance(
    cluster: FakeCluster, start: Callable[..., Worker], mode: str
) -> None:
    workers = [start(**{"acknowledgement.mode": mode}) for _ in range(3)]
    eventually(lambda: all(abs(worker.shares() - 1 / 3) < 0.01 for worker in workers))
    produced = 0

    def is_shared_out() -> bool:
        """Nobody has most of the hot keys any more; records come all the time."""
        nonlocal produced
        if sum(len(worker.records) for worker in workers) > produced - 600:
            produce(cluster, produced, 300)
            produced += 300
        return max(worker.shares(HOT) for worker in workers) < 0.75 / 3

    assert not is_shared_out()
    eventually(is_shared_out, 60)
    eventually(lambda: sum(len(worker.records) for worker in workers) >= produced, 60)
    check_orders(workers, produced)


@pytest.mark.slow
def test_with_another_range_assignor_nothing_is_measured_and_the_leader_says_so(
    cluster: FakeCluster, start: Callable[..., Worker], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "kshare.group"):
        first = start(rangeAssignor="round-robin")
        eventually(lambda: first.shares() == 1.0)
        second = start()
        eventually(lambda: first.shares() == second.shares() == 0.5)
        third = start()
        eventually(lambda: abs(third.shares() - 1 / 3) < 0.01)
    told = [text for text in caplog.messages if "rangeAssignor" in text]
    assert len(told) == 2  # once of each member, though there were several rebalances
    assert all("has rangeAssignor=adaptive, and the leader, whose counts" in text for text in told)
