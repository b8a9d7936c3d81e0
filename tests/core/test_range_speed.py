"""The speed of ranges: laws of limits, estimates, and of what is measured."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import WHOLE, HashRange
from kshare.core.range_speed import RangeSpeed, learn, next_limits, ranges_to_measure
from kshare.core.slicing import RangeObservation
from tests.support.rates import A1, A2, TARGET, A, B, known, tilings, times


def measured(
    hashes: HashRange, records: int, seconds: float, sample: tuple[int, ...] = ()
) -> RangeObservation:
    """A task whose end was seen."""
    return RangeObservation(hashes, records, max(records, 1), seconds, sample)


def limits(parts: Sequence[HashRange], speeds: Sequence[RangeSpeed], **given_: Any) -> list[int]:
    wanted = {"target_seconds": TARGET, "batch_seconds": None, "max_records": None, **given_}
    return [speed.limit for speed in next_limits(parts, speeds, **wanted)]


def to_measure(
    speeds: Sequence[RangeSpeed], before: Sequence[RangeSpeed], **given_: Any
) -> frozenset[HashRange]:
    wanted = {
        "target_seconds": TARGET,
        "batch_seconds": TARGET,
        "full": {speed.hashes for speed in speeds},
        "batches_unmeasured": 1,
        "batches_since_all": 0,
        **given_,
    }
    return ranges_to_measure(speeds, before, **wanted)


# -- laws ----------------------------------------------------------------------------------------


@given(
    tilings(),
    known(),
    st.floats(0.01, 1e5),
    st.none() | st.floats(0, 1e6),
    st.none() | st.integers(1, 10**6),
)
def test_limits_are_sane(
    parts: list[HashRange],
    speeds: tuple[RangeSpeed, ...],
    target: float,
    batch: float | None,
    most: int | None,
) -> None:
    coming = next_limits(
        parts, speeds, target_seconds=target, batch_seconds=batch, max_records=most
    )
    assert [speed.hashes for speed in coming] == parts
    before = {speed.hashes: speed.limit for speed in speeds}
    for speed in coming:
        assert type(speed.limit) is int
        assert 1 <= speed.limit <= (most or 2**63)
        if speed.hashes in before:
            assert speed.limit <= 32 * before[speed.hashes]
            if batch is not None and batch > 1.5 * target:
                scaled = before[speed.hashes] * target / batch
                assert speed.limit <= max(scaled * (1 + 1e-9), 1)
        else:
            assert speed.limit <= 32 * max([8, *before.values()])
    again = next_limits(parts, speeds, target_seconds=target, batch_seconds=batch, max_records=most)
    assert again == coming


@given(known(), known(), st.booleans(), st.integers(0, 50), st.none() | st.floats(0, 100))
def test_only_ranges_of_the_batch_are_measured(
    speeds: tuple[RangeSpeed, ...],
    before: tuple[RangeSpeed, ...],
    full: bool,
    unmeasured: int,
    batch: float | None,
) -> None:
    asked = to_measure(
        speeds,
        before,
        **({} if full else {"full": ()}),
        batches_unmeasured=unmeasured,
        batches_since_all=unmeasured,
        batch_seconds=batch,
    )
    every = {speed.hashes for speed in speeds}
    assert asked <= every
    assert every - {speed.hashes for speed in before} <= asked
    if batch is not None and batch > 1.5 * TARGET:
        assert asked == every


@given(
    known(),
    st.lists(
        st.builds(measured, st.sampled_from([A, B, WHOLE]), st.integers(0, 9), times),
        unique_by=lambda seen: seen.hashes,
    ),
)
def test_learning_changes_estimates_and_nothing_else(
    speeds: tuple[RangeSpeed, ...], seen: list[RangeObservation]
) -> None:
    learned = learn(speeds, seen, target_seconds=TARGET)
    records = {observed.hashes: observed.records for observed in seen}
    assert [(s.hashes, s.limit) for s in learned] == [(s.hashes, s.limit) for s in speeds]
    for one, other in zip(speeds, learned, strict=True):
        assert one == other or records[one.hashes] > 0


# -- limits --------------------------------------------------------------------------------------


def test_of_the_unknown_256() -> None:
    assert limits([A, B], []) == [256, 256]
    assert limits([A, B], [], max_records=100) == [100, 100]
    assert limits([A], [RangeSpeed(B, 5, 1.0)]) == [256]


def test_as_many_as_fit_into_the_target() -> None:
    assert limits([A, B], [RangeSpeed(A, 256, 0.1), RangeSpeed(B, 256, 0.01)]) == [100, 1000]


def test_at_most_32_times_as_many_as_before() -> None:
    assert limits([A], [RangeSpeed(A, 256, 1e-6)]) == [8192]
    assert limits([A], [RangeSpeed(A, 1, 0.0)]) == [32]


def test_at_least_1() -> None:
    assert limits([A], [RangeSpeed(A, 256, 1e9)]) == [1]


def test_a_slow_batch_scales_all_limits_down_at_once() -> None:
    before = [RangeSpeed(A, 1000, 0.01), RangeSpeed(B, 100, 0.1)]
    assert limits([A, B], before, batch_seconds=15.0) == [1000, 100]
    coming = next_limits(
        [A, B], before, target_seconds=TARGET, batch_seconds=20.0, max_records=None
    )
    assert [speed.limit for speed in coming] == [500, 50]
    # And they stay there until a measurement says more.
    assert limits([A, B], coming) == [500, 50]


def test_a_limit_below_its_estimate_is_scaled_down_too() -> None:
    """It was not the estimate that held it, but growth or ``maxRecordsPerTask``."""
    assert limits([A], [RangeSpeed(A, 100, 0.0001)], batch_seconds=20.0) == [50]


def test_a_merged_range_starts_from_the_slowest_of_its_parts() -> None:
    before = [RangeSpeed(A1, 10_000, 0.001), RangeSpeed(A2, 100, 0.1)]
    (speed,) = next_limits([A], before, target_seconds=TARGET, batch_seconds=None, max_records=None)
    assert speed == RangeSpeed(A, 100, 0.1, is_guess=True)
    assert limits([A], [RangeSpeed(A1, 1000, 1e-6), RangeSpeed(A2, 2, 1e-6)]) == [64]


def test_a_part_of_a_range_starts_from_its_speed_but_with_few_records() -> None:
    """The slow key may be in it."""
    assert limits([A1, A2], [RangeSpeed(A, 10_000, 0.001)]) == [256, 256]
    assert limits([A1, A2], [RangeSpeed(A, 100, 0.1)]) == [100, 100]
    moved = HashRange(A1.lo, A1.hi + 1)
    before = [RangeSpeed(A1, 10_000, 0.001), RangeSpeed(A2, 20_000, 0.001)]
    assert limits([moved], before) == [256]


def test_without_times_whole_batches_say_how_fast() -> None:
    before = [RangeSpeed(A, 100)]
    assert limits([A], before) == [100]
    assert limits([A], before, batch_seconds=9.0) == [100]
    assert limits([A], before, batch_seconds=0.0) == [200]
    assert limits([A], before, batch_seconds=6.25) == [160]
    assert limits([A], before, batch_seconds=40.0) == [25]
    assert limits([A], [RangeSpeed(A, 1 << 20)], batch_seconds=0.1) == [1 << 20]


def test_a_part_may_have_all_the_time_of_its_range() -> None:
    """A key with 20 of 256 records: if it is the slow one, each took 12.8 times the mean."""
    key = A.lo + 1000
    sample = tuple([A.lo] * 100 + [key] * 20 + [A.hi - 1] * 136)
    (before,) = learn([RangeSpeed(A, 256)], [measured(A, 256, 20.0, sample)], target_seconds=TARGET)
    parts = [HashRange(A.lo, key), HashRange.of(key), HashRange(key + 1, A.hi)]
    assert limits(parts, [before]) == [50, 10, 68]
    assert limits(parts, [replace(before, limit=1)]) == [32, 10, 32]
    unseen = HashRange(A.lo + 1, A.lo + 2)
    assert limits([unseen], [before]) == [1]  # less than one record of the sample


def test_a_part_with_little_time_starts_from_many_records() -> None:
    before = RangeSpeed(A, 10_000, 0.001, tuple(range(0, A.hi, A.hi // 256)))
    assert limits([A1, A2], [before]) == [pytest.approx(5000, rel=0.05)] * 2
    # Next to a part of which nothing is known.
    assert limits([HashRange(A1.hi, B.lo + 9)], [before, RangeSpeed(B, 10_000, 0.001)]) == [256]


# -- estimates -----------------------------------------------------------------------------------


def test_the_last_measurement_counts() -> None:
    (speed,) = learn([RangeSpeed(A, 100, 0.1)], [measured(A, 100, 50.0)], target_seconds=TARGET)
    assert speed == RangeSpeed(A, 100, 0.5)
    (speed,) = learn([RangeSpeed(A, 100, 0.1)], [measured(A, 100, 0.1)], target_seconds=TARGET)
    assert speed == RangeSpeed(A, 100, 0.001)


def test_a_task_without_records_tells_nothing() -> None:
    before = (RangeSpeed(A, 100, 0.1), RangeSpeed(B, 100))
    seen = [measured(A, 0, 5.0), measured(B, 0, 1.0)]
    assert learn(before, seen, target_seconds=TARGET) == before


def test_a_short_task_slows_its_range_down_a_little_only() -> None:
    before = [RangeSpeed(A, 10_000, 0.001)]
    (speed,) = learn(before, [measured(A, 1, 0.4)], target_seconds=TARGET)
    assert speed.seconds_per_record == 0.004
    (speed,) = learn(before, [measured(A, 1, 0.6)], target_seconds=TARGET)
    assert speed.seconds_per_record == 0.6
    (speed,) = learn(before, [measured(A, 1, 0.4)], target_seconds=None)
    assert speed.seconds_per_record == 0.4


# -- what is measured ----------------------------------------------------------------------------


def test_new_ranges_are_measured() -> None:
    speeds = [RangeSpeed(A, 256), RangeSpeed(B, 100, 0.1)]
    assert to_measure(speeds, [RangeSpeed(B, 100, 0.1)], full=()) == {A}
    assert to_measure(speeds, []) == {A, B}


def test_ranges_without_a_time_are_measured_again_if_any_told_theirs() -> None:
    speeds = [RangeSpeed(A, 256), RangeSpeed(B, 100, 0.1)]
    assert to_measure(speeds, speeds, batches_unmeasured=0, full=()) == {A}
    assert to_measure(speeds, speeds, batches_unmeasured=1, full={A}) == frozenset()


@pytest.mark.parametrize(
    ("limit", "measured"), [(100, False), (149, False), (151, True), (66, True)]
)
def test_a_limit_that_has_moved_is_measured(limit: int, measured: bool) -> None:
    asked = to_measure([RangeSpeed(A, limit, 0.1)], [RangeSpeed(A, 100, 0.1)])
    assert asked == ({A} if measured else frozenset())


def test_after_a_slow_batch_all_are_measured() -> None:
    speeds = [RangeSpeed(A, 100, 0.1), RangeSpeed(B, 100, 0.1)]
    assert to_measure(speeds, speeds, batch_seconds=15.0, full=()) == frozenset()
    assert to_measure(speeds, speeds, batch_seconds=15.1, full=()) == {A, B}


def test_after_a_fast_batch_all_are_measured_if_it_was_full() -> None:
    speeds = [RangeSpeed(A, 100, 0.1), RangeSpeed(B, 50, 0.1)]
    assert to_measure(speeds, speeds, batch_seconds=3.4) == frozenset()  # B alone may take 5 s
    assert to_measure(speeds, speeds, batch_seconds=3.3) == {A, B}
    assert to_measure(speeds, speeds, batch_seconds=3.3, full=()) == frozenset()
    assert to_measure(speeds, speeds, batch_seconds=None) == frozenset()


def test_ranges_that_are_held_back_take_turns() -> None:
    speeds = [RangeSpeed(A1, 100, 0.1), RangeSpeed(A2, 67, 0.1), RangeSpeed(B, 100, 0.1)]
    turns = [to_measure(speeds, speeds, batches_since_all=n) for n in range(4)]
    assert turns == [{A2}, {A1, B}, {A2}, {A1, B}]
    assert to_measure(speeds, speeds, batches_since_all=1, full={A2, B}) == {B}
    slower = [RangeSpeed(A1, 66, 0.1), *speeds[1:]]  # the user allows no more of A1
    assert to_measure(slower, slower, batches_since_all=1) == {B}


@pytest.mark.parametrize(("target", "every"), [(10.0, 2), (7.5, 2), (5.0, 3), (3.0, 5), (1.0, 10)])
def test_a_turn_costs_a_twentieth_of_the_target_at_most(target: float, every: int) -> None:
    speeds = [RangeSpeed(A, 100, target / 100)]
    given_ = {"target_seconds": target, "batch_seconds": target}
    asked = [to_measure(speeds, speeds, batches_since_all=n, **given_) for n in range(9)]
    assert [n for n, ranges in enumerate(asked) if ranges] == list(range(every - 1, 9, every))


def test_every_tenth_batch_all_are_measured_while_limits_count() -> None:
    speeds = [RangeSpeed(A, 10, 0.1), RangeSpeed(B, 100, 0.1)]
    assert to_measure(speeds, speeds, batches_since_all=9) == {A, B}
    assert to_measure(speeds, speeds, batches_since_all=19) == {A, B}
    assert not to_measure(speeds, speeds, batches_since_all=9, full=())


def test_a_guess_that_holds_a_range_back_is_measured() -> None:
    """It was not when it was new: there was nothing to read."""
    before = [RangeSpeed(A, 10_000, 0.001, tuple(range(A.lo, A1.hi, A1.hi // 256)))]
    speeds = next_limits(
        [A1, A2], before, target_seconds=TARGET, batch_seconds=None, max_records=None
    )
    assert speeds[1].limit == 39  # the sample has nothing of it
    assert to_measure(speeds, speeds) == {A1, A2}
    assert to_measure(speeds, speeds, full={A2}) == {A2}
    assert to_measure(speeds, speeds, full=()) == frozenset()
    (known,) = learn(speeds[1:], [measured(A2, 39, 0.039)], target_seconds=TARGET)
    assert to_measure([known], [known], full={A2}) == frozenset()
