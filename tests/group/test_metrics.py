"""A consumer's metrics, and what Prometheus gets of them."""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from kshare.core.hashing import ALL_HASHES, HASH_SPACE, WHOLE, HashRange, KeyRanges, key_hash, split
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle, TopicPartition
from kshare.errors import KshareError
from kshare.group import ConsumerMetrics, KeySharedConsumer, register_metrics
from kshare.group.metrics import (
    LATENCY_BOUNDS,
    Latencies,
    Latency,
    LogMetrics,
    PartitionMetrics,
)
from kshare.monitor.report import lag
from kshare.testing import FakeCluster
from tests.support.clock import WAIT_S
from tests.support.fake_session import FakeSessions, fake_consumers
from tests.support.groups import LOWER, T0, UPPER, eventually
from tests.support.series import series

Make = Callable[..., KeySharedConsumer]
QUARTERS = split(WHOLE, 4)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 2}) as running:
        running.produce("orders", [(f"k{i % 20}", f"{i}") for i in range(100)], partition=0)
        yield running


@pytest.fixture
def group() -> FakeSessions:
    return FakeSessions()


@pytest.fixture
def make(cluster: FakeCluster, group: FakeSessions) -> Iterator[Make]:
    with fake_consumers(cluster, group) as consumers:
        yield consumers


# -- what is measured ------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 20)))
def test_latencies_are_counted_in_the_buckets_that_hold_them(seconds: list[float]) -> None:
    latency = Latency()
    for each in seconds:
        latency.add(each)
    told = latency.latencies()
    bounds = [*LATENCY_BOUNDS, float("inf")]
    assert told.counts == tuple(sum(each <= bound for each in seconds) for bound in bounds)
    assert told.count == len(seconds)
    assert told.seconds == pytest.approx(sum(seconds))


def test_what_fails_has_no_latency() -> None:
    latency = Latency()
    with pytest.raises(LookupError), latency.measured():
        raise LookupError
    assert (latency.failures, latency.latencies()) == (1, Latencies())
    with latency.measured():
        pass
    assert (latency.failures, latency.latencies().count) == (1, 1)


pieces = st.lists(
    st.builds(
        lambda start, length, part: Rectangle(OffsetRange(start, start + length), part),
        st.integers(0, 10),
        st.integers(1, 5),
        st.sampled_from(QUARTERS),
    ),
    max_size=6,
)


@given(pieces, pieces, st.integers(0, 15), st.sets(st.sampled_from(QUARTERS), min_size=1))
def test_the_lag_counts_offsets_with_something_pending(
    before: list[Rectangle], since: list[Rectangle], end: int, owned: set[HashRange]
) -> None:
    start, hashes = Progress.of(2, before), KeyRanges(owned)
    done = [Rectangle(OffsetRange(0, 2), WHOLE), *before, *since]
    naive = sum(
        not all(
            any(offset in piece.offsets and part.lo in piece.hashes for piece in done)
            for part in owned
        )
        for offset in range(end)
    )
    assert lag(start.union(Progress.of(0, since)), end, hashes) == naive


def test_a_consumer_that_owns_nothing(make: Make) -> None:
    consumer = make()
    assert consumer.metrics() == ConsumerMetrics(
        "g", consumer.memberid(), {}, Latencies(), 0, 0, 0.0
    )


def test_before_and_after_the_start(make: Make, group: FakeSessions) -> None:
    group.holds_back = True
    consumer = make()
    consumer.assign({("orders", 0): [(UPPER.lo, UPPER.hi)]})
    assert consumer.metrics().partitions == {T0: PartitionMetrics((UPPER,))}
    assert consumer.metrics().partitions[T0].share == 0.5
    assert type(consumer.metrics().partitions[T0].hashes) is tuple  # for dataclasses.asdict
    group.holds_back = False
    wanted = [i for i in range(100) if key_hash(b"k%d" % (i % 20), i) in UPPER]
    assert 0 < len(wanted) < 100
    assert wanted[-1] == 99
    assert len(consumer.consume(len(wanted), WAIT_S)) == len(wanted)
    partition = consumer.metrics().partitions[T0]
    assert asdict(partition)["hashes"] == ({"lo": UPPER.lo, "hi": UPPER.hi},)
    assert (partition.position, partition.end) == (100, 100)
    assert partition.lag == partition.in_flight == 100  # all of it came from the last call
    assert consumer.poll(0) is None
    partition = consumer.metrics().partitions[T0]
    assert (partition.lag, partition.in_flight) == (0, 0)


