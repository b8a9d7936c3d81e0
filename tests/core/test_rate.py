"""Runs of batches whose ranges have a speed of their own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import ALL_HASHES, WHOLE, HashRange, split
from kshare.core.progress import TopicPartition
from kshare.core.range_speed import RangeSpeed
from kshare.core.rate import LastBatch, PlannedLimits, learn_from, plan_limits
from kshare.core.slicing import RangeObservation
from tests.support.rates import A1, A2, TARGET, A, B, times

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
Pace = Callable[[int, HashRange], float]
"""Seconds for a record, by the number of the batch and the range."""


class Batches:
    """Batches of a backlog that does not end."""

    def __init__(
        self,
        pace: Pace,
        parts: Sequence[HashRange] = (A, B),
        *,
        told: bool = True,
        most: int | None = None,
        backlog: Mapping[HashRange, int] | None = None,
    ) -> None:
        self.pace, self.parts, self.told, self.most = pace, parts, told, most
        self.backlog = backlog or {}
        self.last = LastBatch()
        self.number = 0
        self.taken: list[float] = []
        self.measured: list[int] = []

    def run(self, batches: int) -> "Batches":
        for _ in range(batches):
            self._batch()
        return self

    def _batch(self) -> None:
        limits = plan_limits(
            self.last, {T0: self.parts}, target_seconds=TARGET, max_records=self.most
        )
        asked = limits.measured[T0]
        observed, longest = [], 0.0
        for hashes, limit in limits.by_range(T0):
            records = min(limit, self.backlog.get(hashes, limit))
            seconds = records * self.pace(self.number, hashes)
            longest = max(longest, seconds)
            is_measured = self.told and hashes in asked
            observed.append(
                RangeObservation(
                    hashes, records, records, seconds if is_measured else None, limit=limit
                )
            )
        self.last = learn_from(
            self.last,
            limits,
            {T0: observed},
            tasks=len(observed),
            seconds=longest,
            target_seconds=TARGET,
        )
        self.taken.append(longest)
        self.measured.append(len(asked))
        self.number += 1

    def limit(self, hashes: HashRange) -> int:
        return next(speed.limit for speed in self.last.speeds[T0] if speed.hashes == hashes)


def always(seconds: float) -> Pace:
    return lambda batch, hashes: seconds


# -- runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [5.0, 0.5, 0.04, 0.001, 0.00004])
def test_it_converges_within_three_batches(seconds: float) -> None:
    query = Batches(always(seconds)).run(20)
    assert all(0.9 * TARGET <= taken <= 1.1 * TARGET for taken in query.taken[3:])
    assert query.measured[3:].count(2) <= 2  # a worker that ends with its task costs something


def test_fast_and_slow_ranges_each_at_their_own_speed() -> None:
    query = Batches(lambda _, hashes: 0.1 if hashes == A else 0.001).run(5)
    assert (query.limit(A), query.limit(B)) == (100, 10_000)
    assert query.taken[2:] == [pytest.approx(10)] * 3


@pytest.mark.parametrize(("before", "after"), [(0.001, 0.01), (0.01, 0.001), (0.001, 0.5)])
def test_a_new_speed_is_learned_within_three_batches(before: float, after: float) -> None:
    query = Batches(lambda batch, _: before if batch < 6 else after).run(12)
    assert all(taken == pytest.approx(TARGET, rel=0.1) for taken in query.taken[3:6])
    assert all(taken == pytest.approx(TARGET, rel=0.1) for taken in query.taken[9:])


EIGHT = split(WHOLE, 8)


@pytest.mark.parametrize("change", [6, 7, 10, 13])
@pytest.mark.parametrize("others", [False, True], ids=["one range", "all but one"])
@pytest.mark.parametrize("factor", [0.1, 0.5, 1.4, 10.0])
def test_the_new_speed_of_some_ranges_is_learned_within_three_batches(
    change: int, others: bool, factor: float
) -> None:
    def pace(batch: int, hashes: HashRange) -> float:
        return 0.001 * factor if batch >= change and (hashes == EIGHT[3]) != others else 0.001

    query = Batches(pace, EIGHT)
    for batch in range(change + 6):
        query.run(1)
        if batch >= change + 2:
            each = [query.limit(hashes) * pace(batch, hashes) for hashes in EIGHT]
            assert each == [pytest.approx(TARGET, rel=0.1)] * 8


def test_where_tasks_tell_no_times_it_goes_by_batches() -> None:
    query = Batches(always(0.001), told=False).run(12)
    *others, tenth, last = query.taken[7:]
    assert all(TARGET / 1.5 <= taken <= 1.5 * TARGET for taken in [*others, last])
    assert tenth == pytest.approx(others[-1] / 2)  # half the limit is tried again
    assert sum(query.measured) == 4  # the first, and the tenth
    slow = Batches(always(1.0), told=False).run(4)
    assert all(taken <= 1.5 * TARGET for taken in slow.taken[2:])


@pytest.mark.parametrize(
    ("limit", "seconds", "overhead"),
    [
        (50, 20.0, 20.0),  # half of the limit saves nothing
        (50, 30.0, 30.0),
        (50, 10.0, 0.0),  # half the limit, half the time
        (50, 4.0, 0.0),
        (50, 14.0, 8.0),  # 12 s for 100 records, and 8 s for none
        (100, 40.0, 8.0),  # no smaller limit, no other thing to learn
        (90, 19.0, 8.0),
        (200, 5.0, 5.0),
        (200, 30.0, 8.0),  # twice the limit costs 10 s, so that 10 s more are overhead: 8 are known
        (200, 38.0, 2.0),
        (200, 50.0, 0.0),
        (0, 5.0, 5.0),
    ],
)
def test_a_smaller_limit_tells_what_takes_time_whatever_the_limits_are(
    limit: int, seconds: float, overhead: float
) -> None:
    last = LastBatch(seconds=12.0, overhead=8.0, limit=100)
    limits = PlannedLimits({T0: (RangeSpeed(A, limit), RangeSpeed(B, 1))} if limit else {})
    learned = learn_from(last, limits, {}, tasks=2, seconds=seconds, target_seconds=TARGET)
    assert learned.overhead == pytest.approx(overhead)
    assert learned.seconds == pytest.approx(seconds - overhead)
    assert learned.is_split is (limit == 50)
    # Where the speed of a range is known, the next measurement tells.
    limits = PlannedLimits({T0: (RangeSpeed(A, max(limit, 1), 1.0), RangeSpeed(B, 1))})
    learned = learn_from(last, limits, {}, tasks=2, seconds=seconds, target_seconds=TARGET)
    assert (learned.overhead, learned.is_split) == (8.0, False)


@pytest.mark.parametrize(
    ("last", "limit"),
    [
        (LastBatch(seconds=TARGET), 50),
        (LastBatch(seconds=1.4 * TARGET), 50),
        (LastBatch(seconds=TARGET / 1.4), 50),
        (LastBatch(seconds=TARGET / 1.6), 160),
        (LastBatch(seconds=TARGET, is_split=True), 100),
        (LastBatch(seconds=TARGET, is_split=True, unmeasured=9), 100),
        (LastBatch(seconds=TARGET, is_split=True, unmeasured=10), 50),
        (LastBatch(seconds=TARGET, speeds={T1: (RangeSpeed(A, 100, 0.1),)}), 100),
    ],
)
def test_a_batch_that_takes_its_target_may_have_waited(last: LastBatch, limit: int) -> None:
    """A smaller limit is tried: a trigger's interval may be as long as the target."""
    speeds = {T0: (RangeSpeed(A, 100),), **last.speeds}
    last = replace(last, speeds=speeds, limit=100, unmeasured=last.unmeasured or 1)
    limits = plan_limits(last, {T0: (A,)}, target_seconds=TARGET, max_records=None)
    assert limits.by_range(T0) == ((A, limit),)


