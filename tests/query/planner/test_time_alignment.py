"""``maxTimeAhead``: what is read of each range and partition, in event time.

The oracle is Spark's watermark: the latest timestamp of the batches before, less a delay. With a
delay of ``maxTimeAhead``, no record may come behind it.
"""

import logging
import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given
from hypothesis import strategies as st

from kshare.core.checkpoint import decode
from kshare.core.progress import Progress, TopicPartition
from tests.support.effort import examples
from tests.support.planner import KEYS, T0, Log, Query

T1 = TopicPartition("t", 1)
MINUTE = 60_000
DAY = 86_400_000


class Watermark(Query):
    """A query with a watermark behind it."""

    def __init__(self, log: Log, delay_ms: int, **given: str) -> None:
        self.delay_ms = delay_ms
        self.latest = 0
        self.late: list[tuple[TopicPartition, int]] = []
        self.batches = 0
        super().__init__(log, **given)

    def trigger(self, max_offsets: int | None = None) -> Any:
        before = len(self.delivered)
        slices = super().trigger(max_offsets)
        new = self.delivered[before:]
        times = {place: self.log.timestamp(*place) for place in new}
        mark = self.latest - self.delay_ms
        self.late += [place for place, ms in times.items() if ms < mark]
        self.latest = max([*times.values(), self.latest])
        self.batches += bool(new)
        return slices

    def run_through(self, max_offsets: int | None = None) -> "Watermark":
        """Batches until there is nothing new; each of them makes progress."""
        for _ in range(10_000):
            before = self.at
            self.trigger(max_offsets)
            if self.at == before:
                break
        self.check_all()
        return self


def filled(*partitions: Iterable[int], hot: float = 0.0, seed: int = 1) -> Log:
    """A log of partitions with records at these times; a share of them is of one key."""
    log, chance = Log(len(partitions)), random.Random(seed)
    for number, times in enumerate(partitions):
        for ms in times:
            key = KEYS[0] if chance.random() < hot else chance.choice(KEYS)
            log.append(TopicPartition("t", number), key, ms)
    return log


# -- the laws -------------------------------------------------------------------------------------

option_sets = st.fixed_dictionaries(
    {},
    optional={
        "keyRanges": st.integers(1, 4).map(str),
        "maxRecordsPerTask": st.integers(1, 30).map(str),
        "targetTaskDuration": st.sampled_from(["1s", "10s"]),
        "rangeAssignor": st.sampled_from(["round-robin", "lag-weighted", "adaptive"]),
        "maxOffsetsAhead": st.integers(1, 60).map(str),
        "maxRangesInCheckpoint": st.integers(1, 5).map(str),
    },
)
gaps = st.lists(st.integers(0, 30), min_size=1, max_size=40)
rising = st.lists(st.tuples(st.integers(0, 500), gaps), min_size=1, max_size=3)
law = examples(120, suppress_health_check=[HealthCheck.too_slow])


def times_of(start: int, steps: list[int]) -> list[int]:
    times = []
    for step in steps:
        start += step
        times.append(start)
    return times


@law
@given(rising, option_sets, st.integers(1, 120), st.none() | st.integers(1, 30), st.data())
def test_no_record_comes_behind_a_watermark_of_that_delay(
    partitions: list[tuple[int, list[int]]],
    options: dict[str, str],
    ahead: int,
    max_offsets: int | None,
    data: st.DataObject,
) -> None:
    log = filled(*(times_of(*each) for each in partitions), seed=data.draw(st.integers(0, 9)))
    log.compacted = data.draw(st.booleans())
    query = Watermark(log, ahead, maxTimeAhead=f"{ahead}ms", **options)
    query.pace = lambda key: 3.0 if key == KEYS[0] else 0.01
    query.loss = data.draw(st.sampled_from([0.0, 0.5, 1.0]))
    query.run_through(max_offsets)
    assert query.late == []


@law
@given(rising, option_sets, st.integers(1, 60), st.integers(1, 60), st.data())
def test_disorder_within_a_partition_adds_to_the_delay(
    partitions: list[tuple[int, list[int]]],
    options: dict[str, str],
    ahead: int,
    disorder: int,
    data: st.DataObject,
) -> None:
    back = st.integers(0, disorder)
    times = [[max(ms - data.draw(back), 0) for ms in times_of(*each)] for each in partitions]
    query = Watermark(filled(*times), ahead + disorder, maxTimeAhead=f"{ahead}ms", **options)
    query.run_through()
    assert query.late == []


