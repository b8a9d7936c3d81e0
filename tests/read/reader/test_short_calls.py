"""Calls that wait for nothing, with pauses between them: each goes on where the last one ended."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from kshare.core.hashing import WHOLE
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Rectangle, Slice
from kshare.kafka.protocol.background import Waker
from kshare.kafka.protocol.broker_pool import BrokerPool
from kshare.read.reader.tail_reader import NO_END, TailReader
from kshare.testing import FakeCluster
from tests.read.reader.test_tail_reader import PARTITIONS, options_of
from tests.support.clock import until
from tests.support.short_calls import CALLS, SLOW_MS, after_a_pause

ORDERS = PARTITIONS[0]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1}) as running:
        running.delay(1, SLOW_MS)
        yield running


@pytest.fixture
def reader(cluster: FakeCluster) -> Iterator[TailReader]:
    options = options_of(cluster, fetch_max_wait_ms=10)
    with closing(Waker().open()) as waker, closing(TailReader(options, "earliest", waker)) as made:
        made.read(Slice(*ORDERS, (Rectangle(OffsetRange(0, NO_END), WHOLE),)))
        yield made


def values(reader: TailReader) -> list[bytes]:
    """The values that so many calls return."""
    found: list[bytes] = []
    for _ in range(CALLS):
        after_a_pause(reader)
        records = reader.next_records(0.0)
        found += [] if records is None else records.batch.column("value").to_pylist()
    return found


def test_records_come_within_a_few_calls(cluster: FakeCluster, reader: TailReader) -> None:
    """Wherever a call ends: at first nothing is known, and later answers are without records."""
    for number in range(4):
        cluster.produce("orders", [("k", f"{number}")], partition=0)
        assert values(reader) == [f"{number}".encode()]
        for _ in range(number):
            after_a_pause(reader)
            assert reader.next_records(0.0) is None


def test_what_was_looked_up_before_a_pause_is_good_for_one_request(
    cluster: FakeCluster, reader: TailReader
) -> None:
    """The topic may have been made again in the pause."""
    reader.next_records(0.0)
    after_a_pause(reader)
    pool = BrokerPool(options_of(cluster, fetch_max_wait_ms=10).kafka)
    (leader,) = pool.known_leaders([ORDERS]).values()
    reader.next_records(0.0)
    assert ORDERS not in reader._loop.waiting
    assert pool.is_outdated(ORDERS, leader)
    until(lambda: reader.next_records(0.1) or not pool.is_outdated(ORDERS, leader))