def blind_limits(taken: Callable[[int, int], float], batches: int) -> list[int]:
    """The limits of batches whose tasks tell no times.

    Args:
        taken: Seconds of a batch, by its number and its limit.
        batches: Number of batches.
    """
    last, found = LastBatch(), []
    for number in range(batches):
        limits = plan_limits(last, {T0: ALL_HASHES}, target_seconds=TARGET, max_records=None)
        ((_, limit),) = limits.by_range(T0)
        seen = RangeObservation(WHOLE, limit, limit, None, limit=limit)
        seconds = taken(number, limit)
        last = learn_from(
            last, limits, {T0: [seen]}, tasks=1, seconds=seconds, target_seconds=TARGET
        )
        found.append(limit)
    return found


@pytest.mark.parametrize("trigger", [8, 10, 14])
@pytest.mark.parametrize("slow", [1.0, 30.0])
def test_a_slow_time_does_not_hold_limits_back_for_ever(trigger: float, slow: float) -> None:
    """Afterwards each batch takes as long as the trigger, whatever its limit is."""

    def taken(number: int, limit: int) -> float:
        return max(trigger, 0.3 + limit * (slow if 12 <= number < 20 else 0.001))

    limits = blind_limits(taken, 60)
    assert max(limits[18:20]) <= 10
    assert min(limits[-5:]) >= 4000


def test_batches_that_are_late_by_chance_do_not_make_limits_ever_smaller() -> None:
    late = (20, 30, 40, 50)
    limits = blind_limits(lambda at, limit: 8 + limit * 0.001 + (15 if at in late else 0), 60)
    assert limits[-1] >= 4000


def test_limits_are_what_they_should_be_although_others_are_tried() -> None:
    """A trigger as long as the target hides what small batches take."""
    limits = blind_limits(lambda _, limit: max(TARGET, limit * 0.001), 100)
    assert sum(limit == 10_000 for limit in limits[50:]) == 40
    assert {*limits[50:]} == {5_000, 10_000, 20_000}


