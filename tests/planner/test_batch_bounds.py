"""``maxBytesPerTrigger``: what a batch reads, in bytes of a log.

The oracle is a log of record batches of one record each, with sizes of any kind. A batch reads no
more bytes than the limit, or one record batch alone.

A trigger that waits for more to read.
"""

import random
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kshare.core.progress import TopicPartition
from kshare.options import parse_options
from kshare.planner.batch_bounds import TriggerGate
from tests.support.clock import Clock
from tests.support.planner import KEYS, T0, Log, Query

T1 = TopicPartition("t", 1)


class Bounded(Query):
    """A query with a limit of bytes, which each batch is checked by."""

    def __init__(self, log: Log, most: int, **given: str) -> None:
        self.most, self.latest = most, -1
        self.delay_ms: int | None = None
        self.sizes: list[int] = []
        super().__init__(log, **given)
        self.max_bytes = most

    def step(self, max_offsets: int | None = None) -> Any:
        before = len(self.delivered)
        slices = self.trigger(max_offsets)
        places = self.delivered[before:]
        sizes = [self.log.size(*place) for place in places]
        assert sum(sizes) <= max(self.most, *sizes, 0)
        times = [self.log.timestamp(*place) for place in places]
        if self.delay_ms is not None:
            assert all(ms >= self.latest - self.delay_ms for ms in times)
        self.latest = max([*times, self.latest])
        if places:
            self.sizes.append(sum(sizes))
        return slices

    def drain_others(self, max_offsets: int | None = None) -> None:
        """Batches until there is nothing new but what is parked."""
        before = None
        while before != self.at:
            before = self.at
            self.step(max_offsets)
        parked = {key for _, key in self.parking.keys}
        read = set(self.delivered)
        for tp, keys in self.log.keys.items():
            assert all((tp, at) in read for at, key in enumerate(keys) if key not in parked)

    def run_through(self, max_offsets: int | None = None) -> "Bounded":
        """Batches until there is nothing new."""
        before = None
        while before != self.at:
            before = self.at
            self.step(max_offsets)
        self.check_all()
        return self


sizes = st.lists(st.integers(1, 300), min_size=1, max_size=40)
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
law = settings(suppress_health_check=[HealthCheck.too_slow])


def log_of(*partitions: list[int], seed: int = 1) -> Log:
    """A log of partitions, with record batches of these sizes."""
    log, chance = Log(len(partitions)), random.Random(seed)
    for number, each in enumerate(partitions):
        tp = TopicPartition("t", number)
        for at, size in enumerate(each):
            key = KEYS[0] if chance.random() < 0.5 else chance.choice(KEYS)
            log.append(tp, key, 10 * at + number)
            log.sizes[tp, at] = size
    return log


@law
@given(
    st.lists(sizes, min_size=1, max_size=3),
    option_sets,
    st.integers(1, 2_000),
    st.none() | st.integers(1, 30),
    st.data(),
)
def test_no_batch_reads_more_and_all_is_read(
    partitions: list[list[int]],
    options: dict[str, str],
    most: int,
    max_offsets: int | None,
    data: st.DataObject,
) -> None:
    log = log_of(*partitions, seed=data.draw(st.integers(0, 9)))
    log.compacted = data.draw(st.booleans())
    query = Bounded(log, most, **options)
    query.pace = lambda key: 3.0 if key == KEYS[0] else 0.01
    query.loss = data.draw(st.sampled_from([0.0, 0.5, 1.0]))
    query.run_through(max_offsets)


@law
@given(
    st.lists(sizes, min_size=1, max_size=3),
    option_sets,
    st.integers(1, 1_000),
    st.integers(1, 100),
    st.none() | st.integers(1, 30),
    st.booleans(),
)
@example([[1, 1, 1], [1, 1, 1], [1]], {}, 1, 1, None, True)  # each bound waits for the other
def test_beside_event_time_all_is_read_and_nothing_is_late(
    partitions: list[list[int]],
    options: dict[str, str],
    most: int,
    ahead: int,
    max_offsets: int | None,
    parked: bool,
) -> None:
    log = log_of(*partitions)
    query = Bounded(log, most, maxTimeAhead=f"{ahead}ms", **options)
    query.delay_ms = ahead
    query.pace = lambda key: 3.0 if key == KEYS[0] else 0.01
    if parked:  # what it holds is behind all others, and counts for nothing
        query.parking.keys.add(("t", KEYS[0]))
        query.step(max_offsets)
        query.drain_others(max_offsets)
        query.parking.keys.clear()
        query.delay_ms = None
    query.run_through(max_offsets)


