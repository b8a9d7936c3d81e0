"""The order of Java's hash tables, against what OpenJDK 17 printed for sets of Kafka's task ids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.assignment import TaskId
from kshare.assignment.placement.indexed_state import order_when_copied, order_when_grown
from kshare.core.hashing import WHOLE, split


def names(order: list[int], tasks: list[TaskId]) -> str:
    return " ".join(str(tasks[number]) for number in order)


@pytest.mark.parametrize(
    ("partitions", "from_one_by_one", "from_another_set"),
    [
        (
            6,
            "7_5 7_4 7_3 7_2 7_1 7_0 0_5 0_4 0_3 0_2 0_1 0_0",
            "7_5 7_4 7_3 7_2 7_1 7_0 0_5 0_4 0_3 0_2 0_1 0_0",
        ),
        (
            12,
            (
                "7_6 7_5 7_4 7_3 7_2 7_1 7_0 0_11 0_10 0_9 0_8 0_7 "
                "0_6 0_5 0_4 7_11 0_3 7_10 0_2 7_9 0_1 7_8 0_0 7_7"
            ),
            (
                "7_5 7_3 7_1 0_10 0_8 0_6 0_4 7_10 0_2 7_8 0_0 7_6 "
                "7_4 7_2 7_0 0_11 0_9 0_7 0_5 7_11 0_3 7_9 0_1 7_7"
            ),
        ),
    ],
)
def test_order_is_javas(partitions: int, from_one_by_one: str, from_another_set: str) -> None:
    tasks = [TaskId(sub, partition) for sub in (0, 7) for partition in range(partitions)]
    order = order_when_grown(range(len(tasks)), tasks)
    assert names(order, tasks) == from_one_by_one
    assert names(order_when_copied(order, tasks), tasks) == from_another_set


@given(st.sets(st.tuples(st.integers(0, 99), st.integers(0, 9_999)), max_size=60))
def test_nothing_is_lost_and_shared_tasks_follow_their_partition(ids: set[tuple[int, int]]) -> None:
    tasks = [TaskId(*one, part) for one in sorted(ids) for part in split(WHOLE, 2)]
    for order in (
        order_when_grown(range(len(tasks)), tasks),
        order_when_copied(range(len(tasks)), tasks),
    ):
        assert sorted(order) == list(range(len(tasks)))
        assert [one + 1 for one in order[::2]] == order[1::2]
