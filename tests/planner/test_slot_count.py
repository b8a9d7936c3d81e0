"""minPartitions=auto: as many ranges as there are slots; a change has to last."""

from collections.abc import Iterator
from functools import reduce
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.progress import TopicPartition
from kshare.core.slice_end import SliceEnd
from kshare.feedback.messages import Executor
from kshare.planner import StreamPlanner
from kshare.planner.slot_count import SlotCount
from tests.support.fake_logs import FakeCluster, NothingParked, stream
from tests.support.planner import Feedback


def slots_after(*seen: int) -> int | None:
    return reduce(SlotCount.see, seen, SlotCount()).slots


@pytest.mark.parametrize(
    ("seen", "slots"),
    [
        ((), None),
        ((0, 0), None),
        ((4,), 4),
        ((4, 8, 8), 4),
        ((4, 8, 8, 8), 8),
        ((4, 8, 8, 4, 8), 4),
        ((4, 8, 8, 6, 8, 8), 4),
        ((4, 8, 0, 8, 0, 8), 8),
        ((4, 2, 2, 2), 2),
    ],
)
def test_a_change_counts_when_it_has_lasted(seen: tuple[int, ...], slots: int | None) -> None:
    assert slots_after(*seen) == slots


@given(st.lists(st.integers(0, 3)))
def test_the_number_is_one_that_was_seen(seen: list[int]) -> None:
    slots = slots_after(*seen)
    assert slots is None or slots in seen
    assert (slots is None) == (not any(seen))


class Located(Feedback):
    """Every task runs on one of some executors, in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.hosts = ["1@a"]

    def executors(self, batch: str) -> dict[int, Executor]:
        return {n: Executor(self.hosts[n % len(self.hosts)], 2) for n in range(20)}

    def reports(self, batch: str, *, wait_seconds: float = 0.0) -> dict[int, SliceEnd]:
        return {}


def ranges_of_batches(made: StreamPlanner, cluster: FakeCluster) -> Iterator[int]:
    """How many tasks each of some batches has."""
    start, partition = made.initial_offsets(), TopicPartition("t", 0)
    while True:
        first, end = cluster.logs[partition]
        cluster.logs[partition] = (first, end + 1_000)
        after = made.latest_offsets(start, None)
        yield len(made.tasks(start, after))
        start = after


def test_ranges_follow_the_executors() -> None:
    feedback, cluster = Located(), FakeCluster({("t", 0): (0, 1_000)})
    options = stream(minPartitions="auto", startingOffsets="earliest")
    made = StreamPlanner(options, cluster, parking=NothingParked(), feedback=feedback)
    counts = ranges_of_batches(made, cluster)
    assert list(islice(counts, 5)) == [1, 1, 2, 2, 2]
    feedback.hosts += ["2@b", "3@c"]
    # Two tasks show two executors, and then four tasks show the third.
    assert list(islice(counts, 9)) == [2, 2, 2, 4, 4, 4, 4, 6, 6]