@law
@given(st.lists(sizes, min_size=1, max_size=3), option_sets, st.integers(1, 1_000))
def test_a_batch_that_is_planned_again_reads_the_same(
    partitions: list[list[int]], options: dict[str, str], most: int
) -> None:
    query = Bounded(log_of(*partitions), most, **options)
    query.step()
    end = query.planner.latest_offsets(query.at, None, max_bytes=most)
    if end == query.at:
        return
    planned = {(each.slice, each.max_records) for each in query.planned(end)}
    query.restart()
    assert {(each.slice, each.max_records) for each in query.planned(end)} == planned


def test_even_batches_have_the_size_that_was_asked_for() -> None:
    """Within 20 %: the first one too, of which no size was known."""
    for partitions in (1, 4):
        for options in ({}, {"keyRanges": "4"}, {"keyRanges": "3", "maxRecordsPerTask": "1000"}):
            log = log_of(*[[7] * 2_000] * partitions)
            query = Bounded(log, 1_000, **options).run_through()
            assert all(800 <= size <= 1_000 for size in query.sizes[:-1]), query.sizes


def test_records_that_grow_do_not_break_the_limit() -> None:
    log = log_of([10] * 500 + [5_000] * 20 + [10] * 500)
    query = Bounded(log, 6_000).run_through()
    assert max(query.sizes) <= 6_000
    assert min(query.sizes[:-1]) >= 1_000


def test_each_byte_is_looked_at_once() -> None:
    log = log_of([7] * 1_000, [7] * 1_000)
    query = Bounded(log, 500, keyRanges="4", maxRecordsPerTask="9").run_through()
    assert query.looked_at <= 14_000 + 2 * 500


def test_a_partition_with_much_gets_more() -> None:
    query = Bounded(log_of([10] * 900, [10] * 100), 1_000)
    query.step()
    read = [tp for tp, _ in query.delivered]
    assert (read.count(T0), read.count(T1)) == (90, 10)


def test_without_a_limit_nothing_is_looked_at() -> None:
    query = Query(log_of([10] * 50))
    query.drain()
    assert query.looks == 0


def test_a_parked_key_is_not_read_and_does_not_hold_the_rest() -> None:
    log = log_of([10] * 400)
    query = Bounded(log, 500, keyRanges="2")
    query.parking.keys.add(("t", KEYS[0]))
    before = None
    while before != query.at:
        before = query.at
        query.step()
    read = {log.keys[tp][offset] for tp, offset in query.delivered}
    assert read == set(log.keys[T0]) - {KEYS[0]}
    query.parking.keys.clear()
    query.run_through()


def test_a_partition_that_is_gone_is_left_to_those_who_read_it() -> None:
    log = log_of([10] * 50, [10] * 50)
    query = Bounded(log, 100, failOnDataLoss="false")
    query.step()
    del log.keys[T1]
    query.delivered = [place for place in query.delivered if place[0] == T0]
    query.run_through()


def gate(clock: Clock, **given: str) -> TriggerGate:
    base = {"kafka.bootstrap.servers": "nowhere:9092", "subscribe": "t"}
    options = parse_options({**base, **given}, streaming=True).options
    return TriggerGate(options, clock=clock.monotonic)


def test_without_a_minimum_it_is_open() -> None:
    assert not gate(Clock()).is_shut({T0: 5}, {T0: 5})


def test_it_waits_for_enough_but_not_for_ever() -> None:
    clock = Clock(0.0)
    shut = gate(clock, minOffsetsPerTrigger="10", maxTriggerDelay="60s")
    assert not shut.is_shut({T0: 0}, {T0: 5})  # the first trigger does not wait
    clock.now = 59.0
    assert shut.is_shut({T0: 5}, {T0: 14})
    assert not shut.is_shut({T0: 5}, {T0: 15})
    clock.now = 118.0  # since the last that did not wait
    assert shut.is_shut({T0: 15}, {T0: 16})
    clock.now = 119.0
    assert not shut.is_shut({T0: 15}, {T0: 16})
