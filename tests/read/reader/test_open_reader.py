"""Tasks of open batches: rows as they come, and ends that all attempts agree on."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from kshare.core.hashing import (
    ALL_HASHES,
    NO_HASHES,
    WHOLE,
    HashRange,
    KeyRanges,
    key_hash,
    split,
)
from kshare.core.live import NO_LATENCY, Latency
from kshare.core.open_batch import open_ranges, reached
from kshare.core.open_entry import LogPosition, OpenBatch, OpenRange
from kshare.core.progress import Progress, TopicPartition
from kshare.core.range_end import PARTS_MAX, EndKey, RangeEnd, RangeEnds
from kshare.core.tasks import OpenTask
from kshare.errors import DataLossError, KafkaError
from kshare.kafka.end_log import EndLog
from kshare.kafka.topics import RANGE_ENDS_TOPIC
from kshare.options import EARLIEST, SourceOptions
from kshare.options.frozen import FrozenMapping
from kshare.options.model import Assign
from kshare.read.reader import open_reader
from kshare.read.reader.batch_time import ANSWER_SECONDS
from kshare.read.reader.open_reader import OpenReader
from kshare.testing import FakeCluster
from tests.support.groups import group_config

HALVES = tuple(KeyRanges([half]) for half in split(WHOLE, 2))
RECORDS = [(f"k{number % 7}", f"v{number}") for number in range(60)]


class Seconds:
    """Time as a test sets it."""

    def __init__(self, step: float = 0.0) -> None:
        self.now = 0.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now

    def end(self) -> None:
        self.now = 1e6


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 2, RANGE_ENDS_TOPIC: 1}) as running:
        running.produce("orders", RECORDS, partition=0)
        yield running


def options_of(cluster: FakeCluster, **more: Any) -> SourceOptions:
    kafka = group_config(cluster.bootstrap_servers).kafka
    topics = Assign(FrozenMapping({}))
    return SourceOptions(topics=topics, kafka=kafka, starting=EARLIEST, **more)


def task_of(
    *,
    partitions: int = 1,
    begin: int = 0,
    ranges: tuple[KeyRanges, ...] = (ALL_HASHES,),
    name: str = "b",
) -> OpenTask:
    tps = [TopicPartition("orders", number) for number in range(partitions)]
    at = LogPosition(0, 0)
    batch = OpenBatch(name, 60_000, RANGE_ENDS_TOPIC, at, dict.fromkeys(tps, ranges))
    made = open_ranges(batch, {tp: Progress.at(begin) for tp in tps})
    return OpenTask(tuple(made), batch.milliseconds, RANGE_ENDS_TOPIC, at)


def offsets_of(batch: pa.RecordBatch) -> list[int]:
    found: list[int] = batch.column("offset").to_pylist()
    return found


def take(batches: Iterator[pa.RecordBatch], count: int) -> list[int]:
    """The offsets of the next records: at least so many, in whole batches."""
    found: list[int] = []
    while len(found) < count:
        found += offsets_of(next(batches))
    return found


def rest(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in offsets_of(batch)]


def attempt(cluster: FakeCluster, task: OpenTask, ends: EndLog, **more: Any) -> OpenReader:
    return OpenReader(task, options_of(cluster), ends, **more)


def read_whole(cluster: FakeCluster, task: OpenTask, count: int) -> list[int]:
    """An attempt that ends when it has read so many records."""
    seconds = Seconds()
    with EndLog(cluster_kafka(cluster)) as ends:
        batches = attempt(cluster, task, ends, seconds=seconds).batches()
        found = take(batches, count)
        seconds.end()
        return found + rest(batches)


def cluster_kafka(cluster: FakeCluster) -> Any:
    return options_of(cluster).kafka


def reached_by(cluster: FakeCluster, task: OpenTask, partition: int) -> tuple[int, int]:
    """The lowest and the highest offset at which a partition's ranges end."""
    ends = ends_of(cluster, task).ends.items()
    found = [
        at for each, end in ends if each.partition.partition == partition for _, at in end.parts
    ]
    return min(found), max(found)


def ends_of(cluster: FakeCluster, task: OpenTask) -> RangeEnds:
    with EndLog(cluster_kafka(cluster)) as ends:
        return ends.read(task.log, task.ranges)