def test_records_in_flight_are_those_that_are_not_acknowledged(make: Make) -> None:
    consumer = make(acknowledgement__mode="explicit")
    consumer.assign({("orders", 0): []})
    messages = consumer.consume(40, WAIT_S)
    for message in messages[:30]:
        consumer.acknowledge(message)
    partition = consumer.metrics().partitions[T0]
    assert (len(messages), partition.position, partition.in_flight) == (40, 40, 10)
    assert (partition.lag, partition.hashes) == (70, ALL_HASHES)


def test_what_individual_commits_leave_open_is_measured(cluster: FakeCluster, make: Make) -> None:
    cluster.trim("orders", 0, 4)
    consumer = make(acknowledgement__mode="explicit")
    consumer.assign({("orders", 0): []})
    messages = consumer.consume(40, WAIT_S)
    for message in (*messages[2:10], *messages[15:]):
        consumer.acknowledge(message)
    partition = consumer.metrics().partitions[T0]
    assert (partition.stable_offset, partition.gaps) == (4, 2)
    assert partition.oldest_unacknowledged_ms == messages[0].timestamp()[1]
    assert partition.retention_margin == 0  # the next record that is deleted is pending
    for message in messages[:12]:
        consumer.acknowledge(message)
    partition = consumer.metrics().partitions[T0]
    assert (partition.stable_offset, partition.gaps) == (16, 1)
    assert partition.oldest_unacknowledged_ms == messages[12].timestamp()[1]
    assert partition.retention_margin == 12


def test_commits_are_measured(make: Make, group: FakeSessions) -> None:
    consumer = make()
    consumer.assign({("orders", 0): []})
    consumer.consume(10, WAIT_S)
    consumer.commit()
    assert consumer.metrics().commits.count == 1
    group.members[0].error = KshareError("refused")
    with pytest.raises(KshareError, match="refused"):
        consumer.commit()
    assert (consumer.metrics().commits.count, consumer.metrics().commit_failures) == (1, 1)
    group.members[0].error = None


def test_the_time_is_counted_in_which_nothing_may_be_handed_out(
    make: Make, group: FakeSessions
) -> None:
    consumer = make()
    consumer.assign({("orders", 0): []})
    group.members[0].can_deliver = False
    assert consumer.poll(0.2) is None
    first = consumer.metrics().fenced_seconds
    assert first >= 0.15
    group.members[0].can_deliver = True
    assert consumer.poll(WAIT_S) is not None
    assert consumer.metrics().fenced_seconds == first


def test_rebalances_are_counted() -> None:
    with FakeCluster(topics={"orders": 1, "__individual_commit_offsets": 1}) as cluster:
        config = {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "g",
            "claim.timeout.ms": 500,
        }
        with KeySharedConsumer(config) as consumer:
            consumer.subscribe(["orders"])
            eventually(lambda: consumer.poll(0.05) or consumer.assignment() == {T0: ()})
            assert consumer.metrics().rebalances == 1
            consumer.unsubscribe()
            assert (consumer.metrics().rebalances, consumer.metrics().partitions) == (1, {})


def test_from_another_thread_while_records_are_read(make: Make) -> None:
    consumer = make(acknowledgement__mode="explicit")
    consumer.assign({("orders", 0): [], ("orders", 1): []})
    stop, faults = threading.Event(), []

    def ask() -> None:
        while not stop.is_set():
            try:
                consumer.metrics()
            except Exception as error:
                faults.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    for message in consumer.consume(100, WAIT_S):
        consumer.acknowledge(message)
    consumer.assign({("orders", 0): [(LOWER.lo, LOWER.hi)]})
    consumer.poll(0.2)
    stop.set()
    asking.join()
    assert faults == []


# -- Prometheus ------------------------------------------------------------------------------------