@law
@given(
    st.lists(st.lists(st.integers(-1, 2 * DAY), max_size=30), min_size=1, max_size=3),
    option_sets,
    st.integers(1, 2 * DAY),
    st.none() | st.integers(1, 30),
)
def test_whatever_the_timestamps_are_everything_is_read(
    partitions: list[list[int]],
    options: dict[str, str],
    ahead: int,
    max_offsets: int | None,
) -> None:
    log = filled(*partitions)
    query = Watermark(log, ahead, maxTimeAhead=f"{ahead}ms", **options)
    query.today = DAY / 1000  # some records are in the future
    query.run_through(max_offsets)


@law
@given(
    rising,
    option_sets,
    st.integers(1, 120),
    st.integers(1, 4),
    st.sampled_from(["compaction", "retention", "transactions", "parked keys"]),
    st.sets(st.sampled_from(KEYS), min_size=1),
    st.data(),
)
def test_what_is_held_back_and_is_empty_then_holds_nobody(
    partitions: list[tuple[int, list[int]]],
    options: dict[str, str],
    ahead: int,
    when: int,
    what: str,
    keys: set[bytes],
    data: st.DataObject,
) -> None:
    """Ranges, or whole partitions, wait for their time, and lose what they have waited for."""
    log = filled(*(times_of(start, steps) for start, steps in partitions))
    log.compacted = what == "compaction"
    more = {"failOnDataLoss": "false", "kafka.isolation.level": "read_committed"}
    few = {"keyRanges": "2", "maxRecordsPerTask": "3"}  # else little is pending then
    query = Watermark(log, ahead, maxTimeAhead=f"{ahead}ms", **few | options | more)
    for _ in range(when):
        query.trigger()
    pending = {(tp, at) for tp, rows in log.keys.items() for at in range(len(rows))} - set(
        query.delivered
    )
    of_keys = {at for tp, at in pending if log.keys[tp][at] in keys}
    match what:
        case "compaction":
            log.vanished |= of_keys
        case "transactions":
            log.aborted |= of_keys
        case "parked keys":
            query.parking.keys |= {("t", key) for key in keys}
        case "retention":
            for tp, rows in log.keys.items():
                log.first[tp] = data.draw(st.integers(0, len(rows)))
    left = {
        (tp, at)
        for tp, at in pending
        if at not in log.vanished | log.aborted
        and at >= log.first[tp]
        and ("t", log.keys[tp][at]) not in query.parking.keys
    }
    times = [log.timestamp(*place) for place in pending]
    if left < pending and max(times) > min(times) + ahead:
        event("some of what was held back is gone")
    before = None
    while before != query.at:
        before = query.at
        query.trigger()
    assert left <= set(query.delivered)
    assert query.late == []
    query.check_order()
    if what != "parked keys":
        assert decode(query.at).progress == {
            tp: Progress.at(len(rows)) for tp, rows in log.keys.items()
        }


@law
@given(rising, option_sets, st.integers(1, 120), st.integers(1, 5))
def test_a_batch_that_is_planned_again_reads_the_same(
    partitions: list[tuple[int, list[int]]], options: dict[str, str], ahead: int, when: int
) -> None:
    log = filled(*(times_of(*each) for each in partitions))
    query = Watermark(log, ahead, maxTimeAhead=f"{ahead}ms", **options)
    for _ in range(when):
        query.trigger()
    end = query.planner.latest_offsets(query.at, None)
    if end == query.at:
        return
    planned = [(each.slice, each.max_records) for each in query.planned(end)]
    query.restart(maxTimeAhead="off")  # what is planned is in the dict, whatever the options are
    log.append(T0, KEYS[1], 5 * DAY)
    if "rangeAssignor" not in options:
        assert [(each.slice, each.max_records) for each in query.planned(end)] == planned


# -- examples -------------------------------------------------------------------------------------