@pytest.mark.parametrize("ranges", [(ALL_HASHES,), HALVES], ids=["one range", "two ranges"])
def test_rows_come_as_they_are_written_until_the_time_is_over(
    cluster: FakeCluster, ranges: tuple[KeyRanges, ...]
) -> None:
    task, seconds = task_of(partitions=2, begin=10, ranges=ranges), Seconds()
    with EndLog(cluster_kafka(cluster)) as ends:
        batches = attempt(cluster, task, ends, seconds=seconds).batches()
        assert take(batches, 50) == list(range(10, 60))
        cluster.produce("orders", [("k", "later")] * 12, partition=1)  # its first 10 are read
        assert take(batches, 2) == [10, 11]
        seconds.end()
        assert rest(batches) == []
    found = ends_of(cluster, task)
    wanted = {0: 60, 1: 12}
    assert {each.id: wanted[each.id.partition.partition] for each in task.ranges} == {
        range_: offset for range_, end in found.ends.items() for _, offset in end.parts
    }
    after = reached(
        task.ranges,
        {TopicPartition("orders", number): Progress.at(10) for number in (0, 1)},
        found,
        lambda _: NO_HASHES,
    )
    assert [progress.stable for progress in after.values()] == [60, 12]


def test_it_says_where_it_is_and_how_late_records_are(cluster: FakeCluster) -> None:
    task, seconds = task_of(partitions=2, ranges=HALVES), Seconds()
    said = list[tuple[list[int], list[int], Latency]]()

    def says(positions: Sequence[int], ends: Sequence[int], latency: Latency, /) -> None:
        said.append(([*positions], [*ends], latency))

    with EndLog(cluster_kafka(cluster)) as ends:
        batches = attempt(cluster, task, ends, says=says, seconds=seconds).batches()
        take(batches, 60)
        assert said[0] == ([0] * 4, [0] * 4, NO_LATENCY)
        cluster.produce("orders", [("k", "later")] * 12, partition=1)
        take(batches, 12)
        seconds.now += 1
        cluster.produce("orders", [("k", "later")] * 12, partition=1)
        take(batches, 12)
        assert len(said) == 2
        seconds.end()
        assert rest(batches) == []
    at, log_ends, latency = said[-1]
    assert at == log_ends == [60, 60, 24, 24]
    assert (said[1][0], said[1][2].records) == ([60, 60, 12, 12], 72)
    assert latency.records == 84


def test_a_task_that_runs_again_reads_up_to_its_end(cluster: FakeCluster) -> None:
    task = task_of()
    assert read_whole(cluster, task, 60) == list(range(60))
    cluster.produce("orders", [("k", "later")] * 5, partition=0)
    with EndLog(cluster_kafka(cluster)) as ends:
        again = attempt(cluster, task, ends).batches()  # its time has just begun
        assert rest(again) == list(range(60))


def test_a_task_of_a_range_with_an_end_and_one_without_reads_both(cluster: FakeCluster) -> None:
    left, right = task_of(ranges=HALVES).ranges
    both = task_of(ranges=HALVES)
    first = read_whole(cluster, replace(both, ranges=(left,)), 1)
    cluster.produce("orders", RECORDS[:14], partition=0)
    wanted = [n for n, (key, _) in enumerate(RECORDS + RECORDS[:14]) if holds(right, key)]
    found = read_whole(cluster, both, len(first) + len(wanted))
    assert found == first + wanted


def holds(each: OpenRange, key: str) -> bool:
    return each.hashes.holds(key_hash(key.encode(), 0))


def test_an_attempt_that_has_read_further_than_another_one_fails(cluster: FakeCluster) -> None:
    """And the next one reads up to the end that counts."""
    task, seconds = task_of(), Seconds()
    with EndLog(cluster_kafka(cluster)) as ends:
        slow = attempt(cluster, task, ends, seconds=seconds).batches()
        assert take(slow, 60) == list(range(60))
        assert read_whole(cluster, task, 60) == list(range(60))
        cluster.produce("orders", [("k", "later")] * 5, partition=0)
        assert take(slow, 5) == list(range(60, 65))
        seconds.end()
        with pytest.raises(KafkaError, match=r"orders, partition 0: another attempt .* counts"):
            rest(slow)
    assert read_whole(cluster, task, 60) == list(range(60))