class Measured:
    """A consumer with given metrics."""

    def __init__(self, member: str, partitions: dict[TopicPartition, PartitionMetrics]) -> None:
        self.is_closed = False
        self._metrics = ConsumerMetrics(
            "billing",
            member,
            partitions,
            Latencies((1,) * 11 + (2,), 11.5),
            commit_failures=3,
            rebalances=4,
            fenced_seconds=5.5,
            transactions=Latencies((0,) * 11 + (3,), 33.5),
            aborted_transactions=6,
            log=LogMetrics(700, 3, 0.25),
        )

    def metrics(self) -> ConsumerMetrics:
        return self._metrics


def test_prometheus_metrics() -> None:
    registry = CollectorRegistry()
    halves = PartitionMetrics(
        (HashRange(0, 7), HashRange(HASH_SPACE // 2, HASH_SPACE)),
        *(5, 9, 4, 2),
        stable_offset=3,
        gaps=1,
        oldest_unacknowledged_ms=1_000_000,
        retention_margin=2,
    )
    consumer = Measured(
        "m1", {T0: halves, TopicPartition("orders", 1): PartitionMetrics(ALL_HASHES)}
    )
    register_metrics(consumer, registry)
    member = ("billing", "m1")
    first, second = (*member, "orders", "0"), (*member, "orders", "1")
    commits = "kshare_consumer_commit_duration_seconds"
    expected: dict[tuple[str, ...], object] = {
        ("kshare_consumer_assigned_ranges", *first): 2,
        ("kshare_consumer_assigned_ranges", *second): 1,
        ("kshare_consumer_assigned_share", *first): pytest.approx(0.5),
        ("kshare_consumer_assigned_share", *second): 1,
        ("kshare_consumer_lag_offsets", *first): 4,
        ("kshare_consumer_in_flight_records", *first): 2,
        ("kshare_consumer_in_flight_records", *second): 0,
        ("kshare_consumer_stable_offset", *first): 3,
        ("kshare_consumer_gaps", *first): 1,
        ("kshare_consumer_gaps", *second): 0,
        ("kshare_consumer_oldest_unacknowledged_seconds", *first): pytest.approx(
            time.time() - 1_000, abs=60
        ),
        ("kshare_consumer_retention_margin_offsets", *first): 2,
        ("kshare_consumer_log_records", *member): 700,
        ("kshare_consumer_log_groups", *member): 3,
        ("kshare_consumer_log_read_seconds", *member): 0.25,
        ("kshare_consumer_commit_failures_total", *member): 3,
        ("kshare_consumer_rebalances_total", *member): 4,
        ("kshare_consumer_fenced_seconds_total", *member): 5.5,
        (f"{commits}_bucket", *member, "+Inf"): 2,
        (f"{commits}_count", *member): 2,
        (f"{commits}_sum", *member): 11.5,
    }
    expected |= {(f"{commits}_bucket", *member, str(bound)): 1 for bound in LATENCY_BOUNDS}
    transactions = "kshare_consumer_transaction_commit_duration_seconds"
    expected |= {
        ("kshare_consumer_aborted_transactions_total", *member): 6,
        (f"{transactions}_bucket", *member, "+Inf"): 3,
        (f"{transactions}_count", *member): 3,
        (f"{transactions}_sum", *member): 33.5,
    }
    expected |= {(f"{transactions}_bucket", *member, str(bound)): 0 for bound in LATENCY_BOUNDS}
    assert series(registry) == expected


def test_series_go_with_their_consumers() -> None:
    registry = CollectorRegistry()
    closed, forgotten, kept = Measured("a", {}), Measured("b", {}), Measured("c", {})
    for consumer in (closed, forgotten, kept, kept):
        register_metrics(consumer, registry)
    name = "kshare_consumer_rebalances_total"
    assert {key[2] for key in series(registry) if key[0] == name} == {"a", "b", "c"}
    closed.is_closed = True
    del forgotten, consumer
    gc.collect()
    assert {key[2] for key in series(registry) if key[0] == name} == {"c"}


def test_a_consumer_in_prometheus(make: Make) -> None:
    registry = CollectorRegistry()
    consumer = make()
    register_metrics(consumer, registry)
    consumer.assign({("orders", 0): []})
    consumer.consume(100, WAIT_S)
    labels = {"group": "g", "member": consumer.memberid(), "topic": "orders", "partition": "0"}
    assert registry.get_sample_value("kshare_consumer_lag_offsets", labels) == 100
    consumer.close()
    assert registry.get_sample_value("kshare_consumer_lag_offsets", labels) is None
