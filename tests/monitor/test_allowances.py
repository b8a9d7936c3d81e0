"""Limits of batches as measures of speed: laws against the planner's own rules for limits."""

from collections.abc import Sequence
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from kshare.core.checkpoint import BatchOffsets, RangeLimit
from kshare.core.hashing import WHOLE, HashRange, KeyRanges, split
from kshare.core.progress import Progress, TopicPartition
from kshare.core.range_speed import RangeSpeed, learn, next_limits
from kshare.core.slicing import RangeObservation
from kshare.monitor.allowances import BATCHES, Allowances, Limits, measured_allowances, read_limits
from tests.support.checkpoints import write_checkpoint
from tests.support.rates import TARGET, tilings

T0 = TopicPartition("t", 0)
QUARTERS = split(WHOLE, 4)


def limits(speeds: Sequence[RangeSpeed]) -> Limits:
    return {T0: [RangeLimit(KeyRanges([each.hashes]), 9, each.limit) for each in speeds]}


def counts(*records: int) -> Limits:
    return limits([RangeSpeed(part, n) for part, n in zip(QUARTERS, records, strict=True)])


@given(
    st.lists(st.tuples(tilings(), st.floats(0, 10 * TARGET)), max_size=8),
    st.none() | st.integers(1, 10**6),
)
def test_whole_batches_alone_measure_no_range(
    batches: list[tuple[list[HashRange], float]], most: int | None
) -> None:
    speeds: tuple[RangeSpeed, ...] = ()
    planned: list[Limits] = []
    for parts, seconds in batches:
        speeds = next_limits(
            parts, speeds, target_seconds=TARGET, batch_seconds=seconds, max_records=most
        )
        planned.insert(0, limits(speeds))
        assert measured_allowances(planned) == Allowances()


@given(
    st.lists(st.sampled_from([1e-5, 1e-4, 1e-3, 0.3, 2.0]), min_size=4, max_size=4),
    st.integers(1, 6),
)
def test_a_range_that_may_read_fewer_records_is_slower(times: list[float], batches: int) -> None:
    speeds: tuple[RangeSpeed, ...] = ()
    planned: list[Limits] = []
    for _ in range(batches):
        speeds = next_limits(
            QUARTERS, speeds, target_seconds=TARGET, batch_seconds=None, max_records=None
        )
        planned.insert(0, limits(speeds))
        seen = [
            RangeObservation(each.hashes, each.limit, each.limit, each.limit * seconds)
            for each, seconds in zip(speeds, times, strict=True)
        ]
        speeds = learn(speeds, seen, target_seconds=TARGET)
    found = measured_allowances(planned)
    time_of = {(T0, part): its_time for part, its_time in zip(QUARTERS, times, strict=True)}
    for one, allowed in found.measured.items():
        assert allowed <= found.most
        for other, more in found.measured.items():
            assert allowed >= more or time_of[one] > time_of[other]
    slow = {where for where, its_time in time_of.items() if its_time > 0.1}
    if len(slow) < 4 and batches > 1:
        assert found.measured.keys() >= slow
        assert all(20 * found.measured[where] < found.most for where in slow)


def test_a_start_and_equal_limits_tell_nothing() -> None:
    learned = [counts(9_000, 9_000, 40, 9_000), counts(256, 256, 256, 256)]
    found = measured_allowances(learned)
    assert (found.measured, found.most) == ({(T0, QUARTERS[2]): 40}, 9_000)
    assert measured_allowances(learned[:1]) == Allowances()
    assert measured_allowances([]) == Allowances()
    # A query that has started again: what it had measured is forgotten.
    again = counts(256, 256, 256, 256)
    assert measured_allowances([again, *learned]) == Allowances()
    assert measured_allowances([counts(900, 900, 50, 900), again, *learned]).most == 900
    assert measured_allowances([counts(50, 50, 50, 50), counts(9, 9, 9, 9)]) == Allowances()


def test_the_last_range_that_reads_is_still_the_slow_one() -> None:
    """The others have reached the end of the log."""
    alone = {T0: counts(1, 1, 40, 1)[T0][2:3]}
    found = measured_allowances([alone, alone, counts(9_000, 9_000, 40, 9_000), counts(*[256] * 4)])
    assert (found.measured, found.most) == ({(T0, QUARTERS[2]): 40}, 9_000)


def test_a_range_that_is_new_or_still_gets_more_is_not_measured() -> None:
    new = RangeSpeed(HashRange(5, 6), 16)
    old = counts(256, 256, 256, 256)
    newer = counts(8_192, 2, 8_192, 40)
    latest = {T0: [*limits([new])[T0], *counts(1, 50, 256, 41)[T0][1:]]}
    found = measured_allowances([latest, newer, old])
    assert (found.measured, found.most) == ({(T0, QUARTERS[3]): 41}, 8_192)


def test_they_are_read_from_the_newest_batches(tmp_path: Path) -> None:
    dicts = [
        BatchOffsets({T0: Progress.at(1)}, limits={T0: tuple(counts(n, n, n, 1)[T0])})
        for n in range(1, BATCHES + 4)
    ]
    directory = write_checkpoint(tmp_path, dicts, BATCHES)
    found = read_limits(directory, 0)
    assert [batch[T0][0].records for batch in found] == list(range(BATCHES + 3, 3, -1))
    assert read_limits(directory, 1) == []
    (tmp_path / "offsets" / str(BATCHES)).write_text("v9\n")
    assert len(read_limits(directory, 0)) == 2, "as far as they can be read"
