"""The pace of batches beside a slow key, with the adaptive assignor, in simulated time."""

import math
import random
from bisect import bisect_left, bisect_right

import pytest

from kshare.core.checkpoint import BatchOffsets
from kshare.core.hashing import HashRange, key_hash
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Rectangle, Slice, TopicPartition
from kshare.core.slice_end import SliceEnd
from kshare.core.slicing import PartitionLoad, RangeRequest
from kshare.core.tasks import PlannedSlice, Ticket
from kshare.monitor.report import decode_report
from kshare.options import parse_options
from kshare.query.planner.batch_history import RecentBatch
from kshare.query.planner.rate_controller import RateController
from kshare.ranges.adaptive import adaptive
from tests.support.planner import KEYS, T0, Feedback, Log, grown
from tests.support.planner import Query as WholeQuery

PLACE = TopicPartition("t", 0)
TARGET = 5.0
SLOW = key_hash(b"slow", 0)
RECORDS = 400_000


class Query:
    """8 ranges of a topic with 1,000 keys, one of which has 1 % of the records and is slow."""

    def __init__(self, slow_seconds: float) -> None:
        chance = random.Random(1)
        hashes = [key_hash(b"key-%d" % number, 0) for number in range(1000)]
        self.log = [
            SLOW if offset % 100 == 7 else hashes[chance.randrange(1000)]
            for offset in range(RECORDS)
        ]
        self.sorted = sorted((hashed, offset) for offset, hashed in enumerate(self.log))
        self.hashes = sorted(set(self.log))
        self.slow_seconds = slow_seconds
        self.now = 0.0
        self.feedback = Feedback()
        parsed = parse_options(
            {
                "kafka.bootstrap.servers": "nowhere:9092",
                "subscribe": "t",
                "keyRanges": "8",
                "rangeAssignor": "adaptive",
                "targetTaskDuration": f"{TARGET:g}s",
            },
            streaming=True,
        )
        self.rates = RateController(parsed.options, self.feedback, clock=lambda: self.now)
        self.at: dict[int, int] = {}  # how many offsets of each hash are done
        self.taken: list[float] = []

    def run(self, batches: int) -> "Query":
        for number in range(batches):
            self._batch(f"batch-{number}")
        return self

    def _batch(self, name: str) -> None:
        load = PartitionLoad(
            "t",
            0,
            (Rectangle(OffsetRange(0, RECORDS), HashRange(0, 1 << 63)),),
            observed=self.rates.observed(PLACE),
        )
        parts = adaptive(RangeRequest((load,), key_ranges=8))[PLACE]
        limits = self.rates.limits({PLACE: parts})
        slices = [
            PlannedSlice(Slice("t", 0, (Rectangle(OffsetRange(0, RECORDS), part),)), limit)
            for part, limit in limits.by_range(PLACE)
        ]
        batch = RecentBatch(name, BatchOffsets({}), [], limits)
        batch.run = self.rates.start_batch(batch, slices)
        seconds = [self._task(number, task) for number, task in enumerate(batch.run.slices)]
        self.now += max(seconds)
        self.taken.append(max(seconds))
        self.rates.finish_batch(batch)

    def _task(self, number: int, task: PlannedSlice) -> float:
        """Read the next records of a range, in the order of the log."""
        hashes = task.slice.hashes
        first = bisect_left(self.sorted, (hashes.lo, -1))
        last = bisect_right(self.sorted, (hashes.hi, -1))
        offsets = sorted(
            offset for hashed, offset in self.sorted[first:last] if offset >= self.at.get(hashed, 0)
        )[: task.max_records]
        read = [self.log[offset] for offset in offsets]
        end = offsets[-1] + 1 if offsets else RECORDS
        of_range = slice(bisect_left(self.hashes, hashes.lo), bisect_left(self.hashes, hashes.hi))
        self.at |= dict.fromkeys(self.hashes[of_range], end)
        seconds = sum(self.slow_seconds if hashed == SLOW else 0.0001 for hashed in read)
        sample = tuple(sorted(read[:: max(len(read) // 256, 1)][:256]))
        assert task.ticket is not None
        held = task.ticket.hold
        told = SliceEnd(end, len(read), sample, seconds if held else None, held, self.now)
        self.feedback.told.setdefault(task.ticket.batch, {})[number] = told
        return seconds


def test_a_slow_key_holds_up_no_batch() -> None:
    """The first batch knows nothing: each later one keeps to its target, the split one too."""
    query = Query(0.1).run(7)
    assert query.taken[0] <= TARGET
    assert all(0.3 * TARGET <= seconds <= 1.5 * TARGET for seconds in query.taken[1:]), query.taken
    assert sum(seconds >= 0.8 * TARGET for seconds in query.taken) >= 4, query.taken


# -- with all of the planner ----------------------------------------------------------------------


def test_a_batch_takes_the_time_that_was_asked_for() -> None:
    log = grown(200_000)
    query = WholeQuery(log, targetTaskDuration="10s", keyRanges="3")
    query.pace = lambda key: 0.1

    def batch() -> float:
        before = query.now
        query.trigger()
        return query.now - before

    times = [batch() for _ in range(4)]
    assert 7 < times[3] < 13
    query.pace = lambda key: 0.01
    times = [batch() for _ in range(4)]
    assert 7 < times[3] < 13
    query.pace = lambda key: 0.001
    times = [batch() for _ in range(4)]
    assert 7 < times[3] < 13
    assert not all(query.feedback.held)  # to measure costs something


def test_a_slow_key_is_cut_out_and_the_others_run_at_their_own_speed() -> None:
    log = Log()
    chance = random.Random(3)
    log.grow(chance.choices(KEYS, k=20_000))
    slow = KEYS[4]
    query = WholeQuery(log, targetTaskDuration="5s", keyRanges="4", rangeAssignor="adaptive")
    query.pace = lambda key: 0.5 if key == slow else 0.001
    for _ in range(14):
        query.trigger()
    done = [log.keys[T0][offset] for _, offset in query.delivered]
    assert done.count(slow) < 400
    assert len(done) - done.count(slow) == sum(key != slow for key in log.keys[T0])
    query.check_order()


# -- what is shown, and nothing else goes by it ---------------------------------------------------


def shown(query: WholeQuery) -> list[tuple[int | None, float | None]]:
    """Records, and time per record, of the ranges in the progress event."""
    report = decode_report(query.planner.seen_offsets() or {})
    return [
        (range_.records, range_.seconds_per_record)
        for partition in report.values()
        for range_ in partition.ranges
    ]


def test_plain_ranges_show_records_and_times() -> None:
    """In batches from the second on; times in the second, and again a minute later."""
    log = Log()
    query = WholeQuery(log, keyRanges="3")
    query.pace = lambda key: 0.01
    events = []
    for _ in range(5):
        log.grow(KEYS * 3)
        query.trigger()
        query.now += 20.0
        log.grow(KEYS)  # so that the next trigger has a batch, which shows the last one
        query.planner.latest_offsets(query.at, None)
        events.append(shown(query))
    assert all(len(ranges) == 3 for ranges in events)
    counts = [sum(records or 0 for records, _ in ranges) for ranges in events]
    assert counts == [3 * len(KEYS)] + [4 * len(KEYS)] * 4
    times = [[each for _, each in ranges] for ranges in events]
    assert times == [[None] * 3, [pytest.approx(0.01)] * 3, [None] * 3, [None] * 3, times[4]]
    assert times[4] == [pytest.approx(0.01)] * 3
    query.drain()
    query.check_all()


def test_of_packed_tasks_either_all_ranges_are_shown_or_none() -> None:
    """In the first batch, tasks say only where they run, and do so for one range."""
    log = Log()
    query = WholeQuery(log, keyRanges="3", maxTasks="2")
    counts = []
    for _ in range(3):
        log.grow(KEYS * 3)
        query.trigger()
        log.grow(KEYS)
        query.planner.latest_offsets(query.at, None)
        counts.append([records for records, _ in shown(query)])
    assert [len(records) for records in counts] == [0, 3, 3]
    assert sum(records or 0 for records in counts[1]) == 4 * len(KEYS)


@pytest.mark.parametrize("max_tasks", ["2", "auto"])
def test_what_is_only_shown_does_not_undo_max_tasks(max_tasks: str) -> None:
    """A measured slice has a task of its own: times are not measured, records are shown."""
    log = Log()
    query = WholeQuery(log, keyRanges="6", maxTasks=max_tasks)
    query.pace = lambda key: 0.0001
    events = []
    for _ in range(5):
        log.grow(KEYS * 3)
        end = query.planner.latest_offsets(query.at, None)
        events.append(shown(query))
        tasks = query.planner.tasks(query.at, end)
        assert len(tasks) == (1 if max_tasks == "auto" else 2)
        query.now += max(sum(map(query.run, task.slices)) for task in tasks) + 20.0
        query.at = end
    assert not any(query.feedback.held)
    # In the first batch tasks say only where they run.
    for ranges in events[2:]:
        assert sum(records or 0 for records, _ in ranges) == 3 * len(KEYS)
        assert [seconds for _, seconds in ranges] == [None] * 6
    query.drain()
    query.check_all()


def test_tasks_that_cannot_report_are_not_asked_for_long() -> None:
    log = Log()
    query = WholeQuery(log, keyRanges="3")
    query.loss = 1.0
    asked = []
    for _ in range(6):
        log.grow(KEYS)
        asked.append([planned.ticket is not None for planned in query.trigger()])
    assert asked == [[True] * 3] * 3 + [[False] * 3] * 3
    assert query.planner.seen_offsets() == {"t": {"0": 6 * len(KEYS)}}


def test_whole_partitions_report_nothing() -> None:
    log = grown(50, partitions=2)
    query = WholeQuery(log)
    assert [planned.ticket for planned in query.trigger()] == [None, None]


@pytest.mark.parametrize(
    ("interval", "driver_seconds"),
    [(60.0, 0.0), (0.0, 20.0)],  # Trigger.ProcessingTime; what foreachBatch does, or a state store
)
@pytest.mark.parametrize("assignor", ["round-robin", "adaptive"])
def test_what_no_limit_makes_shorter_changes_none(
    interval: float, driver_seconds: float, assignor: str
) -> None:
    query = WholeQuery(
        grown(400_000),
        keyRanges="2",
        targetTaskDuration="10s",
        maxTimeAhead="off",
        rangeAssignor=assignor,
    )
    query.pace = lambda _: 0.005
    limits = []
    for _ in range(12):
        limits.append(max(planned.max_records or 0 for planned in query.trigger()))
        query.now += driver_seconds
        if interval:
            query.now = math.ceil(query.now / interval) * interval
    assert min(limits[2:]) >= 1_500  # 2,000 records take 10 s


class NoTimes(Feedback):
    """Workers that Spark uses again: they do not see when their tasks end."""

    def ticket(self, batch: str, number: int, *, hold: bool) -> Ticket:
        return super().ticket(batch, number, hold=False)


class BlindQuery(WholeQuery):
    make_feedback = NoTimes


@pytest.mark.parametrize(
    ("interval", "driver_seconds", "loss"),
    [
        (60.0, 0.0, 0.0),
        (20.0, 0.0, 1.0),
        (10.0, 0.0, 0.0),  # as long as the target
        (0.0, 20.0, 0.0),
        (0.0, 0.0, 0.0),
    ],
)
def test_what_no_limit_makes_shorter_changes_none_where_tasks_tell_no_times(
    interval: float, driver_seconds: float, loss: float
) -> None:
    query = BlindQuery(grown(80_000), keyRanges="2", targetTaskDuration="10s", maxTimeAhead="off")
    query.loss = loss
    query.pace = lambda _: 0.01
    limits = []
    for _ in range(14):
        limits.append(max(planned.max_records or 0 for planned in query.trigger()))
        query.now += driver_seconds
        if interval:
            query.now = math.ceil(query.now / interval) * interval
    del limits[10]  # which tries half the limit again
    assert min(limits[6:]) >= 500  # 1,000 records take 10 s
