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
from kshare.monitor.allowances import BATCHES, Limits, measured_allowances, read_limits
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
        assert measured_allowances(planned) == {}


@given(
    st.lists(st.sampled_from([1e-5, 1e-4, 1e-3, 0.3, 2.0]), min_size=4, max_size=4),
    st.integers(2, 6),
)
def test_the_slowest_range_may_read_the_fewest_records(times: list[float], batches: int) -> None:
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
    if len({each.limit for each in speeds}) < 2:
        assert found == {}
    if not found:  # from few records nothing is sure
        assert batches == 2 or len({each.limit for each in speeds}) < 2
        return
    allowed = [found[T0, part] for part in QUARTERS]
    for one, its_time in zip(allowed, times, strict=True):
        for other, other_time in zip(allowed, times, strict=True):
            assert one <= other or its_time <= other_time


def test_a_start_and_equal_limits_tell_nothing() -> None:
    learned = [counts(9_000, 9_000, 40, 9_000), counts(256, 256, 256, 256)]
    assert measured_allowances(learned)[T0, QUARTERS[2]] == 40
    assert measured_allowances(learned[:1]) == {}
    assert measured_allowances([]) == {}
    # A query that has started again: what it had measured is forgotten.
    assert measured_allowances([counts(256, 256, 256, 256), *learned]) == {}
    assert measured_allowances([counts(50, 50, 50, 50), counts(9, 9, 9, 9)]) == {}


def test_a_range_that_is_new_is_not_measured() -> None:
    new = RangeSpeed(HashRange(5, 6), 16)
    old = counts(256, 256, 256, 256)
    newer = counts(8_192, 8_192, 8_192, 40)
    latest = {T0: [*newer[T0][1:], *limits([new])[T0]]}
    found = measured_allowances([latest, newer, old])
    assert sorted(found.values()) == [40, 8_192, 8_192]


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
