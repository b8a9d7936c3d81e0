"""Times in which the session lets no records out."""

import time
from collections.abc import Callable

import pytest

from kshare.core.progress import Progress
from kshare.errors import KshareError
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.testing import FakeCluster
from tests.group.consumer.records import ORDERS, fill, offsets, take
from tests.support.clock import WAIT_S
from tests.support.fake_session import FakeSessions


def test_faults_of_the_session_are_raised_and_nothing_is_handed_out(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 100)
    consumer = make()
    consumer.assign({("orders", 0): []})
    assert consumer.poll(WAIT_S) is not None
    session = group.members[0]
    session.error = KshareError("fenced")
    session.change()
    with pytest.raises(KshareError, match="fenced"):
        consumer.poll(WAIT_S)
    session.error, session.can_deliver = None, False
    session.change()
    assert consumer.poll(0.1) is None
    assert consumer.consume_batch(0.1) is None
    assert consumer.consume(5, 0.1) == []
    session.can_deliver = True
    assert offsets(take(consumer, 99)) == list(range(1, 100))


def test_a_new_start_drops_what_is_buffered(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 100)
    consumer = make()
    consumer.assign({("orders", 0): []})
    assert offsets(take(consumer, 5)) == list(range(5))
    group.members[0].restart(ORDERS, Progress.at(50))
    assert offsets(take(consumer, 5)) == list(range(50, 55))
    group.holds_back = True
    group.members[0].change()
    assert consumer.poll(0.1) is None


def test_a_fence_amid_an_iteration_stops_it_at_the_next_record(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 100)
    consumer = make()
    consumer.assign({("orders", 0): []})
    seen = []

    def consume() -> None:
        for message in consumer:
            seen.append(message.offset())
            if len(seen) == 7:
                group.members[0].error = KshareError("fenced")
                group.members[0].change()

    with pytest.raises(KshareError, match="fenced"):
        consume()
    assert seen == list(range(7))


def test_a_clock_that_is_set_back_lets_nothing_out(
    cluster: FakeCluster,
    group: FakeSessions,
    make: Callable[..., KeySharedConsumer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The session is over meanwhile, which is no event: each record is a look at the clock."""
    fill(cluster, 100)
    consumer = make()
    consumer.assign({("orders", 0): []})
    assert consumer.poll(WAIT_S) is not None
    for module in ("calls", "consumer", "receiver"):
        monkeypatch.setattr(
            f"kshare.group.consumer.{module}.wall_time", lambda: time.time() - 3_600
        )
    group.members[0].can_deliver = False
    assert consumer.poll(0.1) is None
    group.members[0].can_deliver = True
    assert consumer.poll(WAIT_S) is not None


def test_the_time_for_which_all_is_held_back_is_counted(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    """The session says why, once it lasts."""
    fill(cluster, 10)
    consumer = make()
    consumer.assign({("orders", 0): []})
    assert consumer.poll(WAIT_S) is not None
    assert consumer.metrics().fenced_seconds == 0
    group.members[0].can_deliver = False
    group.members[0].change()
    assert consumer.poll(0.1) is None
    assert consumer.metrics().fenced_seconds > 0