def test_a_range_that_is_measured_again_and_again_does_not_keep_others_from_it() -> None:
    """A1 has little to do, and its pace swings; B becomes ten times as fast unnoticed."""

    def pace(batch: int, hashes: HashRange) -> float:
        if hashes == A1:
            return 0.05 if batch % 2 else 0.1
        return 0.001 if hashes == B and batch >= 5 else 0.01

    query = Batches(pace, (A1, A2, B), backlog={A1: 20}).run(30)
    assert query.limit(B) == 10_000


def test_a_stream_that_has_caught_up_is_left_alone() -> None:
    query = Batches(always(0.001), backlog={A: 20, B: 20}).run(30)
    assert sum(query.measured[5:]) == 0


def test_a_limit_of_the_user_is_kept() -> None:
    query = Batches(always(0.001), most=100).run(30)
    assert query.limit(A) == query.limit(B) == 100
    assert query.measured.count(2) == 3  # the first, and every tenth: short batches are as expected


# -- what is known after a batch -----------------------------------------------------------------


def seen(hashes: HashRange, records: int, seconds: float | None = None) -> RangeObservation:
    return RangeObservation(hashes, records, 10 * records + 1, seconds, limit=10)


def after(last: LastBatch, *observed: RangeObservation, tasks: int = 2) -> LastBatch:
    return learn_from(
        last, PlannedLimits(), {T0: observed}, tasks=tasks, seconds=3.0, target_seconds=TARGET
    )


def test_without_a_target_every_limit_is_that_of_the_user() -> None:
    limits = plan_limits(
        LastBatch(seconds=100.0), {T0: (A, B), T1: ALL_HASHES}, target_seconds=None, max_records=7
    )
    assert (limits.by_range(T0), limits.by_range(T1)) == (((A, 7), (B, 7)), ((WHOLE, 7),))
    assert not limits.measured


@given(st.none() | times, st.none() | times, st.integers(1, 3))
def test_how_long_it_is_since_tasks_were_measured(
    one: float | None, other: float | None, tasks: int
) -> None:
    before = LastBatch(unmeasured=4, since_all=6)
    last = after(before, seen(A, 5, one), seen(B, 5, other), tasks=tasks)
    measured = [seconds for seconds in (one, other) if seconds is not None]
    assert last.unmeasured == (0 if measured else 5)
    assert last.since_all == (0 if len(measured) == tasks else 7)
    assert last.slowest == max(measured, default=0.0)
    is_whole = len(measured) == tasks
    assert last.overhead == (max(3.0 - last.slowest, 0.0) if is_whole else 0.0)
    assert last.seconds == max(3.0 - last.overhead, last.slowest)


def test_the_ranges_whose_tasks_a_limit_ended() -> None:
    last = after(LastBatch(), seen(A, 10), seen(B, 9))
    assert last.full == {T0: {A}}
    assert after(last, seen(B, 10)).full == {T0: {B}}


def test_what_is_observed_is_kept_until_it_is_seen_again() -> None:
    first = after(LastBatch(), seen(A1, 4, 2.0), seen(A2, 3), seen(B, 8, 1.0))
    assert first.observed[T0] == (seen(A1, 4, 2.0), seen(A2, 3), seen(B, 8, 1.0))
    later = after(first, seen(B, 4), seen(A1, 0))
    # At the speed of the last measurement; what had no task stays as it was.
    assert later.observed[T0] == (seen(A1, 0, 0.0), seen(A2, 3), seen(B, 4, 0.5))
    merged = after(later, seen(A, 6))
    assert merged.observed[T0] == (seen(A, 6), seen(B, 4, 0.5))
    other = learn_from(
        merged, PlannedLimits(), {T1: [seen(A, 1)]}, tasks=1, seconds=1.0, target_seconds=None
    )
    assert other.observed == {T0: merged.observed[T0], T1: (seen(A, 1),)}


def test_only_some_partitions_are_kept() -> None:
    speed = (RangeSpeed(WHOLE, 5),)
    last = LastBatch(
        seconds=3.0,
        speeds={T0: speed, T1: speed},
        observed={T0: (seen(A, 1),), T1: (seen(B, 10),)},
        full={T0: frozenset(), T1: frozenset({B})},
    )
    assert last.of({T0, T1, TopicPartition("t", 2)}) == last
    assert last.of({T1}) == LastBatch(
        seconds=3.0,
        speeds={T1: speed},
        observed={T1: (seen(B, 10),)},
        full={T1: frozenset({B})},
    )


def test_nothing_is_learned_of_a_batch_that_was_planned_elsewhere() -> None:
    """Its limits are not known: only what its tasks say is."""
    last = after(LastBatch(), seen(A, 5, 1.0))
    assert last.speeds == {T0: ()}
    assert last.observed == {T0: (seen(A, 5, 1.0),)}


def test_planning_changes_nothing() -> None:
    last = Batches(always(0.001)).run(3).last
    asked = {T0: (A, B)}
    first = plan_limits(last, asked, target_seconds=TARGET, max_records=None)
    assert plan_limits(last, asked, target_seconds=TARGET, max_records=None) == first
