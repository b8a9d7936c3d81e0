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
from kshare.planner.task_plan import SlotCount, TaskSlots
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


def executors_counted(batches: list[tuple[int, set[str]]], known: set[str]) -> list[int | None]:
    """The slots after each of some batches, given by its tasks and by who ran them.

    A number is given often enough to count; each executor has one slot.
    """
    slots, counts = TaskSlots(), []
    for tasks, ran in batches:
        slots.start_batch(tasks)
        slots.observe(ran)
        slots.finish_batch(dict.fromkeys(known, 1))
        counts.append(slots.slots)
    return counts


ALL = {"1@a", "2@b", "3@c"}
SOME = {"1@a"}


def test_an_executor_without_a_task_in_three_batches_does_not_count() -> None:
    # Two batches without the others, three with the smaller number.
    gone = [(3, ALL), *[(3, SOME)] * 6]
    assert executors_counted(gone, ALL) == [3, 3, 3, 3, 3, 1, 1]
    # It comes back before the third, and they begin anew.
    back = [(3, ALL), *[(3, SOME), (3, SOME), (3, ALL)] * 4]
    assert executors_counted(back, ALL) == [3] * 13


def test_batches_without_reports_say_nothing_of_who_is_gone() -> None:
    lost: list[tuple[int, set[str]]] = [(3, ALL), *[(3, set[str]())] * 9]
    assert executors_counted(lost, ALL) == [3] * 10


def test_batches_with_fewer_tasks_than_slots_say_nothing_of_who_is_gone() -> None:
    """As with maxTasks: an executor without a task may just not have been needed."""
    assert executors_counted([(3, ALL), *[(2, SOME)] * 9], ALL) == [3] * 10


def test_an_executor_that_is_not_known_does_not_count() -> None:
    assert executors_counted([(1, SOME), *[(3, ALL)] * 3], {"1@a", "2@b"}) == [1, 1, 1, 2]


def test_an_executor_that_is_replaced_counts_once() -> None:
    others = {"1@a", "2@b", "4@d"}
    assert executors_counted([(3, ALL), *[(3, others)] * 9], ALL | others) == [3] * 10


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
    # All but one have gone.
    feedback.hosts = feedback.hosts[:1]
    assert list(islice(counts, 8)) == [6, 6, 6, 6, 6, 2, 2, 2]
