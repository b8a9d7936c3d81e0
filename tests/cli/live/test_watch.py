"""Speeds: offsets that were processed of a range's hashes, whatever else happens meanwhile."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.cli.live.watch import WINDOW_SECONDS, SpeedMeter
from kshare.core.hashing import HASH_SPACE, WHOLE, HashRange, split
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, TopicPartition
from kshare.core.region import Rectangle
from tests.support.looks import made_up

PARTS = split(WHOLE, 8)
pieces = st.lists(
    st.builds(
        lambda start, size, first, count: Rectangle(
            OffsetRange(start, start + size),
            HashRange(PARTS[first].lo, PARTS[min(first + count, 7)].hi),
        ),
        st.integers(0, 30),
        st.integers(1, 12),
        st.integers(0, 7),
        st.integers(0, 7),
    ),
    max_size=4,
)


def pending(rectangles: list[Rectangle], stable: int, end: int, hashes: HashRange) -> set[int]:
    """The offsets with something pending of some eighths of the hash space, by brute force."""
    parts = [part for part in PARTS if part.lo >= hashes.lo and part.hi <= hashes.hi]
    return {
        offset
        for offset in range(stable, end)
        for part in parts
        if not any(offset in r.offsets and part.lo in r.hashes for r in rectangles)
    }


@given(pieces, pieces, st.integers(0, 10), st.sampled_from([1, 2, 4, 8]), st.integers(1, 50))
def test_a_speed_is_what_is_not_pending_any_more(
    before: list[Rectangle], more: list[Rectangle], stable: int, count: int, arrived: int
) -> None:
    then, now = Progress.of(stable, before), Progress.of(stable, [*before, *more])
    ranges = split(WHOLE, count)
    meter = SpeedMeter()
    first = meter.measured(made_up(then, 50, ranges=[WHOLE]), 100.0)
    assert [each.speed for each in first.ranges] == [None]
    # Ranges are cut anew, and records arrive: neither matters.
    second = meter.measured(made_up(now, 50 + arrived, ranges=ranges), 104.0)
    for each in second.ranges:
        gone = pending(before, stable, 60, each.hashes[0]) - pending(
            [*before, *more], stable, 60, each.hashes[0]
        )
        assert each.speed == len(gone) / 4


def test_speeds_are_means_over_the_window() -> None:
    meter = SpeedMeter()
    speeds = []
    for second in range(0, 200, 2):  # a batch of 1,000 offsets each 10 s
        look = made_up(Progress.at(1000 * (second // 10)), 1 << 20)
        speeds.append(meter.measured(look, float(second)).ranges[0].speed)
    late = [each for each in speeds[-40:] if each is not None]
    assert min(late) >= 80
    assert max(late) <= 120
    stopped = [meter.measured(look, 198.0 + s).ranges[0].speed for s in (2, WINDOW_SECONDS + 4)]
    assert stopped[0] is not None
    assert stopped[0] > 0
    assert meter.measured(look, 400.0).ranges[0].speed == 0


def test_after_a_reset_speeds_are_measured_anew() -> None:
    meter = SpeedMeter()
    meter.measured(made_up(Progress.at(500), 1000), 0.0)
    assert meter.measured(made_up(Progress.at(10), 1000), 5.0).ranges[0].speed is None
    assert meter.measured(made_up(Progress.at(30), 1000), 7.0).ranges[0].speed == 10


def test_a_partition_that_comes_later_has_no_speed_yet() -> None:
    meter = SpeedMeter()
    meter.measured(made_up(Progress.at(5), 10), 0.0)
    other = TopicPartition("orders", 1)
    assert meter.measured(made_up(Progress.at(5), 10, partition=other), 1.0).ranges[0].speed is None


def test_records_per_second_count_hashes() -> None:
    meter = SpeedMeter()
    tenth = HashRange(0, HASH_SPACE // 10)
    rest = HashRange(HASH_SPACE // 10, HASH_SPACE)
    meter.measured(made_up(Progress.at(0), 100), 0.0)
    done = Progress.of(
        0, [Rectangle(OffsetRange(0, 50), tenth), Rectangle(OffsetRange(0, 10), rest)]
    )
    look = meter.measured(made_up(done, 100, ranges=[tenth, rest]), 1.0)
    assert [each.speed for each in look.ranges] == [50, 10]
    assert look.speed == pytest.approx(0.1 * 50 + 0.9 * 10)
