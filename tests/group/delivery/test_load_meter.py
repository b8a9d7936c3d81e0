"""The load of what a consumer owns: records, time, offsets, and a sample of keys."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from kshare.core.hashing import ALL_HASHES, HASH_SPACE, WHOLE, HashRange, KeyRanges, key_hash, split
from kshare.core.progress import Progress, TopicPartition
from kshare.core.slicing import RangeObservation
from kshare.group.core.delivery import Delivery
from kshare.group.delivery.load_meter import LoadMeter
from kshare.group.delivery_start import DeliveryStart
from kshare.group.message import Chunk
from kshare.group.protocol.membership.report import MemberReport
from kshare.kafka.protocol.background import begin
from tests.support.clock import WAIT_S, Clock

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
LOWER, UPPER = split(WHOLE, 2)
SAID = MemberReport(range_assignor="adaptive")


@dataclass
class Owned:
    """The partitions of a consumer."""

    deliveries: dict[TopicPartition, Delivery] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=dict)

    def end(self, topic_partition: TopicPartition) -> int | None:
        return self.ends.get(topic_partition)

    def start(
        self, partition: TopicPartition, *hashes: HashRange, explicit: bool = False, at: int = 0
    ) -> Delivery:
        delivery = Delivery(
            partition,
            DeliveryStart.new(Progress.at(at)),
            KeyRanges(hashes) or ALL_HASHES,
            explicit=explicit,
        )
        self.deliveries[partition] = delivery
        return delivery


class Run:
    """A consumer that calls, and takes its time."""

    def __init__(self, *, explicit: bool = False, is_timed: bool = True) -> None:
        self.clock = Clock()
        self.owned = Owned()
        self.explicit = explicit
        self.meter = LoadMeter(
            SAID, 30.0, explicit=explicit, is_timed=is_timed, now=self.clock.monotonic
        )

    def start(self, partition: TopicPartition, *hashes: HashRange) -> None:
        self.owned.start(partition, *hashes, explicit=self.explicit)
        self.meter.look(self.owned.deliveries, self.owned.end)

    def receive(
        self, partition: TopicPartition, offsets: Iterable[int], keys: list[bytes]
    ) -> Chunk:
        """A call returns these records."""
        self.meter.called(continues=False)
        numbers = list(offsets)
        batch = pa.record_batch(
            {
                "key": pa.array([keys[i % len(keys)] for i in range(len(numbers))], pa.binary()),
                "offset": pa.array(numbers, pa.int64()),
            }
        )
        chunk = Chunk(partition, batch)
        self.meter.begun(chunk)
        self.meter.returned(partition)
        self.owned.deliveries[partition].hand_out(chunk, numbers[-1] + 1)
        return chunk

    def work(self, seconds: float) -> None:
        self.clock.sleep(seconds)

    def waits(self, seconds: float) -> None:
        """The next call finds nothing for so long."""
        self.meter.called(continues=False)
        self.clock.sleep(seconds)
        self.meter.look(self.owned.deliveries, self.owned.end)

    def loads(self) -> dict[TopicPartition, tuple[RangeObservation, ...]]:
        return dict(self.meter.report().loads)


def test_time_between_two_calls_is_work_and_waiting_is_not() -> None:
    run = Run()
    run.start(T0, LOWER)
    keys = [b"a", b"b"]
    run.receive(T0, range(10, 20), keys)
    run.work(3.0)
    run.receive(T0, range(30, 40), keys)
    run.work(2.0)
    run.waits(10.0)
    (seen,) = run.loads()[T0]
    assert (seen.hashes, seen.records, seen.offsets, seen.seconds) == (LOWER, 20, 40, 5.0)
    assert set(seen.sample) <= {key_hash(key, 0) for key in keys}
    assert run.meter.report().range_assignor == "adaptive"


def test_a_call_that_waits_for_more_records_does_not_work_meanwhile() -> None:
    run = Run()
    run.start(T0)
    run.receive(T0, range(10), [b"a"])
    run.meter.called(continues=True)
    run.clock.sleep(5.0)
    run.meter.returned(None)
    run.work(2.0)
    run.waits(1.0)
    (seen,) = run.loads()[T0]
    assert (seen.records, seen.seconds) == (10, 2.0)


def test_time_is_shared_out_by_records() -> None:
    run = Run()
    run.start(T0)
    run.start(T1)
    for partition, count in ((T0, 30), (T1, 10)):
        run.meter.returned(partition)
        chunk = Chunk(partition, pa.record_batch({"offset": pa.array(range(count), pa.int64())}))
        run.meter.begun(chunk)
        run.owned.deliveries[partition].hand_out(chunk, count)
        run.meter.called(continues=True)
    run.work(8.0)
    run.waits(5.0)
    seen = {partition: observed for partition, (observed,) in run.loads().items()}
    assert [(seen[tp].records, seen[tp].seconds) for tp in (T0, T1)] == [(30, 6.0), (10, 2.0)]
    assert seen[T0].sample == ()


def test_what_a_cancelled_call_had_collected_counts_once() -> None:
    """It goes back, and the next calls return it."""
    run = Run()
    run.start(T0)
    delivery, keys = run.owned.deliveries[T0], [b"a", b"b"]
    delivery.collect()
    run.receive(T0, range(10), keys)
    run.meter.called(continues=True)
    run.work(1.5)
    run.meter.look(run.owned.deliveries, run.owned.end)
    run.meter.returned(T0)
    delivery.take_back()
    run.waits(5.0)
    run.receive(T0, range(10), keys)
    run.receive(T0, range(10, 14), keys)
    run.work(2.0)
    run.waits(10.0)
    (seen,) = run.loads()[T0]
    assert (seen.records, seen.offsets, seen.seconds) == (14, 14, 2.0)


def test_explicit_mode_counts_the_time_in_which_something_is_in_work() -> None:
    run = Run(explicit=True)
    run.start(T0)
    chunk = run.receive(T0, range(10), [b"a"])
    for _ in range(4):
        run.waits(1.0)
    chunk.acknowledged[:] = b"\1" * 10
    for _ in range(6):
        run.waits(1.0)
    (seen,) = run.loads()[T0]
    assert seen.records == 10
    # The first second is not seen to begin, and the last one counts by half.
    assert seen.seconds == 3.5


def test_explicit_mode_acknowledged_before_the_next_call() -> None:
    run = Run(explicit=True)
    run.start(T0)
    for first in range(0, 30, 10):
        chunk = run.receive(T0, range(first, first + 10), [b"a"])
        run.work(2.0)
        chunk.acknowledged[:] = b"\1" * 10
    run.waits(4.0)
    assert run.loads()[T0][0].seconds == 6.0


def test_explicit_mode_counts_no_time_twice() -> None:
    run = Run(explicit=True)
    run.start(T0)
    run.receive(T0, range(10), [b"a"])
    for first in range(10, 60, 10):
        run.work(1.0)
        run.waits(1.0)
        run.receive(T0, range(first, first + 10), [b"a"])
        run.meter.look(run.owned.deliveries, run.owned.end)
    run.work(1.0)
    run.waits(1.0)
    (seen,) = run.loads()[T0]
    assert 11.0 <= (seen.seconds or 0) <= 12.0


def test_with_transactions_records_count() -> None:
    run = Run(is_timed=False)
    run.start(T0)
    run.receive(T0, range(10), [b"a"])
    run.work(4.0)
    run.waits(6.0)
    assert run.loads()[T0][0].seconds is None


def test_a_chunk_that_takes_longer_than_a_window_is_sampled_in_each() -> None:
    """A slow range: its records are sampled when they are handed out."""
    run = Run()
    run.start(T0)
    keys = [str(i).encode() for i in range(200)]
    offsets = pa.array(range(200), pa.int64())
    chunk = Chunk(T0, pa.record_batch({"key": pa.array(keys), "offset": offsets}))
    run.meter.begun(chunk)
    rows = run.owned.deliveries[T0].begin(chunk, 200)
    for _ in range(200):
        run.meter.returned(T0)
        next(rows.messages)
        run.work(1.0)
        run.waits(0.0)
    (seen,) = run.loads()[T0]
    assert 30 <= seen.records <= 61
    assert seen.seconds == seen.records
    assert set(seen.sample) == {key_hash(key, 0) for key in keys[200 - seen.records :]}


def test_what_was_long_ago_does_not_count() -> None:
    run = Run()
    run.start(T0)
    run.receive(T0, range(1000), [b"old"])
    run.work(20.0)
    for _ in range(4):
        run.waits(31.0)
    run.receive(T0, range(1000, 1010), [b"new"])
    run.work(1.0)
    run.waits(1.0)
    (seen,) = run.loads()[T0]
    assert (seen.records, seen.offsets, seen.seconds) == (10, 10, 1.0)
    assert set(seen.sample) == {key_hash(b"new", 0)}


@pytest.mark.parametrize("old", [10, 4000])
def test_a_sample_of_two_windows_has_of_each_as_many_as_its_records(old: int) -> None:
    run = Run()
    run.start(T0)
    run.receive(T0, range(old), [b"old"])
    run.waits(31.0)
    run.receive(T0, range(old, old + 1000), [b"new"])
    run.waits(1.0)
    (seen,) = run.loads()[T0]
    share = seen.sample.count(key_hash(b"old", 0)) / len(seen.sample)
    assert share == pytest.approx(old / (old + 1000), abs=0.03)


def test_what_has_changed_is_measured_anew_and_first_of_all_for_a_while() -> None:
    run = Run()
    run.start(T0)
    run.start(T1)
    run.receive(T0, range(10), [b"a"])
    run.work(10.0)
    run.waits(0.5)
    assert run.loads().keys() == {T0, T1}
    run.owned.start(T0, LOWER, at=10)
    del run.owned.deliveries[T1]
    run.waits(1.5)
    assert run.loads() == {}
    run.waits(5.0)
    assert run.loads() == {T0: (RangeObservation(LOWER, 0, 0, 0.0, ()),)}
    run.owned.start(T0, LOWER, at=50)  # the same hashes, under another claim
    run.waits(5.0)
    assert run.loads()[T0][0].offsets == 40


def test_how_far_a_consumer_is_behind() -> None:
    run = Run()
    run.start(T0)
    run.start(T1)
    run.owned.ends[T0] = 70
    run.receive(T0, range(10), [b"a"])
    run.waits(2.0)
    assert run.meter.report().lags == ((T0, 60),)


def test_it_says_how_long_each_load_was_observed() -> None:
    run = Run()
    run.start(T1)
    run.waits(20.0)
    run.start(T0)
    run.waits(7.0)
    report = run.meter.report()
    assert [partition for partition, _ in report.loads] == [T0, T1]
    assert report.spans == (7.0, 27.0)
    run.waits(30.0)  # windows of 30 s, of which there are two
    assert run.meter.report().spans == (37.0, 57.0)
    run.waits(30.0)
    assert run.meter.report().spans == (30.0, 30.0)


def test_a_report_is_bounded() -> None:
    run = Run()
    many = [TopicPartition("t", number) for number in range(40)]
    for partition in many:
        run.start(partition)
        run.receive(partition, range(500), [str(i).encode() for i in range(500)])
        run.work(0.01 * (1 + partition.partition))
    run.waits(6.0)
    loads = run.meter.report().loads
    assert [partition.partition for partition, _ in loads] == list(range(24, 40))
    assert sum(len(seen.sample) for _, observed in loads for seen in observed) <= 128
    assert all(0 <= h < HASH_SPACE for _, (seen,) in loads for h in seen.sample)


def test_who_observes_and_was_interrupted_keeps_nobody_from_a_report() -> None:
    """A signal handler may wait for what the session holds, which asks for the report."""
    run = Run()
    run.start(T0)
    run.owned.ends[T0] = 7
    run.work(1.0)
    run.meter.look(run.owned.deliveries, run.owned.end)
    last = run.meter.report()
    assert last.lags == ((T0, 7),)
    with run.meter._lock:
        reported = begin(run.meter.report, "reports", lambda: None)
        assert reported.result(WAIT_S) == last
    assert run.meter.report() == last