def hours(count: int, begin: int = 0, end: int = 3 * 60) -> list[int]:
    """Times, evenly from a minute to a minute."""
    return [MINUTE * begin + number * MINUTE * (end - begin) // count for number in range(count)]


LAYOUTS: dict[str, tuple[Log, dict[str, str], int | None]] = {
    "ranges with a limit": (
        filled(hours(3600), hot=0.6),
        {"keyRanges": "4", "maxRecordsPerTask": "100"},
        None,
    ),
    "one partition with ten times the records": (
        filled(hours(2000), hours(200), hours(200)),
        {"maxRecordsPerTask": "100"},
        None,
    ),
    "partitions of other hours": (filled(hours(900, 0, 90), hours(900, 90, 180)), {}, 180),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_are_late_without_it_and_none_with_it(name: str) -> None:
    log, options, max_offsets = LAYOUTS[name]
    without = Watermark(log, 10 * MINUTE, maxTimeAhead="off", **options).run_through(max_offsets)
    assert len(without.late) > 100
    aligned = Watermark(log, 10 * MINUTE, maxTimeAhead="10m", **options).run_through(max_offsets)
    assert aligned.late == []
    assert aligned.batches <= 1.5 * without.batches


def test_a_batch_that_leaves_nothing_behind_is_not_cut_and_asks_nothing() -> None:
    query = Watermark(filled(hours(900, 0, 90), hours(900, 90, 180)), 0, maxTimeAhead="1m")
    query.run_through()
    assert query.batches == 1
    assert (query.times.passes, query.times.looks) == (0, 0)


def test_it_asks_once_a_trigger_for_all_partitions() -> None:
    log = filled(*(hours(300) for _ in range(5)))
    query = Watermark(log, 10 * MINUTE, maxTimeAhead="10m", maxRecordsPerTask="50")
    query.trigger()
    assert query.times.passes == 1


def test_ranges_that_wait_are_not_planned_for_a_few_records() -> None:
    tasks: dict[str, list[int]] = {"10m": [], "off": []}
    for ahead, counts in tasks.items():
        query = Watermark(
            filled(hours(3600), hot=0.6),
            10 * MINUTE,
            maxTimeAhead=ahead,
            keyRanges="4",
            maxRecordsPerTask="10",
        )
        while slices := query.trigger():
            counts.append(len(slices))
        query.check_all()
    assert len(tasks["10m"]) == len(tasks["off"])
    assert sum(tasks["10m"]) < 2 * len(tasks["10m"])  # of 4


def test_a_slow_range_sets_the_pace_and_not_the_number_of_batches() -> None:
    def read(ahead: str) -> Watermark:
        query = Watermark(
            filled(hours(9000)),
            10 * MINUTE,
            maxTimeAhead=ahead,
            keyRanges="4",
            targetTaskDuration="10s",
        )
        query.pace = lambda key: 0.5 if key == KEYS[0] else 0.0001
        return query.run_through()

    aligned, without = read("10m"), read("off")
    assert len(without.late) > len(aligned.late) == 0
    assert aligned.batches <= 1.5 * without.batches


def test_a_partition_without_records_holds_nothing_back() -> None:
    log = filled(hours(300), [], hours(300))
    query = Watermark(log, 10 * MINUTE, maxTimeAhead="10m", maxRecordsPerTask="50")
    assert query.run_through().late == []


def test_pending_offsets_without_records_hold_nothing_back() -> None:
    log = filled(hours(300), hours(40, 0, 1))
    log.aborted = set(range(40))  # of both partitions: of the second, nothing is left
    query = Watermark(
        log,
        10 * MINUTE,
        maxTimeAhead="10m",
        maxRecordsPerTask="50",
        **{"kafka.isolation.level": "read_committed"},
    )
    for _ in range(3):
        query.trigger()
    assert query.late == []
    assert max(offset for tp, offset in query.delivered if tp == T0) >= 150


def test_a_processed_outlier_does_not_pin_the_partition() -> None:
    """The broker's index stops at it for good; then the log is looked at."""
    early = [*hours(20, 0, 10), 170 * MINUTE]
    log = filled([*early, *hours(300, 10, 180)], hours(300))
    log.keys[T1], kept = [], log.keys[T1]
    query = Watermark(log, 10 * MINUTE, maxTimeAhead="off", maxRecordsPerTask="21")
    query.trigger()  # the outlier is read, without the option
    log.keys[T1] = kept
    query.restart(maxTimeAhead="10m")
    query.latest, far = 0, 0
    while query.trigger():
        times = {tp: [0] for tp in (T0, T1)}
        for tp, offset in query.delivered[len(early) :]:
            times[tp].append(log.timestamp(tp, offset))
        far = max(far, abs(max(times[T0]) - max(times[T1])))
    query.check_all()
    assert query.times.looks > 0
    assert query.late == []
    assert far <= 25 * MINUTE


@pytest.mark.parametrize("to", [170, 400], ids=["a bound amid the log", "none of it is too late"])
def test_behind_a_processed_outlier_the_log_is_looked_at_once(to: int) -> None:
    """However many batches record limits make of it."""
    start, *rest = hours(1000, 0, to)
    log = filled([start, (to + 100) * MINUTE, *rest], hours(20, 0, to))
    kept = log.keys
    log.keys = {T0: kept[T0][:2], T1: []}
    query = Watermark(log, 10 * MINUTE, maxTimeAhead="off", maxRecordsPerTask="10")
    query.trigger()  # the outlier is read, without the option
    log.keys = kept
    query.restart(maxTimeAhead="10m" if to == 170 else "350m")
    query.latest = 0
    while query.trigger():
        pass
    query.check_all()
    assert query.times.looks > 10
    assert query.times.looked_at < 1000 + 2 * query.times.looks


@pytest.mark.parametrize("max_offsets", [None, 20])
def test_what_was_cut_is_not_waited_for(max_offsets: int | None) -> None:
    """It is there, and ``minOffsetsPerTrigger`` waits for what is not: 15 minutes a batch."""
    log = filled(hours(30), hours(30, 60, 240))
    query = Watermark(log, 10 * MINUTE, maxTimeAhead="10m", minOffsetsPerTrigger="20")
    plan = query.planner.latest_offsets
    while (end := plan(query.at, max_offsets, may_wait=True)) != query.at:
        query.planner.tasks(query.at, end)
        query.at = end
    assert sum(query.at["t"].values()) == 60
    log.append(T0, KEYS[0], 240 * MINUTE)
    assert plan(query.at, max_offsets, may_wait=True) == query.at  # what is new is


def test_timestamps_in_the_future_wait_until_all_others_are_read() -> None:
    log = filled([*hours(50, 0, 60), 400 * MINUTE, 401 * MINUTE], hours(300))
    query = Watermark(log, 10 * MINUTE, maxTimeAhead="10m", maxRecordsPerTask="40")
    query.today = 180 * 60.0
    query.run_through()
    assert query.late == []
    order = [query.log.timestamp(*place) for place in query.delivered]
    assert min(order.index(400 * MINUTE), order.index(401 * MINUTE)) > len(order) - 60


def test_records_without_a_timestamp_hold_nothing_back() -> None:
    log = filled([-1] * 200, hours(300))
    query = Watermark(log, 10 * MINUTE, maxTimeAhead="10m", maxRecordsPerTask="50")
    query.trigger()
    assert {tp for tp, _ in query.delivered} == {T0, T1}
    query.run_through()
    assert query.batches == 6


def test_parked_keys_hold_nothing_back_and_are_named(caplog: pytest.LogCaptureFixture) -> None:
    log = filled(hours(600))
    query = Watermark(log, 10 * MINUTE, maxTimeAhead="10m", keyRanges="2", maxRecordsPerTask="50")
    query.parking.keys.add(("t", KEYS[0]))
    with caplog.at_level(logging.WARNING, "kshare.planner"):
        while query.trigger():
            pass
    assert caplog.text.count("t b'key-0'") == 1
    assert query.late == []
    assert len(query.delivered) == sum(key != KEYS[0] for key in log.keys[T0])


def test_compacted_topics_are_cut_too() -> None:
    log = filled(hours(600), hours(60))
    log.compacted = True
    query = Watermark(log, 10 * MINUTE, maxTimeAhead="10m", maxRecordsPerTask="50")
    assert query.run_through().late == []


# -- the warning ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({"maxRecordsPerTask": "9"}, 1),
        ({"targetTaskDuration": "9s"}, 1),
        ({"maxRecordsPerTask": "9", "maxTimeAhead": "off"}, 0),
        ({"maxRecordsPerTask": "9", "maxTimeAhead": "10m"}, 0),
        ({"keyRanges": "4"}, 0),
    ],
)
def test_record_limits_without_it_are_warned_of_at_each_start(
    options: dict[str, str], warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "kshare.planner"):
        query = Watermark(filled(hours(30)), 0, **options).run_through()
        assert caplog.text.count('.option("maxTimeAhead", "10m")') == warned
        query.restart()
    assert caplog.text.count('.option("maxTimeAhead", "10m")') == 2 * warned
