"""The adaptive assignor: laws, and runs on keys that weigh differently."""

import random
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.assignment import adaptive, round_robin
from kshare.core.hashing import HASH_SPACE, WHOLE, HashRange, key_hash, split
from kshare.core.progress import Progress, TopicPartition
from kshare.core.slicing import PartitionLoad, RangeObservation, RangeRequest
from kshare.ranges.adaptive import is_even

T0 = TopicPartition("t", 0)
SAMPLE = 200
KEYS = [key_hash(f"key-{number}".encode(), 0) for number in range(500)]


def request(
    *observed: Sequence[RangeObservation], min_tasks: int = 0, key_ranges: int = 1
) -> RangeRequest:
    """Partitions 0, 1, ... of a topic, each with what is known of its ranges."""
    loads = [
        PartitionLoad("t", n, Progress.at(0).pending(1000), observed=tuple(seen))
        for n, seen in enumerate(observed)
    ]
    return RangeRequest(tuple(loads), min_tasks=min_tasks, key_ranges=key_ranges)


def adapted(observed: Sequence[RangeObservation], ranges: int) -> tuple[HashRange, ...]:
    return adaptive(request(observed, key_ranges=ranges))[T0]


def tiles(ranges: Sequence[HashRange]) -> bool:
    bounds = [0, *(part.hi for part in ranges)]
    return [part.lo for part in ranges] == bounds[:-1] and bounds[-1] == HASH_SPACE


def seen(
    hashes: HashRange,
    work: float,
    sample: Sequence[int] = (),
    *,
    offsets: int = 1000,
    timed: bool = True,
) -> RangeObservation:
    """A range that had so much work: seconds, or records if it was not measured."""
    records = 1000 if timed else int(work)
    return RangeObservation(
        hashes, records, offsets, work if timed else None, tuple(sorted(sample))
    )


def evenly(hashes: HashRange, count: int = 50) -> list[int]:
    """The sample of a range whose keys all differ and spread evenly."""
    return [part.lo for part in split(hashes, count)]