def test_an_attempt_that_is_behind_another_one_reads_on_to_its_end(cluster: FakeCluster) -> None:
    task, seconds = task_of(), Seconds()
    with EndLog(cluster_kafka(cluster)) as ends:
        slow = attempt(cluster, task, ends, seconds=seconds).batches()
        assert take(slow, 60) == list(range(60))
        cluster.produce("orders", [("k", "later")] * 5, partition=0)
        assert read_whole(cluster, task, 65) == list(range(65))
        cluster.produce("orders", [("k", "latest")] * 5, partition=0)
        seconds.end()
        assert rest(slow) == list(range(60, 65))


def test_a_generator_that_is_closed_proposes_nothing(cluster: FakeCluster) -> None:
    task = task_of()
    with EndLog(cluster_kafka(cluster)) as ends:
        batches = attempt(cluster, task, ends, seconds=Seconds()).batches()
        with closing(batches):
            assert take(batches, 60) == list(range(60))
        assert not ends_of(cluster, task).ends


def test_keys_that_are_parked_amid_a_batch_end_there(cluster: FakeCluster) -> None:
    task, seconds = task_of(), Seconds()
    hashes = KeyRanges.of_hashes([key_hash(b"k3", 0)])
    parked: dict[str, KeyRanges] = {}
    with EndLog(cluster_kafka(cluster)) as ends:
        now = [parked]
        reader = attempt(cluster, task, ends, seconds=seconds, parked=lambda: now[0])
        batches = reader.batches()
        assert take(batches, 60) == list(range(60))
        now[0] = {"orders": hashes, "others": ALL_HASHES}
        cluster.produce("orders", [("k3", "waits"), ("k4", "goes on")] * 2, partition=0)
        assert take(batches, 2) == [61, 63]
        now[0] = {}  # it stays parked until the batch ends: its end is a promise
        cluster.produce("orders", [("k3", "waits"), ("k4", "goes on")], partition=0)
        assert take(batches, 1) == [65]
        seconds.end()
        assert rest(batches) == []
    (end,) = ends_of(cluster, task).ends.values()
    assert end == RangeEnd(((hashes, 60), (ALL_HASHES - hashes, 66)))
    assert read_whole(cluster, task, 63) == [*range(60), 61, 63, 65]


def test_a_range_whose_keys_are_all_parked_waits_for_the_end(cluster: FakeCluster) -> None:
    task, seconds = task_of(), Seconds()
    now: list[Mapping[str, KeyRanges]] = [{}]
    with EndLog(cluster_kafka(cluster)) as ends:
        reader = attempt(cluster, task, ends, seconds=seconds, parked=lambda: now[0])
        batches = reader.batches()
        assert take(batches, 60) == list(range(60))
        now[0] = {"orders": ALL_HASHES}
        cluster.produce("orders", [("k", "waits")], partition=0)
        seconds.step = 1.5
        assert offsets_of(next(batches)) == []
        seconds.end()
        assert rest(batches) == []
    (end,) = ends_of(cluster, task).ends.values()
    assert end == RangeEnd.at(ALL_HASHES, 60)


