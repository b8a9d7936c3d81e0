"""The range assignors that look at nothing but what is pending."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kshare.assignment import lag_weighted, round_robin
from kshare.core.hashing import HASH_SPACE, WHOLE, HashRange, split
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, TopicPartition
from kshare.core.region import Rectangle
from kshare.core.slicing import PartitionLoad, RangeRequest

lags = st.lists(st.integers(1, 10**12), min_size=1, max_size=12)
requests = st.builds(
    lambda sizes, tasks, ranges: request(*sizes, min_tasks=tasks, key_ranges=ranges),
    lags,
    st.integers(0, 60),
    st.integers(1, 6),
)


def request(*sizes: int, min_tasks: int = 0, key_ranges: int = 1) -> RangeRequest:
    """Partitions 0, 1, ... of a topic, each with so many pending offsets."""
    loads = [
        PartitionLoad("t", n, Progress.at(7).pending(7 + size)) for n, size in enumerate(sizes)
    ]
    return RangeRequest(tuple(loads), min_tasks=min_tasks, key_ranges=key_ranges)


def counts(ranges: dict[TopicPartition, tuple[HashRange, ...]]) -> list[int]:
    return [len(parts) for _, parts in sorted(ranges.items())]


def check(asked: RangeRequest, ranges: dict[TopicPartition, tuple[HashRange, ...]]) -> None:
    """The laws that both obey."""
    assert set(ranges) == {load.topic_partition for load in asked.loads}
    for parts in ranges.values():
        assert parts == split(WHOLE, len(parts))
        assert len(parts) >= asked.key_ranges
    assert sum(counts(ranges)) >= asked.min_tasks


@given(requests)
def test_round_robin_deals_evenly(asked: RangeRequest) -> None:
    ranges = round_robin(asked)
    check(asked, ranges)
    found = counts(ranges)
    assert max(found) - min(found) <= 1
    assert found == sorted(found, reverse=True)
    least = max(len(asked.loads) * asked.key_ranges, asked.min_tasks)
    assert least <= sum(found) < least + len(asked.loads)


def test_round_robin_examples() -> None:
    """The first one is that of the key-shared consumption proposal."""
    assert counts(round_robin(request(9, 9, 9, min_tasks=5))) == [2, 2, 1]
    assert counts(round_robin(request(9, 9, 9))) == [1, 1, 1]
    assert counts(round_robin(request(9, 9, 9, min_tasks=2))) == [1, 1, 1]
    assert counts(round_robin(request(9, 9, key_ranges=3))) == [3, 3]
    assert counts(round_robin(request(9, 9, min_tasks=7, key_ranges=3))) == [4, 3]


@given(requests)
def test_lag_weighted_gives_more_where_more_is_pending(asked: RangeRequest) -> None:
    ranges = lag_weighted(asked)
    check(asked, ranges)
    found = counts(ranges)
    assert sum(found) == max(len(asked.loads) * asked.key_ranges, asked.min_tasks)
    by_lag = sorted(zip([load.area for load in asked.loads], found, strict=True))
    for (lag, fewer), (more_lag, more) in pairwise(by_lag):
        assert lag == more_lag or fewer <= more


@given(requests)
def test_lag_weighted_is_in_proportion(asked: RangeRequest) -> None:
    """No partition is a whole range away from its share of what there is to share."""
    rest = max(asked.min_tasks - asked.key_ranges * len(asked.loads), 0)
    total = sum(load.size for load in asked.loads)
    for load, found in zip(asked.loads, counts(lag_weighted(asked)), strict=True):
        assert abs((found - asked.key_ranges) * total - rest * load.size) < total


def test_lag_weighted_examples() -> None:
    assert counts(lag_weighted(request(10, 30, min_tasks=6))) == [2, 4]
    assert counts(lag_weighted(request(1, 1000, min_tasks=8))) == [1, 7]
    assert counts(lag_weighted(request(5, 5, 5, min_tasks=5))) == [2, 2, 1]
    assert counts(lag_weighted(request(5, 5))) == [1, 1]
    assert counts(lag_weighted(request(1, 99, key_ranges=4))) == [4, 4]


def test_lag_is_that_of_the_hashes_that_are_pending() -> None:
    """A partition of which one half is done has half as much to do."""
    low = HashRange(0, HASH_SPACE // 2)
    half = Progress.of(0, [Rectangle(OffsetRange(0, 100), low)]).pending(100)
    loads = (
        PartitionLoad("t", 0, half),
        PartitionLoad("t", 1, Progress.at(0).pending(100)),
    )
    assert counts(lag_weighted(RangeRequest(loads, min_tasks=8))) == [3, 5]