@st.composite
def observations(draw: st.DrawFn) -> list[RangeObservation]:
    """Of any ranges, also such as no planner tells."""
    cuts = sorted(draw(st.sets(st.integers(0, 40), min_size=2, max_size=10)))
    scale = draw(st.sampled_from([1, HASH_SPACE // 40]))
    found = []
    for lo, hi in pairwise(cuts):
        if draw(st.integers(0, 5)) == 0:
            continue
        hashes = HashRange(lo * scale, hi * scale)
        inside = st.integers(hashes.lo, hashes.hi - 1) | st.sampled_from([hashes.lo, hashes.hi - 1])
        sample = draw(st.lists(inside, max_size=30))
        records = draw(st.integers(0, 10_000))
        seconds = draw(st.none() | st.floats(0, 100))
        found.append(
            RangeObservation(
                hashes, records, draw(st.integers(0, 10_000)), seconds, tuple(sorted(sample))
            )
        )
    return draw(st.permutations(found))


class Work:
    """Keys with a weight each, and what tasks of ranges tell of them."""

    def __init__(self, weights: Mapping[int, float], seconds: Mapping[int, float] | None = None):
        self.weights, self.seconds = weights, seconds

    def observe(self, ranges: Sequence[HashRange]) -> list[RangeObservation]:
        found = []
        for hashes in ranges:
            inside = {h: w for h, w in self.weights.items() if h in hashes}
            chance = random.Random(hashes.lo)
            sample = chance.choices(list(inside), list(inside.values()), k=SAMPLE) if inside else []
            records = int(sum(inside.values()))
            seconds = None
            if self.seconds is not None:
                seconds = sum(w * self.seconds[h] for h, w in inside.items())
            found.append(RangeObservation(hashes, records, 10_000, seconds, tuple(sorted(sample))))
        return found

    def of(self, hashes: HashRange) -> float:
        return sum(
            w * (self.seconds[h] if self.seconds else 1)
            for h, w in self.weights.items()
            if h in hashes
        )

    def run(self, ranges: int, batches: int) -> tuple[HashRange, ...]:
        """The ranges after so many batches."""
        cut = adapted([], ranges)
        for _ in range(batches):
            cut = adapted(self.observe(cut), ranges)
        return cut


# -- laws ----------------------------------------------------------------------------------------


@given(st.lists(observations(), min_size=1, max_size=3), st.integers(0, 20), st.integers(1, 10))
def test_as_many_ranges_as_round_robin_gives_whatever_was_observed(
    observed: list[list[RangeObservation]], min_tasks: int, key_ranges: int
) -> None:
    asked = request(*observed, min_tasks=min_tasks, key_ranges=key_ranges)
    ranges, even = adaptive(asked), round_robin(asked)
    assert {place: len(parts) for place, parts in ranges.items()} == {
        place: len(parts) for place, parts in even.items()
    }
    assert all(tiles(parts) for parts in ranges.values())
    assert adaptive(asked) == ranges


@given(st.integers(1, 9), st.integers(0, 40))
def test_without_an_observation_they_are_those_of_round_robin(ranges: int, tasks: int) -> None:
    asked = request((), (), min_tasks=tasks, key_ranges=ranges)
    assert adaptive(asked) == round_robin(asked)


@given(st.lists(st.floats(1, 1.9), min_size=1, max_size=9), st.booleans())
def test_a_steady_load_moves_no_boundary(works: list[float], timed: bool) -> None:
    ranges = split(WHOLE, len(works))
    observed = [
        seen(part, work * 1000, evenly(part), timed=timed)
        for part, work in zip(ranges, works, strict=True)
    ]
    assert adapted(observed, len(works)) == ranges


@given(st.integers(0, 99))
def test_observations_in_any_order_are_one(seed: int) -> None:
    ranges = split(WHOLE, 4)
    observed = [seen(part, 10.0**n, evenly(part)) for n, part in enumerate(ranges)]
    shuffled = random.Random(seed).sample(observed, 4)
    assert adapted(shuffled, 4) == adapted(observed, 4)


# -- splitting and merging -----------------------------------------------------------------------


def test_a_hot_range_is_split_at_the_median_of_its_sample() -> None:
    """Most of its records are at its lower end; the two coldest neighbours make room."""
    ranges = split(WHOLE, 4)
    hot = ranges[3]
    sample = [hot.lo + n for n in range(60)] + [hot.lo + 1000 + n for n in range(40)]
    works = [5.0, 1.0, 1.0, 50.0]
    observed = [seen(part, work) for part, work in zip(ranges, works, strict=True)]
    observed[3] = seen(hot, 50.0, sample)
    assert adapted(observed, 4) == (
        ranges[0],
        HashRange(ranges[1].lo, ranges[2].hi),
        HashRange(hot.lo, hot.lo + 50),
        HashRange(hot.lo + 50, hot.hi),
    )


def test_without_a_sample_it_is_split_in_the_middle() -> None:
    ranges = split(WHOLE, 4)
    observed = [seen(part, work) for part, work in zip(ranges, [1.0, 1.0, 5.0, 50.0], strict=True)]
    assert adapted(observed, 4)[2:] == split(ranges[3], 2)


def test_a_hash_that_stands_out_gets_a_range_of_its_own() -> None:
    ranges = split(WHOLE, 6)
    hot = ranges[2]
    key = hot.lo + hot.width // 2 + 12345
    sample = [key] * 40 + evenly(hot, 60)
    observed = [seen(part, 1.0, evenly(part)) for part in ranges]
    observed[2] = seen(hot, 50.0, sample)
    found = adapted(observed, 6)
    assert HashRange.of(key) in found
    assert HashRange(hot.lo, key) in found
    assert HashRange(key + 1, hot.hi) in found


@pytest.mark.parametrize("counts", [(6, 4), (5, 5)])
def test_half_of_a_sample_is_a_hash_that_stands_out(counts: tuple[int, int]) -> None:
    """Whatever the other half is: here one other key."""
    ranges = split(WHOLE, 4)
    hot = ranges[2]
    key, other = (hot.lo + hot.width // 10 * n for n in (3, 6))
    observed = [seen(part, 1.0, evenly(part)) for part in ranges]
    observed[2] = seen(hot, 50.0, [key] * counts[0] + [other] * counts[1])
    assert HashRange.of(key) in adapted(observed, 4)


def test_a_range_of_one_hash_is_never_split_nor_merged_while_it_is_hot() -> None:
    key = KEYS[0]
    ranges = (HashRange(0, key), HashRange.of(key), HashRange(key + 1, HASH_SPACE))
    observed = [seen(ranges[0], 1.0), seen(ranges[1], 500.0, [key] * 50), seen(ranges[2], 1.2)]
    assert adapted(observed, 3) == ranges


def test_a_key_that_has_cooled_down_loses_its_range() -> None:
    key = HASH_SPACE // 8
    cut = [0, key, key + 1, HASH_SPACE // 2, HASH_SPACE]
    ranges = [HashRange(lo, hi) for lo, hi in pairwise(cut)]
    works = [1.0, 0.1, 1.0, 30.0]
    observed = [
        seen(part, work, evenly(part) if part.width > 1 else [key] * 50)
        for part, work in zip(ranges, works, strict=True)
    ]
    found = adapted(observed, 4)
    assert HashRange.of(key) not in found
    assert len(found) == 4


def test_noise_moves_nothing() -> None:
    """A range with few records, or a task of a moment, says little."""
    ranges = split(WHOLE, 4)
    few = [seen(part, work, timed=False) for part, work in zip(ranges, [1, 1, 1, 63], strict=True)]
    assert adapted(few, 4) == ranges
    enough = [seen(p, work, timed=False) for p, work in zip(ranges, [1, 1, 1, 64], strict=True)]
    assert adapted(enough, 4) != ranges
    short = [seen(p, work) for p, work in zip(ranges, [0.001, 0.001, 0.001, 0.19], strict=True)]
    assert adapted(short, 4) == ranges
    long = [seen(p, work) for p, work in zip(ranges, [0.001, 0.001, 0.001, 0.2], strict=True)]
    assert adapted(long, 4) != ranges


def test_work_is_per_offset() -> None:
    """Ranges with limits do not cover the same offsets: the slow one covers few."""
    low, high = split(WHOLE, 2)
    quarters = split(WHOLE, 4)
    even = [seen(part, 10.0, evenly(part)) for part in quarters[:3]]
    slow = seen(quarters[3], 10.0, evenly(quarters[3]), offsets=10)
    found = adapted([*even, slow], 4)
    assert found != quarters
    assert quarters[3].lo + quarters[3].width // 2 in {part.lo for part in found}
    assert adapted([seen(low, 10.0), seen(high, 10.0)], 2) == (low, high)


def test_time_counts_only_if_all_have_one() -> None:
    ranges = split(WHOLE, 4)
    observed = [RangeObservation(part, 1000, 1000, 1.0) for part in ranges[:3]]
    slow = RangeObservation(ranges[3], 1000, 1000, 50.0)
    unmeasured = RangeObservation(ranges[0], 1000, 1000, None)
    assert adapted([*observed, slow], 4) != ranges
    assert adapted([unmeasured, *observed[1:], slow], 4) == ranges


@pytest.mark.parametrize("ranges", [1, 3, 4, 5, 9])
def test_another_number_of_ranges_starts_from_the_last_ones(ranges: int) -> None:
    before = split(WHOLE, 4)
    observed = [seen(part, 1.0, evenly(part)) for part in before]
    found = adapted(observed, ranges)
    assert len(found) == ranges
    assert tiles(found)
    cuts, kept = {part.lo for part in before}, {part.lo for part in found}
    assert cuts <= kept if ranges >= 4 else kept <= cuts


def test_what_was_not_observed_is_filled_in() -> None:
    """A range whose message was lost counts as the others do."""
    ranges = split(WHOLE, 4)
    observed = [seen(part, 1.0, evenly(part)) for part in ranges]
    assert adapted([*observed[:2], observed[3]], 4) == ranges


def test_a_hole_counts_by_its_width() -> None:
    eighths = split(WHOLE, 8)
    observed = [
        seen(part, work, evenly(part))
        for part, work in zip(eighths[:4], [1.0, 1.0, 1.0, 1.2], strict=True)
    ]
    assert adapted(observed, 6) == (*eighths[:4], *split(HashRange(1 << 62, HASH_SPACE), 2))


def test_of_ranges_with_the_same_work_the_widest_is_split() -> None:
    low, high = split(WHOLE, 2)
    observed = [seen(part, 1.0) for part in (low, *split(high, 2))]
    assert adapted(observed, 4) == split(WHOLE, 4)


def test_observations_that_overlap_are_no_fault() -> None:
    low, high = split(WHOLE, 2)
    observed = [seen(WHOLE, 5.0), seen(low, 5.0), seen(high, 1.0), seen(low, 7.0)]
    found = adapted(observed, 2)
    assert tiles(found)
    assert len(found) == 2


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("timed", [False, True])
def test_a_part_is_hot_wherever_the_part_of_one_key_is_among_them(
    place: int, is_cut: bool, timed: bool
) -> None:
    """A key alone is no reason to move anything, however much work it has."""
    ranges = [WHOLE] if not is_cut else split(WHOLE, 2)

    def parts(key: float, *works: float) -> list[list[RangeObservation]]:
        each = len(ranges)
        listed = [[seen(part, work / each, timed=timed) for part in ranges] for work in works]
        listed.insert(place, [seen(HashRange.of(KEYS[0]), key, timed=timed)])
        return listed

    assert is_even(parts(500.0, 300.0, 300.0, 300.0))
    assert is_even(parts(5000.0, 300.0, 300.0, 300.0))
    for hot in range(3):
        works = [300.0] * 3
        works[hot] = 3000.0
        assert not is_even(parts(500.0, *works))
        assert not is_even(parts(5000.0, *works))


def test_hot_ranges_are_relieved_without_comparing_all_with_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranges = split(WHOLE, 128)
    observed = [
        seen(part, 40.0 if n % 16 == 0 else 1.0, evenly(part)) for n, part in enumerate(ranges)
    ]
    compared = 0

    def equal(_: object, __: object) -> bool:
        nonlocal compared
        compared += 1
        return False

    # The module's name in its package is the function's.
    monkeypatch.setattr(import_module("kshare.ranges.adaptive")._Piece, "__eq__", equal)
    found = adapted(observed, len(ranges))
    assert not set(ranges[::16]) & set(found)  # all hot ones were split
    assert compared <= len(ranges)


# -- runs ----------------------------------------------------------------------------------------


def test_a_slow_key_ends_up_alone() -> None:
    slow = KEYS[17]
    seconds = {h: 0.1 if h == slow else 0.0001 for h in KEYS}
    weights = dict.fromkeys(KEYS, 10.0)
    weights[slow] = 100.0
    found = Work(weights, seconds).run(ranges=8, batches=6)
    assert HashRange.of(slow) in found
    assert Work(weights, seconds).run(ranges=8, batches=12) == found  # and stays so


def test_hot_keys_end_up_alone_and_the_rest_is_even() -> None:
    hot = {KEYS[3]: 5000.0, KEYS[200]: 4000.0}
    work = Work({**dict.fromkeys(KEYS, 10.0), **hot})
    found = work.run(ranges=8, batches=12)
    for key in hot:
        assert HashRange.of(key) in found
    rest = [work.of(part) for part in found if part.width > 1]
    assert max(rest) <= 2.5 * sum(rest) / len(rest)
    assert work.run(ranges=8, batches=20) == found


def test_keys_that_crowd_one_end_are_spread() -> None:
    keys = [key // 64 for key in KEYS]  # all in the first of 64 parts of the space
    work = Work(dict.fromkeys(keys, 20.0))
    found = work.run(ranges=4, batches=15)
    assert max(work.of(part) for part in found) <= 0.6 * sum(map(work.of, found))
    assert work.run(ranges=4, batches=25) == found


@pytest.mark.parametrize("hot", [0, 1])
@pytest.mark.parametrize("share", [0.69, 0.8, 0.95, 1.0])
def test_of_two_ranges_the_hot_one_is_cut_where_both_have_about_half(
    hot: int, share: float
) -> None:
    halves = split(WHOLE, 2)
    works = [100 * (1 - share)] * 2
    works[hot] = 100 * share
    low, high = adapted(
        [seen(part, work, evenly(part, 80)) for part, work in zip(halves, works, strict=True)], 2
    )
    density = [work / part.width for work, part in zip(works, halves, strict=True)]
    lower = sum(
        inside.width * each
        for part, each in zip(halves, density, strict=True)
        if (inside := part.intersect(low)) is not None
    )
    assert high.lo == low.hi
    assert 42 <= lower <= 58


def test_of_two_ranges_one_is_hot_that_has_more_than_twice_the_other() -> None:
    low, high = split(WHOLE, 2)
    assert adapted([seen(low, 10.0, evenly(low)), seen(high, 20.0, evenly(high))], 2) == (low, high)
    assert adapted([seen(low, 10.0, evenly(low)), seen(high, 20.1, evenly(high))], 2) != (low, high)