def test_a_batch_in_which_an_end_gets_too_many_parts_ends_early(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time that keys are parked at another offset, the end has one part more."""
    monkeypatch.setattr(open_reader, "PARTS_MAX", 8)
    points = split(WHOLE, PARTS_MAX)
    late = next(f"k{n}" for n in range(10_000) if key_hash(b"k%d" % n, 0) >= points[-50].lo)
    now: list[Mapping[str, KeyRanges]] = [{}]
    with EndLog(cluster_kafka(cluster)) as ends:
        reader = attempt(cluster, task_of(), ends, seconds=Seconds(), parked=lambda: now[0])
        batches = reader.batches()
        assert take(batches, 60) == list(range(60))
        for count in range(1, 4):
            now[0] = {"orders": KeyRanges([HashRange(0, points[count].lo)])}
            cluster.produce("orders", [(late, "v")], partition=0)
            assert take(batches, 1) == [59 + count]
        now[0] = {"orders": KeyRanges([HashRange(0, points[4].lo)])}
        assert rest(batches) == []
    (end,) = ends_of(cluster, task_of()).ends.values()
    assert [offset for _, offset in end.parts] == [60, 61, 62, 63]


def test_where_nothing_comes_empty_batches_do(cluster: FakeCluster) -> None:
    """Whoever has gone is noticed so."""
    task, seconds = task_of(begin=60), Seconds(step=0.3)
    with EndLog(cluster_kafka(cluster)) as ends:
        batches = list(attempt(cluster, task, ends, seconds=seconds).batches())
    assert 10 < len(batches) < 60
    columns = options_of(cluster).column_names
    assert {(each.num_rows, tuple(each.schema.names)) for each in batches} == {(0, columns)}


def test_deleted_records_are_an_error_that_names_the_option(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.trim("orders", 0, 20)
    task, seconds = task_of(), Seconds()
    with EndLog(cluster_kafka(cluster)) as ends:
        with pytest.raises(DataLossError, match=r"orders-0.* set failOnDataLoss to false"):
            rest(attempt(cluster, task, ends).batches())
        options = options_of(cluster, fail_on_data_loss=False)
        batches = OpenReader(task, options, ends, seconds=seconds).batches()
        assert take(batches, 40) == list(range(20, 60))
        seconds.end()
        assert rest(batches) == []
    assert "Going on at 20 (failOnDataLoss is false)" in caplog.text


def test_a_log_that_ends_too_early_is_a_warning_without_fail_on_data_loss(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """As after an unclean election, or in a topic that was made again; also if it runs again."""
    both, seconds = task_of(partitions=2, begin=10), Seconds()  # partition 1 has no records
    both = replace(both, milliseconds=100_000_000)
    with EndLog(cluster_kafka(cluster)) as ends:
        with pytest.raises(DataLossError, match=r"orders-1.* beyond the end of the log"):
            rest(attempt(cluster, both, ends).batches())
        options = options_of(cluster, fail_on_data_loss=False)
        now: list[Mapping[str, KeyRanges]] = [{}]
        reader = OpenReader(both, options, ends, seconds=seconds, parked=lambda: now[0])
        batches = reader.batches()
        assert take(batches, 50) == list(range(10, 60))
        seconds.step = 0.5  # so that empty batches come
        while "No more of orders-1 is read" not in caplog.text:
            assert offsets_of(next(batches)) == []
        seconds.step = 0.0
        now[0] = {"orders": KeyRanges.of_hashes([key_hash(b"k3", 0)])}  # reads the others anew
        cluster.produce("orders", [("k", "v")], partition=0)
        assert take(batches, 1) == [60]
        seconds.now = 1e9
        assert rest(batches) == []
    after = [reached_by(cluster, both, number) for number in (0, 1)]
    assert after == [(60, 61), (10, 10)]
    assert caplog.text.count("orders-1: offset 10 is wanted, the log holds 0 to 0") == 1


def test_a_topic_that_is_deleted_is_a_warning_without_fail_on_data_loss(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A task without any partition waits for the end of its time."""
    task, seconds = replace(task_of(partitions=2), milliseconds=100_000_000), Seconds()
    options = options_of(cluster, fail_on_data_loss=False)
    options = replace(options, kafka=replace(options.kafka, api_timeout_ms=1_000))
    with EndLog(cluster_kafka(cluster)) as ends:
        batches = OpenReader(task, options, ends, seconds=seconds).batches()
        assert take(batches, 60) == list(range(60))
        cluster.fail_topic("orders", "UNKNOWN_TOPIC_OR_PART")
        cluster.fail("Fetch", ["UNKNOWN_TOPIC_OR_PART"] * 5)
        seconds.step = 0.5  # so that empty batches come
        while caplog.text.count("topic orders does not exist. No more of orders-") < 2:
            assert offsets_of(next(batches)) == []
        cluster.fail_topic("orders", "NO_ERROR")
        cluster.stop_failing("Fetch")
        cluster.produce("orders", [("k", "of another one")], partition=0)
        assert offsets_of(next(batches)) == []
        seconds.now = 1e9
        assert rest(batches) == []
    assert [reached_by(cluster, task, number) for number in (0, 1)] == [(60, 60), (0, 0)]


class Forgetful:
    """A log of ends that keeps nothing."""

    def read(self, _: LogPosition, ranges: Sequence[OpenRange]) -> RangeEnds:
        return RangeEnds({each.id: each.hashes for each in ranges})

    def append(self, ends: Mapping[EndKey, RangeEnd]) -> bool:
        self.keys = [*getattr(self, "keys", []), *ends]
        return True


def test_it_ends_by_the_clock_if_the_batch_says_so(cluster: FakeCluster) -> None:
    """A batch that runs again after that reads what had ended, and nothing else."""
    task, seconds = replace(task_of(), until_ms=100_000), Seconds()
    with EndLog(cluster_kafka(cluster)) as ends:
        early = attempt(cluster, task, ends, seconds=seconds, wall_clock=lambda: 99.0).batches()
        assert take(early, 60) == list(range(60))
        seconds.now += 1
        assert rest(early) == []
        late = replace(task_of(name="late"), until_ms=100_000)
        assert rest(attempt(cluster, late, ends, wall_clock=lambda: 100.0).batches()) == []
        again = attempt(cluster, task, ends, wall_clock=lambda: 100.0)
        assert rest(again.batches()) == list(range(60))


class SlowToLook(EndLog):
    """A log of ends that takes longer to read than batches last."""

    seconds: Seconds

    def read(self, position: LogPosition, ranges: Sequence[OpenRange]) -> RangeEnds:
        self.seconds.now += 1_000
        return super().read(position, ranges)


def test_time_begins_when_reading_does(cluster: FakeCluster) -> None:
    with SlowToLook(cluster_kafka(cluster)) as ends:
        ends.seconds = Seconds()
        task = replace(task_of(), until_ms=61_000_000)
        # The wall clock goes along: what is left of the time is what there is when reading begins.
        clocks: dict[str, Any] = {"seconds": ends.seconds, "wall_clock": lambda: ends.seconds.now}
        batches = attempt(cluster, task, ends, **clocks).batches()
        assert take(batches, 60) == list(range(60))
        ends.seconds.now += 60
        assert rest(batches) == []
        late = replace(task_of(name="late"), until_ms=1_500_000)
        assert rest(attempt(cluster, late, ends, **clocks).batches()) == []


def test_a_batch_that_is_shorter_than_a_round_trip_reads_what_is_there(
    cluster: FakeCluster,
) -> None:
    cluster.delay(1, 150)
    with EndLog(cluster_kafka(cluster)) as ends:
        task = replace(task_of(), milliseconds=1)
        assert rest(attempt(cluster, task, ends).batches()) == list(range(60))


def test_a_partition_that_nobody_answers_for_holds_the_time_for_so_long(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.move_leader("orders", 1, None)
    task, seconds = replace(task_of(partitions=2), milliseconds=100_000), Seconds()
    with EndLog(cluster_kafka(cluster)) as ends:
        batches = attempt(cluster, task, ends, seconds=seconds).batches()
        assert take(batches, 60) == list(range(60))
        seconds.now += ANSWER_SECONDS
        seconds.step = 1
        assert rest(batches) == []
    assert "orders-1: no broker has answered for 5 s" in caplog.text
    assert [reached_by(cluster, task, number) for number in (0, 1)] == [(60, 60), (0, 0)]


def test_a_log_that_does_not_keep_ends_is_named(cluster: FakeCluster) -> None:
    task, ends = task_of(), Forgetful()
    reader = OpenReader(task, options_of(cluster), ends, seconds=Seconds(step=30))
    with pytest.raises(KafkaError, match=f"{RANGE_ENDS_TOPIC}, partition 0, .* orders, partition"):
        rest(reader.batches())
    assert len(set(ends.keys)) == len(ends.keys) == 100


def test_ends_that_no_broker_takes_are_proposed_until_one_does(cluster: FakeCluster) -> None:
    """As while the log of ends has too few replicas in sync: for longer than 100 writes take."""
    task, options = task_of(), options_of(cluster)
    kafka = replace(options.kafka, retry_backoff_ms=1, retry_backoff_max_ms=1)
    with EndLog(kafka) as ends:
        seconds = Seconds()
        batches = OpenReader(task, replace(options, kafka=kafka), ends, seconds=seconds).batches()
        assert take(batches, 60) == list(range(60))
        cluster.fail("Produce", ["NOT_ENOUGH_REPLICAS"] * 120)
        seconds.end()
        assert rest(batches) == []
    assert reached_by(cluster, task, 0) == (60, 60)


def test_ends_that_no_broker_takes_in_time_are_an_error_with_the_cause(
    cluster: FakeCluster,
) -> None:
    kafka = replace(cluster_kafka(cluster), api_timeout_ms=1_000)
    with EndLog(kafka) as ends:
        seconds = Seconds()
        batches = attempt(cluster, task_of(), ends, seconds=seconds).batches()
        assert take(batches, 60) == list(range(60))
        cluster.fail("Produce", ["NOT_ENOUGH_REPLICAS"] * 1_000)
        seconds.end()
        with pytest.raises(KafkaError, match="in-sync replicas"):
            rest(batches)
